#include "capture/reading/frame.h"

#include "core/foundation/internet.h"

enum link_type {
    LINK_NULL = 0,
    LINK_ETHERNET = 1,
    LINK_RAW_BSD = 12,
    LINK_RAW_OPENBSD = 14,
    LINK_RAW = 101,
    LINK_LOOP = 108,
    LINK_COOKED = 113,
    LINK_IPV4 = 228,
    LINK_IPV6 = 229,
    LINK_COOKED_2 = 276,
};

enum {
    COOKED_BYTES = 16,
    COOKED_2_BYTES = 20,
    LOOPBACK_BYTES = 4,
    IPV6_BYTES = 40,
    IPV6_EXTENSION_BYTES = 8,
    IPV6_EXTENSIONS_MAX = 8,
    TCP_HEADER_BYTES = 20,
    VLAN_MASK = 0x0fff,
    ETHERTYPE_OLD_VLAN = 0x9100,
};

enum protocol {
    PROTOCOL_HOP_BY_HOP = 0,
    PROTOCOL_TCP = 6,
    PROTOCOL_ROUTING = 43,
    PROTOCOL_FRAGMENT = 44,
    PROTOCOL_DESTINATION = 60,
};

/* The rest of a frame: captured bytes at `data`. */
typedef struct rest {
    const uint8_t *data;
    uint32_t captured;
} rest;

static rest behind(rest from, uint32_t bytes)
{
    return (rest){from.data + bytes, from.captured - bytes};
}

static enum um_captured_frame_status decode_udp(rest from, uint32_t packet_bytes, um_captured_frame *frame)
{
    if (!frame->is_fragment && packet_bytes < UM_UDP_HEADER_BYTES)
        return UM_CAPTURED_UDP_LENGTH;
    if (from.captured < UM_UDP_HEADER_BYTES)
        return UM_CAPTURED_CUT;
    uint32_t udp_bytes = um_load_be16(from.data + UM_UDP_LENGTH_AT);
    if (udp_bytes < UM_UDP_HEADER_BYTES || (udp_bytes > packet_bytes && !frame->is_fragment))
        return UM_CAPTURED_UDP_LENGTH;
    frame->source_port = um_load_be16(from.data);
    frame->destination_port = um_load_be16(from.data + UM_UDP_TO_AT);
    frame->payload = from.data + UM_UDP_HEADER_BYTES;
    frame->payload_bytes = udp_bytes - UM_UDP_HEADER_BYTES;
    uint32_t there = (from.captured < packet_bytes ? from.captured : packet_bytes);
    there = there < UM_UDP_HEADER_BYTES ? 0 : there - UM_UDP_HEADER_BYTES;
    frame->payload_captured_bytes = there < frame->payload_bytes ? there : frame->payload_bytes;
    return UM_CAPTURED_UDP;
}

/* A malformed TCP header is ignored: a receiver drops the segment, and it is retransmitted. */
static enum um_captured_frame_status decode_tcp(rest from, uint32_t packet_bytes, um_captured_frame *frame)
{
    enum { PORTS_BYTES = 4, SQN_AT = 4, ACK_AT = 8, LENGTH_AT = 12, FLAGS_AT = 13 };
    if (packet_bytes < TCP_HEADER_BYTES)
        return UM_CAPTURED_FOREIGN;
    if (from.captured < PORTS_BYTES)
        return UM_CAPTURED_CUT;
    frame->source_port = um_load_be16(from.data);
    frame->destination_port = um_load_be16(from.data + 2);
    if (from.captured < TCP_HEADER_BYTES)
        return UM_CAPTURED_TCP_CUT;
    uint32_t header_bytes = (uint32_t)(from.data[LENGTH_AT] >> 4) * 4;
    if (header_bytes < TCP_HEADER_BYTES || header_bytes > packet_bytes)
        return UM_CAPTURED_FOREIGN;
    frame->tcp_sqn = um_load_be32(from.data + SQN_AT);
    frame->tcp_ack = um_load_be32(from.data + ACK_AT);
    frame->tcp_flags = from.data[FLAGS_AT];
    uint32_t there = from.captured < packet_bytes ? from.captured : packet_bytes;
    frame->payload_bytes = packet_bytes - header_bytes;
    frame->payload_captured_bytes = there < header_bytes ? 0 : there - header_bytes;
    frame->payload = from.data + (there < header_bytes ? there : header_bytes);
    return UM_CAPTURED_TCP;
}

