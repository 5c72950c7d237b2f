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

/* to: aligned to a cache line; from: anywhere; bytes: whole cache lines. */
static inline void um_stream(uint8_t *to, const uint8_t *from, size_t bytes)
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

static inline void um_stream_fence(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#endif
