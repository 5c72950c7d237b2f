/* The state behind a um_xsk_rings, for the files that implement it: rings.c opens and closes it, rings_data.c moves
 * datagrams, rings_statistics.c reads facts and counters.
 *
 * Threads: written while opening; afterwards by the thread that each field names. Memory: one mapping, freed by
 * um_xsk_rings_close.
 */

#ifndef UM_XSK_RINGS_STATE_H
#define UM_XSK_RINGS_STATE_H

#include "xsk/passed_rings.h"
#include "xsk/rings_config.h"

#ifndef SOL_XDP
#define SOL_XDP 283
#endif

/* The backing of a queue: libxdp's socket, or the rings of a socket passed by another process. */
typedef struct um_xsk_handles {
    struct xsk_umem *umem;
    struct xsk_socket *socket;
    um_xsk_passed_rings passed;
} um_xsk_handles;

struct um_xsk_rings {
    um_rings base;
    um_xsk_config config;
    _Atomic uint64_t mac; /* the interface's Ethernet address, in its lower bytes (um_xsk_rings_mac) */
    bool is_zero_copy;
    bool has_huge_pages;
    bool is_busy_polling;
    bool is_adopted;
    const char *failed_step;
    int memory_fd; /* of the frames; -1 if they are private */
    uint8_t *area; /* the frames of all queues */
    size_t area_bytes;
    uint8_t *bookkeeping; /* each queue's assembly buffer and lists */
    size_t bookkeeping_bytes;
    int nic_clock_fd;             /* -1: none */
    int nic_clock_error;          /* of opening the clock, or of the last reading */
    int64_t nic_clock_ns;         /* when the clock was last read; context lock */
    int64_t wall_offset_ns;       /* how far the wall clock is ahead of the timers' clock; context lock */
    uint32_t turn;                /* the queue from which the next receive call starts; context lock */
    _Atomic bool sends_by_socket; /* datagrams leave through the sockets of their sessions */
    _Atomic uint32_t link_count;
    _Atomic uint32_t next_queue; /* the queue for the next sending session */
    um_xsk_queue queues[UM_RINGS_DESCRIPTORS_MAX];
    um_xsk_handles handles[UM_RINGS_DESCRIPTORS_MAX];
};

/* The context's interface to the rings; rings_data.c. */
extern const um_rings_ops UM_XSK_RINGS_OPS;

/* um_rings_ops.descriptors and .add_counters; rings_statistics.c. */
uint32_t um_xsk_rings_descriptors(const um_rings *base, int *fds, uint32_t max);
void um_xsk_rings_add_counters(um_rings *base, um_link_counters *sum);

#endif