static enum um_captured_frame_status decode_transport(uint8_t protocol, uint32_t fragment_offset, rest from,
                                                      uint32_t packet_bytes, um_captured_frame *frame)
{
    if (protocol == PROTOCOL_TCP && !frame->is_fragment)
        return decode_tcp(from, packet_bytes, frame);
    if (protocol != UM_PROTOCOL_UDP)
        return UM_CAPTURED_FOREIGN;
    return fragment_offset != 0 ? UM_CAPTURED_FRAGMENT : decode_udp(from, packet_bytes, frame);
}

static enum um_captured_frame_status decode_ipv4(rest from, um_captured_frame *frame)
{
    if (from.captured < UM_IPV4_HEADER_BYTES)
        return UM_CAPTURED_CUT;
    uint32_t header_bytes = (uint32_t)(from.data[0] & 0x0f) * 4;
    uint32_t total_bytes = um_load_be16(from.data + UM_IPV4_LENGTH_AT);
    if (from.data[0] >> 4 != 4 || header_bytes < UM_IPV4_HEADER_BYTES)
        return UM_CAPTURED_IP_HEADER;
    frame->ip_version = 4;
    frame->source = from.data + UM_IPV4_FROM_AT;
    frame->destination = from.data + UM_IPV4_TO_AT;
    /* Packets of a sender that leaves segmentation to its NIC are captured with a total length of 0. */
    if (total_bytes == 0)
        total_bytes = from.captured;
    if (total_bytes < header_bytes)
        return UM_CAPTURED_IP_HEADER;
    uint16_t fragment = um_load_be16(from.data + UM_IPV4_FRAGMENT_AT);
    frame->is_fragment = (fragment & UM_IPV4_FRAGMENT_MASK) != 0;
    if (from.captured < header_bytes)
        return UM_CAPTURED_CUT;
    return decode_transport(from.data[UM_IPV4_PROTOCOL_AT], fragment & UM_IPV4_OFFSET_MASK, behind(from, header_bytes),
                            total_bytes - header_bytes, frame);
}

static bool is_extension(uint8_t protocol)
{
    return protocol == PROTOCOL_HOP_BY_HOP || protocol == PROTOCOL_ROUTING || protocol == PROTOCOL_FRAGMENT ||
           protocol == PROTOCOL_DESTINATION;
}

static enum um_captured_frame_status decode_ipv6(rest from, um_captured_frame *frame)
{
    if (from.captured < IPV6_BYTES)
        return UM_CAPTURED_CUT;
    if (from.data[0] >> 4 != 6)
        return UM_CAPTURED_IP_HEADER;
    frame->ip_version = 6;
    frame->source = from.data + 8;
    frame->destination = from.data + 24;
    uint32_t packet_bytes = um_load_be16(from.data + 4);
    uint32_t fragment_offset = 0;
    uint8_t protocol = from.data[6];
    from = behind(from, IPV6_BYTES);
    for (int i = 0; is_extension(protocol); i++) {
        if (packet_bytes < IPV6_EXTENSION_BYTES || i == IPV6_EXTENSIONS_MAX)
            return UM_CAPTURED_IP_HEADER;
        if (from.captured < IPV6_EXTENSION_BYTES)
            return UM_CAPTURED_CUT;
        bool is_fragment = protocol == PROTOCOL_FRAGMENT;
        uint32_t bytes = is_fragment ? IPV6_EXTENSION_BYTES : ((uint32_t)from.data[1] + 1) * 8;
        if (bytes > packet_bytes)
            return UM_CAPTURED_IP_HEADER;
        if (is_fragment) {
            fragment_offset = um_load_be16(from.data + 2) & 0xfff8;
            frame->is_fragment = (um_load_be16(from.data + 2) & 0xfff9) != 0;
        }
        protocol = from.data[0];
        if (bytes > from.captured)
            return UM_CAPTURED_CUT;
        packet_bytes -= bytes;
        from = behind(from, bytes);
        /* A later fragment has no headers here. */
        if (fragment_offset != 0)
            break;
    }
    return decode_transport(protocol, fragment_offset, from, packet_bytes, frame);
}

