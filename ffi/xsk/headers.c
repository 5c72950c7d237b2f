#include "xsk/headers.h"

enum {
    VLAN_MAX = 2,
    OPTION_END = 0,
    OPTION_NO_OPERATION = 1,
    OPTION_RECORD_ROUTE = 7,
    OPTION_TIMESTAMP = 68,
    OPTION_LOOSE_ROUTE = 131,
    OPTION_STRICT_ROUTE = 137,
    OPTION_ROUTER_ALERT = 148,
    OPTION_RECORDS_AT = 4, /* smallest pointer of a record route, which counts from one */
    OPTION_TIMES_AT = 5,   /* the same of a timestamp option */
};

/* ---- writing ---- */

void um_xsk_group_mac(uint32_t group_ip, uint8_t *mac)
{
    mac[0] = 0x01;
    mac[1] = 0x00;
    um_store_be32(mac + 2, 0x5e000000u | (group_ip & 0x7fffff));
}

/* Offset of the IP header, in the template and in frames. */
static uint32_t ip_at(const um_xsk_template *made)
{
    return made->header_bytes - UM_IPV4_UDP_HEADER_BYTES;
}

void um_xsk_template_init(um_xsk_template *made, const uint8_t *source_mac, uint16_t tag_control, um_address from,
                          um_address to, uint32_t ttl, uint8_t traffic_class)
{
    memset(made, 0, sizeof *made);
    made->to = to;
    made->header_bytes = um_xsk_header_bytes(tag_control);
    um_xsk_group_mac(um_ip_v4(to.ip), made->bytes);
    memcpy(made->bytes + UM_MAC_BYTES, source_mac, UM_MAC_BYTES);
    if (tag_control != 0) {
        um_store_be16(made->bytes + UM_ETHERTYPE_AT, UM_ETHERTYPE_VLAN);
        um_store_be16(made->bytes + UM_ETHERNET_HEADER_BYTES, tag_control);
    }
    uint8_t *ip = made->bytes + ip_at(made), *udp = ip + UM_IPV4_HEADER_BYTES;
    um_store_be16(ip - sizeof(uint16_t), UM_ETHERTYPE_IPV4);
    ip[0] = UM_IPV4_VERSION_AND_LENGTH;
    ip[UM_IPV4_TRAFFIC_CLASS_AT] = traffic_class;
    um_store_be16(ip + UM_IPV4_FRAGMENT_AT, UM_IPV4_DONT_FRAGMENT);
    ip[UM_IPV4_TTL_AT] = (uint8_t)ttl;
    ip[UM_IPV4_PROTOCOL_AT] = UM_PROTOCOL_UDP;
    um_store_be32(ip + UM_IPV4_FROM_AT, um_ip_v4(from.ip));
    um_store_be32(ip + UM_IPV4_TO_AT, um_ip_v4(to.ip));
    um_store_be16(udp, from.port);
    um_store_be16(udp + UM_UDP_TO_AT, to.port);
    made->ip_sum = um_internet_fold(um_internet_sum(ip, UM_IPV4_HEADER_BYTES, 0));
    /* Both addresses and the ports are contiguous; the pseudo header adds the protocol. */
    made->udp_sum = um_internet_fold(um_internet_sum(ip + UM_IPV4_FROM_AT, 12, um_internet_word(UM_PROTOCOL_UDP)));
}

void um_xsk_write_headers(const um_xsk_template *made, uint8_t *frame, uint32_t length, uint64_t payload_sum)
{
    if (made->header_bytes == UM_XSK_HEADER_BYTES) /* copies of constant length */
        memcpy(frame, made->bytes, UM_XSK_HEADER_BYTES);
    else
        memcpy(frame, made->bytes, UM_XSK_TAGGED_HEADER_BYTES);
    uint8_t *ip = frame + ip_at(made), *udp = ip + UM_IPV4_HEADER_BYTES;
    uint16_t ip_length = um_internet_word((uint16_t)(UM_IPV4_UDP_HEADER_BYTES + length));
    uint16_t udp_length = um_internet_word((uint16_t)(UM_UDP_HEADER_BYTES + length));
    uint16_t ip_checksum = um_internet_checksum((uint64_t)made->ip_sum + ip_length);
    uint64_t udp_sum = um_internet_add(payload_sum, (uint64_t)made->udp_sum + 2 * (uint64_t)udp_length);
    uint16_t udp_checksum = um_internet_udp_checksum(udp_sum);
    memcpy(ip + UM_IPV4_LENGTH_AT, &ip_length, sizeof ip_length);
    memcpy(ip + UM_IPV4_CHECKSUM_AT, &ip_checksum, sizeof ip_checksum);
    memcpy(udp + UM_UDP_LENGTH_AT, &udp_length, sizeof udp_length);
    memcpy(udp + UM_UDP_CHECKSUM_AT, &udp_checksum, sizeof udp_checksum);
}

/* ---- reading ---- */

static bool is_vlan(uint16_t type)
{
    return type == UM_ETHERTYPE_VLAN || type == UM_ETHERTYPE_SERVICE_VLAN;
}

