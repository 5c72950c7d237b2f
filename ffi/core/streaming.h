/* Stores that go past the caches, for what is written once and, if all goes well, never read: a line written so is
 * neither read first nor does it push another out. Where the processor has none they are ordinary stores.
 *
 * They are not ordered with ordinary stores, released ones included: um_stream_fence comes before what makes them
 * known to other threads.
 */
#ifndef UM_CORE_STREAMING_H
#define UM_CORE_STREAMING_H

#include "core/base.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* to: aligned to a cache line; from: anywhere; bytes: whole cache lines. Each line is read before any of it is stored:
 * read a piece at a time between the stores, unaligned lines go a third slower. */
static inline void um_stream(uint8_t *restrict to, const uint8_t *restrict from, size_t bytes)
{
#if defined(__SSE2__)
    for (size_t i = 0; i < bytes; i += UM_CACHE_LINE_BYTES) {
        const __m128i *read = (const __m128i *)(const void *)(from + i);
        __m128i *write = (__m128i *)(void *)(to + i);
        __m128i a = _mm_loadu_si128(read), b = _mm_loadu_si128(read + 1);
        __m128i c = _mm_loadu_si128(read + 2), d = _mm_loadu_si128(read + 3);
        _mm_stream_si128(write, a);
        _mm_stream_si128(write + 1, b);
        _mm_stream_si128(write + 2, c);
        _mm_stream_si128(write + 3, d);
    }
#else
    memcpy(to, from, bytes);
#endif
}

/* The same, and an ordinary copy as well, to anywhere: line by line in turn, one hides in the waits of the other. */
static inline void um_stream_and_copy(uint8_t *restrict to, uint8_t *restrict copy, const uint8_t *restrict from,
                                      size_t bytes)
{
    for (size_t i = 0; i < bytes; i += UM_CACHE_LINE_BYTES) {
        memcpy(copy + i, from + i, UM_CACHE_LINE_BYTES);
        um_stream(to + i, from + i, UM_CACHE_LINE_BYTES);
    }
}

static inline void um_stream_fence(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#endif
