/* One file, because what is fetched, what is live and what is given up depend on every state of the same fetch. */
#include "core/receiver/late_join.h"

#include "core/delivery/delivery_rows.h"
#include "core/delivery/loss_declaration.h"
#include "core/delivery/order_map.h"
#include "core/wire/range_request.h"

enum {
    REQUESTS_PER_MESSAGE = 512,
    RANGE_MAX = 1 << 26, /* sqns a source can retain */
};

void um_late_join_begin(um_delivery *delivery, uint32_t caching_proximity)
{
    delivery->late_join = (um_late_join){.is_active = true,
                                         .awaits_range = true,
                                         .caching_proximity = caching_proximity,
                                         .epoch = delivery->late_join.epoch + 1};
    if (!delivery->has_resume)
        return;
    delivery->late_join.is_resumed = true;
    delivery->late_join.resume_sqn = delivery->resume_sqn;
    delivery->highest_sqn = delivery->resume_sqn - 1;
}

void um_late_join_fetch_to(um_delivery *delivery, uint32_t end)
{
    um_late_join *join = &delivery->late_join;
    if (!join->has_target || um_serial_before(join->target, end))
        join->target = end;
    join->has_target = true;
}

/* Only the peer said where the present is, and it did not have what it said. The present is where the next live message
 * is: behind what was passed, which shows a gap, or anywhere else, where delivery begins anew. */
static void begin_with_live(um_delivery *delivery)
{
    delivery->late_join.is_active = delivery->late_join.has_promised = false;
    delivery->state = UM_DELIVERY_WAITING;
    delivery->has_resume = true;
    delivery->resume_sqn = delivery->next_sqn;
    delivery->mapped_sqn = delivery->late_join.given_up_sqn; /* what was sent before says nothing */
}

/* Whether only the peer's ranges said that the stream reaches to where delivery is. */
static bool is_unproved(const um_delivery *delivery)
{
    const um_late_join *join = &delivery->late_join;
    return delivery->next_sqn == join->passed_to &&
           (!join->has_shown || um_serial_before(join->shown_end, delivery->next_sqn));
}

/* Whether delivery is ahead of everything that exists: the peer named a range that does not. */
static bool is_ahead_of_stream(const um_delivery *delivery)
{
    const um_late_join *join = &delivery->late_join;
    return join->seen_live && join->has_shown && is_unproved(delivery);
}

/* Whether something lacks before the target. A message that is held may still lack a fragment behind it. */
static bool lacks_something(um_delivery *delivery)
{
    const um_gap *gap =
        um_serial_before(delivery->next_sqn, delivery->late_join.target) ? um_order_map_oldest_gap(delivery) : NULL;
    return gap != NULL && um_serial_before(gap->first, delivery->late_join.target);
}

void um_late_join_end_if_complete(um_delivery *delivery)
{
    um_late_join *join = &delivery->late_join;
    if (!join->is_active || join->awaits_range || join->is_holding || lacks_something(delivery))
        return;
    if (is_ahead_of_stream(delivery) && !join->is_given_up)
        return; /* unless what comes meanwhile shows that the range was true, it is given up */
    if (join->seen_live || um_serial_before(join->target, delivery->next_sqn)) { /* delivered directly */
        join->is_active = false;
    } else if (join->is_given_up && join->has_lost && delivery->held_count == 0 && is_unproved(delivery)) {
        begin_with_live(delivery);
    }
}

/* ---- live messages ---- */

/* Sqns up to `sqn` exist and are to be fetched. */
static void note_lacking(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    if (!um_serial_before(delivery->highest_sqn, sqn))
        return;
    um_order_map_note_gap(delivery, delivery->highest_sqn + 1, sqn, now_ns);
    delivery->highest_sqn = sqn;
}

/* The first of the present: what lies between the past and it is fetched, while that goes on. */
static void meet_live(um_delivery *delivery, uint32_t end, const um_arrival *arrival)
{
    delivery->late_join.seen_live = true;
    if (!delivery->late_join.is_given_up)
        um_late_join_fetch_to(delivery, end);
    if (delivery->state != UM_DELIVERY_RUNNING)
        return;
    delivery->highest_transport_sqn = arrival->transport_sqn;
    note_lacking(delivery, end - 1, arrival->now_ns);
}

