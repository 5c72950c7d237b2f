#include "core/receiver/fetch.h"

#include "core/delivery/delivery_controller.h"
#include "core/delivery/delivery_fetch.h"
#include "core/delivery/order_map.h"
#include "core/receiver/receiver_session.h"

void um_fetch_begin(um_fetch *fetch)
{
    *fetch = (um_fetch){.id = fetch->id,
                        .topic_index = fetch->topic_index,
                        .epoch = fetch->epoch,
                        .plan = fetch->plan,
                        .request_index = um_request_index(fetch->plan.purpose, fetch->topic_index),
                        .is_awaiting_range = !fetch->plan.is_otr,
                        .attempt_interval_ns = fetch->plan.attempt_minimum_ns,
                        .request_interval_ns = fetch->plan.request_minimum_ns};
}

static int64_t doubled(int64_t interval_ns, int64_t maximum_ns)
{
    return interval_ns > maximum_ns / 2 ? maximum_ns : 2 * interval_ns;
}

void um_fetch_on_connect(um_fetch *fetch, um_fetch_connection *connection)
{
    fetch->connection = connection;
    fetch->has_requested_range = false;
    fetch->left_over = 0;
}

uint32_t um_fetch_request_range(um_fetch *fetch, uint8_t *out)
{
    um_range_request request = {.topic_index = fetch->topic_index,
                                .request_index = fetch->request_index,
                                .outstanding_max = fetch->plan.outstanding_max,
                                .bounds = fetch->plan.bounds};
    if (fetch->has_progressed && !fetch->is_awaiting_range) /* the original bounds would move with the stream */
        request.bounds = (um_range_bounds){.has_low_sqn = true, .low_sqn = fetch->next_sqn};
    fetch->has_requested_range = true;
    fetch->needs_retry = true;
    return um_range_request_write(out, &request);
}

void um_fetch_on_disconnect(um_fetch *fetch)
{
    fetch->connection = NULL;
    fetch->has_requested_range = false;
}

static bool is_over(const um_fetch *fetch, const um_receiver_session *session, const um_delivery *delivery)
{
    return session->has_ended || !um_delivery_fetch_is_running(delivery) || delivery->fetch.epoch != fetch->epoch;
}

um_delivery *um_fetch_find(const um_fetch *fetch, um_node *node, const um_receiver *receiver,
                           um_receiver_session **session)
{
    *session = um_node_find_session(node, &fetch->id);
    um_delivery *delivery = *session == NULL ? NULL : um_receiver_session_find(*session, receiver, fetch->topic_index);
    return delivery == NULL || is_over(fetch, *session, delivery) ? NULL : delivery;
}

static void give_up(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    fetch->is_given_up = fetch->wakes_node = true;
    um_fetch_protocol_give_up(session, delivery, now_ns);
}

static void observe(um_fetch *fetch, um_delivery *delivery)
{
    fetch->next_sqn = delivery->next_sqn;
    fetch->is_awaiting_range = delivery->fetch.state == UM_DELIVERY_FETCH_AWAITS_RANGE;
    fetch->is_starved = delivery->is_starved || delivery->announcements_due;
    fetch->is_left_to_transport = um_fetch_protocol_is_left_to_transport(delivery);
    fetch->is_caught_up = !fetch->is_awaiting_range && !um_serial_before(delivery->next_sqn, delivery->fetch.target);
}

static int step(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, const uint8_t *received,
                uint32_t length, uint8_t *out, uint32_t capacity, int64_t now_ns)
{
    fetch->consumed = fetch->written = 0;
    if (length > fetch->left_over) {
        fetch->has_heard = true;
        if (fetch->connection != NULL)
            fetch->connection->received_ns = now_ns;
    }
    if (delivery->is_starved || delivery->announcements_due)
        um_delivery_tick(delivery, now_ns);
    int64_t used = um_fetch_protocol_receive(session, delivery, received, length, now_ns);
    if (used < 0) {
        give_up(fetch, session, delivery, now_ns);
        return (int)used;
    }
    fetch->consumed = (uint32_t)used;
    fetch->left_over = length - fetch->consumed;
    if (is_over(fetch, session, delivery))
        return -ENOENT;
    /* Retry only after handling the received bytes, because they may answer earlier requests. */
    if (fetch->needs_retry && delivery->fetch.state != UM_DELIVERY_FETCH_AWAITS_RANGE) {
        um_fetch_protocol_retry(delivery);
        fetch->needs_retry = false;
    }
    if (fetch->has_requested_range)
        fetch->written =
            um_fetch_protocol_request(delivery, fetch->request_index, fetch->plan.outstanding_max, out, capacity);
    if (fetch->written > 0)
        fetch->requested_ns = now_ns;
    observe(fetch, delivery);
    return 0;
}

/* Returns when the oldest gap was detected, if it may be due before the reader has made space or anything arrives, else
 * UM_NEVER_NS. Gaps are in the order of their numbers: the next oldest may have been detected before it. */
static int64_t timed_gap_ns(um_delivery *delivery)
{
    bool is_timed = delivery->state == UM_DELIVERY_RUNNING && delivery->gap_count > 0 && !delivery->is_starved &&
                    !delivery->announcements_due;
    return is_timed ? um_order_map_gap(delivery, 0)->detected_ns : UM_NEVER_NS;
}

int um_fetch_step(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, const uint8_t *received,
                  uint32_t length, uint8_t *out, uint32_t capacity, int64_t now_ns)
{
    int64_t former_ns = timed_gap_ns(delivery);
    fetch->wakes_node = false;
    int result = step(fetch, session, delivery, received, length, out, capacity, now_ns);
    fetch->wakes_node |= timed_gap_ns(delivery) < former_ns;
    return result;
}

