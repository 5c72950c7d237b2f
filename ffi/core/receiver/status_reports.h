/* Status messages that a receiver session sends to its source for flow control: how far it is, and what it can still
 * take (AE-15..AE-18). They go out at an interval, after a quarter of the window, when a gap closes, and when a window
 * that was small opens again. um_receiver_session_after_batch and _leave (receiver_session.h) are implemented here.
 *
 * Threads: the context lock. Memory: the session's. Complexity: linear in the session's queues. Errors: none; a message
 * that is lost is repeated by the interval.
 */

#ifndef UM_CORE_STATUS_REPORTS_H
#define UM_CORE_STATUS_REPORTS_H

#include "core/receiver/receiver_session.h"

/* Sends one when it is due. Returns when the next call is due. */
int64_t um_status_reports_tick(um_receiver_session *session, int64_t now_ns);

/* The lost datagram that held the reported position back is there, or given up: the source, which may be blocked by it,
 * gets a status message now. */
static inline void um_status_reports_on_gap_closed(um_receiver_session *session, uint32_t sqn)
{
    if (sqn == session->status_sqn)
        session->status_due_ns = INT64_MIN;
}

#endif
