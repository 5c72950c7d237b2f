#include "core/delivery/order_map.h"

um_gap *um_order_map_oldest_gap(um_delivery *delivery)
{
    for (; delivery->gap_count > 0; delivery->gap_count--) {
        um_gap *gap = um_order_map_gap(delivery, 0);
        if (um_serial_before(gap->first, delivery->next_sqn))
            gap->first = delivery->next_sqn;
        for (; !um_serial_before(gap->last, gap->first); gap->first++)
            if (um_order_map_is_gap(delivery, gap->first))
                return gap;
        delivery->gap_first = (delivery->gap_first + 1) % UM_DELIVERY_GAPS_MAX;
    }
    return NULL;
}

static uint32_t first_of(const um_delivery *delivery, uint32_t from, uint32_t end, bool is_held)
{
    const um_reorder_buffer *store = delivery->receiver->store;
    for (uint32_t i = 0; i < store->entries_begun && delivery->held_count > 0; i++) {
        const um_reorder_entry *entry = &store->entries[i];
        bool counts = entry->owner == delivery->id && !(is_held && entry->state == UM_REORDER_EXPECTED);
        if (counts && entry->sqn - from < end - from)
            end = entry->sqn;
    }
    return end;
}

uint32_t um_order_map_first_entry(const um_delivery *delivery, uint32_t from, uint32_t end)
{
    return first_of(delivery, from, end, false);
}

uint32_t um_order_map_first_held(const um_delivery *delivery, uint32_t from, uint32_t end)
{
    return first_of(delivery, from, end, true);
}

void um_order_map_clear(um_delivery *delivery)
{
    um_reorder_buffer *store = delivery->receiver->store;
    /* Entries are spread over [next_sqn, highest_sqn]: walk that range or the whole reorder buffer, whichever is
     * shorter. */
    uint32_t range = delivery->highest_sqn + 1 - delivery->next_sqn;
    if (range <= store->entries_begun) {
        for (uint32_t i = 0; i < range && delivery->held_count > 0; i++) {
            um_reorder_entry *entry = um_order_map_find(delivery, delivery->next_sqn + i);
            if (entry != NULL)
                um_order_map_remove(delivery, entry);
        }
    } else {
        for (uint32_t i = 0; i < store->entries_begun && delivery->held_count > 0; i++)
            if (store->entries[i].owner == delivery->id)
                um_order_map_remove(delivery, &store->entries[i]);
    }
    um_debug_assert(delivery->held_count == 0);
    delivery->gap_count = 0;
}
