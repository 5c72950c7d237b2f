#include "capture/reading/rows_private.h"

#include <arpa/inet.h>

#define COLUMN_BITS_PER_BYTE 8
#define PRESENT_BYTES 4

_Static_assert(UM_PACKETS_BITS <= PRESENT_BYTES * COLUMN_BITS_PER_BYTE, "a row's bits are taken in bytes");
_Static_assert(UM_PACKETS_MESSAGE_BITS <= COLUMN_BITS_PER_BYTE, "a message's bits fit into one byte");

static const char STATUS_TEXTS[UM_PACKET_STATUSES][UM_PACKETS_STATUS_BYTES_MAX] = {
    [UM_PACKET_OK] = "ok",
    [UM_PACKET_NOT_OURS] = "not ours",
    [UM_PACKET_IP_FRAGMENT] = "IP fragment",
    [UM_PACKET_LINK_TYPE] = "link type not known",
    [UM_PACKET_INTERFACE] = "interface not described",
    [UM_PACKET_CUT] = "cut before the end of its headers",
    [UM_PACKET_IP_HEADER] = "malformed IP header",
    [UM_PACKET_UDP_LENGTH] = "malformed UDP length",
    [UM_PACKET_LBTRM_SIZE] = "LBT-RM: shorter than its fields say",
    [UM_PACKET_LBTRM_TYPE] = "LBT-RM: unknown type",
    [UM_PACKET_LBTRM_VERSION] = "LBT-RM: unknown version",
    [UM_PACKET_LBTRM_HEADER] = "LBT-RM: malformed header",
    [UM_PACKET_LBTRU_SIZE] = "LBT-RU: shorter than its fields say",
    [UM_PACKET_LBTRU_TYPE] = "LBT-RU: unknown type",
    [UM_PACKET_LBTRU_VERSION] = "LBT-RU: unknown version",
    [UM_PACKET_LBTRU_HEADER] = "LBT-RU: malformed header",
    [UM_PACKET_LBMC_SIZE] = "LBMC: longer than its datagram",
    [UM_PACKET_LBMC_TYPE] = "LBMC: unknown type",
    [UM_PACKET_LBMC_VERSION] = "LBMC: unknown version",
    [UM_PACKET_LBMC_HEADER] = "LBMC: malformed header or option",
    [UM_PACKET_LBMR] = "LBMR: malformed header",
};

static const char TYPE_TEXTS[UM_PACKET_TYPES][UM_PACKETS_TYPE_BYTES_MAX] = {
    [UM_PACKET_DATA] = "DATA",
    [UM_PACKET_SM] = "SM",
    [UM_PACKET_NAK] = "NAK",
    [UM_PACKET_NCF] = "NCF",
    [UM_PACKET_LBMR_TYPE] = "LBMR",
    [UM_PACKET_STATUS_MESSAGE] = "STATUS",
    [UM_PACKET_TCP] = "TCP",
    [UM_PACKET_ACK] = "ACK",
    [UM_PACKET_CREQ] = "CREQ",
    [UM_PACKET_RST] = "RST",
    [UM_PACKET_FILTER_REPORT] = "FILTER",
};

static const char TRANSPORT_TEXTS[UM_PACKET_TRANSPORTS][UM_PACKETS_TRANSPORT_BYTES_MAX] = {
    [UM_PACKET_LBTRM] = "LBT-RM",
    [UM_PACKET_LBTRU] = "LBT-RU",
    [UM_PACKET_LBTTCP] = "LBT-TCP",
};

/* NCF reasons by their number on the wire; others are `unknown`. */
static const char REASON_TEXTS[][UM_PACKETS_REASON_BYTES_MAX] = {"no_retry", "ignored", "rx_delay", "shed", "unknown"};

static const char RECOVERY_TEXTS[UM_STREAM_PURPOSES][UM_PACKETS_RECOVERY_BYTES_MAX] = {
    [UM_STREAM_LATE_JOIN] = "late_join",
    [UM_STREAM_OFF_TRANSPORT] = "off_transport",
    [UM_STREAM_TO_STORE] = "store",
};

