/* Status messages that a receiver session sends to its source for flow control: how far it is, and what it can still
 * take (AE-15..AE-18). They go out at an interval, after a quarter of the window, when a gap closes, and when a window
 * that was small opens again.
 *
 * Threads: the context lock. Memory: the session's. Complexity: linear in the session's queues. Errors: none; a message
 * that is lost is repeated by the interval.
 */

#ifndef UM_CORE_STATUS_REPORTS_H
#define UM_CORE_STATUS_REPORTS_H

#include "core/receiver/receiver_state.h"

/* Sends one when it is due. Returns when the next call is due. */
int64_t um_status_reports_tick(um_receiver_session *session, int64_t now_ns);

/* Sends a status message that is due after a batch of datagrams. */
void um_status_reports_after_batch(um_receiver_session *session, int64_t now_ns);

/* Sends the last status message, which also ends a connection of LBT-RU. */
void um_status_reports_leave(um_receiver_session *session);

#endif
