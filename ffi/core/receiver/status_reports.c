#include "core/receiver/status_reports.h"

#include "core/delivery/off_transport.h"
#include "core/receiver/connection.h"
#include "core/receiver/session_claims.h"
#include "core/receiver/topic_reports.h"
#include "core/wire/group_report.h"
#include "core/wire/topic_report.h"

enum { FIRST_REPETITION_NS = 10000000 }; /* of the first request for a session message */

/* Queues that hold nothing back do not count. */
static bool limits_window(const um_message_queue *queue)
{
    return queue->hold_ns != 0 && queue->state != UM_QUEUE_CUT_LOOSE;
}

/* Returns the bytes that the receivers can take, at most the configured window (AE-18). */
static uint32_t offered_window(um_receiver_session *session)
{
    uint64_t window = session->config.window_bytes;
    for (uint32_t i = 0; i < session->queue_count; i++) {
        um_message_queue *queue = session->queues[i].queue;
        if (!limits_window(queue))
            continue;
        uint64_t free_bytes = um_queue_free_bytes(queue);
        if (free_bytes < queue->payload_capacity && !um_queue_has_free_blocks(queue, 1))
            um_queue_close(queue);
        window = free_bytes < window ? free_bytes : window;
    }
    return (uint32_t)window;
}

/* Returns the bytes that the receivers can take once everything is read: the widest window that can be offered. */
static uint64_t widest_window(const um_receiver_session *session)
{
    uint64_t window = session->config.window_bytes;
    for (uint32_t i = 0; i < session->queue_count; i++) {
        const um_message_queue *queue = session->queues[i].queue;
        uint64_t bytes = (uint64_t)queue->block_count * queue->payload_capacity;
        if (limits_window(queue) && bytes < window)
            window = bytes;
    }
    return window;
}

/* Returns UM_STATUS_SLOW and UM_STATUS_CUT_LOOSE as they hold now. */
static uint8_t slow_flags(const um_receiver_session *session, int64_t now_ns)
{
    uint8_t flags = 0;
    for (uint32_t i = 0; i < session->queue_count; i++) {
        const um_message_queue *queue = session->queues[i].queue;
        if (queue->state == UM_QUEUE_CUT_LOOSE)
            flags |= UM_STATUS_CUT_LOOSE;
        else if (um_queue_full_ns(queue, now_ns) >= session->config.status_interval_ns)
            flags |= UM_STATUS_SLOW;
    }
    return flags;
}

static bool has_full_queue(const um_receiver_session *session)
{
    for (uint32_t i = 0; i < session->queue_count; i++)
        if (session->queues[i].queue->state != UM_QUEUE_OPEN)
            return true;
    return false;
}

static bool has_off_transport_recovery(const um_receiver_session *session)
{
    const um_delivery *delivery = session->controllers;
    while (delivery != NULL && um_otr_is_offered(delivery))
        delivery = delivery->next;
    return delivery == NULL && session->controllers != NULL;
}

um_session_losses um_status_reports_losses(const um_receiver_session *session)
{
    const um_receiver_transport_counters *counters = &session->counters;
    if (!has_off_transport_recovery(session))
        return (um_session_losses){
            (uint32_t)(counters->unrecovered_txw + counters->unrecovered_tmo + counters->unrecovered_too_long),
            um_receiver_session_claims_position(session) - session->next_sqn};
    uint32_t lost = session->unfetched_count;
    for (const um_delivery *delivery = session->controllers; delivery != NULL; delivery = delivery->next)
        lost += delivery->unfetched_count;
    return (um_session_losses){lost, 0};
}

static bool has_changed_much(int64_t a, int64_t b)
{
    return a != b && (a >= 2 * b || b >= 2 * a);
}

static bool is_small(const um_receiver_session *session)
{
    return session->has_base && session->status_window_bytes < widest_window(session) / 2;
}

bool um_status_reports_has_news(const um_receiver_session *session)
{
    return session->has_unreported && !(session->is_unlimited && session->has_reported_data);
}

/* A new session without a position keeps asking: the first answers are lost if the switch learns of the membership only
 * milliseconds later. The first repetition comes early, because the time to the answer is the session's round trip, and
 * the session message that a source sends by itself, later, must not be taken for the answer.
 */
static bool is_asking(const um_receiver_session *session, int64_t now_ns)
{
    enum { ASKING_S = 10 };
    return !session->has_base && now_ns - session->created_ns < ASKING_S * INT64_C(1000000000);
}

