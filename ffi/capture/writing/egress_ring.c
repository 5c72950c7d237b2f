#include "capture/writing/egress_ring.h"

#include <errno.h>
#include <linux/bpf.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    RECORD_ALIGNMENT = 8,
    RELEASE_SHARE = 16, /* share of the ring per release, so that writers seldom read the consumer position */
};

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* The records are mapped twice in a row, so that each is contiguous. */
static size_t produced_bytes(const um_egress_ring *ring)
{
    return page_bytes() + 2 * (size_t)ring->bytes;
}

static void *map_of(int fd, size_t bytes, int protection, size_t at)
{
    void *mapped = mmap(NULL, bytes, protection, MAP_SHARED, fd, (off_t)at);
    return mapped == MAP_FAILED ? NULL : mapped;
}

int um_egress_ring_open(um_egress_ring *ring, const um_egress_ring_maps *maps)
{
    *ring = (um_egress_ring){.bytes = maps->ring_bytes};
    ring->consumed = map_of(maps->ring_fd, page_bytes(), PROT_READ | PROT_WRITE, 0);
    if (ring->consumed == NULL)
        return -errno;
    ring->produced = map_of(maps->ring_fd, produced_bytes(ring), PROT_READ, page_bytes());
    if (ring->produced == NULL)
        return -errno;
    ring->counters = map_of(maps->counters_fd, page_bytes(), PROT_READ | PROT_WRITE, 0);
    if (ring->counters == NULL)
        return -errno;
    ring->position = ring->released = *ring->consumed;
    return 0;
}

void um_egress_ring_close(um_egress_ring *ring)
{
    if (ring->consumed != NULL)
        munmap(ring->consumed, page_bytes());
    if (ring->produced != NULL)
        munmap(ring->produced, produced_bytes(ring));
    if (ring->counters != NULL)
        munmap(ring->counters, page_bytes());
    *ring = (um_egress_ring){0};
}

static uint64_t produced_position(const um_egress_ring *ring)
{
    return __atomic_load_n((const uint64_t *)(const void *)ring->produced, __ATOMIC_ACQUIRE);
}

static const uint8_t *record_header(const um_egress_ring *ring)
{
    return ring->produced + page_bytes() + (ring->position & (ring->bytes - 1));
}

/* The word of the header that the kernel writes last: the length, and flags for an unfinished or discarded record. */
static uint32_t header_word(const um_egress_ring *ring)
{
    return __atomic_load_n((const uint32_t *)(const void *)record_header(ring), __ATOMIC_ACQUIRE);
}

const struct egress_tap_record *um_egress_ring_next(um_egress_ring *ring)
{
    while (ring->position < produced_position(ring)) {
        uint32_t word = header_word(ring);
        if (word & BPF_RINGBUF_BUSY_BIT)
            return NULL;
        if (!(word & BPF_RINGBUF_DISCARD_BIT))
            return (const void *)(record_header(ring) + BPF_RINGBUF_HDR_SZ);
        um_egress_ring_take(ring);
    }
    return NULL;
}

void um_egress_ring_take(um_egress_ring *ring)
{
    uint32_t bytes = header_word(ring) & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);
    uint32_t space = bytes + BPF_RINGBUF_HDR_SZ + RECORD_ALIGNMENT - 1;
    ring->position += space - space % RECORD_ALIGNMENT;
    if (ring->position - ring->released > ring->bytes / RELEASE_SHARE)
        um_egress_ring_release(ring);
}

void um_egress_ring_release(um_egress_ring *ring)
{
    if (ring->released == ring->position)
        return;
    ring->released = ring->position;
    __atomic_store_n(ring->consumed, ring->position, __ATOMIC_RELEASE);
}

uint64_t um_egress_ring_used_bytes(const um_egress_ring *ring)
{
    return produced_position(ring) - ring->released;
}

uint64_t um_egress_ring_lost_count(const um_egress_ring *ring)
{
    return __atomic_load_n(&ring->counters->lost_count, __ATOMIC_RELAXED);
}
