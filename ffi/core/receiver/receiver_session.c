/* One file, because the effects of a datagram on a session and the end of a session use the same few fields. */
#include "core/receiver/receiver_session.h"

#include "core/delivery/delivery_controller.h"
#include "core/delivery/delivery_rows.h"
#include "core/receiver/connection.h"
#include "core/receiver/fetch_protocol.h"
#include "core/receiver/gaps.h"
#include "core/receiver/interest.h"
#include "core/receiver/latency.h"
#include "core/receiver/lost_repairs.h"
#include "core/receiver/nak_cutoff.h"
#include "core/receiver/nak_timers.h"
#include "core/receiver/session_claims.h"
#include "core/receiver/start_gate.h"
#include "core/receiver/status_reports.h"
#include "core/receiver/topic_reports.h"
#include "core/wire/group_report.h"

enum {
    JUMP_CONFIRMED_WITHIN = 16, /* sqns behind a long jump within which a datagram confirms it */
    PASSED_MAX = 1 << 20,       /* datagrams that one report may pass */
    PASSED_BACK_MAX = 1 << 29,  /* how far back they may start */
    STRAYS_MAX = 64,            /* successive impossible sqns that end a session */
    MAPPED_WITHIN = 1 << 29,    /* distance behind the newest datagram within which a mapping is kept */
};

static const int64_t STALE_TAGS_INTERVAL_NS = 10000000000;

static void carve(um_receiver_session *session, um_arena *arena, const um_receiver_session_config *config)
{
    um_receiver_session ignored;
    um_receiver_session *s = session ? session : &ignored;
    s->topics.slots = um_arena_take(arena, 2 * (size_t)config->topic_capacity * sizeof *s->topics.slots);
    s->queues = um_arena_take(arena, (size_t)config->topic_capacity * sizeof *s->queues);
}

size_t um_receiver_session_footprint(const um_receiver_session_config *config)
{
    size_t loss_bytes = um_loss_map_footprint(config->loss_capacity);
    if (loss_bytes == 0 || !um_is_power_of_two(config->topic_capacity))
        return 0;
    um_arena arena = {NULL, 0};
    um_arena_take(&arena, loss_bytes);
    carve(NULL, &arena, config);
    return arena.used_bytes;
}

void um_receiver_session_init(um_receiver_session *session, void *memory, const um_receiver_session_config *config,
                              um_link *link, um_reorder_buffer *store, int64_t now_ns)
{
    memset(session, 0, sizeof *session);
    um_arena arena = {memory, 0};
    session->config = *config;
    if (config->receive_max_bytes == 0)
        session->config.receive_max_bytes = UINT32_MAX;
    session->link = link;
    session->store = store;
    session->random.state = config->random_seed;
    session->stale_tags_due_ns = INT64_MIN;
    um_connection_init(session, now_ns);
    um_interest_init(session);
    um_recovery_timing_init(&session->timing, config->adaptive_timers, config->nak_initial_backoff_ns,
                            config->nak_backoff_ns, config->nak_suppress_ns);
    um_loss_map_init(&session->losses, um_arena_take(&arena, um_loss_map_footprint(config->loss_capacity)),
                     config->loss_capacity);
    carve(session, &arena, config);
    session->topics.mask = 2 * config->topic_capacity - 1;
    session->topics.last = &session->topics.slots[0];
    session->created_ns = session->last_activity_ns = now_ns;
    session->elicited_ns = INT64_MIN;
    session->due_ns[UM_TIMER_STATUS] = now_ns;
    session->due_ns[UM_TIMER_CONTROLLERS] = UM_NEVER_NS;
    um_nak_budget_init(&session->nak_budget, config->nak_rate_limit, now_ns);
    um_receiver_transport_counters_reset(&session->counters);
}

/* ---- topics ---- */

static um_receiver_session_queue *find_queue(um_receiver_session *session, const um_message_queue *queue)
{
    um_receiver_session_queue *found = session->queues;
    while (found != session->queues + session->queue_count && found->queue != queue)
        found++;
    return found;
}

static bool join_queue(um_receiver_session *session, um_message_queue *queue)
{
    um_receiver_session_queue *joined = find_queue(session, queue);
    if (joined == session->queues + session->queue_count) {
        if (session->queue_count == session->config.topic_capacity)
            return false;
        *joined = (um_receiver_session_queue){queue, 0};
        session->queue_count++;
    }
    joined->controller_count++;
    return true;
}

