// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into a process of the chaos run: its wall clock differs from the system's by the number of nanoseconds
 * that the file named by CHAOS_CLOCK_STEP holds (int64_t, in the host's byte order). The run changes the file while the
 * process runs. Monotonic clocks and the kernel's own timestamps are not affected.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000ll

static const volatile int64_t *step_ns;

__attribute__((constructor)) static void map_step(void)
{
    const char *path = getenv("CHAOS_CLOCK_STEP");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped;

    if (file < 0)
        return;
    mapped = mmap(NULL, sizeof(*step_ns), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        step_ns = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);

    if (result == 0 && step_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t stepped_ns = now->tv_sec * NS_PER_S + now->tv_nsec + *step_ns;

        now->tv_sec = stepped_ns / NS_PER_S;
        now->tv_nsec = stepped_ns % NS_PER_S;
    }
    return result;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec precise;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;

    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
