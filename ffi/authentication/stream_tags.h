/* Keys and tags of a byte stream of LBMC messages, by libcrypto: the same for every kind of connection
 * (core/wire/stream_record.h has the layout, and who connects to whom). Its users:
 *
 *   ffi/io                      LBT-TCP, both ends (tcp_connection.h, tcp_server.h)
 *   umstack/streams/tags.py     late join, off-transport recovery and responses, whose connections are Python's; it has
 *                               no layout and no cryptography of its own
 *
 * tests/tag_oracle.py is an independent implementation to compare with.
 *
 * The key of a direction is HMAC-SHA256 of the kind's label, the direction and the caller's bytes, under a key of the
 * file. Those bytes include both sides' greetings with their nonces, so that no two connections share keys, and the
 * record number suffices as a nonce for AES-128-GMAC or, if the key encrypts, AES-256-GCM. A greeting proves nothing: a
 * side proves that it has the key with its first record.
 *
 * Threads: one at a time. Memory: opened and closed by the caller; secrets are wiped. Errors: NULL, a negative errno,
 * or um_tag_status.
 */
#ifndef UM_AUTHENTICATION_STREAM_TAGS_H
#define UM_AUTHENTICATION_STREAM_TAGS_H

#include "authentication/mac.h"
#include "core/wire/stream_record.h"

/* Writes UM_RECORD_HEADER_BYTES, with a new nonce. 0, or -EIO if there is no randomness. */
int um_stream_greeting_write(uint8_t *out, const um_stream_greeting *greeting);
/* Four bytes that distinguish keys with the same identifier and reveal nothing else about them. */
uint32_t um_stream_key_check(const um_key *key);

typedef struct um_stream_tags um_stream_tags;

/* `connection` is the same bytes on both sides: the greetings (of the connecting side first), the address and port
 * connected to, and the topic's name if the connection serves one topic. The server is the side that accepted the
 * connection. NULL: libcrypto failed, or out of memory. */
um_stream_tags *um_stream_tags_open(const um_key *key, enum um_stream_kind kind, bool is_server,
                                    const uint8_t *connection, uint32_t length);
/* The same for an LBT-TCP session: the client's and the source's greetings, and the address that the client connected
 * to.
 */
um_stream_tags *um_stream_tags_open_session(const um_key *key, bool is_server, const uint8_t *client,
                                            const uint8_t *source, um_address at);
void um_stream_tags_close(um_stream_tags *tags);
/* From now on tags are made with the first of these keys, and all of them are accepted. If that changes the key, the
 * next record names it. A record with a key that is not in the set is refused. 0 or -ENOMEM. */
int um_stream_tags_set_keys(um_stream_tags *tags, const um_key_set *keys);

/* Makes a record of the `length` bytes of messages, 1 to UM_RECORD_BYTES_MAX, behind UM_RECORD_HEADER_BYTES at
 * `record`. 0 or -EIO. */
int um_stream_tags_seal(um_stream_tags *tags, uint8_t *record, uint32_t length);
/* The same for messages stored elsewhere: writes only the header; if the key encrypts, the payloads are encrypted in
 * place. */
int um_stream_tags_head(um_stream_tags *tags, uint8_t *header, uint8_t *messages, uint32_t length);
/* Returns true if payloads are encrypted. */
bool um_stream_tags_encrypt(const um_stream_tags *tags);
/* Checks a whole record: it must be the next of its direction and have the right tag. It is accepted once, and its
 * payloads are decrypted in place. */
int um_stream_tags_verify(um_stream_tags *tags, const uint8_t *record);
/* Returns the um_record_verifier with this check, for a stream. */
um_record_verifier *um_stream_tags_verifier(um_stream_tags *tags);

#endif
