/* IP addresses and UDP or TCP ports of both families. An IPv4 address is stored in its IPv4-mapped form (RFC 4291,
 * 2.5.5.2), so comparisons, hashes and network masks are the same code for both families. A link-local address has no
 * scope here: a context uses one interface, which its sockets add.
 *
 * No state, any thread, no errors.
 */
#ifndef UM_CORE_ADDRESS_H
#define UM_CORE_ADDRESS_H

#include "core/foundation/base.h"

enum { UM_IPV4_BYTES = 4, UM_IPV6_BYTES = 16 };

/* The 128 bits of an address, in host byte order. All zero: no address; IPv4's 0.0.0.0 is stored so too. */
typedef struct um_ip {
    uint64_t high;
    uint64_t low;
} um_ip;

/* An address and a port, both in host byte order. */
typedef struct um_address {
    um_ip ip;
    uint16_t port;
} um_address;

#define UM_IPV4_MAPPED ((uint64_t)0xffff << 32)
/* The initializer of a constant IPv4 address. */
#define UM_ADDRESS_V4(v4, port) {{0, UM_IPV4_MAPPED | (v4)}, port}

static inline um_ip um_ip_of_v4(uint32_t v4)
{
    return (um_ip){0, v4 == 0 ? 0 : UM_IPV4_MAPPED | v4};
}

static inline um_address um_address_of_v4(uint32_t v4, uint16_t port)
{
    return (um_address){um_ip_of_v4(v4), port};
}

static inline bool um_ip_is_set(um_ip ip)
{
    return (ip.high | ip.low) != 0;
}

/* No address belongs to IPv4. */
static inline bool um_ip_is_v6(um_ip ip)
{
    return ip.high != 0 || (ip.low != 0 && ip.low >> 32 != UM_IPV4_MAPPED >> 32);
}

/* The IPv4 address; 0 for no address. Precondition: it is not an IPv6 address. */
static inline uint32_t um_ip_v4(um_ip ip)
{
    um_debug_assert(!um_ip_is_v6(ip));
    return (uint32_t)ip.low;
}

static inline bool um_ip_equal(um_ip a, um_ip b)
{
    return ((a.low ^ b.low) | (a.high ^ b.high)) == 0;
}

/* True for an address in the network of these leading bits; an IPv4 network's mask covers the mapped prefix. */
static inline bool um_ip_is_in(um_ip ip, um_ip network, um_ip mask)
{
    return um_ip_equal((um_ip){ip.high & mask.high, ip.low & mask.low}, network);
}

static inline bool um_ip_is_multicast(um_ip ip)
{
    return UM_LIKELY(ip.high == 0) ? ip.low >> 28 == (UM_IPV4_MAPPED | 0xe0000000) >> 28 : ip.high >> 56 == 0xff;
}

/* True for an address that one host can have: not the broadcast address, either. */
static inline bool um_ip_is_host(um_ip ip)
{
    return um_ip_is_set(ip) && !um_ip_is_multicast(ip) && !um_ip_equal(ip, um_ip_of_v4(UINT32_MAX));
}

static inline bool um_address_equal(um_address a, um_address b)
{
    return um_ip_equal(a.ip, b.ip) && a.port == b.port;
}

/* 64 bits that differ for different IPv4 addresses and ports, and nearly always for others. Not secret: a table that
 * any sender can fill must hash it with a key, or bound its probes. */
static inline uint64_t um_address_key(um_address address)
{
    return (address.ip.low << 16 | address.port) ^ (address.ip.high ^ address.ip.low >> 48) * 0xff51afd7ed558ccdu;
}

/* Network byte order. */
static inline um_ip um_ip_load_v6(const uint8_t *data)
{
    return (um_ip){um_load_be64(data), um_load_be64(data + 8)};
}

static inline void um_ip_store_v6(uint8_t *data, um_ip ip)
{
    um_store_be64(data, ip.high);
    um_store_be64(data + 8, ip.low);
}

#endif
