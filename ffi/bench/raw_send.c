#include <linux/udp.h>
#include <stdlib.h>

#include "bench/raw_order.h"
#include "bench/raw_socket.h"
#include "bench/raw_udp.h"

/* Enough for one to arrive in spite of a full receive buffer, once the receiver has caught up. */
#define END_MARKER_COUNT 8
#define END_MARKER_GAP_NS 2000000L

/* A batch of sends whose buffers are filled once; later only their counters change. */
typedef struct sender {
    int fd;
    const um_raw_send_config *config;
    um_raw_send_result *result;
    struct sockaddr_in group;
    uint32_t messages_per_send_count;
    size_t send_bytes;
    uint8_t *buffers; /* batch_count x send_bytes */
    struct mmsghdr *headers;
    struct iovec *parts;
} sender;

int um_raw_open_sender(uint32_t interface_ip, uint32_t segment_bytes, uint32_t buffer_bytes)
{
    int fd = um_raw_socket();
    if (fd < 0)
        return fd;
    int error = um_raw_use_interface(fd, interface_ip);
    if (error == 0)
        error = um_raw_force_buffer(fd, false, buffer_bytes);
    if (error == 0 && segment_bytes > 0)
        error = um_raw_set_int(fd, IPPROTO_UDP, UDP_SEGMENT, (int)segment_bytes);
    return error == 0 ? fd : um_raw_fail(fd, error);
}

static bool config_is_valid(const um_raw_send_config *c)
{
    uint64_t datagram_bytes = (uint64_t)c->message_bytes * c->messages_per_datagram_count;
    return c->message_bytes >= UM_RAW_COUNTER_BYTES && c->messages_per_datagram_count > 0 &&
           c->segments_per_send_count > 0 && c->segments_per_send_count <= UM_RAW_MAX_SEGMENT_COUNT &&
           datagram_bytes * c->segments_per_send_count <= UM_RAW_MAX_DATAGRAM_BYTES && c->batch_count > 0 &&
           c->batch_count <= UM_RAW_MAX_BATCH_COUNT && c->duration_ns > 0;
}

static void release(sender *s)
{
    free(s->buffers);
    free(s->headers);
    free(s->parts);
}

static int prepare(sender *s)
{
    uint32_t batch = s->config->batch_count;
    s->messages_per_send_count = s->config->messages_per_datagram_count * s->config->segments_per_send_count;
    s->send_bytes = (size_t)s->messages_per_send_count * s->config->message_bytes;
    s->group = um_raw_sockaddr(s->config->group_ip, s->config->group_port);
    s->buffers = malloc(batch * s->send_bytes);
    s->headers = calloc(batch, sizeof *s->headers);
    s->parts = calloc(batch, sizeof *s->parts);
    if (!s->buffers || !s->headers || !s->parts)
        return -ENOMEM;
    memset(s->buffers, 0x5a, batch * s->send_bytes);
    for (uint32_t i = 0; i < batch; i++) {
        s->parts[i].iov_base = s->buffers + i * s->send_bytes;
        s->headers[i].msg_hdr = (struct msghdr){
            .msg_name = &s->group, .msg_namelen = sizeof s->group, .msg_iov = &s->parts[i], .msg_iovlen = 1};
    }
    return 0;
}

/* Stamps the counters of the next batch and returns its number of sends (the last may be short). */
static uint32_t stamp(sender *s)
{
    uint64_t counter = s->result->message_count;
    uint64_t end = s->config->max_message_count ? s->config->max_message_count : UINT64_MAX;
    uint32_t stride = s->config->message_bytes;
    uint32_t used = 0;

    while (used < s->config->batch_count && counter < end) {
        uint64_t left = end - counter;
        uint32_t count = left < s->messages_per_send_count ? (uint32_t)left : s->messages_per_send_count;
        um_raw_order_stamp(s->parts[used].iov_base, stride, count, counter);
        counter += count;
        s->parts[used++].iov_len = (size_t)count * stride;
    }
    return used;
}

static void account(sender *s, uint32_t first, uint32_t count)
{
    uint32_t datagram_bytes = s->config->message_bytes * s->config->messages_per_datagram_count;
    for (uint32_t i = first; i < first + count; i++) {
        size_t bytes = s->parts[i].iov_len;
        s->result->byte_count += bytes;
        s->result->message_count += bytes / s->config->message_bytes;
        s->result->datagram_count += (bytes + datagram_bytes - 1) / datagram_bytes;
    }
}

/* Sends the whole batch in order, unless the deadline passes while the kernel has no buffers. */
static int send_batch(sender *s, uint32_t count, int64_t deadline_ns)
{
    uint32_t done = 0;
    while (done < count) {
        int sent = sendmmsg(s->fd, s->headers + done, count - done, 0);
        s->result->call_count++;
        if (sent > 0) {
            account(s, done, (uint32_t)sent);
            done += (uint32_t)sent;
        } else if (errno == ENOBUFS || errno == EAGAIN) {
            s->result->retry_count++;
            if (um_raw_clock_ns(CLOCK_MONOTONIC) >= deadline_ns)
                return 0;
        } else {
            return -errno;
        }
    }
    return 0;
}

/* Spins: a sleep would be coarser than the gap between two batches. Returns the current time. */
static int64_t wait_for_turn(const sender *s, int64_t start_ns, int64_t deadline_ns)
{
    uint64_t pace = s->config->pace_messages_per_second;
    int64_t due_ns = start_ns;
    if (pace > 0)
        due_ns += (int64_t)((double)s->result->message_count * (double)UM_NS_PER_SECOND / (double)pace);
    int64_t now_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
    while (now_ns < due_ns && now_ns < deadline_ns)
        now_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
    return now_ns;
}

static int send_until_done(sender *s)
{
    int64_t start_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
    int64_t cpu_start_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    int64_t deadline_ns = start_ns + s->config->duration_ns;
    int error = 0;

    while (error == 0 && wait_for_turn(s, start_ns, deadline_ns) < deadline_ns) {
        uint32_t count = stamp(s);
        if (count == 0)
            break;
        error = send_batch(s, count, deadline_ns);
    }
    s->result->elapsed_ns = um_raw_clock_ns(CLOCK_MONOTONIC) - start_ns;
    s->result->cpu_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns;
    return error;
}

static int send_end_markers(const sender *s)
{
    const uint8_t marker[UM_RAW_END_BYTES] = {0};
    const struct timespec gap = {.tv_nsec = END_MARKER_GAP_NS};
    for (int i = 0; i < END_MARKER_COUNT; i++) {
        ssize_t sent = sendto(s->fd, marker, sizeof marker, 0, (const struct sockaddr *)&s->group, sizeof s->group);
        if (sent < 0 && errno != ENOBUFS && errno != EAGAIN)
            return -errno;
        nanosleep(&gap, NULL);
    }
    return 0;
}

int um_raw_send(int fd, const um_raw_send_config *config, um_raw_send_result *result)
{
    sender s = {.fd = fd, .config = config, .result = result};
    memset(result, 0, sizeof *result);
    if (!config_is_valid(config))
        return -EINVAL;
    int error = prepare(&s);
    if (error == 0)
        error = send_until_done(&s);
    if (error == 0)
        error = send_end_markers(&s);
    release(&s);
    return error;
}
