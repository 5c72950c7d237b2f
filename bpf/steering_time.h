// SPDX-License-Identifier: Apache-2.0
/*
 * What the timed steering programs write in front of a frame they redirect, and the reader of its ring finds below the
 * frame's first byte. The one place for both sides; plain C, without __u32 and without an include guard.
 *
 * The reader clears the mark: a frame that comes again without metadata must not seem to have the old times.
 */
#define STEERING_TIME_MARK 0x54696d6573746d70ULL

struct steering_time {
    unsigned long long kernel_ns; /* CLOCK_MONOTONIC when the program ran */
    unsigned long long nic_ns;    /* by the NIC's own clock when the frame came in; 0: it does not say */
    unsigned long long mark;      /* STEERING_TIME_MARK: the others are there */
};
