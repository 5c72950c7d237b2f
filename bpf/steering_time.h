// SPDX-License-Identifier: Apache-2.0
/*
 * Times that the timed steering programs write in front of a redirected frame, and that the reader of the ring finds
 * below the frame's first byte. Included by both sides; plain C, without __u32 and without an include guard.
 *
 * The reader clears the mark: a reused frame without metadata must not seem to have the old times.
 */
#define STEERING_TIME_MARK 0x54696d65U

/* Twenty bytes, so that they and the headers of an untagged datagram, 42 bytes, make up a cache line. */
struct steering_time {
    unsigned int mark;         /* STEERING_TIME_MARK if the other fields are valid */
    unsigned int kernel_ns[2]; /* CLOCK_MONOTONIC when the program ran; a 64-bit number in the host's order */
    unsigned int nic_ns[2];    /* the NIC clock's time when the frame was received; 0: not available */
};
