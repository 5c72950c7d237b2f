/* Datagrams of topic resolution in batches: one to many addresses, which is what a resolution daemon does with
 * everything it relays, and many at once from a socket, which is how contexts and daemons receive.
 *
 * Threads: one at a time for a socket. System calls: sendmmsg, recvmmsg, poll. Memory: the caller's; nothing is kept.
 */
#ifndef UM_IO_DATAGRAM_BATCH_H
#define UM_IO_DATAGRAM_BATCH_H

#include "core/foundation/base.h"

enum { UM_DATAGRAM_BATCH_MAX = 64 };

/* Sends `data` by the UDP socket to `count` addresses, the one at `except` left out (any other number: none). Waits up
 * to 10 ms for space in the send buffer, and again each time there was some. Returns how many were sent; what could not
 * be, because of its address or for want of space, is passed over. */
uint32_t um_datagram_fan_out(int fd, const uint8_t *data, uint32_t bytes, const um_address *to, uint32_t count,
                             uint32_t except);

/* A datagram that was received: its length, and where it came from. */
typedef struct um_received_datagram {
    um_address source;
    uint32_t bytes;
} um_received_datagram;

/* Receives what a UDP socket has, without waiting: the datagrams lie `stride` bytes apart in `buffer`, which has space
 * for `count`, UM_DATAGRAM_BATCH_MAX at most. Returns how many there were, or -errno when the first could not be
 * received (-EAGAIN: there is none). A datagram longer than `stride` is cut there. */
int um_datagram_receive(int fd, uint8_t *buffer, uint32_t stride, um_received_datagram *received, uint32_t count);

#endif
