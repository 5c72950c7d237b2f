#include "xsk/nic_clock.h"

#include <fcntl.h>
#include <linux/ptp_clock.h>
#include <stdio.h>
#include <sys/ioctl.h>

enum { SAMPLES = 5 };

int um_nic_clock_open(uint32_t number)
{
    char path[32];
    snprintf(path, sizeof path, "/dev/ptp%u", number);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno == EACCES)
        fd = open(path, O_RDONLY | O_CLOEXEC); /* sufficient for reading the clock */
    return fd < 0 ? -errno : fd;
}

static int64_t in_ns(struct ptp_clock_time time)
{
    return (int64_t)time.sec * 1000000000 + time.nsec;
}

int64_t um_nic_clock_ahead_ns(const um_nic_clock_sample *samples, uint32_t count)
{
    const um_nic_clock_sample *best = samples;
    for (const um_nic_clock_sample *one = samples + 1; one < samples + count; one++)
        if (one->after_ns - one->before_ns < best->after_ns - best->before_ns)
            best = one;
    return best->before_ns + (best->after_ns - best->before_ns) / 2 - best->nic_ns;
}

int um_nic_clock_offset(int fd, int64_t *wall_ahead_ns)
{
    struct ptp_sys_offset_extended read = {.n_samples = SAMPLES};
    um_nic_clock_sample samples[SAMPLES];
    if (ioctl(fd, PTP_SYS_OFFSET_EXTENDED, &read) != 0)
        return -errno;
    for (uint32_t i = 0; i < SAMPLES; i++)
        samples[i] = (um_nic_clock_sample){in_ns(read.ts[i][0]), in_ns(read.ts[i][1]), in_ns(read.ts[i][2])};
    *wall_ahead_ns = um_nic_clock_ahead_ns(samples, SAMPLES);
    return 0;
}
