#include "core/source/flow_reports.h"

#include "core/source/client_service.h"
#include "core/source/session_messages.h"
#include "core/source/transmission_window.h"
#include "core/wire/status_message.h"

enum { ELICITED_SM_GAP_NS = 1000000 }; /* bounds the session messages that a flood of status messages can cause */

/* The receiver has no position, or an impossible one, which a forged session message may have caused. */
static void answer_with_position(um_source_session *session, int64_t now_ns)
{
    int64_t due_ns = session->last_sm_ns + ELICITED_SM_GAP_NS;
    if (now_ns >= due_ns)
        um_source_session_message_send(session, now_ns);
    else
        session->answer_due_ns = due_ns;
}

/* How far the sender may be ahead of a receiver so that every datagram the receiver may still NAK stays in the
 * transmission window, however small the datagrams. */
static uint32_t retransmittable_bytes(const um_source_session *session)
{
    uint32_t datagrams = session->sent_mask - UM_SEND_BATCH_MAX;
    uint32_t by_count = datagrams * um_frame_span(UM_LBMC_HEADER_BYTES + 1);
    return by_count < session->config.window_bytes ? by_count : session->config.window_bytes;
}

/* A receiver reports when it has used part of its own window. With a window larger than the retransmittable bytes, the
 * report would come too late. So a session message solicits the position before the sender reaches its limit, and twice
 * more in case it is lost. */
void um_flow_reports_solicit(um_source_session *session, int64_t now_ns)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    int64_t most = retransmittable_bytes(session);
    if (session->has_no_limit || position < session->sender_limit - most / 2 ||
        position < session->solicited_position + most / 4)
        return;
    session->solicited_position = position;
    um_source_session_message_send(session, now_ns);
}

static void apply(um_source_session *session)
{
    bool is_connected = um_flow_is_connected(&session->flow);
    session->has_no_limit = um_flow_is_open(&session->flow);
    if (session->has_no_limit) {
        atomic_store_explicit(&session->is_sender_blocked, false, memory_order_relaxed);
    } else if (is_connected) {
        int64_t limit = um_flow_limit(&session->flow);
        if (limit > session->sender_limit) {
            session->sender_limit = limit;
            /* The sender must read the limit again. */
            atomic_store_explicit(&session->is_sender_blocked, false, memory_order_relaxed);
        }
    }
    atomic_store_explicit(&session->log.is_connected, is_connected, memory_order_release);
}

void um_flow_reports_add_local(um_source_session *session, int32_t change)
{
    session->flow.local_receivers += (uint32_t)change;
    apply(session);
    um_window_conduct(session);
}

int64_t um_flow_reports_tick_stalls(um_source_session *session, int64_t now_ns)
{
    enum { CHECKS_PER_TIMEOUT = 8 };
    const um_flow_receiver *receiver;
    while ((receiver = um_flow_next_stalled(&session->flow, session->sender_limit, session->is_at_limit, now_ns)) !=
           NULL) {
        UM_COUNT(session->counters.receivers_stalled, 1);
        um_source_events_add(&session->events, UM_SOURCE_RECEIVER_STALLED, receiver->address,
                             (uint64_t)(now_ns - receiver->held_since_ns));
        apply(session);
    }
    bool can_stall = session->is_at_limit && session->config.flow_stall_timeout_ns != 0;
    return can_stall ? now_ns + session->config.flow_stall_timeout_ns / CHECKS_PER_TIMEOUT + 1 : UM_NEVER_NS;
}

static void note_timed_out(um_source_session *session, int64_t now_ns)
{
    for (uint32_t i = 0; i < session->flow.receiver_count; i++) {
        const um_flow_receiver *receiver = &session->flow.receivers[i];
        if (um_flow_expires_ns(&session->flow, receiver) <= now_ns)
            um_source_events_add(&session->events, UM_SOURCE_RECEIVER_GONE, receiver->address,
                                 (uint64_t)(now_ns - receiver->last_seen_ns));
    }
}

/* Position of the newest message sent. Receivers do not report control messages that follow the last message. */
static int64_t reportable_position(const um_source_session *session)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    return position == session->control_end ? session->control_start : position;
}

bool um_flow_reports_are_complete(const um_source_session *session)
{
    return session->config.flow_policy == UM_FLOW_NONE ||
           um_flow_reached(&session->flow) >= reportable_position(session);
}

