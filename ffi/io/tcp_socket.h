/* TCP sockets for LBT-TCP: non-blocking, closed on exec, and failing within a known time after the peer's host fails.
 * Internal to ffi/io.
 *
 * Threads: any. Errors: negative errno; options that the system refuses keep their values.
 */
#ifndef UM_IO_TCP_SOCKET_H
#define UM_IO_TCP_SOCKET_H

#include "core/foundation/address.h"

typedef struct um_tcp_socket_config {
    bool no_delay;
    uint8_t traffic_class;      /* IP_TOS; accepted connections have that of their listening socket */
    uint32_t send_buffer_bytes; /* 0: the system's default, which adapts */
    uint32_t receive_buffer_bytes;
    int64_t activity_timeout_ns; /* the connection fails if the peer's host acknowledges nothing for this time, with
                                    probes while it is idle; 0: the system's default, many minutes */
} um_tcp_socket_config;

/* Opens a listening socket at the address; port 0: any port, stored in *local. */
int um_tcp_listen(um_address *local, const um_tcp_socket_config *config, int backlog);
/* Returns the next connection, or -EAGAIN. */
int um_tcp_accept(int listen_fd, um_address *from);
/* Starts to connect from a local address; the socket becomes writable when that has succeeded or failed. */
int um_tcp_connect(um_address to, um_ip local_ip, const um_tcp_socket_config *config);
/* Returns the result of connecting: 0 or -errno. */
int um_tcp_connect_result(int fd);
void um_tcp_set(int fd, const um_tcp_socket_config *config);

#endif
