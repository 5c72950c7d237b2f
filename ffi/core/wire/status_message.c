#include "core/wire/status_message.h"

static const int64_t INTERVAL_MAX_NS = UM_STATUS_INTERVAL_MAX_S * (int64_t)1000000000;

static uint16_t interval_units(int64_t interval_ns)
{
    int64_t bounded_ns = um_between_ns(interval_ns, 0, INTERVAL_MAX_NS);
    return (uint16_t)((bounded_ns + UM_STATUS_INTERVAL_UNIT_NS - 1) / UM_STATUS_INTERVAL_UNIT_NS);
}

uint32_t um_status_write(uint8_t *out, const um_session_id *id, uint32_t client_id, const um_status_message *status)
{
    uint8_t data[UM_STATUS_DATA_BYTES + UM_COOKIE_BYTES] = {0};
    uint32_t length = UM_STATUS_DATA_BYTES;
    data[0] = UM_STATUS_VERSION;
    data[1] = status->flags;
    um_store_be16(data + 2, interval_units(status->interval_ns));
    um_store_be32(data + 4, status->next_sqn);
    um_store_be32(data + 8, status->window_bytes);
    um_store_be32(data + 12, status->group_tag);
    um_store_be64(data + 16, status->receiver_id);
    um_store_be32(data + 24, status->round_trip_us);
    if (status->cookie != 0) { /* sources of versions without cookies take exactly UM_STATUS_DATA_BYTES */
        um_store_be64(data + length, status->cookie);
        length += UM_COOKIE_BYTES;
    }
    uint32_t at = um_framing_write_status(id, out, client_id, status->next_sqn);
    return at + um_lbmc_write_extended(out + at, UM_STATUS_OPTION_ID, UM_STATUS_OPTION_SUBTYPE, data, length);
}

uint32_t um_status_encode(uint8_t *out, uint32_t session_id, uint16_t nak_port, const um_status_message *status)
{
    um_session_id id = {.source.port = nak_port, .session_id = session_id, .transport = UM_TRANSPORT_LBTRM};
    return um_status_write(out, &id, 0, status);
}

bool um_status_decode(const um_packet *packet, um_status_message *status)
{
    um_lbmc_message message;
    uint32_t length;
    if (packet->type != UM_LBTRM_DATA ||
        um_lbmc_decode(packet->body, packet->body_length, &message, &length) != UM_DGRAM_OK)
        return false;
    if (message.type != UM_LBMC_CONTROL || message.extended == NULL || message.extended_id != UM_STATUS_OPTION_ID ||
        message.extended_subtype != UM_STATUS_OPTION_SUBTYPE || message.extended[0] != UM_STATUS_VERSION)
        return false;
    bool has_cookie = message.extended_length == UM_STATUS_DATA_BYTES + UM_COOKIE_BYTES;
    if (!has_cookie && message.extended_length != UM_STATUS_DATA_BYTES)
        return false;
    status->cookie = has_cookie ? um_load_be64(message.extended + UM_STATUS_DATA_BYTES) : 0;
    status->flags = message.extended[1];
    status->interval_ns =
        um_earliest_ns(um_load_be16(message.extended + 2) * (int64_t)UM_STATUS_INTERVAL_UNIT_NS, INTERVAL_MAX_NS);
    status->next_sqn = um_load_be32(message.extended + 4);
    status->window_bytes = um_load_be32(message.extended + 8);
    status->group_tag = um_load_be32(message.extended + 12);
    status->receiver_id = um_load_be64(message.extended + 16);
    status->round_trip_us = um_load_be32(message.extended + 24);
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
    um_lbmc_message message;
    uint32_t length;
    if (packet->body_length == 0 || um_lbmc_decode(packet->body, packet->body_length, &message, &length) != UM_DGRAM_OK)
        return 0;
    if (message.type != UM_LBMC_CONTROL || message.extended == NULL || message.extended_id != UM_STATUS_OPTION_ID ||
        message.extended_subtype != UM_COOKIE_OPTION_SUBTYPE || message.extended_length != UM_COOKIE_BYTES)
        return 0;
    return um_load_be64(message.extended);
}
