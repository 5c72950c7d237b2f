/* Raw kernel-socket baselines: the minimum that a program does to send counted messages by multicast UDP. No
 * reliability, no topics, no batching policy; the costs of the stack are measured against these.
 *
 * Every message starts with an 8-byte counter in host byte order (both ends run on one host); the rest is
 * filler that is written once. A datagram holds whole messages and nothing else, so that a datagram of
 * UM_RAW_END_BYTES cannot be one and marks the end.
 *
 * Addresses and ports are in host byte order. An open function returns a socket the caller owns and closes
 * with close(2), or a negative errno. A run function uses one socket on one thread, blocks until its time,
 * count or timeout is reached, and returns 0 or a negative errno (-EINTR when a signal arrived); it fills
 * *result in either case. Its buffers live for the call only.
 */
#ifndef UM_BENCH_RAW_UDP_H
#define UM_BENCH_RAW_UDP_H

#include "core/foundation/base.h"

#define UM_RAW_COUNTER_BYTES 8
#define UM_RAW_END_BYTES 4
#define UM_RAW_MAX_DATAGRAM_BYTES 65507
#define UM_RAW_MAX_SEGMENT_COUNT 64 /* accepted by every kernel with UDP_SEGMENT */
#define UM_RAW_MAX_BATCH_COUNT 1024

/* How a receiver waits when its socket is empty. */
enum um_raw_wait {
    UM_RAW_WAIT_BLOCK = 0,    /* sleeps in the kernel until a datagram arrives */
    UM_RAW_WAIT_BUSY = 1,     /* polls again at once */
    UM_RAW_WAIT_COALESCE = 2, /* sleeps coalesce_ns, so that the sender does not pay for a wake-up each time */
};

typedef struct um_raw_send_config {
    uint32_t group_ip;
    uint16_t group_port;
    uint32_t message_bytes;
    uint32_t messages_per_datagram_count;
    uint32_t segments_per_send_count; /* > 1: datagrams sent as one UDP_SEGMENT super-datagram */
    uint32_t batch_count;             /* sends per sendmmsg */
    int64_t duration_ns;
    uint64_t max_message_count;        /* 0: bounded by duration_ns alone */
    uint64_t pace_messages_per_second; /* 0: as fast as the kernel accepts them */
} um_raw_send_config;

typedef struct um_raw_send_result {
    uint64_t message_count;
    uint64_t datagram_count;
    uint64_t byte_count; /* UDP payload */
    uint64_t call_count;
    uint64_t retry_count; /* the kernel had no buffer (ENOBUFS) and the call was repeated */
    int64_t elapsed_ns;
    int64_t cpu_ns; /* of the calling thread, includes the whole path through a veth pair */
} um_raw_send_result;

typedef struct um_raw_receive_config {
    uint32_t message_bytes;
    uint32_t max_datagram_bytes; /* longer ones are truncated by the kernel and counted as malformed */
    uint32_t batch_count;        /* buffers per recvmmsg */
    uint32_t wait;               /* enum um_raw_wait */
    bool gro;                    /* as when opening the socket: buffers hold coalesced datagrams */
    int64_t coalesce_ns;
    int64_t first_timeout_ns; /* until the first datagram; then -ETIMEDOUT */
    int64_t idle_timeout_ns;  /* between datagrams; then the run ends without an end marker */
} um_raw_receive_config;

typedef struct um_raw_receive_result {
    uint64_t message_count;
    uint64_t datagram_count;
    uint64_t byte_count;
    uint64_t call_count;
    uint64_t first_batch_message_count; /* arrived at first_ns: excluded from a rate over (first_ns, last_ns] */
    uint64_t lost_count;                /* below the highest counter seen */
    uint64_t out_of_order_count;
    uint64_t duplicate_count;
    uint64_t malformed_count;   /* datagrams that do not hold whole messages */
    uint64_t socket_drop_count; /* dropped by the kernel at this socket */
    int64_t first_ns;           /* CLOCK_MONOTONIC */
    int64_t last_ns;
    int64_t cpu_ns; /* of the calling thread, since the first datagram */
    bool end_marker_seen;
} um_raw_receive_result;

/* segment_bytes: 0, or the datagram size for UDP_SEGMENT. With CAP_NET_ADMIN, the buffer size may exceed the system's
 * limit. */
int um_raw_open_sender(uint32_t interface_ip, uint32_t segment_bytes, uint32_t buffer_bytes);

/* The socket has joined the group on return: datagrams sent from then on are received. */
int um_raw_open_receiver(uint32_t interface_ip, uint32_t group_ip, uint16_t group_port, bool gro,
                         uint32_t buffer_bytes);

/* Returns the real size of the receive buffer (or send buffer), or a negative errno. */
int um_raw_buffer_bytes(int fd, bool receive);

/* Ends with a few end markers. Returns -EINVAL for sizes out of range, else the errno of sendmmsg. */
int um_raw_send(int fd, const um_raw_send_config *config, um_raw_send_result *result);

int um_raw_receive(int fd, const um_raw_receive_config *config, um_raw_receive_result *result);

#endif
