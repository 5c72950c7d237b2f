/* Decodes a UDP datagram into its row; ports and lengths decide which protocol it is. */
#include "capture/reading/datagram.h"
#include "core/resolution/lbmr.h"
#include "core/wire/authentication.h"
#include "core/wire/datagram_piece.h"
#include "core/wire/interest_message.h"
#include "core/wire/lbtru.h"
#include "core/wire/path_probe.h"
#include "core/wire/repair_evidence.h"

/* The row statuses of a transport's faults. */
typedef struct faults {
    enum um_packet_row_status size;
    enum um_packet_row_status type;
    enum um_packet_row_status version;
    enum um_packet_row_status header;
} faults;

static const faults LBTRM_FAULTS = {UM_PACKET_LBTRM_SIZE, UM_PACKET_LBTRM_TYPE, UM_PACKET_LBTRM_VERSION,
                                    UM_PACKET_LBTRM_HEADER};
static const faults LBTRU_FAULTS = {UM_PACKET_LBTRU_SIZE, UM_PACKET_LBTRU_TYPE, UM_PACKET_LBTRU_VERSION,
                                    UM_PACKET_LBTRU_HEADER};

static enum um_packet_row_status status_of(enum um_dgram_status status, const faults *faults)
{
    switch (status) {
    case UM_DGRAM_OK:
        return UM_PACKET_OK;
    case UM_DGRAM_SIZE:
        return faults->size;
    case UM_DGRAM_TYPE:
        return faults->type;
    case UM_DGRAM_VERSION:
        return faults->version;
    case UM_DGRAM_CUT:
        return UM_PACKET_CUT;
    default:
        return faults->header;
    }
}

/* A message cut by the capture is not a fault: the fields of the datagram are complete. */
enum um_packet_row_status um_packet_status_of_lbmc(enum um_dgram_status status)
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

enum um_packet_row_kind um_packet_kind_of(const um_lbmc_message *message)
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

/* A TSNI becomes one entry per record; a control message with nothing else has no entry. */
static void put_message(um_packet_rows *rows, um_packet_row *row, const um_lbmc_message *message)
{
    enum um_packet_row_kind kind = um_packet_kind_of(message);
    if (kind != UM_PACKET_KIND_CONTROL || message->tsni_count == 0)
        um_packet_rows_put_message(rows, rows->message_count + row->message_count++, kind, message);
    for (uint32_t i = 0; i < message->tsni_count; i++) {
        const uint8_t *record = message->tsni + (size_t)UM_LBMC_TSNI_RECORD_BYTES * i;
        um_lbmc_item item = {
            .kind = UM_LBMC_ITEM_TSNI, .topic_index = um_load_be32(record), .sqn = um_load_be32(record + 4)};
        um_packet_rows_put_number(rows, rows->message_count + row->message_count++, UM_PACKET_KIND_TSNI, &item);
    }
}

/* Sets the type of a packet; only receivers send these types to a source. */
static void set_type(um_packet_row *row, enum um_packet_row_type type)
{
    const uint32_t to_source =
        1u << UM_PACKET_NAK | 1u << UM_PACKET_STATUS_MESSAGE | 1u << UM_PACKET_ACK | 1u << UM_PACKET_CREQ;
    row->type = type;
    row->present |= 1u << UM_PACKETS_TYPE | (to_source >> type & 1u) << UM_PACKETS_TO_SOURCE;
}

static void take_status_message(um_packet_row *row, const um_packet *packet)
{
    um_interest_part part;
    um_packet topics;
    um_repair_evidence evidence;
    if (um_repair_evidence_decode(packet, &evidence) ||
        um_interest_decode(packet, &part,
                           &topics)) { /* sent by a receiver; as data, it would look like a session of the receiver */
        set_type(row, UM_PACKET_STATUS_MESSAGE);
        return;
    }
    if (!um_status_decode(packet, &row->status_message))
        return;
    set_type(row, UM_PACKET_STATUS_MESSAGE);
    row->present |= 1u << UM_PACKETS_STATUS;
}

/* Takes a report to a receiver over LBT-RU of how many datagrams it was passed over: it is neither data nor a
 * retransmission, in spite of its header. `message_bytes`: of the packet's first message; a tag may follow it. */
