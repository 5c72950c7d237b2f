#include "bpf/bpf_map.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdbool.h>

#define PER_CPU_ALIGNMENT_BYTES 8u

static bool is_per_cpu(uint32_t type)
{
    return type == BPF_MAP_TYPE_PERCPU_ARRAY || type == BPF_MAP_TYPE_PERCPU_HASH ||
           type == BPF_MAP_TYPE_LRU_PERCPU_HASH;
}

int xdp_bpf_map_describe(int map_fd, struct xdp_bpf_map_facts *facts)
{
    struct bpf_map_info info = {0};
    __u32 info_bytes = sizeof(info);
    int cpu_count = 1;

    if (bpf_obj_get_info_by_fd(map_fd, &info, &info_bytes))
        return -errno;
    *facts = (struct xdp_bpf_map_facts){
        .key_bytes = info.key_size, .value_bytes = info.value_size, .max_entries = info.max_entries};
    if (is_per_cpu(info.type)) {
        cpu_count = libbpf_num_possible_cpus();
        if (cpu_count < 0)
            return cpu_count;
        facts->value_stride =
            (info.value_size + PER_CPU_ALIGNMENT_BYTES - 1) / PER_CPU_ALIGNMENT_BYTES * PER_CPU_ALIGNMENT_BYTES;
    }
    facts->value_count = (uint32_t)cpu_count;
    return 0;
}

int xdp_bpf_map_read(int map_fd, const void *key, void *value)
{
    return bpf_map_lookup_elem(map_fd, key, value) ? -errno : 0;
}

int xdp_bpf_map_write(int map_fd, const void *key, const void *value)
{
    return bpf_map_update_elem(map_fd, key, value, BPF_ANY) ? -errno : 0;
}

int xdp_bpf_map_insert(int map_fd, const void *key, const void *value)
{
    return bpf_map_update_elem(map_fd, key, value, BPF_NOEXIST) ? -errno : 0;
}

int xdp_bpf_map_erase(int map_fd, const void *key)
{
    return bpf_map_delete_elem(map_fd, key) ? -errno : 0;
}
