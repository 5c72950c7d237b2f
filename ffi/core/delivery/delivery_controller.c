/* One file, because the handling of a message depends on all states of a controller, from its beginning to its end. */
#include "core/delivery/delivery_controller.h"

#include "core/delivery/delivery_fetch.h"
#include "core/delivery/delivery_rows.h"
#include "core/delivery/fetch_live.h"
#include "core/delivery/loss_declaration.h"
#include "core/delivery/off_transport.h"
#include "core/delivery/order_map.h"
#include "core/delivery/reassembly.h"
#include "core/delivery/slow_reader.h"

enum {
    STREAM_BURST_MAX = 1024, /* a longer gap of a TCP stream is one event: it cannot be recovered, and after an outage
                                it may be very long */
    WITH_MORE = UM_MESSAGE_REQUEST | UM_MESSAGE_PROPERTIES, /* the message needs more than a row */
    SPAN_MAX = 1 << 30,                                     /* sqns distinguishable from next_sqn on, with a margin */
    GIVEN_UP_MAX = 1 << 16,                                 /* sqns before the end of a fetch that was given up */
    GAP_CHECK_NS = 10000000, /* interval of checks on a gap that is due and could not be given up */
};

void um_delivery_init(um_delivery *delivery, um_receiver *receiver, uint32_t id, uint32_t source, uint32_t topic_index,
                      int64_t give_up_ns)
{
    memset(delivery, 0, sizeof *delivery);
    delivery->receiver = receiver;
    delivery->id = id;
    delivery->source = source;
    delivery->topic_index = topic_index;
    delivery->give_up_ns = give_up_ns;
    delivery->loss_check_ns = UM_NEVER_NS;
    receiver->controller_count++;
    receiver->counters.delivery_controllers = receiver->controller_count;
}

/* ---- arrivals ---- */

/* A topic has no more fragments than its transport's datagrams can carry. The source did not send a sequence number
 * beyond that, and accepting it would give up everything before it. A TCP connection proves its peer, and its datagrams
 * do not count the messages that the source filtered. */
static bool is_plausible(const um_delivery *delivery, uint32_t ahead, const um_arrival *arrival)
{
    uint64_t datagrams = (uint64_t)(arrival->transport_sqn - delivery->highest_transport_sqn) + 1;
    return arrival->is_stream || ahead <= datagrams * UM_LBMC_PER_DATAGRAM_MAX;
}

/* The same for a sqn that has arrived; counts one that is refused. */
static bool is_accepted(const um_delivery *delivery, uint32_t ahead, const um_arrival *arrival)
{
    bool is_accepted = is_plausible(delivery, ahead, arrival);
    UM_COUNT(delivery->receiver->counters.malformed_fragments, !is_accepted);
    return is_accepted;
}

/* Records that sqn exists. Returns false if it cannot be accepted now, or is implausible. */
static bool note_exists(um_delivery *delivery, uint32_t sqn, bool received, const um_arrival *arrival)
{
    int64_t now_ns = arrival->now_ns;
    int32_t ahead = um_serial_diff(sqn, delivery->highest_sqn);
    if (ahead <= 0 && ahead != INT32_MIN)
        return true;
    if (!is_accepted(delivery, (uint32_t)ahead, arrival))
        return false;
    bool is_recoverable = um_delivery_fetch_is_active(delivery) || um_otr_is_offered(delivery);
    uint32_t burst_max = delivery->receiver->config.burst_loss_max;
    if (arrival->is_stream && burst_max > STREAM_BURST_MAX)
        burst_max = STREAM_BURST_MAX;
    bool too_long = (!is_recoverable && (uint32_t)ahead > burst_max) || sqn - delivery->next_sqn > SPAN_MAX;
    if (too_long && !um_loss_declare_burst(delivery, sqn, now_ns))
        return false;
    uint32_t first = delivery->highest_sqn + 1;
    delivery->highest_transport_sqn = arrival->transport_sqn;
    if (!received)
        um_order_map_add_gap(delivery, first, sqn, now_ns);
    else if (first != sqn)
        um_order_map_add_gap(delivery, first, sqn - 1, now_ns);
    delivery->highest_sqn = sqn;
    return true;
}

