#include "core/delivery_controller.h"

enum { SPAN_MAX = 1 << 30 }; /* sqns that can be told apart from next_sqn on, with room to spare */

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

/* ---- rows ---- */

static uint8_t *reserve(um_delivery *delivery, uint32_t bytes)
{
    uint8_t *payload = um_queue_reserve(delivery->receiver->queue, bytes);
    if (UM_UNLIKELY(payload == NULL)) {
        um_message_queue *queue = delivery->receiver->queue;
        delivery->starved = true;
        if (!queue->full)
            UM_COUNT(delivery->receiver->counters.queue_full_pauses, 1);
        queue->full = *queue->any_full = true;
    }
    return payload;
}

static bool append_event(um_delivery *delivery, enum um_row_kind kind, uint32_t first, uint32_t last, int64_t now_ns)
{
    if (reserve(delivery, 0) == NULL)
        return false;
    um_row row = {.flags = (uint16_t)(kind << 8),
                  .sequence_number = last,
                  .first_sequence_number = first,
                  .source = delivery->source,
                  .received_ns = now_ns};
    um_queue_append(delivery->receiver->queue, &row, 0);
    return true;
}

static bool announce_begin(um_delivery *delivery)
{
    delivery->bos_due = !append_event(delivery, UM_ROW_BEGINNING_OF_SESSION, 0, 0, 0);
    return !delivery->bos_due;
}

static bool append_loss(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    if (!append_event(delivery, UM_ROW_UNRECOVERABLE_LOSS, sqn, sqn, now_ns))
        return false;
    UM_COUNT(delivery->receiver->counters.unrecoverable_loss_events, 1);
    UM_COUNT(delivery->receiver->context_counters->fragments_unrecoverably_lost, 1);
    return true;
}

static inline void count_message(um_delivery *delivery, uint32_t length)
{
    UM_COUNT(delivery->receiver->counters.messages_delivered, 1);
    UM_COUNT(delivery->receiver->counters.bytes_delivered, length);
}

static inline void append_message(um_delivery *delivery, const um_row *row, uint32_t length)
{
    um_queue_append(delivery->receiver->queue, row, length);
    count_message(delivery, length);
}

static inline bool deliver_payload(um_delivery *delivery, const um_row *row, const uint8_t *payload, uint32_t length)
{
    uint8_t *space = reserve(delivery, length);
    if (UM_UNLIKELY(space == NULL))
        return false;
    memcpy(space, payload, length);
    append_message(delivery, row, length);
    return true;
}

/* A frame is worth keeping for a message that fills most of its datagram. */
static inline bool may_stay(const um_lbmc_message *message, const um_arrival *arrival)
{
    return message->payload_length >= UM_QUEUE_PINNED_BYTES_MIN &&
           message->payload_length > arrival->datagram_bytes / 2 && arrival->frames != NULL;
}

/* False when the queue is full or the frame cannot be kept. */
static bool deliver_in_frame(um_delivery *delivery, const um_row *row, const um_lbmc_message *message,
                             const um_arrival *arrival)
{
    uint32_t length = message->payload_length;
    if (reserve(delivery, length) == NULL || !arrival->frames->pin(arrival->frames, message->payload))
        return false;
    um_queue_append_pinned(delivery->receiver->queue, row, message->payload, length, arrival->frames);
    count_message(delivery, length);
    return true;
}

/* ---- gaps ---- */

static um_gap *gap_at(um_delivery *delivery, uint32_t i)
{
    return &delivery->gaps[(delivery->gap_first + i) % UM_DELIVERY_GAPS_MAX];
}

static void add_gap(um_delivery *delivery, uint32_t first, uint32_t last, int64_t now_ns)
{
    UM_COUNT(delivery->receiver->context_counters->fragments_lost, last - first + 1);
    if (delivery->gap_count == UM_DELIVERY_GAPS_MAX) {
        /* Merged with the youngest: the older part of it is given up a little later than it could be. */
        um_gap *youngest = gap_at(delivery, UM_DELIVERY_GAPS_MAX - 1);
        youngest->last = last;
        youngest->detected_ns = now_ns;
        return;
    }
    *gap_at(delivery, delivery->gap_count++) = (um_gap){first, last, now_ns};
}