static void leave_queue(um_receiver_session *session, const um_message_queue *queue)
{
    um_receiver_session_queue *left = find_queue(session, queue);
    if (--left->controller_count == 0)
        *left = session->queues[--session->queue_count];
}

um_delivery *um_receiver_session_find(um_receiver_session *session, const um_receiver *receiver, uint32_t topic_index)
{
    um_delivery *d = um_topic_table_slot(&session->topics, topic_index)->first;
    while (d != NULL && d->receiver != receiver)
        d = d->next_of_topic;
    return d;
}

/* Adds the controller to the lists of its session and of its receiver. */
static void link_controller(um_receiver_session *session, um_delivery *delivery)
{
    um_receiver *receiver = delivery->receiver;
    delivery->session = session;
    delivery->next = session->controllers;
    delivery->link = &session->controllers;
    if (delivery->next != NULL)
        delivery->next->link = &delivery->next;
    session->controllers = delivery;
    delivery->next_of_receiver = receiver->controllers;
    delivery->link_of_receiver = &receiver->controllers;
    if (delivery->next_of_receiver != NULL)
        delivery->next_of_receiver->link_of_receiver = &delivery->next_of_receiver;
    receiver->controllers = delivery;
}

static void unlink_controller(um_delivery *delivery)
{
    *delivery->link = delivery->next;
    if (delivery->next != NULL)
        delivery->next->link = delivery->link;
    *delivery->link_of_receiver = delivery->next_of_receiver;
    if (delivery->next_of_receiver != NULL)
        delivery->next_of_receiver->link_of_receiver = delivery->link_of_receiver;
}

bool um_receiver_session_map(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_topic_slot *slot = um_topic_table_slot(&session->topics, delivery->topic_index);
    if (slot->first == NULL && session->topics.count == session->config.topic_capacity)
        return false;
    if (!join_queue(session, delivery->receiver->queue))
        return false;
    session->topics.count += slot->first == NULL;
    slot->topic_index = delivery->topic_index;
    delivery->next_of_topic = slot->first;
    slot->first = delivery;
    link_controller(session, delivery);
    session->controller_count++;
    delivery->mapped_sqn = session->next_sqn;
    delivery->is_nak_free = !um_receiver_session_can_nak(session);
    session->due_ns[UM_TIMER_CONTROLLERS] = now_ns;
    session->due_ns[UM_TIMER_STATUS] = now_ns;
    um_interest_on_mapped(session, delivery, now_ns);
    um_topic_reports_on_mapped(session);
    um_delivery_register(delivery);
    if (session->is_active)
        um_delivery_begin(delivery);
    um_nak_cutoff_on_receivers(session);
    return true;
}

/* LBT-RM: the position shows that datagrams of the source arrive, and the next one after it that is missing is lost.
 * LBT-RU: the source has sent something to this client. */
bool um_receiver_session_is_connected(const um_receiver_session *session, const um_delivery *delivery, int64_t now_ns)
{
    enum um_connection_state state = session->connection.state;
    if (session->has_ended || delivery->is_awaiting_interest || state == UM_CONNECTION_CONNECTING)
        return false;
    if (um_transport_is_stream(session->config.id.transport))
        return true;
    bool is_confirmed = session->has_base && !um_connection_is_unconfirmed(session);
    int64_t since_ns = state == UM_CONNECTION_NONE ? session->created_ns : session->connection.established_ns;
    return is_confirmed || now_ns - since_ns >= UM_JOIN_UNANSWERED_NS;
}

void um_receiver_session_unmap(um_receiver_session *session, um_delivery *delivery)
{
    um_topic_slot *slot = um_topic_table_slot(&session->topics, delivery->topic_index);
    um_interest_on_unmapped(session, delivery);
    um_delivery **of_topic = &slot->first;
    while (*of_topic != delivery)
        of_topic = &(*of_topic)->next_of_topic;
    *of_topic = delivery->next_of_topic;
    unlink_controller(delivery);
    session->controller_count--;
    session->unfetched_count += delivery->unfetched_count;
    session->starting_count -= delivery->state == UM_DELIVERY_STARTING;
    if (slot->first == NULL)
        um_topic_table_remove(&session->topics, slot);
    um_topic_reports_restart(session);
    leave_queue(session, delivery->receiver->queue);
    um_delivery_fini(delivery);
    um_nak_cutoff_on_receivers(session);
}

/* ---- datagrams ---- */

