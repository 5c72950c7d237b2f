/* TCP sockets as LBT-TCP uses them: never blocking, closed on exec, and dead after a known time when the peer's host
 * is. Internal to ffi/io.
 *
 * Threads: any. Errors: negative errno; what the system refuses to set stays as it is.
 */
#ifndef UM_IO_TCP_SOCKET_H
#define UM_IO_TCP_SOCKET_H

#include "core/foundation/base.h"

typedef struct um_tcp_socket_config {
    bool no_delay;
    uint32_t send_buffer_bytes; /* 0: the system's, which adapts */
    uint32_t receive_buffer_bytes;
    int64_t activity_timeout_ns; /* the connection fails when the peer's host acknowledges nothing for so long, probed
                                    while it is idle; 0: the system's times, of many minutes */
} um_tcp_socket_config;

/* A listening socket at the address; port 0: any, stored in *local. */
int um_tcp_listen(um_address *local, const um_tcp_socket_config *config, int backlog);
/* The next connection, or -EAGAIN. */
int um_tcp_accept(int listen_fd, um_address *from);
/* Begins to connect from a local address: the socket is writable when that is over. */
int um_tcp_connect(um_address to, uint32_t local_ip, const um_tcp_socket_config *config);
/* How connecting ended: 0 or -errno. */
int um_tcp_connect_result(int fd);
void um_tcp_set(int fd, const um_tcp_socket_config *config);

#endif