/* ---- what is held ---- */

static um_reorder_entry *find(um_delivery *delivery, uint32_t sqn)
{
    return delivery->held_count == 0 ? NULL : um_reorder_find(delivery->receiver->store, delivery->id, sqn);
}

static um_reorder_entry *add(um_delivery *delivery, uint32_t sqn)
{
    um_reorder_entry *hold = um_reorder_add(delivery->receiver->store, delivery->id, sqn);
    delivery->held_count += hold != NULL;
    return hold;
}

static void forget(um_delivery *delivery, um_reorder_entry *hold)
{
    um_reorder_remove(delivery->receiver->store, hold);
    delivery->held_count--;
}

static um_reorder_entry *find_or_add(um_delivery *delivery, uint32_t sqn)
{
    um_reorder_entry *hold = find(delivery, sqn);
    return hold ? hold : add(delivery, sqn);
}

static bool is_missing(um_delivery *delivery, uint32_t sqn)
{
    const um_reorder_entry *hold = find(delivery, sqn);
    return hold == NULL || hold->state == UM_REORDER_EXPECTED;
}

/* The oldest gap of which something is still missing, NULL without one. Parts that have been filled are taken off:
 * giving them up would drop messages that have arrived, or still can be complete. */
static um_gap *oldest_gap(um_delivery *delivery)
{
    for (; delivery->gap_count > 0; delivery->gap_count--) {
        um_gap *gap = gap_at(delivery, 0);
        if (um_serial_before(gap->first, delivery->next_sqn))
            gap->first = delivery->next_sqn;
        for (; !um_serial_before(gap->last, gap->first); gap->first++)
            if (is_missing(delivery, gap->first))
                return gap;
        delivery->gap_first = (delivery->gap_first + 1) % UM_DELIVERY_GAPS_MAX;
    }
    return NULL;
}

/* Counts a fragment towards the message it belongs to. One whose message began before next_sqn is an orphan: it
 * is held only to be passed over, so every entry lies in [next_sqn, highest_sqn]. */
static bool count_fragment(um_delivery *delivery, const um_reorder_entry *fragment)
{
    if (um_serial_before(fragment->first_sqn, delivery->next_sqn))
        return true;
    uint32_t length = fragment->length;
    um_reorder_entry *first = find_or_add(delivery, fragment->first_sqn);
    if (first != NULL)
        first->assembled_bytes += length;
    return first != NULL;
}

static um_row row_of(const um_delivery *delivery, const um_reorder_entry *hold)
{
    return (um_row){.flags = hold->flags,
                    .sequence_number = hold->sqn,
                    .first_sequence_number = hold->first_sqn,
                    .fragment_offset = hold->fragment_offset,
                    .message_length = hold->total,
                    .source = delivery->source,
                    .received_ns = hold->received_ns};
}

/* Fragments of a message whose every byte is here: true when they lie end to end from `first`. Stores the last. */
static bool check_layout(um_delivery *delivery, const um_reorder_entry *first, uint32_t *last_sqn)
{
    uint32_t bytes = 0;
    for (uint32_t sqn = first->sqn; bytes < first->total; sqn++) {
        um_reorder_entry *hold = find(delivery, sqn);
        if (hold == NULL || hold->state != UM_REORDER_PAYLOAD || !(hold->flags & UM_MESSAGE_FRAGMENT) ||
            hold->first_sqn != first->sqn || hold->total != first->total || hold->fragment_offset != bytes)
            return false;
        bytes += hold->length;
        *last_sqn = sqn;
    }
    return bytes == first->total;
}

enum assembly { ASSEMBLY_DELIVERED, ASSEMBLY_INCOMPLETE, ASSEMBLY_REFUSED, ASSEMBLY_QUEUE_FULL };