/* True if delivery may start with an arriving message: the controller waits for it, or a fetch may restart there. */
static bool can_begin(const um_delivery *delivery)
{
    return delivery->state == UM_DELIVERY_WAITING || um_delivery_fetch_is_active(delivery);
}

static void on_tsni(um_receiver_session *session, const um_lbmc_message *message, um_arrival *arrival)
{
    UM_COUNT(session->counters.tsnis_rcved, message->tsni_count);
    for (uint32_t i = 0; i < message->tsni_count; i++) {
        const uint8_t *record = message->tsni + UM_LBMC_TSNI_RECORD_BYTES * i;
        for (um_delivery *d = um_topic_table_slot(&session->topics, um_load_be32(record))->first; d != NULL;
             d = d->next_of_topic) {
            if (d->is_awaiting_interest)
                continue;
            arrival->has_earlier_losses = can_begin(d) && um_start_gate_is_closed(session, d, arrival->transport_sqn);
            bool was_starting = d->state == UM_DELIVERY_STARTING;
            um_delivery_on_tsni(d, um_load_be32(record + 4), arrival);
            session->starting_count += (uint32_t)(d->state == UM_DELIVERY_STARTING) - was_starting;
            if (d->gap_count > 0)
                session->due_ns[UM_TIMER_CONTROLLERS] = arrival->now_ns;
        }
    }
}

/* Only the newest report counts, because a lost one may be retransmitted after a later one. */
static void on_group_report(um_receiver_session *session, const um_lbmc_message *message, const um_arrival *arrival)
{
    um_group_report report;
    if (!um_group_report_decode(message, &report))
        return;
    if (session->has_group_report && um_serial_before(arrival->transport_sqn, session->group_report_sqn))
        return;
    session->has_group_report = true;
    session->group_report_sqn = arrival->transport_sqn;
    session->is_unlimited = report.is_unlimited;
    um_recovery_timing_on_group_report(&session->timing, report.receivers, report.round_trip_ns);
}

static void on_topic_message(um_receiver_session *session, um_topic_slot *slot, const um_lbmc_message *message,
                             um_arrival *arrival)
{
    for (um_delivery *d = slot->first; d != NULL; d = d->next_of_topic) {
        bool was_starting = d->state == UM_DELIVERY_STARTING;
        if (UM_UNLIKELY(d->is_awaiting_interest)) {
            UM_COUNT(session->counters.msgs_before_interest, 1);
            continue;
        }
        if (UM_UNLIKELY(can_begin(d)))
            arrival->has_earlier_losses = um_start_gate_is_closed(session, d, arrival->transport_sqn);
        um_delivery_on_message(d, message, arrival);
        session->starting_count += (uint32_t)(d->state == UM_DELIVERY_STARTING) - was_starting;
        if (UM_UNLIKELY(d->gap_count > 0))
            session->due_ns[UM_TIMER_CONTROLLERS] = arrival->now_ns;
    }
}

UM_DROP_COUNTERS_CHECK(um_receiver_transport_counters);
UM_TAG_COUNTERS_CHECK(um_receiver_transport_counters);

/* Appends UM_ROW_STALE_TAGS for every controller, at most once per STALE_TAGS_INTERVAL_NS. */
static void announce_stale_tags(um_receiver_session *session, int64_t now_ns)
{
    if (now_ns < session->stale_tags_due_ns)
        return;
    session->stale_tags_due_ns = now_ns + STALE_TAGS_INTERVAL_NS;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next) {
        if (d->state >= UM_DELIVERY_ENDING)
            continue;
        d->announcements_due |= UM_ANNOUNCE_STALE_TAGS;
        um_delivery_announce(d);
    }
}

void um_receiver_session_drop_unverified(um_receiver_session *session, enum um_tag_status status, int64_t now_ns)
{
    um_count_unverified(&session->counters.dgrams_dropped_tag_missing, status);
    if (status == UM_TAG_STALE)
        announce_stale_tags(session, now_ns);
}

void um_receiver_session_drop(um_receiver_session *session, enum um_dgram_status status)
{
    um_count_dropped(&session->counters.dgrams_dropped_size, &session->counters.dgrams_dropped_other, status);
}

