/* Rate limiting in slices of time (UX-1, UX-3, UX-4): each slice adds its allowance of bytes; unused allowance is lost
 * unless a datagram larger than one slice waits for it. One owner thread at a time.
 */
#ifndef UM_CORE_RATE_LIMITER_H
#define UM_CORE_RATE_LIMITER_H

#include "core/foundation/base.h"

typedef struct um_rate_limiter {
    uint64_t bits_per_second; /* 0: no limit */
    int64_t interval_ns;
    int64_t allowance_bytes; /* per slice */
    int64_t credit_bytes;
    int64_t slice_end_ns;
} um_rate_limiter;

void um_rate_limiter_init(um_rate_limiter *limiter, uint64_t bits_per_second, int64_t interval_ns, int64_t now_ns);

/* Starts a new slice if the current one has ended. `wanted_bytes`: length of the waiting datagram, 0 for none. */
void um_rate_limiter_advance(um_rate_limiter *limiter, int64_t now_ns, uint32_t wanted_bytes);

static inline bool um_rate_limiter_can_take(const um_rate_limiter *limiter, uint32_t bytes)
{
    return limiter->bits_per_second == 0 || limiter->credit_bytes >= (int64_t)bytes;
}

static inline void um_rate_limiter_take(um_rate_limiter *limiter, uint32_t bytes)
{
    if (limiter->bits_per_second != 0)
        limiter->credit_bytes -= bytes;
}

static inline void um_rate_limiter_return(um_rate_limiter *limiter, uint32_t bytes)
{
    if (limiter->bits_per_second != 0)
        limiter->credit_bytes += bytes;
}

#endif
