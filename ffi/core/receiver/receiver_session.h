/* The receiving side of one transport session: sequence tracking, the loss map and its NAK timers, NCFs, the activity
 * timeout, demultiplexing to delivery controllers, and status messages for flow control (UM-3, UM-7, UM-8, UM-76,
 * UM-81, UM-85..UM-87, UM-92..UM-97, UM-104, UM-105, UM-112..UM-134, UX-9; AE-15..AE-18). It does not order messages.
 *
 * receiver_session.c handles datagrams and the session's life. Other parts: gaps.c and nak_timers.c (lost datagrams and
 * NAKs), session_claims.c (losses known from session messages), status_reports.c, start_gate.c (where a controller
 * starts), topic_table.h (topic index to controllers), and for LBT-RU connection.c and interest.c.
 *
 * Threads: the context lock. Memory: one block of footprint bytes, the creator's. Errors: none; datagrams that are
 * dropped are counted by reason.
 */
#ifndef UM_CORE_RECEIVER_SESSION_H
#define UM_CORE_RECEIVER_SESSION_H

#include "core/receiver/receiver_state.h"

#define UM_JOIN_UNANSWERED_NS INT64_C(1000000000)

size_t um_receiver_session_footprint(const um_receiver_session_config *config);
void um_receiver_session_init(um_receiver_session *session, void *memory, const um_receiver_session_config *config,
                              um_link *link, um_reorder_buffer *store, int64_t now_ns);

/* Maps a controller to its topic index; delivers BOS at once on an active session (UM-81). Returns false if there are
 * too many topics or queues. The caller keeps ownership of the controller. */
bool um_receiver_session_map(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);
/* Returns the receiver's controller of a topic, or NULL. */
um_delivery *um_receiver_session_find(um_receiver_session *session, const um_receiver *receiver, uint32_t topic_index);
void um_receiver_session_unmap(um_receiver_session *session, um_delivery *delivery);

/* True if the receiver of this controller gets, or reports as lost, whatever its source sends from now on. For a
 * stream the owner checks the connection as well. A source that sends nothing to a receiver that has joined, as Ultra
 * Messaging's may, is taken to have accepted it after UM_JOIN_UNANSWERED_NS. */
bool um_receiver_session_is_connected(const um_receiver_session *session, const um_delivery *delivery, int64_t now_ns);

/* Continues where an earlier session of the same identity ended, unless the position is known already. rounds: see
 * um_resume_point. */
void um_receiver_session_resume(um_receiver_session *session, uint32_t next_sqn, uint32_t rounds);

/* Handles a decoded datagram of this session, received as `length` bytes at `data`. */
void um_receiver_session_on_packet(um_receiver_session *session, const um_packet *packet, const um_rx *rx,
                                   const uint8_t *data, uint32_t length, int64_t now_ns);

/* Handles the next messages of a stream (um_transport_is_stream), as its next datagram: they arrive in order, without
 * numbers. */
void um_receiver_session_on_messages(um_receiver_session *session, const uint8_t *messages, uint32_t length,
                                     int64_t received_ns, int64_t now_ns);

/* Counts a datagram of this session that could not be decoded, by reason. */
void um_receiver_session_drop(um_receiver_session *session, enum um_dgram_status status);

/* Counts a datagram of this session that was not authentic, by reason. */
void um_receiver_session_drop_unverified(um_receiver_session *session, enum um_tag_status status, int64_t now_ns);

/* Begins the session for every controller on it, once: with its first datagram of any kind (UM-76); LBT-IPC: attached
 * to the log. */
void um_receiver_session_note_activity(um_receiver_session *session, int64_t now_ns);

/* Ends the session (UM-105): delivers held messages, then the end of session. */
void um_receiver_session_end(um_receiver_session *session, int64_t now_ns);

/* Runs the timers that are due. Returns when the next call is due. Ends the session after the activity timeout
 * (UM-104).
 */
int64_t um_receiver_session_tick(um_receiver_session *session, int64_t now_ns);

/* Refreshes the snapshot counters of the timers. */
void um_receiver_session_snapshot(um_receiver_session *session);

#endif
