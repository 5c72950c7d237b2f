/* The headers of a datagram on a ring: Ethernet, an 802.1Q tag if the interface has one, IPv4 and UDP, written from a
 * template and read with every bound checked.
 *
 * A sending session has one template. For each datagram only lengths and checksums are written; the datagram carries
 * the don't-fragment bit and, being never fragmented, the identification 0 (W4), as a kernel socket's would. Received
 * headers are untrusted: up to two VLAN tags, IPv4 with options and UDP are accepted; any other frame is refused with
 * its reason. Nothing here allocates or calls the system. Any thread; memory is the caller's.
 */
#ifndef UM_XSK_HEADERS_H
#define UM_XSK_HEADERS_H

#include "core/foundation/internet.h"
#include "core/foundation/link.h"

enum {
    UM_XSK_HEADER_BYTES = UM_ETHERNET_HEADER_BYTES + UM_IPV4_UDP_HEADER_BYTES, /* without a tag */
    UM_XSK_TAGGED_HEADER_BYTES = UM_XSK_HEADER_BYTES + UM_VLAN_TAG_BYTES,
};

/* Returns the bytes in front of the payload of frames with this tag (um_xsk_template_init). */
static inline uint32_t um_xsk_header_bytes(uint16_t tag_control)
{
    return tag_control == 0 ? UM_XSK_HEADER_BYTES : UM_XSK_TAGGED_HEADER_BYTES;
}

typedef struct um_xsk_template {
    uint8_t bytes[UM_XSK_TAGGED_HEADER_BYTES];
    uint32_t header_bytes; /* how many of them */
    um_address to;
    uint32_t ip_sum;  /* of the IP header without length and checksum */
    uint32_t udp_sum; /* of the pseudo header and the ports, without the lengths */
} um_xsk_template;

/* The Ethernet address of a multicast group (RFC 1112 6.4). */
void um_xsk_group_mac(uint32_t group_ip, uint8_t *mac);

/* `tag_control`: content of the 802.1Q tag: priority (3 bits), drop eligibility (1) and VLAN (12); 0: no tag. */
void um_xsk_template_init(um_xsk_template *made, const uint8_t *source_mac, uint16_t tag_control, um_address from,
                          um_address to, uint32_t ttl);

/* Writes the headers of a datagram of `length` bytes whose payload has the given sum (core/foundation/internet.h). */
void um_xsk_write_headers(const um_xsk_template *made, uint8_t *frame, uint32_t length, uint64_t payload_sum);

enum um_xsk_refusal {
    UM_XSK_READ = 0,
    UM_XSK_TRUNCATED,    /* shorter than its headers require */
    UM_XSK_NOT_UDP,      /* not IPv4, not UDP, or a fragment */
    UM_XSK_BAD_CHECKSUM, /* the UDP checksum is wrong */
};

/* Finds the datagram in a frame: data, length, from and to. With `verify` a wrong UDP checksum is refused. One the
 * sender's kernel left to its NIC, and that no NIC completed because both ends are on one machine, holds only the sum
 * of the pseudo header and passes; so does a checksum that was not computed (RFC 768). */
enum um_xsk_refusal um_xsk_read_headers(const uint8_t *frame, uint32_t length, bool verify, um_rx *rx);

#endif
