/* BPF objects: load a compiled object into the kernel, find its programs and maps, and let go of it.
 *
 * Contract. Nothing here pins: a program lives as long as a descriptor of it or something it is attached to.
 * Errors are negative errno values. An object is used by one thread at a time; different objects by any.
 * (design W11: ELF, relocation and BTF are libbpf's business.)
 */
#ifndef XDP_BPF_OBJECT_H
#define XDP_BPF_OBJECT_H

#include <stddef.h>
#include <stdint.h>

struct bpf_object;

/* Opens and loads the file. On success *object belongs to the caller, who closes it. What libbpf and the
 * verifier had to say ends up in log (the last log_bytes - 1 bytes of it, always terminated), on success too.
 */
int xdp_bpf_object_load(const char *path, struct bpf_object **object, char *log, size_t log_bytes);

/* Frees the object and every descriptor it gave out. NULL is allowed. */
void xdp_bpf_object_close(struct bpf_object *object);

/* Descriptors by name, owned by the object: valid until it is closed. -ENOENT: no such name. */
int xdp_bpf_program_fd(const struct bpf_object *object, const char *name);
int xdp_bpf_map_fd(const struct bpf_object *object, const char *name);

/* The other way in: from a loaded program's id, as an attachment shows it, to the program and its maps.
 * The descriptors belong to the caller. The kernel keeps the first 15 bytes of a map's name; more are
 * ignored. */
int xdp_bpf_program_fd_by_id(uint32_t program_id);
int xdp_bpf_program_id(int program_fd, uint32_t *program_id);
int xdp_bpf_program_map_fd(int program_fd, const char *map_name);

#endif
