/* A receiver's connection to the source of an LBT-RU session (UX-11): client_service.h is the source's side, and draws
 * both.
 *
 *                  +-- no answer: again after the connect interval, maximum_connect_attempts times; then the session
 * ends
 *                  v
 *     connecting --+ CREQ -------- SYN: its client id, and where the stream is ----> established -- ACK each interval
 *         ^                                                                               |
 *         +---- RST: the source knows it no longer; nothing that was received is lost ----+
 *
 * Nothing that anybody could forge ends a connection or changes it. After a reset the receiver asks anew, a reset a
 * connect interval, and meanwhile goes on under the client id that it has. An answer counts only while one is expected,
 * and only when its number is the client id that was proposed: one who does not see the requests cannot know it.
 *
 * Threads: the context lock. Memory: the receiving session's. Errors: none.
 */
#ifndef UM_CORE_CONNECTION_H
#define UM_CORE_CONNECTION_H

#include "core/receiver/receiver_state.h"

/* Whether the source knows whose a datagram is that the receiver sends: by its client id, where there are connections.
 */
static inline bool um_connection_is_known(const um_connection *connection)
{
    return connection->state == UM_CONNECTION_NONE || connection->has_client_id;
}

void um_connection_init(um_receiver_session *session, int64_t now_ns);
/* A session message with the SYN flag, after it has told where the stream is, as any does. */
void um_connection_on_syn(um_receiver_session *session, const um_packet *packet, int64_t now_ns);
void um_connection_on_reset(um_receiver_session *session, int64_t now_ns);

/* Sends a connection request if one is due. Returns when the next call is due. *is_refused is set if no attempt was
 * answered. */
int64_t um_connection_tick(um_receiver_session *session, int64_t now_ns, bool *is_refused);

/* Sends an acknowledgement if one is due. Returns when the next call is due. */
int64_t um_connection_acknowledge_tick(um_receiver_session *session, int64_t now_ns);

#endif
