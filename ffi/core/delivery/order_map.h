/* The order map of a delivery controller: the entries of topic sqns in [next_sqn, highest_sqn] in the context's reorder
 * buffer (UM-9, UM-10), and the gaps between them, oldest first. Private to the controller's files.
 *
 * Threads: the context lock. Memory: the reorder buffer's. At most UM_DELIVERY_GAPS_MAX gaps; further ones merge with
 * the youngest. Complexity: expected constant per sqn. Errors: NULL if the reorder buffer is full.
 */

#ifndef UM_CORE_ORDER_MAP_H
#define UM_CORE_ORDER_MAP_H

#include "core/delivery/delivery_state.h"

static inline um_gap *um_order_map_gap(um_delivery *delivery, uint32_t i)
{
    return &delivery->gaps[(delivery->gap_first + i) % UM_DELIVERY_GAPS_MAX];
}

/* Adds a gap behind the others, revealed by the datagram highest_transport_sqn. Counts no loss, because the messages
 * may have been dropped on purpose. */
static inline void um_order_map_note_gap(um_delivery *delivery, uint32_t first, uint32_t last, int64_t now_ns)
{
    if (delivery->gap_count == UM_DELIVERY_GAPS_MAX) {
        /* Merged with the youngest: its older part is given up later than necessary. */
        um_gap *youngest = um_order_map_gap(delivery, UM_DELIVERY_GAPS_MAX - 1);
        youngest->last = last;
        youngest->detected_ns = now_ns;
        youngest->transport_sqn = delivery->highest_transport_sqn;
        return;
    }
    um_gap *youngest = delivery->gap_count == 0 ? NULL : um_order_map_gap(delivery, delivery->gap_count - 1);
    if (youngest != NULL && youngest->last + 1 == first && youngest->detected_ns == now_ns)
        youngest->last = last;
    else
        *um_order_map_gap(delivery, delivery->gap_count++) =
            (um_gap){first, last, now_ns, delivery->highest_transport_sqn};
}

/* Adds a gap before all others. */
static inline void um_order_map_note_front_gap(um_delivery *delivery, uint32_t first, uint32_t last, int64_t now_ns)
{
    if (delivery->gap_count == UM_DELIVERY_GAPS_MAX) {
        um_order_map_gap(delivery, 0)->first = first;
        return;
    }
    delivery->gap_first = (delivery->gap_first + UM_DELIVERY_GAPS_MAX - 1) % UM_DELIVERY_GAPS_MAX;
    delivery->gap_count++;
    *um_order_map_gap(delivery, 0) = (um_gap){first, last, now_ns, delivery->highest_transport_sqn};
}

static inline void um_order_map_add_gap(um_delivery *delivery, uint32_t first, uint32_t last, int64_t now_ns)
{
    UM_COUNT(delivery->receiver->context_counters->fragments_lost, last - first + 1);
    um_order_map_note_gap(delivery, first, last, now_ns);
}

/* Forgets the sqns from `end` on, none of which is held: they may not exist. */
static inline void um_order_map_cut(um_delivery *delivery, uint32_t end)
{
    while (delivery->gap_count > 0 &&
           !um_serial_before(um_order_map_gap(delivery, delivery->gap_count - 1)->first, end))
        delivery->gap_count--;
    um_gap *youngest = delivery->gap_count == 0 ? NULL : um_order_map_gap(delivery, delivery->gap_count - 1);
    if (youngest != NULL && !um_serial_before(youngest->last, end))
        youngest->last = end - 1;
    if (!um_serial_before(delivery->highest_sqn, end))
        delivery->highest_sqn = end - 1;
}

static inline um_reorder_entry *um_order_map_find(um_delivery *delivery, uint32_t sqn)
{
    return delivery->held_count == 0 ? NULL : um_reorder_find(delivery->receiver->store, delivery->id, sqn);
}

static inline um_reorder_entry *um_order_map_add(um_delivery *delivery, uint32_t sqn)
{
    um_reorder_entry *entry = um_reorder_add(delivery->receiver->store, delivery->id, sqn);
    delivery->held_count += entry != NULL;
    delivery->receiver->counters.order_map_entries += entry != NULL;
    return entry;
}

static inline void um_order_map_remove(um_delivery *delivery, um_reorder_entry *entry)
{
    um_reorder_remove(delivery->receiver->store, entry);
    delivery->held_count--;
    delivery->receiver->counters.order_map_entries--;
}

static inline um_reorder_entry *um_order_map_find_or_add(um_delivery *delivery, uint32_t sqn)
{
    um_reorder_entry *entry = um_order_map_find(delivery, sqn);
    return entry ? entry : um_order_map_add(delivery, sqn);
}

static inline bool um_order_map_is_gap(um_delivery *delivery, uint32_t sqn)
{
    const um_reorder_entry *entry = um_order_map_find(delivery, sqn);
    return entry == NULL || entry->state == UM_REORDER_EXPECTED;
}

/* Returns the oldest gap that still has lost sqns, or NULL. Parts that have been filled are removed from it, because
 * giving them up would drop messages that have arrived or can still become complete. */
um_gap *um_order_map_oldest_gap(um_delivery *delivery);

/* Returns the first sqn of [from, end) that has an entry, or end. The second variant skips entries that are only
 * expected. Linear in the order map. */
uint32_t um_order_map_first_entry(const um_delivery *delivery, uint32_t from, uint32_t end);
uint32_t um_order_map_first_held(const um_delivery *delivery, uint32_t from, uint32_t end);

/* Removes every entry and every gap. */
void um_order_map_clear(um_delivery *delivery);

#endif
