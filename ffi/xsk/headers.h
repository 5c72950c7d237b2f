/* The headers of a datagram on a ring: Ethernet, an 802.1Q tag if the interface needs one, IPv4 and UDP. They are
 * written from a template and read with every bound checked.
 *
 * Each sending session has one template. Only lengths and checksums are written per datagram. Datagrams have the
 * don't-fragment bit set and identification 0 (W4), as those of a kernel socket have.
 * Received frames may have up to two VLAN tags and IPv4 options. A frame that the kernel would drop is refused with a
 * reason: all but whole UDP datagrams over IPv4, wrong checksums, malformed options, impossible sources.
 * Nothing here allocates or makes system calls. Any thread; memory is the caller's.
 */
#ifndef UM_XSK_HEADERS_H
#define UM_XSK_HEADERS_H

#include "core/foundation/internet.h"
#include "core/foundation/link.h"

enum {
    UM_XSK_HEADER_BYTES = UM_ETHERNET_HEADER_BYTES + UM_IPV4_UDP_HEADER_BYTES, /* without a tag */
    UM_XSK_TAGGED_HEADER_BYTES = UM_XSK_HEADER_BYTES + UM_VLAN_TAG_BYTES,
};

/* Bytes in front of the payload in frames with this tag (see um_xsk_template_init). */
static inline uint32_t um_xsk_header_bytes(uint16_t tag_control)
{
    return tag_control == 0 ? UM_XSK_HEADER_BYTES : UM_XSK_TAGGED_HEADER_BYTES;
}

typedef struct um_xsk_template {
    uint8_t bytes[UM_XSK_TAGGED_HEADER_BYTES];
    uint32_t header_bytes; /* bytes in use: with or without a tag */
    um_address to;
    uint32_t ip_sum;  /* of the IP header without length and checksum */
    uint32_t udp_sum; /* of the pseudo header and the ports, without the lengths */
} um_xsk_template;

/* The Ethernet address of a multicast group (RFC 1112 6.4). */
void um_xsk_group_mac(uint32_t group_ip, uint8_t *mac);

/* `tag_control` is the content of the 802.1Q tag: priority (3 bits), drop eligibility (1), VLAN (12). 0: no tag. */
void um_xsk_template_init(um_xsk_template *made, const uint8_t *source_mac, uint16_t tag_control, um_address from,
                          um_address to, uint32_t ttl, uint8_t traffic_class);

/* Writes the headers of a datagram of `length` bytes whose payload has the given sum (core/foundation/internet.h). */
void um_xsk_write_headers(const um_xsk_template *made, uint8_t *frame, uint32_t length, uint64_t payload_sum);

enum um_xsk_refusal {
    UM_XSK_READ = 0,
    UM_XSK_TRUNCATED,    /* shorter than its headers require */
    UM_XSK_NOT_UDP,      /* not IPv4, not UDP, or a fragment */
    UM_XSK_BAD_CHECKSUM, /* the UDP checksum is wrong */
    UM_XSK_BAD_IP,       /* the IP header's checksum is wrong, or its options are malformed or route the datagram */
    UM_XSK_MARTIAN,      /* no host has the source address: multicast, broadcast, loopback, 0.0.0.0 */
};

/* Finds the datagram in a frame and sets data, length, from and to. With `verify`, a wrong UDP checksum is refused.
 * Two kinds of checksum pass unverified: one that was not computed (RFC 768), and one that the sender's kernel left to
 * the NIC but no NIC completed because both ends are on one machine (it holds only the sum of the pseudo header). */
enum um_xsk_refusal um_xsk_read_headers(const uint8_t *frame, uint32_t length, bool verify, um_rx *rx);

#endif