static void start_at(um_delivery *delivery, uint32_t sqn)
{
    delivery->state = UM_DELIVERY_RUNNING;
    delivery->next_sqn = sqn;
}

static bool is_too_long(const um_delivery *delivery, const um_lbmc_message *message)
{
    return message->flags & UM_MESSAGE_FRAGMENT &&
           delivery->receiver->config.ordered_delivery != UM_ORDERED_FRAGMENTS &&
           message->total > delivery->receiver->queue->message_max_bytes;
}

/* Puts a fragment or an early message into the order map; `newest`: it has no entry yet. Returns false if there is no
 * space. */
static bool hold_message(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival, bool newest)
{
    um_reorder_entry *entry =
        newest ? um_order_map_add(delivery, message->sqn) : um_order_map_find_or_add(delivery, message->sqn);
    if (entry == NULL)
        return false;
    if (is_too_long(delivery, message)) { /* it must not fill the reorder buffer */
        entry->state = UM_REORDER_REFUSED;
        UM_COUNT(delivery->receiver->counters.messages_too_long, message->sqn == message->first_sqn);
    } else if (!um_reorder_attach(delivery->receiver->store, entry, message->payload, message->payload_length)) {
        if (entry->assembled_bytes == 0)
            um_order_map_remove(delivery, entry);
        return false;
    }
    bool fragment = message->flags & UM_MESSAGE_FRAGMENT;
    entry->flags = message->flags;
    entry->request_before = message->flags & UM_MESSAGE_REQUEST ? (uint8_t)(message->payload - message->request) : 0;
    entry->first_sqn = fragment ? message->first_sqn : message->sqn;
    entry->fragment_offset = fragment ? message->offset : 0;
    entry->total = fragment ? message->total : message->payload_length;
    entry->properties_bytes = message->flags & UM_MESSAGE_PROPERTIES ? message->properties_bytes : 0;
    entry->received_ns = arrival->received_ns;
    entry->held_ns = arrival->now_ns;
    entry->sent_ns = message->sent_ns;
    if (!fragment || delivery->state == UM_DELIVERY_STARTING || um_reassembly_count(delivery, entry))
        return true;
    um_order_map_remove(delivery, um_order_map_find(delivery, message->sqn));
    return false;
}

bool um_delivery_hold_recovered(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival)
{
    return hold_message(delivery, message, arrival, false);
}

/* If the reorder buffer is full, the message is fetched later if a fetch runs. Otherwise the oldest gap is given up
 * once to make space; if that is not enough, the message is lost and leaves a gap. */
static bool hold_or_make_space(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival,
                               bool newest)
{
    if (hold_message(delivery, message, arrival, newest))
        return true;
    UM_COUNT(delivery->receiver->context_counters->hold_store_full, 1);
    const um_gap *gap = um_order_map_oldest_gap(delivery);
    if (gap != NULL && um_otr_is_due(delivery, gap, true, arrival->now_ns))
        um_otr_begin(delivery);
    if (um_delivery_fetch_is_running(delivery)) {
        um_delivery_fetch_to(delivery, message->sqn + 1);
        return false;
    }
    if (gap == NULL || !um_loss_give_up_gap(delivery, gap, arrival->now_ns) ||
        !um_loss_drain(delivery, arrival->now_ns, true))
        return false;
    return !um_serial_before(message->sqn, delivery->next_sqn) && hold_message(delivery, message, arrival, false);
}

