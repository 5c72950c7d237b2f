#include <linux/sock_diag.h>
#include <linux/udp.h>
#include <stdlib.h>

#include "bench/raw_order.h"
#include "bench/raw_socket.h"
#include "bench/raw_udp.h"

#define GRO_BUFFER_BYTES 65536
#define GRO_CONTROL_BYTES CMSG_SPACE(sizeof(int))

typedef struct receiver {
    int fd;
    const um_raw_receive_config *config;
    um_raw_receive_result *result;
    size_t buffer_bytes;
    uint8_t *buffers;
    uint8_t *controls; /* batch_count x GRO_CONTROL_BYTES */
    struct mmsghdr *headers;
    struct iovec *parts;
    um_raw_order *order;
    int64_t cpu_start_ns;
} receiver;

int um_raw_open_receiver(uint32_t interface_ip, uint32_t group_ip, uint16_t group_port, bool gro, uint32_t buffer_bytes)
{
    int fd = um_raw_socket();
    if (fd < 0)
        return fd;
    int error = um_raw_force_buffer(fd, true, buffer_bytes);
    if (error == 0 && gro)
        error = um_raw_set_int(fd, IPPROTO_UDP, UDP_GRO, 1);
    if (error == 0)
        error = um_raw_bind(fd, group_ip, group_port);
    if (error == 0)
        error = um_raw_join(fd, group_ip, interface_ip);
    return error == 0 ? fd : um_raw_fail(fd, error);
}

static bool config_is_valid(const um_raw_receive_config *c)
{
    return c->message_bytes >= UM_RAW_COUNTER_BYTES && c->max_datagram_bytes >= c->message_bytes &&
           c->max_datagram_bytes <= UM_RAW_MAX_DATAGRAM_BYTES && c->batch_count > 0 &&
           c->batch_count <= UM_RAW_MAX_BATCH_COUNT && c->wait <= UM_RAW_WAIT_COALESCE && c->first_timeout_ns > 0 &&
           c->idle_timeout_ns > 0 && c->coalesce_ns >= 0 && c->coalesce_ns < UM_NS_PER_SECOND;
}

static void release(receiver *r)
{
    free(r->buffers);
    free(r->controls);
    free(r->headers);
    free(r->parts);
    free(r->order);
}

static int prepare(receiver *r)
{
    uint32_t batch = r->config->batch_count;
    r->buffer_bytes = r->config->gro ? GRO_BUFFER_BYTES : um_align_up(r->config->max_datagram_bytes, 64);
    r->buffers = malloc(batch * r->buffer_bytes);
    r->controls = malloc(batch * GRO_CONTROL_BYTES);
    r->headers = calloc(batch, sizeof *r->headers);
    r->parts = calloc(batch, sizeof *r->parts);
    r->order = malloc(sizeof *r->order);
    if (!r->buffers || !r->controls || !r->headers || !r->parts || !r->order)
        return -ENOMEM;
    um_raw_order_init(r->order);
    memset(r->buffers, 0, batch * r->buffer_bytes); /* take the page faults now, not during the run */
    for (uint32_t i = 0; i < batch; i++) {
        r->parts[i] = (struct iovec){r->buffers + i * r->buffer_bytes, r->buffer_bytes};
        r->headers[i].msg_hdr = (struct msghdr){.msg_iov = &r->parts[i], .msg_iovlen = 1};
        if (r->config->gro)
            r->headers[i].msg_hdr.msg_control = r->controls + i * GRO_CONTROL_BYTES;
    }
    return 0;
}

/* Returns the size of the datagrams coalesced into a buffer, or the length of a single one. */
static uint32_t segment_bytes(struct mmsghdr *header)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header->msg_hdr); c; c = CMSG_NXTHDR(&header->msg_hdr, c)) {
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
            int size;
            memcpy(&size, CMSG_DATA(c), sizeof size);
            return size > 0 ? (uint32_t)size : header->msg_len;
        }
    }
    return header->msg_len;
}

static void take_datagram(receiver *r, const uint8_t *data, uint32_t length)
{
    uint32_t stride = r->config->message_bytes;
    uint64_t count = 0;

    r->result->datagram_count++;
    r->result->byte_count += length;
    for (; length >= stride; data += stride, length -= stride, count++) {
        uint64_t counter;
        memcpy(&counter, data, sizeof counter);
        um_raw_order_note(r->order, counter);
    }
    r->result->message_count += count;
    r->result->malformed_count += length != 0;
}

