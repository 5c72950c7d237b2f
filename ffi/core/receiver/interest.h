/* The receiver's side of source-side filtering over LBT-RU (UX-27): sends the topics of the session to a source that
 * filters (interest_message.h; client_interest.h is the source's side and its reports).
 *
 *   none --filter report--> reported --a topic is added or removed--> changed --interest sent--> reported
 *   (everything is sent)     |  ^                                       ^
 *                            |  +-- sent again, at growing intervals ---+-- a report of another version,
 *                            |                                              a new connection
 *                            +-- report of this version --> in force
 *
 * The source may have filtered a topic that is subscribed again, and datagrams with it may still be in flight. Its
 * controllers accept nothing until the source reports from which datagram on it sends the topic; from there on the
 * topic is complete.
 *
 * Threads: the context lock. Memory: the receiving session's. Complexity: an interest is linear in the topics. Errors:
 * none; with more topics than an interest holds, the session requests all topics.
 */
#ifndef UM_CORE_INTEREST_H
#define UM_CORE_INTEREST_H

#include "core/receiver/receiver_state.h"
#include "core/wire/interest_message.h"

void um_interest_init(um_receiver_session *session);
/* Call these after a controller was mapped, and before one is unmapped. */
void um_interest_on_mapped(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);
void um_interest_on_unmapped(um_receiver_session *session, const um_delivery *delivery);
/* Starts again on a new connection, for which the source has no interest. */
void um_interest_on_connected(um_receiver_session *session, int64_t now_ns);
/* True if a report is about an interest of this session, not of an earlier receiver at its address. */
bool um_interest_is_report_valid(const um_interest *interest, const um_filter_report *report);
void um_interest_on_report(um_receiver_session *session, const um_filter_report *report, int64_t now_ns);
/* Returns when the next call is due. */
int64_t um_interest_tick(um_receiver_session *session, int64_t now_ns);

#endif
