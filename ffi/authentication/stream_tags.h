/* Tags on a connection of the request protocol (docs/authentication.md): what is sent goes in records, each whole LBMC
 * messages behind a header, which is an LBMC control message with an HMAC option and so decodes among them.
 *
 *     0   4  LBMC header: control, next header HMAC, length 28
 *     4   4  option header: no further header, length 24, flags "may be ignored", 0
 *     8   4  bytes of the messages that follow; 0: a greeting, whose remaining 16 bytes Python writes and reads
 *    12   4  number of the record in its direction, from 0
 *    16  12  AES-128-GMAC over the header up to here and the messages, under a key of the connection and direction
 *
 * The key is HMAC-SHA256 of "umstack request", the direction and what the caller gives, under the key of the file. As
 * both sides' greetings have a nonce and are part of that, no connection has the keys of another, and the record's
 * number is nonce enough.
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

typedef struct um_stream_tags um_stream_tags;

/* `connection`: what both sides know of the connection, the same bytes on both. NULL: libcrypto failed, or memory. */
um_stream_tags *um_stream_tags_open(const um_key *key, bool is_server, const char *connection, uint32_t length);
void um_stream_tags_close(um_stream_tags *tags);
/* Makes a record of the `length` bytes of messages, 1 to UM_RECORD_BYTES_MAX, behind UM_RECORD_HEADER_BYTES at
 * `record`. 0, -EOVERFLOW when the connection has had all its records, or -EIO. */
int um_stream_tags_seal(um_stream_tags *tags, char *record, uint32_t length);
/* What is received begins with the header of a record, of so many bytes with its messages; 0: with a greeting; -EAGAIN:
 * too little is there to tell; -EBADMSG: with neither, or a record longer than there are. */
int64_t um_stream_record_bytes(const char *received, uint32_t length);
/* Checks a whole record: the next of its direction, which is accepted once, with the right tag. */
int um_stream_tags_verify(um_stream_tags *tags, const char *record);

#endif
