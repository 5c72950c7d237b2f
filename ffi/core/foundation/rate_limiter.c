#include "core/foundation/rate_limiter.h"

void um_rate_limiter_init(um_rate_limiter *limiter, uint64_t bits_per_second, int64_t interval_ns, int64_t now_ns)
{
    limiter->bits_per_second = bits_per_second;
    limiter->interval_ns = interval_ns;
    limiter->allowance_bytes =
        (int64_t)((unsigned __int128)bits_per_second * (uint64_t)interval_ns / (8u * 1000000000ull));
    if (limiter->allowance_bytes < 1)
        limiter->allowance_bytes = 1;
    limiter->credit_bytes = limiter->allowance_bytes;
    limiter->slice_end_ns = now_ns + interval_ns;
}

void um_rate_limiter_advance(um_rate_limiter *limiter, int64_t now_ns, uint32_t wanted_bytes)
{
    if (limiter->bits_per_second == 0 || now_ns < limiter->slice_end_ns)
        return;
    int64_t slices = (now_ns - limiter->slice_end_ns) / limiter->interval_ns + 1;
    limiter->slice_end_ns += slices * limiter->interval_ns;
    /* Idle time earns at most one slice, except for a waiting datagram larger than a slice (UX-3). */
    int64_t cap = limiter->allowance_bytes > (int64_t)wanted_bytes ? limiter->allowance_bytes : (int64_t)wanted_bytes;
    int64_t space = cap - limiter->credit_bytes;
    int64_t earned = slices > space / limiter->allowance_bytes ? space : slices * limiter->allowance_bytes;
    limiter->credit_bytes += earned < 0 ? 0 : earned;
}
