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
    VLAN_TAGS_MAX = 8,
    MPLS_LABELS_MAX = 8,
    TUNNELS_MAX = 4,
    ETHERTYPE_OLD_VLAN = 0x9100,
    ETHERTYPE_BRIDGED = 0x6558,
    ETHERTYPE_MPLS = 0x8847,
    ETHERTYPE_MPLS_MULTICAST = 0x8848,
    ETHERTYPE_ERSPAN = 0x88be, /* types I and II */
    ETHERTYPE_ERSPAN_3 = 0x22eb,
    ETHERTYPE_ARISTA = 0xd28b, /* a switch's time in front of the packet */
    PORT_VXLAN = 4789,
    PORT_GENEVE = 6081,
};

enum protocol {
    PROTOCOL_HOP_BY_HOP = 0,
    PROTOCOL_IPV4 = 4,
    PROTOCOL_TCP = 6,
    PROTOCOL_IPV6 = 41,
    PROTOCOL_ROUTING = 43,
    PROTOCOL_FRAGMENT = 44,
    PROTOCOL_GRE = 47,
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

static enum um_captured_frame_status decode_ether_type(uint16_t ether_type, rest from, um_captured_frame *frame);
static enum um_captured_frame_status decode_raw(rest from, um_captured_frame *frame);

/* Tunnels. The fields of the outer packet are replaced by those of the inner one. */

static bool enter_tunnel(um_captured_frame *frame)
{
    if (frame->tunnel_count == TUNNELS_MAX)
        return false;
    frame->tunnel_count++;
    frame->vlan = -1;
    frame->inner_vlan = -1;
    frame->ip_version = 0;
    return true;
}

static enum um_captured_frame_status decode_ethernet(rest from, um_captured_frame *frame)
{
    if (from.captured < UM_ETHERNET_HEADER_BYTES)
        return UM_CAPTURED_CUT;
    return decode_ether_type(um_load_be16(from.data + UM_ETHERTYPE_AT), behind(from, UM_ETHERNET_HEADER_BYTES), frame);
}

static enum um_captured_frame_status decode_in_tunnel(uint16_t ether_type, rest from, um_captured_frame *frame)
{
    if (!enter_tunnel(frame))
        return UM_CAPTURED_FOREIGN;
    return ether_type == ETHERTYPE_BRIDGED ? decode_ethernet(from, frame) : decode_ether_type(ether_type, from, frame);
}

static enum um_captured_frame_status decode_erspan_2(rest from, um_captured_frame *frame)
{
    enum { BYTES = 8, VERSION = 1 };
    if (from.captured < BYTES)
        return UM_CAPTURED_CUT;
    return from.data[0] >> 4 == VERSION ? decode_in_tunnel(ETHERTYPE_BRIDGED, behind(from, BYTES), frame)
                                        : UM_CAPTURED_FOREIGN;
}

static enum um_captured_frame_status decode_erspan_3(rest from, um_captured_frame *frame)
{
    enum { BYTES = 12, VERSION = 2, FLAGS_AT = 10, HAS_SUBHEADER = 1, SUBHEADER_BYTES = 8, TYPE_SHIFT = 10, IP = 2 };
    if (from.captured < BYTES)
        return UM_CAPTURED_CUT;
    uint16_t flags = um_load_be16(from.data + FLAGS_AT);
    uint32_t bytes = flags & HAS_SUBHEADER ? BYTES + SUBHEADER_BYTES : BYTES;
    uint32_t type = flags >> TYPE_SHIFT & 0x1f;
    if (from.data[0] >> 4 != VERSION || (type != 0 && type != IP))
        return UM_CAPTURED_FOREIGN;
    if (from.captured < bytes)
        return UM_CAPTURED_CUT;
    if (type == 0)
        return decode_in_tunnel(ETHERTYPE_BRIDGED, behind(from, bytes), frame);
    return enter_tunnel(frame) ? decode_raw(behind(from, bytes), frame) : UM_CAPTURED_FOREIGN;
}

static enum um_captured_frame_status decode_gre(rest from, um_captured_frame *frame)
{
    enum { BYTES = 4, WORD = 4, HAS_CHECKSUM = 0x8000, HAS_KEY = 0x2000, HAS_SQN = 0x1000, UNSUPPORTED = 0x4007 };
    if (from.captured < BYTES)
        return UM_CAPTURED_CUT;
    uint16_t flags = um_load_be16(from.data), protocol = um_load_be16(from.data + 2);
    if (flags & UNSUPPORTED)
        return UM_CAPTURED_FOREIGN;
    uint32_t bytes =
        BYTES + (flags & HAS_CHECKSUM ? WORD : 0) + (flags & HAS_KEY ? WORD : 0) + (flags & HAS_SQN ? WORD : 0);
    if (from.captured < bytes)
        return UM_CAPTURED_CUT;
    from = behind(from, bytes);
    if (protocol == ETHERTYPE_ERSPAN_3)
        return decode_erspan_3(from, frame);
    if (protocol == ETHERTYPE_ERSPAN)
        return flags & HAS_SQN ? decode_erspan_2(from, frame) : decode_in_tunnel(ETHERTYPE_BRIDGED, from, frame);
    return decode_in_tunnel(protocol, from, frame);
}

/* Opens VXLAN and GENEVE, if the fields that must be 0 are. Returns false for an ordinary datagram on their ports. */
static bool opens_udp_tunnel(um_captured_frame *frame, enum um_captured_frame_status *status)
{
    enum { BYTES = 8, VXLAN_FLAGS = 0x08000000, LENGTH_MASK = 0x3f, WORD = 4, CRITICAL_ONLY = 0x40 };
    rest from = {frame->payload, frame->payload_captured_bytes};
    if (frame->is_incomplete || from.captured < BYTES || from.data[BYTES - 1] != 0)
        return false;
    if (frame->destination_port == PORT_VXLAN) {
        if (um_load_be32(from.data) != VXLAN_FLAGS)
            return false;
        *status = decode_in_tunnel(ETHERTYPE_BRIDGED, behind(from, BYTES), frame);
        return true;
    }
    uint16_t protocol = um_load_be16(from.data + 2);
    if (from.data[0] > LENGTH_MASK || (from.data[1] & ~CRITICAL_ONLY) != 0 ||
        (protocol != ETHERTYPE_BRIDGED && protocol != UM_ETHERTYPE_IPV4 && protocol != UM_ETHERTYPE_IPV6))
        return false;
    uint32_t bytes = BYTES + (uint32_t)(from.data[0] & LENGTH_MASK) * WORD;
    *status = from.captured < bytes ? UM_CAPTURED_CUT : decode_in_tunnel(protocol, behind(from, bytes), frame);
    return true;
}

/* Below the labels is IP by its version, or Ethernet behind a control word. A group's address starts with 1, a control
 * word with 0. */
static enum um_captured_frame_status decode_mpls(rest from, um_captured_frame *frame)
{
    enum { LABEL_BYTES = 4, BOTTOM_AT = 2, CONTROL_BYTES = 4 };
    bool is_bottom = false;
    for (int labels = 0; !is_bottom; labels++) {
        if (labels == MPLS_LABELS_MAX)
            return UM_CAPTURED_FOREIGN;
        if (from.captured <= LABEL_BYTES)
            return UM_CAPTURED_CUT;
        is_bottom = (from.data[BOTTOM_AT] & 1) != 0;
        from = behind(from, LABEL_BYTES);
    }
    uint8_t first = from.data[0];
    if (!enter_tunnel(frame))
        return UM_CAPTURED_FOREIGN;
    if (first >> 4 == 4 || first >> 4 == 6)
        return decode_raw(from, frame);
    if (first > 1)
        return UM_CAPTURED_FOREIGN;
    if (first == 0 && from.captured < CONTROL_BYTES)
        return UM_CAPTURED_CUT;
    return decode_ethernet(first == 0 ? behind(from, CONTROL_BYTES) : from, frame);
}

/* The low byte of the version decides the length of the time. */
static enum um_captured_frame_status decode_arista(rest from, um_captured_frame *frame)
{
    enum { FIXED_BYTES = 4, SUBTYPE = 1, VERSION_AT = 3, LONG_TIME = 0x10, SHORT_TIME = 0x20, TYPE_BYTES = 2 };
    if (from.captured < FIXED_BYTES)
        return UM_CAPTURED_CUT;
    uint8_t version = from.data[VERSION_AT];
    if (um_load_be16(from.data) != SUBTYPE || (version != LONG_TIME && version != SHORT_TIME))
        return UM_CAPTURED_FOREIGN;
    uint32_t bytes = FIXED_BYTES + (version == LONG_TIME ? 8 : 6);
    if (from.captured < bytes + TYPE_BYTES)
        return UM_CAPTURED_CUT;
    if (frame->tunnel_count++ == TUNNELS_MAX)
        return UM_CAPTURED_FOREIGN;
    return decode_ether_type(um_load_be16(from.data + bytes), behind(from, bytes + TYPE_BYTES), frame);
}

static enum um_captured_frame_status decode_udp(rest from, uint32_t packet_bytes, um_captured_frame *frame)
{
    if (!frame->is_incomplete && packet_bytes < UM_UDP_HEADER_BYTES)
        return UM_CAPTURED_UDP_LENGTH;
    if (from.captured < UM_UDP_HEADER_BYTES)
        return UM_CAPTURED_CUT;
    uint32_t udp_bytes = um_load_be16(from.data + UM_UDP_LENGTH_AT);
    if (udp_bytes < UM_UDP_HEADER_BYTES || (udp_bytes > packet_bytes && !frame->is_incomplete))
        return UM_CAPTURED_UDP_LENGTH;
    frame->source_port = um_load_be16(from.data);
    frame->destination_port = um_load_be16(from.data + UM_UDP_TO_AT);
    frame->payload = from.data + UM_UDP_HEADER_BYTES;
    frame->payload_bytes = udp_bytes - UM_UDP_HEADER_BYTES;
    uint32_t there = (from.captured < packet_bytes ? from.captured : packet_bytes);
    there = there < UM_UDP_HEADER_BYTES ? 0 : there - UM_UDP_HEADER_BYTES;
    frame->payload_captured_bytes = there < frame->payload_bytes ? there : frame->payload_bytes;
    enum um_captured_frame_status inner;
    bool may_be_tunnel = frame->destination_port == PORT_VXLAN || frame->destination_port == PORT_GENEVE;
    if (UM_UNLIKELY(may_be_tunnel) && opens_udp_tunnel(frame, &inner))
        return inner;
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

static bool is_extension(uint8_t protocol)
{
    return protocol == PROTOCOL_HOP_BY_HOP || protocol == PROTOCOL_ROUTING || protocol == PROTOCOL_FRAGMENT ||
           protocol == PROTOCOL_DESTINATION;
}

static bool is_tunnel(uint8_t protocol)
{
    return protocol == PROTOCOL_GRE || protocol == PROTOCOL_IPV4 || protocol == PROTOCOL_IPV6;
}

static enum um_captured_frame_status decode_transport(uint8_t protocol, rest from, uint32_t packet_bytes,
                                                      um_captured_frame *frame)
{
    if (UM_LIKELY(protocol == UM_PROTOCOL_UDP))
        return decode_udp(from, packet_bytes, frame);
    if (frame->is_incomplete)
        return UM_CAPTURED_FOREIGN;
    if (protocol == PROTOCOL_TCP)
        return decode_tcp(from, packet_bytes, frame);
    rest inside = {from.data, from.captured < packet_bytes ? from.captured : packet_bytes};
    if (protocol == PROTOCOL_GRE)
        return decode_gre(inside, frame);
    return is_tunnel(protocol) && enter_tunnel(frame) ? decode_raw(inside, frame) : UM_CAPTURED_FOREIGN;
}

/* Only fragments of datagrams that can be opened are kept. All but the last must be multiples of eight bytes, because
 * offsets are. */
static enum um_captured_frame_status decode_fragment(uint32_t id, uint32_t offset, bool is_last, uint8_t protocol,
                                                     rest from, uint32_t packet_bytes, um_captured_frame *frame)
{
    enum { UNIT_BYTES = 8, DATAGRAM_BYTES_MAX = 65535 };
    frame->is_fragment = true;
    frame->fragment_count += frame->fragment_count == 0;
    if (protocol != UM_PROTOCOL_UDP && protocol != PROTOCOL_TCP && !is_tunnel(protocol) && !is_extension(protocol))
        return UM_CAPTURED_FOREIGN;
    if (packet_bytes == 0 || offset + packet_bytes > DATAGRAM_BYTES_MAX || (!is_last && packet_bytes % UNIT_BYTES != 0))
        return UM_CAPTURED_IP_HEADER;
    frame->protocol = protocol;
    frame->fragment_id = id;
    frame->fragment_offset = offset;
    frame->is_last_fragment = is_last;
    frame->payload = from.data;
    frame->payload_bytes = packet_bytes;
    frame->payload_captured_bytes = from.captured < packet_bytes ? from.captured : packet_bytes;
    return UM_CAPTURED_FRAGMENT;
}

/* A capture switch appends its trailer behind the outermost packet. */
static void set_network_end(um_captured_frame *frame, const uint8_t *packet, uint32_t bytes)
{
    if (frame->network_bytes == 0)
        frame->network_bytes = (uint32_t)(packet - frame->start) + bytes;
}

static enum um_captured_frame_status decode_ipv4(rest from, um_captured_frame *frame)
{
    enum { ID_AT = 4, MORE_FRAGMENTS = 0x2000, OFFSET_UNIT_BYTES = 8 };
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
    set_network_end(frame, from.data, total_bytes);
    uint16_t fragment = um_load_be16(from.data + UM_IPV4_FRAGMENT_AT);
    uint8_t protocol = from.data[UM_IPV4_PROTOCOL_AT];
    frame->is_fragment = (fragment & UM_IPV4_FRAGMENT_MASK) != 0;
    if (from.captured < header_bytes)
        return UM_CAPTURED_CUT;
    if (UM_UNLIKELY(frame->is_fragment))
        return decode_fragment(
            um_load_be16(from.data + ID_AT), (uint32_t)(fragment & UM_IPV4_OFFSET_MASK) * OFFSET_UNIT_BYTES,
            !(fragment & MORE_FRAGMENTS), protocol, behind(from, header_bytes), total_bytes - header_bytes, frame);
    return decode_transport(protocol, behind(from, header_bytes), total_bytes - header_bytes, frame);
}

/* Decodes extension headers, from the one of type `protocol` on, and the transport behind them. */
static enum um_captured_frame_status decode_extensions(uint8_t protocol, rest from, uint32_t packet_bytes,
                                                       um_captured_frame *frame)
{
    enum { WORD_AT = 2, OFFSET_MASK = 0xfff8, MORE_FRAGMENTS = 1, ID_AT = 4 };
    for (int i = 0; is_extension(protocol); i++) {
        if (packet_bytes < IPV6_EXTENSION_BYTES || i == IPV6_EXTENSIONS_MAX)
            return UM_CAPTURED_IP_HEADER;
        if (from.captured < IPV6_EXTENSION_BYTES)
            return UM_CAPTURED_CUT;
        bool has_fragment = protocol == PROTOCOL_FRAGMENT;
        const uint8_t *header = from.data;
        uint32_t bytes = has_fragment ? IPV6_EXTENSION_BYTES : ((uint32_t)header[1] + 1) * 8;
        if (bytes > packet_bytes)
            return UM_CAPTURED_IP_HEADER;
        if (bytes > from.captured)
            return UM_CAPTURED_CUT;
        protocol = header[0];
        packet_bytes -= bytes;
        from = behind(from, bytes);
        uint16_t word = um_load_be16(header + WORD_AT);
        /* A datagram in one fragment is whole. */
        if (has_fragment && (word & (OFFSET_MASK | MORE_FRAGMENTS)) != 0)
            return decode_fragment(um_load_be32(header + ID_AT), word & OFFSET_MASK, !(word & MORE_FRAGMENTS), protocol,
                                   from, packet_bytes, frame);
    }
    return decode_transport(protocol, from, packet_bytes, frame);
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
    set_network_end(frame, from.data, IPV6_BYTES + (uint32_t)um_load_be16(from.data + 4));
    return decode_extensions(from.data[6], behind(from, IPV6_BYTES), um_load_be16(from.data + 4), frame);
}

static enum um_captured_frame_status decode_ether_type(uint16_t ether_type, rest from, um_captured_frame *frame)
{
    for (int tags = 0;
         ether_type == UM_ETHERTYPE_VLAN || ether_type == UM_ETHERTYPE_SERVICE_VLAN || ether_type == ETHERTYPE_OLD_VLAN;
         tags++) {
        if (tags == VLAN_TAGS_MAX)
            return UM_CAPTURED_FOREIGN;
        if (from.captured < UM_VLAN_TAG_BYTES)
            return UM_CAPTURED_CUT;
        if (tags < 2)
            *(tags == 0 ? &frame->vlan : &frame->inner_vlan) = um_load_be16(from.data) & VLAN_MASK;
        ether_type = um_load_be16(from.data + 2);
        from = behind(from, UM_VLAN_TAG_BYTES);
    }
    if (UM_LIKELY(ether_type == UM_ETHERTYPE_IPV4))
        return decode_ipv4(from, frame);
    switch (ether_type) {
    case UM_ETHERTYPE_IPV6:
        return decode_ipv6(from, frame);
    case ETHERTYPE_MPLS:
    case ETHERTYPE_MPLS_MULTICAST:
        return decode_mpls(from, frame);
    case ETHERTYPE_ARISTA:
        return decode_arista(from, frame);
    default:
        return UM_CAPTURED_FOREIGN;
    }
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

/* The address family in the loopback header depends on the capturing host, so the IP version decides. */
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
        return decode_ethernet(from, frame);
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
    frame->start = data;
    frame->network_bytes = 0;
    frame->tunnel_count = 0;
    frame->is_fragment = false;
    frame->is_incomplete = false;
    frame->fragment_count = 0;
    frame->payload_bytes = 0;
    frame->payload_captured_bytes = 0;
    frame->status = decode_link(link_type, (rest){data, captured_bytes}, frame);
}

void um_captured_frame_decode_joined(um_captured_frame *frame, const uint8_t *data, uint32_t captured_bytes,
                                     uint32_t bytes)
{
    frame->payload_bytes = 0;
    frame->payload_captured_bytes = 0;
    rest joined = {data, captured_bytes};
    frame->status = frame->ip_version == 6 ? decode_extensions(frame->protocol, joined, bytes, frame)
                                           : decode_transport(frame->protocol, joined, bytes, frame);
    frame->is_fragment = true;
}
