#include "capture/reading/datagram.h"
#include "capture/reading/tally_private.h"

/* The destination of a segment's items. */
typedef struct segment_items {
    um_packet_rows *rows;
    um_packet_row *row;
    uint64_t unlisted_count;
} segment_items;

static void put_item(void *context, const um_lbmc_item *item)
{
    static const enum um_packet_row_kind kinds[] = {
        [UM_LBMC_ITEM_TSNI] = UM_PACKET_KIND_TSNI,
        [UM_LBMC_ITEM_REQUEST] = UM_PACKET_KIND_REQUEST,
        [UM_LBMC_ITEM_RANGE_REQUEST] = UM_PACKET_KIND_RANGE_REQUEST,
        [UM_LBMC_ITEM_RANGE] = UM_PACKET_KIND_RANGE,
        [UM_LBMC_ITEM_REGISTRATION] = UM_PACKET_KIND_REGISTRATION,
        [UM_LBMC_ITEM_REGISTERED] = UM_PACKET_KIND_REGISTERED,
        [UM_LBMC_ITEM_REFUSED] = UM_PACKET_KIND_REFUSED,
        [UM_LBMC_ITEM_STABLE] = UM_PACKET_KIND_STABLE,
        [UM_LBMC_ITEM_LOST] = UM_PACKET_KIND_LOST,
        [UM_LBMC_ITEM_CONSUMED] = UM_PACKET_KIND_CONSUMED,
        [UM_LBMC_ITEM_KEEPALIVE] = UM_PACKET_KIND_KEEPALIVE,
    };
    segment_items *into = context;
    if (into->row->message_count == UM_PACKETS_PACKET_ITEMS_MAX) {
        into->unlisted_count++;
        return;
    }
    uint32_t i = into->rows->message_count + into->row->message_count++;
    if (item->message != NULL)
        um_packet_rows_put_message(into->rows, i, um_packet_kind_of(item->message), item->message);
    else
        um_packet_rows_put_number(into->rows, i, kinds[item->kind], item);
}

static void decode_segment(um_capture_reader *reader, um_packet_rows *rows, const um_capture_packet *packet,
                           const um_captured_frame *frame, bool is_repeated, um_packet_row *row)
{
    segment_items into = {rows, row, 0};
    um_stream_taken taken = is_repeated ? um_streams_connection_of(&reader->streams, packet->interface, frame)
                                        : um_streams_take(&reader->streams, packet->interface, frame, put_item, &into);
    reader->streams.findings.unlisted_count += into.unlisted_count;
    row->status = um_packet_status_of_lbmc(taken.status);
    row->type = UM_PACKET_TCP;
    row->purpose = taken.purpose;
    row->session_id = taken.session_id;
    row->transport = UM_PACKET_LBTTCP;
    row->present = 1u << UM_PACKETS_TYPE | 1u << UM_PACKETS_MESSAGES |
                   (uint32_t)!taken.is_from_source << UM_PACKETS_TO_SOURCE |
                   (uint32_t)taken.is_session << UM_PACKETS_TRANSPORT | (uint32_t)taken.is_named << UM_PACKETS_SESSION |
                   (uint32_t)(taken.purpose != UM_STREAM_PURPOSE_UNKNOWN) << UM_PACKETS_RECOVERY;
}

static enum um_packet_row_status status_of_frame(enum um_captured_frame_status status)
{
    switch (status) {
    case UM_CAPTURED_UDP:
        return UM_PACKET_OK;
    case UM_CAPTURED_FRAGMENT:
        return UM_PACKET_IP_FRAGMENT;
    case UM_CAPTURED_LINK_TYPE:
        return UM_PACKET_LINK_TYPE;
    case UM_CAPTURED_CUT:
        return UM_PACKET_CUT;
    case UM_CAPTURED_IP_HEADER:
        return UM_PACKET_IP_HEADER;
    case UM_CAPTURED_UDP_LENGTH:
        return UM_PACKET_UDP_LENGTH;
    default:
        return UM_PACKET_NOT_OURS;
    }
}

static void note_link_type(um_capture_findings *findings, int32_t link_type)
{
    if (findings->unknown_link_count++ == 0)
        findings->unknown_link_type = link_type;
}

static bool is_session_selected(const um_packet_selection *selection, const um_packet_row *row)
{
    if (!(row->present & 1u << UM_PACKETS_SESSION))
        return false;
    for (uint32_t i = 0; i < selection->session_count; i++) {
        if (selection->sessions[i] == row->session_id)
            return true;
    }
    return false;
}

static bool is_destination_selected(const um_packet_selection *selection, const um_captured_frame *frame)
{
    if (frame->ip_version == 0)
        return false;
    for (uint32_t i = 0; i < selection->destination_count; i++) {
        if (selection->destinations[i].ip_version == frame->ip_version &&
            memcmp(selection->destinations[i].address, frame->destination, frame->ip_version == 4 ? 4 : 16) == 0)
            return true;
    }
    return false;
}

static bool is_time_selected(const um_packet_selection *selection, const um_capture_packet *packet)
{
    return !selection->by_time || (packet->is_timed && packet->time_ns >= selection->time_low_ns &&
                                   packet->time_ns <= selection->time_high_ns);
}

