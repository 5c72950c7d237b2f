/* The one link interface (design W6): how datagrams leave a session. Kernel sockets, AF_XDP and the
 * simulated network implement it; wrappers (loss, tap) implement it over another link.
 *
 * Receiving is the owner's loop (ffi/io/context.c, ffi/sim): it takes batches of um_rx from its link and
 * passes them to um_node_on_data / um_node_on_control.
 */
#ifndef UM_CORE_LINK_H
#define UM_CORE_LINK_H

#include "core/foundation/base.h"

typedef struct um_part {
    const uint8_t *data;
    uint32_t length;
} um_part;

/* A frame of a link's own memory, borrowed so that a datagram is staged in it and leaves without being copied. The
 * borrower returns it or sends it: a link that accepts the datagram takes the frame and clears `data`.
 */
typedef struct um_borrowed_frame {
    uint8_t *data;           /* NULL: nothing */
    uint64_t sum;            /* of what lies behind the first `unsummed_bytes` (core/foundation/internet.h) */
    uint32_t unsummed_bytes; /* even */
} um_borrowed_frame;

/* Whom a fan-out sends a datagram (fan_out.h). The header lies at the beginning of its first part: what differs from
 * copy to copy is written there. */
typedef struct um_selection {
    uint64_t *clients; /* a bit for each place in the client map */
    uint8_t *header;
} um_selection;

/* One datagram to send: the concatenation of its parts. The memory stays the caller's and is read only
 * during the call, but for a borrowed frame. */
typedef struct um_tx {
    const um_part *parts;
    uint32_t part_count;
    uint32_t length;
    um_borrowed_frame *borrowed;   /* the one part lies at its beginning; NULL: in memory of the caller */
    const um_selection *selection; /* for a fan-out; NULL: everybody */
} um_tx;

/* The frames datagrams are received in, where one can stay until it has been read. Threads: the receiving one. */
typedef struct um_frames um_frames;
struct um_frames {
    /* Pins the frame that `data` lies in: it stays when its batch is released. False when it is pinned already, or too
     * many are. */
    bool (*pin)(um_frames *frames, const uint8_t *data);
    /* Unpins frames, one for each pointer: they are the ring's again. */
    void (*unpin)(um_frames *frames, const uint8_t *const *data, uint32_t count);
    bool has_pinned_last; /* set by pin; cleared by the caller that reads it */
};

/* One received datagram, or a run of datagrams of segment_length bytes each (the last may be shorter)
 * where the kernel coalesced them; segment_length is 0 for a single one. data belongs to the link until
 * its next receive, unless its frame is pinned. */
typedef struct um_rx {
    const uint8_t *data;
    uint32_t length;
    uint32_t segment_length;
    um_address from;
    um_address to;
    int64_t received_ns;   /* wall clock */
    um_frames *frames;     /* whose frame it lies in; NULL: it cannot stay there */
    uint32_t queue_number; /* of the interface's queue whose ring it came from, counted from 1; 0: from no ring */
} um_rx;

/* How many datagrams so many bytes are. */
static inline uint32_t um_datagrams_in(uint32_t length, uint32_t segment_length)
{
    return segment_length == 0 ? 1 : (length + segment_length - 1) / segment_length;
}

enum { UM_SEND_BATCH_MAX = 64 }; /* datagrams a link is offered at once */

typedef struct um_link um_link;

typedef struct um_link_ops {
    /* Sends datagrams of one session to `to`, in order. Returns how many were taken (0 when the link is
     * full now) or a negative errno; the rest stays with the caller, which offers it again. */
    int (*send)(um_link *link, um_address to, const um_tx *batch, uint32_t count);
    /* Sends one datagram that may be larger than the path takes now (built before the MTU shrank);
     * the link may let the kernel fragment it. Returns 1, 0 or a negative errno. */
    int (*send_oversize)(um_link *link, um_address to, const um_tx *datagram);
    /* Only of links with borrow_bytes. Borrows up to `count` frames; returns how many, fewer where the link needs the
     * rest itself. Any thread. */
    uint32_t (*borrow)(um_link *link, uint8_t **pieces, uint32_t count);
    void (*return_frames)(um_link *link, uint8_t *const *pieces, uint32_t count);
} um_link_ops;

/* First member of every implementation. */
struct um_link {
    const um_link_ops *ops;
    bool is_faster_in_one_piece; /* sends faster what lies in one piece, datagram behind datagram, than what lies in
                                  * several parts
                                  */
    bool can_report_space; /* one that is full is written to by its owner's loop as soon as it is not: no early retry */
    uint32_t
        borrow_bytes; /* the size of the frames it lends, each at the beginning of a cache line; 0: it lends none */
};

#endif
