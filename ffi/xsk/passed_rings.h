/* The rings of an AF_XDP socket that another process created, bound and passed by descriptor.
 *
 * libxdp maps only rings of sockets that it created itself, so this file maps them through the kernel's interface
 * (XDP_MMAP_OFFSETS). Mapping the rings of a bound socket requires Linux 6.4.
 *
 * Memory: the mappings belong to the caller until um_xsk_passed_rings_unmap; the descriptor stays the caller's.
 * Threads: the opener's. System calls: getsockopt, mmap, munmap.
 */
#ifndef UM_XSK_PASSED_RINGS_H
#define UM_XSK_PASSED_RINGS_H

#include "xsk/queue.h"

enum { UM_XSK_RINGS_PER_QUEUE = 4 };

typedef struct um_xsk_passed_rings {
    void *memory[UM_XSK_RINGS_PER_QUEUE]; /* NULL if not mapped */
    size_t bytes[UM_XSK_RINGS_PER_QUEUE];
} um_xsk_passed_rings;

/* Maps the four rings of queue->fd into the queue, whose frame counts give the rings' sizes. Returns 0 or a negative
 * errno: EBUSY if the kernel is older than 6.4, ENOTSOCK or ENOPROTOOPT if this is not an AF_XDP socket, EINVAL if the
 * rings have other sizes. The caller unmaps *rings in every case. */
int um_xsk_passed_rings_map(um_xsk_queue *queue, um_xsk_passed_rings *rings);
void um_xsk_passed_rings_unmap(um_xsk_passed_rings *rings);

#endif
