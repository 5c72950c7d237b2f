/* Sending a datagram that is longer than the path carries, because it was built before the path became smaller.
 *
 * If the interface became smaller, IP fragments it. If only the path behind it did, the sender's kernel would not: the
 * datagram is sent in pieces (datagram_piece.h).
 *
 * Threads: the holder of the sender lock. Memory: none. Errors: those of the link; the caller offers the datagram
 * again, and sending continues with the first piece that was not sent: a busy link may never have space for all of
 * them at once.
 */
#ifndef UM_CORE_OVERSIZE_H
#define UM_CORE_OVERSIZE_H

#include "core/source/source_state.h"

/* Returns 1, 0 if the link is full, or its negative errno. */
int um_oversize_send(um_source_session *session, const um_tx *datagram);

#endif
