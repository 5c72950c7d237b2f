/* XDP attachments: a program on an interface, held by a bpf_link, and the links others hold.
 *
 * Contract. An attachment is a descriptor: closing it (or process exit) detaches. Interfaces are those of the calling
 * thread's network namespace. Any thread may call. Errors are negative errno values. (W11)
 */
#ifndef XDP_XDP_ATTACHMENT_H
#define XDP_XDP_ATTACHMENT_H

#include <stdint.h>

enum xdp_bpf_attach_mode {
    XDP_BPF_NATIVE,  /* in the driver */
    XDP_BPF_GENERIC, /* in the kernel's receive path, after the driver made a packet of it */
};

struct xdp_bpf_link_facts {
    uint32_t link_id;
    uint32_t program_id;
    uint32_t interface_index; /* 0: it was detached, or the interface is gone */
};

/* Returns the link's descriptor, which belongs to the caller. -EBUSY, -EEXIST: another program is there. */
int xdp_bpf_attach(int program_fd, uint32_t interface_index, enum xdp_bpf_attach_mode mode);

/* The programs on an interface by their ids; 0: none in that mode. */
struct xdp_bpf_program_ids {
    uint32_t native_id;
    uint32_t generic_id;
    uint32_t offload_id;
};

/* Takes some microseconds: one question to the kernel. */
int xdp_bpf_program_ids(uint32_t interface_index, struct xdp_bpf_program_ids *ids);

/* -EINVAL: the descriptor is of some other kind of link. */
int xdp_bpf_link_describe(int link_fd, struct xdp_bpf_link_facts *facts);

/* Finds the link that holds a program on an interface, made by any process. -ENOENT: it was attached without one. */
int xdp_bpf_link_find(uint32_t interface_index, uint32_t program_id, struct xdp_bpf_link_facts *facts);

#endif
