/* The control sockets of LBT-IPC (core/ipc/ipc_control.h): SOCK_SEQPACKET sockets with a name in the network
 * namespace's abstract name space, which needs no directory and leaves nothing behind. Internal to ffi/io.
 *
 * Every call is non-blocking by itself (MSG_DONTWAIT): a peer that shares no open file description with us cannot make
 * one wait. Threads: any. Errors: negative errno.
 */
#ifndef UM_IO_IPC_SOCKET_H
#define UM_IO_IPC_SOCKET_H

#include "core/ipc/ipc_control.h"

/* The descriptors of a WELCOME. Before version 4 it has no eventfds. */
enum um_ipc_descriptor {
    UM_IPC_LOG,
    UM_IPC_PAGE,
    UM_IPC_WAKES_RECEIVER, /* eventfd */
    UM_IPC_WAKES_SOURCE,   /* eventfd */
    UM_IPC_DESCRIPTORS,
};

/* Listens for the receivers of a session. -EADDRINUSE if another process does. */
int um_ipc_listen(uint32_t session_id, uint16_t transport_id);
/* The process at the other end, as the kernel noted it when the process connected, or listened. */
typedef struct um_ipc_peer {
    uint32_t process_id; /* 0: it has none in this process' namespace */
    uint32_t user_id;
} um_ipc_peer;
/* Returns the next connection, or -EAGAIN; stores who connected. */
int um_ipc_accept(int listen_fd, um_ipc_peer *peer);
/* Connects to the source of a session. -ECONNREFUSED: no process listens; -EAGAIN: try again later. */
int um_ipc_connect(uint32_t session_id, uint16_t transport_id);
/* Returns the process at the other end of a connection. */
um_ipc_peer um_ipc_peer_of(int fd);
/* Returns true if a process of this user may share eventfds with the peer: it is of the same user and visible, so that
 * it could stop the process in any case. */
bool um_ipc_can_share(const um_ipc_peer *peer, uint32_t user_id);

/* Sends one message, with `count` descriptors, at most UM_IPC_DESCRIPTORS. 0, or -EAGAIN or another -errno. */
int um_ipc_send(int fd, const um_ipc_control *message, const int *fds, uint32_t count);
/* Receives one message. 1; 0: the peer closed; -EAGAIN: none; -EPROTO: no message of the protocol; or another -errno.
 * fds: stores the descriptors of a WELCOME, which the caller then owns, and -1 where there is none; if more come, all
 * are closed and the message is -EPROTO. NULL: descriptors are refused by the kernel. */
int um_ipc_receive(int fd, um_ipc_control *message, int *fds);

#endif
