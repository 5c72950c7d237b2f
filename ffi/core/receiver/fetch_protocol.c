#include "core/receiver/fetch_protocol.h"

#include "core/delivery/delivery_controller.h"
#include "core/delivery/delivery_fetch.h"
#include "core/delivery/delivery_rows.h"
#include "core/delivery/fetch_live.h"
#include "core/delivery/loss_declaration.h"
#include "core/delivery/order_map.h"
#include "core/wire/range_request.h"

enum {
    REQUESTS_PER_MESSAGE = 512,
    RANGE_MAX = 1 << 26, /* sqns a source can retain */
};

int64_t um_fetch_protocol_tick(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    if (fetch->state == UM_DELIVERY_FETCH_IDLE || !fetch->has_reported)
        return UM_NEVER_NS;
    if (now_ns < fetch->reported_until_ns)
        return fetch->reported_until_ns;
    fetch->given_up_sqn = session->next_sqn;
    um_fetch_live_lose_reported(delivery, fetch->reported_end, now_ns);
    return UM_NEVER_NS;
}

/* ---- the past ---- */

/* Starts to fetch at `low`. Live messages held while the range was awaited stay held. */
static void start(um_receiver_session *session, um_delivery *delivery, uint32_t low, int64_t now_ns)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    um_delivery_begin(delivery);
    fetch->state = UM_DELIVERY_FETCH_STARTING;
    delivery->has_resume = false;
    if (delivery->state == UM_DELIVERY_STARTING) {
        uint32_t held_from = delivery->lowest_held;
        session->starting_count--;
        um_delivery_start(delivery, um_serial_before(low, held_from) ? low : held_from, now_ns);
        if (um_serial_before(low, held_from))
            um_order_map_note_front_gap(delivery, low, held_from - 1, now_ns);
        if (fetch->target - held_from <= INT32_MAX)
            um_delivery_fetch_note_missing(delivery, fetch->target - 1, now_ns);
    } else {
        delivery->state = UM_DELIVERY_RUNNING;
        delivery->next_sqn = low;
        delivery->highest_sqn = low - 1;
        um_delivery_fetch_note_missing(delivery, fetch->target - 1, now_ns);
    }
    fetch->requested = fetch->passed_to = delivery->next_sqn;
    fetch->state = UM_DELIVERY_FETCH_RUNNING;
}

/* Returns where a late join starts: at the first sqn that the source retains, or where its last session ended. */
static uint32_t beginning(const um_delivery_fetch *fetch, uint32_t low)
{
    if (fetch->kind == UM_DELIVERY_FETCH_RESUMED)
        return fetch->resume_sqn;
    return um_serial_before(fetch->target, low) ? fetch->target : low;
}

/* Returns false for an impossible range: longer than a source can retain, or ending before the end of its last session.
 */
static bool is_possible(const um_delivery_fetch *fetch, uint32_t low, uint32_t high)
{
    if (um_serial_before(high + 1, low) || high + 1 - low > RANGE_MAX)
        return false;
    return fetch->kind != UM_DELIVERY_FETCH_RESUMED || !um_serial_before(high + 1, fetch->resume_sqn);
}

static void on_range(um_receiver_session *session, um_delivery *delivery, uint32_t low, uint32_t high, int64_t now_ns)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    if (!is_possible(fetch, low, high)) {
        UM_COUNT(delivery->receiver->counters.late_join_refused, 1);
        return;
    }
    /* The first range starts with the requested messages, so messages before it and behind a live one may exist. */
    bool is_first = fetch->state == UM_DELIVERY_FETCH_AWAITS_RANGE && fetch->kind == UM_DELIVERY_FETCH_LATE_JOIN;
    if (fetch->state == UM_DELIVERY_FETCH_AWAITS_RANGE) {
        if (!fetch->has_target)
            um_delivery_fetch_to(delivery, high + 1);
        start(session, delivery, beginning(fetch, low), now_ns);
    }
    uint32_t lost_to = um_serial_before(low, fetch->target) ? low : fetch->target;
    if (fetch->has_seen_live && fetch->has_shown && um_serial_before(fetch->shown_end, lost_to))
        lost_to = fetch->shown_end; /* later messages have not been sent yet */
    if (!is_first && um_serial_before(delivery->next_sqn, lost_to))
        um_fetch_live_lose_to(delivery, lost_to, now_ns);
    um_loss_drain(delivery, now_ns, true);
    um_delivery_fetch_end_if_complete(delivery);
}

enum taken { TAKEN, QUEUE_FULL };

