#include "capture/reading/row.h"
#include "core/authentication.h"

static enum um_packet_row_status status_of_lbtrm(enum um_dgram_status status)
{
    switch (status) {
    case UM_DGRAM_OK:
        return UM_PACKET_OK;
    case UM_DGRAM_SIZE:
        return UM_PACKET_LBTRM_SIZE;
    case UM_DGRAM_TYPE:
        return UM_PACKET_LBTRM_TYPE;
    case UM_DGRAM_VERSION:
        return UM_PACKET_LBTRM_VERSION;
    case UM_DGRAM_CUT:
        return UM_PACKET_CUT;
    default:
        return UM_PACKET_LBTRM_HEADER;
    }
}

/* A message that the capture cut is no fault: the datagram's own fields are whole. */
static enum um_packet_row_status status_of_lbmc(enum um_dgram_status status)
{
    switch (status) {
    case UM_DGRAM_OK:
    case UM_DGRAM_CUT:
        return UM_PACKET_OK;
    case UM_DGRAM_SIZE:
        return UM_PACKET_LBMC_SIZE;
    case UM_DGRAM_TYPE:
        return UM_PACKET_LBMC_TYPE;
    case UM_DGRAM_VERSION:
        return UM_PACKET_LBMC_VERSION;
    default:
        return UM_PACKET_LBMC_HEADER;
    }
}

static enum um_packet_row_kind kind_of(const um_lbmc_message *message)
{
    switch (message->type) {
    case UM_LBMC_MESSAGE:
        return UM_PACKET_KIND_MESSAGE;
    case UM_LBMC_PROACTIVE:
        return UM_PACKET_KIND_PROACTIVE;
    case UM_LBMC_RECOVERED:
        return UM_PACKET_KIND_RECOVERED;
    case UM_LBMC_END:
        return UM_PACKET_KIND_END;
    default:
        break;
    }
    if (message->extended == NULL)
        return message->has_tag ? UM_PACKET_KIND_TAG : UM_PACKET_KIND_CONTROL;
    return message->extended_id == UM_STATUS_OPTION_ID && message->extended_subtype == UM_STATUS_OPTION_SUBTYPE
               ? UM_PACKET_KIND_STATUS
               : UM_PACKET_KIND_EXTENDED;
}

/* A TSNI is one entry a record; the control message that carries nothing else has none of its own. */
static void put_message(um_packet_rows *rows, um_packet_row *row, const um_lbmc_message *message)
{
    enum um_packet_row_kind kind = kind_of(message);
    if (kind != UM_PACKET_KIND_CONTROL || message->tsni_count == 0)
        um_packet_rows_put_message(rows, rows->message_count + row->message_count++, kind, message);
    for (uint32_t i = 0; i < message->tsni_count; i++) {
        const uint8_t *record = message->tsni + (size_t)UM_LBMC_TSNI_RECORD_BYTES * i;
        um_packet_rows_put_number(rows, rows->message_count + row->message_count++, UM_PACKET_KIND_TSNI,
                                  um_load_be32(record), um_load_be32(record + 4));
    }
}

static void take_status_message(um_packet_row *row, const um_packet *packet)
{
    if (!um_status_decode(packet, &row->status_message))
        return;
    row->type = UM_PACKET_STATUS_MESSAGE;
    row->present |= 1u << UM_PACKETS_STATUS;
}

static bool to_multicast(const um_captured_frame *frame)
{
    return frame->ip_version == 4 ? frame->destination[0] >> 4 == 0xe : frame->destination[0] == 0xff;
}

/* Whether a DATA datagram of which the capture holds too little may be a status message, which is a DATA datagram with
 * one extended option. Called data, it would show a session of the receiver's. The captured bytes of the option decide;
 * without any, the address does: a session sends to its group, a receiver to one host. */
static bool may_be_status(const um_captured_frame *frame, const uint8_t *body, uint32_t captured_bytes)
{
    enum { OPTION_TYPE_AT = 1, OPTION_ID_AT = 7, SUBTYPE_AT = 8, VERSION_AT = 12 };
    static const struct {
        uint8_t at;
        uint8_t value;
    } fixed[] = {{0, UM_LBMC_CONTROL},
                 {OPTION_TYPE_AT, UM_LBMC_OPTION_EXTENDED},
                 {OPTION_ID_AT, UM_STATUS_OPTION_ID},
                 {SUBTYPE_AT, UM_STATUS_OPTION_SUBTYPE >> 8},
                 {SUBTYPE_AT + 1, UM_STATUS_OPTION_SUBTYPE & 0xff},
                 {VERSION_AT, UM_STATUS_VERSION}};
    if (frame->payload_bytes < UM_STATUS_DATAGRAM_BYTES || (captured_bytes <= OPTION_TYPE_AT && to_multicast(frame)))
        return false;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0] && fixed[i].at < captured_bytes; i++) {
        if (body[fixed[i].at] != fixed[i].value)
            return false;
    }
    return true;
}

