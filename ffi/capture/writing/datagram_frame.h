/* Builds the IP and UDP headers of a datagram that was captured without them or was part of a longer run of datagrams
 * (UDP GSO and GRO), with the checksums that a receiver would see. No state, any thread.
 */
#ifndef UM_CAPTURE_WRITING_DATAGRAM_FRAME_H
#define UM_CAPTURE_WRITING_DATAGRAM_FRAME_H

#include "core/foundation/address.h"
#include "core/foundation/internet.h"

/* Writes both headers of a datagram of payload_bytes, the first captured_bytes of which are at `payload`. A UDP
 * checksum needs all of them; if some are missing it is zero, which means that there is none. Returns the bytes of the
 * headers, at most UM_IPV6_UDP_HEADER_BYTES. `identification` is for IPv4. */
uint32_t um_datagram_frame(uint8_t *header, um_address from, um_address to, uint8_t ttl, uint16_t identification,
                           const uint8_t *payload, uint32_t captured_bytes, uint32_t payload_bytes);

/* The same for IPv4 headers copied from a run: `ip` has ip_header_bytes of IPv4 header and then the UDP header. They
 * are summed at their origin, `from`, because reading what was just written would stall. payload_sum: um_internet_sum
 * of the payload, or NULL if a part of it is missing. */
void um_datagram_refit(uint8_t *ip, const uint8_t *from, uint32_t ip_header_bytes, uint16_t identification,
                       const uint64_t *payload_sum, uint32_t payload_bytes);

/* Returns true if the UDP checksum is not filled in yet, as the kernel leaves it to the device: the field has the sum
 * of the pseudo header. (Filling in a checksum that happens to equal it gives the same checksum.) Not for fragments. */
bool um_datagram_awaits_checksum(const uint8_t *ip, uint32_t ip_header_bytes);

#endif
