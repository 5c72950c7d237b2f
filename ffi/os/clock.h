/* The clocks. ffi/core reads none: time is an argument there. */
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

/* The timers' clock: never jumps. */
static inline int64_t um_clock_ns(void)
{
    return um_clock_read_ns(CLOCK_MONOTONIC);
}

/* The same clock as of the last timer tick (at most a few milliseconds ago), at a fraction of the cost. */
static inline int64_t um_clock_coarse_ns(void)
{
    return um_clock_read_ns(CLOCK_MONOTONIC_COARSE);
}

/* For times that people or other hosts read. */
static inline int64_t um_clock_wall_ns(void)
{
    return um_clock_read_ns(CLOCK_REALTIME);
}

/* A reading of the wall clock between two readings of the timers' clock. */
typedef struct um_wall_reading {
    int64_t before_ns;
    int64_t wall_ns;
    int64_t after_ns;
} um_wall_reading;

/* Returns how far the wall clock is ahead of the timers' clock, given the last offset and a reading. A reading that
 * took long, because the thread was interrupted or the clock is slow, is uncertain by half that time. Then the last
 * offset stays, unless it is outside that range: the wall clock was set. */
static inline int64_t um_wall_offset_after(const um_wall_reading *reading, int64_t offset_ns)
{
    int64_t error_ns = (reading->after_ns - reading->before_ns) / 2;
    int64_t found_ns = reading->wall_ns - reading->before_ns - error_ns;
    bool is_exact = error_ns < 500;
    return is_exact || found_ns - offset_ns > error_ns || offset_ns - found_ns > error_ns ? found_ns : offset_ns;
}

/* Reads both clocks and updates *offset_ns, the last offset. Returns the timers' clock. */
static inline int64_t um_clock_note_wall_offset(int64_t *offset_ns)
{
    um_wall_reading reading = {.before_ns = um_clock_ns()};
    reading.wall_ns = um_clock_wall_ns();
    reading.after_ns = um_clock_ns();
    *offset_ns = um_wall_offset_after(&reading, *offset_ns);
    return reading.after_ns;
}

/* Returns an initial offset from several readings, in case some take long. */
static inline int64_t um_clock_wall_offset_ns(void)
{
    int64_t offset_ns = um_clock_wall_ns() - um_clock_ns();
    for (int i = 0; i < 8; i++)
        um_clock_note_wall_offset(&offset_ns);
    return offset_ns;
}

#endif