static const char KIND_TEXTS[UM_PACKET_KINDS][UM_PACKETS_KIND_BYTES_MAX] = {
    [UM_PACKET_KIND_MESSAGE] = "message",
    [UM_PACKET_KIND_END] = "end",
    [UM_PACKET_KIND_PROACTIVE] = "proactive",
    [UM_PACKET_KIND_RECOVERED] = "recovered",
    [UM_PACKET_KIND_CONTROL] = "control",
    [UM_PACKET_KIND_TSNI] = "tsni",
    [UM_PACKET_KIND_STATUS] = "status",
    [UM_PACKET_KIND_EXTENDED] = "extended",
    [UM_PACKET_KIND_TAG] = "tag",
    [UM_PACKET_KIND_REQUEST] = "request",
    [UM_PACKET_KIND_RANGE_REQUEST] = "range_request",
    [UM_PACKET_KIND_RANGE] = "range",
    [UM_PACKET_KIND_REGISTRATION] = "registration",
    [UM_PACKET_KIND_REGISTERED] = "registered",
    [UM_PACKET_KIND_REFUSED] = "refused",
    [UM_PACKET_KIND_STABLE] = "stable",
    [UM_PACKET_KIND_LOST] = "lost",
    [UM_PACKET_KIND_CONSUMED] = "consumed",
    [UM_PACKET_KIND_KEEPALIVE] = "keepalive",
};

static const char VERDICT_TEXTS[UM_CAPTURE_VERDICTS][UM_PACKETS_VERDICT_BYTES_MAX] = {
    [UM_CAPTURE_XDP_ABORTED] = "XDP_ABORTED",   [UM_CAPTURE_XDP_DROP] = "XDP_DROP",
    [UM_CAPTURE_XDP_PASS] = "XDP_PASS",         [UM_CAPTURE_XDP_TX] = "XDP_TX",
    [UM_CAPTURE_XDP_REDIRECT] = "XDP_REDIRECT", [UM_CAPTURE_OTHER_VERDICT] = "other",
};

/* Texts. Short copies of a fixed size take few instructions; the next row overwrites the excess. */

static inline void put_text(um_packet_rows_text *column, uint32_t row, const char *text, size_t copied_bytes)
{
    int32_t at = column->offsets[row];
    memcpy(column->data + at, text, copied_bytes);
    column->offsets[row + 1] = at + (int32_t)strlen(text);
}

static inline void put_nothing(um_packet_rows_text *column, uint32_t row)
{
    column->offsets[row + 1] = column->offsets[row];
}

static inline char *put_octet(char *out, unsigned octet)
{
    if (octet >= 100)
        *out++ = (char)('0' + octet / 100);
    if (octet >= 10)
        *out++ = (char)('0' + octet / 10 % 10);
    *out++ = (char)('0' + octet % 10);
    return out;
}

static inline void put_address(um_packet_rows_text *column, uint32_t row, const uint8_t *address, uint8_t ip_version)
{
    char *start = column->data + column->offsets[row];
    char *end = start;
    if (UM_LIKELY(ip_version == 4)) {
        for (int i = 0; i < 4; i++) {
            if (i > 0)
                *end++ = '.';
            end = put_octet(end, address[i]);
        }
    } else {
        end += inet_ntop(AF_INET6, address, start, UM_PACKETS_ADDRESS_BYTES_MAX) == NULL ? 0 : strlen(start);
    }
    column->offsets[row + 1] = column->offsets[row] + (int32_t)(end - start);
}

/* Rows */

void um_packet_rows_begin(um_packet_rows *rows)
{
    um_packet_rows_text *texts[] = {&rows->source_address, &rows->destination_address,
                                    &rows->status,         &rows->packet_type,
                                    &rows->ncf_reason,     &rows->kind,
                                    &rows->verdict,        &rows->recovery,
                                    &rows->transport};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        texts[i]->offsets[0] = 0;
    rows->sqn_offsets[0] = 0;
    rows->message_offsets[0] = 0;
    rows->row_count = 0;
    rows->message_count = 0;
    rows->sqn_count = 0;
    rows->resolution_bytes = 0;
}