/* Arrival order: delivers the message that fragment `sqn` has completed; only its sqns are remembered (UM-56). */
static void deliver_on_arrival(um_delivery *delivery, uint32_t sqn)
{
    um_reorder_entry *entry = um_order_map_find(delivery, sqn);
    if (entry == NULL || entry->state != UM_REORDER_PAYLOAD ||
        (delivery->announcements_due && !um_delivery_announce(delivery)))
        return;
    uint32_t first_sqn = sqn, last_sqn = sqn;
    if (entry->flags & UM_MESSAGE_FRAGMENT && delivery->receiver->config.ordered_delivery == UM_ORDERED_ARRIVAL) {
        um_reorder_entry *first = um_order_map_find(delivery, entry->first_sqn);
        first_sqn = entry->first_sqn;
        if (first == NULL || um_reassembly_deliver(delivery, first, &last_sqn) != UM_ASSEMBLY_DELIVERED)
            return;
    } else if (!um_reassembly_append_entry(delivery, entry)) {
        return;
    }
    for (uint32_t seen_sqn = first_sqn; seen_sqn != last_sqn + 1; seen_sqn++) {
        um_reorder_entry *seen = um_order_map_find(delivery, seen_sqn);
        um_reorder_detach(delivery->receiver->store, seen);
        seen->state = UM_REORDER_SEEN;
    }
}

/* Records that sqn exists, without holding the message. */
static void drop_for_slow_reader(um_delivery *delivery, uint32_t sqn, const um_arrival *arrival)
{
    um_slow_reader_cut(delivery);
    int32_t ahead = um_serial_diff(sqn, delivery->highest_sqn);
    if (ahead <= 0 || sqn - delivery->next_sqn > SPAN_MAX || !is_accepted(delivery, (uint32_t)ahead, arrival))
        return;
    delivery->highest_sqn = sqn;
    delivery->highest_transport_sqn = arrival->transport_sqn;
}

/* Returns true if sqn, of a message or a TSNI, is dropped because the reader is slow. Once the queue is open again, the
 * cut ends before sqn is noted: sqn is not among those dropped, and a gap that it shows would be listed twice. */
static bool is_left_to_slow_reader(um_delivery *delivery, uint32_t sqn, bool is_message, const um_arrival *arrival)
{
    if (UM_UNLIKELY(delivery->is_cut_loose))
        um_loss_drain(delivery, arrival->now_ns, true);
    if (UM_LIKELY(!um_slow_reader_drops(delivery) && !(is_message && um_slow_reader_fills_the_buffer(delivery))))
        return false;
    drop_for_slow_reader(delivery, sqn, arrival);
    return true;
}

static bool is_duplicate(um_delivery *delivery, uint32_t sqn)
{
    if (delivery->state == UM_DELIVERY_RUNNING && um_serial_before(sqn, delivery->next_sqn))
        return true;
    um_reorder_entry *entry = um_order_map_find(delivery, sqn);
    return entry != NULL && entry->state != UM_REORDER_EXPECTED;
}

/* Delivers a whole message in order, with nothing held, straight from the datagram into the queue. Requests, which are
 * rare, and messages with properties take the path through the order map, so that other messages need no check. */
static inline bool deliver_directly(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival)
{
    bool whole = !(message->flags & (UM_MESSAGE_FRAGMENT | WITH_MORE)) ||
                 (!(message->flags & WITH_MORE) && delivery->receiver->config.ordered_delivery == UM_ORDERED_FRAGMENTS);
    if (delivery->state != UM_DELIVERY_RUNNING || message->sqn != delivery->next_sqn || delivery->held_count != 0 ||
        !whole || delivery->is_starved || message->payload_length > delivery->receiver->queue->message_max_bytes)
        return false;
    bool fragment = message->flags & UM_MESSAGE_FRAGMENT;
    um_row row = {.flags = message->flags,
                  .sequence_number = message->sqn,
                  .first_sequence_number = fragment ? message->first_sqn : message->sqn,
                  .fragment_offset = fragment ? message->offset : 0,
                  .message_length = fragment ? message->total : message->payload_length,
                  .source = delivery->source,
                  .received_ns = arrival->received_ns,
                  .sent_ns = message->sent_ns};
    bool in_frame = um_delivery_can_pin(message, arrival) && !delivery->receiver->config.is_hot_failover &&
                    delivery->receiver->queue->absorb == NULL &&
                    um_delivery_append_in_frame(delivery, &row, message, arrival);
    if (!in_frame && !um_delivery_append_payload(delivery, &row, message->payload, message->payload_length))
        return false;
    delivery->next_sqn++;
    if (um_serial_before(delivery->highest_sqn, message->sqn)) {
        delivery->highest_sqn = message->sqn;
        delivery->highest_transport_sqn = arrival->transport_sqn;
    } else if (delivery->gap_count > 0) {
        um_loss_drain(delivery, arrival->now_ns, true);
    }
    return true;
}

