#include <poll.h>
#include <time.h>

#include "bench/raw_order.h"
#include "bench/raw_socket.h"
#include "xsk/raw_xdp.h"

typedef struct receiver {
    um_xsk_rings *rings;
    um_xsk_queue *queue;
    const um_raw_receive_config *config;
    um_raw_receive_result *result;
    um_raw_order order;
    int64_t cpu_start_ns;
    bool is_inside; /* the next descriptor continues a datagram that is already counted */
} receiver;

static bool config_is_valid(const um_raw_receive_config *c)
{
    return c->message_bytes >= UM_RAW_COUNTER_BYTES && c->batch_count > 0 && c->wait <= UM_RAW_WAIT_COALESCE &&
           c->first_timeout_ns > 0 && c->idle_timeout_ns > 0 && c->coalesce_ns >= 0 &&
           c->coalesce_ns < UM_NS_PER_SECOND;
}

static void take_message(receiver *r, const uint8_t *data, uint32_t length)
{
    uint64_t counter;
    if (length == UM_RAW_END_BYTES) {
        r->result->end_marker_seen = true;
        return;
    }
    r->result->datagram_count++;
    r->result->byte_count += length;
    if (length != r->config->message_bytes) {
        r->result->malformed_count++;
        return;
    }
    memcpy(&counter, data, sizeof counter);
    um_raw_order_note(&r->order, counter);
    r->result->message_count++;
}

/* Returns how many descriptors were taken. */
static uint32_t take_batch(receiver *r)
{
    uint32_t at = 0, count = um_xsk_queue_take(r->queue, r->config->batch_count, &at);
    if (count == 0)
        return 0;
    uint64_t before = r->result->message_count;
    int64_t now_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
    for (uint32_t i = 0; i < count && !r->result->end_marker_seen; i++) {
        uint32_t length;
        const uint8_t *data = um_xsk_raw_payload(r->queue, at + i, &length);
        if (!r->is_inside)
            take_message(r, data, length);
        r->is_inside = um_xsk_raw_is_continued(r->queue, at + i);
    }
    um_xsk_queue_release(r->queue);
    if (r->result->message_count > before)
        r->result->last_ns = now_ns;
    if (before == 0 && r->result->message_count > 0) {
        r->result->first_ns = now_ns;
        r->result->first_batch_message_count = r->result->message_count;
        r->cpu_start_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    }
    return count;
}

static void wait_for_more(receiver *r, int64_t left_ns)
{
    const struct timespec pause = {.tv_nsec = r->config->coalesce_ns};
    struct pollfd descriptor = {.fd = r->queue->fd, .events = POLLIN};
    um_xsk_rings_poll(r->rings, 0);
    r->result->call_count++;
    if (r->config->wait == UM_RAW_WAIT_BLOCK)
        poll(&descriptor, 1, (int)(left_ns / 1000000) + 1);
    else if (r->config->wait == UM_RAW_WAIT_COALESCE)
        nanosleep(&pause, NULL);
}

static int receive_until_done(receiver *r)
{
    int64_t received_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
    while (!r->result->end_marker_seen) {
        if (take_batch(r) > 0) {
            received_ns = r->result->last_ns;
            continue;
        }
        bool has_started = r->result->message_count > 0;
        int64_t timeout_ns = has_started ? r->config->idle_timeout_ns : r->config->first_timeout_ns;
        int64_t left_ns = received_ns + timeout_ns - um_raw_clock_ns(CLOCK_MONOTONIC);
        if (left_ns <= 0)
            return has_started ? 0 : -ETIMEDOUT;
        wait_for_more(r, left_ns);
    }
    return 0;
}

int um_xsk_raw_receive(um_xsk_rings *rings, const um_raw_receive_config *config, um_raw_receive_result *result)
{
    receiver r = {.rings = rings, .queue = um_xsk_rings_queue(rings, 0), .config = config, .result = result};
    um_link_counters counters;
    memset(result, 0, sizeof *result);
    if (!config_is_valid(config))
        return -EINVAL;
    um_raw_order_init(&r.order);
    int error = receive_until_done(&r);
    if (r.cpu_start_ns != 0)
        result->cpu_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID) - r.cpu_start_ns;
    um_link_counters_reset(&counters);
    um_xsk_rings_base(rings)->ops->add_counters(um_xsk_rings_base(rings), &counters);
    result->socket_drop_count = counters.receive_drops;
    result->lost_count = r.order.lost_count;
    result->out_of_order_count = r.order.out_of_order_count;
    result->duplicate_count = r.order.duplicate_count;
    return error;
}