static void take_filter_report(um_packet_rows *rows, um_packet_row *row, const um_packet *packet,
                               uint32_t message_bytes)
{
    um_packet first = *packet;
    first.body_length = message_bytes;
    um_filter_report report;
    if (row->transport != UM_PACKET_LBTRU || !um_filter_report_decode(&first, &report))
        return;
    set_type(row, UM_PACKET_FILTER_REPORT);
    row->present &= ~(1u << UM_PACKETS_RETRANSMISSION);
    row->present |= 1u << UM_PACKETS_LIST;
    if (report.count == 0)
        return;
    row->sqn_count = 2;
    rows->sqns[rows->sqn_count] = report.first_sqn;
    rows->sqns[rows->sqn_count + 1] = report.first_sqn + report.count - 1;
}

static bool is_multicast(const um_captured_frame *frame)
{
    return frame->ip_version == 4 ? frame->destination[0] >> 4 == 0xe : frame->destination[0] == 0xff;
}

/* Returns true if a DATA datagram of which too little was captured may be a status message, which is a DATA datagram
 * with one extended option. As data, it would look like a session of the receiver. The captured bytes of the option
 * decide; without any, the address does: a session sends to its group, a receiver to one host. */
static bool can_be_status(const um_captured_frame *frame, const uint8_t *body, uint32_t captured_bytes)
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
    if (frame->payload_bytes < UM_STATUS_DATAGRAM_BYTES || (captured_bytes <= OPTION_TYPE_AT && is_multicast(frame)))
        return false;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0] && fixed[i].at < captured_bytes; i++) {
        if (body[fixed[i].at] != fixed[i].value)
            return false;
    }
    return true;
}

/* Returns true if the capture ends in the first message of a datagram that may be a status message. */
static bool is_status_cut(const um_captured_frame *frame, const um_packet *packet)
{
    return frame->payload_captured_bytes < frame->payload_bytes && packet->body_length < UM_STATUS_LBMC_BYTES &&
           can_be_status(frame, packet->body, packet->body_length);
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
            return um_packet_status_of_lbmc(status);
        put_message(rows, row, &message);
        if (UM_UNLIKELY(message.extended != NULL && message.type == UM_LBMC_CONTROL)) {
            take_status_message(row, packet);
            if (at == 0)
                take_filter_report(rows, row, packet, length);
        }
        at += length;
    }
    return UM_PACKET_OK;
}

static enum um_packet_row_status decode_data(um_packet_rows *rows, const um_captured_frame *frame,
                                             const um_packet *packet, um_packet_row *row)
{
    if (UM_UNLIKELY(is_status_cut(frame, packet)))
        return UM_PACKET_CUT;
    set_type(row, UM_PACKET_DATA);
    row->present |= 1u << UM_PACKETS_FLAGS | 1u << UM_PACKETS_DATA | 1u << UM_PACKETS_TRAIL |
                    1u << UM_PACKETS_MESSAGES |
                    (packet->flags & UM_LBTRM_FLAG_RETRANSMISSION ? 1u << UM_PACKETS_RETRANSMISSION : 0);
    row->transport_flags = packet->flags;
    row->transport_sqn = packet->sqn;
    row->trail_sqn = packet->trail;
    return decode_messages(rows, row, packet, frame->payload_bytes - (uint32_t)(packet->body - frame->payload));
}

