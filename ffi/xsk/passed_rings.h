/* The rings of an AF_XDP socket that another process made, bound and sent by descriptor.
 *
 * libxdp maps only rings of sockets it sets up itself, so these are mapped here, by the kernel's own interface
 * (XDP_MMAP_OFFSETS). Mapping rings of a socket that is bound already takes Linux 6.4.
 *
 * Memory: the mappings are the caller's until um_xsk_passed_rings_unmap; the descriptor stays the caller's.
 * Threads: the opener's. System calls: getsockopt, mmap, munmap.
 */
#ifndef UM_XSK_PASSED_RINGS_H
#define UM_XSK_PASSED_RINGS_H

#include "xsk/queue.h"

enum { UM_XSK_RINGS_PER_QUEUE = 4 };

typedef struct um_xsk_passed_rings {
    void *memory[UM_XSK_RINGS_PER_QUEUE]; /* NULL where not mapped */
    size_t bytes[UM_XSK_RINGS_PER_QUEUE];
} um_xsk_passed_rings;

/* Maps the four rings of queue->fd into the queue, whose frame counts are the rings' sizes. 0, or a negative errno:
 * EBUSY a kernel before 6.4, ENOTSOCK or ENOPROTOOPT no AF_XDP socket, EINVAL rings of other sizes. *rings is to be
 * unmapped either way. */
int um_xsk_passed_rings_map(um_xsk_queue *queue, um_xsk_passed_rings *rings);
void um_xsk_passed_rings_unmap(um_xsk_passed_rings *rings);

#endif
