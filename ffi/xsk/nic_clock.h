/* The clock of a NIC (PTP hardware clock), read beside the wall clock to convert the NIC's receive timestamps to times
 * of this host. It is not disciplined: between two readings the error grows with the drift between the two clocks, 5 us
 * at 50 ppm, and stays negligible if PTP synchronizes both.
 *
 * Threads: one at a time. Memory: the owner's. System calls: open, ioctl, close. Errors: negative errno.
 */
#ifndef UM_XSK_NIC_CLOCK_H
#define UM_XSK_NIC_CLOCK_H

#include "core/foundation/base.h"

enum { UM_NIC_CLOCK_READ_NS = 100000000 }; /* interval between two readings */

/* Opens /dev/ptpN. Returns the descriptor, which belongs to the caller. */
int um_nic_clock_open(uint32_t number);

/* One reading of the NIC's clock, between two readings of the wall clock. */
typedef struct um_nic_clock_sample {
    int64_t before_ns;
    int64_t nic_ns;
    int64_t after_ns;
} um_nic_clock_sample;

/* Returns how far the wall clock is ahead of the NIC's, from the sample that took least time. `count` is at least 1. */
int64_t um_nic_clock_ahead_ns(const um_nic_clock_sample *samples, uint32_t count);

/* Samples the clock a few times and stores how far the wall clock is ahead of it. */
int um_nic_clock_offset(int fd, int64_t *wall_ahead_ns);

#endif
