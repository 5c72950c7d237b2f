/* tc programs at an interface's egress without a queueing discipline (tcx, Linux 6.6), held by a bpf_link.
 *
 * Contract. An attachment is a descriptor: closing it (or process exit) detaches; after close() returns, the program no
 * longer runs. Interfaces are those of the calling thread's network namespace. Any thread may call. Errors are negative
 * errno values; -EINVAL: this kernel has no tcx.
 */
#ifndef XDP_TCX_ATTACHMENT_H
#define XDP_TCX_ATTACHMENT_H

#include <stdint.h>

/* Appends the program to those attached. Returns the link's descriptor, which belongs to the caller. */
int xdp_bpf_tcx_attach(int program_fd, uint32_t interface_index);

/* Returns how many programs are attached. */
int xdp_bpf_tcx_program_count(uint32_t interface_index);

#endif
