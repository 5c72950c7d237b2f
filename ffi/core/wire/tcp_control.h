/* Control messages of LBT-TCP, which lie between the messages of topics (design W1; layout: docs/wire.md, decoded by
 * Wireshark's lbmc dissector). Big endian.
 *
 *   client                                   source
 *     TCP session id ------------------------->     which session it means: a wrong one is refused
 *                     <-------------- SSF init      with source-side filtering: topics have to be wanted (UX-27)
 *     SSF request ---------------------------->     a topic is wanted, or no longer
 *                     <------------ SSF answer      in order with the messages: what it was told is in force from here
 *                     <---- messages and TSNIs
 *                     <------------------- end      the source has ended the session
 *
 * With keys both sides greet first, and what is drawn goes in records (core/wire/stream_record.h).
 *
 * An SSF answer is a request with the source's count of the connection's requests in the place of the client's index,
 * so that one answers several. A source that gives answers says so in its init; to a client that knows none they say
 * nothing.
 *
 * Encoders write into the caller's buffer and return the number of bytes; decoders read only inside [data, data +
 * length).
 */
#ifndef UM_CORE_TCP_CONTROL_H
#define UM_CORE_TCP_CONTROL_H

#include "core/wire/lbmc.h"

enum {
    UM_TCP_SESSION_ID_BYTES = 12,
    UM_TCP_SSF_INIT_BYTES = 24,
    UM_TCP_SSF_REQUEST_BYTES = 20,
    UM_TCP_END_BYTES = 4,
    UM_TCP_CONTROL_BYTES_MAX = 24,
};

/* What an option of a control message says. */
enum um_tcp_control_kind {
    UM_TCP_NOTHING = 0, /* the message has no further option */
    UM_TCP_SESSION_ID,  /* session_id */
    UM_TCP_SSF_INIT,    /* session_id, client_index */
    UM_TCP_SSF_INCLUDE, /* session_id, client_index, topic_index; of a source: an answer */
    UM_TCP_SSF_EXCLUDE,
    UM_TCP_OTHER, /* one that is none of these */
};

typedef struct um_tcp_control {
    enum um_tcp_control_kind kind;
    uint32_t session_id;
    uint32_t client_index; /* of an answer: requests that are in force, modulo 2^32 */
    uint32_t topic_index;
    bool is_answering; /* of an init: the source answers requests */
} um_tcp_control;

uint32_t um_tcp_write_session_id(uint8_t *out, uint32_t session_id);
/* source: where requests are sent, which is where the client is connected to. */
uint32_t um_tcp_write_ssf_init(uint8_t *out, uint32_t session_id, uint32_t client_index, um_address source);
uint32_t um_tcp_write_ssf_request(uint8_t *out, bool is_included, uint32_t session_id, uint32_t client_index,
                                  uint32_t topic_index);
/* request: the last of those that are in force; count: how many they are. */
uint32_t um_tcp_write_ssf_answer(uint8_t *out, const um_tcp_control *request, uint32_t count);
uint32_t um_tcp_write_end(uint8_t *out);
/* A control message without options, UM_LBMC_CONTROL_BYTES: what has to be said in a record, or answered, and is
 * nothing. */
uint32_t um_tcp_write_nothing(uint8_t *out);

/* Reads the options of one whole control message in turn. `next` and `at` are the reader's place: 0 to begin with. A
 * chain that makes no sense ends. */
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
