#include "io/tcp_socket.h"

#include <netinet/tcp.h>
#include <unistd.h>

#include "os/socket_address.h"

enum { PROBES = 3 };

static void set(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof value);
}

/* Probes of an idle connection are spread over the second half of the timeout. */
static void set_activity_timeout(int fd, int64_t timeout_ns)
{
    int64_t seconds = (timeout_ns + 999999999) / 1000000000;
    int idle = (int)(seconds / 2), interval = (int)(seconds / 2 / PROBES);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle > 0 ? idle : 1);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval > 0 ? interval : 1);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(timeout_ns / 1000000));
}

void um_tcp_set(int fd, const um_tcp_socket_config *config)
{
    if (config->no_delay)
        set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (config->traffic_class != 0)
        set(fd, IPPROTO_IP, IP_TOS, config->traffic_class);
    if (config->activity_timeout_ns > 0)
        set_activity_timeout(fd, config->activity_timeout_ns);
    if (config->send_buffer_bytes > 0)
        set(fd, SOL_SOCKET, SO_SNDBUF, (int)config->send_buffer_bytes);
    if (config->receive_buffer_bytes > 0)
        set(fd, SOL_SOCKET, SO_RCVBUF, (int)config->receive_buffer_bytes);
}

static int closed_with(int fd, int error)
{
    close(fd);
    return -error;
}

int um_tcp_listen(um_address *local, const um_tcp_socket_config *config, int backlog)
{
    um_socket_address name;
    socklen_t length = um_socket_address_set(&name, *local, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1); /* connections of an earlier session may still be closing on the port */
    um_tcp_set(fd, config);
    if (bind(fd, &name.any, length) != 0 || listen(fd, backlog) != 0 || getsockname(fd, &name.any, &length) != 0)
        return closed_with(fd, errno);
    local->port = um_socket_address_get(&name).port;
    return fd;
}

int um_tcp_accept(int listen_fd, um_address *from)
{
    um_socket_address name = {.any.sa_family = AF_UNSPEC};
    socklen_t length = sizeof name;
    int fd = accept4(listen_fd, &name.any, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return -errno;
    *from = um_socket_address_get(&name);
    return fd;
}

int um_tcp_connect(um_address to, um_ip local_ip, const um_tcp_socket_config *config)
{
    um_socket_address name, local;
    socklen_t length = um_socket_address_set(&name, to, 0);
    socklen_t local_length = um_socket_address_set(&local, (um_address){local_ip, 0}, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    um_tcp_set(fd, config);
    /* Any port, chosen when the peer is known: many connections may then share one. */
    set(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (bind(fd, &local.any, local_length) != 0)
        return closed_with(fd, errno);
    if (connect(fd, &name.any, length) != 0 && errno != EINPROGRESS)
        return closed_with(fd, errno);
    return fd;
}

int um_tcp_connect_result(int fd)
{
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        return -errno;
    return -error;
}
