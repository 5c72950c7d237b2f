/* One queue of an interface: the four rings of its AF_XDP socket and the frames that travel in them.
 *
 * A frame is owned by exactly one party. Receive frames, the first of the area, go round
 *     fill ring -> kernel -> receive ring -> reader -> pinned, or not -> fill ring
 * and send frames, the rest,
 *     free -> borrowed by a publisher, or not -> send ring -> kernel -> completion ring -> free.
 * The two halves share no frame and no ring, so that each has its own thread: receiving belongs to one (the context's
 * loop), sending to the thread that holds the queue's send lock, for each ring has a single producer. A debug build
 * notes the owner of every frame and asserts each transition.
 *
 * Nothing here calls the system: rings are memory shared with the kernel, which ffi/xsk/rings.c maps, or with a test
 * that plays the kernel. Memory is the opener's and stays mapped until the queue is no longer used.
 */
#ifndef UM_XSK_QUEUE_H
#define UM_XSK_QUEUE_H

#include <xdp/xsk.h>

#include "core/foundation/counters.h"
#include "xsk/headers.h"

enum {
    UM_XSK_CHAIN_MAX = 18, /* frames of one datagram: what a kernel packet buffer holds */
    UM_XSK_ASSEMBLY_BYTES = 640 * 1024,
    UM_XSK_KERNEL_HEADROOM_BYTES = 256, /* XDP_PACKET_HEADROOM */
};

typedef struct um_xsk_queue {
    um_frames frames; /* pins at most half of the receive frames */
    /* both halves; written when the queue is opened */
    uint8_t *area;
    uint32_t frame_bytes;    /* power of two */
    uint32_t headroom_bytes; /* before what the kernel writes into a receive frame: its own, and space for times */
    uint32_t receive_frame_count;
    uint32_t send_frame_count;
    uint32_t header_bytes; /* in front of the payload of sent datagrams (um_xsk_header_bytes) */
    bool verify_checksum;
    bool multi_buffer;     /* one datagram may take several frames */
    bool reads_times;      /* the program notes times in front of frames (bpf/steering_time.h) */
    bool has_nic_clock;    /* nic_behind_ns is known; the receiving half's */
    int64_t nic_behind_ns; /* how far the NIC's clock is behind the timers' */
    int fd;
    um_link_counters counters; /* each field has one of the halves as its writer; syscalls are the sending one's */
#ifdef UM_DEBUG
    uint8_t *owners; /* one a frame, enum um_xsk_owner */
#endif

    /* receiving */
    UM_CACHE_ALIGNED struct xsk_ring_prod fill;
    struct xsk_ring_cons receive;
    uint8_t *assembly; /* UM_XSK_ASSEMBLY_BYTES, where datagrams of several frames are put together */
    uint32_t first_taken;
    uint32_t taken_count; /* receive descriptors whose frames the reader owns */
    bool left_some;       /* the last receive took less than was there */
    uint64_t receive_syscalls;
    uint8_t *pinned; /* one a receive frame: it is not released with its batch */
    uint32_t pinned_count;
    uint32_t taken_and_pinned; /* of those received last */

    /* sending */
    UM_CACHE_ALIGNED um_lock send_lock;
    struct xsk_ring_prod send;
    struct xsk_ring_cons completion;
    uint64_t *free_frames; /* stack: the frame used last is still in the cache */
    uint32_t free_count;
} um_xsk_queue;

enum um_xsk_owner {
    UM_XSK_OWNER_FREE,   /* without an owner yet, or on the free list */
    UM_XSK_OWNER_WRITER, /* borrowed by a publisher */
    UM_XSK_OWNER_FILL,   /* in the fill ring, the kernel or the receive ring */
    UM_XSK_OWNER_READER, /* received with um_xsk_queue_receive */
    UM_XSK_OWNER_PINNED, /* still a reader's, after _release */
    UM_XSK_OWNER_SEND,   /* in the send ring, the kernel or the completion ring */
};

/* Bytes of bookkeeping for so many frames. */
size_t um_xsk_queue_footprint(uint32_t receive_frame_count, uint32_t send_frame_count);
/* Call once area, frame_bytes, the frame counts and the rings are there: gives all receive frames to the fill ring,
 * whose size is at least their number, and frees the send frames. `memory` is zeroed, of the footprint's size. */
void um_xsk_queue_init(um_xsk_queue *queue, void *memory, uint8_t *assembly);

/* Receives at most `max` datagrams without waiting; frames that hold no datagram are counted and skipped. Received
 * datagrams must be released with _release before the next call; `frames` of a datagram pins it beyond that.
 * received_ns is the time noted in front of the frame, by the timers' clock; 0: none. */
uint32_t um_xsk_queue_receive(um_xsk_queue *queue, um_rx *batch, uint32_t max);
/* The same without reading the frames: they are the descriptors from *at on in the receive ring. */
uint32_t um_xsk_queue_take(um_xsk_queue *queue, uint32_t max, uint32_t *at);
void um_xsk_queue_release(um_xsk_queue *queue);

/* The largest payload of a datagram that fits. */
uint32_t um_xsk_queue_datagram_max(const um_xsk_queue *queue);
/* The size of a borrowed frame: the rest of a frame behind the headers, from the beginning of a cache line on. */
uint32_t um_xsk_queue_borrow_bytes(const um_xsk_queue *queue);
/* Borrows up to `count` send frames (core/foundation/link.h), but no more than half of them all: one publisher that is
 * held back must not block the others. Send lock held, as for their return. */
uint32_t um_xsk_queue_borrow(um_xsk_queue *queue, uint8_t **pieces, uint32_t count);
void um_xsk_queue_return(um_xsk_queue *queue, uint8_t *const *pieces, uint32_t count);
/* Puts datagrams, whose headers are the template's, into the send ring, in order, until it or the frames are used up.
 * A payload in a borrowed frame is sent from there, and the frame is the queue's again. Returns how many; -EMSGSIZE if
 * the first is too large. Send lock held. */
int um_xsk_queue_send(um_xsk_queue *queue, const um_xsk_template *made, const um_tx *batch, uint32_t count);
/* A free send frame, for its caller to fill and to put into the send ring; free_count is their number. Send
 * lock held. */
uint64_t um_xsk_queue_acquire_frame(um_xsk_queue *queue);
/* Reclaims the frames of datagrams that have left. Send lock held. */
void um_xsk_queue_reclaim(um_xsk_queue *queue);
/* Descriptors the kernel has not taken from the send ring yet. Any thread. */
uint32_t um_xsk_queue_unsent(const um_xsk_queue *queue);

#endif
