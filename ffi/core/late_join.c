#include "core/late_join.h"

#include "core/delivery_rows.h"
#include "core/loss_declaration.h"
#include "core/order_map.h"
#include "core/retention.h"

enum {
    REQUESTS_PER_MESSAGE = 512,
    OPTION_REQUEST = 21,
    OPTION_RANGE = 30,
    BURST_MIN = 1024,    /* a longer run that is lost is one event */
    RANGE_MAX = 1 << 26, /* sqns a source can retain */
};

void um_late_join_begin(um_delivery *delivery, uint32_t caching_proximity)
{
    delivery->late_join =
        (um_late_join){.is_active = true, .awaits_range = true, .caching_proximity = caching_proximity};
}

void um_late_join_fetch_to(um_delivery *delivery, uint32_t end)
{
    um_late_join *join = &delivery->late_join;
    if (!join->has_target || um_serial_before(join->target, end))
        join->target = end;
    join->has_target = true;
}

/* Nothing lacks any more. */
static void end_if_complete(um_delivery *delivery)
{
    um_late_join *join = &delivery->late_join;
    if (join->is_active && !join->awaits_range && join->seen_live &&
        !um_serial_before(delivery->next_sqn, join->target))
        join->is_active = false;
}

/* ---- live messages ---- */

/* The first of the present: what lies between the past and it is fetched. */
static void meet_live(um_delivery *delivery, uint32_t end, const um_arrival *arrival)
{
    delivery->late_join.seen_live = true;
    um_late_join_fetch_to(delivery, end);
    if (delivery->state != UM_DELIVERY_RUNNING)
        return;
    delivery->highest_transport_sqn = arrival->transport_sqn;
    if (um_serial_before(delivery->highest_sqn, end - 1))
        delivery->highest_sqn = end - 1;
}

bool um_late_join_leaves_out(um_delivery *delivery, uint32_t sqn, bool is_message, const um_arrival *arrival)
{
    um_late_join *join = &delivery->late_join;
    if (join->awaits_range && !is_message)
        return true;
    if (!join->seen_live)
        meet_live(delivery, is_message ? sqn : sqn + 1, arrival);
    end_if_complete(delivery);
    if (!is_message || !join->is_active || delivery->state == UM_DELIVERY_WAITING)
        return false;
    bool starts = delivery->state == UM_DELIVERY_STARTING;
    int32_t ahead = um_serial_diff(sqn, starts ? delivery->lowest_held : delivery->next_sqn);
    if (ahead < 0 && starts) /* fetched, for the target lies behind it */
        return true;
    if (ahead < (int64_t)join->caching_proximity)
        return false;
    um_late_join_fetch_to(delivery, sqn + 1);
    if (delivery->state == UM_DELIVERY_RUNNING && um_serial_before(delivery->highest_sqn, sqn)) {
        delivery->highest_sqn = sqn;
        delivery->highest_transport_sqn = arrival->transport_sqn;
    }
    UM_COUNT(delivery->receiver->counters.late_join_not_cached, 1);
    return true;
}

/* ---- the past ---- */

/* From the first sqn wanted on; what was held while the range was awaited stays held. */
static void start(um_receiver_session *session, um_delivery *delivery, uint32_t low, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    join->awaits_range = false;
    if (delivery->state == UM_DELIVERY_STARTING) {
        uint32_t held_from = delivery->lowest_held;
        session->starting_count--;
        join->is_holding = true;
        um_delivery_start(delivery, now_ns);
        join->is_holding = false;
        delivery->next_sqn = um_serial_before(low, held_from) ? low : held_from;
        if (join->target - held_from <= INT32_MAX && um_serial_before(delivery->highest_sqn, join->target - 1))
            delivery->highest_sqn = join->target - 1;
    } else {
        delivery->state = UM_DELIVERY_RUNNING;
        delivery->next_sqn = low;
        delivery->highest_sqn = join->target - 1;
    }
    join->requested = delivery->next_sqn;
}

/* Where an earlier session of this identity ended, if the range from `low` on can follow it; else low. */
static uint32_t take_resume(um_delivery *delivery, uint32_t low)
{
    uint32_t resume_sqn = delivery->resume_sqn;
    bool resumes = delivery->has_resume && delivery->late_join.target - resume_sqn < RANGE_MAX;
    delivery->has_resume = false;
    return resumes ? resume_sqn : low;
}

/* The first message of [next_sqn, end) that is held, or end. */
static uint32_t first_held(const um_delivery *delivery, uint32_t end)
{
    const um_reorder_buffer *store = delivery->receiver->store;
    for (uint32_t i = 0; i < store->entries_begun && delivery->held_count > 0; i++) {
        const um_reorder_entry *entry = &store->entries[i];
        if (entry->owner == delivery->id && entry->state != UM_REORDER_EXPECTED &&
            entry->sqn - delivery->next_sqn < end - delivery->next_sqn)
            end = entry->sqn;
    }
    return end;
}