/* The NIC that sends a kernel socket's datagram fills in its checksum; until then the field holds the folded sum of the
 * pseudo header. Between two ends of a veth no NIC completes it, so this sum arrives. Such data was never on a wire. */
static bool checksum_is_right(const uint8_t *ip, const uint8_t *udp, uint32_t udp_length)
{
    uint16_t written;
    memcpy(&written, udp + UM_UDP_CHECKSUM_AT, sizeof written);
    if (written == 0)
        return true;
    uint64_t pseudo = um_internet_pseudo_sum(ip, udp_length);
    return um_internet_fold(um_internet_sum(udp, udp_length, pseudo)) == 0xffff || um_internet_fold(pseudo) == written;
}

/* The kernel drops a datagram with malformed options, and one with a source route unless configured otherwise. */
static bool is_option_right(const uint8_t *option, uint32_t length)
{
    switch (option[0]) {
    case OPTION_LOOSE_ROUTE:
    case OPTION_STRICT_ROUTE:
        return false;
    case OPTION_RECORD_ROUTE:
        return length >= 3 && option[2] >= OPTION_RECORDS_AT && (option[2] > length || option[2] + 3u <= length);
    case OPTION_TIMESTAMP:
        return length >= 4 && option[2] >= OPTION_TIMES_AT && (option[2] > length || option[2] + 3u <= length);
    case OPTION_ROUTER_ALERT:
        return length >= 4;
    default:
        return true;
    }
}

static bool are_options_right(const uint8_t *options, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes && options[at] != OPTION_END;) {
        if (options[at] == OPTION_NO_OPERATION) {
            at++;
            continue;
        }
        uint32_t length = bytes - at < 2 ? 0 : options[at + 1];
        if (length < 2 || length > bytes - at || !is_option_right(options + at, length))
            return false;
        at += length;
    }
    return true;
}

static bool is_martian(uint32_t from)
{
    uint32_t network = from >> 24;
    return from == 0 || network == 127 || (from >> 28) == 14 || from == UINT32_MAX;
}

enum um_xsk_refusal um_xsk_read_headers(const uint8_t *frame, uint32_t length, bool verify, um_rx *rx)
{
    uint32_t at = UM_ETHERNET_HEADER_BYTES;
    if (length < at)
        return UM_XSK_TRUNCATED;
    uint16_t type = um_load_be16(frame + at - 2);
    for (int i = 0; i < VLAN_MAX && is_vlan(type); i++) {
        at += UM_VLAN_TAG_BYTES;
        if (length < at)
            return UM_XSK_TRUNCATED;
        type = um_load_be16(frame + at - 2);
    }
    if (type != UM_ETHERTYPE_IPV4)
        return UM_XSK_NOT_UDP;
    if (length - at < UM_IPV4_HEADER_BYTES)
        return UM_XSK_TRUNCATED;
    const uint8_t *ip = frame + at;
    uint32_t ip_header = (ip[0] & 15u) * 4, ip_length = um_load_be16(ip + UM_IPV4_LENGTH_AT);
    if (ip[0] >> 4 != 4 || ip[UM_IPV4_PROTOCOL_AT] != UM_PROTOCOL_UDP ||
        um_load_be16(ip + UM_IPV4_FRAGMENT_AT) & UM_IPV4_FRAGMENT_MASK)
        return UM_XSK_NOT_UDP;
    if (ip_header < UM_IPV4_HEADER_BYTES || ip_length > length - at || ip_length < ip_header + UM_UDP_HEADER_BYTES)
        return UM_XSK_TRUNCATED;
    if (um_internet_fold(um_internet_sum(ip, ip_header, 0)) != UINT16_MAX)
        return UM_XSK_BAD_IP;
    if (UM_UNLIKELY(ip_header > UM_IPV4_HEADER_BYTES) &&
        !are_options_right(ip + UM_IPV4_HEADER_BYTES, ip_header - UM_IPV4_HEADER_BYTES))
        return UM_XSK_BAD_IP;
    if (is_martian(um_load_be32(ip + UM_IPV4_FROM_AT)))
        return UM_XSK_MARTIAN;
    const uint8_t *udp = ip + ip_header;
    uint32_t udp_length = um_load_be16(udp + UM_UDP_LENGTH_AT);
    if (udp_length < UM_UDP_HEADER_BYTES || udp_length > ip_length - ip_header)
        return UM_XSK_TRUNCATED;
    if (verify && !checksum_is_right(ip, udp, udp_length))
        return UM_XSK_BAD_CHECKSUM;
    rx->data = udp + UM_UDP_HEADER_BYTES;
    rx->length = udp_length - UM_UDP_HEADER_BYTES;
    rx->from = um_address_of_v4(um_load_be32(ip + UM_IPV4_FROM_AT), um_load_be16(udp));
    rx->to = um_address_of_v4(um_load_be32(ip + UM_IPV4_TO_AT), um_load_be16(udp + UM_UDP_TO_AT));
    return UM_XSK_READ;
}
