/* Session messages reveal that numbers up to a lead were sent. As they can be forged, this is only a claim until data
 * confirms it.
 *
 *     [ .. received, lost or given up .. )[ .. claimed .. )            far_sqn
 *                                     next_sqn   at most the reach           the lead, if it is beyond the reach
 *
 * Claimed numbers are in the loss map and NAKed like lost ones. A lead within the reach, a small part of the map,
 * claims all numbers up to it; one beyond the reach claims itself only. When a claimed number arrives as data, all
 * numbers before it are confirmed and lost as usual. Unconfirmed claims are given up: most of them when the source has
 * ignored a few NAKs, the next number and a lead beyond the reach after the NAK generation interval. Claims do not move
 * next_sqn, so data with these numbers is accepted at any time.
 *
 * Nothing is claimed while data flows, because data reveals its own losses. A lead is claimed only once until new data
 * arrives.
 *
 * The position reported to the source passes claims that were given up, but never the lead of the last session message:
 * forged ones mislead it only until the next authentic one.
 *
 * Threads: the context lock. Memory: the session's. Complexity: linear in the reach for a session message with a new
 * lead, otherwise constant. Errors: none.
 */
#ifndef UM_CORE_SESSION_CLAIMS_H
#define UM_CORE_SESSION_CLAIMS_H

#include "core/receiver/receiver_state.h"

/* Handles the lead of a session message. Returns false if no source can be that far ahead. */
bool um_receiver_session_claims_on_lead(um_receiver_session *session, uint32_t lead, int64_t now_ns);

/* Claims a pending lead. Returns when the next call is due. */
int64_t um_receiver_session_claims_tick(um_receiver_session *session, int64_t now_ns);

/* Handles data with sqn >= next_sqn while has_any: claims up to it are confirmed. */
void um_receiver_session_claims_on_data(um_receiver_session *session, uint32_t sqn, bool retransmission,
                                        int64_t now_ns);

/* Adds [next_sqn, last], which data has shown to be lost, to the loss map, except for claims that are already in it. */
void um_receiver_session_claims_add_gap(um_receiver_session *session, uint32_t last, int64_t now_ns);

/* Returns the position to report while no datagram is lost. */
uint32_t um_receiver_session_claims_position(const um_receiver_session *session);

/* True if a lost number is known from a session message only. */
static inline bool um_receiver_session_claims_has(const um_receiver_session *session, uint32_t sqn)
{
    return !um_serial_before(sqn, session->next_sqn);
}

/* True if the source has ignored enough NAKs for a claimed number. The next number and a lead beyond the reach are
 * NAKed until they time out: when they arrive, the others are claimed again. */
static inline bool um_receiver_session_claims_is_ignored(const um_receiver_session_claims *claims, const um_loss *loss,
                                                         uint32_t next_sqn)
{
    enum { NAKS_MAX = 8 };
    return loss->naks_sent >= NAKS_MAX && um_serial_before(next_sqn, loss->sqn) &&
           !(claims->has_far && claims->far_sqn == loss->sqn);
}

#endif
