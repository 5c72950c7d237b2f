/* Seeded pseudo-random numbers for back-off times (UM-117, UM-119). Each session owns its generator, so a
 * run is a function of its seed (W2). Not for cryptographic use.
 */
#ifndef UM_CORE_RANDOM_H
#define UM_CORE_RANDOM_H

#include "core/foundation/base.h"

typedef struct um_random {
    uint64_t state;
} um_random;

static inline uint64_t um_random_next(um_random *random)
{
    /* splitmix64 (Steele, Lea, Flood 2014). */
    uint64_t z = (random->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, bound); 0 for bound 0. */
static inline uint64_t um_random_below(um_random *random, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)um_random_next(random) * bound) >> 64);
}

/* Uniform in [1/2, 3/2] of nominal_ns; 0 stays 0 (UM-117). */
static inline int64_t um_random_backoff_ns(um_random *random, int64_t nominal_ns)
{
    return nominal_ns / 2 + (int64_t)um_random_below(random, (uint64_t)nominal_ns + 1);
}

#endif