/* Delivers the message that starts at `first` when it is complete. Its entries stay; *last_sqn is its last. */
static enum assembly deliver_assembly(um_delivery *delivery, um_reorder_entry *first, uint32_t *last_sqn)
{
    if (first->state != UM_REORDER_PAYLOAD || first->assembled_bytes < first->total)
        return ASSEMBLY_INCOMPLETE;
    if (first->fragment_offset != 0 || !check_layout(delivery, first, last_sqn)) {
        UM_COUNT(delivery->receiver->counters.malformed_fragments, 1);
        *last_sqn = first->sqn;
        first->assembled_bytes = 0; /* so that it is looked at again only after as many bytes */
        return ASSEMBLY_REFUSED;
    }
    uint8_t *payload = reserve(delivery, first->total);
    if (payload == NULL)
        return ASSEMBLY_QUEUE_FULL;
    um_row row = row_of(delivery, first);
    for (uint32_t sqn = first->sqn; sqn != *last_sqn + 1; sqn++) {
        const um_reorder_entry *hold = find(delivery, sqn);
        memcpy(payload + hold->fragment_offset, um_reorder_payload(delivery->receiver->store, hold), hold->length);
        row.flags |= hold->flags;
        row.received_ns = hold->received_ns > row.received_ns ? hold->received_ns : row.received_ns;
    }
    row.sequence_number = *last_sqn; /* UM-57 */
    append_message(delivery, &row, first->total);
    return ASSEMBLY_DELIVERED;
}

/* Everything of one topic sqn that is passed over as lost. */
static bool pass_as_lost(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    if (!append_loss(delivery, sqn, now_ns))
        return false;
    um_reorder_entry *hold = find(delivery, sqn);
    if (hold != NULL)
        forget(delivery, hold);
    return true;
}

enum step { STEP_ON, STEP_STUCK, STEP_FULL };

/* The fragment at the head: its message is delivered, refused, waited for, or can never be complete. */
static enum step step_fragment(um_delivery *delivery, um_reorder_entry *head, int64_t now_ns)
{
    if (head->first_sqn != head->sqn) { /* the message's beginning was given up or never seen */
        forget(delivery, head);
        delivery->next_sqn++;
        return STEP_ON;
    }
    uint32_t last_sqn;
    switch (deliver_assembly(delivery, head, &last_sqn)) {
    case ASSEMBLY_INCOMPLETE:
        return STEP_STUCK;
    case ASSEMBLY_QUEUE_FULL:
        return STEP_FULL;
    case ASSEMBLY_REFUSED:
        for (; delivery->next_sqn != last_sqn + 1; delivery->next_sqn++)
            if (!pass_as_lost(delivery, delivery->next_sqn, now_ns))
                return STEP_FULL;
        return STEP_ON;
    case ASSEMBLY_DELIVERED:
        for (; delivery->next_sqn != last_sqn + 1; delivery->next_sqn++)
            forget(delivery, find(delivery, delivery->next_sqn));
        return STEP_ON;
    }
    return STEP_STUCK;
}

static enum step step(um_delivery *delivery, int64_t now_ns)
{
    um_reorder_entry *head = find(delivery, delivery->next_sqn);
    if (head == NULL || head->state == UM_REORDER_EXPECTED)
        return STEP_STUCK;
    if (head->state == UM_REORDER_REFUSED && !append_loss(delivery, head->sqn, now_ns))
        return STEP_FULL;
    if (head->state == UM_REORDER_PAYLOAD && (head->flags & UM_MESSAGE_FRAGMENT) &&
        delivery->receiver->config.ordered_delivery != UM_ORDERED_FRAGMENTS)
        return step_fragment(delivery, head, now_ns);
    if (head->state == UM_REORDER_PAYLOAD) {
        um_row row = row_of(delivery, head);
        const uint8_t *payload = um_reorder_payload(delivery->receiver->store, head);
        if (!deliver_payload(delivery, &row, payload, head->length))
            return STEP_FULL;
    }
    forget(delivery, head);
    delivery->next_sqn++;
    return STEP_ON;
}