/* Whether a live message has its place in the order map. Off-transport recovery takes as many as the map may hold, and
 * what it would have to fetch; where messages are delivered as they come, the map holds no payload of them. Its caching
 * threshold only begins it (C12): what was dropped at 10000 would have to be retained until it is fetched. */
static bool has_place(const um_delivery *delivery, uint32_t sqn)
{
    const um_late_join *join = &delivery->late_join;
    bool is_bounded = join->caching_proximity != 0 && delivery->held_count >= join->caching_proximity;
    if (join->is_otr)
        return delivery->receiver->config.ordered_delivery != UM_ORDERED_SEQUENCE ||
               (um_reorder_is_roomy(delivery->receiver->store) && (!is_bounded || um_serial_before(sqn, join->target)));
    bool starts = delivery->state == UM_DELIVERY_STARTING;
    int32_t ahead = um_serial_diff(sqn, starts ? delivery->lowest_held : delivery->next_sqn);
    if (ahead < 0 && starts) /* fetched, for the target lies behind it */
        return false;
    return ahead < (int64_t)join->caching_proximity;
}

/* What lacks before `end` is not to be had. */
static void lose_to(um_delivery *delivery, uint32_t end, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    if (!join->has_lost || um_serial_before(join->lost_to, end))
        join->lost_to = end;
    join->has_lost = true;
    join->passed_to = end;
    join->taken_since = 0;
    um_loss_drain(delivery, now_ns, true);
}

/* What the source promised and did not send is lost, now that it is known to exist before `end`. */
static void lose_promised(um_delivery *delivery, uint32_t end, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    if (!join->has_promised || delivery->state != UM_DELIVERY_RUNNING)
        return;
    join->has_promised = false;
    if (um_serial_before(join->promised_end, end))
        end = join->promised_end;
    if (!um_serial_before(delivery->next_sqn, end))
        return;
    note_lacking(delivery, end - 1, now_ns);
    um_late_join_fetch_to(delivery, end);
    lose_to(delivery, end, now_ns);
}

int64_t um_late_join_tick(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    if (!join->is_active || !join->has_promised)
        return UM_NEVER_NS;
    if (now_ns < join->promised_until_ns)
        return join->promised_until_ns;
    join->given_up_sqn = session->next_sqn;
    lose_promised(delivery, join->promised_end, now_ns);
    return UM_NEVER_NS;
}

static void note_shown(um_late_join *join, uint32_t end)
{
    if (!join->has_shown || um_serial_before(join->shown_end, end))
        join->shown_end = end;
    join->has_shown = true;
}

bool um_late_join_leaves_out(um_delivery *delivery, uint32_t sqn, bool is_message, const um_arrival *arrival)
{
    um_late_join *join = &delivery->late_join;
    bool was_unproved = is_unproved(delivery);
    note_shown(join, sqn + 1);
    if (join->awaits_range && !is_message)
        return true;
    um_late_join_end_if_complete(delivery);
    if (!join->is_active)
        return false;
    if (!join->seen_live && join->is_given_up && um_serial_before(sqn, delivery->next_sqn)) {
        bool is_other_present = is_message || sqn + 1 != delivery->next_sqn;
        if (!is_other_present || !was_unproved || um_serial_before(arrival->transport_sqn, join->given_up_sqn))
            return true; /* it was delivered, or sent before that */
        begin_with_live(delivery);
        return false;
    }
    if (!join->seen_live) {
        meet_live(delivery, is_message ? sqn : sqn + 1, arrival);
        lose_promised(delivery, join->shown_end, arrival->now_ns);
    }
    um_late_join_end_if_complete(delivery);
    if (!is_message || !join->is_active || join->is_given_up || delivery->state == UM_DELIVERY_WAITING ||
        has_place(delivery, sqn))
        return false;
    if (delivery->state == UM_DELIVERY_STARTING && um_serial_before(sqn, delivery->lowest_held))
        return true;
    um_late_join_fetch_to(delivery, sqn + 1);
    if (delivery->state == UM_DELIVERY_RUNNING && um_serial_before(delivery->highest_sqn, sqn)) {
        delivery->highest_transport_sqn = arrival->transport_sqn;
        note_lacking(delivery, sqn, arrival->now_ns);
    }
    UM_COUNT(delivery->receiver->counters.late_join_not_cached, 1);
    return true;
}

