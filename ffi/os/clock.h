/* The clocks. ffi/core never reads one: it is given their values. */
#ifndef UM_OS_CLOCK_H
#define UM_OS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t um_clock_read_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* For timers: never jumps. */
static inline int64_t um_clock_ns(void)
{
    return um_clock_read_ns(CLOCK_MONOTONIC);
}

/* The same clock as of the last timer tick (a few milliseconds at most), at a fraction of the cost. */
static inline int64_t um_clock_coarse_ns(void)
{
    return um_clock_read_ns(CLOCK_MONOTONIC_COARSE);
}

/* For what a person or another host reads. */
static inline int64_t um_clock_wall_ns(void)
{
    return um_clock_read_ns(CLOCK_REALTIME);
}

#endif
