/* The one link interface (design W6): how datagrams leave a session. Kernel sockets, AF_XDP and the
 * simulated network implement it; wrappers (loss, tap) implement it over another link.
 *
 * Receiving is the owner's loop (ffi/io/context.c, ffi/sim): it takes batches of um_rx from its link and
 * hands them to um_node_on_data / um_node_on_control.
 */
#ifndef UM_CORE_LINK_H
#define UM_CORE_LINK_H

#include "core/base.h"

typedef struct um_part {
    const uint8_t *data;
    uint32_t length;
} um_part;

/* One datagram to send: the concatenation of its parts. The memory stays the caller's and is read only
 * during the call. */
typedef struct um_tx {
    const um_part *parts;
    uint32_t part_count;
    uint32_t length;
} um_tx;

/* One received datagram, or a run of datagrams of segment_length bytes each (the last may be shorter)
 * where the kernel coalesced them; segment_length is 0 for a single one. data belongs to the link until
 * its next receive. */
typedef struct um_rx {
    const uint8_t *data;
    uint32_t length;
    uint32_t segment_length;
    um_address from;
    um_address to;
    int64_t received_ns;   /* wall clock */
    uint32_t queue_number; /* of the interface's queue whose ring it came from, counted from 1; 0: from no ring */
} um_rx;

/* How many datagrams so many bytes are. */
static inline uint32_t um_datagrams_in(uint32_t length, uint32_t segment_length)
{
    return segment_length == 0 ? 1 : (length + segment_length - 1) / segment_length;
}

typedef struct um_link um_link;

typedef struct um_link_ops {
    /* Sends datagrams of one session to `to`, in order. Returns how many were taken (0 when the link is
     * full now) or a negative errno; the rest stays with the caller, who offers it again. */
    int (*send)(um_link *link, um_address to, const um_tx *batch, uint32_t count);
    /* Sends one datagram that may be larger than the path takes now (built before the MTU shrank);
     * the link may let the kernel fragment it. Returns 1, 0 or a negative errno. */
    int (*send_oversize)(um_link *link, um_address to, const um_tx *datagram);
} um_link_ops;

/* First member of every implementation. */
struct um_link {
    const um_link_ops *ops;
    bool takes_whole; /* sends faster what lies in one piece, datagram behind datagram, than what it has to gather */
};

#endif
