#include "core/wire/status_message.h"

static const int64_t INTERVAL_MAX_NS = UM_STATUS_INTERVAL_MAX_S * (int64_t)1000000000;

static uint16_t interval_units(int64_t interval_ns)
{
    int64_t bounded_ns = um_between_ns(interval_ns, 0, INTERVAL_MAX_NS);
    return (uint16_t)((bounded_ns + UM_STATUS_INTERVAL_UNIT_NS - 1) / UM_STATUS_INTERVAL_UNIT_NS);
}

static uint32_t write_loss_report(uint8_t *out, const um_status_message *status)
{
    uint8_t data[UM_LOSS_REPORT_DATA_BYTES] = {UM_LOSS_REPORT_VERSION};
    if (status->given_up == 0 && status->unconfirmed == 0)
        return 0;
    um_store_be32(data + 4, status->given_up);
    um_store_be32(data + 8, status->unconfirmed);
    return um_lbmc_write_extended(out, UM_STATUS_OPTION_ID, UM_LOSS_REPORT_OPTION_SUBTYPE, data, sizeof data);
}

/* Returns the data of a control message's extended option and its length, 0 if the message is something else. */
static const uint8_t *read_option(const uint8_t *body, uint32_t available, uint16_t subtype, uint32_t *message_bytes,
                                  uint32_t *data_bytes)
{
    um_lbmc_message message;
    *data_bytes = 0;
    if (um_lbmc_decode(body, available, &message, message_bytes) != UM_DGRAM_OK || message.type != UM_LBMC_CONTROL ||
        message.extended == NULL || message.extended_id != UM_STATUS_OPTION_ID || message.extended_subtype != subtype)
        return NULL;
    *data_bytes = message.extended_length;
    return message.extended;
}

static void read_loss_report(const uint8_t *body, uint32_t available, um_status_message *status)
{
    uint32_t message_bytes, data_bytes;
    const uint8_t *data = read_option(body, available, UM_LOSS_REPORT_OPTION_SUBTYPE, &message_bytes, &data_bytes);
    bool is_known = data_bytes == UM_LOSS_REPORT_DATA_BYTES && data[0] == UM_LOSS_REPORT_VERSION;
    status->given_up = is_known ? um_load_be32(data + 4) : 0;
    status->unconfirmed = is_known ? um_load_be32(data + 8) : 0;
}

uint32_t um_status_write(uint8_t *out, const um_session_id *id, uint32_t client_id, const um_status_message *status)
{
    uint8_t data[UM_STATUS_DATA_BYTES_MAX] = {0};
    uint32_t length = UM_STATUS_DATA_BYTES;
    data[0] = UM_STATUS_VERSION;
    data[1] = status->flags;
    um_store_be16(data + 2, interval_units(status->interval_ns));
    um_store_be32(data + 4, status->next_sqn);
    um_store_be32(data + 8, status->window_bytes);
    um_store_be32(data + 12, status->group_tag);
    um_store_be64(data + 16, status->receiver_id);
    um_store_be32(data + 24, status->round_trip_us);
    /* Sources of versions without probes or cookies take exactly UM_STATUS_DATA_BYTES, but send neither. */
    if (status->probe_round != 0) {
        um_store_be16(data + length, status->probe_round);
        um_store_be16(data + length + 2, status->probe_bytes);
        length += UM_STATUS_PROBE_BYTES;
    }
    if (status->cookie != 0) {
        um_store_be64(data + length, status->cookie);
        length += UM_COOKIE_BYTES;
    }
    uint32_t at = um_framing_write_status(id, out, client_id, status->next_sqn);
    at += um_lbmc_write_extended(out + at, UM_STATUS_OPTION_ID, UM_STATUS_OPTION_SUBTYPE, data, length);
    return at + write_loss_report(out + at, status);
}

uint32_t um_status_encode(uint8_t *out, uint32_t session_id, uint16_t nak_port, const um_status_message *status)
{
    um_session_id id = {.source.port = nak_port, .session_id = session_id, .transport = UM_TRANSPORT_LBTRM};
    return um_status_write(out, &id, 0, status);
}

bool um_status_decode(const um_packet *packet, um_status_message *status)
{
    uint32_t length, data_bytes;
    if (packet->type != UM_LBTRM_DATA)
        return false;
    const uint8_t *data =
        read_option(packet->body, packet->body_length, UM_STATUS_OPTION_SUBTYPE, &length, &data_bytes);
    uint32_t more = data_bytes - UM_STATUS_DATA_BYTES; /* wraps if there is no data or too little, which is refused */
    bool has_probe = more == UM_STATUS_PROBE_BYTES || more == UM_STATUS_PROBE_BYTES + UM_COOKIE_BYTES;
    bool has_cookie = more == UM_COOKIE_BYTES || more == UM_STATUS_PROBE_BYTES + UM_COOKIE_BYTES;
    if ((more != 0 && !has_probe && !has_cookie) || data[0] != UM_STATUS_VERSION)
        return false;
    status->probe_round = has_probe ? um_load_be16(data + UM_STATUS_DATA_BYTES) : 0;
    status->probe_bytes = has_probe ? um_load_be16(data + UM_STATUS_DATA_BYTES + 2) : 0;
    status->cookie = has_cookie ? um_load_be64(data + data_bytes - UM_COOKIE_BYTES) : 0;
    status->flags = data[1];
    status->interval_ns = um_earliest_ns(um_load_be16(data + 2) * (int64_t)UM_STATUS_INTERVAL_UNIT_NS, INTERVAL_MAX_NS);
    status->next_sqn = um_load_be32(data + 4);
    status->window_bytes = um_load_be32(data + 8);
    status->group_tag = um_load_be32(data + 12);
    status->receiver_id = um_load_be64(data + 16);
    status->round_trip_us = um_load_be32(data + 24);
    read_loss_report(packet->body + length, packet->body_length - length, status);
    return true;
}

uint32_t um_cookie_write(uint8_t *out, uint64_t cookie)
{
    uint8_t data[UM_COOKIE_BYTES];
    um_store_be64(data, cookie);
    return um_lbmc_write_extended(out, UM_STATUS_OPTION_ID, UM_COOKIE_OPTION_SUBTYPE, data, sizeof data);
}

uint64_t um_cookie_decode(const um_packet *packet)
{
    uint32_t message_bytes, data_bytes;
    const uint8_t *data =
        read_option(packet->body, packet->body_length, UM_COOKIE_OPTION_SUBTYPE, &message_bytes, &data_bytes);
    return data_bytes == UM_COOKIE_BYTES ? um_load_be64(data) : 0;
}
