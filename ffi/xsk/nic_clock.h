/* The clock of a NIC (PTP hardware clock), read beside the wall clock, so that the NIC's receive timestamps become
 * times of this host. It is read, not disciplined: between two readings it may run away by what it and the host's clock
 * drift apart, which is 5 us at 50 ppm and nothing that matters where PTP keeps both in step.
 *
 * Threads: one at a time. Memory: the owner's. System calls: open, ioctl, close. Errors: negative errno.
 */
#ifndef UM_XSK_NIC_CLOCK_H
#define UM_XSK_NIC_CLOCK_H

#include "core/foundation/base.h"

enum { UM_NIC_CLOCK_READ_NS = 100000000 }; /* between two readings */

/* Opens /dev/ptpN. Returns the descriptor, the caller's. */
int um_nic_clock_open(uint32_t number);

/* One reading of the NIC's clock between two of the wall clock. */
typedef struct um_nic_clock_sample {
    int64_t before_ns;
    int64_t nic_ns;
    int64_t after_ns;
} um_nic_clock_sample;

/* How far the wall clock is ahead of the NIC's, by the sample that took the shortest. `count` is at least 1. */
int64_t um_nic_clock_ahead_ns(const um_nic_clock_sample *samples, uint32_t count);

/* The same of a clock, which is read a few times. */
int um_nic_clock_offset(int fd, int64_t *wall_ahead_ns);

#endif
