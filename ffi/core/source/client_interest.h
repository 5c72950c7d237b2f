/* Source-side filtering over LBT-RU (UX-27), the source's side; interest.h is the receiver's.
 *
 * A datagram is sent to the clients that want any message in it. Numbers are the session's, so a client that is not
 * sent some is told which: the next datagram for it says in its header how many before it were passed over, or a filter
 * report does. One is sent
 *   - when no datagram for the client has come for as long as until the first session message, and before session
 *     messages, whose lead would look like loss;
 *   - when so much was passed over that the client's position, which flow control goes by, would be of long ago, or
 * when flow control holds the sender back;
 *   - for NAKs of datagrams that the client does not want, since whatever said so may be lost.
 * It says, too, which version of the client's interest is in force since which datagram. A client that has not said
 * what it wants, or not all of it yet, is sent everything.
 *
 * Threads: the holder of the sender lock. Memory: the session's, where its configuration has a filter. Complexity of
 * selecting: the messages of a datagram times the clients that want none of those before. Errors: counted.
 */
#ifndef UM_CORE_CLIENT_INTEREST_H
#define UM_CORE_CLIENT_INTEREST_H

#include "core/source/source_state.h"

static inline bool um_clients_has_filters(const um_source_session *session)
{
    return session->clients.filters != NULL;
}

/* Selects the clients that slot `slot` of a batch is for, which um_datagram_build then takes over. Returns the copies
 * that the rate limits count. Does nothing, quickly, where the session does not filter. */
uint32_t um_clients_select_all(um_source_session *session, const um_sent *sent, uint32_t slot);
static inline uint32_t um_clients_select(um_source_session *session, const um_sent *sent, uint32_t slot)
{
    return UM_LIKELY(!um_clients_has_filters(session)) ? session->copies : um_clients_select_all(session, sent, slot);
}

/* The copies of a slot that was selected. */
uint32_t um_clients_copies(const um_source_session *session, uint32_t slot);

/* Whether the client is to be sent it. */
bool um_clients_is_wanted(um_source_session *session, const um_client *client, const um_sent *sent);

/* False when the packet is no interest. Its sender has been admitted. */
bool um_clients_on_interest(um_source_session *session, um_address from, const um_packet *packet);

/* An acknowledgement of a client, which has sent its interest since it connected, or not: then it is sent everything
 * from now on, whatever was known before, and told that the source filters. */
void um_clients_on_acknowledged(um_source_session *session, um_client *client, bool has_sent_interest);

/* Answers NAKs of `count` datagrams from `sqn` on that the client does not want. */
void um_clients_pass_over(um_source_session *session, um_client *client, uint32_t sqn, uint32_t count);

/* After new data was sent: tells the clients that were passed over much. */
void um_clients_note_passed(um_source_session *session, int64_t now_ns);
/* Tells every client what it was passed over. */
void um_clients_tell_passed(um_source_session *session);
/* The same when it is due. Returns when it is next. */
int64_t um_clients_tick_passed(um_source_session *session, int64_t now_ns);

#endif