int64_t um_flow_reports_tick(um_source_session *session, int64_t now_ns)
{
    if (session->config.flow_policy == UM_FLOW_NONE)
        return UM_NEVER_NS;
    if (now_ns >= session->flow_expiry_ns) {
        enum { CHECKS_PER_TIMEOUT = 4 };
        uint32_t before = session->flow.receiver_count;
        bool is_repeated = um_flow_note_sent(&session->flow, reportable_position(session), now_ns);
        note_timed_out(session, now_ns);
        session->flow_expiry_ns = um_flow_expire(&session->flow, now_ns);
        if (is_repeated)
            session->flow_expiry_ns = um_earliest_ns(
                session->flow_expiry_ns, now_ns + session->flow.receiver_timeout_ns / CHECKS_PER_TIMEOUT + 1);
        UM_COUNT(session->counters.receivers_timed_out, before - session->flow.receiver_count);
        apply(session);
    }
    return session->flow_expiry_ns;
}

static void note_timing(um_source_session *session, um_receiver_account *account, const um_status_message *status,
                        int64_t now_ns)
{
    um_source_timing_on_status(&session->timing, account, status->receiver_id, status->round_trip_us, now_ns);
    um_census_note_interval(&session->timing.census, status->interval_ns);
}

/* Reports a receiver whose reader is slow, as its status message does (docs/slow-readers.md). account: NULL if the
 * position is out of range, as that of a receiver that holds its messages and is far behind may be. */
static void note_slow(um_source_session *session, um_address from, um_receiver_account *account, uint8_t flags,
                      int64_t now_ns)
{
    if (flags & (UM_STATUS_SLOW | UM_STATUS_CUT_LOOSE | UM_STATUS_LEAVE))
        account = um_accounting_of(&session->accounting, from, now_ns);
    if (account == NULL)
        return;
    bool was_slow = account->is_slow, was_cut_loose = account->is_cut_loose;
    bool is_leaving = flags & UM_STATUS_LEAVE;
    account->is_slow = flags & UM_STATUS_SLOW && !is_leaving;
    account->is_cut_loose = flags & UM_STATUS_CUT_LOOSE && !is_leaving;
    UM_COUNT(session->counters.receivers_slow, account->is_slow && !was_slow);
    UM_COUNT(session->counters.receivers_cut_loose, account->is_cut_loose && !was_cut_loose);
    if (account->is_cut_loose && !was_cut_loose && um_source_event_is_due(&account->cut_loose_ns, now_ns)) {
        account->is_awaited = true;
        um_source_events_add(&session->events, UM_SOURCE_RECEIVER_CUT_LOOSE, account->address, 0);
    } else if (account->is_slow && !was_slow && !was_cut_loose && um_source_event_is_due(&account->slow_ns, now_ns)) {
        um_source_events_add(&session->events, UM_SOURCE_RECEIVER_SLOW, account->address, 0);
    }
    if (account->is_awaited && !account->is_cut_loose) {
        account->is_awaited = false;
        if (!is_leaving)
            um_source_events_add(&session->events, UM_SOURCE_RECEIVER_RETURNED, account->address, 0);
    }
}

/* Positions pass datagrams that were given up, so their number is kept. A status message that was overtaken is ignored.
 */
static void note_given_up(um_source_session *session, um_address from, const um_status_message *status, int64_t now_ns)
{
    um_receiver_account *account = um_accounting_of(&session->accounting, from, now_ns);
    if (account == NULL || (account->has_reported && um_serial_before(status->next_sqn, account->reported_sqn)))
        return;
    bool has_lost = status->given_up > account->session_given_up || status->unconfirmed > account->session_unconfirmed;
    UM_COUNT(session->counters.datagrams_given_up,
             um_accounting_on_given_up(account, status->given_up, status->unconfirmed));
    if (has_lost && um_source_event_is_due(&account->gave_up_ns, now_ns))
        um_source_events_add(&session->events, UM_SOURCE_RECEIVER_GAVE_UP, from,
                             account->given_up + account->session_unconfirmed);
}

static void note_topics(um_source_session *session, um_address from, const um_packet *packet, uint8_t flags,
                        int64_t now_ns)
{
    um_topic_report report;
    bool is_leaving = flags & UM_STATUS_LEAVE;
    if (!is_leaving && !um_topic_report_decode(packet, &report))
        return;
    um_receiver_account *account = um_accounting_of(&session->accounting, from, now_ns);
    if (account != NULL)
        um_accounting_on_topics(&session->accounting, account, is_leaving ? NULL : &report);
}

/* With fixed timing, a session that has never sent sends nothing, as Ultra Messaging's (UM-74). */
static bool can_answer(const um_source_session *session)
{
    return session->has_sent || session->timing.adaptive & UM_ADAPTIVE_REPORTS;
}

/* A receiver proves that it receives the group by the cookie of a session message. One that counts needs no further
 * proof, so that forged session messages do not remove it: its id is a random number. */
