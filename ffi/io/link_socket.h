/* The kernel-socket link (W6): UDP multicast through sendmmsg / recvmmsg, with segmentation (UDP GSO) and
 * coalescing (UDP GRO) by the kernel if it supports them. Datagrams carry the don't-fragment bit (W4), unless the
 * configuration lets IP fragment them.
 *
 * Threads: a sending link belongs to the holder of its session's sender lock, a receiving one to the holder of the
 * context lock. System calls: socket, bind, setsockopt, sendmsg, sendmmsg, recvmmsg, ioctl, close.
 */
#ifndef UM_IO_LINK_SOCKET_H
#define UM_IO_LINK_SOCKET_H

#include "core/foundation/counters.h"
#include "core/foundation/link.h"
#include "os/socket_address.h"

enum {
    UM_RECEIVE_BATCH_MAX = 32,
    UM_RECEIVE_BUFFER_BYTES = 65536,
    /* Not a power of two: buffers a power of two apart would compete for the same cache sets. */
    UM_RECEIVE_STRIDE_BYTES = UM_RECEIVE_BUFFER_BYTES + 1472,
};

typedef struct um_socket_config {
    char interface[16];
    um_ip interface_ip;         /* its family is that of the sockets */
    uint32_t ttl;               /* hop limit of datagrams to groups */
    uint8_t traffic_class;      /* IP_TOS, IPV6_TCLASS */
    uint32_t send_buffer_bytes; /* 0: the system's default */
    uint32_t receive_buffer_bytes;
    bool gso;
    bool gro;
    bool is_source_specific; /* groups are joined per source (RFC 4607) */
    bool timestamps;         /* kernel receive times instead of one clock reading per batch */
    bool fragments;          /* IP may fragment sent datagrams, which then are not segmented by the kernel */
} um_socket_config;

/* If opening fails, `failed_step` names the step for the error text. */
typedef struct um_socket_link {
    um_link base;
    int fd;
    bool is_ipv6;
    uint32_t interface_index; /* of the interface when the socket was opened or joined its group; 0: it was gone */
    um_address local;         /* multicast group and port, or the bound unicast address */
    bool gso;
    bool timestamps;
    int mtu_discover; /* IP_MTU_DISCOVER, IPV6_MTU_DISCOVER of sent datagrams, except those of send_oversize */
    uint32_t granted_send_bytes; /* socket buffers as the kernel granted them */
    uint32_t granted_receive_bytes;
    uint64_t drops; /* SO_RXQ_OVFL as last read */
    const char *failed_step;
    um_link_counters counters;
} um_socket_link;

/* Opens a unicast socket at interface_ip, for sending to groups of its family and for NAKs. port 0: any. 0 or -errno.
 */
int um_socket_open_unicast(um_socket_link *link, const um_socket_config *config, uint16_t port);

/* Opens a unicast socket that also receives a session's data. port 0: any. 0 or -errno. */
int um_socket_open_receiver(um_socket_link *link, const um_socket_config *config, uint16_t port);

/* Opens a socket that receives one group's datagrams to one port, joined on the interface. Source-specific: receives
 * nothing until um_socket_set_source. 0 or -errno. */
int um_socket_open_group(um_socket_link *link, const um_socket_config *config, um_address group);

/* Joins or leaves the group of a source-specific socket for one source. 0 or -errno. */
int um_socket_set_source(um_socket_link *link, const um_socket_config *config, um_ip source_ip, bool is_joined);

/* Joins the group again after the interface was made again or renamed. Does nothing if the interface is the same one,
 * unless it `has_moved`: to another address, or to another network namespace and back. A source-specific socket then
 * needs um_socket_set_source for each source. 0 or -errno. */
int um_socket_rejoin(um_socket_link *link, const um_socket_config *config, bool has_moved);
/* Sends to groups by the interface as it is now. 0 or -errno. */
int um_socket_set_interface(um_socket_link *link, const um_socket_config *config);

/* Leaves the group and closes. */
void um_socket_close(um_socket_link *link);

/* Buffers for one receive call, shared by the sockets of a context. */
typedef struct um_receive_ring {
    uint8_t *memory; /* UM_RECEIVE_BATCH_MAX * UM_RECEIVE_STRIDE_BYTES */
    struct mmsghdr headers[UM_RECEIVE_BATCH_MAX];
    struct iovec vectors[UM_RECEIVE_BATCH_MAX];
    um_socket_address addresses[UM_RECEIVE_BATCH_MAX];
    uint8_t control[UM_RECEIVE_BATCH_MAX][128];
    um_rx batch[UM_RECEIVE_BATCH_MAX];
} um_receive_ring;

void um_receive_ring_init(um_receive_ring *ring, uint8_t *memory);

/* Receives available datagrams without waiting, into ring->batch. Returns how many, or -errno. */
int um_socket_receive(um_socket_link *link, um_receive_ring *ring, int max);

/* Returns the interface's current MTU, or -errno. */
int um_socket_interface_mtu(int fd, const char *interface);

#endif