/* Delivers the messages of an accepted datagram to their controllers in order (UM-7, UM-8). */
static void demultiplex(um_receiver_session *session, const uint8_t *body, uint32_t length, um_arrival *arrival)
{
    um_lbmc_message message;
    for (uint32_t at = 0, message_length; at < length; at += message_length) {
        enum um_dgram_status status = um_lbmc_decode(body + at, length - at, &message, &message_length);
        if (UM_UNLIKELY(status != UM_DGRAM_OK)) {
            um_receiver_session_drop(session, status);
            return;
        }
        if (UM_UNLIKELY(message.type == UM_LBMC_CONTROL)) {
            on_tsni(session, &message, arrival);
            on_group_report(session, &message, arrival);
            continue;
        }
        UM_COUNT(session->counters.lbm_msgs_rcved, 1);
        if (UM_UNLIKELY(message.flags & UM_MESSAGE_REQUEST))
            UM_COUNT(session->counters.lbm_reqs_rcved, 1);
        if (message.sent_ns != 0)
            um_latency_note(session, message.sent_ns, arrival->received_ns);
        um_topic_slot *slot = um_topic_table_slot_of_next(&session->topics, message.topic_index);
        if (slot->first == NULL)
            UM_COUNT(session->counters.lbm_msgs_no_topic_rcved, 1);
        else
            on_topic_message(session, slot, &message, arrival);
    }
}

void um_receiver_session_note_activity(um_receiver_session *session, int64_t now_ns)
{
    session->last_activity_ns = now_ns;
    if (UM_LIKELY(session->is_active))
        return;
    session->is_active = true;
    if (session->contacts != NULL)
        um_first_contact_answered(session->contacts, session->config.id.source.ip, now_ns);
    for (um_delivery *d = session->controllers; d != NULL; d = d->next)
        um_delivery_begin(d);
}

/* Moves the start of the session to sqn and forgets claims, as no data was received before. The trail is not before the
 * base either, because nothing before the base is awaited: after a forged first datagram with numbers far ahead and an
 * old trail, the source's own datagrams are strays. */
static void set_base(um_receiver_session *session, uint32_t sqn, int64_t now_ns)
{
    while (session->losses.count > 0)
        um_loss_map_remove(&session->losses, um_loss_map_first(&session->losses));
    session->claims = (um_receiver_session_claims){.last_data_ns = session->claims.last_data_ns};
    session->has_base = true;
    session->next_sqn = session->trail_sqn = session->mappings_sqn = sqn;
    um_other_losers_begin(&session->timing.others, sqn);
    session->due_ns[UM_TIMER_STATUS] = now_ns;
    session->status_quiet_ns = 0;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next)
        d->mapped_sqn = d->fetch.given_up_sqn = sqn;
}

void um_receiver_session_resume(um_receiver_session *session, uint32_t next_sqn, uint32_t rounds)
{
    if (session->has_base)
        return;
    set_base(session, next_sqn, session->created_ns);
    session->is_resumed = true;
    session->resume_rounds = rounds;
}

/* A jump longer than the loss map could not be recovered. It is accepted when a second datagram confirms it, so that
 * one forged or damaged datagram cannot derail the session. It also confirms a number claimed by a session message. */
static bool is_jump_confirmed(um_receiver_session *session, uint32_t sqn)
{
    uint32_t beyond = sqn - session->jump_sqn;
    bool near = session->has_jumped && beyond >= 1 && beyond <= JUMP_CONFIRMED_WITHIN;
    bool confirmed = near || um_loss_map_find(&session->losses, sqn) != NULL;
    session->has_jumped = !confirmed;
    session->jump_sqn = sqn;
    if (!confirmed)
        UM_COUNT(session->counters.dgrams_dropped_other, 1);
    return confirmed;
}

static bool is_long_jump(const um_receiver_session *session, uint32_t sqn)
{
    return um_serial_diff(sqn, session->next_sqn) > (int32_t)session->losses.capacity;
}

/* Keeps mapped_sqn of controllers near next_sqn: at half the number space, the first message of a topic would appear to
 * precede its mapping. Nothing that far back is recovered any more. */
static void keep_mappings_near(um_receiver_session *session, uint32_t next_sqn)
{
    if (next_sqn - session->mappings_sqn < MAPPED_WITHIN / 2)
        return;
    session->mappings_sqn = next_sqn;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next) {
        if (next_sqn - d->mapped_sqn > MAPPED_WITHIN)
            d->mapped_sqn = next_sqn - MAPPED_WITHIN;
    }
}

void um_receiver_session_end(um_receiver_session *session, int64_t now_ns)
{
    if (session->has_ended)
        return;
    session->has_ended = true;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next) {
        um_fetch_protocol_give_up(session, d, now_ns); /* the source is dead */
        um_delivery_end(d, now_ns);                    /* UM-105 */
    }
}

