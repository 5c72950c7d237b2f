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
        fd = open(path, O_RDONLY | O_CLOEXEC); /* enough to read it */
    return fd < 0 ? -errno : fd;
}

static int64_t in_ns(struct ptp_clock_time time)
{
    return (int64_t)time.sec * 1000000000 + time.nsec;
}

/* Each sample is the wall clock, the NIC's, and the wall clock again. */
int um_nic_clock_offset(int fd, int64_t *wall_ahead_ns)
{
    struct ptp_sys_offset_extended read = {.n_samples = SAMPLES};
    if (ioctl(fd, PTP_SYS_OFFSET_EXTENDED, &read) != 0)
        return -errno;
    int64_t shortest_ns = INT64_MAX;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        int64_t before_ns = in_ns(read.ts[i][0]), nic_ns = in_ns(read.ts[i][1]), after_ns = in_ns(read.ts[i][2]);
        if (after_ns - before_ns >= shortest_ns)
            continue;
        shortest_ns = after_ns - before_ns;
        *wall_ahead_ns = before_ns + shortest_ns / 2 - nic_ns;
    }
    return 0;
}
