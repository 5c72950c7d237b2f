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

void um_datagram_frame(uint8_t *header, um_address from, um_address to, uint8_t ttl, uint16_t identification,
                       const uint8_t *payload, uint32_t captured_bytes, uint32_t payload_bytes)
{
    memset(header, 0, UM_IPV4_UDP_HEADER_BYTES);
    header[0] = UM_IPV4_VERSION_AND_LENGTH;
    um_store_be16(header + UM_IPV4_FRAGMENT_AT, UM_IPV4_DONT_FRAGMENT);
    header[UM_IPV4_TTL_AT] = ttl;
    header[UM_IPV4_PROTOCOL_AT] = UM_PROTOCOL_UDP;
    um_store_be32(header + UM_IPV4_FROM_AT, from.ip);
    um_store_be32(header + UM_IPV4_TO_AT, to.ip);
    um_store_be16(header + UM_IPV4_HEADER_BYTES, from.port);
    um_store_be16(header + UM_IPV4_HEADER_BYTES + UM_UDP_TO_AT, to.port);
    bool is_whole = captured_bytes >= payload_bytes;
    uint64_t sum = is_whole ? um_internet_sum(payload, payload_bytes, 0) : 0;
    um_datagram_refit(header, header, UM_IPV4_HEADER_BYTES, identification, is_whole ? &sum : NULL, payload_bytes);
}