static void drop_losses(um_receiver_session *session, uint32_t first, uint32_t count)
{
    um_loss_map *losses = &session->losses;
    for (uint32_t i = losses->count; i-- > 0;) {
        uint32_t sqn = losses->entries[i].sqn;
        if (sqn - first >= count)
            continue;
        um_gaps_report_closed(session, sqn);
        um_loss_map_remove(losses, &losses->entries[i]);
    }
}

/* Source-side filtering (UX-27): the source did not send `count` datagrams from `first` on, because they held nothing
 * for this receiver. Missing datagrams before them are lost. */
static void pass_over(um_receiver_session *session, uint32_t first, uint32_t count, int64_t now_ns)
{
    uint32_t last = first + count - 1;
    int32_t ahead = um_serial_diff(first, session->next_sqn);
    if (count == 0 || count > PASSED_MAX || ahead > (int32_t)session->losses.capacity || ahead < -PASSED_BACK_MAX)
        return;
    if (session->losses.count > 0)
        drop_losses(session, first, count);
    if (!um_serial_before(last, session->next_sqn)) {
        if (ahead > 0)
            um_receiver_session_claims_add_gap(session, first - 1, now_ns);
        if (session->claims.has_any)
            um_receiver_session_claims_on_data(session, last, false, now_ns);
        UM_COUNT(session->counters.dgrams_passed_over, ahead > 0 ? count : last + 1 - session->next_sqn);
        session->next_sqn = last + 1;
        session->has_data = true; /* like data, it shows the position of the stream */
        session->claims.last_data_ns = now_ns;
        session->has_jumped = false;
    }
    if (session->starting_count > 0)
        um_start_gate_open(session, now_ns);
}

static void on_filter_report(um_receiver_session *session, const um_filter_report *report, int64_t now_ns)
{
    if (session->has_base && report->count > 0 && um_interest_is_report_valid(&session->interest, report)) {
        pass_over(session, report->first_sqn, report->count, now_ns);
        session->due_ns[UM_TIMER_STATUS] = INT64_MIN; /* the source may be waiting for this position */
    }
    um_interest_on_report(session, report, now_ns);
}

/* Counts a datagram older than anything that the source can still send. A single one is an old duplicate. Many in
 * succession mean that the source restarted under the same identity, or that the first datagram was forged: the session
 * ends and can be joined again. */
static void note_stray(um_receiver_session *session, int64_t now_ns)
{
    if (++session->stray_count == STRAYS_MAX)
        um_receiver_session_end(session, now_ns);
}

static void on_duplicate(um_receiver_session *session, const um_packet *packet, int64_t now_ns)
{
    UM_COUNT(session->counters.duplicate_data, 1);
    if (um_serial_before(packet->sqn, session->trail_sqn) && !(packet->flags & UM_LBTRM_FLAG_RETRANSMISSION))
        note_stray(session, now_ns);
}

/* The first data shows the position of the stream. If it is before the position from a session message, or far behind
 * it, the base moves. Returns false for a retransmission to another receiver and for data of an earlier session. */
static bool begin_with_data(um_receiver_session *session, const um_packet *packet, int64_t now_ns)
{
    bool fits = session->has_base && !um_serial_before(packet->sqn, session->next_sqn) &&
                (!is_long_jump(session, packet->sqn) || um_loss_map_find(&session->losses, packet->sqn) != NULL);
    if (!fits && packet->flags & UM_LBTRM_FLAG_RETRANSMISSION)
        return false;
    if (session->is_resumed && um_serial_before(packet->sqn, session->next_sqn)) {
        on_duplicate(session, packet, now_ns);
        return false;
    }
    if (!fits)
        set_base(session, packet->sqn, now_ns);
    else if (um_serial_before(session->trail_sqn, packet->trail))
        session->trail_sqn = packet->trail;
    session->has_data = true;
    return true;
}

