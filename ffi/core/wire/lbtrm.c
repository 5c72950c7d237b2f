#include "core/wire/lbtrm.h"

static void write_header(uint8_t *out, enum um_lbtrm_type type, uint32_t session_id, uint16_t nak_port)
{
    out[0] = (uint8_t)type;
    out[1] = 0;
    um_store_be16(out + 2, nak_port);
    um_store_be32(out + 4, session_id);
}

void um_lbtrm_write_data(uint8_t *out, uint32_t session_id, uint16_t nak_port, uint32_t sqn, uint32_t trail,
                         bool is_retransmission)
{
    write_header(out, UM_LBTRM_DATA, session_id, nak_port);
    um_store_be32(out + 8, sqn);
    um_store_be32(out + 12, trail);
    out[16] = UM_LBTRM_FLAG_UNICAST_NAKS | (is_retransmission ? UM_LBTRM_FLAG_RETRANSMISSION : 0);
    out[17] = 0;
    um_store_be16(out + 18, 0);
}

uint32_t um_lbtrm_write_sm(uint8_t *out, uint32_t session_id, uint16_t nak_port, uint32_t sm_sqn, uint32_t lead,
                           uint32_t trail)
{
    write_header(out, UM_LBTRM_SM, session_id, nak_port);
    um_store_be32(out + 8, sm_sqn);
    um_store_be32(out + 12, lead);
    um_store_be32(out + 16, trail);
    out[20] = UM_LBTRM_FLAG_UNICAST_NAKS;
    out[21] = 0;
    um_store_be16(out + 22, 0);
    return UM_LBTRM_SM_BYTES;
}

static uint32_t write_list(uint8_t *out, const uint32_t *sqns, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        um_store_be32(out + 4 * i, sqns[i]);
    return 4 * count;
}

uint32_t um_lbtrm_write_nak(uint8_t *out, uint32_t session_id, uint16_t nak_port, const uint32_t *sqns, uint32_t count)
{
    write_header(out, UM_LBTRM_NAK, session_id, nak_port);
    um_store_be16(out + 8, (uint16_t)count);
    um_store_be16(out + 10, 0);
    return UM_LBTRM_NAK_BYTES + write_list(out + UM_LBTRM_NAK_BYTES, sqns, count);
}

uint32_t um_lbtrm_write_ncf(uint8_t *out, uint32_t session_id, uint16_t nak_port, uint32_t trail,
                            enum um_ncf_reason reason, const uint32_t *sqns, uint32_t count)
{
    write_header(out, UM_LBTRM_NCF, session_id, nak_port);
    um_store_be32(out + 8, trail);
    um_store_be16(out + 12, (uint16_t)count);
    out[14] = 0;
    out[15] = (uint8_t)(reason << 4);
    return UM_LBTRM_NCF_BYTES + write_list(out + UM_LBTRM_NCF_BYTES, sqns, count);
}

static enum um_dgram_status decode_data(const uint8_t *data, uint32_t length, um_packet *packet)
{
    if (length < UM_LBTRM_DATA_BYTES)
        return UM_DGRAM_SIZE;
    packet->sqn = um_load_be32(data + 8);
    packet->trail = um_load_be32(data + 12);
    packet->flags = data[16];
    packet->body = data + UM_LBTRM_DATA_BYTES;
    packet->body_length = length - UM_LBTRM_DATA_BYTES;
    return um_serial_before(packet->sqn, packet->trail) ? UM_DGRAM_HDR : UM_DGRAM_OK;
}

static enum um_dgram_status decode_sm(const uint8_t *data, uint32_t length, um_packet *packet)
{
    if (length < UM_LBTRM_SM_BYTES)
        return UM_DGRAM_SIZE;
    packet->sqn = um_load_be32(data + 8);
    packet->lead = um_load_be32(data + 12);
    packet->trail = um_load_be32(data + 16);
    packet->flags = data[20];
    packet->body = data + UM_LBTRM_SM_BYTES;
    packet->body_length = length - UM_LBTRM_SM_BYTES;
    return um_serial_before(packet->lead, packet->trail - 1) ? UM_DGRAM_HDR : UM_DGRAM_OK;
}

