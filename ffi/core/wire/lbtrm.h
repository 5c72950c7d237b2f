/* LBT-RM datagrams (W1; layout: docs/wire.md, decoded by Wireshark's lbtrm dissector). Big endian. Encoders write into
 * the caller's buffer and return the number of bytes; decoders read only inside [data, data + length) and return the
 * reason why a datagram is refused.
 */
#ifndef UM_CORE_LBTRM_H
#define UM_CORE_LBTRM_H

#include "core/wire/packet.h"

enum {
    UM_LBTRM_HEADER_BYTES = 8,
    UM_LBTRM_DATA_BYTES = 20, /* main header and data header */
    UM_LBTRM_SM_BYTES = 24,
    UM_LBTRM_NAK_BYTES = 12, /* without the list */
    UM_LBTRM_NCF_BYTES = 16, /* without the list */
};

/* Fields that the type does not have are set to zero. For a refused datagram, type, NAK port and session id are stored
 * if its length and version allow it, so that the right session counts the drop. */
enum um_dgram_status um_lbtrm_decode(const uint8_t *data, uint32_t length, um_packet *packet);

/* The same for a datagram of `length` bytes of which a capture holds the first `captured`: lengths are checked against
 * the datagram, list and body are cut to the captured bytes. UM_DGRAM_CUT: the fixed header is incomplete. */
enum um_dgram_status um_lbtrm_decode_captured(const uint8_t *data, uint32_t captured, uint32_t length,
                                              um_packet *packet);

void um_lbtrm_write_data(uint8_t *out, uint32_t session_id, uint16_t nak_port, uint32_t sqn, uint32_t trail,
                         bool is_retransmission);
uint32_t um_lbtrm_write_sm(uint8_t *out, uint32_t session_id, uint16_t nak_port, uint32_t sm_sqn, uint32_t lead,
                           uint32_t trail);
uint32_t um_lbtrm_write_nak(uint8_t *out, uint32_t session_id, uint16_t nak_port, const uint32_t *sqns, uint32_t count);
uint32_t um_lbtrm_write_ncf(uint8_t *out, uint32_t session_id, uint16_t nak_port, uint32_t trail,
                            enum um_ncf_reason reason, const uint32_t *sqns, uint32_t count);

#endif
