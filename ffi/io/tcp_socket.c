#include "io/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PROBES = 3 };

static void set(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof value);
}

static struct sockaddr_in socket_address(um_address address)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(address.port), .sin_addr.s_addr = htonl(address.ip)};
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
    struct sockaddr_in name = socket_address(*local);
    socklen_t length = sizeof name;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1); /* connections of an earlier session may still be closing on the port */
    um_tcp_set(fd, config);
    if (bind(fd, (struct sockaddr *)&name, sizeof name) != 0 || listen(fd, backlog) != 0 ||
        getsockname(fd, (struct sockaddr *)&name, &length) != 0)
        return closed_with(fd, errno);
    local->port = ntohs(name.sin_port);
    return fd;
}

int um_tcp_accept(int listen_fd, um_address *from)
{
    struct sockaddr_in name = {0};
    socklen_t length = sizeof name;
    int fd = accept4(listen_fd, (struct sockaddr *)&name, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return -errno;
    *from = (um_address){ntohl(name.sin_addr.s_addr), ntohs(name.sin_port)};
    return fd;
}

int um_tcp_connect(um_address to, uint32_t local_ip, const um_tcp_socket_config *config)
{
    struct sockaddr_in name = socket_address(to), local = socket_address((um_address){local_ip, 0});
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    um_tcp_set(fd, config);
    /* Any port, chosen when the peer is known: many connections may then share one. */
    set(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (bind(fd, (struct sockaddr *)&local, sizeof local) != 0)
        return closed_with(fd, errno);
    if (connect(fd, (struct sockaddr *)&name, sizeof name) != 0 && errno != EINPROGRESS)
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
