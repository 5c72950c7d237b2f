/* Source-side filtering over LBT-RU (UX-27), the receiver's side: what the session wants, told to a source that filters
 * (interest_message.h; client_interest.h is the source's side, and says when it tells what).
 *
 *   nothing --filter report--> told --a topic comes or goes--> changed --interest sent--> told
 *   (everything is sent)        |  ^                             ^
 *                               |  +-- again, later each time ---+-- a report of another version, a new connection
 *                               +-- report of this version --> in force
 *
 * A topic that is wanted anew may have been left out, and may lie in datagrams that are still on their way. Its
 * controllers take nothing before the source has said since which datagram it is sent: from there on it is whole.
 *
 * Threads: the context lock. Memory: the receiving session's. Complexity: an interest is linear in the topics. Errors:
 * none; more topics than an interest holds, and everything is wanted.
 */
#ifndef UM_CORE_INTEREST_H
#define UM_CORE_INTEREST_H

#include "core/receiver/receiver_state.h"
#include "core/wire/interest_message.h"

void um_interest_init(um_receiver_session *session);
/* After a controller was mapped, and before one is unmapped. */
void um_interest_on_mapped(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);
void um_interest_on_unmapped(um_receiver_session *session, const um_delivery *delivery);
/* The source knows nothing any more of what it was told. */
void um_interest_on_connected(um_receiver_session *session, int64_t now_ns);
/* Whether what a report says is for this session: not for who received at its address before. */
bool um_interest_is_report_valid(const um_interest *interest, const um_filter_report *report);
void um_interest_on_report(um_receiver_session *session, const um_filter_report *report, int64_t now_ns);
/* Returns when the next call is due. */
int64_t um_interest_tick(um_receiver_session *session, int64_t now_ns);

#endif