static void on_data(um_receiver_session *session, const um_packet *packet, const uint8_t *data, uint32_t length,
                    um_arrival *arrival)
{
    um_receiver_transport_counters *counters = &session->counters;
    bool retransmission = packet->flags & UM_LBTRM_FLAG_RETRANSMISSION;
    UM_COUNT(counters->rxs_rcved, retransmission);
    if (UM_UNLIKELY(packet->passed > 0) && session->has_base && session->interest.has_been_in_force) {
        pass_over(session, packet->sqn - packet->passed, packet->passed, arrival->now_ns);
        session->bytes_since_status += (uint64_t)packet->passed * length; /* an estimate: flow control uses positions */
    }
    if (UM_UNLIKELY(!session->has_data) && !begin_with_data(session, packet, arrival->now_ns))
        return;
    int32_t ahead = um_serial_diff(packet->sqn, session->next_sqn);
    bool recovered = ahead < 0;
    if (UM_UNLIKELY(is_long_jump(session, packet->sqn))) {
        if (!is_jump_confirmed(session, packet->sqn))
            return;
        keep_mappings_near(session, packet->sqn);
    }
    /* The trail of an old datagram cannot be beyond next_sqn; that of a forged one far back seems to be. */
    bool believed = !recovered || !um_serial_before(session->next_sqn, packet->trail);
    if (um_serial_before(session->trail_sqn, packet->trail) && believed)
        session->trail_sqn = packet->trail;
    if (UM_UNLIKELY(recovered)) {
        um_loss *loss = um_loss_map_find(&session->losses, packet->sqn);
        if (loss == NULL) {
            um_recovery_timing_on_duplicate(&session->timing, packet->sqn, retransmission, arrival->now_ns);
            on_duplicate(session, packet, arrival->now_ns);
            return;
        }
        um_gaps_on_recovered(session, loss, retransmission, arrival->now_ns);
    } else {
        if (UM_UNLIKELY(ahead > 0))
            um_receiver_session_claims_add_gap(session, packet->sqn - 1, arrival->now_ns);
        if (UM_UNLIKELY(session->claims.has_any))
            um_receiver_session_claims_on_data(session, packet->sqn, retransmission, arrival->now_ns);
        session->next_sqn = packet->sqn + 1;
        session->claims.last_data_ns = arrival->now_ns;
    }
    session->has_jumped = false;
    session->stray_count = 0;
    UM_COUNT(counters->msgs_rcved, 1);
    UM_COUNT(counters->bytes_rcved, length);
    session->bytes_since_status += length;
    uint64_t messages_before = counters->lbm_msgs_rcved;
    um_reorder_begin_datagram(session->store, data, length);
    demultiplex(session, packet->body, packet->body_length, arrival);
    um_reorder_end_datagram(session->store);
    session->has_unreported |= counters->lbm_msgs_rcved != messages_before;
    if (UM_UNLIKELY(recovered && session->starting_count > 0))
        um_start_gate_open(session, arrival->now_ns);
}

/* UM-71, UM-87: a session message carries the highest sqn sent, so it reveals tail loss. As it can be forged, its trail
 * is ignored (data carries it, too), and its lead is only a claim. */
static void on_sm(um_receiver_session *session, const um_packet *packet, int64_t now_ns)
{
    UM_COUNT(session->counters.session_messages_rcved, 1);
    uint32_t end = packet->lead + 1;
    bool is_elsewhere = session->next_sqn - packet->trail > end - packet->trail; /* outside the window and not next */
    if (!session->has_base || (is_elsewhere && !session->has_data && !session->is_resumed))
        set_base(session, end, now_ns);
    bool is_stray = um_serial_before(packet->lead, session->trail_sqn - 1);
    if (is_stray || !um_receiver_session_claims_on_lead(session, packet->lead, now_ns))
        UM_COUNT(session->counters.dgrams_dropped_other, 1);
    else if (um_status_reports_has_news(session) && session->status_sqn != session->next_sqn)
        session->due_ns[UM_TIMER_STATUS] = now_ns; /* the source may be waiting for this position */
}

/* Handles the datagram that this piece completes. */
static void on_piece(um_receiver_session *session, const um_datagram_piece *piece, const um_rx *rx, int64_t now_ns)
{
    um_packet packet;
    um_datagram_assembly *assembly = &session->store->assembly;
    if (!um_datagram_assembly_add(assembly, session, piece))
        return;
    bool is_data = um_lbtrm_decode(assembly->memory, piece->total_bytes, &packet) == UM_DGRAM_OK &&
                   packet.type == UM_LBTRM_DATA && packet.session_id == session->config.id.session_id;
    if (!is_data) {
        UM_COUNT(session->counters.dgrams_dropped_other, 1);
        return;
    }
    UM_COUNT(session->counters.datagrams_rcved_in_pieces, 1);
    um_rx whole = *rx;
    whole.frames = NULL;
    um_receiver_session_on_packet(session, &packet, &whole, assembly->memory, piece->total_bytes, now_ns);
}

