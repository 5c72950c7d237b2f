/* Non-temporal stores, for memory that is written once and never read unless a datagram is lost: such a store does
 * not read its line first and evicts no other line. On processors without them, ordinary stores are used.
 *
 * They are not ordered with ordinary stores, not even release stores: call um_nontemporal_fence before the store that
 * publishes them to other threads.
 */
#ifndef UM_CORE_NONTEMPORAL_H
#define UM_CORE_NONTEMPORAL_H

#include "core/foundation/internet.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* A cache line in registers. The whole line is read before any of it is stored: interleaved reads of unaligned lines
 * take a third longer. */
typedef struct um_line {
    um_internet_vector a, b, c, d;
} um_line;

_Static_assert(sizeof(um_line) == UM_CACHE_LINE_BYTES, "a line is one cache line");

static inline um_line um_line_load(const uint8_t *from)
{
    return (um_line){um_internet_load(from), um_internet_load(from + 16), um_internet_load(from + 32),
                     um_internet_load(from + 48)};
}

static inline void um_line_store(uint8_t *to, um_line line)
{
    memcpy(to, &line.a, sizeof line.a);
    memcpy(to + 16, &line.b, sizeof line.b);
    memcpy(to + 32, &line.c, sizeof line.c);
    memcpy(to + 48, &line.d, sizeof line.d);
}

/* to: aligned to a cache line. */
static inline void um_line_store_nontemporal(uint8_t *to, um_line line)
{
#if defined(__SSE2__)
    __m128i *write = (__m128i *)(void *)to;
    _mm_stream_si128(write, (__m128i)line.a);
    _mm_stream_si128(write + 1, (__m128i)line.b);
    _mm_stream_si128(write + 2, (__m128i)line.c);
    _mm_stream_si128(write + 3, (__m128i)line.d);
#else
    um_line_store(to, line);
#endif
}

static inline void um_nontemporal_copy_line(uint8_t *restrict to, const uint8_t *restrict from)
{
    um_line_store_nontemporal(to, um_line_load(from));
}

/* Copies whole lines twice: with non-temporal stores to `to`, with ordinary ones to `copy`, which need not be aligned.
 * The stores alternate line by line, because each fills the stalls of the other. Returns the sum of the lines
 * (core/foundation/internet.h) if requested. */
static inline uint64_t um_nontemporal_copy_twice(uint8_t *restrict to, uint8_t *restrict copy,
                                                 const uint8_t *restrict from, size_t bytes, bool needs_sum)
{
    um_internet_lanes sum = {0};
    for (size_t i = 0; i < bytes; i += UM_CACHE_LINE_BYTES) {
        um_line line = um_line_load(from + i);
        um_line_store(copy + i, line);
        um_line_store_nontemporal(to + i, line);
        if (needs_sum) {
            um_internet_lanes_add(&sum, line.a, line.b);
            um_internet_lanes_add(&sum, line.c, line.d);
        }
    }
    return um_internet_lanes_total(&sum);
}

static inline void um_nontemporal_fence(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#endif