/* Whether the capture ends in the first message of a datagram that may be a status message. */
static bool status_is_cut(const um_captured_frame *frame, const um_packet *packet)
{
    enum { FIRST_BYTES = UM_STATUS_DATAGRAM_BYTES - UM_LBTRM_DATA_BYTES };
    return frame->payload_captured_bytes < frame->payload_bytes && packet->body_length < FIRST_BYTES &&
           may_be_status(frame, packet->body, packet->body_length);
}

static enum um_packet_row_status decode_messages(um_packet_rows *rows, um_packet_row *row, const um_packet *packet,
                                                 uint32_t body_bytes)
{
    for (uint32_t at = 0; at < body_bytes;) {
        if (at >= packet->body_length)
            return UM_PACKET_OK;
        um_lbmc_message message;
        uint32_t length;
        enum um_dgram_status status =
            um_lbmc_observe(packet->body + at, packet->body_length - at, body_bytes - at, &message, &length);
        if (UM_UNLIKELY(status != UM_DGRAM_OK))
            return status_of_lbmc(status);
        put_message(rows, row, &message);
        if (UM_UNLIKELY(message.extended != NULL && message.type == UM_LBMC_CONTROL))
            take_status_message(row, packet);
        at += length;
    }
    return UM_PACKET_OK;
}

static enum um_packet_row_status decode_data(um_packet_rows *rows, const um_captured_frame *frame,
                                             const um_packet *packet, um_packet_row *row)
{
    if (UM_UNLIKELY(status_is_cut(frame, packet))) {
        row->present &= ~(1u << UM_PACKETS_TYPE);
        return UM_PACKET_CUT;
    }
    row->type = UM_PACKET_DATA;
    row->present |= 1u << UM_PACKETS_FLAGS | 1u << UM_PACKETS_DATA | 1u << UM_PACKETS_TRAIL |
                    1u << UM_PACKETS_MESSAGES |
                    (packet->flags & UM_LBTRM_FLAG_RETRANSMISSION ? 1u << UM_PACKETS_RETRANSMISSION : 0);
    row->transport_flags = packet->flags;
    row->transport_sqn = packet->sqn;
    row->trail_sqn = packet->trail;
    return decode_messages(rows, row, packet, frame->payload_bytes - UM_LBTRM_DATA_BYTES);
}

static void decode_sm(const um_packet *packet, um_packet_row *row)
{
    row->type = UM_PACKET_SM;
    row->present |= 1u << UM_PACKETS_FLAGS | 1u << UM_PACKETS_SM | 1u << UM_PACKETS_TRAIL;
    row->transport_flags = packet->flags;
    row->sm_sqn = packet->sqn;
    row->lead_sqn = packet->lead;
    row->trail_sqn = packet->trail;
}

static void decode_list(um_packet_rows *rows, const um_packet *packet, um_packet_row *row)
{
    row->present |= 1u << UM_PACKETS_LIST;
    row->sqn_count = packet->list_count;
    for (uint32_t i = 0; i < packet->list_count; i++)
        rows->sqns[rows->sqn_count + i] = um_load_be32(packet->list + (size_t)4 * i);
}

static void decode_ncf(const um_packet *packet, um_packet_row *row)
{
    row->present |= 1u << UM_PACKETS_NCF | 1u << UM_PACKETS_TRAIL;
    row->trail_sqn = packet->trail;
    row->ncf_reason = packet->ncf_reason;
}

/* Of a datagram that is refused, the type and the fields every type has are reported where they are known. */
static void name_refused(const um_captured_frame *frame, const um_packet *packet, um_packet_row *row)
{
    static const int8_t types[] = {UM_PACKET_DATA, -1, UM_PACKET_SM, UM_PACKET_NAK, UM_PACKET_NCF};
    if (packet->type >= sizeof types || types[packet->type] < 0)
        return;
    if (row->status == UM_PACKET_CUT && packet->type == UM_LBTRM_DATA && may_be_status(frame, NULL, 0))
        return;
    row->type = (enum um_packet_row_type)types[packet->type];
    row->present |= 1u << UM_PACKETS_TYPE;
}

