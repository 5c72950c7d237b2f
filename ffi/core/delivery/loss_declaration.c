#include "core/delivery/loss_declaration.h"

#include "core/delivery/delivery_fetch.h"
#include "core/delivery/delivery_rows.h"
#include "core/delivery/off_transport.h"
#include "core/delivery/order_map.h"
#include "core/delivery/reassembly.h"
#include "core/delivery/slow_reader.h"

enum { RUN_EVENTS_MAX = 1024 }; /* a longer run that cannot be fetched is one event (UX-7) */

/* Counts messages that neither late join nor off-transport recovery could fetch. */
static void count_past_lost(um_delivery *delivery, uint32_t first, uint32_t count)
{
    um_receiver_counters *counters = &delivery->receiver->counters;
    if (!um_delivery_is_past_lost(delivery, first))
        return;
    if (delivery->fetch.kind == UM_DELIVERY_FETCH_LATE_JOIN) {
        UM_COUNT(counters->late_join_lost, count);
        return;
    }
    UM_COUNT(counters->otr_lost, count);
    delivery->unfetched_count += count;
}

/* Declares one topic sqn lost and removes its entry. Returns false if the queue is full. */
static bool um_loss_declare(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    if (!um_delivery_append_loss(delivery, sqn, now_ns))
        return false;
    um_reorder_entry *entry = um_order_map_find(delivery, sqn);
    if (entry != NULL)
        um_order_map_remove(delivery, entry);
    return true;
}

enum head_result { HEAD_PASSED, HEAD_WAITS, QUEUE_FULL };

/* Handles the fragment at the head: its message is delivered, refused, incomplete, or can never become complete. */
static enum head_result deliver_head_fragment(um_delivery *delivery, um_reorder_entry *head, int64_t now_ns)
{
    if (head->first_sqn != head->sqn) { /* the first fragment was given up or never seen */
        um_order_map_remove(delivery, head);
        delivery->next_sqn++;
        return HEAD_PASSED;
    }
    uint32_t last_sqn;
    switch (um_reassembly_deliver(delivery, head, &last_sqn)) {
    case UM_ASSEMBLY_INCOMPLETE:
        return HEAD_WAITS;
    case UM_ASSEMBLY_QUEUE_FULL:
        return QUEUE_FULL;
    case UM_ASSEMBLY_REFUSED:
        for (; delivery->next_sqn != last_sqn + 1; delivery->next_sqn++)
            if (!um_loss_declare(delivery, delivery->next_sqn, now_ns))
                return QUEUE_FULL;
        return HEAD_PASSED;
    case UM_ASSEMBLY_DELIVERED:
        for (; delivery->next_sqn != last_sqn + 1; delivery->next_sqn++)
            um_order_map_remove(delivery, um_order_map_find(delivery, delivery->next_sqn));
        return HEAD_PASSED;
    }
    return HEAD_WAITS;
}

/* Reports a message that is too long once, at its first fragment that gets here. Returns false if the queue is full. */
static bool report_refused(um_delivery *delivery, const um_reorder_entry *head, int64_t now_ns)
{
    if (delivery->has_refused && delivery->refused_first_sqn == head->first_sqn && head->sqn != head->first_sqn) {
        UM_COUNT(delivery->receiver->context_counters->fragments_unrecoverably_lost, 1);
        return true;
    }
    if (!um_delivery_append_loss(delivery, head->sqn, now_ns))
        return false;
    delivery->has_refused = true;
    delivery->refused_first_sqn = head->first_sqn;
    return true;
}

static enum head_result deliver_head(um_delivery *delivery, int64_t now_ns)
{
    um_reorder_entry *head = um_order_map_find(delivery, delivery->next_sqn);
    if (head == NULL || head->state == UM_REORDER_EXPECTED)
        return HEAD_WAITS;
    if (head->state == UM_REORDER_REFUSED && !report_refused(delivery, head, now_ns))
        return QUEUE_FULL;
    if (head->state == UM_REORDER_PAYLOAD && (head->flags & UM_MESSAGE_FRAGMENT) &&
        delivery->receiver->config.ordered_delivery != UM_ORDERED_FRAGMENTS)
        return deliver_head_fragment(delivery, head, now_ns);
    if (head->state == UM_REORDER_PAYLOAD && !um_reassembly_append_entry(delivery, head))
        return QUEUE_FULL;
    um_order_map_remove(delivery, head);
    delivery->next_sqn++;
    return HEAD_PASSED;
}

/* Passes the first lost sqn and the received fragments of its message. The event is appended before anything is
 * dropped, so that nothing has changed if the queue is full. */
