/* The control messages of a source session: NAKs and status messages, which receivers send to its NAK socket. Internal
 * to ffi/io; uses the session's core, and does not depend on how the session sends.
 *
 * The loop reads the socket when epoll reports it, once for each time it is watched:
 *
 *     watched --- readable, sender lock free: read until empty ---> watched
 *        |                                                             ^
 *        +--- readable, another thread runs the sender ---> unwatched --+ the loop's next service empties the socket
 *
 * While it is unwatched, the publishers that run the sender poll it: on a processor that they share with the loop, they
 * would block while the loop waited for their lock with status messages still to be processed.
 *
 * Threads: reading needs the context lock, for the receive buffers, and then the session's sender lock.
 */
#ifndef UM_IO_CONTROL_H
#define UM_IO_CONTROL_H

#include "authentication/verifiers.h"
#include "io/links.h"
#include "io/reactor.h"

typedef struct um_control {
    um_source_session *core;
    um_reactor *reactor;
    um_links *links;
    um_socket_link nak_link; /* LBT-RM: separate from the socket that sends data, because the kernel searches for
                                waiting threads each time it frees a packet sent through a socket */
    um_verifier *verifier;   /* of receivers' datagrams; NULL: they carry no tags */
    uint32_t index;          /* of the session in the epoll set */
    atomic_bool is_unwatched;
    _Atomic int64_t polled_ns;       /* when a publisher last polled */
    _Atomic int64_t polled_position; /* the flush limit then */
} um_control;

/* Binds the NAK socket to the first free UDP port of the range. */
int um_control_open(um_control *control, um_reactor *reactor, um_links *links, um_source_session *core, uint32_t index,
                    const um_socket_config *config, uint16_t port_low, uint16_t port_high);
/* Makes the loop read the socket from now on. */
int um_control_watch(um_control *control);

enum { UM_CONTROL_BUSY = -1 };
/* Called by the loop, under the context lock, after the socket was reported or while it is unwatched. Returns
 * datagrams, or UM_CONTROL_BUSY while another thread runs the sender. */
int um_control_service(um_control *control, int64_t now_ns);

/* Called by a publisher, under no lock: reads available datagrams unless another thread does. Returns datagrams;
 * *retransmits is true if retransmissions wait for their limiter. */
int um_control_poll(um_control *control, int64_t now_ns, bool *retransmits);
/* Returns true if a publisher that keeps sending should poll now. */
bool um_control_is_poll_due(const um_control *control);
/* Returns when control messages were last polled: now_ns if the loop watches the socket. */
int64_t um_control_polled_ns(const um_control *control, int64_t now_ns);

static inline bool um_control_is_unwatched(const um_control *control)
{
    return atomic_load_explicit(&control->is_unwatched, memory_order_relaxed);
}

#endif
