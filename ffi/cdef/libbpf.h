#include "../bpf/egress_tap.h"
#include "../bpf/steering.h"
#include "bpf/bpf_map.h"
#include "bpf/bpf_object.h"
#include "bpf/bpf_test_run.h"
#include "bpf/mirror_device.h"
#include "bpf/tcx_attachment.h"
#include "bpf/xdp_attachment.h"

struct bpf_object;

struct xdp_bpf_map_size {
    const char *map_name;
    uint32_t max_entries;
};

struct xdp_bpf_load_options {
    const char *program_name;
    const struct xdp_bpf_map_size *map_sizes;
    uint32_t map_size_count;
};

int xdp_bpf_object_load(const char *path, const struct xdp_bpf_load_options *options, struct bpf_object **object,
                        char *log, size_t log_bytes);
void xdp_bpf_object_close(struct bpf_object *object);
int xdp_bpf_program_fd(const struct bpf_object *object, const char *name);
int xdp_bpf_map_fd(const struct bpf_object *object, const char *name);
int xdp_bpf_program_fd_by_id(uint32_t program_id);

struct xdp_bpf_program_facts {
    uint32_t program_id;
    uint32_t owner_uid;
    char name[16];
};

int xdp_bpf_program_describe(int program_fd, struct xdp_bpf_program_facts *facts);
int xdp_bpf_program_map_fd(int program_fd, const char *map_name);

struct xdp_bpf_map_facts {
    uint32_t key_bytes;
    uint32_t value_bytes;
    uint32_t value_stride;
    uint32_t value_count;
    uint32_t max_entries;
};

int xdp_bpf_map_describe(int map_fd, struct xdp_bpf_map_facts *facts);
int xdp_bpf_map_read(int map_fd, const void *key, void *value);
int xdp_bpf_map_write(int map_fd, const void *key, const void *value);
int xdp_bpf_map_erase(int map_fd, const void *key);

struct xdp_bpf_test_run {
    const uint8_t *packet;
    uint32_t packet_bytes;
    uint8_t *packet_out;
    uint32_t packet_out_bytes;
    uint32_t repeat_count;
    uint32_t has_skb_context;
    uint32_t mark;
    uint32_t gso_segments;
    uint32_t interface_index;
    uint32_t queue;
    uint32_t result;
    uint32_t duration_ns;
};

int xdp_bpf_test_run(int program_fd, struct xdp_bpf_test_run *run);

enum xdp_bpf_attach_mode { XDP_BPF_NATIVE, XDP_BPF_GENERIC };

struct xdp_bpf_link_facts {
    uint32_t link_id;
    uint32_t program_id;
    uint32_t interface_index;
};

int xdp_bpf_attach(int program_fd, uint32_t interface_index, enum xdp_bpf_attach_mode mode);
int xdp_bpf_link_describe(int link_fd, struct xdp_bpf_link_facts *facts);
struct xdp_bpf_program_ids {
    uint32_t native_id;
    uint32_t generic_id;
    uint32_t offload_id;
};

int xdp_bpf_program_ids(uint32_t interface_index, struct xdp_bpf_program_ids *ids);
int xdp_bpf_link_find(uint32_t interface_index, uint32_t program_id, struct xdp_bpf_link_facts *facts);

int xdp_bpf_tcx_attach(int program_fd, uint32_t interface_index);
int xdp_bpf_tcx_program_count(uint32_t interface_index);

int xdp_mirror_device_open(char *name, uint32_t *interface_index);
#define XDP_MIRROR_NAME_BYTES 16
