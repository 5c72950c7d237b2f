/* BPF maps by descriptor: read a map's sizes, and read and write its values.
 *
 * Contract. Keys and values are the caller's memory, in the sizes that xdp_bpf_map_describe returns; nothing is
 * kept. Any thread may call; the kernel orders the accesses. Errors are negative errno values.
 */
#ifndef XDP_BPF_MAP_H
#define XDP_BPF_MAP_H

#include <stdint.h>

struct xdp_bpf_map_facts {
    uint32_t key_bytes;
    uint32_t value_bytes;  /* of one value */
    uint32_t value_stride; /* distance between the values of two CPUs; 0 if the map is not per CPU */
    uint32_t value_count;  /* values per read: possible CPUs of a per-CPU map, else 1 */
    uint32_t max_entries;
};

int xdp_bpf_map_describe(int map_fd, struct xdp_bpf_map_facts *facts);

/* value has space for value_count values, value_stride apart. -ENOENT: no such key. */
int xdp_bpf_map_read(int map_fd, const void *key, void *value);
int xdp_bpf_map_write(int map_fd, const void *key, const void *value);
/* Writes only if the key is absent. -EEXIST: the key exists, and its value is unchanged. */
int xdp_bpf_map_insert(int map_fd, const void *key, const void *value);
int xdp_bpf_map_erase(int map_fd, const void *key);

#endif
