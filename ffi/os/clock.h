/* The clocks. ffi/core never reads one: it is given their values. */
#ifndef UM_OS_CLOCK_H
#define UM_OS_CLOCK_H

#include <stdbool.h>
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

/* How far the wall clock is ahead of the timers' clock, as one reading of it between two of the other shows. */
typedef struct um_wall_reading {
    int64_t before_ns;
    int64_t wall_ns;
    int64_t after_ns;
} um_wall_reading;

/* The offset after a reading. One that took long, because the thread was interrupted or the clock is slow, is only good
 * to half of that: then the last offset stands, unless it lies outside, as it does when the wall clock was set. */
static inline int64_t um_wall_offset_after(const um_wall_reading *reading, int64_t offset_ns)
{
    int64_t error_ns = (reading->after_ns - reading->before_ns) / 2;
    int64_t found_ns = reading->wall_ns - reading->before_ns - error_ns;
    bool is_exact = error_ns < 500;
    return is_exact || found_ns - offset_ns > error_ns || offset_ns - found_ns > error_ns ? found_ns : offset_ns;
}

/* Reads both; *offset_ns is the last offset, and then the present one. Returns the timers' clock. */
static inline int64_t um_clock_note_wall_offset(int64_t *offset_ns)
{
    um_wall_reading reading = {.before_ns = um_clock_ns()};
    reading.wall_ns = um_clock_wall_ns();
    reading.after_ns = um_clock_ns();
    *offset_ns = um_wall_offset_after(&reading, *offset_ns);
    return reading.after_ns;
}

/* The same, before anybody needs it: by a few readings, in case some take long. */
static inline int64_t um_clock_wall_offset_ns(void)
{
    int64_t offset_ns = um_clock_wall_ns() - um_clock_ns();
    for (int i = 0; i < 8; i++)
        um_clock_note_wall_offset(&offset_ns);
    return offset_ns;
}

#endif