/* True for a message recovered from before the controller was mapped. Starting with it would declare later messages of
 * the topic lost. */
static bool is_before_mapping(const um_delivery *delivery, const um_arrival *arrival)
{
    return delivery->state < UM_DELIVERY_RUNNING && um_serial_before(arrival->transport_sqn, delivery->mapped_sqn);
}

/* Continues where an earlier session ended, now that sqn is known to exist. Returns false if sqn is implausible after
 * that position, because the source has restarted. */
static bool resume(um_delivery *delivery, uint32_t sqn, const um_arrival *arrival)
{
    uint32_t ahead = sqn - delivery->resume_sqn;
    bool resumes = delivery->has_resume && delivery->fetch.state == UM_DELIVERY_FETCH_IDLE;
    if (!resumes || ahead > SPAN_MAX || !is_plausible(delivery, ahead + 1, arrival))
        return false;
    delivery->has_resume = false;
    start_at(delivery, delivery->resume_sqn);
    delivery->highest_sqn = delivery->resume_sqn - 1;
    return true;
}

/* True for a repeated sqn of those that a fetch has given up, or before them: its loss event is in the queue, or the
 * late join begins behind it. Datagrams that were missed unnoticed before the fetch was given up arrive like this. A
 * sqn that is not repeated shows where the stream is, and may show that the source's range was false. */
static bool is_given_up(const um_delivery *delivery, uint32_t sqn, const um_arrival *arrival)
{
    uint32_t behind = delivery->resume_sqn - sqn;
    return arrival->is_repeated && delivery->state == UM_DELIVERY_WAITING && delivery->has_given_up && behind > 0 &&
           behind <= GIVEN_UP_MAX;
}

static void first_message(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival)
{
    bool resumes = resume(delivery, message->sqn, arrival);
    delivery->has_given_up = false;
    if (UM_UNLIKELY(resumes))
        return;
    delivery->highest_sqn = message->sqn - 1;
    delivery->highest_transport_sqn = arrival->transport_sqn;
    delivery->start_sqn = arrival->transport_sqn;
    delivery->lowest_held = message->sqn;
    if (arrival->has_earlier_losses)
        delivery->state = UM_DELIVERY_STARTING;
    else
        start_at(delivery, message->sqn);
}

/* Extends the range of held sqns to sqn, at the nearer end. A sqn too far from both ends the wait: returns false.
 * Distances wrap around the number space, because a number half of it away is neither before nor after. */
static bool note_while_starting(um_delivery *delivery, uint32_t sqn, const um_arrival *arrival)
{
    uint32_t capacity = delivery->receiver->store->entry_capacity;
    uint32_t from_lowest = sqn - delivery->lowest_held, to_highest = delivery->highest_sqn - sqn;
    if (from_lowest < capacity) {
        if (from_lowest >= delivery->highest_sqn + 1 - delivery->lowest_held) { /* that is 0 at first */
            delivery->highest_sqn = sqn;
            delivery->highest_transport_sqn = arrival->transport_sqn;
        }
    } else if (to_highest < capacity) {
        delivery->lowest_held = sqn;
    } else {
        um_delivery_start(delivery, delivery->lowest_held, arrival->now_ns);
        return false;
    }
    return true;
}

/* Holds a message until delivery starts. If there is no space, delivery starts at once and the result is false: the
 * caller handles the message like any other. */
