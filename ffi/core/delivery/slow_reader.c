#include "core/delivery/slow_reader.h"

#include "core/delivery/delivery_rows.h"
#include "core/delivery/off_transport.h"
#include "core/delivery/order_map.h"

bool um_slow_reader_fills_the_buffer(um_delivery *delivery)
{
    um_message_queue *queue = delivery->receiver->queue;
    if (!delivery->is_starved || queue->state != UM_QUEUE_HOLDING || delivery->state != UM_DELIVERY_RUNNING ||
        um_reorder_has_quarter_free(delivery->receiver->store))
        return false;
    queue->state = UM_QUEUE_CUT_LOOSE;
    return um_slow_reader_drops(delivery);
}

void um_slow_reader_cut(um_delivery *delivery)
{
    if (delivery->is_cut_loose)
        return;
    delivery->is_cut_loose = true;
    um_order_map_clear(delivery);
    UM_COUNT(delivery->receiver->counters.cut_loose, 1);
}

enum um_slow_reader_end um_slow_reader_resume(um_delivery *delivery, int64_t now_ns)
{
    uint32_t first = delivery->next_sqn, last = delivery->highest_sqn;
    um_debug_assert(delivery->gap_count == 0);
    /* One block has space for both rows. */
    bool is_open = delivery->receiver->queue->state != UM_QUEUE_CUT_LOOSE;
    if (!is_open || !um_queue_has_free_blocks(delivery->receiver->queue, 1)) {
        um_delivery_starve(delivery);
        return UM_SLOW_READER_WAITS;
    }
    if (!um_serial_before(last, first) && !um_delivery_append_event(delivery, UM_ROW_CUT_LOOSE, first, last, now_ns))
        return UM_SLOW_READER_WAITS;
    delivery->is_cut_loose = false;
    if (um_serial_before(last, first))
        return UM_SLOW_READER_RESUMES;
    UM_COUNT(delivery->receiver->counters.cut_loose_messages, last - first + 1);
    /* In arrival order some of them were delivered, and fetching would deliver them twice. */
    if (um_otr_is_offered(delivery) && delivery->receiver->config.ordered_delivery == UM_ORDERED_SEQUENCE) {
        /* As old as a gap that the transport has given up, because it has nothing left to recover. */
        um_order_map_add_gap(delivery, first, last, now_ns - delivery->give_up_ns);
        um_otr_begin(delivery);
        return UM_SLOW_READER_RESUMES;
    }
    return UM_SLOW_READER_LOST;
}
