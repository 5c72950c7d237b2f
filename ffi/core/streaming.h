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
    for (size_t i = 0; i < bytes; i += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
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
