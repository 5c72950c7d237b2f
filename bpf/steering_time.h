// SPDX-License-Identifier: Apache-2.0
/*
 * The times that the timed steering programs write in front of a redirected frame; the reader of the ring finds them
 * just below the frame's first byte. Shared by both sides; plain C, without __u32 and without an include guard.
 *
 * The reader clears the mark, so that a frame reused without metadata does not appear to have the old times.
 */
#define STEERING_TIME_MARK 0x54696d65U

/* 20 bytes: together with the 42 bytes of headers of an untagged datagram they fit into one cache line. */
struct steering_time {
    unsigned int mark;         /* STEERING_TIME_MARK if the times are valid */
    unsigned int kernel_ns[2]; /* CLOCK_MONOTONIC when the program ran; a 64-bit number in host byte order */
    unsigned int nic_ns[2];    /* by the NIC's own clock when the frame arrived; 0: not available */
};
