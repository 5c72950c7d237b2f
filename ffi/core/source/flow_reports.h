/* Status messages of receivers and how far they let the sender go (UM-115; AE-9..AE-18): the session's side of
 * flow_control.h, which turns positions into one limit.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: that of um_flow_on_status. Errors: a
 * status message that is malformed or out of range is counted and dropped.
 */

#ifndef UM_CORE_FLOW_REPORTS_H
#define UM_CORE_FLOW_REPORTS_H

#include "core/source/source_state.h"
#include "core/wire/lbtrm.h"

/* A decoded datagram from the NAK port that may be a status message. */
void um_flow_reports_on_status(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns);

/* Removes receivers that have timed out. Returns when the next would. */
int64_t um_flow_reports_tick(um_source_session *session, int64_t now_ns);

/* Receivers that hold the sender without advancing stop counting after the stall timeout. Returns when to look again.
 */
int64_t um_flow_reports_tick_stalls(um_source_session *session, int64_t now_ns);

/* Sends a session message that solicits positions when the sender has used up half of what may be repaired. */
void um_flow_reports_solicit(um_source_session *session, int64_t now_ns);

#endif
