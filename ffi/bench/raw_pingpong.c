#include "bench/raw_pingpong.h"

#include "bench/raw_socket.h"

#define END_MARKER_COUNT 3

typedef struct socket_end {
    int fd;
    const um_raw_pingpong_config *config;
    uint8_t *buffer; /* space for message_bytes */
} socket_end;

/* Returns true if both addresses are unicast: the socket can be connected, and the kernel caches the route. */
static bool is_connected(const um_raw_pingpong_config *c)
{
    return !IN_MULTICAST(c->listen_ip) && !IN_MULTICAST(c->peer_ip);
}

static bool config_is_valid(const um_raw_pingpong_config *c)
{
    return c->message_bytes >= UM_RAW_COUNTER_BYTES && c->message_bytes <= UM_RAW_MAX_DATAGRAM_BYTES &&
           c->wait <= UM_RAW_WAIT_BUSY && c->timeout_ns > 0;
}

static int connect_to_peer(int fd, const um_raw_pingpong_config *config)
{
    struct sockaddr_in peer = um_raw_sockaddr(config->peer_ip, config->peer_port);
    return connect(fd, (struct sockaddr *)&peer, sizeof peer) == 0 ? 0 : -errno;
}

int um_raw_open_pingpong(const um_raw_pingpong_config *config)
{
    if (!config_is_valid(config))
        return -EINVAL;
    int fd = um_raw_socket();
    if (fd < 0)
        return fd;
    int error = um_raw_use_interface(fd, config->interface_ip);
    if (error == 0)
        error = um_raw_set_receive_timeout(fd, config->timeout_ns);
    if (error == 0)
        error = um_raw_bind(fd, config->listen_ip, config->listen_port);
    if (error == 0 && IN_MULTICAST(config->listen_ip))
        error = um_raw_join(fd, config->listen_ip, config->interface_ip);
    if (error == 0 && is_connected(config))
        error = connect_to_peer(fd, config);
    return error == 0 ? fd : um_raw_fail(fd, error);
}

static int send_to_peer(int fd, const um_raw_pingpong_config *config, const uint8_t *data, size_t length)
{
    struct sockaddr_in peer = um_raw_sockaddr(config->peer_ip, config->peer_port);
    const struct sockaddr *to = is_connected(config) ? NULL : (const struct sockaddr *)&peer;
    ssize_t sent;
    do {
        sent = sendto(fd, data, length, 0, to, to ? sizeof peer : 0);
    } while (sent < 0 && errno == ENOBUFS);
    return sent >= 0 ? 0 : -errno;
}

/* Returns the length of the next datagram, -EAGAIN after timeout_ns, or another negative errno. */
static int receive_one(int fd, const um_raw_pingpong_config *config, uint8_t *buffer, size_t capacity)
{
    if (config->wait == UM_RAW_WAIT_BLOCK) {
        ssize_t length = recv(fd, buffer, capacity, 0);
        return length >= 0 ? (int)length : -errno;
    }
    int64_t deadline_ns = um_raw_clock_ns(CLOCK_MONOTONIC) + config->timeout_ns;
    for (;;) {
        ssize_t length = recv(fd, buffer, capacity, MSG_DONTWAIT);
        if (length >= 0)
            return (int)length;
        if (errno != EAGAIN || um_raw_clock_ns(CLOCK_MONOTONIC) >= deadline_ns)
            return -errno;
    }
}

/* Implements um_raw_client. It polls while reaching the server, because a blocking receive has the socket's timeout. */
static int round_trip(void *client_end, bool is_reaching, uint64_t counter, um_raw_ping_result *result)
{
    const socket_end *end = client_end;
    um_raw_pingpong_config config = *end->config;
    if (is_reaching) {
        config.wait = UM_RAW_WAIT_BUSY;
        config.timeout_ns = UM_RAW_REACH_ATTEMPT_NS;
    }
    memcpy(end->buffer, &counter, sizeof counter);
    int error = send_to_peer(end->fd, &config, end->buffer, config.message_bytes);
    while (error == 0) {
        uint64_t answered = UINT64_MAX;
        int length = receive_one(end->fd, &config, end->buffer, config.message_bytes);
        if (length == -EAGAIN)
            return 0;
        if (length < 0)
            return length;
        if (length >= (int)sizeof answered)
            memcpy(&answered, end->buffer, sizeof answered);
        if (answered == counter)
            return 1;
        result->stale_count++;
    }
    return error;
}

static int send_end_markers(int fd, const um_raw_pingpong_config *config)
{
    const uint8_t marker[UM_RAW_END_BYTES] = {0};
    int error = 0;
    for (int i = 0; i < END_MARKER_COUNT && error == 0; i++)
        error = send_to_peer(fd, config, marker, sizeof marker);
    /* A server that has ended on the first marker refuses the others. */
    return error == -ECONNREFUSED ? 0 : error;
}

int um_raw_ping(int fd, const um_raw_pingpong_config *config, uint64_t warmup_count, uint64_t sample_count,
                int64_t duration_ns, uint64_t *samples_ns, um_raw_ping_result *result)
{
    uint8_t buffer[UM_RAW_MAX_DATAGRAM_BYTES] = {0};
    socket_end end = {fd, config, buffer};
    const um_raw_client client = {&end, round_trip};
    int error = um_raw_make_round_trips(&client, warmup_count, sample_count, duration_ns, samples_ns, result);
    return error != 0 ? error : send_end_markers(fd, config);
}

int um_raw_echo(int fd, const um_raw_pingpong_config *config, um_raw_echo_result *result)
{
    uint8_t buffer[UM_RAW_MAX_DATAGRAM_BYTES];
    int64_t cpu_start_ns = 0;
    int length;

    memset(result, 0, sizeof *result);
    while ((length = receive_one(fd, config, buffer, sizeof buffer)) >= 0) {
        if (cpu_start_ns == 0)
            cpu_start_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        if (length == UM_RAW_END_BYTES) {
            result->end_marker_seen = true;
            break;
        }
        int error = send_to_peer(fd, config, buffer, (size_t)length);
        if (error != 0)
            return error;
        result->echo_count++;
    }
    if (cpu_start_ns != 0)
        result->cpu_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns;
    if (length >= 0)
        return 0;
    if (length == -EAGAIN)
        return result->echo_count > 0 ? 0 : -ETIMEDOUT;
    return length;
}
