#include "core/delivery/reassembly.h"

#include "core/delivery/delivery_rows.h"
#include "core/delivery/order_map.h"

bool um_reassembly_count(um_delivery *delivery, const um_reorder_entry *fragment)
{
    if (um_serial_before(fragment->first_sqn, delivery->next_sqn))
        return true;
    uint32_t length = fragment->length;
    um_reorder_entry *first = um_order_map_find_or_add(delivery, fragment->first_sqn);
    if (first != NULL)
        first->assembled_bytes += length;
    return first != NULL;
}

/* For a message with all bytes received: true if its fragments are contiguous from `first`. Stores the last sqn. */
static bool is_contiguous(um_delivery *delivery, const um_reorder_entry *first, uint32_t *last_sqn)
{
    uint32_t bytes = 0;
    for (uint32_t sqn = first->sqn; bytes < first->total; sqn++) {
        um_reorder_entry *entry = um_order_map_find(delivery, sqn);
        if (entry == NULL || entry->state != UM_REORDER_PAYLOAD || !(entry->flags & UM_MESSAGE_FRAGMENT) ||
            entry->first_sqn != first->sqn || entry->total != first->total || entry->fragment_offset != bytes)
            return false;
        bytes += entry->length;
        *last_sqn = sqn;
    }
    return bytes == first->total;
}

bool um_reassembly_append_entry(um_delivery *delivery, const um_reorder_entry *entry)
{
    um_row row = um_reassembly_row(delivery, entry);
    const uint8_t *payload = um_reorder_payload(delivery->receiver->store, entry);
    return um_delivery_append_any(delivery, &row, payload, entry->length, payload - entry->request_before,
                                  entry->properties_bytes);
}

enum um_assembly um_reassembly_deliver(um_delivery *delivery, um_reorder_entry *first, uint32_t *last_sqn)
{
    if (first->state != UM_REORDER_PAYLOAD || first->assembled_bytes < first->total)
        return UM_ASSEMBLY_INCOMPLETE;
    if (first->fragment_offset != 0 || !is_contiguous(delivery, first, last_sqn)) {
        UM_COUNT(delivery->receiver->counters.malformed_fragments, 1);
        *last_sqn = first->sqn;
        first->assembled_bytes = 0; /* the next attempt needs as many bytes again */
        return UM_ASSEMBLY_REFUSED;
    }
    uint8_t *payload = um_delivery_reserve_row(delivery, first->total);
    if (payload == NULL)
        return UM_ASSEMBLY_QUEUE_FULL;
    um_row row = um_reassembly_row(delivery, first);
    for (uint32_t sqn = first->sqn; sqn != *last_sqn + 1; sqn++) {
        const um_reorder_entry *entry = um_order_map_find(delivery, sqn);
        memcpy(payload + entry->fragment_offset, um_reorder_payload(delivery->receiver->store, entry), entry->length);
        row.flags |= entry->flags & (uint16_t) ~(UM_MESSAGE_REQUEST | UM_MESSAGE_PROPERTIES); /* taken from the first */
        row.received_ns = entry->received_ns > row.received_ns ? entry->received_ns : row.received_ns;
    }
    row.sequence_number = *last_sqn; /* UM-57 */
    if (UM_UNLIKELY(row.flags & UM_MESSAGE_REQUEST))
        um_delivery_note_request(delivery,
                                 um_reorder_payload(delivery->receiver->store, first) - first->request_before);
    if (UM_UNLIKELY(row.flags & UM_MESSAGE_PROPERTIES))
        um_delivery_append_with_properties(delivery, &row, payload, first->total, first->properties_bytes);
    else
        um_delivery_append_message(delivery, &row, first->total);
    return UM_ASSEMBLY_DELIVERED;
}
