// SPDX-License-Identifier: Apache-2.0
/*
 * Steering: redirects the UDP datagrams of our groups into AF_XDP rings, and passes everything else to the kernel
 * (steering_judge.h).
 *
 * Both programs do the same. `steering` accepts frames of several buffers (jumbo frames; kernel 5.18 and later),
 * `steering_linear` runs on older kernels. xdp/steering.py loads one of the two.
 */
#include "steering_judge.h"

SEC("xdp.frags")
int steering(struct xdp_md *ctx)
{
    return steer(ctx, buffer_bytes(ctx));
}

SEC("xdp")
int steering_linear(struct xdp_md *ctx)
{
    return steer(ctx, (__u64)ctx->data_end - ctx->data);
}

char _license[] SEC("license") = "Dual BSD/GPL";
