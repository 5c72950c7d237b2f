/* How receivers connect to an LBT-RU source session and stay connected (UX-11): the source's side of connection.h.
 *
 *     receiver                                 source
 *        | CREQ, proposed id --------------------> | no state: the id is a keyed hash of the address (client_map.h)
 *        | <---- SM, SYN, proposed id, client id   | the position of the stream
 *        | ACK, client id -----------------------> | adds the client to the map and sends it everything from now on
 *        | <-------------------------------- DATA  |
 *        | ACK each acknowledgement interval ----> | drops a client that sends none for the client activity timeout
 *
 * Every datagram of a receiver must carry its client id. So an attacker who forges its address but does not see the
 * datagrams sent there can neither create, keep nor end a client, nor cause retransmissions. A datagram from an address
 * that is not a client's, or with a wrong id, is answered with a reset: a receiver that was dropped, or whose address
 * changed on the way (NAT), then connects again. Responses to such addresses are limited in number, and
 * at most 12 bytes longer than the datagram they answer.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Errors: counted.
 */
#ifndef UM_CORE_CLIENT_SERVICE_H
#define UM_CORE_CLIENT_SERVICE_H

#include "core/source/source_state.h"

/* Answers a connection request with a session message that has the SYN flag and, in place of its own number, the
 * proposed client id, by which the receiver recognizes a genuine response. A request that proposes no client id is not
 * answered: it would be more than 12 bytes shorter than the response. */
void um_clients_on_creq(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns);
/* Handles an acknowledgement: keeps its client connected, or adds it. */
void um_clients_on_ack(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns);
/* Returns true if a NAK or status message is from a client. Others are counted and answered with a reset. */
bool um_clients_admit(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns);
/* Removes a client that has reported that it leaves. */
void um_clients_on_leave(um_source_session *session, um_address from);

/* After the link was offered new data: notes the clients that must be sent some of it later. */
void um_clients_note_behind(um_source_session *session, int64_t now_ns);
/* Sends those clients the missing datagrams from the transmission window. Returns false while the link is full. */
bool um_clients_catch_up(um_source_session *session);

/* Drops clients that have not acknowledged in time. Returns when the next would be dropped. */
int64_t um_clients_tick(um_source_session *session, int64_t now_ns);

#endif
