#include "capture/reading/hardware_time.h"

enum { NS_PER_S = 1000000000 };

bool um_trailer_time(const um_capture_packet *packet, const um_captured_frame *frame, int64_t *time_ns)
{
    enum { TRAILER_BYTES = 12, CHECK_BYTES = 4, NEAR_S = 30 * 86400 };
    if (frame->network_bytes == 0 || packet->captured_bytes != packet->frame_bytes)
        return false;
    for (uint32_t check_bytes = 0; check_bytes <= CHECK_BYTES; check_bytes += CHECK_BYTES) {
        if (packet->captured_bytes < (uint64_t)frame->network_bytes + TRAILER_BYTES + check_bytes)
            return false;
        const uint8_t *trailer = packet->data + packet->captured_bytes - check_bytes - TRAILER_BYTES;
        int64_t seconds = um_load_be32(trailer), nanoseconds = um_load_be32(trailer + 4);
        int64_t off_s = packet->is_timed ? seconds - packet->time_ns / NS_PER_S : 0;
        if (seconds > 0 && nanoseconds < NS_PER_S && off_s >= -NEAR_S && off_s <= NEAR_S) {
            *time_ns = seconds * NS_PER_S + nanoseconds;
            return true;
        }
    }
    return false;
}

enum erf_type {
    ERF_ETHERNET = 2,
    ERF_COLOR_ETHERNET = 11,
    ERF_DSM_COLOR_ETHERNET = 16,
    ERF_COLOR_HASH_ETHERNET = 20,
    ERF_IPV4 = 22,
    ERF_IPV6 = 23,
    ERF_META = 27,
    ERF_PAD = 48,
};

enum { ERF_MORE = 0x80, ERF_EXTENSION_BYTES = 8 };

/* Offsets in a record's header. */
enum { TYPE_AT = 8, FLAGS_AT = 9, RECORD_BYTES_AT = 10, LOST_AT = 12, WIRE_BYTES_AT = 14 };

enum { LINK_ETHERNET = 1, LINK_IPV4 = 228, LINK_IPV6 = 229 };

/* Returns the link type of a record's content, or -1. */
static int32_t link_type_of(uint8_t type)
{
    switch (type) {
    case ERF_ETHERNET:
    case ERF_COLOR_ETHERNET:
    case ERF_DSM_COLOR_ETHERNET:
    case ERF_COLOR_HASH_ETHERNET:
        return LINK_ETHERNET;
    case ERF_IPV4:
        return LINK_IPV4;
    case ERF_IPV6:
        return LINK_IPV6;
    default:
        return -1;
    }
}

static uint32_t load_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int64_t erf_time_ns(const uint8_t *data)
{
    uint64_t fraction = (uint64_t)load_le32(data) * NS_PER_S >> 32;
    return (int64_t)load_le32(data + 4) * NS_PER_S + (int64_t)fraction;
}

bool um_erf_read(const uint8_t *data, um_erf_header *header)
{
    enum { INTERFACE_MASK = 3, RESERVED_FLAGS = 0xc0, EARLIEST_S = 631152000 /* 1990 */ };
    uint8_t flags = data[FLAGS_AT];
    *header = (um_erf_header){.type = data[TYPE_AT] & (ERF_MORE - 1),
                              .record_bytes = um_load_be16(data + RECORD_BYTES_AT),
                              .interface = flags & INTERFACE_MASK,
                              .time_ns = erf_time_ns(data)};
    /* Other types have a color there. */
    if (header->type == ERF_ETHERNET)
        header->lost_count = um_load_be16(data + LOST_AT);
    bool is_known = link_type_of(header->type) >= 0 || um_erf_is_skipped(header);
    return is_known && header->record_bytes >= UM_ERF_HEADER_BYTES && (flags & RESERVED_FLAGS) == 0 &&
           (um_erf_is_skipped(header) || load_le32(data + 4) >= EARLIEST_S);
}

bool um_erf_may_start(const uint8_t *data, uint64_t bytes)
{
    if (bytes <= TYPE_AT)
        return true;
    um_erf_header header = {.type = data[TYPE_AT] & (ERF_MORE - 1)};
    return link_type_of(header.type) >= 0 || um_erf_is_skipped(&header);
}

bool um_erf_is_skipped(const um_erf_header *header)
{
    return header->type == ERF_META || header->type == ERF_PAD;
}

bool um_erf_open(um_capture_packet *packet, int64_t *time_ns)
{
    enum { ETHERNET_PAD_BYTES = 2 };
    if (packet->captured_bytes < UM_ERF_HEADER_BYTES)
        return false;
    const uint8_t *data = packet->data;
    int32_t link_type = link_type_of(data[TYPE_AT] & (ERF_MORE - 1));
    uint32_t end = um_load_be16(data + RECORD_BYTES_AT), wire_bytes = um_load_be16(data + WIRE_BYTES_AT);
    if (end > packet->captured_bytes)
        end = packet->captured_bytes;
    uint32_t at = UM_ERF_HEADER_BYTES;
    for (uint8_t more = data[TYPE_AT] & ERF_MORE; more != 0; at += ERF_EXTENSION_BYTES) {
        if (at + ERF_EXTENSION_BYTES > end)
            return false;
        more = data[at] & ERF_MORE;
    }
    at += link_type == LINK_ETHERNET ? ETHERNET_PAD_BYTES : 0;
    if (link_type < 0 || at > end)
        return false;
    *time_ns = erf_time_ns(data);
    packet->link_type = link_type;
    packet->data = data + at;
    /* Records are padded. */
    packet->captured_bytes = end - at < wire_bytes ? end - at : wire_bytes;
    packet->frame_bytes = wire_bytes;
    return true;
}
