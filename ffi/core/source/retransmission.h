/* NAK service of a source session: decides which NAKs are served, ignored, refused or shed, and keeps the bounded queue
 * of sqns that wait for the retransmit limiter, oldest first (UM-120, UM-129..UM-133; C10: NAKs outside the window get
 * no response).
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: logarithmic in the queue for each sqn.
 */

#ifndef UM_CORE_RETRANSMISSION_H
#define UM_CORE_RETRANSMISSION_H

#include "core/source/source_state.h"
#include "core/wire/lbtrm.h"
#include "core/wire/repair_evidence.h"

/* Handles a decoded NAK for this session. Sends retransmissions and NCFs at once if the limiters allow it. */
void um_retransmission_on_nak(um_source_session *session, um_address from, const um_packet *nak, int64_t now_ns);

/* Notes that a retransmission, or a repair report about it, has arrived at a receiver. A NAK of this receiver for a
 * datagram that was retransmitted before, or is the reported one, is served within the ignore interval, from the
 * receiver's share. */
void um_retransmission_on_evidence(um_source_session *session, um_address from, const um_repair_evidence *evidence,
                                   int64_t now_ns);

/* Sends the retransmit queue as far as the limiters and the link allow. Returns 1, or the link's result if it stopped:
 * 0 if it is full, or a negative errno. */
int um_retransmission_pump(um_source_session *session, int64_t now_ns);

#endif
