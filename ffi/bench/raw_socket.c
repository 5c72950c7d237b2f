#include "bench/raw_socket.h"

#include <unistd.h>

#include "bench/raw_udp.h"

int um_raw_set_int(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value) == 0 ? 0 : -errno;
}

int um_raw_set_receive_timeout(int fd, int64_t timeout_ns)
{
    int64_t timeout_us = (timeout_ns + 999) / 1000; /* 0 would mean forever */
    struct timeval timeout = {.tv_sec = timeout_us / 1000000, .tv_usec = timeout_us % 1000000};
    return setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0 ? 0 : -errno;
}

/* Without the privilege, the system's limit applies; um_raw_buffer_bytes returns the real size. */
int um_raw_force_buffer(int fd, bool receive, uint32_t buffer_bytes)
{
    int size = (int)(buffer_bytes > INT32_MAX / 2 ? INT32_MAX / 2 : buffer_bytes);
    int error = um_raw_set_int(fd, SOL_SOCKET, receive ? SO_RCVBUFFORCE : SO_SNDBUFFORCE, size);
    if (error == -EPERM)
        error = um_raw_set_int(fd, SOL_SOCKET, receive ? SO_RCVBUF : SO_SNDBUF, size);
    return error;
}

int um_raw_buffer_bytes(int fd, bool receive)
{
    int size = 0;
    socklen_t length = sizeof size;
    if (getsockopt(fd, SOL_SOCKET, receive ? SO_RCVBUF : SO_SNDBUF, &size, &length) != 0)
        return -errno;
    return size;
}

int um_raw_use_interface(int fd, uint32_t interface_ip)
{
    struct in_addr address = {.s_addr = htonl(interface_ip)};
    if (setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, sizeof address) != 0)
        return -errno;
    return um_raw_set_int(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 0);
}

int um_raw_join(int fd, uint32_t group_ip, uint32_t interface_ip)
{
    struct ip_mreq membership = {.imr_multiaddr.s_addr = htonl(group_ip), .imr_interface.s_addr = htonl(interface_ip)};
    if (!IN_MULTICAST(group_ip)) /* nothing to join for an address of this host */
        return 0;
    return setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof membership) == 0 ? 0 : -errno;
}

int um_raw_bind(int fd, uint32_t ip, uint16_t port)
{
    struct sockaddr_in address = um_raw_sockaddr(ip, port);
    int error = um_raw_set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (error == 0 && bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
        error = -errno;
    return error;
}

int um_raw_socket(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd >= 0 ? fd : -errno;
}

int um_raw_fail(int fd, int error)
{
    close(fd);
    return error;
}
