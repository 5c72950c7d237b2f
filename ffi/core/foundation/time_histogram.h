/* Histograms of times: four buckets per octave, so a percentile is accurate to about a tenth of its value. In a
 * histogram that starts at 2^first ns, bucket b starts at (4 + b % 4) << (first - 2 + b / 4) ns; the first and the last
 * bucket also count the times beyond.
 *
 * Threads: the owner's. Memory: the owner's array of counts. Complexity: constant. Errors: none. Inline, because the
 * histogram of latencies is updated once per message.
 */
#ifndef UM_CORE_TIME_HISTOGRAM_H
#define UM_CORE_TIME_HISTOGRAM_H

#include "core/foundation/base.h"

enum {
    UM_RECOVERY_OCTAVE_FIRST = 16, /* recovery times: 2^16 ns (66 us) to 2^32 ns (4.3 s) */
    UM_RECOVERY_BUCKETS = 64,
    UM_LATENCY_OCTAVE_FIRST = 10, /* one-way latencies: 2^10 ns (1 us) to 2^32 ns */
    UM_LATENCY_BUCKETS = 88,
};

static inline uint32_t um_time_bucket(uint64_t time_ns, uint32_t octave_first, uint32_t bucket_count)
{
    uint32_t octave = 63u - (uint32_t)__builtin_clzll(time_ns | 1);
    if (octave < octave_first)
        return 0;
    if (octave >= octave_first + bucket_count / 4)
        return bucket_count - 1;
    return 4 * (octave - octave_first) + (uint32_t)(time_ns >> (octave - 2) & 3);
}

/* An exponentially weighted mean: the newest sample has a weight of one eighth. */
static inline uint64_t um_moving_mean(uint64_t mean, uint64_t sample, bool is_first)
{
    enum { NEWEST_WEIGHT = 8 };
    return is_first ? sample : mean + (uint64_t)(((int64_t)sample - (int64_t)mean) / NEWEST_WEIGHT);
}

#endif
