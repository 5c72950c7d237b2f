/* LBT-RU datagrams (layout: docs/wire.md, decoded by Wireshark's lbtru dissector). Big endian. The bodies are those of
 * LBT-RM; options follow the body, and in DATA the LBMC messages follow the options.
 *
 * A DATA datagram has one option, so that its headers are as long as LBT-RM's: the session id, or a client id of 0 for
 * a session without one. Encoders write into the caller's buffer and return the number of bytes; decoders read only
 * inside [data, data + length) and return the reason why a datagram is refused.
 */
#ifndef UM_CORE_LBTRU_H
#define UM_CORE_LBTRU_H

#include "core/wire/packet.h"

enum um_lbtru_option { UM_LBTRU_OPTION_SESSION_ID = 1, UM_LBTRU_OPTION_CLIENT_ID = 2 };

/* Types in addition to LBT-RM's (um_lbtrm_type). */
enum um_lbtru_type { UM_LBTRU_ACK = 5, UM_LBTRU_CREQ = 6, UM_LBTRU_RST = 7 };

enum {
    UM_LBTRU_HEADER_BYTES = 4,
    UM_LBTRU_OPTION_BYTES = 8,
    UM_LBTRU_OPTIONS_BYTES_MAX = 2 * UM_LBTRU_OPTION_BYTES,
    UM_LBTRU_DATA_BYTES = UM_LBTRU_HEADER_BYTES + 8 + UM_LBTRU_OPTION_BYTES,
    UM_LBTRU_SM_BYTES_MAX = UM_LBTRU_HEADER_BYTES + 12 + UM_LBTRU_OPTIONS_BYTES_MAX,
    UM_LBTRU_NAK_BYTES = UM_LBTRU_HEADER_BYTES + 4 + UM_LBTRU_OPTIONS_BYTES_MAX, /* without the list */
    UM_LBTRU_NCF_BYTES = UM_LBTRU_HEADER_BYTES + 8 + UM_LBTRU_OPTIONS_BYTES_MAX, /* maximum, without the list */
    UM_LBTRU_ACK_BYTES = UM_LBTRU_HEADER_BYTES + 4 + UM_LBTRU_OPTIONS_BYTES_MAX,
    UM_LBTRU_CREQ_BYTES = UM_LBTRU_HEADER_BYTES + UM_LBTRU_OPTIONS_BYTES_MAX,
    UM_LBTRU_RST_BYTES = UM_LBTRU_HEADER_BYTES,
};

enum { UM_LBTRU_HAS_CLIENT_ID = 1 << 2 }; /* bit of um_packet.options */

/* The options of a datagram. A session id of 0 is not written. */
typedef struct um_lbtru_options {
    uint32_t session_id;
    uint32_t client_id;
    bool has_client_id;
} um_lbtru_options;

/* Fields that the type does not have are set to zero. `flags` are those of um_packet_flag; `nak_port` stays 0. For a
 * refused datagram, the type is stored if its length and version allow it. */
enum um_dgram_status um_lbtru_decode(const uint8_t *data, uint32_t length, um_packet *packet);

/* The same for a datagram of `length` bytes of which a capture holds the first `captured`: lengths are checked against
 * the datagram, the body of DATA is cut to the captured bytes. UM_DGRAM_CUT: the options, which follow the list of a
 * NAK or NCF, are incomplete; the type and the captured part of the list are stored. */
enum um_dgram_status um_lbtru_decode_captured(const uint8_t *data, uint32_t captured, uint32_t length,
                                              um_packet *packet);

/* Length of a decoded datagram according to its fields, without the messages of DATA. */
uint32_t um_lbtru_headers_bytes(const um_packet *packet);

enum { UM_LBTRU_PASSED_MAX = 0x0fff };

/* Writes UM_LBTRU_DATA_BYTES. */
void um_lbtru_write_data(uint8_t *out, uint32_t session_id, uint32_t sqn, uint32_t trail, bool is_retransmission);
/* Writes into the header of DATA how many datagrams before it were passed over for this client, at most
 * UM_LBTRU_PASSED_MAX. */
void um_lbtru_set_passed(uint8_t *header, uint32_t passed);
/* Writes the headers of a client's DATA, with both options. Returns the offset of the LBMC messages. */
uint32_t um_lbtru_write_client_data(uint8_t *out, const um_lbtru_options *options, uint32_t sqn);
uint32_t um_lbtru_write_sm(uint8_t *out, const um_lbtru_options *options, bool is_syn, uint32_t sm_sqn, uint32_t lead,
                           uint32_t trail);
uint32_t um_lbtru_write_nak(uint8_t *out, const um_lbtru_options *options, const uint32_t *sqns, uint32_t count);
uint32_t um_lbtru_write_ncf(uint8_t *out, const um_lbtru_options *options, uint32_t trail, enum um_ncf_reason reason,
                            const uint32_t *sqns, uint32_t count);
/* is_syn: the client has sent no interest since it connected (interest.h); an interest the source has is obsolete. */
uint32_t um_lbtru_write_ack(uint8_t *out, const um_lbtru_options *options, bool is_syn, uint32_t sqn);
uint32_t um_lbtru_write_creq(uint8_t *out, const um_lbtru_options *options);
/* An RST has no options: Wireshark's dissector reads them two bytes early. */
uint32_t um_lbtru_write_rst(uint8_t *out);

#endif
