/* Rows that a delivery controller appends to its receiver's queue: messages, copied or left in their frames, and events
 * (UM-53..UM-61, UM-76, UM-101). Private to the controller's files.
 *
 * Threads: the context lock. Memory: the queue's. Complexity: linear in the bytes copied. Errors: false or NULL if the
 * queue is full; the controller is starved then and nothing has changed. Inline because it runs once per message;
 * delivery_rows.c has the rare cases.
 */

#ifndef UM_CORE_DELIVERY_ROWS_H
#define UM_CORE_DELIVERY_ROWS_H

#include "core/delivery/delivery_state.h"

/* Waits for space in the queue: its owner looks at the queue until there is some. */
static inline void um_delivery_starve(um_delivery *delivery)
{
    delivery->is_starved = true;
    if (um_queue_hold(delivery->receiver->queue))
        UM_COUNT(delivery->receiver->counters.queue_full_pauses, 1);
}

static inline uint8_t *um_delivery_reserve_row(um_delivery *delivery, uint32_t bytes)
{
    uint8_t *payload = um_queue_reserve(delivery->receiver->queue, bytes);
    if (UM_UNLIKELY(payload == NULL))
        um_delivery_starve(delivery);
    return payload;
}

static inline bool um_delivery_append_event(um_delivery *delivery, enum um_row_kind kind, uint32_t first, uint32_t last,
                                            int64_t now_ns)
{
    if (um_delivery_reserve_row(delivery, 0) == NULL)
        return false;
    um_row row = {.flags = (uint16_t)(kind << 8),
                  .sequence_number = last,
                  .first_sequence_number = first,
                  .source = delivery->source,
                  .received_ns = now_ns};
    um_queue_append(delivery->receiver->queue, &row, 0);
    delivery->has_rows = true;
    return true;
}

/* Appends the rows of announcements_due in order. Those that find no space stay due. */
static inline bool um_delivery_announce(um_delivery *delivery)
{
    static const struct {
        enum um_announcement announcement;
        enum um_row_kind kind;
    } rows[] = {{UM_ANNOUNCE_SOURCE, UM_ROW_SOURCE_CREATED},
                {UM_ANNOUNCE_BEGINNING, UM_ROW_BEGINNING_OF_SESSION},
                {UM_ANNOUNCE_NAK_CUTOFF, UM_ROW_NAK_CUTOFF},
                {UM_ANNOUNCE_STALE_TAGS, UM_ROW_STALE_TAGS}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!(delivery->announcements_due & rows[i].announcement))
            continue;
        if (!um_delivery_append_event(delivery, rows[i].kind, 0, 0, 0))
            return false;
        delivery->announcements_due &= (uint8_t)~rows[i].announcement;
    }
    return true;
}

/* Messages lost before the first delivered one are counted, not reported (UM-135). Nothing was delivered as long as
 * every loss starts where the previous one ended. */
static inline bool um_delivery_is_leading(um_delivery *delivery, uint32_t first, uint32_t last)
{
    delivery->is_leading &= first == delivery->leading_sqn;
    if (!delivery->is_leading)
        return false;
    delivery->leading_sqn = last + 1;
    UM_COUNT(delivery->receiver->counters.leading_losses, last - first + 1);
    return true;
}

static inline bool um_delivery_append_loss(um_delivery *delivery, uint32_t sqn, int64_t now_ns)
{
    if (UM_UNLIKELY(delivery->is_leading) && um_delivery_is_leading(delivery, sqn, sqn))
        return true;
    if (!um_delivery_append_event(delivery, UM_ROW_UNRECOVERABLE_LOSS, sqn, sqn, now_ns))
        return false;
    UM_COUNT(delivery->receiver->counters.unrecoverable_loss_events, 1);
    UM_COUNT(delivery->receiver->context_counters->fragments_unrecoverably_lost, 1);
    return true;
}

static inline void um_delivery_count_message(um_delivery *delivery, uint32_t length)
{
    UM_COUNT(delivery->receiver->counters.messages_delivered, 1);
    UM_COUNT(delivery->receiver->counters.bytes_delivered, length);
}

static inline void um_delivery_append_message(um_delivery *delivery, const um_row *row, uint32_t length)
{
    um_queue_append(delivery->receiver->queue, row, length);
    um_delivery_count_message(delivery, length);
}

static inline bool um_delivery_append_payload(um_delivery *delivery, const um_row *row, const uint8_t *payload,
                                              uint32_t length)
{
    uint8_t *space = um_delivery_reserve_row(delivery, length);
    if (UM_UNLIKELY(space == NULL))
        return false;
    memcpy(space, payload, length);
    um_delivery_append_message(delivery, row, length);
    return true;
}

/* Stores where responses go, from the option of a request, in the reserved row. */
static inline void um_delivery_note_request(um_delivery *delivery, const uint8_t *option)
{
    um_request request = um_lbmc_read_request(option);
    um_queue_note_request(delivery->receiver->queue, &request);
}

/* Appends the reserved row, whose space holds `length` bytes: a whole message that ends with properties. Properties
 * that cannot be read are dropped and counted. */
void um_delivery_append_with_properties(um_delivery *delivery, um_row *row, const uint8_t *space, uint32_t length,
                                        uint32_t properties_bytes);

/* Appends a whole message or a single fragment with any flags. `request` is the option of a message with
 * UM_MESSAGE_REQUEST, `properties_bytes` the length of the properties of one with UM_MESSAGE_PROPERTIES. */
bool um_delivery_append_any(um_delivery *delivery, um_row *row, const uint8_t *payload, uint32_t length,
                            const uint8_t *request, uint32_t properties_bytes);

/* True if a message fills most of its datagram, so that pinning the frame is cheaper than a copy. */
static inline bool um_delivery_can_pin(const um_lbmc_message *message, const um_arrival *arrival)
{
    return message->payload_length >= UM_QUEUE_PINNED_BYTES_MIN &&
           message->payload_length > arrival->datagram_bytes / 2 && arrival->frames != NULL;
}

/* Returns false if the queue is full or the frame cannot be pinned. */
static inline bool um_delivery_append_in_frame(um_delivery *delivery, const um_row *row, const um_lbmc_message *message,
                                               const um_arrival *arrival)
{
    uint32_t length = message->payload_length;
    if (um_delivery_reserve_row(delivery, length) == NULL || !arrival->frames->pin(arrival->frames, message->payload))
        return false;
    um_queue_append_pinned(delivery->receiver->queue, row, message->payload, length, arrival->frames);
    um_delivery_count_message(delivery, length);
    return true;
}

/* Returns the message as a hot failover receiver gets it: its payload starts with the hot failover options, which all
 * fragments of a message repeat and which are delivered once. */
static inline const um_lbmc_message *um_delivery_with_options(const um_lbmc_message *message, um_lbmc_message *changed)
{
    if (!(message->flags & UM_MESSAGE_HOT_FAILOVER))
        return message;
    uint32_t before = (uint32_t)(message->payload - message->hot_failover);
    *changed = *message;
    if (message->flags & UM_MESSAGE_FRAGMENT)
        changed->total += before;
    if (message->flags & UM_MESSAGE_FRAGMENT && message->offset > 0) {
        changed->offset += before;
    } else {
        changed->payload -= before;
        changed->payload_length += before;
    }
    if (message->flags & UM_MESSAGE_REQUEST) /* the request option no longer precedes the payload */
        changed->flags &= (uint16_t)~UM_MESSAGE_REQUEST;
    return changed;
}

#endif