static bool hold_while_starting(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival)
{
    if (is_duplicate(delivery, message->sqn))
        return true;
    uint32_t lowest = delivery->lowest_held, capacity = delivery->receiver->store->entry_capacity;
    bool is_far = message->sqn - lowest >= capacity && delivery->highest_sqn - message->sqn >= capacity;
    if (is_far && um_delivery_fetch_is_running(delivery)) { /* delivery will start with the past */
        um_delivery_fetch_to(delivery, message->sqn + 1);
        return true;
    }
    if (!note_while_starting(delivery, message->sqn, arrival))
        return false;
    if (hold_message(delivery, message, arrival, false))
        return true;
    if (um_delivery_fetch_is_running(delivery)) {
        um_delivery_fetch_to(delivery, message->sqn + 1);
        return true;
    }
    delivery->lowest_held = lowest;
    um_delivery_start(delivery, delivery->lowest_held, arrival->now_ns);
    return false;
}

/* During a fetch: true if the sqn must be ignored, because it is implausibly far ahead, or before the sqn at which a
 * rediscovered source resumes and therefore delivered. */
static bool is_outside_stream(const um_delivery *delivery, uint32_t sqn, const um_arrival *arrival)
{
    const um_delivery_fetch *fetch = &delivery->fetch;
    if (fetch->kind == UM_DELIVERY_FETCH_RESUMED && fetch->state == UM_DELIVERY_FETCH_AWAITS_RANGE &&
        um_serial_before(sqn, fetch->resume_sqn)) {
        UM_COUNT(delivery->receiver->counters.duplicate_fragments, 1);
        return true;
    }
    int32_t ahead = um_serial_diff(sqn, delivery->highest_sqn);
    bool is_known = fetch->has_seen_live || fetch->kind == UM_DELIVERY_FETCH_RESUMED;
    return is_known && ahead > 0 && !is_accepted(delivery, (uint32_t)ahead, arrival);
}

void um_delivery_on_message(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival)
{
    um_lbmc_message changed;
    if (UM_UNLIKELY(delivery->receiver->config.is_hot_failover))
        message = um_delivery_with_options(message, &changed);
    if (message->flags & UM_MESSAGE_FRAGMENT)
        UM_COUNT(delivery->receiver->counters.fragments_received, 1);
    if (UM_LIKELY(deliver_directly(delivery, message, arrival)))
        return;
    if (delivery->state >= UM_DELIVERY_ENDING || is_before_mapping(delivery, arrival))
        return;
    if (UM_UNLIKELY(is_given_up(delivery, message->sqn, arrival))) {
        UM_COUNT(delivery->receiver->counters.duplicate_fragments, 1);
        return;
    }
    if (UM_UNLIKELY(is_left_to_slow_reader(delivery, message->sqn, true, arrival)))
        return;
    if (UM_UNLIKELY(um_delivery_fetch_is_active(delivery)) &&
        (is_outside_stream(delivery, message->sqn, arrival) ||
         um_fetch_live_leaves_out(delivery, message->sqn, true, arrival)))
        return;
    if (delivery->state == UM_DELIVERY_WAITING) {
        first_message(delivery, message, arrival);
        if (delivery->state == UM_DELIVERY_RUNNING && deliver_directly(delivery, message, arrival))
            return;
    }
    if (delivery->state == UM_DELIVERY_STARTING && hold_while_starting(delivery, message, arrival))
        return;
    bool newest = um_serial_before(delivery->highest_sqn, message->sqn);
    if (!newest && is_duplicate(delivery, message->sqn)) {
        UM_COUNT(delivery->receiver->counters.duplicate_fragments, 1);
        return;
    }
    if (!note_exists(delivery, message->sqn, true, arrival))
        return;
    if (!hold_or_make_space(delivery, message, arrival, newest)) {
        if (newest) /* otherwise it is in a gap already */
            um_order_map_add_gap(delivery, message->sqn, message->sqn, arrival->now_ns);
        return;
    }
    if (delivery->receiver->config.ordered_delivery != UM_ORDERED_SEQUENCE)
        deliver_on_arrival(delivery, message->sqn);
    if (!um_loss_is_unchanged(delivery, message->sqn, arrival->now_ns))
        um_loss_drain(delivery, arrival->now_ns, true);
}

