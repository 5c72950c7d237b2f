/* Tags on a byte stream of LBMC messages (docs/authentication.md): the one form of them, whatever the connection is
 * for.
 *
 *   UM_STREAM_REQUESTS    late join and off-transport recovery; a receiver connects to a source's request port
 *   UM_STREAM_RESPONSES   responses; a responder connects to the requester's request port
 *
 * Here are the bytes: greetings, headers, keys and tags. Who connects, when to greet and what a refusal costs is the
 * callers': umstack/streams/tags.py, which recovery and requests share, calls these functions and has no layout or
 * cryptography of its own, so both sides of a connection agree whichever language they are of.
 *
 * Each side begins with a greeting, who connects first. What is sent then goes in records: whole LBMC messages behind a
 * header. Both are LBMC control messages with an HMAC option, and so decode among the messages:
 *
 *     0   4  LBMC header: control, next header HMAC, length 28
 *     4   3  option header: no further header, length 24, flags "may be ignored"
 *     7   1  greeting: um_stream_kind; record: 0
 *     8   4  bytes of the messages that follow; 0: a greeting
 *    12   4  greeting: what the connection is about; record: its number in its direction, from 0, modulo 2^32
 *    16  12  greeting: key identifier, and a nonce of 11 bytes
 *            record: AES-128-GMAC over the header up to here and the messages, under a key of connection and direction
 *
 * The key is HMAC-SHA256 of the kind's label, the direction and what the caller gives, under the key of the file. As
 * both sides' greetings have a nonce and are part of that, no connection has the keys of another, and the record's
 * number is nonce enough. A greeting proves nothing: a side has proved that it has the key with its first record.
 *
 * Threads: one at a time. Memory: opened and closed by the caller. Errors: NULL, a negative errno, or um_tag_status.
 */
#ifndef UM_AUTHENTICATION_STREAM_TAGS_H
#define UM_AUTHENTICATION_STREAM_TAGS_H

#include "authentication/mac.h"

enum {
    UM_RECORD_HEADER_BYTES = 28,
    UM_RECORD_BYTES_MAX = 131072, /* of messages */
};

enum um_stream_kind {
    UM_STREAM_REQUESTS = 0,
    UM_STREAM_RESPONSES = 1,
    UM_STREAM_KINDS,
};

typedef struct um_stream_greeting {
    enum um_stream_kind kind;
    uint32_t subject; /* topic index of the requests; check of the responses' key */
    uint8_t key_id;
} um_stream_greeting;

/* Writes UM_RECORD_HEADER_BYTES, with a nonce of its own. 0, or -EIO without randomness. */
int um_stream_greeting_write(char *out, const um_stream_greeting *greeting);
/* Reads as many bytes. False where they are no greeting. */
bool um_stream_greeting_read(const char *data, um_stream_greeting *greeting);
/* Four bytes by which keys of one identifier are told apart, which say nothing else about them. */
uint32_t um_stream_key_check(const um_key *key);

typedef struct um_stream_tags um_stream_tags;

/* `connection`: what both sides know of the connection, the same bytes on both: the greetings, that of who connected
 * first, the address and port that was connected to, and the topic's name, where the connection is of one topic. The
 * server is who was connected to. NULL: libcrypto failed, or memory. */
um_stream_tags *um_stream_tags_open(const um_key *key, enum um_stream_kind kind, bool is_server, const char *connection,
                                    uint32_t length);
void um_stream_tags_close(um_stream_tags *tags);
/* Makes a record of the `length` bytes of messages, 1 to UM_RECORD_BYTES_MAX, behind UM_RECORD_HEADER_BYTES at
 * `record`. 0 or -EIO. */
int um_stream_tags_seal(um_stream_tags *tags, char *record, uint32_t length);
/* What is received begins with the header of a record, of so many bytes with its messages; 0: with a greeting; -EAGAIN:
 * too little is there to tell; -EBADMSG: with neither, or a record longer than there are. */
int64_t um_stream_record_bytes(const char *received, uint32_t length);
/* Checks a whole record: the next of its direction, which is accepted once, with the right tag. */
int um_stream_tags_verify(um_stream_tags *tags, const char *record);

#endif
