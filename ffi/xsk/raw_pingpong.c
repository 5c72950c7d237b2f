#include "bench/raw_socket.h"
#include "xsk/raw_xdp.h"

enum { END_MARKER_COUNT = 4 };

#define REACH_NS (3 * UM_NS_PER_SECOND)
#define REACH_ATTEMPT_NS 20000000

static um_address listen_address(const um_raw_pingpong_config *config)
{
    return (um_address){config->interface_ip, config->listen_port};
}

static um_address peer_address(const um_raw_pingpong_config *config)
{
    return (um_address){config->peer_ip, config->peer_port};
}

static int send_one(um_xsk_port *port, const uint8_t *payload, uint32_t payload_bytes, uint32_t length)
{
    um_xsk_queue *queue = um_xsk_port_queue(port, 0);
    um_xsk_queue_reclaim(queue);
    xsk_ring_prod__submit(&queue->send, um_xsk_raw_put(queue, payload, payload_bytes, length));
    return um_xsk_port_kick(port, 0);
}

/* Takes the frames a datagram goes on in; they are there soon after its first. */
static void pass_over_rest(um_xsk_queue *queue, uint32_t at)
{
    while (um_xsk_raw_goes_on(queue, at)) {
        um_xsk_queue_release(queue);
        while (um_xsk_queue_take(queue, 1, &at) == 0)
            ;
    }
}

/* Copies the next datagram's first bytes. Returns its length, or -EAGAIN after timeout_ns. */
static int receive_one(um_xsk_port *port, int64_t timeout_ns, uint64_t *counter)
{
    um_xsk_queue *queue = um_xsk_port_queue(port, 0);
    int64_t deadline_ns = um_raw_clock_ns(CLOCK_MONOTONIC) + timeout_ns;
    uint32_t at = 0, length;
    while (um_xsk_queue_take(queue, 1, &at) == 0) {
        um_xsk_port_poll(port, 0);
        if (um_raw_clock_ns(CLOCK_MONOTONIC) >= deadline_ns)
            return -EAGAIN;
    }
    const uint8_t *data = um_xsk_raw_payload(queue, at, &length);
    memcpy(counter, data, length < sizeof *counter ? length : sizeof *counter);
    pass_over_rest(queue, at);
    um_xsk_queue_release(queue);
    return (int)length;
}

/* 1 when the reply came, 0 when it did not, or a negative errno. */
static int round_trip(um_xsk_port *port, const um_raw_pingpong_config *config, int64_t timeout_ns, uint64_t counter,
                      um_raw_ping_result *result)
{
    int error = send_one(port, (const uint8_t *)&counter, sizeof counter, config->message_bytes);
    while (error == 0) {
        uint64_t answered = UINT64_MAX;
        int length = receive_one(port, timeout_ns, &answered);
        if (length == -EAGAIN)
            return 0;
        if (answered == counter)
            return 1;
        result->stale_count++;
    }
    return error;
}

static int reach_peer(um_xsk_port *port, const um_raw_pingpong_config *config, um_raw_ping_result *result)
{
    int64_t deadline_ns = um_raw_clock_ns(CLOCK_MONOTONIC) + REACH_NS;
    uint64_t counter = UINT64_MAX - 1; /* no measured round trip has these */
    int outcome = 0;
    while (outcome == 0 && um_raw_clock_ns(CLOCK_MONOTONIC) < deadline_ns)
        outcome = round_trip(port, config, REACH_ATTEMPT_NS, counter--, result);
    if (outcome == 0)
        return -ETIMEDOUT;
    return outcome < 0 ? outcome : 0;
}

static int measure(um_xsk_port *port, const um_raw_pingpong_config *config, uint64_t warmup_count,
                   uint64_t sample_count, int64_t deadline_ns, uint64_t *samples_ns, um_raw_ping_result *result)
{
    for (uint64_t counter = 0; counter < warmup_count + sample_count; counter++) {
        int64_t sent_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
        if (sent_ns >= deadline_ns)
            break;
        int outcome = round_trip(port, config, config->timeout_ns, counter, result);
        if (outcome < 0)
            return outcome;
        if (outcome == 0)
            result->lost_count++;
        else if (counter >= warmup_count)
            samples_ns[result->sample_count++] = (uint64_t)(um_raw_clock_ns(CLOCK_MONOTONIC) - sent_ns);
    }
    return 0;
}

/* A datagram of a length no other has. */
static int send_end_markers(um_xsk_port *port, const um_raw_pingpong_config *config)
{
    const uint8_t marker[UM_RAW_END_BYTES] = {0};
    int error = 0;
    um_xsk_queue_reclaim(um_xsk_port_queue(port, 0));
    um_xsk_raw_prepare(port, listen_address(config), peer_address(config), sizeof marker);
    for (int i = 0; i < END_MARKER_COUNT && error == 0; i++)
        error = send_one(port, marker, sizeof marker, sizeof marker);
    return error;
}

int um_xsk_raw_ping(um_xsk_port *port, const um_raw_pingpong_config *config, uint64_t warmup_count,
                    uint64_t sample_count, int64_t duration_ns, uint64_t *samples_ns, um_raw_ping_result *result)
{
    memset(result, 0, sizeof *result);
    um_xsk_raw_prepare(port, listen_address(config), peer_address(config), config->message_bytes);
    int error = reach_peer(port, config, result);
    if (error != 0)
        return error;
    int64_t start_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
    int64_t cpu_start_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    error = measure(port, config, warmup_count, sample_count, start_ns + duration_ns, samples_ns, result);
    result->elapsed_ns = um_raw_clock_ns(CLOCK_MONOTONIC) - start_ns;
    result->cpu_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns;
    return error != 0 ? error : send_end_markers(port, config);
}

int um_xsk_raw_echo(um_xsk_port *port, const um_raw_pingpong_config *config, um_raw_echo_result *result)
{
    int64_t cpu_start_ns = 0;
    uint64_t counter = 0;
    int length;
    memset(result, 0, sizeof *result);
    um_xsk_raw_prepare(port, listen_address(config), peer_address(config), config->message_bytes);
    while ((length = receive_one(port, config->timeout_ns, &counter)) >= 0) {
        if (cpu_start_ns == 0)
            cpu_start_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        if (length == UM_RAW_END_BYTES) {
            result->end_marker_seen = true;
            break;
        }
        int error = send_one(port, (const uint8_t *)&counter, sizeof counter, config->message_bytes);
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
