#include "core/wire/lbtru.h"

enum {
    OPTION_NONE = 0,
    OPTION_SESSION_ID = UM_LBTRU_OPTION_SESSION_ID,
    OPTION_CLIENT_ID = UM_LBTRU_OPTION_CLIENT_ID,
    FLAG_RETRANSMISSION = 0x4000, /* DATA; the other bits are UM_LBTRU_PASSED_MAX */
    FLAG_SYN = 0x8000,            /* SM, ACK */
};

/* ---- writing ---- */

static bool has_client_option(const um_lbtru_options *options)
{
    return options->has_client_id || options->session_id == 0; /* at least one option, so that lengths do not vary */
}

static void write_header(uint8_t *out, uint8_t type, const um_lbtru_options *options, uint16_t flags)
{
    out[0] = type;
    out[1] = options->session_id != 0 ? OPTION_SESSION_ID : OPTION_CLIENT_ID;
    um_store_be16(out + 2, flags);
}

static void write_option(uint8_t *out, uint8_t next, uint32_t id)
{
    out[0] = next;
    out[1] = UM_LBTRU_OPTION_BYTES;
    um_store_be16(out + 2, 0);
    um_store_be32(out + 4, id);
}

static uint32_t write_options(uint8_t *out, const um_lbtru_options *options)
{
    uint32_t bytes = 0;
    if (options->session_id != 0) {
        write_option(out, has_client_option(options) ? OPTION_CLIENT_ID : OPTION_NONE, options->session_id);
        bytes = UM_LBTRU_OPTION_BYTES;
    }
    if (has_client_option(options)) {
        write_option(out + bytes, OPTION_NONE, options->client_id);
        bytes += UM_LBTRU_OPTION_BYTES;
    }
    return bytes;
}

static uint32_t write_list(uint8_t *out, const uint32_t *sqns, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        um_store_be32(out + 4 * i, sqns[i]);
    return 4 * count;
}

void um_lbtru_write_data(uint8_t *out, uint32_t session_id, uint32_t sqn, uint32_t trail, bool is_retransmission)
{
    out[0] = UM_LBTRM_DATA;
    out[1] = session_id != 0 ? OPTION_SESSION_ID : OPTION_CLIENT_ID;
    um_store_be16(out + 2, is_retransmission ? FLAG_RETRANSMISSION : 0);
    um_store_be32(out + 4, sqn);
    um_store_be32(out + 8, trail);
    write_option(out + 12, OPTION_NONE, session_id);
}

void um_lbtru_set_passed(uint8_t *header, uint32_t passed)
{
    um_debug_assert(passed <= UM_LBTRU_PASSED_MAX);
    uint32_t others = um_load_be16(header + 2) & ~(uint32_t)UM_LBTRU_PASSED_MAX;
    um_store_be16(header + 2, (uint16_t)(others | passed));
}

uint32_t um_lbtru_write_client_data(uint8_t *out, const um_lbtru_options *options, uint32_t sqn)
{
    write_header(out, UM_LBTRM_DATA, options, 0);
    um_store_be32(out + 4, sqn);
    um_store_be32(out + 8, sqn);
    return 12 + write_options(out + 12, options);
}

uint32_t um_lbtru_write_sm(uint8_t *out, const um_lbtru_options *options, bool is_syn, uint32_t sm_sqn, uint32_t lead,
                           uint32_t trail)
{
    write_header(out, UM_LBTRM_SM, options, is_syn ? FLAG_SYN : 0);
    um_store_be32(out + 4, sm_sqn);
    um_store_be32(out + 8, lead);
    um_store_be32(out + 12, trail);
    return 16 + write_options(out + 16, options);
}

uint32_t um_lbtru_write_nak(uint8_t *out, const um_lbtru_options *options, const uint32_t *sqns, uint32_t count)
{
    write_header(out, UM_LBTRM_NAK, options, 0);
    um_store_be16(out + 4, (uint16_t)count);
    um_store_be16(out + 6, 0);
    uint32_t bytes = 8 + write_list(out + 8, sqns, count);
    return bytes + write_options(out + bytes, options);
}

uint32_t um_lbtru_write_ncf(uint8_t *out, const um_lbtru_options *options, uint32_t trail, enum um_ncf_reason reason,
                            const uint32_t *sqns, uint32_t count)
{
    write_header(out, UM_LBTRM_NCF, options, 0);
    um_store_be32(out + 4, trail);
    um_store_be16(out + 8, (uint16_t)count);
    out[10] = 0;
    out[11] = (uint8_t)(reason << 4);
    uint32_t bytes = 12 + write_list(out + 12, sqns, count);
    return bytes + write_options(out + bytes, options);
}

uint32_t um_lbtru_write_ack(uint8_t *out, const um_lbtru_options *options, bool is_syn, uint32_t sqn)
{
    write_header(out, UM_LBTRU_ACK, options, is_syn ? FLAG_SYN : 0);
    um_store_be32(out + 4, sqn);
    return 8 + write_options(out + 8, options);
}

uint32_t um_lbtru_write_creq(uint8_t *out, const um_lbtru_options *options)
{
    write_header(out, UM_LBTRU_CREQ, options, 0);
    return 4 + write_options(out + 4, options);
}

uint32_t um_lbtru_write_rst(uint8_t *out)
{
    memset(out, 0, UM_LBTRU_RST_BYTES);
    out[0] = UM_LBTRU_RST;
    return UM_LBTRU_RST_BYTES;
}

/* ---- decoding ---- */

