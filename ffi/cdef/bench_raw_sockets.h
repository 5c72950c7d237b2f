/* The raw kernel-socket baselines. Contracts: ffi/bench/raw_udp.h, raw_pingpong.h and raw_order.h. */
#include "bench/raw_order.h"

int um_raw_open_sender(uint32_t interface_ip, uint32_t segment_bytes, uint32_t buffer_bytes);
int um_raw_open_receiver(uint32_t interface_ip, uint32_t group_ip, uint16_t group_port, bool gro,
                         uint32_t buffer_bytes);
int um_raw_buffer_bytes(int fd, bool receive);
int um_raw_send(int fd, const um_raw_send_config *config, um_raw_send_result *result);
int um_raw_receive(int fd, const um_raw_receive_config *config, um_raw_receive_result *result);

typedef struct um_raw_order {
    uint64_t next;
    uint64_t lost_count;
    uint64_t out_of_order_count;
    uint64_t duplicate_count;
    ...;
} um_raw_order;

void um_raw_order_stamp(uint8_t *messages, uint32_t message_bytes, uint32_t count, uint64_t first);
void um_raw_order_init(um_raw_order *order);
void um_raw_order_note(um_raw_order *order, uint64_t counter);

int um_raw_open_pingpong(const um_raw_pingpong_config *config);
int um_raw_ping(int fd, const um_raw_pingpong_config *config, uint64_t warmup_count, uint64_t sample_count,
                int64_t duration_ns, uint64_t *samples_ns, um_raw_ping_result *result);
int um_raw_echo(int fd, const um_raw_pingpong_config *config, um_raw_echo_result *result);
