#include "io/datagram_frame.h"

static void store(uint8_t *at, uint16_t checksum)
{
    memcpy(at, &checksum, sizeof checksum);
}

void um_datagram_refit(uint8_t *ip, uint32_t ip_header_bytes, uint16_t identification, const uint8_t *payload,
                       uint32_t captured_bytes, uint32_t payload_bytes)
{
    uint8_t *udp = ip + ip_header_bytes;
    uint32_t udp_bytes = UM_UDP_HEADER_BYTES + payload_bytes;
    um_store_be16(ip + UM_IPV4_LENGTH_AT, (uint16_t)(ip_header_bytes + udp_bytes));
    um_store_be16(ip + UM_IPV4_IDENTIFICATION_AT, identification);
    store(ip + UM_IPV4_CHECKSUM_AT, 0);
    store(ip + UM_IPV4_CHECKSUM_AT, um_internet_checksum(um_internet_sum(ip, ip_header_bytes, 0)));
    um_store_be16(udp + UM_UDP_LENGTH_AT, (uint16_t)udp_bytes);
    store(udp + UM_UDP_CHECKSUM_AT, 0);
    if (captured_bytes < payload_bytes)
        return;
    uint64_t sum = um_internet_sum(udp, UM_UDP_HEADER_BYTES, um_internet_pseudo_sum(ip, udp_bytes));
    store(udp + UM_UDP_CHECKSUM_AT, um_internet_udp_checksum(um_internet_sum(payload, payload_bytes, sum)));
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
    um_datagram_refit(header, UM_IPV4_HEADER_BYTES, identification, payload, captured_bytes, payload_bytes);
}