/* Passes the first missing sqn, and with it what was received of the message that lacks it. The event goes out before
 * anything is dropped: where the queue is full nothing has happened. */
static bool pass_incomplete(um_delivery *delivery, int64_t now_ns)
{
    uint32_t missing = delivery->next_sqn;
    while (!is_missing(delivery, missing))
        missing++;
    if (!pass_as_lost(delivery, missing, now_ns))
        return false;
    for (; delivery->next_sqn != missing; delivery->next_sqn++)
        forget(delivery, find(delivery, delivery->next_sqn));
    delivery->next_sqn++;
    return true;
}

/* Gives up what is missing of a gap: one loss event per sqn (UM-101); whole messages up to the last of them are
 * delivered, incomplete ones dropped. A message that begins behind it may wait on for a younger gap. */
static bool give_up_gap(um_delivery *delivery, const um_gap *gap, int64_t now_ns)
{
    uint32_t last = gap->last;
    if (delivery->bos_due && !announce_begin(delivery))
        return false;
    while (!is_missing(delivery, last))
        last--;
    while (!um_serial_before(last, delivery->next_sqn)) {
        enum step result = step(delivery, now_ns);
        if (result == STEP_FULL)
            return false;
        if (result == STEP_ON)
            continue;
        if (!pass_incomplete(delivery, now_ns))
            return false;
    }
    oldest_gap(delivery); /* takes the passed one off */
    return true;
}

/* Nothing is missing, yet the message at the head is not complete: unless its end is still to come, its fragments
 * contradict each other and it never will be. */
static bool is_contradicted(um_delivery *delivery)
{
    const um_reorder_entry *head = find(delivery, delivery->next_sqn);
    const um_reorder_entry *newest = find(delivery, delivery->highest_sqn);
    return head != NULL && newest != NULL && newest->first_sqn != head->sqn;
}

static bool is_over_bound(const um_delivery *delivery) /* UX-6 */
{
    uint32_t most = delivery->receiver->config.map_entries_max;
    return most != 0 && delivery->held_count > most;
}

static bool has_expired(const um_delivery *delivery, const um_gap *gap, int64_t now_ns)
{
    return now_ns - gap->detected_ns >= delivery->give_up_ns;
}

/* Whether the arrival of sqn changed nothing at the head: what is missing there is another one, and not due. */
static bool is_still_waiting(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    const um_gap *oldest = gap_at(delivery, 0);
    return sqn != delivery->next_sqn && delivery->gap_count > 0 && oldest->first == delivery->next_sqn &&
           !delivery->starved && !delivery->bos_due && !is_over_bound(delivery) &&
           !has_expired(delivery, oldest, now_ns);
}

/* Delivers what can be delivered. Returns false when the queue is full. */
static bool drain(um_delivery *delivery, int64_t now_ns, bool may_give_up)
{
    delivery->starved = false;
    if (delivery->bos_due && !announce_begin(delivery))
        return false;
    for (;;) {
        enum step result;
        do
            result = step(delivery, now_ns);
        while (result == STEP_ON);
        if (result == STEP_FULL)
            return false;
        const um_gap *gap = oldest_gap(delivery);
        if (gap == NULL) {
            if (!is_contradicted(delivery))
                return true;
            if (!pass_as_lost(delivery, delivery->next_sqn, now_ns))
                return false;
            UM_COUNT(delivery->receiver->counters.malformed_fragments, 1);
            delivery->next_sqn++;
            continue;
        }
        bool over_bound = is_over_bound(delivery);
        bool expired = may_give_up && has_expired(delivery, gap, now_ns);
        if (over_bound)
            UM_COUNT(delivery->receiver->counters.order_map_overflows, 1);
        if (!over_bound && !expired)
            return true;
        if (!give_up_gap(delivery, gap, now_ns))
            return false;
    }
}

/* ---- arrivals ---- */