/* Handles what follows a session message: a path probe, or a piece of a datagram. A probe that claims more bytes than
 * it has is ignored. */
static void on_sm_body(um_receiver_session *session, const um_packet *packet, const um_rx *rx, uint32_t length,
                       int64_t now_ns)
{
    um_lbmc_message message;
    um_path_probe probe;
    um_datagram_piece piece;
    uint32_t message_bytes;
    if (um_lbmc_decode(packet->body, packet->body_length, &message, &message_bytes) != UM_DGRAM_OK)
        return;
    if (um_path_probe_decode(&message, &probe) && probe.bytes <= length + UM_TRAILER_BYTES)
        um_status_reports_on_probe(session, &probe, now_ns);
    else if (um_datagram_piece_decode(&message, message_bytes, packet->body, packet->body_length, &piece))
        on_piece(session, &piece, rx, now_ns);
}

/* Returns false if the session message has no repair report. Its lead is not claimed: it follows new data at once,
 * which may still be on its way if the path reorders. It answers no request either. */
static bool on_repair_report(um_receiver_session *session, const um_packet *packet, int64_t now_ns)
{
    um_lbmc_message message;
    um_repair_report report;
    uint32_t message_bytes;
    if (um_lbmc_decode(packet->body, packet->body_length, &message, &message_bytes) != UM_DGRAM_OK ||
        !um_repair_report_decode(&message, &report))
        return false;
    UM_COUNT(session->counters.session_messages_rcved, 1);
    um_lost_repairs_on_report(session, &report, now_ns);
    return true;
}

/* Drops data that this receiver has no space for (UX-26); its sqn stays lost. A retransmission would be as long, so the
 * sqn is not NAKed again. */
static void drop_too_long(um_receiver_session *session, const um_packet *packet, int64_t now_ns)
{
    UM_COUNT(session->counters.dgrams_dropped_too_long, 1);
    um_loss *loss = um_loss_map_find(&session->losses, packet->sqn);
    if (loss == NULL)
        return;
    bool is_claim = um_receiver_session_claims_has(session, packet->sqn);
    um_gaps_give_up(session, loss,
                    is_claim ? &session->counters.claims_given_up : &session->counters.unrecovered_too_long);
    if (session->starting_count > 0)
        um_start_gate_open(session, now_ns);
}

void um_receiver_session_on_packet(um_receiver_session *session, const um_packet *packet, const um_rx *rx,
                                   const uint8_t *data, uint32_t length, int64_t now_ns)
{
    if (UM_UNLIKELY(session->has_ended))
        return;
    um_arrival arrival = {.now_ns = now_ns,
                          .received_ns = rx->received_ns,
                          .transport_sqn = packet->sqn,
                          .datagram_bytes = length,
                          .frames = rx->frames,
                          .is_repeated = (packet->flags & UM_LBTRM_FLAG_RETRANSMISSION) != 0,
                          .is_stream = um_transport_is_stream(session->config.id.transport)};
    um_filter_report report;
    switch (packet->type) {
    case UM_LBTRM_DATA:
        um_receiver_session_note_activity(session, now_ns);
        if (UM_UNLIKELY(packet->flags & UM_LBTRM_FLAG_RETRANSMISSION) &&
            session->config.id.transport == UM_TRANSPORT_LBTRU && um_filter_report_decode(packet, &report))
            on_filter_report(session, &report, now_ns);
        else if (UM_LIKELY(length <= session->config.receive_max_bytes))
            on_data(session, packet, data, length, &arrival);
        else
            drop_too_long(session, packet, now_ns);
        break;
    case UM_LBTRM_SM:
        if (UM_UNLIKELY(packet->body_length > 0) && on_repair_report(session, packet, now_ns))
            break;
        um_status_reports_on_session_message(session, packet, now_ns);
        um_receiver_session_note_activity(session, now_ns);
        on_sm(session, packet, now_ns);
        if (UM_UNLIKELY(packet->body_length > 0))
            on_sm_body(session, packet, rx, length, now_ns);
        if (packet->flags & UM_LBTRU_FLAG_SYN)
            um_connection_on_syn(session, packet, now_ns);
        break;
    case UM_LBTRM_NCF:
        um_nak_timers_on_ncf(session, packet, now_ns);
        break;
    case UM_LBTRU_RST:
        um_connection_on_reset(session, now_ns);
        break;
    default: /* a NAK sent to the group concerns the source only */
        UM_COUNT(session->counters.dgrams_dropped_type, 1);
    }
}

