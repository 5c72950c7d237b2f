/* Finds the payloads of LBMC messages that follow each other, without looking into any payload: the sender, which
 * encrypts them, and the receiver, which decrypts them, find the same ones, because all headers stay as they are.
 *
 * A piece of a datagram (core/wire/datagram_piece.h) is one payload, whatever it contains. So is everything from the
 * first undecodable header on: nothing that is not a header is ever left out.
 *
 * Threads: any. Memory: none. Complexity: of the headers of one message per call. Errors: none.
 */
#ifndef UM_CORE_PAYLOAD_WALK_H
#define UM_CORE_PAYLOAD_WALK_H

#include "core/foundation/base.h"

/* Finds the next payload at or after *at that is not empty, and advances *at behind its message. Returns false at the
 * end, with *offset and *length the end and 0. */
bool um_payload_next(const uint8_t *messages, uint32_t bytes, uint32_t *at, uint32_t *offset, uint32_t *length);

#endif