/* Returns true if an end marker was among the datagrams of this buffer. */
static bool take_buffer(receiver *r, struct mmsghdr *header)
{
    const uint8_t *data = header->msg_hdr.msg_iov->iov_base;
    uint32_t left = header->msg_len;
    uint32_t segment = r->config->gro ? segment_bytes(header) : left;

    if (header->msg_hdr.msg_flags & MSG_TRUNC) {
        r->result->malformed_count++;
        return false;
    }
    while (left > 0) {
        uint32_t length = left < segment ? left : segment;
        if (length == UM_RAW_END_BYTES)
            return true;
        take_datagram(r, data, length);
        data += length;
        left -= length;
    }
    return false;
}

/* Calls recvmmsg once. Returns the number of filled buffers or a negative errno (-EAGAIN: none). */
static int receive_batch(receiver *r, int flags)
{
    if (r->config->gro) {
        for (uint32_t i = 0; i < r->config->batch_count; i++)
            r->headers[i].msg_hdr.msg_controllen = GRO_CONTROL_BYTES;
    }
    int count = recvmmsg(r->fd, r->headers, r->config->batch_count, flags, NULL);
    r->result->call_count++;
    return count >= 0 ? count : -errno;
}

/* Sleeps in the kernel until a datagram arrives or the socket's receive timeout expires. */
static int receive_blocking(receiver *r)
{
    return receive_batch(r, MSG_WAITFORONE);
}

static int receive_polling(receiver *r)
{
    const struct timespec pause = {.tv_nsec = r->config->coalesce_ns};
    int64_t idle_since_ns = 0;
    for (;;) {
        int count = receive_batch(r, MSG_DONTWAIT);
        if (count != -EAGAIN)
            return count;
        int64_t now_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
        if (idle_since_ns == 0)
            idle_since_ns = now_ns;
        if (now_ns - idle_since_ns >= r->config->idle_timeout_ns)
            return -EAGAIN;
        if (r->config->wait == UM_RAW_WAIT_COALESCE && nanosleep(&pause, NULL) != 0)
            return -errno;
    }
}

/* Returns true if the run is over. */
static bool take_batch(receiver *r, int count)
{
    um_raw_receive_result *result = r->result;
    uint64_t before = result->message_count;
    int64_t now_ns = um_raw_clock_ns(CLOCK_MONOTONIC);

    for (int i = 0; i < count && !result->end_marker_seen; i++)
        result->end_marker_seen = take_buffer(r, &r->headers[i]);
    if (result->message_count > before)
        result->last_ns = now_ns;
    if (before == 0 && result->message_count > 0) {
        result->first_ns = now_ns;
        result->first_batch_message_count = result->message_count;
    }
    return result->end_marker_seen;
}

static int receive_until_done(receiver *r)
{
    int error = um_raw_set_receive_timeout(r->fd, r->config->first_timeout_ns);
    if (error != 0)
        return error;
    int count = receive_blocking(r);
    if (count < 0)
        return count == -EAGAIN ? -ETIMEDOUT : count;
    r->cpu_start_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    error = um_raw_set_receive_timeout(r->fd, r->config->idle_timeout_ns);
    if (error != 0)
        return error;
    while (!take_batch(r, count)) {
        count = r->config->wait == UM_RAW_WAIT_BLOCK ? receive_blocking(r) : receive_polling(r);
        if (count < 0)
            return count == -EAGAIN ? 0 : count;
    }
    return 0;
}

static void conclude(receiver *r)
{
    uint32_t memory[SK_MEMINFO_VARS] = {0};
    socklen_t length = sizeof memory;
    um_raw_receive_result *result = r->result;

    if (r->cpu_start_ns != 0)
        result->cpu_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID) - r->cpu_start_ns;
    if (getsockopt(r->fd, SOL_SOCKET, SO_MEMINFO, memory, &length) == 0)
        result->socket_drop_count = memory[SK_MEMINFO_DROPS];
    result->lost_count = r->order->lost_count;
    result->out_of_order_count = r->order->out_of_order_count;
    result->duplicate_count = r->order->duplicate_count;
}

int um_raw_receive(int fd, const um_raw_receive_config *config, um_raw_receive_result *result)
{
    receiver r = {.fd = fd, .config = config, .result = result};
    memset(result, 0, sizeof *result);
    if (!config_is_valid(config))
        return -EINVAL;
    int error = prepare(&r);
    if (error == 0) {
        error = receive_until_done(&r);
        conclude(&r);
    }
    release(&r);
    return error;
}
