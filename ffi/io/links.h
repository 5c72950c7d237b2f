/* The state that the links of a context share: socket options, the ring set, the tap, the buffers of one receive call,
 * and the counters of closed links. Internal to ffi/io; below the reactor.
 *
 * Threads: the context lock, except for the tap (capture/writing/tap.h), `send_count`, and um_links_on_send_error,
 * which needs the sender lock of the session. Memory: opened and closed here, except the ring set, which is its
 * opener's.
 */
#ifndef UM_IO_LINKS_H
#define UM_IO_LINKS_H

#include "capture/writing/tap.h"
#include "core/source/source_session.h"
#include "io/authentication.h"
#include "io/link_socket.h"
#include "io/rings.h"

typedef struct um_links {
    um_socket_config socket_config;
    um_socket_config ipv6_socket_config;  /* for IPv6 groups; without an address if the interface has none of IPv6 */
    um_socket_config lbtru_socket_config; /* for sockets of LBT-RU */
    um_rings *rings;                      /* NULL: data uses kernel sockets, or the context is closed */
    um_authentication authentication;
    um_tap tap; /* runs between um_context_tap_start and _stop */
    um_receive_ring ring;
    void *ring_memory;
    um_link_counters closed;     /* counters of closed links */
    _Atomic uint32_t send_count; /* runs of the context's senders; approximate if threads send at once */
} um_links;

int um_links_open(um_links *links, const um_socket_config *config, um_rings *rings);
/* Returns the options of sockets of a group's family, or NULL if the interface has no address of it. */
static inline const um_socket_config *um_links_config_for(const um_links *links, um_address group)
{
    if (UM_LIKELY(!um_ip_is_v6(group.ip)))
        return &links->socket_config;
    return um_ip_is_set(links->ipv6_socket_config.interface_ip) ? &links->ipv6_socket_config : NULL;
}

#define UM_LINKS_NO_IPV6 "an IPv6 address of the interface" /* the failed step if it is NULL */

/* Frees the receive buffers when nothing receives any more. Counters stay readable. */
void um_links_close(um_links *links);

/* Closes a socket and keeps its counters. */
void um_links_close_socket(um_links *links, um_socket_link *link);

/* Receives at most `max` datagrams into ring.batch and shows them to the tap. Returns how many, or -errno. */
int um_links_receive(um_links *links, um_socket_link *link, int max);

/* Called after a session has sent: if the path refused a datagram as too large, reads the MTU. `fd`: any socket of the
 * session. */
void um_links_on_send_error(const um_links *links, um_source_session *session, int fd);

#endif
