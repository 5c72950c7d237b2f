/* The IPv4 and UDP headers around a datagram that was seen without them, or that was cut out of a longer run of
 * datagrams (UDP GSO and GRO), with the checksums a receiver would find. No state, any thread.
 */
#ifndef UM_CAPTURE_WRITING_DATAGRAM_FRAME_H
#define UM_CAPTURE_WRITING_DATAGRAM_FRAME_H

#include "core/foundation/internet.h"

/* Writes both headers of a datagram of payload_bytes, the first captured_bytes of which are at `payload`. A UDP
 * checksum needs all of them; where some were cut off it is zero, which says that there is none. */
void um_datagram_frame(uint8_t *header, um_address from, um_address to, uint8_t ttl, uint16_t identification,
                       const uint8_t *payload, uint32_t captured_bytes, uint32_t payload_bytes);

/* The same for headers that were copied from a run: `ip` has ip_header_bytes of IPv4 header and then the UDP header.
 * They are summed up where they came from, `from`: reading at once what was just written would wait for the memory.
 * payload_sum: um_internet_sum of the payload; NULL: not all of it is there. */
void um_datagram_refit(uint8_t *ip, const uint8_t *from, uint32_t ip_header_bytes, uint16_t identification,
                       const uint64_t *payload_sum, uint32_t payload_bytes);

/* Whether the UDP checksum is still to be filled in, as the kernel leaves it to the device: the field has the sum of
 * the pseudo header. (A checksum that happens to be the same comes out the same when it is filled in again.) Not to be
 * asked of fragments. */
bool um_datagram_awaits_checksum(const uint8_t *ip, uint32_t ip_header_bytes);

#endif
