/* One datagram to many addresses: what a resolution daemon does with everything it relays.
 *
 * Threads: one at a time for a socket. System calls: sendmmsg, poll. Memory: the caller's; nothing is kept.
 */
#ifndef UM_IO_FAN_OUT_H
#define UM_IO_FAN_OUT_H

#include "core/base.h"

/* Sends `data` by the UDP socket to `count` addresses, the one at `except` left out (any other number: none). Waits up
 * to 10 ms for room in the send buffer, and again each time there was some. Returns how many were sent; what could not
 * be, because of its address or for want of room, is passed over. */
uint32_t um_fan_out(int fd, const uint8_t *data, uint32_t bytes, const um_address *to, uint32_t count, uint32_t except);

#endif