static bool is_selected(const um_packet_selection *selection, const um_captured_frame *frame, const um_packet_row *row)
{
    if (selection->types != 0 &&
        !(row->present & 1u << UM_PACKETS_TYPE && selection->types & 1u << (uint32_t)row->type))
        return false;
    return (selection->session_count == 0 || is_session_selected(selection, row)) &&
           (selection->destination_count == 0 || is_destination_selected(selection, frame));
}

/* Returns true for packets that may be sent twice within microseconds, because they answer two others, or because a
 * path of so short a round trip lost the first one. */
static bool may_be_sent_twice(const um_captured_frame *frame, const um_packet_row *row)
{
    enum { TCP_ACK = 0x10 };
    if (!(row->present & 1u << UM_PACKETS_TYPE))
        return false;
    if (row->present & 1u << UM_PACKETS_RETRANSMISSION)
        return true;
    switch (row->type) {
    case UM_PACKET_NAK:
    case UM_PACKET_NCF:
    case UM_PACKET_STATUS_MESSAGE:
    case UM_PACKET_FILTER_REPORT:
        return true;
    case UM_PACKET_TCP:
        return frame->payload_bytes == 0 && frame->tcp_flags == TCP_ACK;
    default:
        return false;
    }
}

static void decode_frame(um_capture_reader *reader, um_packet_rows *rows, const um_packet_rows_options *options,
                         const um_capture_packet *packet, uint64_t position, um_captured_frame *frame,
                         um_copy_found copy)
{
    um_packet_row row = {0};
    if (!is_time_selected(&options->selection, packet)) {
        if (!copy.is_repeated)
            um_streams_follow(&reader->streams, packet->interface, frame);
        return;
    }
    uint32_t resolution_bytes = rows->resolution_bytes;
    row.status = status_of_frame(frame->status);
    if (UM_LIKELY(frame->status == UM_CAPTURED_UDP)) {
        um_packet_row_decode_datagram(rows, &options->ports, frame, &row);
        if (frame->is_incomplete && row.status == UM_PACKET_OK)
            row.status = UM_PACKET_IP_FRAGMENT;
    } else if (um_streams_has(&reader->streams, frame)) {
        decode_segment(reader, rows, packet, frame, copy.is_repeated, &row);
    } else if (frame->status == UM_CAPTURED_TCP_CUT && um_streams_has_ports(&reader->streams, frame)) {
        row.status = UM_PACKET_CUT;
    } else if (frame->status > UM_CAPTURED_TCP_CUT) {
        frame->source_port = 0;
        frame->destination_port = 0;
    }
    if (UM_UNLIKELY(packet->interface < 0))
        row.status = UM_PACKET_INTERFACE;
    else if (UM_UNLIKELY(row.status == UM_PACKET_LINK_TYPE))
        note_link_type(&reader->findings, packet->link_type);
    if (row.status == UM_PACKET_NOT_OURS && options->only_ours)
        return;
    bool is_copy = copy.is_repeated && (copy.is_mirrored || !may_be_sent_twice(frame, &row));
    row.present |= (uint32_t)is_copy << UM_PACKETS_COPY;
    if (!is_selected(&options->selection, frame, &row) ||
        (options->tally != NULL && um_tally_take(options->tally, rows, packet, frame, &row))) {
        rows->resolution_bytes = resolution_bytes;
        return;
    }
    um_packet_rows_append(rows, position, packet, frame, &row);
}

/* A fragment becomes a row with its datagram. */
static void decode_packet(um_capture_reader *reader, um_packet_rows *rows, const um_packet_rows_options *options,
                          um_capture_packet *packet, uint64_t position)
{
    um_captured_frame frame;
    um_captured_frame_decode(packet->link_type, packet->data, packet->captured_bytes, &frame);
    um_capture_retime(reader, packet, &frame);
    um_copy_found copy = um_copies_take(&reader->copies, packet, &frame);
    if (UM_UNLIKELY(frame.status == UM_CAPTURED_FRAGMENT) && !copy.is_repeated &&
        um_fragments_hold(&reader->fragments, packet, position, &frame))
        return;
    decode_frame(reader, rows, options, packet, position, &frame, copy);
}

enum um_capture_step um_packet_rows_decode(um_capture_reader *reader, um_packet_rows *rows,
                                           const um_packet_rows_options *options, const uint8_t *data, uint64_t length,
                                           uint64_t base, uint64_t until, uint64_t *at)
{
    for (;;) {
        if (um_packet_rows_full(rows) || (options->tally != NULL && um_tally_full(options->tally)))
            return UM_CAPTURE_FULL;
        um_joined_datagram joined;
        if (um_fragments_pop(&reader->fragments, &joined)) {
            decode_frame(reader, rows, options, &joined.packet, joined.position, &joined.frame,
                         (um_copy_found){false, false});
            continue;
        }
        um_capture_packet packet;
        enum um_capture_step step = um_capture_next(reader, data, length, base, until, at, &packet);
        if (step != UM_CAPTURE_PACKET)
            return step;
        decode_packet(reader, rows, options, &packet, base + packet.position);
    }
}
