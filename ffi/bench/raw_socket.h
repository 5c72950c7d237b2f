/* Small helpers shared by the raw baselines: clocks and socket options. Internal to ffi/bench. */
#ifndef UM_BENCH_RAW_SOCKET_H
#define UM_BENCH_RAW_SOCKET_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include "core/foundation/base.h"

#define UM_NS_PER_SECOND 1000000000LL

static inline int64_t um_raw_clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * UM_NS_PER_SECOND + t.tv_nsec;
}

static inline struct sockaddr_in um_raw_sockaddr(uint32_t ip, uint16_t port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ip)};
}

/* Each returns 0 or a negative errno. */
int um_raw_set_int(int fd, int level, int option, int value);
int um_raw_set_receive_timeout(int fd, int64_t timeout_ns);
int um_raw_force_buffer(int fd, bool receive, uint32_t buffer_bytes);
int um_raw_use_interface(int fd, uint32_t interface_ip);
int um_raw_join(int fd, uint32_t group_ip, uint32_t interface_ip);
int um_raw_bind(int fd, uint32_t ip, uint16_t port);

/* A UDP socket, closed on exec. */
int um_raw_socket(void);

/* Closes fd and returns `error`, for the last statement of an open function. */
int um_raw_fail(int fd, int error);

#endif
