/* The link interface (W6): how a session sends datagrams. Kernel sockets, AF_XDP and the simulated network implement
 * it; wrappers (loss, tap) implement it over another link.
 *
 * The owner's loop (ffi/io/context.c, ffi/sim) receives: it takes batches of um_rx from its link and passes them to
 * um_node_on_data / um_node_on_control.
 */
#ifndef UM_CORE_LINK_H
#define UM_CORE_LINK_H

#include "core/foundation/address.h"

typedef struct um_part {
    const uint8_t *data;
    uint32_t length;
} um_part;

/* A frame of a link's own memory, borrowed so that a datagram is staged in it and sent without a copy. The borrower
 * returns it or sends it: a link that accepts the datagram takes the frame back and clears `data`.
 */
typedef struct um_borrowed_frame {
    uint8_t *data;           /* NULL: no frame */
    uint64_t sum;            /* sum of the bytes after the first `unsummed_bytes` (core/foundation/internet.h) */
    uint32_t unsummed_bytes; /* even */
} um_borrowed_frame;

/* The clients to which a fan-out sends a datagram (fan_out.h). */
typedef struct um_selection {
    uint64_t *clients; /* a bit for each index in the client map */
    uint8_t *header;   /* start of the first part; the fields that differ between copies are written here */
} um_selection;

/* One datagram to send: the concatenation of its parts. The memory stays the caller's and, except for a borrowed frame,
 * is only read during the call. */
typedef struct um_tx {
    const um_part *parts;
    uint32_t part_count;
    uint32_t length;
    um_borrowed_frame *borrowed;   /* the frame whose start is the only part; NULL: parts in the caller's memory */
    const um_selection *selection; /* clients of a fan-out; NULL: all */
} um_tx;

/* The frames that datagrams are received in, if frames can be pinned until they are read. Threads: the receiving one.
 */
typedef struct um_frames um_frames;
struct um_frames {
    /* Pins the frame that contains `data`: it is kept when its batch is released. Returns false if it is already
     * pinned, or too many are. */
    bool (*pin)(um_frames *frames, const uint8_t *data);
    /* Unpins the frames of these pointers and returns them to the ring. */
    void (*unpin)(um_frames *frames, const uint8_t *const *data, uint32_t count);
    bool has_pinned_last; /* set by pin; cleared by the caller that reads it */
};

/* One received datagram (segment_length 0), or a run of datagrams of segment_length bytes that the kernel coalesced,
 * the last of which may be shorter. data belongs to the link and is valid until its next receive, or while its frame is
 * pinned. */
typedef struct um_rx {
    const uint8_t *data;
    uint32_t length;
    uint32_t segment_length;
    um_address from;
    um_address to;
    int64_t received_ns;   /* wall clock */
    um_frames *frames;     /* pins its frame; NULL: frames cannot be pinned */
    uint32_t queue_number; /* interface queue of its ring, counted from 1; 0: not from a ring */
} um_rx;

/* Number of datagrams in a run of `length` bytes. */
static inline uint32_t um_datagrams_in(uint32_t length, uint32_t segment_length)
{
    return segment_length == 0 ? 1 : (length + segment_length - 1) / segment_length;
}

enum { UM_SEND_BATCH_MAX = 64 }; /* datagrams per call of send */

typedef struct um_link um_link;

typedef struct um_link_ops {
    /* Sends datagrams of one session to `to`, in order. Returns how many were accepted (0: the link is full) or a
     * negative errno; the caller offers the rest again. */
    int (*send)(um_link *link, um_address to, const um_tx *batch, uint32_t count);
    /* Sends one datagram that may be larger than the path can carry (built before the MTU shrank); the link may let the
     * kernel fragment it. Returns 1, 0 or a negative errno. */
    int (*send_oversize)(um_link *link, um_address to, const um_tx *datagram);
    /* Only for links with borrow_bytes. Borrows up to `count` frames; returns how many, fewer if the link needs the
     * rest itself. Any thread. */
    uint32_t (*borrow)(um_link *link, uint8_t **pieces, uint32_t count);
    void (*return_frames)(um_link *link, uint8_t *const *pieces, uint32_t count);
} um_link_ops;

/* First member of every implementation. */
struct um_link {
    const um_link_ops *ops;
    bool is_faster_in_one_piece; /* sends contiguous datagrams faster than datagrams in several parts */
    bool can_report_space;       /* the owner's loop sends once a full link has space: no early retry is needed */
    uint32_t borrow_bytes;       /* size of the frames it lends, which are cache-line aligned; 0: it lends none */
};

#endif