static void decode_sm(const um_packet *packet, um_packet_row *row)
{
    set_type(row, UM_PACKET_SM);
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

/* Reports the type and the common fields of a malformed datagram if they are known. */
static void name_refused(const um_captured_frame *frame, const um_packet *packet, um_packet_row *row)
{
    static const int8_t types[] = {
        UM_PACKET_DATA, -1, UM_PACKET_SM, UM_PACKET_NAK, UM_PACKET_NCF, UM_PACKET_ACK, UM_PACKET_CREQ, UM_PACKET_RST};
    uint8_t last = row->transport == UM_PACKET_LBTRU ? (uint8_t)UM_LBTRU_RST : (uint8_t)UM_LBTRM_NCF;
    if (packet->type > last || types[packet->type] < 0)
        return;
    if (row->status == UM_PACKET_CUT && packet->type == UM_LBTRM_DATA && can_be_status(frame, NULL, 0))
        return;
    set_type(row, (enum um_packet_row_type)types[packet->type]);
}

/* Decodes the body of a datagram with a valid header. */
static void decode_packet(um_packet_rows *rows, const um_captured_frame *frame, const um_packet *packet,
                          um_packet_row *row)
{
    switch (packet->type) {
    case UM_LBTRM_DATA:
        row->status = decode_data(rows, frame, packet, row);
        break;
    case UM_LBTRM_SM:
        decode_sm(packet, row);
        break;
    case UM_LBTRM_NAK:
        set_type(row, UM_PACKET_NAK);
        decode_list(rows, packet, row);
        break;
    case UM_LBTRM_NCF:
        set_type(row, UM_PACKET_NCF);
        decode_list(rows, packet, row);
        decode_ncf(packet, row);
        break;
    case UM_LBTRU_ACK:
        set_type(row, UM_PACKET_ACK);
        row->present |= 1u << UM_PACKETS_ACK;
        row->ack_sqn = packet->sqn;
        break;
    case UM_LBTRU_CREQ:
        set_type(row, UM_PACKET_CREQ);
        break;
    default:
        set_type(row, UM_PACKET_RST);
        break;
    }
}

/* Sets *packet to the decoded packet of the row. */
static void decode_lbtrm(um_packet_rows *rows, const um_captured_frame *frame, um_packet_row *row, um_packet *packet)
{
    enum um_dgram_status status =
        um_lbtrm_decode_captured(frame->payload, frame->payload_captured_bytes, frame->payload_bytes, packet);
    row->transport = UM_PACKET_LBTRM;
    row->present |= 1u << UM_PACKETS_TRANSPORT;
    row->status = status_of(status, &LBTRM_FAULTS);
    bool named = status != UM_DGRAM_VERSION && frame->payload_bytes >= UM_LBTRM_HEADER_BYTES &&
                 frame->payload_captured_bytes >= UM_LBTRM_HEADER_BYTES;
    if (!named)
        return;
    row->present |= 1u << UM_PACKETS_SESSION | 1u << UM_PACKETS_NAK_PORT;
    row->session_id = packet->session_id;
    row->nak_port = packet->nak_port;
    if (status == UM_DGRAM_OK)
        decode_packet(rows, frame, packet, row);
    else
        name_refused(frame, packet, row);
}

/* Sets *packet to the decoded packet of the row. */
static void decode_lbtru(um_packet_rows *rows, const um_captured_frame *frame, um_packet_row *row, um_packet *packet)
{
    enum { FLAGS_AT = 2 };
    enum um_dgram_status status =
        um_lbtru_decode_captured(frame->payload, frame->payload_captured_bytes, frame->payload_bytes, packet);
    row->transport = UM_PACKET_LBTRU;
    row->present |= 1u << UM_PACKETS_TRANSPORT;
    row->status = status_of(status, &LBTRU_FAULTS);
    row->present |= (uint32_t)((packet->options & 1u << UM_LBTRU_OPTION_SESSION_ID) != 0) << UM_PACKETS_SESSION |
                    (uint32_t)((packet->options & 1u << UM_LBTRU_OPTION_CLIENT_ID) != 0) << UM_PACKETS_CLIENT;
    row->session_id = packet->session_id;
    row->client_id = packet->client_id;
    if (status != UM_DGRAM_OK) {
        if (status != UM_DGRAM_VERSION && frame->payload_captured_bytes >= UM_LBTRU_HEADER_BYTES)
            name_refused(frame, packet, row);
        return;
    }
    decode_packet(rows, frame, packet, row);
    /* The flags unchanged: a CREQ has its request there, an RST its reason. */
    row->present |= 1u << UM_PACKETS_FLAGS;
    row->transport_flags = um_load_be16(frame->payload + FLAGS_AT);
}

static void decode_resolution(um_packet_rows *rows, const um_captured_frame *frame, um_packet_row *row)
{
    enum { HEADER_BYTES = 4, UNUSED_TYPE = 5, TYPE_MASK = 7 };
    set_type(row, UM_PACKET_LBMR_TYPE);
    if (frame->payload_bytes < HEADER_BYTES)
        row->status = UM_PACKET_LBMR;
    else if (frame->payload_captured_bytes < HEADER_BYTES)
        row->status = UM_PACKET_CUT;
    else if (!um_lbmr_knows_version(frame->payload[0]) || (frame->payload[0] & TYPE_MASK) == UNUSED_TYPE)
        row->status = UM_PACKET_LBMR;
    else if (frame->payload_captured_bytes == frame->payload_bytes)
        um_packet_rows_put_resolution(rows, frame->payload, frame->payload_bytes);
}

/* Returns the bytes of the authentication trailer behind a control datagram of `bytes`; 0 without one. */
static uint32_t trailer_bytes(const um_captured_frame *frame, uint32_t bytes)
{
    um_trailer ignored;
    bool whole = frame->payload_captured_bytes == frame->payload_bytes;
    bool has_one = whole ? um_trailer_read(frame->payload, frame->payload_bytes, &ignored)
                         : frame->payload_bytes == bytes + UM_TRAILER_BYTES;
    return has_one ? UM_TRAILER_BYTES : 0;
}

/* Returns true if the control message of a path probe or of a piece of a datagram follows the session message. */
static bool has_path_control(const um_captured_frame *frame)
{
    enum { OPTION_TYPE_AT = 1, OPTION_ID_AT = 7, SUBTYPE_AT = 8, NEEDED_BYTES = 10 };
    const uint8_t *control = frame->payload + UM_LBTRM_SM_BYTES;
    if (frame->payload_captured_bytes < UM_LBTRM_SM_BYTES + NEEDED_BYTES || control[0] != UM_LBMC_CONTROL ||
        control[OPTION_TYPE_AT] != UM_LBMC_OPTION_EXTENDED || control[OPTION_ID_AT] != UM_LBMC_OWN_ID)
        return false;
    uint16_t subtype = um_load_be16(control + SUBTYPE_AT);
    return subtype == UM_PATH_PROBE_OPTION_SUBTYPE || subtype == UM_DATAGRAM_PIECE_OPTION_SUBTYPE;
}

/* Returns true if a datagram on an unconfigured port that looks like LBT-RM is LBT-RM: it must be well-formed, with
 * lengths that agree to the byte. */
static bool is_consistent(const um_captured_frame *frame, const um_packet *packet, const um_packet_row *row)
{
    if (row->status != UM_PACKET_OK || row->session_id == 0 || row->nak_port == 0)
        return false;
    bool whole = frame->payload_captured_bytes == frame->payload_bytes;
    switch (row->type) {
    case UM_PACKET_SM: {
        bool has_cookie =
            whole ? um_cookie_decode(packet) != 0 : frame->payload_bytes >= UM_LBTRM_SM_BYTES + UM_COOKIE_LBMC_BYTES;
        uint32_t bytes = UM_LBTRM_SM_BYTES + (has_cookie ? UM_COOKIE_LBMC_BYTES : 0);
        return frame->payload_bytes == bytes + trailer_bytes(frame, bytes) || has_path_control(frame);
    }
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

/* The same for a datagram from a source's port that looks like LBT-RU. */
static bool is_lbtru_consistent(const um_captured_frame *frame, const um_packet_row *row, const um_packet *packet)
{
    if (row->status != UM_PACKET_OK)
        return false;
    if (packet->type == UM_LBTRM_DATA)
        return row->message_count > 0;
    uint32_t bytes = um_lbtru_headers_bytes(packet);
    return frame->payload_bytes == bytes + trailer_bytes(frame, bytes);
}

static bool is_within(uint16_t port, uint16_t low, uint16_t high)
{
    return port >= low && port <= high;
}

/* The first word alone excludes nearly everything: it needs version 0, a known type and no option headers. */
static bool may_be_lbtrm(const um_captured_frame *frame)
{
    return frame->payload_captured_bytes >= UM_LBTRM_HEADER_BYTES && frame->payload[1] == 0 &&
           frame->payload[0] <= UM_LBTRM_NCF;
}

void um_packet_row_decode_datagram(um_packet_rows *rows, const um_packet_rows_ports *ports,
                                   const um_captured_frame *frame, um_packet_row *row)
{
    um_packet packet;
    if (is_within(frame->destination_port, ports->lbtrm_low, ports->lbtrm_high)) {
        decode_lbtrm(rows, frame, row, &packet);
        return;
    }
    if (is_within(frame->destination_port, ports->resolution_low, ports->resolution_high)) {
        decode_resolution(rows, frame, row);
        return;
    }
    if (may_be_lbtrm(frame)) {
        decode_lbtrm(rows, frame, row, &packet);
        if (is_consistent(frame, &packet, row))
            return;
        *row = (um_packet_row){.status = UM_PACKET_OK};
    }
    if (is_within(frame->destination_port, ports->lbtru_low, ports->lbtru_high)) {
        decode_lbtru(rows, frame, row, &packet);
        return;
    }
    if (is_within(frame->source_port, ports->lbtru_low, ports->lbtru_high)) {
        decode_lbtru(rows, frame, row, &packet);
        if (is_lbtru_consistent(frame, row, &packet))
            return;
    }
    *row = (um_packet_row){.status = UM_PACKET_NOT_OURS};
}
