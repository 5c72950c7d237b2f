// SPDX-License-Identifier: Apache-2.0
/*
 * Steering that also says when a frame came: what it redirects has the times in the metadata in front of the frame
 * (steering_time.h), where the reader of the ring finds them.
 *
 * `steering_timed` and, for the kernels before 5.18, `steering_timed_linear` note the kernel's time.
 * `steering_nic_timed` notes the NIC's, too: it is loaded for one device (BPF_F_XDP_DEV_BOUND_ONLY, Linux 6.3), because
 * only then the kernel calls the driver for it. They are an object of their own, for an object that names a kernel
 * function takes the kernel's type information (BTF) to load.
 */
#include "steering_judge.h"
#include "steering_time.h"

extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *ctx, __u64 *timestamp) __ksym __weak;

/* Of what is redirected only: metadata on a frame that the kernel gets would keep it from being coalesced with others.
 * Where the driver leaves no space the frame goes without, and its reader finds no times there. */
static __always_inline int note_time(struct xdp_md *ctx, int action, __u64 nic_ns)
{
    struct steering_time *time;
    __u64 kernel_ns;

    if (action != XDP_REDIRECT)
        return action;
    kernel_ns = bpf_ktime_get_ns();
    if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*time)))
        return action;
    time = (void *)(long)ctx->data_meta;
    if ((void *)(time + 1) > (void *)(long)ctx->data)
        return action;
    time->mark = STEERING_TIME_MARK;
    __builtin_memcpy(time->kernel_ns, &kernel_ns, sizeof(kernel_ns));
    __builtin_memcpy(time->nic_ns, &nic_ns, sizeof(nic_ns));
    return action;
}

SEC("xdp.frags")
int steering_timed(struct xdp_md *ctx)
{
    return note_time(ctx, steer(ctx, buffer_bytes(ctx)), 0);
}

SEC("xdp")
int steering_timed_linear(struct xdp_md *ctx)
{
    return note_time(ctx, steer(ctx, (__u64)ctx->data_end - ctx->data), 0);
}

SEC("xdp.frags")
int steering_nic_timed(struct xdp_md *ctx)
{
    __u64 nic_ns = 0;
    int action = steer(ctx, buffer_bytes(ctx));

    if (action == XDP_REDIRECT && bpf_xdp_metadata_rx_timestamp(ctx, &nic_ns))
        nic_ns = 0;
    return note_time(ctx, action, nic_ns);
}

char _license[] SEC("license") = "Dual BSD/GPL";