static enum taken deliver(um_delivery *delivery, const um_lbmc_message *message)
{
    um_row row = {.flags = message->flags,
                  .sequence_number = message->sqn,
                  .first_sequence_number = message->flags & UM_MESSAGE_FRAGMENT ? message->first_sqn : message->sqn,
                  .fragment_offset = message->flags & UM_MESSAGE_FRAGMENT ? message->offset : 0,
                  .message_length = message->flags & UM_MESSAGE_FRAGMENT ? message->total : message->payload_length,
                  .source = delivery->source,
                  .received_ns = delivery->fetch.received_ns,
                  .sent_ns = message->sent_ns};
    if (!um_delivery_append_any(delivery, &row, message->payload, message->payload_length, message->request,
                                message->properties_bytes))
        return QUEUE_FULL;
    delivery->next_sqn++;
    return TAKEN;
}

static void count_recovered(um_delivery *delivery, uint32_t sqn)
{
    um_delivery_fetch_note_shown(&delivery->fetch, sqn + 1);
    um_receiver_counters *counters = &delivery->receiver->counters;
    delivery->fetch.taken_since++;
    if (delivery->fetch.kind != UM_DELIVERY_FETCH_LATE_JOIN)
        UM_COUNT(counters->otr_messages, 1);
    else
        UM_COUNT(counters->late_join_messages, 1);
}

/* True if a recovered message was requested and is still missing. */
static bool is_wanted(um_delivery *delivery, const um_lbmc_message *message)
{
    const um_delivery_fetch *fetch = &delivery->fetch;
    uint32_t requested =
        um_serial_before(fetch->requested, delivery->next_sqn) ? 0 : fetch->requested - delivery->next_sqn;
    return fetch->state != UM_DELIVERY_FETCH_AWAITS_RANGE && message->topic_index == delivery->topic_index &&
           message->sqn - delivery->next_sqn < requested && um_serial_before(message->sqn, fetch->target) &&
           um_order_map_is_gap(delivery, message->sqn);
}

/* Delivers a recovered message if it is next and whole; otherwise puts it into the order map. */
static enum taken on_recovered(um_delivery *delivery, um_lbmc_message *recovered, const uint8_t *data, uint32_t length,
                               int64_t now_ns)
{
    const um_delivery_fetch *fetch = &delivery->fetch;
    const um_lbmc_message *message = recovered;
    um_lbmc_message changed;
    if (!is_wanted(delivery, message)) {
        UM_COUNT(delivery->receiver->counters.late_join_refused, 1); /* not requested, or received already */
        return TAKEN;
    }
    recovered->flags |= fetch->kind != UM_DELIVERY_FETCH_LATE_JOIN ? UM_MESSAGE_OTR : UM_MESSAGE_RETRANSMIT;
    if (UM_UNLIKELY(delivery->receiver->config.is_hot_failover))
        message = um_delivery_with_options(recovered, &changed);
    bool whole =
        !(message->flags & UM_MESSAGE_FRAGMENT) || delivery->receiver->config.ordered_delivery == UM_ORDERED_FRAGMENTS;
    if (message->sqn == delivery->next_sqn && whole && um_order_map_find(delivery, message->sqn) == NULL &&
        message->payload_length <= delivery->receiver->queue->message_max_bytes) {
        if (deliver(delivery, message) == QUEUE_FULL)
            return QUEUE_FULL;
    } else {
        um_arrival arrival = {.now_ns = now_ns, .received_ns = fetch->received_ns};
        um_reorder_begin_datagram(delivery->receiver->store, data, length);
        bool is_held = um_delivery_hold_recovered(delivery, message, &arrival);
        um_reorder_end_datagram(delivery->receiver->store);
        if (!is_held) /* no space: it will be requested again */
            return TAKEN;
        um_loss_drain(delivery, now_ns, true);
    }
    count_recovered(delivery, message->sqn);
    return TAKEN;
}

static int64_t receive(um_receiver_session *session, um_delivery *delivery, const uint8_t *data, uint32_t length,
                       int64_t now_ns)
{
    um_lbmc_message message;
    uint32_t at = 0, message_length, epoch = delivery->fetch.epoch;
    if (delivery->announcements_due && !um_delivery_announce(delivery))
        return 0;
    while (at < length && !delivery->is_starved && delivery->fetch.state != UM_DELIVERY_FETCH_IDLE &&
           delivery->fetch.epoch == epoch) {
        uint32_t left = length - at;
        const uint8_t *from = data + at;
        if (left < UM_LBMC_CONTROL_BYTES || left < um_load_be16(from + 2))
            break;
        if (um_lbmc_observe(from, left, left, &message, &message_length) != UM_DGRAM_OK)
            return -EBADMSG;
        if (message.type == UM_LBMC_CONTROL && from[1] == UM_LBMC_OPTION_RANGE &&
            message_length >= UM_RECOVERY_RANGE_BYTES)
            on_range(session, delivery, um_load_be32(from + 8), um_load_be32(from + 12), now_ns);
        else if (message.type != UM_LBMC_RECOVERED)
            return -EBADMSG;
        else if (on_recovered(delivery, &message, from, message_length, now_ns) == QUEUE_FULL)
            break;
        at += message_length;
    }
    return at;
}

