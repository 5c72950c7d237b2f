/* LBT-RM datagrams (design W1; layout: docs/wire.md, decoded by Wireshark's lbtrm dissector). Big endian.
 * Encoders write into the caller's buffer and return the number of bytes; decoders read only inside
 * [data, data + length) and return why a datagram is refused.
 */
#ifndef UM_CORE_LBTRM_H
#define UM_CORE_LBTRM_H

#include "core/base.h"

enum um_lbtrm_type { UM_LBTRM_DATA = 0, UM_LBTRM_SM = 2, UM_LBTRM_NAK = 3, UM_LBTRM_NCF = 4 };

enum {
    UM_LBTRM_HEADER_BYTES = 8,
    UM_LBTRM_DATA_BYTES = 20, /* main header and data header */
    UM_LBTRM_SM_BYTES = 24,
    UM_LBTRM_NAK_BYTES = 12, /* before the list */
    UM_LBTRM_NCF_BYTES = 16, /* before the list */
    UM_LBTRM_FLAG_UNICAST_NAKS = 0x80,
    UM_LBTRM_FLAG_RETRANSMISSION = 0x20,
};

enum um_ncf_reason { UM_NCF_NO_RETRY = 0, UM_NCF_IGNORED = 1, UM_NCF_RX_DELAY = 2, UM_NCF_SHED = 3 };

/* Why a datagram was dropped: UM's dgrams_dropped_* (reference 4.2). */
enum um_dgram_status {
    UM_DGRAM_OK = 0,
    UM_DGRAM_SIZE,    /* shorter than its own fields require */
    UM_DGRAM_TYPE,    /* unknown type */
    UM_DGRAM_VERSION, /* unknown version */
    UM_DGRAM_HDR,     /* a header that makes no sense */
    UM_DGRAM_OTHER,
    UM_DGRAM_CUT, /* a header reaches beyond what a capture holds: nothing wrong with the datagram */
};

typedef struct um_lbtrm_packet {
    uint8_t type;
    uint8_t flags; /* DATA, SM */
    uint8_t ncf_reason;
    uint16_t nak_port;
    uint32_t session_id;
    uint32_t sqn;   /* DATA: its sqn; SM: the SM's own counter */
    uint32_t trail; /* DATA, SM, NCF */
    uint32_t lead;  /* SM */
    uint32_t list_count;
    const uint8_t *list; /* NAK, NCF: list_count big-endian sqns */
    const uint8_t *body; /* DATA: LBMC messages */
    uint32_t body_length;
} um_lbtrm_packet;

/* Fields the type does not have are zero. Of a datagram that is refused, type, NAK port and session id are stored
 * where its length and version allow it, so that the drop can be counted where it belongs. */
enum um_dgram_status um_lbtrm_decode(const uint8_t *data, uint32_t length, um_lbtrm_packet *packet);

/* The same for a datagram of length bytes of which a capture holds the first captured ones: lengths are judged by the
 * datagram, the list and the body are what is there of them. UM_DGRAM_CUT when the fixed header is not all there. */
enum um_dgram_status um_lbtrm_decode_captured(const uint8_t *data, uint32_t captured, uint32_t length,
                                              um_lbtrm_packet *packet);

void um_lbtrm_write_data(uint8_t *out, uint32_t session_id, uint16_t nak_port, uint32_t sqn, uint32_t trail,
                         bool retransmission);
uint32_t um_lbtrm_write_sm(uint8_t *out, uint32_t session_id, uint16_t nak_port, uint32_t sm_sqn, uint32_t lead,
                           uint32_t trail);
uint32_t um_lbtrm_write_nak(uint8_t *out, uint32_t session_id, uint16_t nak_port, const uint32_t *sqns, uint32_t count);
uint32_t um_lbtrm_write_ncf(uint8_t *out, uint32_t session_id, uint16_t nak_port, uint32_t trail,
                            enum um_ncf_reason reason, const uint32_t *sqns, uint32_t count);

#endif
