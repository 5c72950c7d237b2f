/* Random draws of scenarios and recovery plans. Complexity: constant. */
#ifndef UM_SIM_DRAWS_H
#define UM_SIM_DRAWS_H

#include "core/foundation/random.h"

/* Uniform in [low, high]. */
static inline uint32_t um_draw_between(um_random *random, uint32_t low, uint32_t high)
{
    return low + (uint32_t)um_random_below(random, (uint64_t)high - low + 1);
}

static inline int64_t um_draw_between_ns(um_random *random, int64_t low, int64_t high)
{
    return low + (int64_t)um_random_below(random, (uint64_t)(high - low) + 1);
}

/* Returns true with a probability of p percent. */
static inline bool um_draw_percent(um_random *random, uint32_t p)
{
    return um_random_below(random, 100) < p;
}

#endif
