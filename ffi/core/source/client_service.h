/* How receivers connect to an LBT-RU source session and how it keeps them (UX-11): the source's side of connection.h.
 *
 *     receiver                                 source
 *        | CREQ, an id it proposes --------------> | no state: the id is a keyed hash of the address (client_map.h)
 *        | <---- SM, SYN, proposed id, client id  | where the stream is
 *        | ACK, client id -----------------------> | the client is in the map: from now on it is sent everything
 *        | <-------------------------------- DATA  |
 *        | ACK each acknowledgement interval ----> | it lives; without one for the client activity timeout it is
 * dropped
 *
 * Whatever a receiver sends has to bear its client id, so what is forged under its address, by one who does not see
 * what goes there, neither makes nor keeps nor ends a client, nor has anything retransmitted. What comes from an
 * address that is no client, or with another id, is answered with a reset, by which a receiver whose address was
 * changed on the way (NAT) or that was dropped learns to connect anew. Answers to who is no client are no longer than
 * 12 bytes more than what they answer, and bounded in number.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Errors: counted.
 */
#ifndef UM_CORE_CLIENT_SERVICE_H
#define UM_CORE_CLIENT_SERVICE_H

#include "core/source/source_state.h"

/* A connection request: answered with a session message that bears the SYN flag and, as its own number, the client id
 * that was proposed, by which the receiver knows the answer for a true one. One that proposes no client id, and so
 * is shorter than its answer by more than 12 bytes, gets none. */
void um_clients_on_creq(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns);
/* An acknowledgement: keeps its client, or makes it one. */
void um_clients_on_ack(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns);
/* Whether a NAK or status message is from a client; one that is not is counted and answered with a reset. */
bool um_clients_admit(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns);
/* A client says that it goes. */
void um_clients_on_leave(um_source_session *session, um_address from);

/* After the link was offered new data: which clients are to be sent some of it later. */
void um_clients_note_behind(um_source_session *session, int64_t now_ns);
/* Sends them what they are behind, from the transmission window. False while the link is full. */
bool um_clients_catch_up(um_source_session *session);

/* Drops clients that have not acknowledged in time. Returns when the next would be dropped. */
int64_t um_clients_tick(um_source_session *session, int64_t now_ns);

#endif