static bool pass_incomplete(um_delivery *delivery, int64_t now_ns)
{
    uint32_t lost = delivery->next_sqn;
    while (!um_order_map_is_gap(delivery, lost))
        lost++;
    if (!um_loss_declare(delivery, lost, now_ns))
        return false;
    count_past_lost(delivery, lost, 1);
    for (; delivery->next_sqn != lost; delivery->next_sqn++)
        um_order_map_remove(delivery, um_order_map_find(delivery, delivery->next_sqn));
    delivery->next_sqn++;
    return true;
}

/* Returns the last sqn of a gap that is given up with it; later ones are still being fetched. */
static uint32_t last_given_up(const um_delivery *delivery, const um_gap *gap)
{
    uint32_t lost_to = delivery->fetch.lost_to;
    return um_delivery_is_past_lost(delivery, gap->first) && um_serial_before(lost_to, gap->last + 1) ? lost_to - 1
                                                                                                      : gap->last;
}

/* Declares a long run at the head lost in one event, if none of it can be fetched. Returns false if the queue is full.
 */
static bool declare_run(um_delivery *delivery, uint32_t last, int64_t now_ns)
{
    if (!um_delivery_is_past_lost(delivery, last) || last - delivery->next_sqn < RUN_EVENTS_MAX ||
        um_serial_before(last, delivery->next_sqn))
        return true;
    uint32_t end = um_order_map_first_held(delivery, delivery->next_sqn, last + 1);
    uint32_t count = end - delivery->next_sqn;
    if (count <= RUN_EVENTS_MAX)
        return true;
    if (!um_delivery_append_event(delivery, UM_ROW_BURST_LOSS, delivery->next_sqn, end - 1, now_ns))
        return false;
    count_past_lost(delivery, delivery->next_sqn, count);
    UM_COUNT(delivery->receiver->counters.burst_loss_events, 1);
    UM_COUNT(delivery->receiver->context_counters->fragments_unrecoverably_lost, count);
    /* Entries that only count bytes belong to messages whose first fragment is in the run. */
    for (uint32_t sqn; (sqn = um_order_map_first_entry(delivery, delivery->next_sqn, end)) != end;)
        um_order_map_remove(delivery, um_order_map_find(delivery, sqn));
    delivery->next_sqn = end;
    return true;
}

/* Counts losses before the first message in one step, because no event limits how long the run is (UM-135). */
static void pass_leading(um_delivery *delivery, uint32_t last)
{
    if (!delivery->is_leading || um_serial_before(last, delivery->next_sqn))
        return;
    uint32_t first = delivery->next_sqn, end = um_order_map_first_entry(delivery, first, last + 1);
    if (end == first || !um_delivery_is_leading(delivery, first, end - 1))
        return;
    count_past_lost(delivery, first, end - first);
    delivery->next_sqn = end;
}

bool um_loss_give_up_gap(um_delivery *delivery, const um_gap *gap, int64_t now_ns)
{
    uint32_t last = last_given_up(delivery, gap);
    if (delivery->announcements_due && !um_delivery_announce(delivery))
        return false;
    pass_leading(delivery, last);
    if (UM_UNLIKELY(!declare_run(delivery, last, now_ns)))
        return false;
    while (!um_serial_before(last, delivery->next_sqn) && !um_order_map_is_gap(delivery, last))
        last--;
    while (!um_serial_before(last, delivery->next_sqn)) {
        enum head_result result = deliver_head(delivery, now_ns);
        if (result == QUEUE_FULL)
            return false;
        if (result == HEAD_PASSED)
            continue;
        if (!pass_incomplete(delivery, now_ns))
            return false;
    }
    um_order_map_oldest_gap(delivery); /* removes the passed gap */
    return true;
}

/* Called if the message at the head is incomplete without a gap. Returns true if its last fragment is there: then its
 * fragments contradict each other, and it will never be complete. */
static bool is_contradicted(um_delivery *delivery)
{
    const um_reorder_entry *head = um_order_map_find(delivery, delivery->next_sqn);
    const um_reorder_entry *newest = um_order_map_find(delivery, delivery->highest_sqn);
    return head != NULL && newest != NULL && newest->first_sqn != head->sqn;
}

static bool is_over_bound(const um_delivery *delivery) /* UX-6 */
{
    uint32_t most = delivery->receiver->config.map_entries_max;
    return most != 0 && delivery->held_count > most;
}