void um_delivery_on_tsni(um_delivery *delivery, uint32_t sqn, const um_arrival *arrival)
{
    if (delivery->state >= UM_DELIVERY_ENDING || is_before_mapping(delivery, arrival) ||
        is_given_up(delivery, sqn, arrival))
        return;
    if (UM_UNLIKELY(is_left_to_slow_reader(delivery, sqn, false, arrival)))
        return;
    if (UM_UNLIKELY(um_delivery_fetch_is_active(delivery)) &&
        (is_outside_stream(delivery, sqn, arrival) || um_fetch_live_leaves_out(delivery, sqn, false, arrival)))
        return;
    bool begins = delivery->state == UM_DELIVERY_WAITING && !resume(delivery, sqn, arrival);
    if (begins && !arrival->has_earlier_losses) {
        delivery->highest_sqn = sqn;
        delivery->highest_transport_sqn = arrival->transport_sqn;
        start_at(delivery, sqn + 1);
        delivery->is_leading = true;
        delivery->leading_sqn = sqn + 1;
    }
    bool waits = delivery->state == UM_DELIVERY_STARTING;
    if (waits && (!um_serial_before(delivery->highest_sqn, sqn) || note_while_starting(delivery, sqn, arrival)))
        return;
    if (delivery->state != UM_DELIVERY_RUNNING)
        return;
    note_exists(delivery, sqn, false, arrival);
    um_loss_drain(delivery, arrival->now_ns, true);
}

/* ---- session ---- */

void um_delivery_register(um_delivery *delivery)
{
    if (!delivery->receiver->config.source_notification)
        return;
    delivery->announcements_due |= UM_ANNOUNCE_SOURCE;
    um_delivery_announce(delivery);
}

/* Announces the deletion of the source. Returns false if there is no space. */
static bool deregister(um_delivery *delivery)
{
    if (delivery->receiver->config.source_notification && !delivery->is_deregistered)
        delivery->is_deregistered =
            um_delivery_announce(delivery) && um_delivery_append_event(delivery, UM_ROW_SOURCE_DELETED, 0, 0, 0);
    return delivery->is_deregistered || !delivery->receiver->config.source_notification;
}

void um_delivery_begin(um_delivery *delivery)
{
    if (delivery->is_begun)
        return;
    delivery->is_begun = true;
    delivery->announcements_due |= UM_ANNOUNCE_BEGINNING;
    um_delivery_announce(delivery);
    UM_COUNT(delivery->receiver->counters.bos_events, 1);
}

/* Counts an entry that was held while starting. Returns NULL if there is none, or no space to count its bytes. */
static const um_reorder_entry *count_held(um_delivery *delivery, uint32_t sqn)
{
    um_reorder_entry *entry = um_order_map_find(delivery, sqn);
    if (entry == NULL || entry->state == UM_REORDER_EXPECTED)
        return NULL;
    if (entry->state == UM_REORDER_SEEN || !(entry->flags & UM_MESSAGE_FRAGMENT) ||
        um_reassembly_count(delivery, entry))
        return entry;
    um_order_map_remove(delivery, entry);
    return NULL;
}

void um_delivery_start(um_delivery *delivery, uint32_t next_sqn, int64_t now_ns)
{
    uint32_t end = delivery->highest_sqn + 1, gap_start = delivery->lowest_held;
    start_at(delivery, next_sqn);
    /* Sqns still lost between the held messages are ordinary gaps, as old as the message that follows them. */
    for (uint32_t sqn = gap_start; sqn != end; sqn++) {
        const um_reorder_entry *entry = count_held(delivery, sqn);
        if (entry == NULL)
            continue;
        if (gap_start != sqn)
            um_order_map_add_gap(delivery, gap_start, sqn - 1, entry->held_ns);
        gap_start = sqn + 1;
    }
    if (gap_start != end)
        um_order_map_add_gap(delivery, gap_start, end - 1, now_ns);
    if (delivery->receiver->config.ordered_delivery != UM_ORDERED_SEQUENCE)
        for (uint32_t sqn = delivery->lowest_held; sqn != end; sqn++)
            deliver_on_arrival(delivery, sqn);
    um_loss_drain(delivery, now_ns, false);
}

