/* A bounded ring buffer of bytes: the backlog of a client's connection. Header-only, because every write passes it.
 * Threads: the owner's. Memory: the owner's block of `capacity` bytes. Errors: none; a caller checks the space first.
 */
#ifndef UM_CORE_BYTE_RING_H
#define UM_CORE_BYTE_RING_H

#include "core/foundation/base.h"

typedef struct um_byte_ring {
    uint8_t *memory;
    uint32_t capacity;
    uint32_t begin;
    uint32_t used;
} um_byte_ring;

static inline uint32_t um_byte_ring_space(const um_byte_ring *ring)
{
    return ring->capacity - ring->used;
}

/* Precondition: there is space. */
static inline void um_byte_ring_append(um_byte_ring *ring, const uint8_t *data, uint32_t length)
{
    um_debug_assert(length <= um_byte_ring_space(ring));
    uint32_t at = ring->begin + ring->used;
    at -= at >= ring->capacity ? ring->capacity : 0;
    uint32_t first = length < ring->capacity - at ? length : ring->capacity - at;
    memcpy(ring->memory + at, data, first);
    memcpy(ring->memory, data + first, length - first);
    ring->used += length;
}

/* Returns the oldest contiguous bytes and stores their number. */
static inline const uint8_t *um_byte_ring_oldest(const um_byte_ring *ring, uint32_t *length)
{
    uint32_t to_end = ring->capacity - ring->begin;
    *length = ring->used < to_end ? ring->used : to_end;
    return ring->memory + ring->begin;
}

static inline void um_byte_ring_drop(um_byte_ring *ring, uint32_t length)
{
    um_debug_assert(length <= ring->used);
    ring->used -= length;
    ring->begin += length;
    ring->begin -= ring->begin >= ring->capacity ? ring->capacity : 0;
    if (ring->used == 0)
        ring->begin = 0;
}

#endif
