#include "xsk/passed_rings.h"

#include <linux/if_xdp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#ifndef SOL_XDP
#define SOL_XDP 283
#endif

/* The layout of one ring in the kernel's mapping. */
typedef struct ring_place {
    const struct xdp_ring_offset *at;
    off_t page_offset;
    uint32_t entries;
    size_t entry_bytes;
} ring_place;

static int map_ring(um_xsk_passed_rings *rings, uint32_t index, int fd, const ring_place *place)
{
    size_t bytes = place->at->desc + place->entries * place->entry_bytes;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, place->page_offset);
    if (memory == MAP_FAILED)
        return -errno;
    rings->memory[index] = memory;
    rings->bytes[index] = bytes;
    return 0;
}

static struct xsk_ring_prod producer(uint8_t *memory, const ring_place *place)
{
    struct xsk_ring_prod ring = {.mask = place->entries - 1,
                                 .size = place->entries,
                                 .producer = (uint32_t *)(memory + place->at->producer),
                                 .consumer = (uint32_t *)(memory + place->at->consumer),
                                 .ring = memory + place->at->desc,
                                 .flags = (uint32_t *)(memory + place->at->flags)};
    ring.cached_prod = *ring.producer;
    ring.cached_cons = *ring.consumer + ring.size; /* libxdp keeps it one ring size ahead */
    return ring;
}

static struct xsk_ring_cons consumer(uint8_t *memory, const ring_place *place)
{
    struct xsk_ring_cons ring = {.mask = place->entries - 1,
                                 .size = place->entries,
                                 .producer = (uint32_t *)(memory + place->at->producer),
                                 .consumer = (uint32_t *)(memory + place->at->consumer),
                                 .ring = memory + place->at->desc,
                                 .flags = (uint32_t *)(memory + place->at->flags)};
    ring.cached_prod = *ring.producer;
    ring.cached_cons = *ring.consumer;
    return ring;
}

int um_xsk_passed_rings_map(um_xsk_queue *queue, um_xsk_passed_rings *rings)
{
    struct xdp_mmap_offsets offsets = {0};
    socklen_t length = sizeof offsets;
    if (getsockopt(queue->fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) != 0)
        return -errno;
    if (length != sizeof offsets) /* kernels before 5.4 have no wake-up flags */
        return -EINVAL;
    const ring_place places[UM_XSK_RINGS_PER_QUEUE] = {
        {&offsets.fr, (off_t)XDP_UMEM_PGOFF_FILL_RING, queue->receive_frame_count, sizeof(uint64_t)},
        {&offsets.rx, XDP_PGOFF_RX_RING, queue->receive_frame_count, sizeof(struct xdp_desc)},
        {&offsets.tx, XDP_PGOFF_TX_RING, queue->send_frame_count, sizeof(struct xdp_desc)},
        {&offsets.cr, (off_t)XDP_UMEM_PGOFF_COMPLETION_RING, queue->send_frame_count, sizeof(uint64_t)},
    };
    for (uint32_t i = 0; i < UM_XSK_RINGS_PER_QUEUE; i++) {
        int result = map_ring(rings, i, queue->fd, &places[i]);
        if (result != 0)
            return result;
    }
    queue->fill = producer(rings->memory[0], &places[0]);
    queue->receive = consumer(rings->memory[1], &places[1]);
    queue->send = producer(rings->memory[2], &places[2]);
    queue->completion = consumer(rings->memory[3], &places[3]);
    return 0;
}

void um_xsk_passed_rings_unmap(um_xsk_passed_rings *rings)
{
    for (uint32_t i = 0; i < UM_XSK_RINGS_PER_QUEUE; i++)
        if (rings->memory[i] != NULL)
            munmap(rings->memory[i], rings->bytes[i]);
    *rings = (um_xsk_passed_rings){0};
}