static void clear_held(um_delivery *delivery)
{
    um_reorder_buffer *store = delivery->receiver->store;
    /* Entries are spread over [next_sqn, highest_sqn]: walk that, or the whole store where it is the shorter way. */
    uint32_t range = delivery->highest_sqn + 1 - delivery->next_sqn;
    if (range <= store->entries_begun) {
        for (uint32_t i = 0; i < range && delivery->held_count > 0; i++) {
            um_reorder_entry *hold = find(delivery, delivery->next_sqn + i);
            if (hold != NULL)
                forget(delivery, hold);
        }
    } else {
        for (uint32_t i = 0; i < store->entries_begun && delivery->held_count > 0; i++)
            if (store->entries[i].owner == delivery->id)
                forget(delivery, &store->entries[i]);
    }
    um_debug_assert(delivery->held_count == 0);
    delivery->gap_count = 0;
}

/* UX-7: a gap too long to wait for is one event, and what was held before it goes too. */
static bool burst(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    if (delivery->bos_due && !announce_begin(delivery))
        return false;
    if (!append_event(delivery, UM_ROW_BURST_LOSS, delivery->next_sqn, sqn - 1, now_ns))
        return false;
    UM_COUNT(delivery->receiver->counters.burst_loss_events, 1);
    UM_COUNT(delivery->receiver->context_counters->fragments_unrecoverably_lost, sqn - delivery->next_sqn);
    clear_held(delivery);
    delivery->next_sqn = sqn;
    delivery->highest_sqn = sqn - 1;
    return true;
}

/* A topic cannot run ahead of its transport. What says it does was not sent by the source; to believe it would give up
 * everything up to there. */
static bool is_plausible(const um_delivery *delivery, uint32_t ahead, const um_arrival *arrival)
{
    uint64_t datagrams = (uint64_t)(arrival->transport_sqn - delivery->highest_transport_sqn) + 1;
    return ahead <= datagrams * UM_LBMC_PER_DATAGRAM_MAX;
}

