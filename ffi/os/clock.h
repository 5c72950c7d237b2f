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

/* How far the wall clock is ahead of the timers' clock. A thread that is interrupted between the readings gets a wrong
 * answer, so a caller goes on with the last one then: *offset_ns is stored only when all took less than a microsecond.
 * Returns the timers' clock. */
static inline int64_t um_clock_note_wall_offset(int64_t *offset_ns)
{
    int64_t before_ns = um_clock_ns();
    int64_t wall_ns = um_clock_wall_ns();
    int64_t after_ns = um_clock_ns();
    if (after_ns - before_ns < 1000)
        *offset_ns = wall_ns - before_ns - (after_ns - before_ns) / 2;
    return after_ns;
}

/* The same, before anybody needs it: tries until it is known. */
static inline int64_t um_clock_wall_offset_ns(void)
{
    int64_t offset_ns = um_clock_wall_ns() - um_clock_ns();
    for (int i = 0; i < 8; i++)
        um_clock_note_wall_offset(&offset_ns);
    return offset_ns;
}

#endif