static bool has_expired(const um_delivery *delivery, const um_gap *gap, int64_t now_ns)
{
    return now_ns - gap->detected_ns >= delivery->give_up_ns ||
           (um_delivery_is_past_lost(delivery, gap->first) &&
            (delivery->fetch.kind != UM_DELIVERY_FETCH_OFF_TRANSPORT || delivery->fetch.is_transport_done));
}

/* True if the gap starts after the messages that cannot be fetched and a running fetch can still fill it. */
static bool is_fetched(const um_delivery *delivery, const um_gap *gap)
{
    const um_delivery_fetch *fetch = &delivery->fetch;
    return um_delivery_fetch_is_running(delivery) && um_serial_before(gap->first, fetch->target) &&
           !um_delivery_is_past_lost(delivery, gap->first);
}

bool um_loss_is_unchanged(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    const um_gap *oldest = um_order_map_gap(delivery, 0);
    return sqn != delivery->next_sqn && delivery->gap_count > 0 && oldest->first == delivery->next_sqn &&
           !delivery->is_starved && !delivery->announcements_due && !is_over_bound(delivery) &&
           !has_expired(delivery, oldest, now_ns) && !um_otr_is_due(delivery, oldest, false, now_ns);
}

static bool resume_slow_reader(um_delivery *delivery, int64_t now_ns)
{
    enum um_slow_reader_end end = um_slow_reader_resume(delivery, now_ns);
    if (end != UM_SLOW_READER_LOST)
        return end == UM_SLOW_READER_RESUMES;
    return um_loss_declare_burst(delivery, delivery->highest_sqn + 1, now_ns);
}

static bool drain(um_delivery *delivery, int64_t now_ns, bool may_give_up)
{
    delivery->is_starved = false;
    if (delivery->announcements_due && !um_delivery_announce(delivery))
        return false;
    if (delivery->fetch.state == UM_DELIVERY_FETCH_STARTING)
        return true;
    if (UM_UNLIKELY(delivery->is_cut_loose) && !resume_slow_reader(delivery, now_ns))
        return false;
    for (;;) {
        enum head_result result;
        do
            result = deliver_head(delivery, now_ns);
        while (result == HEAD_PASSED);
        if (result == QUEUE_FULL)
            return false;
        if (UM_UNLIKELY(um_delivery_fetch_is_active(delivery))) { /* later missing messages may still be fetched */
            um_delivery_fetch_end_if_complete(delivery);
            if (um_delivery_is_fetching_next(delivery))
                return true;
        }
        const um_gap *gap = um_order_map_oldest_gap(delivery);
        if (gap == NULL) {
            if (!is_contradicted(delivery))
                return true;
            if (!um_loss_declare(delivery, delivery->next_sqn, now_ns))
                return false;
            UM_COUNT(delivery->receiver->counters.malformed_fragments, 1);
            delivery->next_sqn++;
            continue;
        }
        if (UM_UNLIKELY(is_fetched(delivery, gap)))
            return true;
        bool over_bound = is_over_bound(delivery);
        bool expired = may_give_up && has_expired(delivery, gap, now_ns);
        if (UM_UNLIKELY(um_otr_is_due(delivery, gap, over_bound || expired, now_ns))) {
            um_otr_begin(delivery);
            return true;
        }
        if (over_bound)
            UM_COUNT(delivery->receiver->counters.order_map_overflows, 1);
        if (!over_bound && !expired)
            return true;
        if (!um_loss_give_up_gap(delivery, gap, now_ns))
            return false;
    }
}

bool um_loss_drain(um_delivery *delivery, int64_t now_ns, bool may_give_up)
{
    bool has_space = drain(delivery, now_ns, may_give_up);
    if (UM_UNLIKELY(um_delivery_fetch_is_active(delivery)))
        um_delivery_fetch_end_if_complete(delivery);
    return has_space;
}

bool um_loss_declare_burst(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    if (delivery->announcements_due && !um_delivery_announce(delivery))
        return false;
    bool is_leading = um_delivery_is_leading(delivery, delivery->next_sqn, sqn - 1);
    if (!is_leading && !um_delivery_append_event(delivery, UM_ROW_BURST_LOSS, delivery->next_sqn, sqn - 1, now_ns))
        return false;
    UM_COUNT(delivery->receiver->counters.burst_loss_events, !is_leading);
    UM_COUNT(delivery->receiver->context_counters->fragments_unrecoverably_lost,
             is_leading ? 0 : sqn - delivery->next_sqn);
    um_order_map_clear(delivery);
    delivery->next_sqn = sqn;
    delivery->highest_sqn = sqn - 1;
    return true;
}
