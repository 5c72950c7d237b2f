/* BPF objects: load a compiled object into the kernel, find its programs and maps, and let go of it.
 *
 * Contract. Nothing here pins: a program lives as long as a descriptor of it or something it is attached to.
 * Errors are negative errno values. An object is used by one thread at a time; different objects by any.
 * (W11: ELF, relocation and BTF are libbpf's business.)
 */
#ifndef XDP_BPF_OBJECT_H
#define XDP_BPF_OBJECT_H

#include <stddef.h>
#include <stdint.h>

struct bpf_object;

struct xdp_bpf_map_size {
    const char *map_name;
    uint32_t max_entries;
};

/* Overrides of the file's content; all zero: none. Only read during the call. */
struct xdp_bpf_load_options {
    const char *program_name; /* load this one alone; NULL: every program of the file */
    const struct xdp_bpf_map_size *map_sizes;
    uint32_t map_size_count;
    uint32_t device_index; /* load program_name for this interface alone, so that it may call the driver; 0: for any */
};

/* Opens and loads the file; options may be NULL. On success *object belongs to the caller, which closes it. What
 * libbpf and the verifier had to say ends up in log (the last log_bytes - 1 bytes of it, always terminated), on
 * success too. -ENOENT: the file, or the program or map that options name, is not there.
 */
int xdp_bpf_object_load(const char *path, const struct xdp_bpf_load_options *options, struct bpf_object **object,
                        char *log, size_t log_bytes);

/* Frees the object and every descriptor it gave out. NULL is allowed. */
void xdp_bpf_object_close(struct bpf_object *object);

/* Descriptors by name, owned by the object: valid until it is closed. -ENOENT: no such name. */
int xdp_bpf_program_fd(const struct bpf_object *object, const char *name);
int xdp_bpf_map_fd(const struct bpf_object *object, const char *name);

#define XDP_BPF_NAME_BYTES 16

struct xdp_bpf_program_facts {
    uint32_t program_id;
    uint32_t owner_uid; /* of the user that loaded it */
    char name[XDP_BPF_NAME_BYTES];
};

/* The other way in: from a loaded program's id, as an attachment shows it, to the program and its maps.
 * The descriptors belong to the caller. The kernel keeps the first 15 bytes of a map's name; more are
 * ignored. */
int xdp_bpf_program_fd_by_id(uint32_t program_id);
int xdp_bpf_program_describe(int program_fd, struct xdp_bpf_program_facts *facts);
int xdp_bpf_program_map_fd(int program_fd, const char *map_name);

#endif
