/* A controller whose queue was cut loose, because its reader is slow (message_queue.h draws the states of the queue).
 * It drops its messages and remembers their range. When the queue is open again, it appends one UM_ROW_CUT_LOOSE and
 * then fetches the range, if off-transport recovery is offered, or declares it lost in one event. Private to the
 * controller's files.
 *
 * Threads: the context lock. Memory: none. Complexity: constant, besides clearing the order map once.
 */
#ifndef UM_CORE_SLOW_READER_H
#define UM_CORE_SLOW_READER_H

#include "core/delivery/delivery_state.h"

/* True if messages of the controller are dropped now. A fetch bounds its memory itself. */
static inline bool um_slow_reader_drops(const um_delivery *delivery)
{
    return delivery->is_starved && delivery->receiver->queue->state == UM_QUEUE_CUT_LOOSE &&
           delivery->state == UM_DELIVERY_RUNNING && !um_delivery_fetch_is_active(delivery);
}

/* True if the queue holds its messages in a reorder buffer that is running short: it is cut loose at once. */
bool um_slow_reader_fills_the_buffer(um_delivery *delivery);

/* Drops the messages that wait in the order map, once. */
void um_slow_reader_cut(um_delivery *delivery);

/* Reports the dropped range, if there is one and the queue is open again. Returns false if that is still to be done. */
bool um_slow_reader_resume(um_delivery *delivery, int64_t now_ns);

#endif
