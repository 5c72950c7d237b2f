/* BPF objects: load a compiled object into the kernel, find its programs and maps, and release it.
 *
 * Contract. Nothing here pins: a program lives as long as one of its descriptors or attachments.
 * Errors are negative errno values. Each object is used by one thread at a time; different objects by any.
 * (W11: libbpf handles ELF, relocation and BTF.)
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

/* Deviations from the file; all zero changes nothing. Only read during the call. */
struct xdp_bpf_load_options {
    const char *program_name; /* load only this program; NULL: every program of the file */
    const struct xdp_bpf_map_size *map_sizes;
    uint32_t map_size_count;
    uint32_t device_index; /* load program_name for this interface only, so that it may call the driver; 0: for any */
};

/* Opens and loads the file; options may be NULL. On success *object belongs to the caller, which closes it. The log
 * receives the messages of libbpf and the verifier, on success too: the last log_bytes - 1 bytes of them, always
 * terminated. -ENOENT: the file, or the program or map that the options name, does not exist.
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

/* From the id of a loaded program, as an attachment shows it, to the program and its maps. The descriptors belong to
 * the caller. The kernel keeps the first 15 bytes of a map's name; any further bytes are ignored. */
int xdp_bpf_program_fd_by_id(uint32_t program_id);
int xdp_bpf_program_describe(int program_fd, struct xdp_bpf_program_facts *facts);
int xdp_bpf_program_map_fd(int program_fd, const char *map_name);

#endif
