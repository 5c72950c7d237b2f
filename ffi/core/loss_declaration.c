#include "core/loss_declaration.h"

#include "core/delivery_rows.h"
#include "core/order_map.h"
#include "core/reassembly.h"

/* Everything of one topic sqn that is passed over as lost. */
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

/* The fragment at the head: its message is delivered, refused, waited for, or can never be complete. */
static enum head_result deliver_head_fragment(um_delivery *delivery, um_reorder_entry *head, int64_t now_ns)
{
    if (head->first_sqn != head->sqn) { /* the message's beginning was given up or never seen */
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

static enum head_result deliver_head(um_delivery *delivery, int64_t now_ns)
{
    um_reorder_entry *head = um_order_map_find(delivery, delivery->next_sqn);
    if (head == NULL || head->state == UM_REORDER_EXPECTED)
        return HEAD_WAITS;
    if (head->state == UM_REORDER_REFUSED && !um_delivery_append_loss(delivery, head->sqn, now_ns))
        return QUEUE_FULL;
    if (head->state == UM_REORDER_PAYLOAD && (head->flags & UM_MESSAGE_FRAGMENT) &&
        delivery->receiver->config.ordered_delivery != UM_ORDERED_FRAGMENTS)
        return deliver_head_fragment(delivery, head, now_ns);
    if (head->state == UM_REORDER_PAYLOAD) {
        um_row row = um_reassembly_row(delivery, head);
        const uint8_t *payload = um_reorder_payload(delivery->receiver->store, head);
        if (!um_delivery_append_payload(delivery, &row, payload, head->length))
            return QUEUE_FULL;
    }
    um_order_map_remove(delivery, head);
    delivery->next_sqn++;
    return HEAD_PASSED;
}

/* Passes the first sqn that is lost, and with it what was received of the message that lacks it. The event goes out
 * before anything is dropped: where the queue is full nothing has happened. */
static bool pass_incomplete(um_delivery *delivery, int64_t now_ns)
{
    uint32_t lost = delivery->next_sqn;
    while (!um_order_map_is_gap(delivery, lost))
        lost++;
    if (!um_loss_declare(delivery, lost, now_ns))
        return false;
    for (; delivery->next_sqn != lost; delivery->next_sqn++)
        um_order_map_remove(delivery, um_order_map_find(delivery, delivery->next_sqn));
    delivery->next_sqn++;
    return true;
}

bool um_loss_give_up_gap(um_delivery *delivery, const um_gap *gap, int64_t now_ns)
{
    uint32_t last = gap->last;
    if (delivery->bos_due && !um_delivery_announce_begin(delivery))
        return false;
    while (!um_order_map_is_gap(delivery, last))
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
    um_order_map_oldest_gap(delivery); /* takes the passed one off */
    return true;
}

/* There is no gap, yet the message at the head is not complete: unless its end is still to come, its fragments
 * contradict each other and it never will be. */
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
    return now_ns - gap->detected_ns >= delivery->give_up_ns;
}

bool um_loss_still_waits(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    const um_gap *oldest = um_order_map_gap(delivery, 0);
    return sqn != delivery->next_sqn && delivery->gap_count > 0 && oldest->first == delivery->next_sqn &&
           !delivery->starved && !delivery->bos_due && !is_over_bound(delivery) &&
           !has_expired(delivery, oldest, now_ns);
}

bool um_loss_drain(um_delivery *delivery, int64_t now_ns, bool may_give_up)
{
    delivery->starved = false;
    if (delivery->bos_due && !um_delivery_announce_begin(delivery))
        return false;
    if (delivery->late_join.is_holding)
        return true;
    for (;;) {
        enum head_result result;
        do
            result = deliver_head(delivery, now_ns);
        while (result == HEAD_PASSED);
        if (result == QUEUE_FULL)
            return false;
        if (UM_UNLIKELY(um_delivery_awaits_past(delivery)))
            return true;
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
        bool over_bound = is_over_bound(delivery);
        bool expired = may_give_up && has_expired(delivery, gap, now_ns);
        if (over_bound)
            UM_COUNT(delivery->receiver->counters.order_map_overflows, 1);
        if (!over_bound && !expired)
            return true;
        if (!um_loss_give_up_gap(delivery, gap, now_ns))
            return false;
    }
}

bool um_loss_declare_burst(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    if (delivery->bos_due && !um_delivery_announce_begin(delivery))
        return false;
    if (!um_delivery_append_event(delivery, UM_ROW_BURST_LOSS, delivery->next_sqn, sqn - 1, now_ns))
        return false;
    UM_COUNT(delivery->receiver->counters.burst_loss_events, 1);
    UM_COUNT(delivery->receiver->context_counters->fragments_unrecoverably_lost, sqn - delivery->next_sqn);
    um_order_map_clear(delivery);
    delivery->next_sqn = sqn;
    delivery->highest_sqn = sqn - 1;
    return true;
}