static int64_t next_quiet_ns(const um_receiver_session *session, uint32_t window_bytes, int64_t now_ns)
{
    const um_receiver_session_config *config = &session->config;
    bool is_busy = um_status_reports_has_news(session) || session->losses.count > 0 ||
                   (window_bytes != session->status_window_bytes && !session->is_unlimited);
    if (is_asking(session, now_ns)) { /* the interval doubles even if there is news: nobody may be there */
        int64_t first_ns = um_earliest_ns(FIRST_REPETITION_NS, config->status_interval_ns);
        return session->status_quiet_ns != 0 ? 2 * session->status_quiet_ns : first_ns;
    }
    if (is_busy || config->status_maximum_interval_ns <= config->status_interval_ns)
        return 0;
    if (session->status_quiet_ns < config->status_interval_ns)
        return config->status_interval_ns;
    return um_earliest_ns(2 * session->status_quiet_ns, config->status_maximum_interval_ns);
}

/* Schedules the next status message. Quiet receivers are spread, so that their messages do not arrive together: while
 * their intervals grow over nearly the whole interval, because many of them may have begun at the same time. */
static void schedule(um_receiver_session *session, int64_t now_ns)
{
    enum { NEXT_TOPICS_NS = 2000000 };
    int64_t interval_ns = session->config.status_interval_ns, quiet_ns = session->status_quiet_ns;
    if (quiet_ns > interval_ns) {
        bool is_growing = quiet_ns < session->config.status_maximum_interval_ns;
        int64_t spread_ns = is_growing ? quiet_ns - interval_ns : quiet_ns / 8;
        interval_ns = quiet_ns - (int64_t)um_random_below(&session->random, (uint64_t)spread_ns);
    } else if (quiet_ns > 0 && quiet_ns < interval_ns) {
        interval_ns = quiet_ns;
    }
    session->status_sent_ns = now_ns;
    bool is_topic_left = session->has_base && session->is_topic_report_due;
    session->due_ns[UM_TIMER_STATUS] = now_ns + (is_topic_left ? NEXT_TOPICS_NS : interval_ns);
}

/* Sends the next status message within the interval, at a random time because other receivers do the same. */
static void report_soon(um_receiver_session *session, int64_t now_ns)
{
    uint64_t interval_ns = (uint64_t)session->config.status_interval_ns;
    int64_t soon_ns = now_ns + 1 + (int64_t)um_random_below(&session->random, interval_ns);
    session->status_quiet_ns = 0;
    session->due_ns[UM_TIMER_STATUS] = um_earliest_ns(session->due_ns[UM_TIMER_STATUS], soon_ns);
}

static void end_quiet(um_receiver_session *session, int64_t now_ns)
{
    if (session->status_quiet_ns != 0 && session->due_ns[UM_TIMER_STATUS] > now_ns + session->config.status_interval_ns)
        report_soon(session, now_ns);
}

static void send_status(um_receiver_session *session, uint8_t flags, int64_t now_ns)
{
    uint8_t datagram[UM_STATUS_DATAGRAM_BYTES_MAX + UM_TOPIC_REPORT_LBMC_BYTES_MAX];
    const um_session_id *id = &session->config.id;
    um_session_losses losses = um_status_reports_losses(session);
    um_status_message status = {.receiver_id = session->config.receiver_id,
                                .next_sqn = um_receiver_session_claims_position(session),
                                .window_bytes = offered_window(session),
                                .group_tag = session->config.group_tag,
                                .round_trip_us = um_round_trip_us(um_recovery_timing_crossing_ns(&session->timing)),
                                .given_up = losses.given_up,
                                .unconfirmed = losses.unconfirmed,
                                .flags = flags | slow_flags(session, now_ns),
                                .probe_round = session->probe_round,
                                .probe_bytes = session->probe_bytes,
                                .cookie = session->flow_cookie};
    if (session->losses.count > 0) {
        uint32_t lowest = um_loss_map_lowest(&session->losses);
        status.next_sqn = um_serial_before(lowest, session->next_sqn) ? lowest : session->next_sqn;
    }
    if (!session->has_base || um_connection_is_unconfirmed(session)) {
        status.flags |= UM_STATUS_ELICIT;
        session->elicited_ns = now_ns;
    }
    session->status_quiet_ns = next_quiet_ns(session, status.window_bytes, now_ns);
    session->status_window_bytes = status.window_bytes;
    session->status_slow_flags = status.flags & (UM_STATUS_SLOW | UM_STATUS_CUT_LOOSE);
    session->status_sqn = status.next_sqn;
    status.interval_ns = session->status_quiet_ns;
    session->reported_trip_ns = um_recovery_timing_crossing_ns(&session->timing);
    session->bytes_since_status = 0;
    session->has_reported_data |= session->has_unreported;
    session->has_unreported = false;
    uint32_t length = um_status_write(datagram, id, session->connection.client_id, &status);
    if (session->has_base && !(flags & UM_STATUS_LEAVE))
        length += um_topic_reports_write(session, datagram + length);
    schedule(session, now_ns);
    session->counters.rcv_pos = status.next_sqn;
    session->counters.rcv_window = status.window_bytes;
    um_receiver_session_send_control(session, datagram, length);
    UM_COUNT(session->counters.status_messages_sent, 1);
}

