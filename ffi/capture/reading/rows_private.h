/* A decoded row, as the decoder (decode.c, datagram.c) passes it to the columns (rows.c) or to the tally. */
#ifndef UM_CAPTURE_READING_ROWS_PRIVATE_H
#define UM_CAPTURE_READING_ROWS_PRIVATE_H

#include "capture/reading/rows.h"
#include "core/wire/status_message.h"

enum um_packet_row_status {
    UM_PACKET_OK,
    UM_PACKET_NOT_OURS,
    UM_PACKET_IP_FRAGMENT,
    UM_PACKET_LINK_TYPE,
    UM_PACKET_INTERFACE,
    UM_PACKET_CUT,
    UM_PACKET_IP_HEADER,
    UM_PACKET_UDP_LENGTH,
    UM_PACKET_LBTRM_SIZE,
    UM_PACKET_LBTRM_TYPE,
    UM_PACKET_LBTRM_VERSION,
    UM_PACKET_LBTRM_HEADER,
    UM_PACKET_LBTRU_SIZE,
    UM_PACKET_LBTRU_TYPE,
    UM_PACKET_LBTRU_VERSION,
    UM_PACKET_LBTRU_HEADER,
    UM_PACKET_LBMC_SIZE,
    UM_PACKET_LBMC_TYPE,
    UM_PACKET_LBMC_VERSION,
    UM_PACKET_LBMC_HEADER,
    UM_PACKET_LBMR,
    UM_PACKET_STATUSES,
};

enum um_packet_row_type {
    UM_PACKET_DATA,
    UM_PACKET_SM,
    UM_PACKET_NAK,
    UM_PACKET_NCF,
    UM_PACKET_LBMR_TYPE,
    UM_PACKET_STATUS_MESSAGE,
    UM_PACKET_TCP,
    UM_PACKET_ACK,
    UM_PACKET_CREQ,
    UM_PACKET_RST,
    UM_PACKET_FILTER_REPORT,
    UM_PACKET_TYPES,
};

enum um_packet_row_transport { UM_PACKET_LBTRM, UM_PACKET_LBTRU, UM_PACKET_LBTTCP, UM_PACKET_TRANSPORTS };

enum um_packet_row_kind {
    UM_PACKET_KIND_MESSAGE,
    UM_PACKET_KIND_END,
    UM_PACKET_KIND_PROACTIVE,
    UM_PACKET_KIND_RECOVERED,
    UM_PACKET_KIND_CONTROL,
    UM_PACKET_KIND_TSNI,
    UM_PACKET_KIND_STATUS,
    UM_PACKET_KIND_EXTENDED,
    UM_PACKET_KIND_TAG,
    UM_PACKET_KIND_REQUEST,
    UM_PACKET_KIND_RANGE_REQUEST,
    UM_PACKET_KIND_RANGE,
    UM_PACKET_KIND_REGISTRATION,
    UM_PACKET_KIND_REGISTERED,
    UM_PACKET_KIND_REFUSED,
    UM_PACKET_KIND_STABLE,
    UM_PACKET_KIND_LOST,
    UM_PACKET_KIND_CONSUMED,
    UM_PACKET_KIND_KEEPALIVE,
    UM_PACKET_KINDS,
};

/* The transport header. Fields whose bit in `present` is clear are zero. */
typedef struct um_packet_row {
    enum um_packet_row_status status;
    enum um_packet_row_type type;
    uint32_t present;
    uint32_t session_id;
    uint16_t nak_port;
    uint16_t transport_flags;
    uint8_t ncf_reason;
    enum um_packet_row_transport transport;
    uint32_t client_id;
    uint32_t ack_sqn;
    uint32_t transport_sqn;
    uint32_t sm_sqn;
    uint32_t lead_sqn;
    uint32_t trail_sqn;
    uint32_t sqn_count;     /* sqns written behind those of the rows */
    uint32_t message_count; /* messages written behind those of the rows */
    um_status_message status_message;
    enum um_stream_purpose purpose; /* of the connection of a TCP segment */
} um_packet_row;

/* Returns true if another packet may not fit. */
bool um_packet_rows_full(const um_packet_rows *rows);

/* Adds a row; its sqns and messages were written behind those of the earlier rows. */
void um_packet_rows_append(um_packet_rows *rows, uint64_t position, const um_capture_packet *packet,
                           const um_captured_frame *frame, const um_packet_row *row);

/* Stores a datagram of topic resolution for the next row. */
void um_packet_rows_put_resolution(um_packet_rows *rows, const uint8_t *payload, uint32_t bytes);

/* Writes message `i`, counted over all rows, in ascending order. */
void um_packet_rows_put_message(um_packet_rows *rows, uint32_t i, enum um_packet_row_kind kind,
                                const um_lbmc_message *message);
/* The same for an item with a topic and no payload: a TSNI record, a request or range of recovery, or an item of
 * persistence. */
void um_packet_rows_put_number(um_packet_rows *rows, uint32_t i, enum um_packet_row_kind kind,
                               const um_lbmc_item *item);

#endif