/* ---- the past ---- */

/* From the first sqn wanted on; what was held while the range was awaited stays held. */
static void start(um_receiver_session *session, um_delivery *delivery, uint32_t low, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    um_delivery_begin(delivery);
    join->awaits_range = false;
    delivery->has_resume = false;
    if (delivery->state == UM_DELIVERY_STARTING) {
        uint32_t held_from = delivery->lowest_held;
        session->starting_count--;
        join->is_holding = true;
        um_delivery_start(delivery, um_serial_before(low, held_from) ? low : held_from, now_ns);
        join->is_holding = false;
        if (um_serial_before(low, held_from))
            um_order_map_note_front_gap(delivery, low, held_from - 1, now_ns);
        if (join->target - held_from <= INT32_MAX)
            note_lacking(delivery, join->target - 1, now_ns);
    } else {
        delivery->state = UM_DELIVERY_RUNNING;
        delivery->next_sqn = low;
        delivery->highest_sqn = low - 1;
        note_lacking(delivery, join->target - 1, now_ns);
    }
    join->requested = join->passed_to = delivery->next_sqn;
}

/* Where a late join begins: at the first sqn the source has, or where its last session ended. */
static uint32_t beginning(const um_late_join *join, uint32_t low)
{
    if (join->is_resumed)
        return join->resume_sqn;
    return um_serial_before(join->target, low) ? join->target : low;
}

/* False for a range that cannot be: longer than a source can retain, or one that ends before what the source had sent
 * when its last session ended. */
static bool is_possible(const um_late_join *join, uint32_t low, uint32_t high)
{
    if (um_serial_before(high + 1, low) || high + 1 - low > RANGE_MAX)
        return false;
    return !join->is_resumed || !um_serial_before(high + 1, join->resume_sqn);
}

static void on_range(um_receiver_session *session, um_delivery *delivery, uint32_t low, uint32_t high, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    if (!is_possible(join, low, high)) {
        UM_COUNT(delivery->receiver->counters.late_join_refused, 1);
        return;
    }
    /* The first range begins with what is wanted, so what lies before it and behind a live message may be had. */
    bool is_of_wish = join->awaits_range && !join->is_resumed;
    if (join->awaits_range) {
        if (!join->has_target)
            um_late_join_fetch_to(delivery, high + 1);
        start(session, delivery, beginning(join, low), now_ns);
    }
    uint32_t lost_to = um_serial_before(low, join->target) ? low : join->target;
    if (join->seen_live && join->has_shown && um_serial_before(join->shown_end, lost_to))
        lost_to = join->shown_end; /* what follows is yet to come */
    if (!is_of_wish && um_serial_before(delivery->next_sqn, lost_to))
        lose_to(delivery, lost_to, now_ns);
    um_loss_drain(delivery, now_ns, true);
    um_late_join_end_if_complete(delivery);
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
                  .received_ns = delivery->late_join.received_ns,
                  .sent_ns = message->sent_ns};
    if (!um_delivery_append_any(delivery, &row, message->payload, message->payload_length, message->request,
                                message->properties_bytes))
        return QUEUE_FULL;
    delivery->next_sqn++;
    return TAKEN;
}

static void count_recovered(um_delivery *delivery, uint32_t sqn)
{
    note_shown(&delivery->late_join, sqn + 1);
    um_receiver_counters *counters = &delivery->receiver->counters;
    delivery->late_join.taken_since++;
    if (delivery->late_join.is_otr || delivery->late_join.is_resumed)
        UM_COUNT(counters->otr_messages, 1);
    else
        UM_COUNT(counters->late_join_messages, 1);
}

/* Whether a recovered message was requested, and still lacks. */
static bool is_wanted(um_delivery *delivery, const um_lbmc_message *message)
{
    const um_late_join *join = &delivery->late_join;
    uint32_t requested =
        um_serial_before(join->requested, delivery->next_sqn) ? 0 : join->requested - delivery->next_sqn;
    return !join->awaits_range && message->topic_index == delivery->topic_index &&
           message->sqn - delivery->next_sqn < requested && um_serial_before(message->sqn, join->target) &&
           um_order_map_is_gap(delivery, message->sqn);
}

