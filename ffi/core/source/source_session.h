/* The source side of one transport session: the sender that turns the publication log into datagrams, their transport
 * sequence numbers, the transmission window, session messages and flow control
 * (UM-3, UM-4, UM-16..UM-27, UM-67..UM-71, UM-115, UM-125; AE-9..AE-24, AE-38..AE-44).
 *
 * This header declares the entry points, source_state.h the state; source_session.c is the sender and the timers. Its
 * parts: datagram_building.c (log to datagrams), transmission_window.h, session_messages.c, flow_reports.c (status
 * messages), retransmission.c (NAKs), rate_limits.c, source.c (topics), framing.h (writing and reading datagrams); for
 * LBT-RU also client_service.c and fan_out.c (the clients each datagram is copied to).
 *
 * Threads: publishing (source.h) from any thread. Functions declared here need the sender lock unless noted. A thread
 * that has moved the flush limit tries the lock and runs um_source_session_send; a thread that releases the lock checks
 * um_source_session_has_pending again, so no flush is lost.
 *
 * Memory: one block of um_source_session_footprint bytes, owned by the creator, which frees it after the last use.
 */
#ifndef UM_CORE_SOURCE_SESSION_H
#define UM_CORE_SOURCE_SESSION_H

#include "core/source/source_state.h"

/* Returns 0 if the configuration is invalid: term length, datagram size, client capacity, or a window larger than a
 * term. */
size_t um_source_session_footprint(const um_source_session_config *config);

/* memory: zeroed. link and limits must outlive the session. */
void um_source_session_init(um_source_session *session, void *memory, const um_source_session_config *config,
                            um_link *link, um_rate_limits *limits, int64_t now_ns);

/* Sends flushed data within the limits, at most `budget` datagrams, then cleans the log and moves the publication
 * limit. Returns the number of datagrams sent, or the link's negative errno. */
int um_source_session_send(um_source_session *session, int64_t now_ns, uint32_t budget);

/* Returns true if the thread that just ran the sender must run it again: a flushed frame is neither held back by a
 * limit nor behind an uncommitted claim, or publishers need cleaning. Any thread, no lock. The fence pairs with the one
 * in a publisher between its commit and its attempt at the lock: at least one of the two sees the other's work. */
static inline bool um_source_session_has_pending(const um_source_session *session)
{
    atomic_thread_fence(memory_order_seq_cst);
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    if (atomic_load_explicit(&session->flush_limit, memory_order_relaxed) <= position)
        return false;
    bool is_held_back = atomic_load_explicit(&session->is_sender_blocked, memory_order_relaxed) ||
                        atomic_load_explicit(&session->is_sender_waiting, memory_order_relaxed);
    return !is_held_back || um_log_needs_cleaning(&session->log, position);
}

/* Runs the timers: batching interval, session messages, TSNIs, retransmit queue, flow control, unblocking. Also sends.
 * Returns when the next call is due. */
int64_t um_source_session_tick(um_source_session *session, int64_t now_ns);

/* Counts a datagram that arrived at the NAK port and failed authentication. */
void um_source_session_drop_unverified(um_source_session *session, enum um_tag_status status);

/* Handles a datagram that arrived at the NAK port: a NAK, a status message, or (LBT-RU) a connection message. Any other
 * datagram is dropped and counted. */
void um_source_session_on_control(um_source_session *session, um_address from, const uint8_t *data, uint32_t length,
                                  int64_t now_ns);

/* Stops or resumes serving NAKs of this address (UX-21). Returns false if the table of accounts is full. */
bool um_source_session_set_nak_cutoff(um_source_session *session, um_address receiver, bool is_cut_off, int64_t now_ns);

/* Sets the UDP payload that the path can carry. Larger datagrams already in the log are sent through the link's
 * send_oversize. Has no effect on a session over TCP. */
void um_source_session_set_datagram_max(um_source_session *session, uint32_t datagram_max_bytes);

/* Refuses further claims. Data already in the log can still be sent. Any thread. */
void um_source_session_close(um_source_session *session);

/* A client that has reported no topics for this long receives every topic as far as its source knows. */
#define UM_TOPICS_REPORTED_NS INT64_C(1000000000)

/* Returns how many receivers of the topic the session knows: by flow control, or with policy none its LBT-RU clients.
 * One that does not report its topics counts for each. Under the sender lock. Complexity: quadratic in the receivers.
 */
uint32_t um_source_session_receivers(const um_source_session *session, uint32_t topic_index, int64_t now_ns);

/* True if a receiver may have reported that it drops messages of this length. Any thread. */
static inline bool um_source_session_may_be_too_long(const um_source_session *session, uint32_t length)
{
    return length > atomic_load_explicit(&session->accounting.message_max_bytes, memory_order_relaxed);
}
/* Notes the longest messages that a client of a stream accepts, until its connection ends (report: NULL). Under the
 * sender lock. Complexity: linear in the receivers. */
void um_source_session_on_client_report(um_source_session *session, um_address client, const um_topic_report *report,
                                        int64_t now_ns);
/* Adds an event for each receiver that drops a message of the topic because of its length. Under the sender lock.
 * Complexity: linear in the receivers. */
void um_source_session_note_too_long(um_source_session *session, uint32_t topic_index, uint32_t length, int64_t now_ns);

/* Refreshes the snapshot counters. */
void um_source_session_snapshot(um_source_session *session);

#endif
