#include <time.h>

#include "bench/raw_socket.h"
#include "xsk/raw_xdp.h"

enum { END_MARKER_COUNT = 8, END_MARKER_GAP_NS = 2000000 };

typedef struct sender {
    um_xsk_rings *rings;
    um_xsk_queue *queue;
    const um_raw_send_config *config;
    um_raw_send_result *result;
} sender;

static bool config_is_valid(const um_raw_send_config *c)
{
    return c->message_bytes >= UM_RAW_COUNTER_BYTES && c->messages_per_datagram_count == 1 &&
           c->segments_per_send_count == 1 && c->pace_messages_per_second == 0 && c->batch_count > 0 &&
           c->batch_count <= UM_RAW_MAX_BATCH_COUNT && c->duration_ns > 0;
}

/* Puts a batch into the ring as far as it fits, and makes the kernel send it. */
static int send_batch(sender *s, uint64_t end)
{
    uint64_t counter = s->result->message_count;
    uint32_t put = 0, descriptors = 0;
    um_xsk_queue_reclaim(s->queue);
    while (put < s->config->batch_count && counter < end) {
        uint32_t frames = um_xsk_raw_put(s->queue, (const uint8_t *)&counter, sizeof counter, s->config->message_bytes);
        if (frames == 0)
            break;
        descriptors += frames;
        put++;
        counter++;
    }
    xsk_ring_prod__submit(&s->queue->send, descriptors);
    s->result->call_count++;
    s->result->retry_count += put == 0;
    s->result->message_count += put;
    s->result->datagram_count += put;
    s->result->byte_count += (uint64_t)put * s->config->message_bytes;
    return um_xsk_rings_kick(s->rings, 0);
}

static int send_until_done(sender *s)
{
    uint64_t end = s->config->max_message_count ? s->config->max_message_count : UINT64_MAX;
    int64_t start_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
    int64_t cpu_start_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    int error = 0;
    while (error == 0 && s->result->message_count < end &&
           um_raw_clock_ns(CLOCK_MONOTONIC) - start_ns < s->config->duration_ns)
        error = send_batch(s, end);
    s->result->elapsed_ns = um_raw_clock_ns(CLOCK_MONOTONIC) - start_ns;
    s->result->cpu_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns;
    return error;
}

static int send_end_markers(sender *s, um_address from, um_address to)
{
    const struct timespec gap = {.tv_nsec = END_MARKER_GAP_NS};
    const uint8_t marker[UM_RAW_END_BYTES] = {0};
    int error = 0;
    for (int i = 0; i < END_MARKER_COUNT && error == 0; i++) {
        um_xsk_queue_reclaim(s->queue);
        if (i == 0)
            um_xsk_raw_prepare(s->rings, from, to, sizeof marker);
        xsk_ring_prod__submit(&s->queue->send, um_xsk_raw_put(s->queue, marker, sizeof marker, sizeof marker));
        error = um_xsk_rings_kick(s->rings, 0);
        nanosleep(&gap, NULL);
    }
    return error;
}

int um_xsk_raw_send(um_xsk_rings *rings, uint32_t interface_ip, const um_raw_send_config *config,
                    um_raw_send_result *result)
{
    sender s = {.rings = rings, .queue = um_xsk_rings_queue(rings, 0), .config = config, .result = result};
    um_address from = um_address_of_v4(interface_ip, config->group_port);
    um_address to = um_address_of_v4(config->group_ip, config->group_port);
    memset(result, 0, sizeof *result);
    if (!config_is_valid(config) || config->message_bytes > um_xsk_queue_datagram_max(s.queue))
        return -EINVAL;
    um_xsk_raw_prepare(rings, from, to, config->message_bytes);
    int error = send_until_done(&s);
    return error == 0 ? send_end_markers(&s, from, to) : error;
}
