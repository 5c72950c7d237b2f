#include "io/control.h"

enum {
    POLL_BLOCKED_BYTES = 32 * 1024, /* a publisher with a back-pressured sender polls once per this many bytes */
    POLL_BYTES = 256 * 1024,        /* the same for a publisher that sends in the loop's place */
    RECEIVES_MAX = 16,              /* datagrams per receive call */
    ROUNDS_MAX = 4,                 /* receive calls before others are served */
};

int um_control_open(um_control *control, um_reactor *reactor, um_links *links, um_source_session *core, uint32_t index,
                    const um_socket_config *config, uint16_t port_low, uint16_t port_high)
{
    control->core = core;
    control->reactor = reactor;
    control->links = links;
    control->index = index;
    int result = -EADDRINUSE;
    for (uint32_t port = port_low; port <= port_high && result == -EADDRINUSE; port++)
        result = um_socket_open_unicast(&control->nak_link, config, (uint16_t)port);
    reactor->error_step = control->nak_link.failed_step;
    return result;
}

int um_control_watch(um_control *control)
{
    return um_reactor_watch(control->reactor, control->nak_link.fd, UM_WATCH_SESSION, control->index);
}

/* If receivers use keys, verifies the datagram before it has any effect on the session. */
static void on_datagram(um_control *control, const um_rx *rx, int64_t now_ns)
{
    um_verifier *verifier = control->verifier;
    uint32_t length = rx->length;
    enum um_tag_status status =
        verifier == NULL ? UM_TAG_OK : verifier->verify(verifier, rx->from, rx->data, &length, rx->received_ns);
    if (status == UM_TAG_OK)
        um_source_session_on_control(control->core, rx->from, rx->data, length, now_ns);
    else
        um_source_session_drop_unverified(control->core, status);
}

/* Under both locks. Returns datagrams handled; *more is true if the socket was not emptied. */
static int read_socket(um_control *control, int64_t now_ns, bool *more)
{
    um_links *links = control->links;
    int handled = 0, count = RECEIVES_MAX;
    for (int i = 0; i < ROUNDS_MAX && count == RECEIVES_MAX; i++) {
        count = um_links_receive(links, &control->nak_link, RECEIVES_MAX);
        for (int k = 0; k < count; k++)
            on_datagram(control, &links->ring.batch[k], now_ns);
        handled += count > 0 ? count : 0;
    }
    um_links_on_send_error(links, control->core, control->nak_link.fd); /* because NAKs are served at once */
    *more = count == RECEIVES_MAX;
    return handled;
}

int um_control_service(um_control *control, int64_t now_ns)
{
    bool more;
    if (!um_lock_try(&control->core->sender_lock)) {
        atomic_store_explicit(&control->is_unwatched, true, memory_order_relaxed);
        return UM_CONTROL_BUSY;
    }
    int handled = read_socket(control, now_ns, &more);
    um_lock_release(&control->core->sender_lock);
    if (!more)
        um_reactor_watch_again(control->reactor, control->nak_link.fd, UM_WATCH_SESSION, control->index);
    atomic_store_explicit(&control->is_unwatched, more, memory_order_relaxed);
    return handled;
}

int um_control_poll(um_control *control, int64_t now_ns, bool *retransmits)
{
    um_source_session *core = control->core;
    int handled = 0;
    *retransmits = false;
    if (pthread_mutex_trylock(&control->reactor->lock) != 0)
        return 0;
    if (um_lock_try(&core->sender_lock)) {
        bool ignored;
        atomic_store_explicit(&control->polled_position, atomic_load_explicit(&core->flush_limit, memory_order_relaxed),
                              memory_order_relaxed);
        atomic_store_explicit(&control->polled_ns, now_ns, memory_order_relaxed);
        handled = read_socket(control, now_ns, &ignored);
        *retransmits = core->retransmit_count > 0;
        um_lock_release(&core->sender_lock);
    }
    pthread_mutex_unlock(&control->reactor->lock);
    return handled;
}

/* A publisher polls if the loop has left the socket to publishers, and if flow control blocks the sender. Data written
 * while the sender is blocked has left the caches by the time it is sent, so the publisher polls once per as many
 * bytes.
 */
bool um_control_is_poll_due(const um_control *control)
{
    const um_source_session *core = control->core;
    int64_t since = atomic_load_explicit(&core->flush_limit, memory_order_relaxed) -
                    atomic_load_explicit(&control->polled_position, memory_order_relaxed);
    bool held_back = core->config.flow_policy != UM_FLOW_NONE &&
                     atomic_load_explicit(&core->is_sender_blocked, memory_order_relaxed);
    return (held_back && since >= POLL_BLOCKED_BYTES) || (um_control_is_unwatched(control) && since >= POLL_BYTES);
}

int64_t um_control_polled_ns(const um_control *control, int64_t now_ns)
{
    return um_control_is_unwatched(control) ? atomic_load_explicit(&control->polled_ns, memory_order_relaxed) : now_ns;
}
