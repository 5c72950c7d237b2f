/* The configuration of a ring set, the facts of an open one, and its type: shared by rings.h and the state behind it
 * (rings_state.h).
 *
 * Threads and memory: plain values of the caller.
 */
#ifndef UM_XSK_RINGS_CONFIG_H
#define UM_XSK_RINGS_CONFIG_H

#include "io/rings.h"
#include "xsk/queue.h"

enum um_xsk_mode { UM_XSK_COPY, UM_XSK_ZERO_COPY };

enum {
    UM_XSK_HEADROOM_BYTES_MAX = 64,
    UM_XSK_TIMES_BYTES = 20, /* bytes that the program writes in front of a frame */
};

typedef struct um_xsk_config {
    char interface[16];    /* frames are sent from its Ethernet address */
    char device[16];       /* the NIC that has the queues */
    uint16_t tag_control;  /* 802.1Q tag of sent frames (xsk/headers.h); 0: none */
    enum um_xsk_mode mode; /* requested with its own flag, so that the kernel does not choose silently */
    uint32_t first_queue;
    uint32_t queue_count;         /* 1 to UM_RINGS_DESCRIPTORS_MAX */
    uint32_t frame_bytes;         /* 2048 or 4096 */
    uint32_t receive_frame_count; /* per queue; powers of two, also the sizes of the rings */
    uint32_t send_frame_count;
    bool multi_buffer; /* XDP_USE_SG */
    bool verify_checksum;
    bool huge_pages;
    bool busy_poll; /* SO_PREFER_BUSY_POLL: a receive that finds nothing runs the driver itself */
    uint32_t busy_poll_us;
    uint32_t busy_poll_budget;
    /* Space in front of received frames, beyond the kernel's own. The kernel copies times and frame in one piece. If
     * that piece starts at a cache line, the times and the headers share one line. A NIC that writes frames itself is
     * fastest if the frame starts at a line. */
    uint32_t headroom_bytes;
    bool reads_times;   /* the program writes times in front of frames (bpf/steering_time.h) */
    bool has_nic_clock; /* the times may be the NIC's, by the clock /dev/ptpN */
    uint32_t nic_clock;
    bool is_lent;             /* opened for another process: frames in a memfd, rings untouched */
    int64_t busy_deadline_ns; /* how long to retry while a queue is busy, as it is just after its last user closed */
} um_xsk_config;

typedef struct um_xsk_facts {
    bool zero_copy; /* as the kernel reports it */
    bool multi_buffer;
    bool huge_pages;
    bool busy_poll;
    uint32_t datagram_max_bytes; /* UDP payload */
    uint64_t locked_bytes;
    int nic_clock_error; /* errno if the NIC's clock cannot be read; 0 if it can, or there is none */
} um_xsk_facts;

typedef struct um_xsk_rings um_xsk_rings;

#endif