bool um_packet_rows_full(const um_packet_rows *rows)
{
    return rows->row_count >= rows->row_capacity ||
           rows->message_capacity - rows->message_count < UM_PACKETS_PACKET_ITEMS_MAX ||
           rows->sqn_capacity - rows->sqn_count < UM_PACKETS_PACKET_ITEMS_MAX ||
           (rows->resolution_bytes > 0 &&
            rows->resolution_capacity - rows->resolution_bytes < UM_PACKETS_RESOLUTION_BYTES_MAX);
}

void um_packet_rows_put_resolution(um_packet_rows *rows, const uint8_t *payload, uint32_t bytes)
{
    uint32_t head[2] = {rows->row_count, bytes};
    if (bytes > UM_PACKETS_RESOLUTION_BYTES_MAX - sizeof head ||
        rows->resolution_capacity - rows->resolution_bytes < sizeof head + bytes)
        return;
    uint8_t *at = rows->resolution + rows->resolution_bytes;
    memcpy(at, head, sizeof head);
    memcpy(at + sizeof head, payload, bytes);
    rows->resolution_bytes += (uint32_t)sizeof head + bytes;
}

static inline void append_frame(um_packet_rows *rows, uint32_t i, const um_capture_packet *packet,
                                const um_captured_frame *frame)
{
    rows->time_ns[i] = packet->time_ns;
    rows->interface_id[i] = packet->interface;
    rows->link_type[i] = packet->link_type;
    rows->frame_bytes[i] = (int32_t)packet->frame_bytes;
    rows->captured_bytes[i] = (int32_t)packet->captured_bytes;
    rows->vlan[i] = frame->vlan < 0 ? 0 : frame->vlan;
    rows->inner_vlan[i] = frame->inner_vlan < 0 ? 0 : frame->inner_vlan;
    rows->queue[i] = packet->queue_number == 0 ? 0 : (int64_t)packet->queue_number - 1;
    rows->dropped[i] = packet->has_drop_count ? (int64_t)packet->drop_count : 0;
    if (packet->verdict != UM_CAPTURE_NO_VERDICT)
        put_text(&rows->verdict, i, VERDICT_TEXTS[packet->verdict], UM_PACKETS_VERDICT_BYTES_MAX);
    else
        put_nothing(&rows->verdict, i);
    rows->source_port[i] = frame->source_port;
    rows->destination_port[i] = frame->destination_port;
    rows->ip_fragments[i] = (int32_t)frame->fragment_count;
    rows->udp_bytes[i] = (int32_t)frame->payload_bytes;
    rows->tcp_bytes[i] = (int32_t)frame->payload_bytes;
    rows->tcp_flags[i] = frame->tcp_flags;
    if (frame->ip_version != 0) {
        put_address(&rows->source_address, i, frame->source, frame->ip_version);
        put_address(&rows->destination_address, i, frame->destination, frame->ip_version);
    } else {
        put_nothing(&rows->source_address, i);
        put_nothing(&rows->destination_address, i);
    }
}

static inline uint32_t frame_bits(const um_capture_packet *packet, const um_captured_frame *frame)
{
    return (uint32_t)packet->is_timed << UM_PACKETS_TIME | (uint32_t)(frame->vlan >= 0) << UM_PACKETS_VLAN |
           (uint32_t)(frame->inner_vlan >= 0) << UM_PACKETS_INNER_VLAN |
           (uint32_t)(packet->queue_number != 0) << UM_PACKETS_QUEUE |
           (uint32_t)packet->has_drop_count << UM_PACKETS_DROPPED |
           (uint32_t)(packet->verdict != UM_CAPTURE_NO_VERDICT) << UM_PACKETS_VERDICT |
           (uint32_t)(frame->ip_version != 0) << UM_PACKETS_IP |
           (uint32_t)(frame->status == UM_CAPTURED_UDP) << UM_PACKETS_UDP |
           (uint32_t)(frame->status == UM_CAPTURED_TCP) << UM_PACKETS_TCP |
           (uint32_t)(frame->status <= UM_CAPTURED_TCP_CUT) << UM_PACKETS_PORTS |
           (uint32_t)frame->is_fragment << UM_PACKETS_IP_FRAGMENT;
}

