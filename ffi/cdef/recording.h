/* Taps and captures as Python sees them. Contracts, of ffi/capture/writing: tap.h, interface_capture.h,
 * pcapng_writer.h, datagram_frame.h. */
#include "capture/writing/datagram_frame.h"
#include "capture/writing/interface_capture.h"
#include "capture/writing/pcapng_writer.h"
#include "capture/writing/tap.h"

enum { UM_PCAPNG_LINK_ETHERNET, UM_IPV4_UDP_HEADER_BYTES, ... };
enum um_pcapng_direction { UM_PCAPNG_NO_DIRECTION, UM_PCAPNG_INBOUND, UM_PCAPNG_OUTBOUND, ... };

typedef struct um_pcapng_writer {
    ...;
} um_pcapng_writer;

typedef struct um_pcapng_packet {
    int64_t time_ns;
    uint32_t interface_id;
    uint32_t wire_bytes;
    enum um_pcapng_direction direction;
    uint64_t drop_count;
    int64_t queue;
    int64_t verdict;
    ...;
} um_pcapng_packet;

int um_pcapng_open(um_pcapng_writer *writer, const char *path);
void um_pcapng_add_interface(um_pcapng_writer *writer, const char *name, uint16_t link_type, uint32_t snap_bytes,
                             const char *filter);
void um_pcapng_write(um_pcapng_writer *writer, const um_pcapng_packet *packet, const uint8_t *head, uint32_t head_bytes,
                     const uint8_t *body, uint32_t body_bytes);
int um_pcapng_close(um_pcapng_writer *writer);
void um_datagram_frame(uint8_t *header, um_address from, um_address to, uint8_t ttl, uint16_t identification,
                       const uint8_t *payload, uint32_t captured_bytes, uint32_t payload_bytes);

typedef struct um_tap_config {
    const char *path;
    const char *file_name;
    uint64_t rotate_bytes;
    int64_t rotate_ns;
    uint32_t keep_files;
    const char *interface;
    uint32_t ring_bytes;
    uint32_t snap_bytes;
    uint8_t ttl;
    ...;
} um_tap_config;

typedef struct um_tap_counters {
    uint64_t written_count;
    uint64_t dropped_count;
    uint64_t file_bytes;
    uint64_t file_count;
    int error;
    ...;
} um_tap_counters;

int um_context_tap_start(um_context *context, const um_tap_config *config);
int um_context_tap_stop(um_context *context, um_tap_counters *counters);
void um_context_tap_read(const um_context *context, um_tap_counters *counters);
bool um_context_tap_is_running(const um_context *context);
void um_context_tap_datagram(um_context *context, bool sent, um_address from, um_address to, const char *data,
                             uint32_t length);

struct sock_filter {
    uint16_t code;
    uint8_t jt;
    uint8_t jf;
    uint32_t k;
};

enum { UM_PCAPNG_UNKNOWN = -1, ... };

typedef struct um_egress_ring_maps {
    int ring_fd;
    uint32_t ring_bytes;
    int counters_fd;
    ...;
} um_egress_ring_maps;

typedef struct um_frame_merge_filter {
    int program_fd;
    int stamps_fd;
} um_frame_merge_filter;

typedef struct um_frame_merge_config {
    um_egress_ring_maps maps;
    um_frame_merge_filter incoming;
    um_frame_merge_filter mirrored;
    uint32_t mirror_index;
} um_frame_merge_config;

typedef struct um_interface_capture_config {
    const char *interface;
    uint32_t block_bytes;
    uint32_t block_count;
    uint32_t snap_bytes;
    bool promiscuous;
    bool kernel_tells_runs;
    const char *filter_text;
    const struct sock_filter *filter;
    uint16_t filter_length;
    const um_frame_merge_config *egress;
    ...;
} um_interface_capture_config;

typedef struct um_interface_capture_counters {
    uint64_t packet_count;
    uint64_t drop_count;
    uint64_t file_bytes;
    uint64_t file_packet_count;
    int64_t file_start_ns;
    ...;
} um_interface_capture_counters;

typedef struct um_interface_capture_arrivals {
    int64_t until_ns;
    int64_t queue;
    int64_t verdict;
    ...;
} um_interface_capture_arrivals;

typedef struct um_interface_capture um_interface_capture;

int um_interface_capture_open(const um_interface_capture_config *config, um_interface_capture **capture);
const char *um_interface_capture_failed_step(const um_interface_capture *capture);
bool um_interface_capture_splits_runs(const um_interface_capture *capture);
void um_interface_capture_close(um_interface_capture *capture);
int um_interface_capture_begin_file(um_interface_capture *capture, const char *path);
int um_interface_capture_end_file(um_interface_capture *capture);
bool um_interface_capture_has_file(const um_interface_capture *capture);
int um_interface_capture_wait(um_interface_capture *capture, int64_t timeout_ns);
int64_t um_interface_capture_write(um_interface_capture *capture, const um_interface_capture_arrivals *arrivals,
                                   uint64_t limit_bytes);
int um_interface_capture_end_arrivals(um_interface_capture *capture);
bool um_interface_capture_is_drained(um_interface_capture *capture);
void um_interface_capture_read(const um_interface_capture *capture, um_interface_capture_counters *counters);