/* Sends a status message, or postpones it if the source never answered. */
static void report(um_receiver_session *session, int64_t now_ns)
{
    int64_t wait_ns = um_receiver_session_contact_wait_ns(session, now_ns);
    if (UM_UNLIKELY(wait_ns != 0))
        session->due_ns[UM_TIMER_STATUS] = now_ns + wait_ns;
    else
        send_status(session, 0, now_ns);
}

static bool can_report(const um_receiver_session *session)
{
    return session->config.window_bytes != 0 && !session->has_ended && um_connection_is_known(&session->connection);
}

void um_status_reports_after_batch(um_receiver_session *session, int64_t now_ns)
{
    if (!can_report(session))
        return;
    if (um_status_reports_has_news(session))
        end_quiet(session, now_ns);
    bool is_window_used =
        session->bytes_since_status >= um_receiver_session_report_after_bytes(session) && !session->is_unlimited;
    if (is_window_used || now_ns >= session->due_ns[UM_TIMER_STATUS])
        report(session, now_ns);
}

void um_status_reports_on_session_message(um_receiver_session *session, const um_packet *packet, int64_t now_ns)
{
    uint64_t cookie = um_cookie_decode(packet);
    if (cookie != 0 && cookie != session->flow_cookie) {
        session->flow_cookie = cookie;
        um_topic_reports_restart(session); /* without the cookie the source ignored them */
        report_soon(session, now_ns);
    }
    if (now_ns - session->last_activity_ns > session->config.status_maximum_interval_ns / 2)
        end_quiet(session, now_ns);
    if (session->elicited_ns == INT64_MIN)
        return;
    um_recovery_timing_on_answer(&session->timing, now_ns - session->elicited_ns);
    session->elicited_ns = INT64_MIN;
    session->due_ns[UM_TIMER_STATUS] = now_ns; /* the source uses the round trip, too */
}

void um_status_reports_on_probe(um_receiver_session *session, const um_path_probe *probe, int64_t now_ns)
{
    enum { SPREAD_NS = 20000000 };
    bool is_known = session->probe_round == probe->round && probe->bytes <= session->probe_bytes;
    if (!is_known) {
        session->probe_round = probe->round;
        session->probe_bytes = probe->bytes;
    }
    if (is_known && !probe->wants_answer)
        return;
    int64_t answer_ns = now_ns + 1 + (int64_t)um_random_below(&session->random, SPREAD_NS);
    session->due_ns[UM_TIMER_STATUS] = um_earliest_ns(session->due_ns[UM_TIMER_STATUS], answer_ns);
}

void um_status_reports_leave(um_receiver_session *session)
{
    bool is_client = session->connection.has_client_id;
    if ((is_client || session->config.window_bytes != 0) && session->has_base && !session->has_ended)
        send_status(session, UM_STATUS_LEAVE, session->last_activity_ns);
}

/* A small window is reported again as soon as the reader has made space, because it blocks the source. */
int64_t um_status_reports_tick(um_receiver_session *session, int64_t now_ns)
{
    enum { REOPEN_CHECK_NS = 500000 };
    if (!can_report(session) || session->controller_count == 0)
        return UM_NEVER_NS;
    if (has_changed_much(um_recovery_timing_crossing_ns(&session->timing), session->reported_trip_ns) ||
        session->losses.count > 0)
        end_quiet(session, now_ns);
    bool small = is_small(session);
    if (small && !session->is_unlimited &&
        offered_window(session) >= session->status_window_bytes + widest_window(session) / 4)
        session->due_ns[UM_TIMER_STATUS] = now_ns;
    if (slow_flags(session, now_ns) != session->status_slow_flags)
        session->due_ns[UM_TIMER_STATUS] = now_ns;
    if (now_ns >= session->due_ns[UM_TIMER_STATUS])
        report(session, now_ns);
    small = is_small(session) || has_full_queue(session);
    int64_t check_ns = now_ns + REOPEN_CHECK_NS;
    return small ? um_earliest_ns(check_ns, session->due_ns[UM_TIMER_STATUS]) : session->due_ns[UM_TIMER_STATUS];
}
