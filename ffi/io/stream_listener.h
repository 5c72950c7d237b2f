/* The listening socket of a source session over TCP or LBT-IPC, and how its connections are reported to the loop.
 * Internal to ffi/io; below the servers.
 *
 *     open: reported while connections wait --- no descriptor or memory for one ---> paused: not reported
 *       ^                                                                              |
 *       +---------------------------- the pause is over, um_stream_listener_resume ----+
 *
 * Connections are reported by edges (EPOLLET), with their number. Threads: the context lock. Errors: negative errno.
 */
#ifndef UM_IO_STREAM_LISTENER_H
#define UM_IO_STREAM_LISTENER_H

#include "io/reactor.h"

enum {
    UM_STREAM_LISTENER = 0xffff, /* number of the listening socket, in place of a connection's */
    UM_STREAM_SERVER_BUSY = -1,  /* another thread runs the sender */
};

typedef struct um_stream_listener {
    um_reactor *reactor;
    uint32_t session;    /* index of the session */
    int fd;              /* -1: closed */
    int64_t again_ns;    /* paused: earliest next accept; 0: not paused */
    int64_t accepted_ns; /* when the last connection was taken */
} um_stream_listener;

/* Takes a listening socket, or the error of opening it, and has it reported. 0 or -errno, with the socket closed. */
int um_stream_listener_open(um_stream_listener *listener, um_reactor *reactor, uint32_t session, int fd);
void um_stream_listener_close(um_stream_listener *listener);

/* Returns false while it is paused. */
static inline bool um_stream_listener_accepts(const um_stream_listener *listener, int64_t now_ns)
{
    return now_ns >= listener->again_ns;
}
/* Pauses if accepting failed because the process has no descriptor or memory: the connection would be reported until it
 * is accepted. Returns true if so. */
bool um_stream_listener_pause(um_stream_listener *listener, int error, int64_t now_ns);
/* Ends a pause that is over. Returns when to call again. */
int64_t um_stream_listener_resume(um_stream_listener *listener, int64_t now_ns);

/* Returns the time of a connection that is taken now: those of one pass differ, so that the oldest one is known. */
static inline int64_t um_stream_listener_stamp(um_stream_listener *listener, int64_t now_ns)
{
    listener->accepted_ns = now_ns > listener->accepted_ns ? now_ns : listener->accepted_ns + 1;
    return listener->accepted_ns;
}

/* Has an accepted connection reported. 0 or -errno. */
int um_stream_listener_watch(um_stream_listener *listener, int fd, uint32_t number);
/* The same once more, for a connection that was not read until it would block. */
void um_stream_listener_watch_again(um_stream_listener *listener, int fd, uint32_t number);

#endif