bool um_fetch_protocol_is_left_to_transport(um_delivery *delivery)
{
    const um_gap *gap = delivery->fetch.has_lost ? um_order_map_oldest_gap(delivery) : NULL;
    return gap != NULL && um_delivery_is_past_lost(delivery, gap->first);
}

/* True if no lost datagram that may still be recovered can carry the next missing message. */
static bool is_transport_done(const um_receiver_session *session, um_delivery *delivery)
{
    const um_gap *gap = um_order_map_oldest_gap(delivery);
    return gap == NULL || session->losses.count == 0 ||
           !um_serial_before(um_loss_map_lowest(&session->losses), gap->transport_sqn);
}

int64_t um_fetch_protocol_receive(um_receiver_session *session, um_delivery *delivery, const uint8_t *data,
                                  uint32_t length, int64_t now_ns)
{
    int64_t used = receive(session, delivery, data, length, now_ns);
    if (um_fetch_protocol_is_left_to_transport(delivery))
        delivery->fetch.is_transport_done = is_transport_done(session, delivery);
    if (delivery->state == UM_DELIVERY_RUNNING && !delivery->is_starved)
        um_loss_drain(delivery, now_ns, true);
    um_delivery_fetch_end_if_complete(delivery);
    if (delivery->fetch.state == UM_DELIVERY_FETCH_IDLE && delivery->state == UM_DELIVERY_RUNNING)
        um_loss_drain(delivery, now_ns, true);
    return used;
}

static void write_request(uint8_t *option, const um_delivery *delivery, uint32_t request_index, uint32_t sqn)
{
    memset(option, 0, UM_RECOVERY_REQUEST_BYTES);
    option[0] = UM_LBMC_OPTION_MESSAGE_REQUEST;
    option[1] = UM_RECOVERY_REQUEST_BYTES;
    um_store_be32(option + 4, request_index);
    um_store_be32(option + 12, delivery->topic_index);
    um_store_be32(option + 16, sqn);
}

/* Returns the first sqn to request: behind those that cannot be fetched, and behind held fragments that wait for the
 * rest of their message, which may have more fragments than may be outstanding. */
static uint32_t request_base(um_delivery *delivery)
{
    const um_gap *gap = um_order_map_oldest_gap(delivery);
    uint32_t lost_to = delivery->fetch.lost_to, first = gap == NULL ? delivery->next_sqn : gap->first;
    return um_delivery_is_past_lost(delivery, delivery->next_sqn) && um_serial_before(first, lost_to) ? lost_to : first;
}

static bool is_requesting(const um_delivery *delivery)
{
    return delivery->fetch.state != UM_DELIVERY_FETCH_IDLE && delivery->fetch.state != UM_DELIVERY_FETCH_AWAITS_RANGE &&
           delivery->state == UM_DELIVERY_RUNNING;
}

bool um_fetch_protocol_has_requests(um_delivery *delivery, uint32_t outstanding)
{
    const um_delivery_fetch *fetch = &delivery->fetch;
    if (!is_requesting(delivery))
        return false;
    uint32_t base = request_base(delivery);
    uint32_t requested = um_serial_before(fetch->requested, base) ? base : fetch->requested;
    if (!um_serial_before(requested, fetch->target) || requested - base >= outstanding)
        return false;
    /* Wait for enough sqns, so that answers do not trigger requests one by one. */
    return requested - base <= outstanding / 2 || !um_serial_before(requested, fetch->target - 1);
}