/* Learns that sqn exists; false when it cannot be taken now, or not at all. */
static bool note_exists(um_delivery *delivery, uint32_t sqn, bool received, const um_arrival *arrival)
{
    int64_t now_ns = arrival->now_ns;
    int32_t ahead = um_serial_diff(sqn, delivery->highest_sqn);
    if (ahead <= 0 && ahead != INT32_MIN)
        return true;
    if (!is_plausible(delivery, (uint32_t)ahead, arrival)) {
        UM_COUNT(delivery->receiver->counters.malformed_fragments, 1);
        return false;
    }
    bool too_long = (uint32_t)ahead > delivery->receiver->config.burst_loss_max || sqn - delivery->next_sqn > SPAN_MAX;
    if (too_long && !burst(delivery, sqn, now_ns))
        return false;
    uint32_t first = delivery->highest_sqn + 1;
    if (!received)
        add_gap(delivery, first, sqn, now_ns);
    else if (first != sqn)
        add_gap(delivery, first, sqn - 1, now_ns);
    delivery->highest_transport_sqn = arrival->transport_sqn;
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

/* Puts a fragment or an early message into the order map; the newest there is has no entry yet. False when there is no
 * room for it. */
static bool hold_message(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival, bool newest)
{
    um_reorder_entry *hold = newest ? add(delivery, message->sqn) : find_or_add(delivery, message->sqn);
    if (hold == NULL)
        return false;
    if (is_too_long(delivery, message)) { /* it must not crowd the store */
        hold->state = UM_REORDER_REFUSED;
        UM_COUNT(delivery->receiver->counters.messages_too_long, message->sqn == message->first_sqn);
    } else if (!um_reorder_attach(delivery->receiver->store, hold, message->payload, message->payload_length)) {
        if (hold->assembled_bytes == 0)
            forget(delivery, hold);
        return false;
    }
    bool fragment = message->flags & UM_MESSAGE_FRAGMENT;
    hold->flags = message->flags;
    hold->first_sqn = fragment ? message->first_sqn : message->sqn;
    hold->fragment_offset = fragment ? message->offset : 0;
    hold->total = fragment ? message->total : message->payload_length;
    hold->received_ns = arrival->received_ns;
    if (!fragment || delivery->state == UM_DELIVERY_STARTING || count_fragment(delivery, hold))
        return true;
    forget(delivery, find(delivery, message->sqn));
    return false;
}

/* The store is full: give the oldest gap up to make room, once; then the message itself is lost, and the gap it
 * leaves will say so. */
static bool hold_or_make_room(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival,
                              bool newest)
{
    if (hold_message(delivery, message, arrival, newest))
        return true;
    UM_COUNT(delivery->receiver->context_counters->hold_store_full, 1);
    const um_gap *gap = oldest_gap(delivery);
    if (gap == NULL || !give_up_gap(delivery, gap, arrival->now_ns) || !drain(delivery, arrival->now_ns, true))
        return false;
    return !um_serial_before(message->sqn, delivery->next_sqn) && hold_message(delivery, message, arrival, false);
}

/* Arrival order: a message that is whole with the fragment `sqn` goes out at once and only its sqns are remembered
 * (UM-56). */
static void deliver_on_arrival(um_delivery *delivery, uint32_t sqn)
{
    um_reorder_entry *hold = find(delivery, sqn);
    if (hold == NULL || hold->state != UM_REORDER_PAYLOAD || (delivery->bos_due && !announce_begin(delivery)))
        return;
    uint32_t first_sqn = sqn, last_sqn = sqn;
    if (hold->flags & UM_MESSAGE_FRAGMENT && delivery->receiver->config.ordered_delivery == UM_ORDERED_ARRIVAL) {
        um_reorder_entry *first = find(delivery, hold->first_sqn);
        first_sqn = hold->first_sqn;
        if (first == NULL || deliver_assembly(delivery, first, &last_sqn) != ASSEMBLY_DELIVERED)
            return;
    } else {
        um_row row = row_of(delivery, hold);
        const uint8_t *payload = um_reorder_payload(delivery->receiver->store, hold);
        if (!deliver_payload(delivery, &row, payload, hold->length))
            return;
    }
    for (uint32_t seen_sqn = first_sqn; seen_sqn != last_sqn + 1; seen_sqn++) {
        um_reorder_entry *seen = find(delivery, seen_sqn);
        um_reorder_detach(delivery->receiver->store, seen);
        seen->state = UM_REORDER_SEEN;
    }
}

static bool is_duplicate(um_delivery *delivery, uint32_t sqn)
{
    if (delivery->state == UM_DELIVERY_RUNNING && um_serial_before(sqn, delivery->next_sqn))
        return true;
    um_reorder_entry *hold = find(delivery, sqn);
    return hold != NULL && hold->state != UM_REORDER_EXPECTED;
}

/* In order, whole, nothing held: straight from the datagram into the queue. */
static inline bool deliver_directly(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival)
{
    bool whole =
        !(message->flags & UM_MESSAGE_FRAGMENT) || delivery->receiver->config.ordered_delivery == UM_ORDERED_FRAGMENTS;
    if (delivery->state != UM_DELIVERY_RUNNING || message->sqn != delivery->next_sqn || delivery->held_count != 0 ||
        !whole || delivery->starved || message->payload_length > delivery->receiver->queue->message_max_bytes)
        return false;
    bool fragment = message->flags & UM_MESSAGE_FRAGMENT;
    um_row row = {.flags = message->flags,
                  .sequence_number = message->sqn,
                  .first_sequence_number = fragment ? message->first_sqn : message->sqn,
                  .fragment_offset = fragment ? message->offset : 0,
                  .message_length = fragment ? message->total : message->payload_length,
                  .source = delivery->source,
                  .received_ns = arrival->received_ns};
    bool in_frame = may_stay(message, arrival) && deliver_in_frame(delivery, &row, message, arrival);
    if (!in_frame && !deliver_payload(delivery, &row, message->payload, message->payload_length))
        return false;
    delivery->next_sqn++;
    delivery->highest_transport_sqn = arrival->transport_sqn;
    if (um_serial_before(delivery->highest_sqn, message->sqn))
        delivery->highest_sqn = message->sqn;
    else if (delivery->gap_count > 0)
        drain(delivery, arrival->now_ns, true);
    return true;
}

/* Recovered from before the controller was mapped. To begin with it would make all of the topic that came between
 * look lost. */
static bool is_before_mapping(const um_delivery *delivery, const um_arrival *arrival)
{
    return delivery->state < UM_DELIVERY_RUNNING && um_serial_before(arrival->transport_sqn, delivery->mapped_sqn);
}

static void first_message(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival)
{
    delivery->highest_sqn = message->sqn - 1;
    delivery->highest_transport_sqn = arrival->transport_sqn;
    delivery->start_sqn = arrival->transport_sqn;
    delivery->lowest_held = message->sqn;
    if (arrival->earlier_lost)
        delivery->state = UM_DELIVERY_STARTING;
    else
        start_at(delivery, message->sqn);
}

/* Widens the range that is waited for to take sqn in. What lies too far off for that ends the wait: false. */
static bool note_while_starting(um_delivery *delivery, uint32_t sqn, const um_arrival *arrival)
{
    uint32_t lowest = delivery->lowest_held, highest = delivery->highest_sqn;
    lowest = um_serial_before(sqn, lowest) ? sqn : lowest;
    highest = um_serial_before(highest, sqn) ? sqn : highest;
    if (highest - lowest >= delivery->receiver->store->entry_capacity) {
        um_delivery_start(delivery, arrival->now_ns);
        return false;
    }
    delivery->lowest_held = lowest;
    delivery->highest_sqn = highest;
    delivery->highest_transport_sqn = arrival->transport_sqn;
    return true;
}

/* Holds a message until delivery starts. One that finds no room ends the wait, too, and is to be taken like any other:
 * false. */
static bool hold_while_starting(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival)
{
    if (is_duplicate(delivery, message->sqn))
        return true;
    uint32_t lowest = delivery->lowest_held;
    if (!note_while_starting(delivery, message->sqn, arrival))
        return false;
    if (hold_message(delivery, message, arrival, false))
        return true;
    delivery->lowest_held = lowest;
    um_delivery_start(delivery, arrival->now_ns);
    return false;
}

void um_delivery_on_message(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival)
{
    if (message->flags & UM_MESSAGE_FRAGMENT)
        UM_COUNT(delivery->receiver->counters.fragments_received, 1);
    if (UM_LIKELY(deliver_directly(delivery, message, arrival)))
        return;
    if (delivery->state >= UM_DELIVERY_ENDING || is_before_mapping(delivery, arrival))
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
    if (!hold_or_make_room(delivery, message, arrival, newest)) {
        if (newest) /* otherwise a gap covers it already */
            add_gap(delivery, message->sqn, message->sqn, arrival->now_ns);
        return;
    }
    if (delivery->receiver->config.ordered_delivery != UM_ORDERED_SEQUENCE)
        deliver_on_arrival(delivery, message->sqn);
    if (!is_still_waiting(delivery, message->sqn, arrival->now_ns))
        drain(delivery, arrival->now_ns, true);
}

void um_delivery_on_tsni(um_delivery *delivery, uint32_t sqn, const um_arrival *arrival)
{
    if (is_before_mapping(delivery, arrival))
        return;
    if (delivery->state == UM_DELIVERY_WAITING && !arrival->earlier_lost) {
        delivery->highest_sqn = sqn;
        delivery->highest_transport_sqn = arrival->transport_sqn;
        start_at(delivery, sqn + 1);
    }
    bool waits = delivery->state == UM_DELIVERY_STARTING;
    if (waits && (!um_serial_before(delivery->highest_sqn, sqn) || note_while_starting(delivery, sqn, arrival)))
        return;
    if (delivery->state != UM_DELIVERY_RUNNING)
        return;
    note_exists(delivery, sqn, false, arrival);
    drain(delivery, arrival->now_ns, true);
}

/* ---- session ---- */

void um_delivery_begin(um_delivery *delivery)
{
    announce_begin(delivery);
    UM_COUNT(delivery->receiver->counters.bos_events, 1);
}

/* Takes one that was held while starting into account; false when there is none, or no room to count its bytes. */
static bool adopt(um_delivery *delivery, uint32_t sqn)
{
    um_reorder_entry *hold = find(delivery, sqn);
    if (hold == NULL || hold->state == UM_REORDER_EXPECTED)
        return false;
    if (hold->state == UM_REORDER_SEEN || !(hold->flags & UM_MESSAGE_FRAGMENT) || count_fragment(delivery, hold))
        return true;
    forget(delivery, hold);
    return false;
}

void um_delivery_start(um_delivery *delivery, int64_t now_ns)
{
    uint32_t end = delivery->highest_sqn + 1;
    start_at(delivery, delivery->lowest_held);
    /* What is still missing between the messages held is a gap like any other from now on. */
    uint32_t gap_start = delivery->next_sqn;
    for (uint32_t sqn = delivery->next_sqn; sqn != end; sqn++) {
        if (!adopt(delivery, sqn))
            continue;
        if (gap_start != sqn)
            add_gap(delivery, gap_start, sqn - 1, now_ns);
        gap_start = sqn + 1;
    }
    if (gap_start != end)
        add_gap(delivery, gap_start, end - 1, now_ns);
    if (delivery->receiver->config.ordered_delivery != UM_ORDERED_SEQUENCE)
        for (uint32_t sqn = delivery->next_sqn; sqn != end; sqn++)
            deliver_on_arrival(delivery, sqn);
    drain(delivery, now_ns, false);
}

static bool finish(um_delivery *delivery, int64_t now_ns)
{
    if (!drain(delivery, now_ns, false))
        return false;
    for (const um_gap *gap; (gap = oldest_gap(delivery)) != NULL;)
        if (!give_up_gap(delivery, gap, now_ns) || !drain(delivery, now_ns, false))
            return false;
    clear_held(delivery);
    if (!append_event(delivery, UM_ROW_END_OF_SESSION, 0, 0, now_ns))
        return false;
    UM_COUNT(delivery->receiver->counters.eos_events, 1);
    delivery->state = UM_DELIVERY_ENDED;
    return true;
}

void um_delivery_end(um_delivery *delivery, int64_t now_ns)
{
    if (delivery->state == UM_DELIVERY_STARTING)
        um_delivery_start(delivery, now_ns);
    delivery->state = UM_DELIVERY_ENDING;
    finish(delivery, now_ns);
}

int64_t um_delivery_tick(um_delivery *delivery, int64_t now_ns)
{
    if (delivery->bos_due)
        announce_begin(delivery);
    if (delivery->state == UM_DELIVERY_ENDING)
        finish(delivery, now_ns);
    if (delivery->state != UM_DELIVERY_RUNNING)
        return UM_NEVER_NS;
    int64_t interval_ns = delivery->receiver->config.loss_check_interval_ns;
    bool check = interval_ns != 0 && delivery->gap_count > 0 && now_ns >= delivery->loss_check_ns;
    if (delivery->starved || check) /* a gap that was being given up when the queue was full must go on */
        drain(delivery, now_ns, true);
    if (interval_ns == 0 || delivery->gap_count == 0)
        delivery->loss_check_ns = UM_NEVER_NS;
    else if (check || delivery->loss_check_ns == UM_NEVER_NS)
        delivery->loss_check_ns = now_ns + interval_ns;
    return delivery->loss_check_ns;
}

void um_delivery_fini(um_delivery *delivery)
{
    if (delivery->state == UM_DELIVERY_STARTING)
        delivery->next_sqn = delivery->lowest_held;
    clear_held(delivery);
    delivery->receiver->controller_count--;
    delivery->receiver->counters.delivery_controllers = delivery->receiver->controller_count;
}
