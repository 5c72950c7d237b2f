#include "bpf/tcx_attachment.h"

#include <bpf/bpf.h>
#include <errno.h>

/* BPF_TCX_EGRESS, which headers before Linux 6.6 do not have. */
static const enum bpf_attach_type tcx_egress = 47;

int xdp_bpf_tcx_attach(int program_fd, uint32_t interface_index)
{
    int fd = bpf_link_create(program_fd, (int)interface_index, tcx_egress, NULL);

    return fd < 0 ? -errno : fd;
}

int xdp_bpf_tcx_program_count(uint32_t interface_index)
{
    __u32 count = 0;

    if (!bpf_prog_query((int)interface_index, tcx_egress, 0, NULL, NULL, &count))
        return (int)count;
    return errno == ENOENT ? 0 : -errno;
}
