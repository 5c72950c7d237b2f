/* A receiver's connection to the source of an LBT-RU session (UX-11). client_service.h is the source's side.
 *
 *                  +-- no answer: repeated at doubling intervals; ends after maximum_connect_attempts times the first
 *                  v
 *     connecting --+ CREQ -- SYN with the client id and the position of the stream --> established: ACK each interval
 *         ^                                                                               |
 *         +---- RST: the source has lost the client; nothing received is lost ------------+
 *
 * No message that an attacker can forge ends or changes a connection. After a reset the receiver requests a connection
 * again, at most one per connect interval, and meanwhile continues with its client id. An answer counts only while one
 * is expected and if it repeats the proposed client id, which only a peer that sees the requests can know.
 *
 * Threads: the context lock. Memory: the receiving session's. Complexity: constant. Errors: none.
 */
#ifndef UM_CORE_CONNECTION_H
#define UM_CORE_CONNECTION_H

#include "core/receiver/receiver_state.h"

/* True if the source can attribute this receiver's datagrams: it has no connections, or the receiver has a client id.
 */
static inline bool um_connection_is_known(const um_connection *connection)
{
    return connection->state == UM_CONNECTION_NONE || connection->has_client_id;
}

/* True while the source may not have this receiver as a client yet: nothing has arrived since the connection was
 * established, so the acknowledgement may be on its way. */
static inline bool um_connection_is_unconfirmed(const um_receiver_session *session)
{
    const um_connection *connection = &session->connection;
    return connection->state != UM_CONNECTION_NONE &&
           (connection->state != UM_CONNECTION_ESTABLISHED || session->last_activity_ns <= connection->established_ns);
}

void um_connection_init(um_receiver_session *session, int64_t now_ns);
/* Handles a session message with the SYN flag, after its position was handled like that of any other. */
void um_connection_on_syn(um_receiver_session *session, const um_packet *packet, int64_t now_ns);
void um_connection_on_reset(um_receiver_session *session, int64_t now_ns);

/* Sends a connection request if one is due. Returns when the next call is due. *is_refused is set if no attempt was
 * answered. */
int64_t um_connection_tick(um_receiver_session *session, int64_t now_ns, bool *is_refused);

/* Sends an acknowledgement if one is due. Returns when the next call is due. */
int64_t um_connection_acknowledge_tick(um_receiver_session *session, int64_t now_ns);

#endif
