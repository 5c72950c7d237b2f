#include "core/wire/tcp_control.h"

enum {
    OPTION_SSF_INIT = 16,
    OPTION_SSF_REQUEST = 17,
    OPTION_TCP_SESSION_ID = UM_LBMC_OPTION_TCP_SESSION,
    OPTION_HEAD_BYTES = 4,
    SESSION_ID_OPTION_BYTES = 8,
    SSF_INIT_OPTION_BYTES = 20,
    SSF_REQUEST_OPTION_BYTES = 16,
    TRANSPORT_TCP = 0,
    FLAG_IGNORE = 0x80, /* a reader that does not know the option may skip it */
    FLAG_DEFAULT_EXCLUSIONS = 0x20,
    FLAG_ANSWERING = 0x01, /* ours: Ultra Messaging defines none of the low bits */
    MODE_INCLUDE = 0,
    MODE_EXCLUDE = 1,
};

/* Writes the heads of a control message and of its only option. Returns the place of the option's body. */
static uint8_t *write_head(uint8_t *out, uint8_t option, uint32_t option_bytes)
{
    out[0] = UM_LBMC_CONTROL;
    out[1] = option;
    um_store_be16(out + 2, (uint16_t)(UM_LBMC_CONTROL_BYTES + option_bytes));
    out[4] = UM_LBMC_OPTION_NONE;
    out[5] = (uint8_t)option_bytes;
    return out + 6;
}

uint32_t um_tcp_write_session_id(uint8_t *out, uint32_t session_id)
{
    uint8_t *body = write_head(out, OPTION_TCP_SESSION_ID, SESSION_ID_OPTION_BYTES);
    um_store_be16(body, 0);
    um_store_be32(body + 2, session_id);
    return UM_TCP_SESSION_ID_BYTES;
}

uint32_t um_tcp_write_ssf_init(uint8_t *out, uint32_t session_id, uint32_t client_index, um_address source,
                               bool is_filtering)
{
    uint8_t *body = write_head(out, OPTION_SSF_INIT, SSF_INIT_OPTION_BYTES);
    body[0] = FLAG_IGNORE | FLAG_ANSWERING | (is_filtering ? FLAG_DEFAULT_EXCLUSIONS : 0);
    body[1] = TRANSPORT_TCP;
    um_store_be32(body + 2, session_id);
    um_store_be32(body + 6, client_index);
    um_store_be16(body + 10, source.port);
    um_store_be16(body + 12, 0);
    um_store_be32(body + 14, um_ip_v4(source.ip));
    return UM_TCP_SSF_INIT_BYTES;
}

uint32_t um_tcp_write_ssf_request(uint8_t *out, bool is_included, uint32_t session_id, uint32_t client_index,
                                  uint32_t topic_index)
{
    uint8_t *body = write_head(out, OPTION_SSF_REQUEST, SSF_REQUEST_OPTION_BYTES);
    body[0] = 0;
    body[1] = is_included ? MODE_INCLUDE : MODE_EXCLUDE;
    um_store_be32(body + 2, session_id);
    um_store_be32(body + 6, topic_index);
    um_store_be32(body + 10, client_index);
    return UM_TCP_SSF_REQUEST_BYTES;
}

uint32_t um_tcp_write_ssf_answer(uint8_t *out, const um_tcp_control *request, uint32_t count)
{
    uint32_t length = um_tcp_write_ssf_request(out, request->kind == UM_TCP_SSF_INCLUDE, request->session_id, count,
                                               request->topic_index);
    out[UM_LBMC_CONTROL_BYTES + 2] = FLAG_IGNORE;
    return length;
}

uint32_t um_tcp_write_end(uint8_t *out)
{
    out[0] = UM_LBMC_END;
    out[1] = UM_LBMC_OPTION_NONE;
    um_store_be16(out + 2, UM_TCP_END_BYTES);
    return UM_TCP_END_BYTES;
}

uint32_t um_tcp_write_nothing(uint8_t *out)
{
    out[0] = UM_LBMC_CONTROL;
    out[1] = UM_LBMC_OPTION_NONE;
    um_store_be16(out + 2, UM_LBMC_CONTROL_BYTES);
    return UM_LBMC_CONTROL_BYTES;
}

static um_tcp_control decode_option(uint8_t type, const uint8_t *option, uint32_t length)
{
    um_tcp_control control = {.kind = UM_TCP_OTHER};
    if (type == OPTION_TCP_SESSION_ID && length == SESSION_ID_OPTION_BYTES) {
        control.kind = UM_TCP_SESSION_ID;
        control.session_id = um_load_be32(option + 4);
    } else if (type == OPTION_SSF_INIT && length == SSF_INIT_OPTION_BYTES && option[3] == TRANSPORT_TCP) {
        control.kind = UM_TCP_SSF_INIT;
        control.session_id = um_load_be32(option + 4);
        control.client_index = um_load_be32(option + 8);
        control.is_answering = (option[2] & FLAG_ANSWERING) != 0;
        control.is_filtering = (option[2] & FLAG_DEFAULT_EXCLUSIONS) != 0;
    } else if (type == OPTION_SSF_REQUEST && length == SSF_REQUEST_OPTION_BYTES && option[3] <= MODE_EXCLUDE) {
        control.kind = option[3] == MODE_INCLUDE ? UM_TCP_SSF_INCLUDE : UM_TCP_SSF_EXCLUDE;
        control.session_id = um_load_be32(option + 4);
        control.topic_index = um_load_be32(option + 8);
        control.client_index = um_load_be32(option + 12);
    }
    return control;
}

um_tcp_control um_tcp_control_next(um_tcp_control_reader *reader)
{
    uint8_t type = reader->next;
    uint32_t left = reader->length - reader->at;
    const uint8_t *option = reader->data + reader->at;
    if (type == UM_LBMC_OPTION_NONE || type == UM_LBMC_OPTION_DATA || left < OPTION_HEAD_BYTES ||
        option[1] < OPTION_HEAD_BYTES || option[1] > left)
        return (um_tcp_control){.kind = UM_TCP_NOTHING};
    reader->next = option[0];
    reader->at += option[1];
    return decode_option(type, option, option[1]);
}
