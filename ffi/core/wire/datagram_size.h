/* Datagram sizes: the UDP payload that fits an MTU or a frame (W4). Pure functions; the Python half of the same
 * arithmetic is umstack/sizing.py.
 *
 * Sizes are bytes of UDP payload. Threads: any. Errors: none; a space smaller than its headers has a size of 0.
 */
#ifndef UM_CORE_DATAGRAM_SIZE_H
#define UM_CORE_DATAGRAM_SIZE_H

#include "core/foundation/address.h"
#include "core/foundation/internet.h"

enum {
    UM_DATAGRAM_BYTES_MIN = 500,               /* UM's lower bound of a datagram max size */
    UM_DATAGRAM_BYTES_MAX = 65507,             /* the longest UDP payload over IPv4 */
    UM_STREAM_DATAGRAM_BYTES_MAX = 65535 + 20, /* over TCP: the longest LBMC message, and space for a transport header
                                                  that is never sent */
};

/* The IP and UDP headers of datagrams to this address, without IP options. */
static inline uint32_t um_datagram_header_bytes(um_address to)
{
    return um_ip_is_v6(to.ip) ? UM_IPV6_UDP_HEADER_BYTES : UM_IPV4_UDP_HEADER_BYTES;
}

/* The longest payload that fits `space_bytes` after `header_bytes` of headers. */
static inline uint32_t um_datagram_size_in(uint32_t space_bytes, uint32_t header_bytes)
{
    uint32_t bytes = space_bytes > header_bytes ? space_bytes - header_bytes : 0;
    return bytes < UM_DATAGRAM_BYTES_MAX ? bytes : UM_DATAGRAM_BYTES_MAX;
}

/* The longest payload that IP does not fragment. */
static inline uint32_t um_datagram_size_of_mtu(uint32_t mtu_bytes)
{
    return um_datagram_size_in(mtu_bytes, UM_IPV4_UDP_HEADER_BYTES);
}

/* Maximum datagram size of a session on a path that carries `path_bytes`: at most the size that memory was allocated
 * for, at least UM's lower bound, even if IP then fragments. */
static inline uint32_t um_datagram_size_on_path(uint32_t path_bytes, uint32_t memory_bytes)
{
    uint32_t bytes = path_bytes < memory_bytes ? path_bytes : memory_bytes;
    return bytes > UM_DATAGRAM_BYTES_MIN ? bytes : UM_DATAGRAM_BYTES_MIN;
}

#endif