void um_receiver_session_on_messages(um_receiver_session *session, const uint8_t *messages, uint32_t length,
                                     int64_t received_ns, int64_t now_ns)
{
    um_packet packet = {.type = UM_LBTRM_DATA,
                        .session_id = session->config.id.session_id,
                        .sqn = session->next_sqn,
                        .trail = session->next_sqn,
                        .body = messages,
                        .body_length = length};
    um_rx rx = {.data = messages, .length = length, .from = session->config.id.source, .received_ns = received_ns};
    um_receiver_session_on_packet(session, &packet, &rx, messages, length, now_ns);
}

/* ---- timers ---- */

static int64_t tick_activity(um_receiver_session *session, int64_t now_ns)
{
    int64_t timeout_ns = session->is_active || session->config.preactivity_timeout_ns == 0
                             ? session->config.activity_timeout_ns
                             : session->config.preactivity_timeout_ns;
    int64_t due_ns = session->last_activity_ns + timeout_ns;
    if (now_ns < due_ns)
        return due_ns;
    um_receiver_session_end(session, now_ns);
    return now_ns;
}

/* A source that answers no connection request is dead (UX-11). */
static int64_t tick_connection(um_receiver_session *session, int64_t now_ns)
{
    bool is_refused = false;
    int64_t due_ns = um_connection_tick(session, now_ns, &is_refused);
    if (!is_refused)
        return due_ns;
    um_receiver_session_end(session, now_ns);
    return now_ns;
}

static int64_t tick_controllers(um_receiver_session *session, int64_t now_ns)
{
    if (now_ns < session->due_ns[UM_TIMER_CONTROLLERS])
        return session->due_ns[UM_TIMER_CONTROLLERS];
    int64_t next_ns = UM_NEVER_NS;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next) {
        int64_t reported_ns = um_fetch_protocol_tick(session, d, now_ns), due_ns = um_delivery_tick(d, now_ns);
        due_ns = um_earliest_ns(reported_ns, due_ns);
        next_ns = um_earliest_ns(due_ns, next_ns);
    }
    session->due_ns[UM_TIMER_CONTROLLERS] = next_ns;
    return next_ns;
}

static int64_t tick_naks(um_receiver_session *session, int64_t now_ns)
{
    bool gave_up = false;
    int64_t due_ns = um_nak_timers_tick(session, now_ns, &gave_up);
    if (gave_up && session->starting_count > 0)
        um_start_gate_open(session, now_ns);
    return due_ns;
}

int64_t um_receiver_session_tick(um_receiver_session *session, int64_t now_ns)
{
    typedef int64_t tick(um_receiver_session *, int64_t);
    /* Run in this order. Each acts if it is due and returns its next deadline. */
    static tick *const ticks[] = {
        um_receiver_session_claims_tick, tick_naks,        tick_controllers,
        um_status_reports_tick,          tick_activity,    tick_connection,
        um_connection_acknowledge_tick,  um_interest_tick,
    };
    if (session->has_ended)
        return tick_controllers(session, now_ns);
    keep_mappings_near(session, session->next_sqn);
    int64_t next_ns = UM_NEVER_NS;
#pragma GCC unroll 8 /* direct calls, some of them inline */
    for (size_t i = 0; i < sizeof ticks / sizeof ticks[0]; i++)
        next_ns = um_earliest_ns(ticks[i](session, now_ns), next_ns);
    session->counters.loss_map_entries = session->losses.count;
    return next_ns;
}

void um_receiver_session_snapshot(um_receiver_session *session)
{
    um_receiver_transport_counters *counters = &session->counters;
    const um_recovery_timing *timing = &session->timing;
    counters->group_receivers = timing->receivers;
    counters->round_trip = (uint64_t)timing->round_trip_ns;
    counters->round_trip_variance = (uint64_t)timing->variance_ns;
    counters->round_trip_samples = timing->sample_count;
    counters->reordering = (uint64_t)um_recovery_timing_lateness_ns(timing);
    counters->nak_initial_backoff = (uint64_t)um_recovery_timing_initial_ns(timing);
    counters->nak_backoff = (uint64_t)um_recovery_timing_backoff_ns(timing);
    counters->nak_suppress = (uint64_t)um_recovery_timing_suppress_ns(timing);
    counters->timers_adaptive = timing->adaptive;
    counters->naks_off = !session->config.send_naks;
    counters->nak_cutoff = session->nak_cutoff;
}
