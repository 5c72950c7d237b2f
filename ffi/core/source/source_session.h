/* The source side of one LBT-RM or LBT-RU transport session: the sender that turns the publication log into datagrams,
 * their transport sequence numbers, the transmission window, session messages and flow control
 * (UM-3, UM-4, UM-16..UM-27, UM-67..UM-71, UM-115, UM-125; AE-9..AE-24, AE-38..AE-44). This header is the session's
 * state and its entry points; source_session.c is the sender and the timers. Around it: datagram_building.c (log to
 * datagrams), transmission_window.h (what can be sent again), session_messages.c, flow_reports.c (status messages),
 * retransmission.c (NAKs), rate_limits.c, source.c (topics), framing.h (how datagrams are written and read), and, of
 * LBT-RU alone, client_service.c and fan_out.c (who is sent them).
 *
 * Threads: publishing (source.h) from any thread. Everything declared here needs the sender lock, except where
 * it says otherwise. A thread that has moved the flush limit tries the lock and runs um_source_session_send; a holder
 * that releases it checks again (um_source_session_has_pending), so no flush is lost.
 *
 * Memory: one block of um_source_session_footprint bytes, owned by the creator, which frees it after the last use.
 */
#ifndef UM_CORE_SOURCE_SESSION_H
#define UM_CORE_SOURCE_SESSION_H

#include "core/source/source_state.h"

/* 0 when the configuration cannot be: term length, datagram size, window larger than a term. */
size_t um_source_session_footprint(const um_source_session_config *config);

/* memory: zeroed. link and limits must outlive the session. */
void um_source_session_init(um_source_session *session, void *memory, const um_source_session_config *config,
                            um_link *link, um_rate_limits *limits, int64_t now_ns);

/* Sends what is flushed and allowed, at most budget datagrams, then cleans and moves the publication limit.
 * Returns datagrams sent, or the link's negative errno. */
int um_source_session_send(um_source_session *session, int64_t now_ns, uint32_t budget);

/* True when a sender that was just left has something to do: a flushed frame that neither a limit nor a claim not
 * yet committed holds back, or, while one does, cleaning for publishers that go on. Any thread, no lock. The fence
 * pairs with the one in a publisher between its commit and its attempt at the lock: of the two, at least one sees the
 * other's work. */
static inline bool um_source_session_has_pending(const um_source_session *session)
{
    atomic_thread_fence(memory_order_seq_cst);
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    if (atomic_load_explicit(&session->flush_limit, memory_order_relaxed) <= position)
        return false;
    bool held_back = atomic_load_explicit(&session->is_sender_blocked, memory_order_relaxed) ||
                     atomic_load_explicit(&session->is_sender_waiting, memory_order_relaxed);
    return !held_back || um_log_needs_cleaning(&session->log, position);
}

/* Timers: batching interval, session messages, TSNIs, retransmit queue, flow control, unblocking. Sends too.
 * Returns when the next call is due. */
int64_t um_source_session_tick(um_source_session *session, int64_t now_ns);

/* A datagram that arrived at the NAK port and was not authentic. */
void um_source_session_drop_unverified(um_source_session *session, enum um_tag_status status);

/* A datagram that arrived at the NAK port: NAK or status message, or what clients connect by; anything else is dropped
 * and counted. */
void um_source_session_on_control(um_source_session *session, um_address from, const uint8_t *data, uint32_t length,
                                  int64_t now_ns);

/* NAKs of this address are served no longer, or again (UX-21). False when the table of accounts has no space. */
bool um_source_session_set_nak_cutoff(um_source_session *session, um_address receiver, bool is_cut_off, int64_t now_ns);

/* The path takes this many bytes of UDP payload from now on. Frames already in the log that are larger go out
 * through the link's send_oversize. A session over TCP has no path to follow. */
void um_source_session_set_datagram_max(um_source_session *session, uint32_t datagram_max_bytes);

/* No more claims; what is in the log can still be sent. Any thread. */
void um_source_session_close(um_source_session *session);

/* Refreshes the snapshot counters. */
void um_source_session_snapshot(um_source_session *session);

#endif