static bool finish(um_delivery *delivery, int64_t now_ns)
{
    if (!um_loss_drain(delivery, now_ns, false))
        return false;
    for (const um_gap *gap; (gap = um_order_map_oldest_gap(delivery)) != NULL;)
        if (!um_loss_give_up_gap(delivery, gap, now_ns) || !um_loss_drain(delivery, now_ns, false))
            return false;
    um_order_map_clear(delivery);
    if (!delivery->has_eos) {
        if (!um_delivery_append_event(delivery, UM_ROW_END_OF_SESSION, 0, 0, now_ns))
            return false;
        delivery->has_eos = true;
        UM_COUNT(delivery->receiver->counters.eos_events, 1);
    }
    if (!deregister(delivery))
        return false;
    delivery->resume_sqn = delivery->next_sqn;
    delivery->state = UM_DELIVERY_ENDED;
    return true;
}

void um_delivery_end(um_delivery *delivery, int64_t now_ns)
{
    if (delivery->state == UM_DELIVERY_STARTING)
        um_delivery_start(delivery, delivery->lowest_held, now_ns);
    um_debug_assert(delivery->state != UM_DELIVERY_WAITING || delivery->gap_count + delivery->held_count == 0);
    if (delivery->state == UM_DELIVERY_WAITING)
        delivery->next_sqn = delivery->resume_sqn;
    else
        delivery->has_resume = true;
    delivery->state = UM_DELIVERY_ENDING;
    finish(delivery, now_ns);
}

/* Returns when the oldest gap of a controller without NAKs is given up. */
static int64_t gap_due_ns(um_delivery *delivery)
{
    if (!delivery->is_nak_free || delivery->gap_count == 0)
        return UM_NEVER_NS;
    return um_order_map_gap(delivery, 0)->detected_ns + delivery->give_up_ns;
}

int64_t um_delivery_tick(um_delivery *delivery, int64_t now_ns)
{
    if (delivery->announcements_due)
        um_delivery_announce(delivery);
    if (delivery->state == UM_DELIVERY_ENDING)
        finish(delivery, now_ns);
    if (delivery->state < UM_DELIVERY_RUNNING) /* only announcements can be due */
        delivery->is_starved = delivery->announcements_due != 0;
    if (delivery->state != UM_DELIVERY_RUNNING)
        return UM_NEVER_NS;
    int64_t interval_ns = delivery->receiver->config.loss_check_interval_ns;
    bool check = interval_ns != 0 && delivery->gap_count > 0 && now_ns >= delivery->loss_check_ns;
    /* Giving up a gap must continue if the queue was full. */
    if (delivery->is_starved || check || now_ns >= gap_due_ns(delivery) ||
        (delivery->gap_count > 0 && now_ns >= um_otr_due_ns(delivery)))
        um_loss_drain(delivery, now_ns, true);
    if (interval_ns == 0 || delivery->gap_count == 0)
        delivery->loss_check_ns = UM_NEVER_NS;
    else if (check || delivery->loss_check_ns == UM_NEVER_NS)
        delivery->loss_check_ns = now_ns + interval_ns;
    /* While the queue is full, the controller waits for the reader. */
    bool waits = delivery->gap_count > 0 && !delivery->is_starved && !delivery->announcements_due;
    int64_t otr_ns = waits ? um_otr_due_ns(delivery) : UM_NEVER_NS;
    int64_t gap_ns = gap_due_ns(delivery);
    if (gap_ns <= now_ns) /* the gap is being fetched, or the queue is full */
        gap_ns = now_ns + GAP_CHECK_NS;
    otr_ns = um_earliest_ns(otr_ns, gap_ns);
    return um_earliest_ns(otr_ns, delivery->loss_check_ns);
}

void um_delivery_fini(um_delivery *delivery)
{
    if (delivery->state == UM_DELIVERY_STARTING)
        delivery->next_sqn = delivery->lowest_held;
    um_order_map_clear(delivery);
    if (!deregister(delivery))
        UM_COUNT(delivery->receiver->counters.source_notifications_dropped, 1);
    delivery->receiver->controller_count--;
    delivery->receiver->counters.delivery_controllers = delivery->receiver->controller_count;
}
