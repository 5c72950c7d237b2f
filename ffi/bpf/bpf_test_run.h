/* BPF_PROG_TEST_RUN: runs the real, loaded program on one packet, without a network.
 *
 * Contract. All memory is the caller's. Any thread may call. Errors are negative errno values; -ENOSPC: the resulting
 * packet did not fit, and packet_out holds its first bytes.
 */
#ifndef XDP_BPF_TEST_RUN_H
#define XDP_BPF_TEST_RUN_H

#include <stdint.h>

struct xdp_bpf_test_run {
    const uint8_t *packet;
    uint32_t packet_bytes;
    uint8_t *packet_out;       /* the packet after the run; may be NULL */
    uint32_t packet_out_bytes; /* in: space; out: bytes written */
    uint32_t repeat_count;     /* 0 means 1; result, mark and packet are those of the last run */
    uint32_t has_skb_context;  /* 1 for tc programs, to pass the fields below in and out; 0 for XDP */
    uint32_t mark;             /* in and out */
    uint32_t gso_segments;
    uint32_t interface_index; /* XDP: the interface on which the frame appears to arrive; 0: the loopback */
    uint32_t queue;           /* XDP: the queue of that interface */
    uint32_t result;          /* out: what the program returned */
    uint32_t duration_ns;     /* out: mean per run */
};

int xdp_bpf_test_run(int program_fd, struct xdp_bpf_test_run *run);

#endif
