/* Tags on a byte stream of LBMC messages: the layout of greetings and records, and what a stream asks of who checks
 * them (docs/authentication.md). Keys and tags are ffi/authentication's (stream_tags.h), as with datagrams.
 *
 * Each side begins with a greeting, who connects first. What is sent then goes in records: whole LBMC messages behind a
 * header. Both are LBMC control messages with an HMAC option, and so decode among the messages:
 *
 *     0   4  LBMC header: control, next header HMAC, length 28
 *     4   3  option header: no further header, length 24, flags "may be ignored"
 *     7   1  greeting: um_stream_kind; record: 0, or the identifier of the key of this direction from here on
 *     8   4  bytes of the messages that follow; 0: a greeting
 *    12   4  greeting: what the connection is about; record: its number in its direction, from 0, modulo 2^32
 *    16  12  greeting: key identifier, and a nonce of 11 bytes; record: the tag
 *
 * Threads: any; an object has one user at a time. Memory: the caller's. Complexity: constant. Errors: see each.
 */
#ifndef UM_CORE_STREAM_RECORD_H
#define UM_CORE_STREAM_RECORD_H

#include "core/wire/authentication.h"

enum {
    UM_RECORD_HEADER_BYTES = 28, /* of a record, and all of a greeting */
    UM_RECORD_COVERED_BYTES = 16,
    UM_RECORD_BYTES_MAX = 131072, /* of messages */
    UM_GREETING_NONCE_BYTES = 11,
};

enum um_stream_kind {
    UM_STREAM_REQUESTS = 0,  /* late join and off-transport recovery; a receiver connects to a source's request port */
    UM_STREAM_RESPONSES = 1, /* responses; a responder connects to the requester's request port */
    UM_STREAM_SESSION = 2,   /* LBT-TCP; a receiver connects to the source */
    UM_STREAM_KINDS,
};

typedef struct um_stream_greeting {
    enum um_stream_kind kind;
    uint32_t subject; /* topic index of the requests; check of the responses' key; id of the session */
    uint8_t key_id;
} um_stream_greeting;

/* Writes UM_RECORD_HEADER_BYTES, with a nonce of UM_GREETING_NONCE_BYTES. */
void um_stream_greeting_put(uint8_t *out, const um_stream_greeting *greeting, const uint8_t *nonce);
/* Reads as many bytes. False where they are no greeting. */
bool um_stream_greeting_read(const uint8_t *data, um_stream_greeting *greeting);

/* What precedes the tag: UM_RECORD_COVERED_BYTES. key_id: 0, or of the key of the direction from here on. */
void um_stream_record_write(uint8_t *out, uint8_t key_id, uint32_t messages_bytes, uint32_t number);

typedef struct um_stream_record {
    uint8_t key_id;
    uint32_t messages_bytes;
    uint32_t number;
    const uint8_t *tag;
} um_stream_record;

/* Reads a header whose size um_stream_record_bytes has found. */
um_stream_record um_stream_record_read(const uint8_t *data);
/* What is received begins with the header of a record, of so many bytes with its messages; 0: with a greeting; -EAGAIN:
 * too little is there to tell; -EBADMSG: with neither, or a record longer than there are. */
int64_t um_stream_record_bytes(const uint8_t *received, uint32_t length);

/* What checks the records of a stream. First member of every implementation. */
typedef struct um_record_verifier um_record_verifier;
struct um_record_verifier {
    /* Checks a whole record: the next of its direction, which is accepted once. */
    enum um_tag_status (*verify)(um_record_verifier *verifier, const uint8_t *record);
};

#endif
