#include "bench/raw_round_trips.h"
#include "bench/raw_socket.h"
#include "xsk/raw_xdp.h"

enum { END_MARKER_COUNT = 4 };

typedef struct ring_end {
    um_xsk_rings *rings;
    const um_raw_pingpong_config *config;
} ring_end;

static um_address listen_address(const um_raw_pingpong_config *config)
{
    return um_address_of_v4(config->interface_ip, config->listen_port);
}

static um_address peer_address(const um_raw_pingpong_config *config)
{
    return um_address_of_v4(config->peer_ip, config->peer_port);
}

static int send_one(um_xsk_rings *rings, const uint8_t *payload, uint32_t payload_bytes, uint32_t length)
{
    um_xsk_queue *queue = um_xsk_rings_queue(rings, 0);
    um_xsk_queue_reclaim(queue);
    xsk_ring_prod__submit(&queue->send, um_xsk_raw_put(queue, payload, payload_bytes, length));
    return um_xsk_rings_kick(rings, 0);
}

/* Takes the remaining frames of a datagram, which arrive soon after its first. */
static void skip_rest(um_xsk_queue *queue, uint32_t at)
{
    while (um_xsk_raw_is_continued(queue, at)) {
        um_xsk_queue_release(queue);
        while (um_xsk_queue_take(queue, 1, &at) == 0)
            ;
    }
}

/* Copies the next datagram's first bytes. Returns its length, or -EAGAIN after timeout_ns. */
static int receive_one(um_xsk_rings *rings, int64_t timeout_ns, uint64_t *counter)
{
    um_xsk_queue *queue = um_xsk_rings_queue(rings, 0);
    int64_t deadline_ns = um_raw_clock_ns(CLOCK_MONOTONIC) + timeout_ns;
    uint32_t at = 0, length;
    while (um_xsk_queue_take(queue, 1, &at) == 0) {
        um_xsk_rings_poll(rings, 0);
        if (um_raw_clock_ns(CLOCK_MONOTONIC) >= deadline_ns)
            return -EAGAIN;
    }
    const uint8_t *data = um_xsk_raw_payload(queue, at, &length);
    memcpy(counter, data, length < sizeof *counter ? length : sizeof *counter);
    skip_rest(queue, at);
    um_xsk_queue_release(queue);
    return (int)length;
}

/* um_raw_client's callback. */
static int round_trip(void *client_end, bool is_reaching, uint64_t counter, um_raw_ping_result *result)
{
    const ring_end *end = client_end;
    int64_t timeout_ns = is_reaching ? UM_RAW_REACH_ATTEMPT_NS : end->config->timeout_ns;
    int error = send_one(end->rings, (const uint8_t *)&counter, sizeof counter, end->config->message_bytes);
    while (error == 0) {
        uint64_t answered = UINT64_MAX;
        int length = receive_one(end->rings, timeout_ns, &answered);
        if (length == -EAGAIN)
            return 0;
        if (answered == counter)
            return 1;
        result->stale_count++;
    }
    return error;
}

/* An end marker has a length that no other datagram has. */
static int send_end_markers(um_xsk_rings *rings, const um_raw_pingpong_config *config)
{
    const uint8_t marker[UM_RAW_END_BYTES] = {0};
    int error = 0;
    um_xsk_queue_reclaim(um_xsk_rings_queue(rings, 0));
    um_xsk_raw_prepare(rings, listen_address(config), peer_address(config), sizeof marker);
    for (int i = 0; i < END_MARKER_COUNT && error == 0; i++)
        error = send_one(rings, marker, sizeof marker, sizeof marker);
    return error;
}

int um_xsk_raw_ping(um_xsk_rings *rings, const um_raw_pingpong_config *config, uint64_t warmup_count,
                    uint64_t sample_count, int64_t duration_ns, uint64_t *samples_ns, um_raw_ping_result *result)
{
    ring_end end = {rings, config};
    const um_raw_client client = {&end, round_trip};
    um_xsk_raw_prepare(rings, listen_address(config), peer_address(config), config->message_bytes);
    int error = um_raw_make_round_trips(&client, warmup_count, sample_count, duration_ns, samples_ns, result);
    return error != 0 ? error : send_end_markers(rings, config);
}

int um_xsk_raw_echo(um_xsk_rings *rings, const um_raw_pingpong_config *config, um_raw_echo_result *result)
{
    int64_t cpu_start_ns = 0;
    uint64_t counter = 0;
    int length;
    memset(result, 0, sizeof *result);
    um_xsk_raw_prepare(rings, listen_address(config), peer_address(config), config->message_bytes);
    while ((length = receive_one(rings, config->timeout_ns, &counter)) >= 0) {
        if (cpu_start_ns == 0)
            cpu_start_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        if (length == UM_RAW_END_BYTES) {
            result->end_marker_seen = true;
            break;
        }
        int error = send_one(rings, (const uint8_t *)&counter, sizeof counter, config->message_bytes);
        if (error != 0)
            return error;
        result->echo_count++;
    }
    if (cpu_start_ns != 0)
        result->cpu_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns;
    if (length >= 0)
        return 0;
    return result->echo_count > 0 ? 0 : -ETIMEDOUT;
}
