/* The state behind a um_xsk_port, for the files that implement it: port.c opens and closes it, port_data.c moves
 * datagrams, port_statistics.c reads facts and counters.
 *
 * Threads: written while it is opened; afterwards as each field says. Memory: one mapping, freed by um_xsk_port_close.
 */

#ifndef UM_XSK_PORT_STATE_H
#define UM_XSK_PORT_STATE_H

#include "xsk/passed_rings.h"
#include "xsk/port.h"

#ifndef SOL_XDP
#define SOL_XDP 283
#endif

/* What stands behind a queue: libxdp's socket, or the rings of one that was passed. */
typedef struct um_xsk_handles {
    struct xsk_umem *umem;
    struct xsk_socket *socket;
    um_xsk_passed_rings passed;
} um_xsk_handles;

struct um_xsk_port {
    um_port base;
    um_xsk_config config;
    uint8_t mac[UM_MAC_BYTES];
    bool zero_copy;
    bool huge_pages;
    bool busy_poll;
    bool adopted;
    const char *failed_step;
    int memory_fd; /* of the frames; -1 where they are nobody else's */
    uint8_t *area; /* the frames of all queues */
    size_t area_bytes;
    uint8_t *bookkeeping; /* each queue's assembly buffer, whose datagrams are read together, and its lists */
    size_t bookkeeping_bytes;
    uint32_t turn; /* the queue the next receive begins with; context lock */
    _Atomic uint32_t link_count;
    _Atomic uint32_t next_queue; /* sessions take the queues in turn to send on */
    um_xsk_queue queues[UM_PORT_DESCRIPTORS_MAX];
    um_xsk_handles handles[UM_PORT_DESCRIPTORS_MAX];
};

/* How the context reaches the rings; port_data.c. */
extern const um_port_ops UM_XSK_PORT_OPS;

/* um_port_ops.descriptors and .add_counters; port_statistics.c. */
uint32_t um_xsk_port_descriptors(const um_port *base, int *fds, uint32_t max);
void um_xsk_port_add_counters(um_port *base, um_link_counters *sum);

#endif