static bool has_proof(um_source_session *session, const um_status_message *status)
{
    uint64_t cookie = session->config.flow_cookie;
    return cookie == 0 || status->cookie == cookie || um_flow_is_known(&session->flow, status->receiver_id);
}

void um_flow_reports_on_status(um_source_session *session, um_address from, const um_packet *packet, int64_t now_ns)
{
    um_status_message status;
    if (!um_status_decode(packet, &status)) {
        UM_COUNT(session->counters.status_malformed, 1);
        return;
    }
    if (!um_flow_is_allowed(session->config.flow_networks, session->config.flow_network_count, from.ip)) {
        UM_COUNT(session->counters.status_not_allowed, 1);
        return;
    }
    if (!has_proof(session, &status)) {
        UM_COUNT(session->counters.status_unproven, 1);
        if (!(status.flags & UM_STATUS_LEAVE))
            answer_with_position(session, now_ns);
        return;
    }
    bool is_out_of_range = um_serial_before(session->next_sqn, status.next_sqn) ||
                           session->next_sqn - status.next_sqn > session->sent_mask;
    um_receiver_account *account = NULL;
    if (!(status.flags & UM_STATUS_ELICIT) && !is_out_of_range)
        note_given_up(session, from, &status, now_ns);
    if (!(status.flags & (UM_STATUS_LEAVE | UM_STATUS_ELICIT)) && !is_out_of_range)
        account = um_accounting_on_status(&session->accounting, from, status.next_sqn, now_ns);
    note_slow(session, from, account, status.flags, now_ns);
    note_topics(session, from, packet, status.flags, now_ns);
    if (status.flags & UM_STATUS_LEAVE) {
        um_path_mtu_on_leave(&session->path, status.receiver_id, now_ns);
        um_clients_on_leave(session, from);
    } else {
        note_timing(session, account, &status, now_ns);
        um_path_mtu_on_status(&session->path, from, status.receiver_id, status.probe_round, status.probe_bytes,
                              status.interval_ns, now_ns);
    }
    if (session->config.flow_policy == UM_FLOW_NONE) {
        if (account != NULL && account->is_new_member)
            um_source_events_add(&session->events, UM_SOURCE_RECEIVER_KNOWN, from, 0);
        /* A receiving session without a datagram ends after a while, or makes space for others (node.h). */
        if (status.flags & UM_STATUS_ELICIT && can_answer(session))
            answer_with_position(session, now_ns);
        return;
    }
    uint32_t known = session->flow.receiver_count;
    if (status.flags & UM_STATUS_LEAVE) {
        um_flow_on_leave(&session->flow, status.receiver_id);
        if (session->flow.receiver_count < known)
            um_source_events_add(&session->events, UM_SOURCE_RECEIVER_GONE, from, 0);
        apply(session);
        return;
    }
    if (status.flags & UM_STATUS_ELICIT || is_out_of_range) {
        UM_COUNT(session->counters.status_out_of_range, !(status.flags & UM_STATUS_ELICIT));
        answer_with_position(session, now_ns);
        return;
    }
    /* Before the window: the receiver is further behind than anything that can be sent again. */
    uint32_t sqn = um_serial_before(status.next_sqn, session->trail_sqn) ? session->trail_sqn : status.next_sqn;
    int64_t position = sqn == session->next_sqn ? atomic_load(&session->sender_position)
                                                : um_source_session_sent(session, sqn)->position;
    UM_COUNT(session->counters.status_messages_received, 1);
    uint32_t most = retransmittable_bytes(session);
    uint32_t window = status.window_bytes < most ? status.window_bytes : most;
    session->is_window_capped |= status.window_bytes > most;
    um_flow_on_status(&session->flow, status.receiver_id, status.group_tag, position + window, now_ns);
    if (session->flow.receiver_count > known)
        um_source_events_add(&session->events, UM_SOURCE_RECEIVER_KNOWN, from, 0);
    um_flow_note_position(&session->flow, status.receiver_id, position);
    um_flow_note_interval(&session->flow, status.receiver_id, status.interval_ns);
    um_flow_report report = {from, status.next_sqn, status.window_bytes, sqn == status.next_sqn};
    if (um_flow_note_report(&session->flow, status.receiver_id, &report))
        um_source_events_add(&session->events, UM_SOURCE_RECEIVER_RETURNED, from, 0);
    session->counters.receivers_refused = session->flow.refused_count;
    session->flow_expiry_ns =
        um_earliest_ns(session->flow_expiry_ns, now_ns + session->config.flow_receiver_timeout_ns / 4 + 1);
    apply(session);
    um_window_conduct(session);
}
