/* What session messages alone tell of a session: that numbers up to a lead were sent. Anybody can forge one, so it is a
 * claim, which data has to bear out.
 *
 *     [ .. received, lost or given up .. )[ .. claimed .. )            far_sqn
 *                                     next_sqn   at most the reach           the lead, where it lies beyond the reach
 *
 * Claimed numbers are in the loss map and NAKed as any that are lost. A lead within the reach, which is a small part of
 * the map, claims all up to it; one beyond it claims itself alone. When a claimed number comes as data it bears out all
 * before it, which is lost from then on as it would be without claims. Claims that data does not bear out are given up:
 * most of them when the source has ignored a few NAKs, the next number and a lead beyond the reach after the NAK
 * generation interval. Neither moves next_sqn, so data with these numbers counts whenever it comes.
 *
 * Nothing is claimed while data flows: it shows what is lost by itself. A lead that was claimed is not claimed again
 * before there is new data.
 *
 * The position that is reported to the source passes claims that were given up, but never the lead of the last session
 * message: forged ones cannot lead it away for longer than until the next true one.
 *
 * Threads: the context lock. Memory: the session's. Complexity: linear in the reach for a session message whose lead is
 * new, otherwise constant. Errors: none.
 */
#ifndef UM_CORE_SESSION_CLAIMS_H
#define UM_CORE_SESSION_CLAIMS_H

#include "core/receiver/receiver_state.h"

/* A session message with this lead was received. False: no source is so far ahead. */
bool um_receiver_session_claims_on_lead(um_receiver_session *session, uint32_t lead, int64_t now_ns);

/* Claims what had to wait. Returns when the next call is due. */
int64_t um_receiver_session_claims_tick(um_receiver_session *session, int64_t now_ns);

/* A datagram with data and sqn >= next_sqn arrived, while has_any: what was claimed up to it is borne out. */
void um_receiver_session_claims_on_data(um_receiver_session *session, uint32_t sqn, bool retransmission,
                                        int64_t now_ns);

/* Adds [next_sqn, last], which data has shown to be lost, to the loss map but for what was claimed and is in it. */
void um_receiver_session_claims_add_gap(um_receiver_session *session, uint32_t last, int64_t now_ns);

/* The position to report while nothing is lost. */
uint32_t um_receiver_session_claims_position(const um_receiver_session *session);

/* Whether a lost number is known from a session message only. */
static inline bool um_receiver_session_claims_has(const um_receiver_session *session, uint32_t sqn)
{
    return !um_serial_before(sqn, session->next_sqn);
}

/* Whether a claimed number has been NAKed in vain often enough. The next number, and a lead beyond the reach, are NAKed
 * until their time is up: when they come, the others are claimed again. */
static inline bool um_receiver_session_claims_is_ignored(const um_receiver_session_claims *claims, const um_loss *loss,
                                                         uint32_t next_sqn)
{
    enum { NAKS_MAX = 8 };
    return loss->naks_sent >= NAKS_MAX && um_serial_before(next_sqn, loss->sqn) &&
           !(claims->has_far && claims->far_sqn == loss->sqn);
}

#endif