/* What lacks of [next_sqn, last] is not to be had: a long run is one event at once (UX-7), the rest a gap in front of
 * the others whose time is up. */
static void lose_to(um_delivery *delivery, uint32_t last, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    uint32_t held = first_held(delivery, last + 1), run = held - delivery->next_sqn;
    UM_COUNT(delivery->receiver->counters.late_join_lost, run);
    if (run > BURST_MIN &&
        um_delivery_append_event(delivery, UM_ROW_BURST_LOSS, delivery->next_sqn, held - 1, now_ns)) {
        UM_COUNT(delivery->receiver->counters.burst_loss_events, 1);
        UM_COUNT(delivery->receiver->context_counters->fragments_unrecoverably_lost, run);
        delivery->next_sqn = held;
    }
    if (um_serial_before(last, delivery->next_sqn))
        return;
    join->lost_to = last + 1;
    join->has_lost = true;
    bool is_full = delivery->gap_count == UM_DELIVERY_GAPS_MAX;
    um_gap lost = {delivery->next_sqn, is_full ? um_order_map_gap(delivery, 0)->last : last, INT64_MIN / 2};
    if (!is_full) {
        delivery->gap_first = (delivery->gap_first + UM_DELIVERY_GAPS_MAX - 1) % UM_DELIVERY_GAPS_MAX;
        delivery->gap_count++;
    }
    *um_order_map_gap(delivery, 0) = lost;
}

static void on_range(um_receiver_session *session, um_delivery *delivery, uint32_t low, uint32_t high, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    if (um_serial_before(high + 1, low) || high + 1 - low > RANGE_MAX) {
        UM_COUNT(delivery->receiver->counters.late_join_refused, 1);
        return;
    }
    if (join->awaits_range) {
        if (!join->has_target)
            um_late_join_fetch_to(delivery, high + 1);
        uint32_t first = um_serial_before(join->target, low) ? join->target : low;
        start(session, delivery, take_resume(delivery, first), now_ns);
    }
    if (um_serial_before(delivery->next_sqn, low) && um_serial_before(delivery->next_sqn, join->target)) {
        lose_to(delivery, (um_serial_before(low, join->target) ? low : join->target) - 1, now_ns);
    }
    um_loss_drain(delivery, now_ns, true);
    end_if_complete(delivery);
}

enum taken { TAKEN, QUEUE_FULL };

static enum taken deliver(um_delivery *delivery, const um_lbmc_message *message, int64_t now_ns)
{
    um_row row = {.flags = message->flags,
                  .sequence_number = message->sqn,
                  .first_sequence_number = message->flags & UM_MESSAGE_FRAGMENT ? message->first_sqn : message->sqn,
                  .fragment_offset = message->flags & UM_MESSAGE_FRAGMENT ? message->offset : 0,
                  .message_length = message->flags & UM_MESSAGE_FRAGMENT ? message->total : message->payload_length,
                  .source = delivery->source,
                  .received_ns = delivery->late_join.received_ns,
                  .sent_ns = message->sent_ns};
    (void)now_ns;
    if (!um_delivery_append_payload(delivery, &row, message->payload, message->payload_length))
        return QUEUE_FULL;
    delivery->next_sqn++;
    return TAKEN;
}

/* A recovered message: in order straight into the queue, a fragment or a later one into the order map. */
static enum taken on_recovered(um_delivery *delivery, um_lbmc_message *message, const uint8_t *data, uint32_t length,
                               int64_t now_ns)
{
    um_receiver_counters *counters = &delivery->receiver->counters;
    uint32_t requested = um_serial_before(delivery->late_join.requested, delivery->next_sqn)
                             ? 0
                             : delivery->late_join.requested - delivery->next_sqn;
    if (delivery->late_join.awaits_range || message->topic_index != delivery->topic_index ||
        message->sqn - delivery->next_sqn >= requested || !um_serial_before(message->sqn, delivery->late_join.target) ||
        !um_order_map_is_gap(delivery, message->sqn)) {
        UM_COUNT(counters->late_join_refused, 1); /* not requested, twice, or here by now */
        return TAKEN;
    }
    message->flags |= UM_MESSAGE_RETRANSMIT;
    bool whole =
        !(message->flags & UM_MESSAGE_FRAGMENT) || delivery->receiver->config.ordered_delivery == UM_ORDERED_FRAGMENTS;
    if (message->sqn == delivery->next_sqn && whole &&
        message->payload_length <= delivery->receiver->queue->message_max_bytes) {
        if (deliver(delivery, message, now_ns) == QUEUE_FULL)
            return QUEUE_FULL;
    } else {
        um_arrival arrival = {.now_ns = now_ns, .received_ns = delivery->late_join.received_ns};
        um_reorder_begin_datagram(delivery->receiver->store, data, length);
        bool is_held = um_delivery_hold_recovered(delivery, message, &arrival);
        um_reorder_end_datagram(delivery->receiver->store);
        if (!is_held) /* no room: it is requested again */
            return TAKEN;
        if (um_serial_before(delivery->highest_sqn, message->sqn))
            delivery->highest_sqn = message->sqn;
        um_loss_drain(delivery, now_ns, true);
    }
    UM_COUNT(counters->late_join_messages, 1);
    return TAKEN;
}