static enum um_captured_frame_status decode_ether_type(uint16_t ether_type, rest from, um_captured_frame *frame)
{
    for (int tags = 0;
         ether_type == UM_ETHERTYPE_VLAN || ether_type == UM_ETHERTYPE_SERVICE_VLAN || ether_type == ETHERTYPE_OLD_VLAN;
         tags++) {
        if (tags == 2)
            return UM_CAPTURED_FOREIGN;
        if (from.captured < UM_VLAN_TAG_BYTES)
            return UM_CAPTURED_CUT;
        *(tags == 0 ? &frame->vlan : &frame->inner_vlan) = um_load_be16(from.data) & VLAN_MASK;
        ether_type = um_load_be16(from.data + 2);
        from = behind(from, UM_VLAN_TAG_BYTES);
    }
    if (UM_LIKELY(ether_type == UM_ETHERTYPE_IPV4))
        return decode_ipv4(from, frame);
    return ether_type == UM_ETHERTYPE_IPV6 ? decode_ipv6(from, frame) : UM_CAPTURED_FOREIGN;
}

static enum um_captured_frame_status decode_raw(rest from, um_captured_frame *frame)
{
    if (from.captured == 0)
        return UM_CAPTURED_CUT;
    uint8_t version = from.data[0] >> 4;
    if (version == 4)
        return decode_ipv4(from, frame);
    return version == 6 ? decode_ipv6(from, frame) : UM_CAPTURED_IP_HEADER;
}

/* The address family in front has the numbers and byte order of the capturing host; the packet's version decides. */
static enum um_captured_frame_status decode_loopback(rest from, um_captured_frame *frame)
{
    if (from.captured <= LOOPBACK_BYTES)
        return UM_CAPTURED_CUT;
    uint8_t version = from.data[LOOPBACK_BYTES] >> 4;
    return version == 4 || version == 6 ? decode_raw(behind(from, LOOPBACK_BYTES), frame) : UM_CAPTURED_FOREIGN;
}

static enum um_captured_frame_status decode_link(int32_t link_type, rest from, um_captured_frame *frame)
{
    switch (link_type) {
    case LINK_ETHERNET:
        if (from.captured < UM_ETHERNET_HEADER_BYTES)
            return UM_CAPTURED_CUT;
        return decode_ether_type(um_load_be16(from.data + UM_ETHERTYPE_AT), behind(from, UM_ETHERNET_HEADER_BYTES),
                                 frame);
    case LINK_COOKED:
        if (from.captured < COOKED_BYTES)
            return UM_CAPTURED_CUT;
        return decode_ether_type(um_load_be16(from.data + 14), behind(from, COOKED_BYTES), frame);
    case LINK_COOKED_2:
        if (from.captured < COOKED_2_BYTES)
            return UM_CAPTURED_CUT;
        return decode_ether_type(um_load_be16(from.data), behind(from, COOKED_2_BYTES), frame);
    case LINK_RAW:
    case LINK_RAW_BSD:
    case LINK_RAW_OPENBSD:
        return decode_raw(from, frame);
    case LINK_IPV4:
        return decode_ipv4(from, frame);
    case LINK_IPV6:
        return decode_ipv6(from, frame);
    case LINK_NULL:
    case LINK_LOOP:
        return decode_loopback(from, frame);
    default:
        return UM_CAPTURED_LINK_TYPE;
    }
}

void um_captured_frame_decode(int32_t link_type, const uint8_t *data, uint32_t captured_bytes, um_captured_frame *frame)
{
    frame->vlan = -1;
    frame->inner_vlan = -1;
    frame->ip_version = 0;
    frame->is_fragment = false;
    frame->payload_bytes = 0;
    frame->payload_captured_bytes = 0;
    frame->status = decode_link(link_type, (rest){data, captured_bytes}, frame);
}
