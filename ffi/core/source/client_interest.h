/* Source-side filtering over LBT-RU (UX-27), the source's side; interest.h is the receiver's.
 *
 * A datagram is sent to the clients that need at least one message in it. Sqns are the session's, so a client must
 * learn which datagrams were passed over: the header of its next datagram carries how many before it were, or a filter
 * report does. A filter report is sent
 *   - when a client has been sent nothing for as long as the interval before the first session message, and before
 *     session messages, whose lead would look like loss;
 *   - when enough was passed over that the client's position, on which flow control depends, would be out of date, or
 *     when flow control holds the sender back;
 *   - in response to NAKs of datagrams that the client does not need, because the earlier report may be lost.
 * It also carries the version of the client's interest in force and the sqn since which it is. A client whose interest
 * has not arrived completely is sent every datagram.
 *
 * Threads: the holder of the sender lock. Memory: the session's, if its configuration has a filter. Complexity of
 * selecting: the messages of a datagram times the clients that need none of those before. Errors: counted.
 */
#ifndef UM_CORE_CLIENT_INTEREST_H
#define UM_CORE_CLIENT_INTEREST_H

#include "core/source/source_state.h"

static inline bool um_clients_has_filters(const um_source_session *session)
{
    return session->clients.filters != NULL;
}

/* Selects the clients that the datagram in `slot` of a batch is for; um_datagram_build then uses the selection. Returns
 * the number of copies for the rate limits. Returns quickly if the session does not filter. */
uint32_t um_clients_select_all(um_source_session *session, const um_sent *sent, uint32_t slot);
static inline uint32_t um_clients_select(um_source_session *session, const um_sent *sent, uint32_t slot)
{
    return UM_LIKELY(!um_clients_has_filters(session)) ? session->copies : um_clients_select_all(session, sent, slot);
}

/* The copies of a slot that was selected. */
uint32_t um_clients_copies(const um_source_session *session, uint32_t slot);

/* Returns true if the client needs a message of the datagram. */
bool um_clients_is_wanted(um_source_session *session, const um_client *client, const um_sent *sent);

/* Handles an interest from an admitted sender. Returns false if the packet is not one. */
bool um_clients_on_interest(um_source_session *session, um_address from, const um_packet *packet);

/* Handles a client's acknowledgement. A client that has sent no interest since it connected is sent everything from now
 * on, and a report that the source filters. */
void um_clients_on_acknowledged(um_source_session *session, um_client *client, bool has_sent_interest);

/* Answers NAKs of `count` datagrams from `sqn` on that the client does not need. */
void um_clients_pass_over(um_source_session *session, um_client *client, uint32_t sqn, uint32_t count);

/* After new data was sent: sends filter reports to the clients that were passed over often. */
void um_clients_note_passed(um_source_session *session, int64_t now_ns);
/* Sends a filter report to every client that was passed over. */
void um_clients_report_passed(um_source_session *session);
/* Calls um_clients_report_passed if it is due. Returns when it is due next. */
int64_t um_clients_tick_passed(um_source_session *session, int64_t now_ns);

#endif