static int64_t receive(um_receiver_session *session, um_delivery *delivery, const uint8_t *data, uint32_t length,
                       int64_t now_ns)
{
    um_lbmc_message message;
    uint32_t at = 0, message_length;
    while (at < length && !delivery->starved && delivery->late_join.is_active) {
        uint32_t left = length - at;
        const uint8_t *from = data + at;
        if (left < UM_LBMC_CONTROL_BYTES || left < um_load_be16(from + 2))
            break;
        if (um_lbmc_observe(from, left, left, &message, &message_length) != UM_DGRAM_OK)
            return -EBADMSG;
        if (message.type == UM_LBMC_CONTROL && from[1] == OPTION_RANGE && message_length >= UM_RECOVERY_RANGE_BYTES)
            on_range(session, delivery, um_load_be32(from + 8), um_load_be32(from + 12), now_ns);
        else if (message.type != UM_LBMC_RECOVERED)
            return -EBADMSG;
        else if (on_recovered(delivery, &message, from, message_length, now_ns) == QUEUE_FULL)
            break;
        at += message_length;
    }
    return at;
}

int64_t um_late_join_receive(um_receiver_session *session, um_delivery *delivery, const uint8_t *data, uint32_t length,
                             int64_t now_ns)
{
    int64_t used = receive(session, delivery, data, length, now_ns);
    if (delivery->state == UM_DELIVERY_RUNNING && !delivery->starved)
        um_loss_drain(delivery, now_ns, true);
    end_if_complete(delivery);
    if (!delivery->late_join.is_active && delivery->state == UM_DELIVERY_RUNNING)
        um_loss_drain(delivery, now_ns, true);
    return used;
}

static void write_request(uint8_t *option, const um_delivery *delivery, uint32_t sqn, bool last)
{
    memset(option, 0, UM_RECOVERY_REQUEST_BYTES);
    option[0] = last ? UM_LBMC_OPTION_NONE : OPTION_REQUEST;
    option[1] = UM_RECOVERY_REQUEST_BYTES;
    um_store_be32(option + 4, delivery->id);
    um_store_be32(option + 12, delivery->topic_index);
    um_store_be32(option + 16, sqn);
}

uint32_t um_late_join_request(um_delivery *delivery, uint32_t outstanding, uint8_t *out, uint32_t capacity)
{
    um_late_join *join = &delivery->late_join;
    uint32_t written = 0;
    if (!join->is_active || join->awaits_range || delivery->state != UM_DELIVERY_RUNNING)
        return 0;
    if (um_serial_before(join->requested, delivery->next_sqn))
        join->requested = delivery->next_sqn;
    /* Requests of one size, so that an answer is not asked for one by one. */
    if (join->requested - delivery->next_sqn > outstanding / 2 && um_serial_before(join->requested, join->target - 1))
        return 0;
    for (;;) {
        uint8_t *message = out + written;
        uint32_t room = (capacity - written) / UM_RECOVERY_REQUEST_BYTES, count = 0;
        if (room < 2)
            break;
        for (; count < REQUESTS_PER_MESSAGE && count + 1 < room && um_serial_before(join->requested, join->target) &&
               join->requested - delivery->next_sqn < outstanding;
             join->requested++)
            if (um_order_map_is_gap(delivery, join->requested))
                write_request(message + UM_LBMC_CONTROL_BYTES + UM_RECOVERY_REQUEST_BYTES * count++, delivery,
                              join->requested, false);
        if (count == 0)
            break;
        uint32_t length = UM_LBMC_CONTROL_BYTES + count * UM_RECOVERY_REQUEST_BYTES;
        message[0] = UM_LBMC_CONTROL;
        message[1] = OPTION_REQUEST;
        um_store_be16(message + 2, (uint16_t)length);
        message[length - UM_RECOVERY_REQUEST_BYTES] = UM_LBMC_OPTION_NONE;
        written += length;
    }
    return written;
}

void um_late_join_give_up(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    if (!join->is_active)
        return;
    if (join->awaits_range && delivery->state == UM_DELIVERY_STARTING)
        start(session, delivery, take_resume(delivery, delivery->lowest_held), now_ns);
    if (delivery->state == UM_DELIVERY_RUNNING && um_serial_before(delivery->next_sqn, join->target))
        lose_to(delivery, join->target - 1, now_ns);
    join->awaits_range = join->is_active = false;
    if (delivery->state == UM_DELIVERY_RUNNING)
        um_loss_drain(delivery, now_ns, true);
    /* Without a live message only the peer said where the present is: it is where the next live message is. */
    if (!join->seen_live && delivery->held_count == 0)
        delivery->state = UM_DELIVERY_WAITING;
}
