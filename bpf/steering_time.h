// SPDX-License-Identifier: Apache-2.0
/*
 * What the timed steering programs write in front of a frame they redirect, and the reader of its ring finds below the
 * frame's first byte. The one place for both sides; plain C, without __u32 and without an include guard.
 *
 * The reader clears the mark: a frame that comes again without metadata must not seem to have the old times.
 */
#define STEERING_TIME_MARK 0x54696d65U

/* Twenty bytes, so that they and the headers of an untagged datagram, 42 bytes, make up a cache line. */
struct steering_time {
    unsigned int mark;         /* STEERING_TIME_MARK: the others are there */
    unsigned int kernel_ns[2]; /* CLOCK_MONOTONIC when the program ran; a 64-bit number in the host's order */
    unsigned int nic_ns[2];    /* by the NIC's own clock when the frame came in; 0: it does not say */
};
