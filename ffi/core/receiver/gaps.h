/* Lost datagrams of a receiver session: how they enter the loss map, and how they leave it, recovered or given up
 * (UM-116..UM-118, UM-121, UM-123, UM-128). nak_timers.h decides when a lost datagram is NAKed or given up.
 *
 * Threads: the context lock. Memory: the session's. Complexity: logarithmic in the loss map for each sqn. Errors: sqns
 * that the map has no space for are given up and counted.
 */
#ifndef UM_CORE_GAPS_H
#define UM_CORE_GAPS_H

#include "core/receiver/receiver_state.h"

/* Adds the lost sqns [first, last]: they are NAKed after one back-off for the whole gap. */
void um_gaps_add(um_receiver_session *session, uint32_t first, uint32_t last, int64_t now_ns);

/* The datagram of `loss` has arrived: removes it from the map and records how long that took. */
void um_gaps_on_recovered(um_receiver_session *session, um_loss *loss, bool retransmission, int64_t now_ns);

/* Gives a lost datagram up and counts the reason. */
void um_gaps_give_up(um_receiver_session *session, um_loss *loss, uint64_t *reason_counter);

/* If this sqn held the reported position back, the source, which may be blocked by it, gets a status message now. */
static inline void um_gaps_report_closed(um_receiver_session *session, uint32_t sqn)
{
    if (sqn == session->status_sqn)
        session->due_ns[UM_TIMER_STATUS] = INT64_MIN;
}

#endif
