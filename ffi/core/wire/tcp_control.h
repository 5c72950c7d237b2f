/* Control messages of LBT-TCP, sent between topic messages (W1; layout: docs/wire.md, decoded by Wireshark's lbmc
 * dissector). Big endian.
 *
 *   client                                   source
 *     TCP session id ------------------------->     the session it connects to: a wrong one is refused
 *                     <-------------- SSF init      the client has joined: request topics (UX-27)
 *     SSF request ---------------------------->     adds or removes one topic; behind it a topic report
 *                     <------------ SSF answer      in order with the messages: the request is in force from here on
 *                     <---- messages and TSNIs
 *                     <------------------- end      the source has ended the session
 *
 * With keys both sides send greetings first, and these messages are sent in records (core/wire/stream_record.h).
 *
 * An SSF answer is a request with the source's count of the connection's requests in place of the client's index, so
 * one answer covers several requests. A source that sends answers sets a flag in its init; other clients ignore
 * answers.
 *
 * Encoders write into the caller's buffer and return the number of bytes; decoders read only inside [data, data +
 * length).
 */
#ifndef UM_CORE_TCP_CONTROL_H
#define UM_CORE_TCP_CONTROL_H

#include "core/foundation/address.h"
#include "core/wire/lbmc.h"

enum {
    UM_TCP_SESSION_ID_BYTES = 12,
    UM_TCP_SSF_INIT_BYTES = 24,
    UM_TCP_SSF_REQUEST_BYTES = 20,
    UM_TCP_END_BYTES = 4,
    UM_TCP_CONTROL_BYTES_MAX = 24,
};

/* Kinds of options in control messages, and the fields of um_tcp_control that each sets. */
enum um_tcp_control_kind {
    UM_TCP_NOTHING = 0, /* no further option */
    UM_TCP_SESSION_ID,  /* session_id */
    UM_TCP_SSF_INIT,    /* session_id, client_index, is_answering, is_filtering */
    UM_TCP_SSF_INCLUDE, /* session_id, client_index, topic_index; from a source: an answer */
    UM_TCP_SSF_EXCLUDE, /* the same */
    UM_TCP_OTHER,       /* any other option */
};

typedef struct um_tcp_control {
    enum um_tcp_control_kind kind;
    uint32_t session_id;
    uint32_t client_index; /* answer: number of requests in force, modulo 2^32 */
    uint32_t topic_index;
    bool is_answering; /* init: the source answers requests */
    bool is_filtering; /* init: the source sends only the topics requested; otherwise every topic */
} um_tcp_control;

uint32_t um_tcp_write_session_id(uint8_t *out, uint32_t session_id);
/* source: the address for requests, which is the one that the client is connected to. */
uint32_t um_tcp_write_ssf_init(uint8_t *out, uint32_t session_id, uint32_t client_index, um_address source,
                               bool is_filtering);
uint32_t um_tcp_write_ssf_request(uint8_t *out, bool is_included, uint32_t session_id, uint32_t client_index,
                                  uint32_t topic_index);
/* request: the last one in force; count: how many are in force. */
uint32_t um_tcp_write_ssf_answer(uint8_t *out, const um_tcp_control *request, uint32_t count);
uint32_t um_tcp_write_end(uint8_t *out);
/* Writes a control message without options, UM_LBMC_CONTROL_BYTES, for a record or an answer that must be sent although
 * there is nothing to report. */
uint32_t um_tcp_write_nothing(uint8_t *out);

/* Iterates over the options of a whole control message. An invalid option ends the chain. */
typedef struct um_tcp_control_reader {
    const uint8_t *data;
    uint32_t length;
    uint32_t at;
    uint8_t next;
} um_tcp_control_reader;

static inline um_tcp_control_reader um_tcp_control_read(const uint8_t *message, uint32_t length)
{
    return (um_tcp_control_reader){message, length, UM_LBMC_CONTROL_BYTES, message[1]};
}
um_tcp_control um_tcp_control_next(um_tcp_control_reader *reader);

#endif
