/* Datagrams of topic resolution in batches: a resolution daemon sends each relayed datagram to many addresses, and
 * contexts and daemons receive many datagrams per call.
 *
 * Threads: one at a time per socket. System calls: sendmmsg, recvmmsg, poll. Memory: the caller's; nothing is kept.
 */
#ifndef UM_IO_DATAGRAM_BATCH_H
#define UM_IO_DATAGRAM_BATCH_H

#include "core/foundation/address.h"

enum { UM_DATAGRAM_BATCH_MAX = 64 };

/* Sends `data` by the UDP socket to `count` addresses, except the one at index `except` (any other number: to all).
 * Waits up to 10 ms for space in the send buffer, again after each progress. Returns how many were sent; datagrams that
 * could not be sent, because of their address or for lack of space, are skipped. */
uint32_t um_datagram_fan_out(int fd, const uint8_t *data, uint32_t bytes, const um_address *to, uint32_t count,
                             uint32_t except);

/* The sender and the length of a received datagram. */
typedef struct um_received_datagram {
    um_address source;
    uint32_t bytes;
} um_received_datagram;

/* Receives available datagrams of a UDP socket without waiting, `stride` bytes apart in `buffer`, which has space for
 * `count`, at most UM_DATAGRAM_BATCH_MAX. Returns how many, or -errno if the first could not be received (-EAGAIN:
 * there is none). A datagram longer than `stride` is truncated. */
int um_datagram_receive(int fd, uint8_t *buffer, uint32_t stride, um_received_datagram *received, uint32_t count);

#endif
