/* BPF_PROG_TEST_RUN: the real, loaded program over one packet, without a network.
 *
 * Contract. All memory is the caller's. Any thread may call. Errors are negative errno values; -ENOSPC: the packet
 * that came out did not fit and what is in packet_out is its beginning.
 */
#ifndef XDP_BPF_TEST_RUN_H
#define XDP_BPF_TEST_RUN_H

#include <stdint.h>

struct xdp_bpf_test_run {
    const uint8_t *packet;
    uint32_t packet_bytes;
    uint8_t *packet_out;       /* what the program left of the packet; may be NULL */
    uint32_t packet_out_bytes; /* in: space; out: bytes there */
    uint32_t repeat_count;     /* 0 is 1; result, mark and packet are those of the last run */
    uint32_t has_skb_context;  /* 1 for tc programs, to give and get the fields below; 0 for XDP */
    uint32_t mark;             /* in and out */
    uint32_t gso_segments;
    uint32_t interface_index; /* XDP: which interface the frame seems to come in by, and by which of its queues; */
    uint32_t queue;           /* 0 and 0: the loopback */
    uint32_t result;          /* out: what the program returned */
    uint32_t duration_ns;     /* out: mean of a run */
};

int xdp_bpf_test_run(int program_fd, struct xdp_bpf_test_run *run);

#endif
