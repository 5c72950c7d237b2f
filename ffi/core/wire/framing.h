/* The framing of a session's datagrams, LBT-RM's or LBT-RU's. Sessions write and read through these functions, so one
 * session serves both; connection messages, which only LBT-RU has, are written by lbtru.h directly.
 *
 * The DATA headers of both have the length of the log's frame header. No state, any thread.
 */
#ifndef UM_CORE_FRAMING_H
#define UM_CORE_FRAMING_H

#include "core/wire/lbtrm.h"
#include "core/wire/lbtru.h"
#include "core/wire/session_id.h"

enum {
    UM_FRAMING_DATA_BYTES = UM_LBTRM_DATA_BYTES,
    UM_FRAMING_SM_BYTES_MAX = UM_LBTRU_SM_BYTES_MAX,
    UM_FRAMING_NAK_BYTES_MAX = UM_LBTRU_NAK_BYTES, /* without the list */
    UM_FRAMING_NCF_BYTES_MAX = UM_LBTRU_NCF_BYTES,
    UM_FRAMING_STATUS_BYTES_MAX = UM_LBTRU_HEADER_BYTES + 8 + UM_LBTRU_OPTIONS_BYTES_MAX, /* before LBMC */
};
_Static_assert((int)UM_LBTRM_DATA_BYTES == (int)UM_LBTRU_DATA_BYTES, "a frame of the log has space for either");

/* Bytes of a NAK or NCF without its list. */
static inline uint32_t um_framing_nak_bytes(enum um_transport transport)
{
    return transport == UM_TRANSPORT_LBTRM ? UM_LBTRM_NAK_BYTES : UM_LBTRU_NAK_BYTES;
}
static inline uint32_t um_framing_ncf_bytes(enum um_transport transport)
{
    return transport == UM_TRANSPORT_LBTRM ? UM_LBTRM_NCF_BYTES : UM_LBTRU_NCF_BYTES;
}

static inline enum um_dgram_status um_framing_decode(enum um_transport transport, const uint8_t *data, uint32_t length,
                                                     um_packet *packet)
{
    return UM_LIKELY(transport == UM_TRANSPORT_LBTRM) ? um_lbtrm_decode(data, length, packet)
                                                      : um_lbtru_decode(data, length, packet);
}

static inline void um_framing_write_data(enum um_transport transport, uint8_t *out, uint32_t session_id,
                                         uint16_t nak_port, uint32_t sqn, uint32_t trail, bool is_retransmission)
{
    if (UM_LIKELY(transport == UM_TRANSPORT_LBTRM))
        um_lbtrm_write_data(out, session_id, nak_port, sqn, trail, is_retransmission);
    else
        um_lbtru_write_data(out, session_id, sqn, trail, is_retransmission);
}

static inline uint32_t um_framing_write_sm(enum um_transport transport, uint8_t *out, uint32_t session_id,
                                           uint16_t nak_port, uint32_t sm_sqn, uint32_t lead, uint32_t trail)
{
    um_lbtru_options options = {.session_id = session_id};
    return transport == UM_TRANSPORT_LBTRM ? um_lbtrm_write_sm(out, session_id, nak_port, sm_sqn, lead, trail)
                                           : um_lbtru_write_sm(out, &options, false, sm_sqn, lead, trail);
}

static inline uint32_t um_framing_write_ncf(enum um_transport transport, uint8_t *out, uint32_t session_id,
                                            uint16_t nak_port, uint32_t trail, enum um_ncf_reason reason,
                                            const uint32_t *sqns, uint32_t count)
{
    um_lbtru_options options = {.session_id = session_id};
    return transport == UM_TRANSPORT_LBTRM ? um_lbtrm_write_ncf(out, session_id, nak_port, trail, reason, sqns, count)
                                           : um_lbtru_write_ncf(out, &options, trail, reason, sqns, count);
}

/* `client_id`: of the receiver's connection. */
static inline uint32_t um_framing_write_nak(const um_session_id *id, uint8_t *out, uint32_t client_id,
                                            const uint32_t *sqns, uint32_t count)
{
    um_lbtru_options options = {id->session_id, client_id, true};
    return id->transport == UM_TRANSPORT_LBTRM ? um_lbtrm_write_nak(out, id->session_id, id->source.port, sqns, count)
                                               : um_lbtru_write_nak(out, &options, sqns, count);
}

/* Writes the headers of a status message. Returns the offset of the LBMC message. */
static inline uint32_t um_framing_write_status(const um_session_id *id, uint8_t *out, uint32_t client_id, uint32_t sqn)
{
    um_lbtru_options options = {id->session_id, client_id, true};
    if (id->transport != UM_TRANSPORT_LBTRM)
        return um_lbtru_write_client_data(out, &options, sqn);
    um_lbtrm_write_data(out, id->session_id, id->source.port, sqn, sqn, false);
    return UM_LBTRM_DATA_BYTES;
}

#endif
