#include "io/stream_listener.h"

#include <unistd.h>

static const int64_t PAUSE_NS = 100000000;

/* The index in the epoll set. */
static uint32_t watch_index(const um_stream_listener *listener, uint32_t number)
{
    return listener->session << 16 | number;
}

int um_stream_listener_open(um_stream_listener *listener, um_reactor *reactor, uint32_t session, int fd)
{
    *listener = (um_stream_listener){.reactor = reactor, .session = session, .fd = fd < 0 ? -1 : fd};
    if (fd < 0)
        return fd;
    int result = um_reactor_watch(reactor, fd, UM_WATCH_STREAM, watch_index(listener, UM_STREAM_LISTENER));
    if (result != 0)
        um_stream_listener_close(listener);
    return result;
}

void um_stream_listener_close(um_stream_listener *listener)
{
    if (listener->fd >= 0)
        close(listener->fd);
    listener->fd = -1;
}

bool um_stream_listener_pause(um_stream_listener *listener, int error, int64_t now_ns)
{
    if (error != -EMFILE && error != -ENFILE && error != -ENOBUFS && error != -ENOMEM)
        return false;
    listener->again_ns = now_ns + PAUSE_NS;
    um_reactor_unwatch(listener->reactor, listener->fd, UM_WATCH_STREAM, watch_index(listener, UM_STREAM_LISTENER));
    return true;
}

int64_t um_stream_listener_resume(um_stream_listener *listener, int64_t now_ns)
{
    if (listener->again_ns == 0)
        return UM_NEVER_NS;
    if (now_ns < listener->again_ns)
        return listener->again_ns;
    listener->again_ns = 0;
    um_reactor_watch_again(listener->reactor, listener->fd, UM_WATCH_STREAM, watch_index(listener, UM_STREAM_LISTENER));
    return UM_NEVER_NS;
}

int um_stream_listener_watch(um_stream_listener *listener, int fd, uint32_t number)
{
    return um_reactor_watch_stream(listener->reactor, fd, UM_WATCH_STREAM, watch_index(listener, number));
}

void um_stream_listener_watch_again(um_stream_listener *listener, int fd, uint32_t number)
{
    um_reactor_watch_stream_again(listener->reactor, fd, UM_WATCH_STREAM, watch_index(listener, number));
}