/* True if messages have arrived, or none are needed. A slow reader is no lack of progress. */
static bool has_progress(um_fetch *fetch, int64_t now_ns)
{
    bool is_new = !fetch->has_progressed || fetch->is_awaiting_range != fetch->was_awaiting_range ||
                  (!fetch->is_awaiting_range && fetch->next_sqn != fetch->progress_sqn);
    if (!is_new && !fetch->is_starved && !fetch->is_left_to_transport)
        return false;
    fetch->progress_ns = now_ns;
    fetch->has_progressed = true;
    fetch->was_awaiting_range = fetch->is_awaiting_range;
    if (fetch->is_awaiting_range)
        return true;
    fetch->progress_sqn = fetch->next_sqn;
    if (fetch->connection != NULL) {
        fetch->attempts = 0;
        fetch->attempt_interval_ns = fetch->plan.attempt_minimum_ns;
        fetch->request_interval_ns = fetch->plan.request_minimum_ns;
    }
    return true;
}

static int try_connect(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    const um_fetch_plan *plan = &fetch->plan;
    if (fetch->is_caught_up || (fetch->has_attempted && now_ns - fetch->attempt_ns < fetch->attempt_interval_ns))
        return UM_FETCH_WAIT;
    if (plan->attempts_max != 0 && fetch->attempts >= plan->attempts_max) {
        give_up(fetch, session, delivery, now_ns);
        return -ENOENT;
    }
    if (fetch->attempts > 0)
        fetch->attempt_interval_ns = doubled(fetch->attempt_interval_ns, plan->attempt_maximum_ns);
    fetch->attempts++;
    fetch->has_attempted = true;
    fetch->attempt_ns = fetch->requested_ns = now_ns;
    fetch->has_heard = false;
    return UM_FETCH_CONNECT;
}

static int on_message_timeout(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    fetch->progress_ns = now_ns;
    fetch->wakes_node = true;
    if (fetch->is_caught_up) { /* the source is idle and the past is complete */
        um_fetch_protocol_give_up(session, delivery, now_ns);
        return -ENOENT;
    }
    fetch->is_given_up = !um_fetch_protocol_pass_over(session, delivery, now_ns);
    return fetch->is_given_up ? -ENOENT : UM_FETCH_WAIT;
}

/* True if bytes have arrived on the connection since the given time, for any of its fetches. */
static bool is_alive(const um_fetch *fetch, int64_t since_ns)
{
    return fetch->connection != NULL && fetch->connection->received_ns > since_ns;
}

static int request_again(um_fetch *fetch, int64_t now_ns)
{
    /* While answers arrive, the missing message may follow: a repeated request would be answered after all of them. */
    bool is_answered = fetch->has_heard && fetch->connection != NULL;
    /* The path may have changed: on this connection, TCP would keep waiting for the old one. */
    bool disconnects = fetch->plan.is_otr && fetch->connection != NULL && !is_alive(fetch, fetch->requested_ns);
    fetch->has_heard = false;
    fetch->requested_ns = now_ns;
    if (is_answered)
        return UM_FETCH_WAIT;
    fetch->needs_retry = true;
    fetch->request_interval_ns = doubled(fetch->request_interval_ns, fetch->plan.request_maximum_ns);
    return disconnects ? UM_FETCH_DISCONNECT : UM_FETCH_WAIT;
}

/* The range did not arrive in time. On a connection with other answers it may still follow them. */
static int on_late_range(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    if (!is_alive(fetch, fetch->attempt_ns))
        return UM_FETCH_DISCONNECT;
    if (fetch->plan.attempts_max != 0 && fetch->attempts >= fetch->plan.attempts_max) {
        give_up(fetch, session, delivery, now_ns);
        return -ENOENT;
    }
    fetch->attempts++;
    fetch->attempt_ns = now_ns;
    return UM_FETCH_WAIT;
}

static int check_progress(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    if (has_progress(fetch, now_ns))
        return UM_FETCH_WAIT;
    if (fetch->is_awaiting_range && !fetch->plan.is_otr) {
        bool is_late = fetch->connection != NULL && now_ns - fetch->attempt_ns >= fetch->attempt_interval_ns;
        return is_late ? on_late_range(fetch, session, delivery, now_ns) : UM_FETCH_WAIT;
    }
    if (now_ns - fetch->progress_ns >= fetch->plan.message_timeout_ns)
        return on_message_timeout(fetch, session, delivery, now_ns);
    if (!fetch->is_caught_up && now_ns - fetch->requested_ns >= fetch->request_interval_ns)
        return request_again(fetch, now_ns);
    return UM_FETCH_WAIT;
}

/* True if um_fetch_step has something to do without received bytes. */
static bool needs_step(const um_fetch *fetch, um_delivery *delivery)
{
    return fetch->is_starved || fetch->left_over > 0 || (fetch->needs_retry && !fetch->is_awaiting_range) ||
           (fetch->has_requested_range && um_fetch_protocol_has_requests(delivery, fetch->plan.outstanding_max));
}

int um_fetch_attend(um_fetch *fetch, um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    fetch->wakes_node = false;
    if (is_over(fetch, session, delivery))
        return -ENOENT;
    observe(fetch, delivery);
    int action = check_progress(fetch, session, delivery, now_ns);
    if (action == UM_FETCH_WAIT && fetch->connection == NULL)
        action = try_connect(fetch, session, delivery, now_ns);
    return action == UM_FETCH_WAIT && needs_step(fetch, delivery) ? UM_FETCH_STEP : action;
}