uint32_t um_fetch_protocol_request(um_delivery *delivery, uint32_t request_index, uint32_t outstanding, uint8_t *out,
                                   uint32_t capacity)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    if (!is_requesting(delivery))
        return 0;
    uint32_t written = 0, base = request_base(delivery);
    if (um_serial_before(fetch->requested, base))
        fetch->requested = base;
    if (!um_fetch_protocol_has_requests(delivery, outstanding))
        return 0;
    for (;;) {
        uint8_t *message = out + written;
        uint32_t space = (capacity - written) / UM_RECOVERY_REQUEST_BYTES, count = 0;
        if (space < 2)
            break;
        for (; count < REQUESTS_PER_MESSAGE && count + 1 < space && um_serial_before(fetch->requested, fetch->target) &&
               fetch->requested - base < outstanding;
             fetch->requested++)
            if (um_order_map_is_gap(delivery, fetch->requested))
                write_request(message + UM_LBMC_CONTROL_BYTES + UM_RECOVERY_REQUEST_BYTES * count++, delivery,
                              request_index, fetch->requested);
        if (count == 0)
            break;
        uint32_t length = UM_LBMC_CONTROL_BYTES + count * UM_RECOVERY_REQUEST_BYTES;
        message[0] = UM_LBMC_CONTROL;
        message[1] = UM_LBMC_OPTION_MESSAGE_REQUEST;
        um_store_be16(message + 2, (uint16_t)length);
        message[length - UM_RECOVERY_REQUEST_BYTES] = UM_LBMC_OPTION_NONE;
        written += length;
    }
    return written;
}

/* ---- giving up ---- */

/* Starts without a range, because none arrived. */
static void start_without_range(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    if (delivery->state == UM_DELIVERY_STARTING) {
        start(session, delivery, fetch->kind == UM_DELIVERY_FETCH_RESUMED ? fetch->resume_sqn : delivery->lowest_held,
              now_ns);
    } else if (fetch->kind == UM_DELIVERY_FETCH_RESUMED) {
        if (!fetch->has_target)
            um_delivery_fetch_to(delivery, fetch->resume_sqn);
        start(session, delivery, fetch->resume_sqn, now_ns);
    }
}

/* Messages that only the source reported are not declared lost yet: otherwise its next messages would be passed, too,
 * and those that the transport still recovers would arrive after their loss event. If they exist, the transport shows
 * them in time. */
static void forget_reported(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    uint32_t end = fetch->has_shown && um_serial_before(delivery->next_sqn, fetch->shown_end) ? fetch->shown_end
                                                                                              : delivery->next_sqn;
    if (!um_serial_before(end, fetch->target))
        return;
    um_order_map_cut(delivery, end);
    fetch->has_reported = !fetch->has_seen_live;
    fetch->reported_end = fetch->target;
    fetch->reported_until_ns = now_ns + delivery->give_up_ns;
    session->due_ns[UM_TIMER_CONTROLLERS] = now_ns;
    fetch->target = end;
}

void um_fetch_protocol_give_up(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    if (fetch->state == UM_DELIVERY_FETCH_IDLE)
        return;
    if (fetch->state == UM_DELIVERY_FETCH_GIVEN_UP) {
        if (session->has_ended) /* the transport will not show them any more */
            um_fetch_live_lose_reported(delivery, fetch->reported_end, now_ns);
        return;
    }
    if (fetch->state == UM_DELIVERY_FETCH_AWAITS_RANGE)
        start_without_range(session, delivery, now_ns);
    fetch->state = UM_DELIVERY_FETCH_GIVEN_UP;
    fetch->given_up_sqn = session->next_sqn;
    if (delivery->state == UM_DELIVERY_WAITING) {
        fetch->state = UM_DELIVERY_FETCH_IDLE;
        return;
    }
    fetch->has_seen_live |= fetch->kind == UM_DELIVERY_FETCH_RESUMED; /* the position of the stream is known */
    if (um_delivery_fetch_is_ahead_of_stream(delivery)) {
        um_order_map_clear(delivery); /* these messages do not exist */
        um_delivery_fetch_begin_with_live(delivery);
        return;
    }
    if ((fetch->has_seen_live || !session->has_ended) && delivery->state == UM_DELIVERY_RUNNING)
        forget_reported(session, delivery, now_ns);
    if (delivery->state == UM_DELIVERY_RUNNING && um_serial_before(delivery->next_sqn, fetch->target))
        um_fetch_live_lose_to(delivery, fetch->target, now_ns);
    um_delivery_fetch_end_if_complete(delivery);
}

bool um_fetch_protocol_pass_over(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_delivery_fetch *fetch = &delivery->fetch;
    const um_gap *gap = fetch->state == UM_DELIVERY_FETCH_AWAITS_RANGE ? NULL : um_order_map_oldest_gap(delivery);
    uint32_t end = gap == NULL || !um_serial_before(gap->first, fetch->requested)
                       ? fetch->requested
                       : um_order_map_first_held(delivery, gap->first, fetch->requested);
    if (fetch->taken_since == 0 || end == fetch->requested) {
        um_fetch_protocol_give_up(session, delivery, now_ns);
        return false;
    }
    um_fetch_live_lose_to(delivery, end, now_ns);
    um_delivery_fetch_end_if_complete(delivery);
    return true;
}