/* Decodes the options from `at` on: each at most once, so the chain is short. *end: the offset after the last. */
static inline enum um_dgram_status decode_options(const uint8_t *data, uint32_t captured, uint32_t length, uint32_t at,
                                                  um_packet *packet, uint32_t *end)
{
    for (uint8_t kind = data[1]; kind != OPTION_NONE; kind = data[at - UM_LBTRU_OPTION_BYTES]) {
        if (kind != OPTION_SESSION_ID && kind != OPTION_CLIENT_ID)
            return UM_DGRAM_HDR;
        if (length < at || length - at < UM_LBTRU_OPTION_BYTES)
            return UM_DGRAM_SIZE;
        if (captured < at || captured - at < UM_LBTRU_OPTION_BYTES)
            return UM_DGRAM_CUT;
        if (data[at + 1] != UM_LBTRU_OPTION_BYTES || packet->options & (1u << kind))
            return UM_DGRAM_HDR;
        packet->options |= (uint8_t)(1u << kind);
        *(kind == OPTION_SESSION_ID ? &packet->session_id : &packet->client_id) = um_load_be32(data + at + 4);
        at += UM_LBTRU_OPTION_BYTES;
    }
    _Static_assert(UM_LBTRU_HAS_CLIENT_ID == 1 << OPTION_CLIENT_ID, "a bit for each option");
    *end = at;
    return UM_DGRAM_OK;
}

static uint32_t body_bytes(uint8_t type)
{
    switch (type) {
    case UM_LBTRM_DATA:
    case UM_LBTRM_NCF:
        return 8;
    case UM_LBTRM_SM:
        return 12;
    case UM_LBTRM_NAK:
    case UM_LBTRU_ACK:
        return 4;
    default:
        return 0;
    }
}

/* Decodes the fixed fields of the body. */
static enum um_dgram_status decode_body(const uint8_t *data, um_packet *packet)
{
    const uint8_t *body = data + UM_LBTRU_HEADER_BYTES;
    uint16_t flags = um_load_be16(data + 2);
    switch (packet->type) {
    case UM_LBTRM_DATA:
        packet->sqn = um_load_be32(body);
        packet->trail = um_load_be32(body + 4);
        packet->flags = flags & FLAG_RETRANSMISSION ? UM_LBTRM_FLAG_RETRANSMISSION : 0;
        packet->passed = flags & UM_LBTRU_PASSED_MAX;
        return um_serial_before(packet->sqn, packet->trail) ? UM_DGRAM_HDR : UM_DGRAM_OK;
    case UM_LBTRM_SM:
        packet->sqn = um_load_be32(body);
        packet->lead = um_load_be32(body + 4);
        packet->trail = um_load_be32(body + 8);
        packet->flags = flags & FLAG_SYN ? UM_LBTRU_FLAG_SYN : 0;
        return um_serial_before(packet->lead, packet->trail - 1) ? UM_DGRAM_HDR : UM_DGRAM_OK;
    case UM_LBTRM_NAK:
        packet->list_count = um_load_be16(body);
        return (body[3] & 0x0f) != 0 ? UM_DGRAM_HDR : UM_DGRAM_OK;
    case UM_LBTRM_NCF:
        packet->trail = um_load_be32(body);
        packet->list_count = um_load_be16(body + 4);
        packet->ncf_reason = body[7] >> 4;
        return (body[7] & 0x0f) != 0 ? UM_DGRAM_HDR : UM_DGRAM_OK;
    case UM_LBTRU_ACK:
        packet->sqn = um_load_be32(body);
        packet->flags = flags & FLAG_SYN ? UM_LBTRU_FLAG_SYN : 0;
        return UM_DGRAM_OK;
    case UM_LBTRU_CREQ:
    case UM_LBTRU_RST:
        return UM_DGRAM_OK;
    default:
        return UM_DGRAM_TYPE;
    }
}

static inline enum um_dgram_status decode(const uint8_t *data, uint32_t captured, uint32_t length, um_packet *packet)
{
    *packet = (um_packet){0};
    if (length < UM_LBTRU_HEADER_BYTES)
        return UM_DGRAM_SIZE;
    if (captured < UM_LBTRU_HEADER_BYTES)
        return UM_DGRAM_CUT;
    if (data[0] >> 4 != 0)
        return UM_DGRAM_VERSION;
    packet->type = data[0] & 0x0f;
    uint32_t at = UM_LBTRU_HEADER_BYTES + body_bytes(packet->type);
    if (length < at)
        return UM_DGRAM_SIZE;
    if (captured < at)
        return UM_DGRAM_CUT;
    enum um_dgram_status status = decode_body(data, packet);
    if (status == UM_DGRAM_TYPE)
        return status;
    uint32_t list_bytes = 4 * packet->list_count;
    if (length - at < list_bytes)
        return UM_DGRAM_SIZE;
    packet->list = packet->type == UM_LBTRM_NAK || packet->type == UM_LBTRM_NCF ? data + at : NULL;
    if (captured - at < list_bytes)
        packet->list_count = (captured - at) / 4;
    at += list_bytes;
    enum um_dgram_status options = decode_options(data, captured, length, at, packet, &at);
    if (options != UM_DGRAM_OK)
        return options;
    if (packet->type == UM_LBTRM_DATA) {
        packet->body = data + at;
        packet->body_length = captured - at;
    }
    return status;
}

enum um_dgram_status um_lbtru_decode(const uint8_t *data, uint32_t length, um_packet *packet)
{
    return decode(data, length, length, packet);
}

enum um_dgram_status um_lbtru_decode_captured(const uint8_t *data, uint32_t captured, uint32_t length,
                                              um_packet *packet)
{
    return decode(data, captured < length ? captured : length, length, packet);
}

uint32_t um_lbtru_headers_bytes(const um_packet *packet)
{
    uint32_t options = (uint32_t)__builtin_popcount(packet->options);
    return UM_LBTRU_HEADER_BYTES + body_bytes(packet->type) + 4 * packet->list_count + UM_LBTRU_OPTION_BYTES * options;
}
