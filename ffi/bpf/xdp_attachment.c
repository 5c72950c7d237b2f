#include "bpf/xdp_attachment.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/if_link.h>
#include <unistd.h>

int xdp_bpf_attach(int program_fd, uint32_t interface_index, enum xdp_bpf_attach_mode mode)
{
    DECLARE_LIBBPF_OPTS(bpf_link_create_opts, options,
                        .flags = mode == XDP_BPF_NATIVE ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE);
    int fd = bpf_link_create(program_fd, (int)interface_index, BPF_XDP, &options);

    return fd < 0 ? -errno : fd;
}

int xdp_bpf_program_ids(uint32_t interface_index, struct xdp_bpf_program_ids *ids)
{
    DECLARE_LIBBPF_OPTS(bpf_xdp_query_opts, found);
    int error = bpf_xdp_query((int)interface_index, 0, &found);

    *ids = (struct xdp_bpf_program_ids){
        .native_id = found.drv_prog_id, .generic_id = found.skb_prog_id, .offload_id = found.hw_prog_id};
    return error;
}

int xdp_bpf_link_describe(int link_fd, struct xdp_bpf_link_facts *facts)
{
    struct bpf_link_info info = {0};
    __u32 info_bytes = sizeof(info);

    if (bpf_obj_get_info_by_fd(link_fd, &info, &info_bytes))
        return -errno;
    if (info.type != BPF_LINK_TYPE_XDP)
        return -EINVAL;
    *facts = (struct xdp_bpf_link_facts){
        .link_id = info.id, .program_id = info.prog_id, .interface_index = info.xdp.ifindex};
    return 0;
}

/* Fails if the link ends meanwhile; the caller then skips it. */
static int describe_link_by_id(uint32_t link_id, struct xdp_bpf_link_facts *facts)
{
    int fd = bpf_link_get_fd_by_id(link_id);
    int error;

    if (fd < 0)
        return -errno;
    error = xdp_bpf_link_describe(fd, facts);
    close(fd);
    return error;
}

int xdp_bpf_link_find(uint32_t interface_index, uint32_t program_id, struct xdp_bpf_link_facts *facts)
{
    uint32_t link_id = 0;

    while (!bpf_link_get_next_id(link_id, &link_id)) {
        int error = describe_link_by_id(link_id, facts);

        if (error == -EPERM)
            return error;
        if (!error && facts->interface_index == interface_index && facts->program_id == program_id)
            return 0;
    }
    return -errno;
}