static void decode_lbtrm(um_packet_rows *rows, const um_captured_frame *frame, um_packet_row *row)
{
    um_packet packet;
    enum um_dgram_status status =
        um_lbtrm_decode_captured(frame->payload, frame->payload_captured_bytes, frame->payload_bytes, &packet);
    row->status = status_of_lbtrm(status);
    bool named = status != UM_DGRAM_VERSION && frame->payload_bytes >= UM_LBTRM_HEADER_BYTES &&
                 frame->payload_captured_bytes >= UM_LBTRM_HEADER_BYTES;
    if (!named)
        return;
    row->present |= 1u << UM_PACKETS_SESSION;
    row->session_id = packet.session_id;
    row->nak_port = packet.nak_port;
    if (status != UM_DGRAM_OK) {
        name_refused(frame, &packet, row);
        return;
    }
    row->present |= 1u << UM_PACKETS_TYPE;
    switch (packet.type) {
    case UM_LBTRM_DATA:
        row->status = decode_data(rows, frame, &packet, row);
        break;
    case UM_LBTRM_SM:
        decode_sm(&packet, row);
        break;
    case UM_LBTRM_NAK:
        row->type = UM_PACKET_NAK;
        decode_list(rows, &packet, row);
        break;
    default:
        row->type = UM_PACKET_NCF;
        decode_list(rows, &packet, row);
        decode_ncf(&packet, row);
        break;
    }
}

static void decode_resolution(um_packet_rows *rows, const um_captured_frame *frame, um_packet_row *row)
{
    enum { HEADER_BYTES = 4, UNUSED_TYPE = 5, TYPE_MASK = 7 };
    row->type = UM_PACKET_LBMR_TYPE;
    row->present |= 1u << UM_PACKETS_TYPE;
    if (frame->payload_bytes < HEADER_BYTES)
        row->status = UM_PACKET_LBMR;
    else if (frame->payload_captured_bytes < HEADER_BYTES)
        row->status = UM_PACKET_CUT;
    else if (frame->payload[0] >> 4 != 0 || (frame->payload[0] & TYPE_MASK) == UNUSED_TYPE)
        row->status = UM_PACKET_LBMR;
    else if (frame->payload_captured_bytes == frame->payload_bytes)
        um_packet_rows_put_resolution(rows, frame->payload, frame->payload_bytes);
}

/* Bytes of the authentication trailer behind a control datagram of `bytes`; 0 without one. */
static uint32_t trailer_bytes(const um_captured_frame *frame, uint32_t bytes)
{
    um_trailer ignored;
    bool whole = frame->payload_captured_bytes == frame->payload_bytes;
    bool has_one = whole ? um_trailer_read(frame->payload, frame->payload_bytes, &ignored)
                         : frame->payload_bytes == bytes + UM_TRAILER_BYTES;
    return has_one ? UM_TRAILER_BYTES : 0;
}

/* Whether what looks like LBT-RM on a port nobody named is it: nothing in it may be odd, and the lengths must agree to
 * the byte. */
static bool agrees(const um_captured_frame *frame, const um_packet_row *row)
{
    if (row->status != UM_PACKET_OK || row->session_id == 0 || row->nak_port == 0)
        return false;
    bool whole = frame->payload_captured_bytes == frame->payload_bytes;
    switch (row->type) {
    case UM_PACKET_SM:
        return frame->payload_bytes == UM_LBTRM_SM_BYTES + trailer_bytes(frame, UM_LBTRM_SM_BYTES);
    case UM_PACKET_NAK:
    case UM_PACKET_NCF: {
        uint32_t fixed_bytes = row->type == UM_PACKET_NAK ? UM_LBTRM_NAK_BYTES : UM_LBTRM_NCF_BYTES;
        uint32_t bytes = fixed_bytes + 4 * row->sqn_count;
        return row->sqn_count > 0 && row->ncf_reason <= UM_NCF_SHED &&
               (whole ? frame->payload_bytes == bytes + trailer_bytes(frame, bytes) : frame->payload_bytes % 4 == 0);
    }
    default:
        return row->message_count > 0;
    }
}

static bool within(uint16_t port, uint16_t low, uint16_t high)
{
    return port >= low && port <= high;
}

static void decode_datagram(um_packet_rows *rows, const um_packet_rows_ports *ports, const um_captured_frame *frame,
                            um_packet_row *row)
{
    if (within(frame->destination_port, ports->lbtrm_low, ports->lbtrm_high)) {
        decode_lbtrm(rows, frame, row);
        return;
    }
    if (within(frame->destination_port, ports->resolution_low, ports->resolution_high)) {
        decode_resolution(rows, frame, row);
        return;
    }
    /* The first word alone refuses nearly everything: version 0, a known type, no option headers. */
    if (frame->payload_captured_bytes >= UM_LBTRM_HEADER_BYTES && frame->payload[1] == 0 &&
        frame->payload[0] <= UM_LBTRM_NCF) {
        decode_lbtrm(rows, frame, row);
        if (agrees(frame, row))
            return;
    }
    *row = (um_packet_row){.status = UM_PACKET_NOT_OURS};
}

