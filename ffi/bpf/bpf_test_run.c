#include "bpf/bpf_test_run.h"

#include <bpf/bpf.h>
#include <errno.h>

int xdp_bpf_test_run(int program_fd, struct xdp_bpf_test_run *run)
{
    struct __sk_buff skb = {.mark = run->mark, .gso_segs = run->gso_segments};
    struct xdp_md xdp = {
        .data_end = run->packet_bytes, .ingress_ifindex = run->interface_index, .rx_queue_index = run->queue};
    struct bpf_test_run_opts options = {
        .sz = sizeof(options),
        .data_in = run->packet,
        .data_size_in = run->packet_bytes,
        .data_out = run->packet_out,
        .data_size_out = run->packet_out ? run->packet_out_bytes : 0,
        .repeat = (int)(run->repeat_count ? run->repeat_count : 1),
    };

    if (run->has_skb_context) {
        options.ctx_in = options.ctx_out = &skb;
        options.ctx_size_in = options.ctx_size_out = sizeof(skb);
    } else if (run->interface_index) {
        options.ctx_in = &xdp;
        options.ctx_size_in = sizeof(xdp);
    }
    errno = 0;
    if (bpf_prog_test_run_opts(program_fd, &options)) {
        run->packet_out_bytes = options.data_size_out;
        return errno ? -errno : -EINVAL;
    }
    run->packet_out_bytes = options.data_size_out;
    run->result = options.retval;
    run->duration_ns = options.duration;
    run->mark = skb.mark;
    return 0;
}
