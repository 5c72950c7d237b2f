#include "capture/writing/datagram_frame.h"

static void store(uint8_t *at, uint16_t checksum)
{
    memcpy(at, &checksum, sizeof checksum);
}

/* Subtracts a field that is about to change from a sum. */
static uint64_t without(uint64_t sum, const uint8_t *field)
{
    uint16_t word;
    memcpy(&word, field, sizeof word);
    return um_internet_add(sum, (uint16_t)~word);
}

void um_datagram_refit(uint8_t *ip, const uint8_t *from, uint32_t ip_header_bytes, uint16_t identification,
                       const uint64_t *payload_sum, uint32_t payload_bytes)
{
    uint8_t *udp = ip + ip_header_bytes;
    uint16_t udp_bytes = (uint16_t)(UM_UDP_HEADER_BYTES + payload_bytes);
    uint16_t ip_bytes = (uint16_t)(ip_header_bytes + udp_bytes);
    uint64_t sum = um_internet_sum(from, ip_header_bytes, um_internet_word(ip_bytes));
    sum = without(without(without(sum, from + UM_IPV4_LENGTH_AT), from + UM_IPV4_IDENTIFICATION_AT),
                  from + UM_IPV4_CHECKSUM_AT);
    um_store_be16(ip + UM_IPV4_LENGTH_AT, ip_bytes);
    um_store_be16(ip + UM_IPV4_IDENTIFICATION_AT, identification);
    store(ip + UM_IPV4_CHECKSUM_AT, um_internet_checksum(um_internet_add(sum, um_internet_word(identification))));
    um_store_be16(udp + UM_UDP_LENGTH_AT, udp_bytes);
    store(udp + UM_UDP_CHECKSUM_AT, 0);
    if (payload_sum == NULL)
        return;
    sum = um_internet_sum(from + ip_header_bytes, UM_UDP_LENGTH_AT, um_internet_pseudo_sum(from, udp_bytes));
    sum = um_internet_add(um_internet_add(sum, um_internet_word(udp_bytes)), *payload_sum);
    store(udp + UM_UDP_CHECKSUM_AT, um_internet_udp_checksum(sum));
}

bool um_datagram_awaits_checksum(const uint8_t *ip, uint32_t ip_header_bytes)
{
    const uint8_t *udp = ip + ip_header_bytes;
    uint16_t sum = um_internet_fold(um_internet_pseudo_sum(ip, um_load_be16(udp + UM_UDP_LENGTH_AT)));
    return memcmp(udp + UM_UDP_CHECKSUM_AT, &sum, sizeof sum) == 0;
}

/* The same for IPv6 (RFC 8200). */
static uint32_t frame_ipv6(uint8_t *header, um_address from, um_address to, uint8_t hops, const uint64_t *payload_sum,
                           uint32_t payload_bytes)
{
    uint8_t *udp = header + UM_IPV6_HEADER_BYTES;
    uint16_t udp_bytes = (uint16_t)(UM_UDP_HEADER_BYTES + payload_bytes);
    memset(header, 0, UM_IPV6_UDP_HEADER_BYTES);
    header[0] = UM_IPV6_VERSION;
    um_store_be16(header + UM_IPV6_LENGTH_AT, udp_bytes);
    header[UM_IPV6_PROTOCOL_AT] = UM_PROTOCOL_UDP;
    header[UM_IPV6_HOPS_AT] = hops;
    um_ip_store_v6(header + UM_IPV6_FROM_AT, from.ip);
    um_ip_store_v6(header + UM_IPV6_TO_AT, to.ip);
    um_store_be16(udp, from.port);
    um_store_be16(udp + UM_UDP_TO_AT, to.port);
    um_store_be16(udp + UM_UDP_LENGTH_AT, udp_bytes);
    if (payload_sum != NULL) {
        uint64_t sum = (uint64_t)um_internet_word(UM_PROTOCOL_UDP) + um_internet_word(udp_bytes);
        sum = um_internet_sum(header + UM_IPV6_FROM_AT, 2 * UM_IPV6_BYTES + UM_UDP_HEADER_BYTES, sum);
        store(udp + UM_UDP_CHECKSUM_AT, um_internet_udp_checksum(um_internet_add(sum, *payload_sum)));
    }
    return UM_IPV6_UDP_HEADER_BYTES;
}

uint32_t um_datagram_frame(uint8_t *header, um_address from, um_address to, uint8_t ttl, uint16_t identification,
                           const uint8_t *payload, uint32_t captured_bytes, uint32_t payload_bytes)
{
    bool is_whole = captured_bytes >= payload_bytes;
    uint64_t sum = is_whole ? um_internet_sum(payload, payload_bytes, 0) : 0;
    if (um_ip_is_v6(to.ip))
        return frame_ipv6(header, from, to, ttl, is_whole ? &sum : NULL, payload_bytes);
    memset(header, 0, UM_IPV4_UDP_HEADER_BYTES);
    header[0] = UM_IPV4_VERSION_AND_LENGTH;
    um_store_be16(header + UM_IPV4_FRAGMENT_AT, UM_IPV4_DONT_FRAGMENT);
    header[UM_IPV4_TTL_AT] = ttl;
    header[UM_IPV4_PROTOCOL_AT] = UM_PROTOCOL_UDP;
    um_store_be32(header + UM_IPV4_FROM_AT, um_ip_v4(from.ip));
    um_store_be32(header + UM_IPV4_TO_AT, um_ip_v4(to.ip));
    um_store_be16(header + UM_IPV4_HEADER_BYTES, from.port);
    um_store_be16(header + UM_IPV4_HEADER_BYTES + UM_UDP_TO_AT, to.port);
    um_datagram_refit(header, header, UM_IPV4_HEADER_BYTES, identification, is_whole ? &sum : NULL, payload_bytes);
    return UM_IPV4_UDP_HEADER_BYTES;
}
