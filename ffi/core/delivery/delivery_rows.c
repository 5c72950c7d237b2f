#include "core/delivery/delivery_rows.h"

#include "core/wire/message_properties.h"

static void append_without_properties(um_delivery *delivery, um_row *row, uint32_t payload_bytes)
{
    row->flags &= (uint16_t)~UM_MESSAGE_PROPERTIES;
    um_delivery_append_message(delivery, row, payload_bytes);
}

/* If the row is shorter than its properties, all bytes are payload. Unreadable properties are dropped. */
void um_delivery_append_with_properties(um_delivery *delivery, um_row *row, const uint8_t *space, uint32_t length,
                                        uint32_t properties_bytes)
{
    bool are_inside = properties_bytes <= length;
    uint32_t payload_bytes = are_inside ? length - properties_bytes : length;
    row->message_length -= length - payload_bytes;
    if (are_inside && um_message_properties_is_sound(space + payload_bytes, properties_bytes)) {
        um_queue_append_with_properties(delivery->receiver->queue, row, payload_bytes, properties_bytes);
        um_delivery_count_message(delivery, payload_bytes);
    } else {
        UM_COUNT(delivery->receiver->counters.properties_dropped, 1);
        append_without_properties(delivery, row, payload_bytes);
    }
}

/* Appends a single fragment. The properties are appended with it only if it holds all of them. */
static void append_fragment_with_properties(um_delivery *delivery, um_row *row, const uint8_t *space, uint32_t length,
                                            uint32_t properties_bytes)
{
    uint32_t total = row->message_length, offset = row->fragment_offset;
    uint32_t begin = total - properties_bytes, end = offset + length;
    if (properties_bytes > total || (offset <= begin && end == total)) {
        um_delivery_append_with_properties(delivery, row, space, length, properties_bytes);
        return;
    }
    UM_COUNT(delivery->receiver->counters.properties_dropped, end == total);
    uint32_t payload_end = begin < end ? begin : end;
    row->message_length = begin;
    append_without_properties(delivery, row, payload_end > offset ? payload_end - offset : 0);
}

bool um_delivery_append_any(um_delivery *delivery, um_row *row, const uint8_t *payload, uint32_t length,
                            const uint8_t *request, uint32_t properties_bytes)
{
    uint8_t *space = um_delivery_reserve_row(delivery, length);
    if (space == NULL)
        return false;
    memcpy(space, payload, length);
    if (UM_UNLIKELY(row->flags & UM_MESSAGE_REQUEST))
        um_delivery_note_request(delivery, request);
    bool keeps_properties = delivery->receiver->config.keeps_properties;
    if (UM_UNLIKELY(keeps_properties && row->flags & UM_MESSAGE_PROPERTIES))
        um_queue_note_properties(delivery->receiver->queue, properties_bytes);
    if (UM_LIKELY(!(row->flags & UM_MESSAGE_PROPERTIES) || keeps_properties))
        um_delivery_append_message(delivery, row, length);
    else if (row->flags & UM_MESSAGE_FRAGMENT)
        append_fragment_with_properties(delivery, row, space, length, properties_bytes);
    else
        um_delivery_append_with_properties(delivery, row, space, length, properties_bytes);
    return true;
}