/* Where the items of a segment go. */
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
    };
    segment_items *into = context;
    if (into->row->message_count == UM_PACKETS_PACKET_ITEMS_MAX) {
        into->unlisted_count++;
        return;
    }
    uint32_t i = into->rows->message_count + into->row->message_count++;
    if (item->kind == UM_LBMC_ITEM_MESSAGE)
        um_packet_rows_put_message(into->rows, i, kind_of(item->message), item->message);
    else
        um_packet_rows_put_number(into->rows, i, kinds[item->kind], item->topic_index, item->sqn);
}

static void decode_segment(um_capture_reader *reader, um_packet_rows *rows, const um_capture_packet *packet,
                           const um_captured_frame *frame, um_packet_row *row)
{
    segment_items into = {rows, row, 0};
    um_stream_taken taken = um_streams_take(&reader->streams, packet->interface, frame, put_item, &into);
    reader->streams.findings.unlisted_count += into.unlisted_count;
    row->status = status_of_lbmc(taken.status);
    row->type = UM_PACKET_TCP;
    row->purpose = taken.purpose;
    row->present = 1u << UM_PACKETS_TYPE | 1u << UM_PACKETS_MESSAGES |
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

static bool selects_session(const um_packet_selection *selection, const um_packet_row *row)
{
    if (!(row->present & 1u << UM_PACKETS_SESSION))
        return false;
    for (uint32_t i = 0; i < selection->session_count; i++) {
        if (selection->sessions[i] == row->session_id)
            return true;
    }
    return false;
}

static bool selects_destination(const um_packet_selection *selection, const um_captured_frame *frame)
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

static bool selects_time(const um_packet_selection *selection, const um_capture_packet *packet)
{
    return !selection->by_time ||
           (packet->timed && packet->time_ns >= selection->time_low_ns && packet->time_ns <= selection->time_high_ns);
}

static bool selects(const um_packet_selection *selection, const um_captured_frame *frame, const um_packet_row *row)
{
    if (selection->types != 0 &&
        !(row->present & 1u << UM_PACKETS_TYPE && selection->types & 1u << (uint32_t)row->type))
        return false;
    return (selection->session_count == 0 || selects_session(selection, row)) &&
           (selection->destination_count == 0 || selects_destination(selection, frame));
}

static void decode_packet(um_capture_reader *reader, um_packet_rows *rows, const um_packet_rows_options *options,
                          const um_capture_packet *packet, uint64_t position)
{
    um_captured_frame frame;
    um_packet_row row = {0};
    if (!selects_time(&options->selection, packet)) {
        um_streams_follow(&reader->streams, packet->interface, packet->link_type, packet->data, packet->captured_bytes);
        return;
    }
    uint32_t resolution_bytes = rows->resolution_bytes;
    um_captured_frame_decode(packet->link_type, packet->data, packet->captured_bytes, &frame);
    row.status = status_of_frame(frame.status);
    if (UM_LIKELY(frame.status == UM_CAPTURED_UDP)) {
        decode_datagram(rows, &options->ports, &frame, &row);
        if (frame.fragment && row.status == UM_PACKET_OK)
            row.status = UM_PACKET_IP_FRAGMENT;
    } else if (um_streams_has(&reader->streams, &frame)) {
        decode_segment(reader, rows, packet, &frame, &row);
    } else if (frame.status == UM_CAPTURED_TCP_CUT && um_streams_has_ports(&reader->streams, &frame)) {
        row.status = UM_PACKET_CUT;
    } else if (frame.status > UM_CAPTURED_TCP_CUT) {
        frame.source_port = 0;
        frame.destination_port = 0;
    }
    if (UM_UNLIKELY(packet->interface < 0))
        row.status = UM_PACKET_INTERFACE;
    else if (UM_UNLIKELY(row.status == UM_PACKET_LINK_TYPE))
        note_link_type(&reader->findings, packet->link_type);
    if (row.status == UM_PACKET_NOT_OURS && options->only_ours)
        return;
    if (!selects(&options->selection, &frame, &row)) {
        rows->resolution_bytes = resolution_bytes;
        return;
    }
    if (options->tally != NULL && um_tally_take(options->tally, rows, packet, &frame, &row))
        return;
    um_packet_rows_append(rows, position, packet, &frame, &row);
}

enum um_capture_step um_packet_rows_decode(um_capture_reader *reader, um_packet_rows *rows,
                                           const um_packet_rows_options *options, const uint8_t *data, uint64_t length,
                                           uint64_t base, uint64_t until, uint64_t *at)
{
    while (*at < until) {
        if (um_packet_rows_full(rows) || (options->tally != NULL && um_tally_full(options->tally)))
            return UM_CAPTURE_FULL;
        um_capture_packet packet;
        enum um_capture_step step = um_capture_next(reader, data, length, base, at, &packet);
        if (step != UM_CAPTURE_PACKET)
            return step;
        /* Blocks that are no packets may lie in front of the next partition's first packet. */
        decode_packet(reader, rows, options, &packet, base + packet.position);
    }
    return UM_CAPTURE_ENDED;
}
