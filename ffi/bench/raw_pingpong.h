/* Raw round trip: a client sends one datagram, a server sends it back, the client measures the time.
 *
 * Over unicast if listen and peer are host addresses, over multicast if they are groups (each end then listens on its
 * own). Sockets, addresses and results follow the rules of bench/raw_udp.h.
 */
#ifndef UM_BENCH_RAW_PINGPONG_H
#define UM_BENCH_RAW_PINGPONG_H

#include "bench/raw_round_trips.h"
#include "bench/raw_udp.h"

typedef struct um_raw_pingpong_config {
    uint32_t interface_ip;
    uint32_t listen_ip;
    uint16_t listen_port;
    uint32_t peer_ip;
    uint16_t peer_port;
    uint32_t message_bytes;
    uint32_t wait; /* UM_RAW_WAIT_BLOCK or UM_RAW_WAIT_BUSY */
    /* Client: time after which a reply counts as lost. Server: time without a datagram after which it ends without an
     * end marker. */
    int64_t timeout_ns;
} um_raw_pingpong_config;

typedef struct um_raw_echo_result {
    uint64_t echo_count;
    int64_t cpu_ns; /* of the calling thread, since the first datagram */
    bool end_marker_seen;
} um_raw_echo_result;

int um_raw_open_pingpong(const um_raw_pingpong_config *config);

/* Reaches the server first (-ETIMEDOUT if it does not answer within 3 s), makes warmup_count unmeasured round trips for
 * at most a second, then up to sample_count measured ones within duration_ns, and at least one. samples_ns is the
 * caller's, with space for sample_count; result->sample_count of them are filled, without the lost ones. */
int um_raw_ping(int fd, const um_raw_pingpong_config *config, uint64_t warmup_count, uint64_t sample_count,
                int64_t duration_ns, uint64_t *samples_ns, um_raw_ping_result *result);

/* Echoes until an end marker or timeout_ns without a datagram; returns -ETIMEDOUT if none arrived. */
int um_raw_echo(int fd, const um_raw_pingpong_config *config, um_raw_echo_result *result);

#endif