void um_packet_rows_append(um_packet_rows *rows, uint64_t position, const um_capture_packet *packet,
                           const um_captured_frame *frame, const um_packet_row *row)
{
    uint32_t i = rows->row_count++;
    rows->position[i] = (int64_t)position;
    append_frame(rows, i, packet, frame);
    put_text(&rows->status, i, STATUS_TEXTS[row->status], UM_PACKETS_STATUS_BYTES_MAX);
    if (row->present & 1u << UM_PACKETS_TYPE)
        put_text(&rows->packet_type, i, TYPE_TEXTS[row->type], UM_PACKETS_TYPE_BYTES_MAX);
    else
        put_nothing(&rows->packet_type, i);
    if (row->present & 1u << UM_PACKETS_NCF)
        put_text(&rows->ncf_reason, i, REASON_TEXTS[row->ncf_reason > 3 ? 4 : row->ncf_reason],
                 UM_PACKETS_REASON_BYTES_MAX);
    else
        put_nothing(&rows->ncf_reason, i);
    if (row->present & 1u << UM_PACKETS_RECOVERY)
        put_text(&rows->recovery, i, RECOVERY_TEXTS[row->purpose], UM_PACKETS_RECOVERY_BYTES_MAX);
    else
        put_nothing(&rows->recovery, i);
    if (row->present & 1u << UM_PACKETS_TRANSPORT)
        put_text(&rows->transport, i, TRANSPORT_TEXTS[row->transport], UM_PACKETS_TRANSPORT_BYTES_MAX);
    else
        put_nothing(&rows->transport, i);
    rows->session_id[i] = row->session_id;
    rows->nak_port[i] = row->nak_port;
    rows->client_id[i] = row->client_id;
    rows->ack_sqn[i] = row->ack_sqn;
    rows->transport_flags[i] = row->transport_flags;
    rows->transport_sqn[i] = row->transport_sqn;
    rows->sm_sqn[i] = row->sm_sqn;
    rows->lead_sqn[i] = row->lead_sqn;
    rows->trail_sqn[i] = row->trail_sqn;
    rows->next_sqn[i] = row->status_message.next_sqn;
    rows->window_bytes[i] = row->status_message.window_bytes;
    rows->group_tag[i] = row->status_message.group_tag;
    rows->receiver_id[i] = (int64_t)row->status_message.receiver_id;
    rows->present[i] = row->present | frame_bits(packet, frame);
    rows->sqn_count += row->sqn_count;
    rows->message_count += row->message_count;
    rows->sqn_offsets[i + 1] = (int32_t)rows->sqn_count;
    rows->message_offsets[i + 1] = (int32_t)rows->message_count;
}

void um_packet_rows_put_message(um_packet_rows *rows, uint32_t i, enum um_packet_row_kind kind,
                                const um_lbmc_message *message)
{
    bool topic = kind == UM_PACKET_KIND_MESSAGE || kind == UM_PACKET_KIND_PROACTIVE || kind == UM_PACKET_KIND_RECOVERED;
    bool is_fragment = message->flags & UM_MESSAGE_FRAGMENT;
    rows->topic_index[i] = topic ? message->topic_index : 0;
    rows->topic_sqn[i] = topic ? message->sqn : 0;
    rows->first_sqn[i] = is_fragment ? message->first_sqn : topic ? message->sqn : 0;
    rows->fragment_offset[i] = is_fragment ? message->offset : 0;
    rows->message_length[i] = is_fragment ? message->total : topic ? message->payload_length : 0;
    rows->payload_bytes[i] = (int32_t)message->payload_length;
    rows->sent_ns[i] = message->sent_ns;
    rows->message_present[i] =
        (uint8_t)((topic ? 1u << UM_PACKETS_MESSAGE_TOPIC | 1u << UM_PACKETS_MESSAGE_LENGTH : 0) |
                  (uint32_t)(message->sent_ns != 0) << UM_PACKETS_MESSAGE_SENT);
    put_text(&rows->kind, i, KIND_TEXTS[kind], UM_PACKETS_KIND_BYTES_MAX);
}

