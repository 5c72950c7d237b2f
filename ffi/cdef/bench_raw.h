/* What the raw baselines are told and what they find. Contracts: ffi/bench/raw_udp.h and raw_pingpong.h. */
#include "bench/raw_pingpong.h"
#include "bench/raw_udp.h"

#define UM_RAW_COUNTER_BYTES ...
#define UM_RAW_MAX_DATAGRAM_BYTES ...
#define UM_RAW_MAX_SEGMENT_COUNT ...

enum um_raw_wait { UM_RAW_WAIT_BLOCK, UM_RAW_WAIT_BUSY, UM_RAW_WAIT_COALESCE, ... };

typedef struct um_raw_send_config {
    uint32_t group_ip;
    uint16_t group_port;
    uint32_t message_bytes;
    uint32_t messages_per_datagram_count;
    uint32_t segments_per_send_count;
    uint32_t batch_count;
    int64_t duration_ns;
    uint64_t max_message_count;
    uint64_t pace_messages_per_second;
    ...;
} um_raw_send_config;

typedef struct um_raw_send_result {
    uint64_t message_count;
    uint64_t datagram_count;
    uint64_t byte_count;
    uint64_t call_count;
    uint64_t retry_count;
    int64_t elapsed_ns;
    int64_t cpu_ns;
    ...;
} um_raw_send_result;

typedef struct um_raw_receive_config {
    uint32_t message_bytes;
    uint32_t max_datagram_bytes;
    uint32_t batch_count;
    uint32_t wait;
    bool gro;
    int64_t coalesce_ns;
    int64_t first_timeout_ns;
    int64_t idle_timeout_ns;
    ...;
} um_raw_receive_config;

typedef struct um_raw_receive_result {
    uint64_t message_count;
    uint64_t datagram_count;
    uint64_t byte_count;
    uint64_t call_count;
    uint64_t first_batch_message_count;
    uint64_t lost_count;
    uint64_t out_of_order_count;
    uint64_t duplicate_count;
    uint64_t malformed_count;
    uint64_t socket_drop_count;
    int64_t first_ns;
    int64_t last_ns;
    int64_t cpu_ns;
    bool end_marker_seen;
    ...;
} um_raw_receive_result;

typedef struct um_raw_pingpong_config {
    uint32_t interface_ip;
    uint32_t listen_ip;
    uint16_t listen_port;
    uint32_t peer_ip;
    uint16_t peer_port;
    uint32_t message_bytes;
    uint32_t wait;
    int64_t timeout_ns;
    ...;
} um_raw_pingpong_config;

typedef struct um_raw_ping_result {
    uint64_t sample_count;
    uint64_t lost_count;
    uint64_t stale_count;
    int64_t elapsed_ns;
    int64_t cpu_ns;
    ...;
} um_raw_ping_result;

typedef struct um_raw_echo_result {
    uint64_t echo_count;
    int64_t cpu_ns;
    bool end_marker_seen;
    ...;
} um_raw_echo_result;
