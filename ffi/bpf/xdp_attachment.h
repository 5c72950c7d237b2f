/* XDP attachments: attach a program to an interface through a bpf_link, and find the links that others hold.
 *
 * Contract. An attachment is a descriptor: closing it (or process exit) detaches. Interfaces are those of the calling
 * thread's network namespace. Any thread may call. Errors are negative errno values. (W11)
 */
#ifndef XDP_XDP_ATTACHMENT_H
#define XDP_XDP_ATTACHMENT_H

#include <stdint.h>

enum xdp_bpf_attach_mode {
    XDP_BPF_NATIVE,  /* in the driver */
    XDP_BPF_GENERIC, /* in the kernel's receive path, on packet buffers */
};

struct xdp_bpf_link_facts {
    uint32_t link_id;
    uint32_t program_id;
    uint32_t interface_index; /* 0: detached, or the interface no longer exists */
};

/* Returns the link's descriptor, which belongs to the caller. -EBUSY, -EEXIST: another program is attached. */
int xdp_bpf_attach(int program_fd, uint32_t interface_index, enum xdp_bpf_attach_mode mode);

/* The ids of the programs on an interface; 0: none in that mode. */
struct xdp_bpf_program_ids {
    uint32_t native_id;
    uint32_t generic_id;
    uint32_t offload_id;
};

/* Takes a few microseconds: one request to the kernel. */
int xdp_bpf_program_ids(uint32_t interface_index, struct xdp_bpf_program_ids *ids);

/* -EINVAL: the descriptor is a link of another kind. */
int xdp_bpf_link_describe(int link_fd, struct xdp_bpf_link_facts *facts);

/* Finds the link, made by any process, that holds a program on an interface. -ENOENT: it was attached without a link.
 */
int xdp_bpf_link_find(uint32_t interface_index, uint32_t program_id, struct xdp_bpf_link_facts *facts);

#endif