static enum um_dgram_status decode_list(const uint8_t *data, uint32_t length, uint32_t fixed_bytes, uint32_t count,
                                        um_packet *packet)
{
    if (length - fixed_bytes < 4 * count)
        return UM_DGRAM_SIZE;
    packet->list = data + fixed_bytes;
    packet->list_count = count;
    return UM_DGRAM_OK;
}

static enum um_dgram_status decode_nak(const uint8_t *data, uint32_t length, um_packet *packet)
{
    if (length < UM_LBTRM_NAK_BYTES)
        return UM_DGRAM_SIZE;
    if ((data[11] & 0x0f) != 0)
        return UM_DGRAM_HDR;
    return decode_list(data, length, UM_LBTRM_NAK_BYTES, um_load_be16(data + 8), packet);
}

static enum um_dgram_status decode_ncf(const uint8_t *data, uint32_t length, um_packet *packet)
{
    if (length < UM_LBTRM_NCF_BYTES)
        return UM_DGRAM_SIZE;
    if ((data[15] & 0x0f) != 0)
        return UM_DGRAM_HDR;
    packet->trail = um_load_be32(data + 8);
    packet->ncf_reason = data[15] >> 4;
    return decode_list(data, length, UM_LBTRM_NCF_BYTES, um_load_be16(data + 12), packet);
}

enum um_dgram_status um_lbtrm_decode(const uint8_t *data, uint32_t length, um_packet *packet)
{
    *packet = (um_packet){0};
    if (length < UM_LBTRM_HEADER_BYTES)
        return UM_DGRAM_SIZE;
    if (data[0] >> 4 != 0)
        return UM_DGRAM_VERSION;
    packet->type = data[0] & 0x0f;
    packet->nak_port = um_load_be16(data + 2);
    packet->session_id = um_load_be32(data + 4);
    if (data[1] != 0)
        return UM_DGRAM_HDR;
    switch (packet->type) {
    case UM_LBTRM_DATA:
        return decode_data(data, length, packet);
    case UM_LBTRM_SM:
        return decode_sm(data, length, packet);
    case UM_LBTRM_NAK:
        return decode_nak(data, length, packet);
    case UM_LBTRM_NCF:
        return decode_ncf(data, length, packet);
    default:
        return UM_DGRAM_TYPE;
    }
}

static uint32_t fixed_bytes(uint8_t type)
{
    switch (type) {
    case UM_LBTRM_DATA:
        return UM_LBTRM_DATA_BYTES;
    case UM_LBTRM_SM:
        return UM_LBTRM_SM_BYTES;
    case UM_LBTRM_NAK:
        return UM_LBTRM_NAK_BYTES;
    case UM_LBTRM_NCF:
        return UM_LBTRM_NCF_BYTES;
    default:
        return UM_LBTRM_HEADER_BYTES;
    }
}

enum um_dgram_status um_lbtrm_decode_captured(const uint8_t *data, uint32_t captured, uint32_t length,
                                              um_packet *packet)
{
    if (UM_LIKELY(captured >= length))
        return um_lbtrm_decode(data, length, packet);
    /* A list is not read, only pointed at. So with a complete fixed header the datagram's own length can be used. */
    uint32_t needed = captured == 0 ? 1 : fixed_bytes(data[0] & 0x0f);
    if (captured < needed && length >= needed) {
        *packet = (um_packet){0};
        if (captured >= UM_LBTRM_HEADER_BYTES)
            (void)um_lbtrm_decode(data, UM_LBTRM_HEADER_BYTES, packet);
        return UM_DGRAM_CUT;
    }
    enum um_dgram_status status = um_lbtrm_decode(data, length < needed ? captured : length, packet);
    uint32_t list_captured = captured > needed ? (captured - needed) / 4 : 0;
    if (packet->list_count > list_captured)
        packet->list_count = list_captured;
    if (packet->body != NULL)
        packet->body_length = captured - needed;
    return status;
}
