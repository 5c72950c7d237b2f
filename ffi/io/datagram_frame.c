#include "io/datagram_frame.h"

enum {
    IPV4_VERSION_AND_LENGTH = 0x45,
    IPV4_DONT_FRAGMENT = 0x4000,
    IPV4_LENGTH_AT = 2,
    IPV4_IDENTIFICATION_AT = 4,
    IPV4_FLAGS_AT = 6,
    IPV4_TTL_AT = 8,
    IPV4_PROTOCOL_AT = 9,
    IPV4_CHECKSUM_AT = 10,
    IPV4_FROM_AT = 12,
    IPV4_TO_AT = 16,
    UDP_LENGTH_AT = 4,
    UDP_CHECKSUM_AT = 6,
    PROTOCOL_UDP = 17,
};

uint64_t um_checksum_add(uint64_t sum, const uint8_t *data, uint32_t bytes)
{
    uint32_t i = 0;
    for (; i + 4 <= bytes; i += 4) {
        uint32_t word;
        memcpy(&word, data + i, sizeof word);
        sum += word;
    }
    if (i < bytes) {
        uint32_t rest = 0;
        memcpy(&rest, data + i, bytes - i);
        sum += rest;
    }
    return sum;
}

uint16_t um_checksum_fold(uint64_t sum)
{
    while (sum >> 16 != 0)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static void store(uint8_t *at, uint16_t checksum)
{
    memcpy(at, &checksum, sizeof checksum);
}

void um_datagram_refit(uint8_t *ip, uint32_t ip_header_bytes, uint16_t identification, const uint8_t *payload,
                       uint32_t captured_bytes, uint32_t payload_bytes)
{
    uint8_t *udp = ip + ip_header_bytes;
    uint32_t udp_bytes = UM_UDP_HEADER_BYTES + payload_bytes;
    um_store_be16(ip + IPV4_LENGTH_AT, (uint16_t)(ip_header_bytes + udp_bytes));
    um_store_be16(ip + IPV4_IDENTIFICATION_AT, identification);
    store(ip + IPV4_CHECKSUM_AT, 0);
    store(ip + IPV4_CHECKSUM_AT, um_checksum_fold(um_checksum_add(0, ip, ip_header_bytes)));
    um_store_be16(udp + UDP_LENGTH_AT, (uint16_t)udp_bytes);
    store(udp + UDP_CHECKSUM_AT, 0);
    if (captured_bytes < payload_bytes)
        return;
    uint8_t pseudo[4] = {0, PROTOCOL_UDP, (uint8_t)(udp_bytes >> 8), (uint8_t)udp_bytes};
    uint64_t sum = um_checksum_add(0, pseudo, sizeof pseudo);
    sum = um_checksum_add(sum, ip + IPV4_FROM_AT, 8);
    sum = um_checksum_add(sum, udp, UM_UDP_HEADER_BYTES);
    uint16_t checksum = um_checksum_fold(um_checksum_add(sum, payload, payload_bytes));
    store(udp + UDP_CHECKSUM_AT, checksum == 0 ? UINT16_MAX : checksum); /* zero would say that there is none */
}

void um_datagram_frame(uint8_t *header, um_address from, um_address to, uint8_t ttl, uint16_t identification,
                       const uint8_t *payload, uint32_t captured_bytes, uint32_t payload_bytes)
{
    memset(header, 0, UM_IPV4_UDP_HEADER_BYTES);
    header[0] = IPV4_VERSION_AND_LENGTH;
    um_store_be16(header + IPV4_FLAGS_AT, IPV4_DONT_FRAGMENT);
    header[IPV4_TTL_AT] = ttl;
    header[IPV4_PROTOCOL_AT] = PROTOCOL_UDP;
    um_store_be32(header + IPV4_FROM_AT, from.ip);
    um_store_be32(header + IPV4_TO_AT, to.ip);
    um_store_be16(header + UM_IPV4_HEADER_BYTES, from.port);
    um_store_be16(header + UM_IPV4_HEADER_BYTES + 2, to.port);
    um_datagram_refit(header, UM_IPV4_HEADER_BYTES, identification, payload, captured_bytes, payload_bytes);
}