/* A recovered message: in order straight into the queue, a fragment or a later one into the order map. */
static enum taken on_recovered(um_delivery *delivery, um_lbmc_message *recovered, const uint8_t *data, uint32_t length,
                               int64_t now_ns)
{
    const um_late_join *join = &delivery->late_join;
    const um_lbmc_message *message = recovered;
    um_lbmc_message changed;
    if (!is_wanted(delivery, message)) {
        UM_COUNT(delivery->receiver->counters.late_join_refused, 1); /* not requested, twice, or here by now */
        return TAKEN;
    }
    recovered->flags |= join->is_otr || join->is_resumed ? UM_MESSAGE_OTR : UM_MESSAGE_RETRANSMIT;
    if (UM_UNLIKELY(delivery->receiver->config.is_hot_failover))
        message = um_delivery_with_options(recovered, &changed);
    bool whole =
        !(message->flags & UM_MESSAGE_FRAGMENT) || delivery->receiver->config.ordered_delivery == UM_ORDERED_FRAGMENTS;
    if (message->sqn == delivery->next_sqn && whole && um_order_map_find(delivery, message->sqn) == NULL &&
        message->payload_length <= delivery->receiver->queue->message_max_bytes) {
        if (deliver(delivery, message) == QUEUE_FULL)
            return QUEUE_FULL;
    } else {
        um_arrival arrival = {.now_ns = now_ns, .received_ns = join->received_ns};
        um_reorder_begin_datagram(delivery->receiver->store, data, length);
        bool is_held = um_delivery_hold_recovered(delivery, message, &arrival);
        um_reorder_end_datagram(delivery->receiver->store);
        if (!is_held) /* no space: it is requested again */
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
    uint32_t at = 0, message_length, epoch = delivery->late_join.epoch;
    if (delivery->announcements_due && !um_delivery_announce(delivery))
        return 0;
    while (at < length && !delivery->starved && delivery->late_join.is_active && delivery->late_join.epoch == epoch) {
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

bool um_late_join_is_left_to_transport(um_delivery *delivery)
{
    const um_gap *gap = delivery->late_join.has_lost ? um_order_map_oldest_gap(delivery) : NULL;
    return gap != NULL && um_delivery_is_past_lost(delivery, gap->first);
}

/* Whether no datagram is lost, and may be recovered, that can carry what lacks next. */
static bool is_transport_done(const um_receiver_session *session, um_delivery *delivery)
{
    const um_gap *gap = um_order_map_oldest_gap(delivery);
    return gap == NULL || session->losses.count == 0 ||
           !um_serial_before(um_loss_map_lowest(&session->losses), gap->transport_sqn);
}

int64_t um_late_join_receive(um_receiver_session *session, um_delivery *delivery, const uint8_t *data, uint32_t length,
                             int64_t now_ns)
{
    int64_t used = receive(session, delivery, data, length, now_ns);
    if (um_late_join_is_left_to_transport(delivery))
        delivery->late_join.is_transport_done = is_transport_done(session, delivery);
    if (delivery->state == UM_DELIVERY_RUNNING && !delivery->starved)
        um_loss_drain(delivery, now_ns, true);
    um_late_join_end_if_complete(delivery);
    if (!delivery->late_join.is_active && delivery->state == UM_DELIVERY_RUNNING)
        um_loss_drain(delivery, now_ns, true);
    return used;
}

static void write_request(uint8_t *option, const um_delivery *delivery, uint32_t sqn, bool last)
{
    memset(option, 0, UM_RECOVERY_REQUEST_BYTES);
    option[0] = last ? UM_LBMC_OPTION_NONE : UM_LBMC_OPTION_MESSAGE_REQUEST;
    option[1] = UM_RECOVERY_REQUEST_BYTES;
    um_store_be32(option + 4, delivery->id);
    um_store_be32(option + 12, delivery->topic_index);
    um_store_be32(option + 16, sqn);
}

/* The first sqn that is worth a request: behind what is not to be had, and behind what is here and waits for the rest
 * of its message, which may have more fragments than may be outstanding. */
static uint32_t request_base(um_delivery *delivery)
{
    const um_gap *gap = um_order_map_oldest_gap(delivery);
    uint32_t lost_to = delivery->late_join.lost_to, first = gap == NULL ? delivery->next_sqn : gap->first;
    return um_delivery_is_past_lost(delivery, delivery->next_sqn) && um_serial_before(first, lost_to) ? lost_to : first;
}

uint32_t um_late_join_request(um_delivery *delivery, uint32_t outstanding, uint8_t *out, uint32_t capacity)
{
    um_late_join *join = &delivery->late_join;
    uint32_t written = 0, base = request_base(delivery);
    if (!join->is_active || join->awaits_range || delivery->state != UM_DELIVERY_RUNNING)
        return 0;
    if (um_serial_before(join->requested, base))
        join->requested = base;
    /* Requests of one size, so that an answer is not asked for one by one. */
    if (join->requested - base > outstanding / 2 && um_serial_before(join->requested, join->target - 1))
        return 0;
    for (;;) {
        uint8_t *message = out + written;
        uint32_t space = (capacity - written) / UM_RECOVERY_REQUEST_BYTES, count = 0;
        if (space < 2)
            break;
        for (; count < REQUESTS_PER_MESSAGE && count + 1 < space && um_serial_before(join->requested, join->target) &&
               join->requested - base < outstanding;
             join->requested++)
            if (um_order_map_is_gap(delivery, join->requested))
                write_request(message + UM_LBMC_CONTROL_BYTES + UM_RECOVERY_REQUEST_BYTES * count++, delivery,
                              join->requested, false);
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

/* No range came. */
static void start_without_range(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    if (delivery->state == UM_DELIVERY_STARTING) {
        start(session, delivery, join->is_resumed ? join->resume_sqn : delivery->lowest_held, now_ns);
    } else if (join->is_resumed) {
        if (!join->has_target)
            um_late_join_fetch_to(delivery, join->resume_sqn);
        start(session, delivery, join->resume_sqn, now_ns);
    }
    join->awaits_range = false;
}

/* What only the peer said to exist is not lost: were it passed over, the source's next messages would be, too, and what
 * the transport still recovers would come after its loss event. If it does exist, the transport
 * shows it in time. */
static void forget_promised(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    uint32_t end =
        join->has_shown && um_serial_before(delivery->next_sqn, join->shown_end) ? join->shown_end : delivery->next_sqn;
    if (!um_serial_before(end, join->target))
        return;
    um_order_map_cut(delivery, end);
    join->has_promised = !join->seen_live;
    join->promised_end = join->target;
    join->promised_until_ns = now_ns + delivery->give_up_ns;
    session->tick_controllers_ns = now_ns;
    join->target = end;
}

void um_late_join_give_up(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    if (!join->is_active)
        return;
    if (join->is_given_up) {
        if (session->ended) /* nothing will show it any more */
            lose_promised(delivery, join->promised_end, now_ns);
        return;
    }
    if (join->awaits_range)
        start_without_range(session, delivery, now_ns);
    join->is_given_up = true;
    join->given_up_sqn = session->next_sqn;
    if (delivery->state == UM_DELIVERY_WAITING) {
        join->is_active = false;
        return;
    }
    join->seen_live |= join->is_resumed; /* the stream is where it was left */
    if (is_ahead_of_stream(delivery)) {
        um_order_map_clear(delivery); /* of what does not exist */
        begin_with_live(delivery);
        return;
    }
    if ((join->seen_live || !session->ended) && delivery->state == UM_DELIVERY_RUNNING)
        forget_promised(session, delivery, now_ns);
    if (delivery->state == UM_DELIVERY_RUNNING && um_serial_before(delivery->next_sqn, join->target))
        lose_to(delivery, join->target, now_ns);
    um_late_join_end_if_complete(delivery);
}

bool um_late_join_pass_over(um_receiver_session *session, um_delivery *delivery, int64_t now_ns)
{
    um_late_join *join = &delivery->late_join;
    const um_gap *gap = join->awaits_range ? NULL : um_order_map_oldest_gap(delivery);
    uint32_t end = gap == NULL || !um_serial_before(gap->first, join->requested)
                       ? join->requested
                       : um_order_map_first_held(delivery, gap->first, join->requested);
    if (join->taken_since == 0 || end == join->requested) {
        um_late_join_give_up(session, delivery, now_ns);
        return false;
    }
    lose_to(delivery, end, now_ns);
    um_late_join_end_if_complete(delivery);
    return true;
}
