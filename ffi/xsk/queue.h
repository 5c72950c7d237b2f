/* One queue of an interface: the four rings of its AF_XDP socket and the frames that circulate through them.
 *
 * Each frame has exactly one owner. Receive frames, at the start of the area, cycle through
 *     fill ring -> kernel -> receive ring -> reader (possibly pinned) -> fill ring
 * and send frames, the rest, through
 *     free (possibly borrowed by a publisher) -> send ring -> kernel -> completion ring -> free.
 * The two halves share no frame and no ring, so each has its own thread, because every ring has a single producer: one
 * thread receives (the context's loop), and the thread that holds the queue's send lock sends. A debug build records
 * the owner of every frame and asserts each transition.
 *
 * Nothing here makes system calls. The rings are memory shared with the kernel, mapped by ffi/xsk/rings.c, or with a
 * test that plays the kernel. The memory belongs to the opener and stays mapped until the queue is no longer used.
 */
#ifndef UM_XSK_QUEUE_H
#define UM_XSK_QUEUE_H

#include <xdp/xsk.h>

#include "core/foundation/counters.h"
#include "xsk/headers.h"

enum {
    UM_XSK_CHAIN_MAX = 18, /* maximum frames per datagram: what a kernel packet buffer holds */
    UM_XSK_ASSEMBLY_BYTES = 640 * 1024,
    UM_XSK_KERNEL_HEADROOM_BYTES = 256, /* XDP_PACKET_HEADROOM */
};

typedef struct um_xsk_queue {
    um_frames frames; /* pins at most half of the receive frames */
    /* both halves: written when the queue is opened */
    uint8_t *area;
    uint32_t frame_bytes;    /* power of two */
    uint32_t headroom_bytes; /* in front of a received frame: the kernel's headroom, and space for times */
    uint32_t receive_frame_count;
    uint32_t send_frame_count;
    uint32_t header_bytes; /* in front of the payload of sent datagrams (um_xsk_header_bytes) */
    bool verify_checksum;
    bool multi_buffer;     /* one datagram may take several frames */
    bool reads_times;      /* the program writes times in front of frames (bpf/steering_time.h) */
    bool has_nic_clock;    /* nic_behind_ns is valid; receiving half only */
    int64_t nic_behind_ns; /* how far the NIC's clock is behind the timers' clock */
    int fd;
    um_link_counters counters; /* each field is written by one half; the sending half writes `syscalls` */
#ifdef UM_DEBUG
    uint8_t *owners; /* per frame: enum um_xsk_owner */
#endif

    /* receiving */
    UM_CACHE_ALIGNED struct xsk_ring_prod fill;
    struct xsk_ring_cons receive;
    uint8_t *assembly; /* UM_XSK_ASSEMBLY_BYTES for assembling datagrams of several frames */
    uint32_t first_taken;
    uint32_t taken_count; /* receive descriptors whose frames the reader owns */
    bool has_more;        /* the last receive call left some descriptors in the ring */
    uint64_t receive_syscalls;
    uint8_t *pinned; /* per receive frame: 1 if it is not released with its batch */
    uint32_t pinned_count;
    uint32_t taken_and_pinned; /* pinned frames of the current batch */

    /* sending */
    UM_CACHE_ALIGNED um_lock send_lock;
    struct xsk_ring_prod send;
    struct xsk_ring_cons completion;
    uint64_t *free_frames; /* stack: the frame used last is still in the cache */
    uint32_t free_count;
} um_xsk_queue;

enum um_xsk_owner {
    UM_XSK_OWNER_FREE,   /* not yet assigned, or on the free list */
    UM_XSK_OWNER_WRITER, /* borrowed by a publisher */
    UM_XSK_OWNER_FILL,   /* in the fill ring, the kernel or the receive ring */
    UM_XSK_OWNER_READER, /* received with um_xsk_queue_receive */
    UM_XSK_OWNER_PINNED, /* still owned by a reader after _release */
    UM_XSK_OWNER_SEND,   /* in the send ring, the kernel or the completion ring */
};

/* Bytes of bookkeeping for this many frames. */
size_t um_xsk_queue_footprint(uint32_t receive_frame_count, uint32_t send_frame_count);
/* Gives all receive frames to the fill ring, whose size is at least their number, and frees the send frames. Call it
 * once area, frame_bytes, the frame counts and the rings are set. `memory` is zeroed and has the footprint's size. */
void um_xsk_queue_init(um_xsk_queue *queue, void *memory, uint8_t *assembly);

/* Receives at most `max` datagrams without waiting; frames without a valid datagram are counted and skipped. The caller
 * must call _release before it receives again, and can pin a datagram beyond that through its `frames`. received_ns is
 * the time written in front of the frame, converted to the timers' clock; 0 if there is none. */
uint32_t um_xsk_queue_receive(um_xsk_queue *queue, um_rx *batch, uint32_t max);
/* The same without reading the frames: returns how many descriptors, from *at on in the receive ring, were taken. */
uint32_t um_xsk_queue_take(um_xsk_queue *queue, uint32_t max, uint32_t *at);
void um_xsk_queue_release(um_xsk_queue *queue);

/* The largest payload that a datagram can have on this queue. */
uint32_t um_xsk_queue_datagram_max(const um_xsk_queue *queue);
/* The size of a borrowed frame: the space behind the headers, from the start of a cache line. */
uint32_t um_xsk_queue_borrow_bytes(const um_xsk_queue *queue);
/* Borrows up to `count` send frames (core/foundation/link.h), but never more than half of all send frames: a blocked
 * publisher must not block the others. Send lock held, also to return them. */
uint32_t um_xsk_queue_borrow(um_xsk_queue *queue, uint8_t **pieces, uint32_t count);
void um_xsk_queue_return(um_xsk_queue *queue, uint8_t *const *pieces, uint32_t count);
/* Puts datagrams with the template's headers into the send ring, in order, until the ring is full or no frame is free.
 * A payload in a borrowed frame is sent from there without a copy; the queue owns the frame again. Returns how many
 * were put; -EMSGSIZE if the first exceeds the largest payload. Send lock held. */
int um_xsk_queue_send(um_xsk_queue *queue, const um_xsk_template *made, const um_tx *batch, uint32_t count);
/* Takes a free send frame for the caller to fill and put into the send ring; free_count is their number. Send
 * lock held. */
uint64_t um_xsk_queue_acquire_frame(um_xsk_queue *queue);
/* Reclaims the frames of datagrams that the kernel has sent. Send lock held. */
void um_xsk_queue_reclaim(um_xsk_queue *queue);
/* Returns how many descriptors the kernel has not taken from the send ring yet. Any thread. */
uint32_t um_xsk_queue_unsent(const um_xsk_queue *queue);

#endif
