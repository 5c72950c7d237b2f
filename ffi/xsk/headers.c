#include "xsk/headers.h"

enum {
    ETHERTYPE_IPV4 = 0x0800,
    ETHERTYPE_VLAN = 0x8100,
    ETHERTYPE_SERVICE_VLAN = 0x88a8,
    VLAN_BYTES = 4,
    VLAN_MAX = 2,
    PROTOCOL_UDP = 17,
    DONT_FRAGMENT = 0x4000,
    FRAGMENT_MASK = 0x3fff, /* more-fragments and the offset */
    IP_LENGTH_AT = 2,
    IP_FRAGMENT_AT = 6,
    IP_TTL_AT = 8,
    IP_PROTOCOL_AT = 9,
    IP_CHECKSUM_AT = 10,
    IP_SOURCE_AT = 12,
    IP_DESTINATION_AT = 16,
    UDP_DESTINATION_AT = 2,
    UDP_LENGTH_AT = 4,
    UDP_CHECKSUM_AT = 6,
};

/* ---- checksums: sums are kept in memory order, so that words need no swapping ---- */

static uint64_t add_carry(uint64_t sum, uint64_t word)
{
    sum += word;
    return sum + (sum < word);
}

static uint16_t fold(uint64_t sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static uint64_t sum_tail(const uint8_t *data, uint32_t length, uint64_t sum)
{
    uint64_t word = 0;
    for (; length >= sizeof word; data += sizeof word, length -= (uint32_t)sizeof word) {
        memcpy(&word, data, sizeof word);
        sum = add_carry(sum, word);
    }
    word = 0;
    memcpy(&word, data, length);
    return add_carry(sum, word);
}

uint64_t um_xsk_sum(const uint8_t *data, uint32_t length, uint64_t sum)
{
    /* 32-bit words into 64-bit lanes need no carries, so the compiler can use vectors. */
    enum { LANES = 8 };
    uint64_t lanes[LANES] = {0};
    for (; length >= LANES * sizeof(uint32_t); data += LANES * sizeof(uint32_t)) {
        uint32_t words[LANES];
        memcpy(words, data, sizeof words);
        for (int i = 0; i < LANES; i++)
            lanes[i] += words[i];
        length -= (uint32_t)sizeof words;
    }
    for (int i = 0; i < LANES; i++)
        sum = add_carry(sum, lanes[i]);
    return sum_tail(data, length, sum);
}

static uint16_t swapped(uint16_t v)
{
    return __builtin_bswap16(v);
}

/* ---- writing ---- */

void um_xsk_group_mac(uint32_t group_ip, uint8_t *mac)
{
    mac[0] = 0x01;
    mac[1] = 0x00;
    um_store_be32(mac + 2, 0x5e000000u | (group_ip & 0x7fffff));
}

void um_xsk_template_init(um_xsk_template *made, const uint8_t *source_mac, um_address from, um_address to,
                          uint32_t ttl)
{
    memset(made, 0, sizeof *made);
    made->to = to;
    um_xsk_group_mac(to.ip, made->bytes);
    memcpy(made->bytes + UM_XSK_MAC_BYTES, source_mac, UM_XSK_MAC_BYTES);
    um_store_be16(made->bytes + 2 * UM_XSK_MAC_BYTES, ETHERTYPE_IPV4);
    uint8_t *ip = made->bytes + UM_XSK_ETHERNET_BYTES, *udp = ip + UM_XSK_IP_BYTES;
    ip[0] = 0x45;
    um_store_be16(ip + IP_FRAGMENT_AT, DONT_FRAGMENT);
    ip[IP_TTL_AT] = (uint8_t)ttl;
    ip[IP_PROTOCOL_AT] = PROTOCOL_UDP;
    um_store_be32(ip + IP_SOURCE_AT, from.ip);
    um_store_be32(ip + IP_DESTINATION_AT, to.ip);
    um_store_be16(udp, from.port);
    um_store_be16(udp + UDP_DESTINATION_AT, to.port);
    made->ip_sum = fold(sum_tail(ip, UM_XSK_IP_BYTES, 0));
    /* Both addresses and the ports lie together; the pseudo header adds the protocol. */
    made->udp_sum = fold(sum_tail(ip + IP_SOURCE_AT, 12, swapped(PROTOCOL_UDP)));
}

void um_xsk_write_headers(const um_xsk_template *made, uint8_t *frame, uint32_t length, uint64_t payload_sum)
{
    memcpy(frame, made->bytes, sizeof made->bytes);
    uint8_t *ip = frame + UM_XSK_ETHERNET_BYTES, *udp = ip + UM_XSK_IP_BYTES;
    uint16_t ip_length = swapped((uint16_t)(UM_XSK_IP_BYTES + UM_XSK_UDP_BYTES + length));
    uint16_t udp_length = swapped((uint16_t)(UM_XSK_UDP_BYTES + length));
    uint16_t ip_checksum = (uint16_t)~fold((uint64_t)made->ip_sum + ip_length);
    uint64_t udp_sum = add_carry(payload_sum, (uint64_t)made->udp_sum + 2 * (uint64_t)udp_length);
    uint16_t udp_checksum = (uint16_t)~fold(udp_sum);
    udp_checksum = udp_checksum == 0 ? 0xffff : udp_checksum; /* 0 would mean that there is none */
    memcpy(ip + IP_LENGTH_AT, &ip_length, sizeof ip_length);
    memcpy(ip + IP_CHECKSUM_AT, &ip_checksum, sizeof ip_checksum);
    memcpy(udp + UDP_LENGTH_AT, &udp_length, sizeof udp_length);
    memcpy(udp + UDP_CHECKSUM_AT, &udp_checksum, sizeof udp_checksum);
}

/* ---- reading ---- */

static bool is_vlan(uint16_t type)
{
    return type == ETHERTYPE_VLAN || type == ETHERTYPE_SERVICE_VLAN;
}

static bool checksum_is_right(const uint8_t *ip, const uint8_t *udp, uint32_t udp_length)
{
    uint16_t written;
    memcpy(&written, udp + UDP_CHECKSUM_AT, sizeof written);
    if (written == 0)
        return true;
    uint64_t pseudo = sum_tail(ip + IP_SOURCE_AT, 8, (uint64_t)swapped(PROTOCOL_UDP) + swapped((uint16_t)udp_length));
    return fold(um_xsk_sum(udp, udp_length, pseudo)) == 0xffff || fold(pseudo) == written;
}

enum um_xsk_refusal um_xsk_read_headers(const uint8_t *frame, uint32_t length, bool verify, um_rx *rx)
{
    uint32_t at = UM_XSK_ETHERNET_BYTES;
    if (length < at)
        return UM_XSK_TRUNCATED;
    uint16_t type = um_load_be16(frame + at - 2);
    for (int i = 0; i < VLAN_MAX && is_vlan(type); i++) {
        at += VLAN_BYTES;
        if (length < at)
            return UM_XSK_TRUNCATED;
        type = um_load_be16(frame + at - 2);
    }
    if (type != ETHERTYPE_IPV4)
        return UM_XSK_NOT_UDP;
    if (length - at < UM_XSK_IP_BYTES)
        return UM_XSK_TRUNCATED;
    const uint8_t *ip = frame + at;
    uint32_t ip_header = (ip[0] & 15u) * 4, ip_length = um_load_be16(ip + IP_LENGTH_AT);
    if (ip[0] >> 4 != 4 || ip[IP_PROTOCOL_AT] != PROTOCOL_UDP || um_load_be16(ip + IP_FRAGMENT_AT) & FRAGMENT_MASK)
        return UM_XSK_NOT_UDP;
    if (ip_header < UM_XSK_IP_BYTES || ip_length > length - at || ip_length < ip_header + UM_XSK_UDP_BYTES)
        return UM_XSK_TRUNCATED;
    const uint8_t *udp = ip + ip_header;
    uint32_t udp_length = um_load_be16(udp + UDP_LENGTH_AT);
    if (udp_length < UM_XSK_UDP_BYTES || udp_length > ip_length - ip_header)
        return UM_XSK_TRUNCATED;
    if (verify && !checksum_is_right(ip, udp, udp_length))
        return UM_XSK_BAD_CHECKSUM;
    rx->data = udp + UM_XSK_UDP_BYTES;
    rx->length = udp_length - UM_XSK_UDP_BYTES;
    rx->from = (um_address){um_load_be32(ip + IP_SOURCE_AT), um_load_be16(udp)};
    rx->to = (um_address){um_load_be32(ip + IP_DESTINATION_AT), um_load_be16(udp + UDP_DESTINATION_AT)};
    return UM_XSK_READ;
}