void um_packet_rows_put_number(um_packet_rows *rows, uint32_t i, enum um_packet_row_kind kind, const um_lbmc_item *item)
{
    bool is_range = kind == UM_PACKET_KIND_STABLE || kind == UM_PACKET_KIND_LOST;
    rows->topic_index[i] = item->topic_index;
    rows->topic_sqn[i] = item->sqn;
    rows->first_sqn[i] = item->first_sqn;
    rows->fragment_offset[i] = 0;
    rows->message_length[i] = 0;
    rows->payload_bytes[i] = 0;
    rows->sent_ns[i] = 0;
    rows->message_present[i] =
        (uint8_t)(1u << UM_PACKETS_MESSAGE_TOPIC | (uint32_t)is_range << UM_PACKETS_MESSAGE_LENGTH);
    put_text(&rows->kind, i, KIND_TEXTS[kind], UM_PACKETS_KIND_BYTES_MAX);
}

/* Bitmaps. Eight rows' bits are an 8 by 8 matrix; its transpose is a byte of each of eight bitmaps. */

static uint64_t transpose(uint64_t m)
{
    uint64_t t = (m ^ (m >> 7)) & UINT64_C(0x00aa00aa00aa00aa);
    m ^= t ^ (t << 7);
    t = (m ^ (m >> 14)) & UINT64_C(0x0000cccc0000cccc);
    m ^= t ^ (t << 14);
    t = (m ^ (m >> 28)) & UINT64_C(0x00000000f0f0f0f0);
    return m ^ t ^ (t << 28);
}

static void spread(uint64_t bits_of_eight, uint8_t **bitmaps, uint32_t bitmap_count, uint32_t byte)
{
    uint64_t columns = transpose(bits_of_eight);
    for (uint32_t bit = 0; bit < bitmap_count; bit++)
        bitmaps[bit][byte] = (uint8_t)(columns >> COLUMN_BITS_PER_BYTE * bit);
}

static uint32_t count_set(const uint8_t *bitmap, uint32_t bytes)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < bytes; at += 8) {
        uint64_t word;
        memcpy(&word, bitmap + at, sizeof word);
        count += (uint32_t)__builtin_popcountll(word);
    }
    return count;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void finish_rows(um_packet_rows *rows)
{
    uint32_t padded = (uint32_t)um_align_up(rows->row_count, UM_PACKETS_MULTIPLE);
    memset(rows->present + rows->row_count, 0, sizeof *rows->present * (padded - rows->row_count));
    for (uint32_t row = 0; row < padded; row += 8) {
        for (uint32_t byte = 0; byte < PRESENT_BYTES; byte++) {
            uint64_t bits = 0;
            for (uint32_t k = 0; k < 8; k++)
                bits |= (uint64_t)(uint8_t)(rows->present[row + k] >> 8 * byte) << 8 * k;
            uint32_t first = byte * COLUMN_BITS_PER_BYTE;
            spread(bits, rows->bitmaps + first, min_u32(UM_PACKETS_BITS - first, COLUMN_BITS_PER_BYTE), row / 8);
        }
    }
    for (uint32_t bit = 0; bit < UM_PACKETS_BITS; bit++)
        rows->set_counts[bit] = count_set(rows->bitmaps[bit], padded / 8);
}

static void finish_messages(um_packet_rows *rows)
{
    uint32_t padded = (uint32_t)um_align_up(rows->message_count, UM_PACKETS_MULTIPLE);
    memset(rows->message_present + rows->message_count, 0, padded - rows->message_count);
    for (uint32_t message = 0; message < padded; message += 8) {
        uint64_t bits;
        memcpy(&bits, rows->message_present + message, sizeof bits);
        spread(bits, rows->message_bitmaps, UM_PACKETS_MESSAGE_BITS, message / 8);
    }
    for (uint32_t bit = 0; bit < UM_PACKETS_MESSAGE_BITS; bit++)
        rows->message_set_counts[bit] = count_set(rows->message_bitmaps[bit], padded / 8);
}

void um_packet_rows_finish(um_packet_rows *rows)
{
    finish_rows(rows);
    finish_messages(rows);
}
