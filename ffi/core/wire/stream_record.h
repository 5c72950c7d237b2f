/* Tags on a byte stream of LBMC messages: the layout of greetings and records, and the interface of their verifier
 * (docs/authentication.md). ffi/authentication handles keys and tags (stream_tags.h), as for datagrams.
 *
 * Each side starts with a greeting, the connecting side first. It then sends records: a header followed by whole LBMC
 * messages. Greetings and record headers are LBMC control messages with an HMAC option, so they decode like messages:
 *
 *     0   4  LBMC header: control, next header HMAC, length 28
 *     4   3  option header: no further header, length 24, flags "may be ignored"
 *     7   1  greeting: um_stream_kind, plus 128 if the payloads of records are encrypted
 *            record: 0, or the identifier of the key for this direction from here on
 *     8   4  bytes of the messages that follow; 0: a greeting
 *    12   4  greeting: subject of the connection; record: its number in its direction, from 0, modulo 2^32
 *    16  12  greeting: key identifier, and a nonce of 11 bytes; record: the tag
 *
 * Threads: any; an object has one user at a time. Memory: the caller's. Complexity: constant. Errors: see each.
 */
#ifndef UM_CORE_STREAM_RECORD_H
#define UM_CORE_STREAM_RECORD_H

#include "core/wire/authentication.h"

enum {
    UM_RECORD_HEADER_BYTES = 28,  /* header of a record, or a whole greeting */
    UM_RECORD_COVERED_BYTES = 16, /* bytes of the header that the tag covers */
    UM_RECORD_BYTES_MAX = 131072, /* messages of one record */
    UM_GREETING_NONCE_BYTES = 11,
};

enum um_stream_kind {
    UM_STREAM_REQUESTS = 0,  /* late join and off-transport recovery; a receiver connects to a source's request port */
    UM_STREAM_RESPONSES = 1, /* responses; a responder connects to the requester's request port */
    UM_STREAM_SESSION = 2,   /* LBT-TCP; a receiver connects to the source */
    UM_STREAM_STORE = 3,     /* persistence; a source or receiver connects to a Store */
    UM_STREAM_KINDS,
};

typedef struct um_stream_greeting {
    enum um_stream_kind kind;
    uint32_t subject; /* topic index of the requests; check of the key of responses and of a Store; id of the session */
    uint8_t key_id;
    bool is_encrypted; /* the payloads of its records are */
} um_stream_greeting;

/* Writes UM_RECORD_HEADER_BYTES, with a nonce of UM_GREETING_NONCE_BYTES. */
void um_stream_greeting_put(uint8_t *out, const um_stream_greeting *greeting, const uint8_t *nonce);
/* Reads UM_RECORD_HEADER_BYTES. Returns false if they are not a greeting. */
bool um_stream_greeting_read(const uint8_t *data, um_stream_greeting *greeting);

/* Writes the bytes before the tag: UM_RECORD_COVERED_BYTES. key_id: 0, or of the key for this direction from here on.
 */
void um_stream_record_write(uint8_t *out, uint8_t key_id, uint32_t messages_bytes, uint32_t number);

typedef struct um_stream_record {
    uint8_t key_id;
    uint32_t messages_bytes;
    uint32_t number;
    const uint8_t *tag;
} um_stream_record;

/* Reads a header for which um_stream_record_bytes has returned a size. */
um_stream_record um_stream_record_read(const uint8_t *data);
/* Returns the length, header included, of the record whose header is at the start of `received`; 0: a greeting;
 * -EAGAIN: too few bytes; -EBADMSG: neither, or a record that is too long. */
int64_t um_stream_record_bytes(const uint8_t *received, uint32_t length);

/* Checks the records of a stream. First member of every implementation. */
typedef struct um_record_verifier um_record_verifier;
struct um_record_verifier {
    /* Checks a whole record, the next one of its direction. Each record is accepted once. Encrypted payloads are
     * decrypted in place: streams receive into memory of their own. */
    enum um_tag_status (*verify)(um_record_verifier *verifier, const uint8_t *record);
};

#endif
