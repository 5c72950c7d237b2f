/* Handling of receivers' status messages, which move the sender limit (UM-115; AE-9..AE-18): the session's side of
 * flow_control.h.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: that of um_flow_on_status. Errors: a
 * status message that is malformed or out of range is counted and dropped.
 */

#ifndef UM_CORE_FLOW_REPORTS_H
#define UM_CORE_FLOW_REPORTS_H

#include "core/source/source_state.h"
#include "core/wire/lbtrm.h"

/* Handles a decoded datagram from the NAK port that may be a status message. */
void um_flow_reports_on_status(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns);

/* Returns true if every counted receiver has reported all messages sent, or the policy needs no reports. */
bool um_flow_reports_are_complete(const um_source_session *session);

/* Removes receivers that have timed out. Returns when the next one would time out. */
int64_t um_flow_reports_tick(um_source_session *session, int64_t now_ns);

/* Stops counting receivers that have held the sender without advancing for the stall timeout. Returns when to check
 * again. */
int64_t um_flow_reports_tick_stalls(um_source_session *session, int64_t now_ns);

/* Adds this number of local receivers (um_flow_is_open), or removes them if it is negative. */
void um_flow_reports_add_local(um_source_session *session, int32_t change);

/* Solicits positions with a session message when the sender has used half of the retransmittable bytes. */
void um_flow_reports_solicit(um_source_session *session, int64_t now_ns);

#endif
