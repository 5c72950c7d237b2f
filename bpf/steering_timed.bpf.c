// SPDX-License-Identifier: Apache-2.0
/*
 * Steering with times of arrival: the programs write them into the metadata in front of each redirected frame
 * (steering_time.h), where the reader of the ring finds them.
 *
 * `steering_timed` and, for kernels before 5.18, `steering_timed_linear` write the kernel's time.
 * `steering_nic_timed` also writes the NIC's. It is loaded for one device (BPF_F_XDP_DEV_BOUND_ONLY, Linux 6.3),
 * because only then does the kernel call the driver for it. These programs have their own object, because an object
 * that names a kernel function cannot be loaded without the kernel's type information (BTF).
 */
#include "steering_judge.h"
#include "steering_time.h"

extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *ctx, __u64 *timestamp) __ksym __weak;

/* Only for redirected frames: metadata would keep the kernel from coalescing a passed frame with others. If the driver
 * leaves no space for metadata, the frame is redirected without, and its reader finds no times. */
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
