/* The raw AF_XDP baselines. Contracts: ffi/xsk/raw_xdp.h. */
#include "xsk/raw_xdp.h"

int um_xsk_raw_send(um_xsk_rings *rings, uint32_t interface_ip, const um_raw_send_config *config,
                    um_raw_send_result *result);
int um_xsk_raw_receive(um_xsk_rings *rings, const um_raw_receive_config *config, um_raw_receive_result *result);
int um_xsk_raw_ping(um_xsk_rings *rings, const um_raw_pingpong_config *config, uint64_t warmup_count,
                    uint64_t sample_count, int64_t duration_ns, uint64_t *samples_ns, um_raw_ping_result *result);
int um_xsk_raw_echo(um_xsk_rings *rings, const um_raw_pingpong_config *config, um_raw_echo_result *result);
