/* A controller whose queue was cut loose, because its reader is slow (message_queue.h draws the states of the queue).
 * It drops its messages and remembers their range. When the queue is open again, it appends one UM_ROW_CUT_LOOSE and
 * then fetches the range, if off-transport recovery is offered; otherwise loss_declaration.c declares it lost in one
 * event. Private to the controller's files.
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

enum um_slow_reader_end {
    UM_SLOW_READER_WAITS = 0,   /* the queue is not open yet */
    UM_SLOW_READER_RESUMES = 1, /* nothing was dropped, or all of it is being fetched */
    UM_SLOW_READER_LOST = 2, /* the caller declares everything up to highest_sqn lost; there is space for the event */
};

/* Ends the cut once the queue is open again: appends the event, and starts a fetch if one is offered. */
enum um_slow_reader_end um_slow_reader_resume(um_delivery *delivery, int64_t now_ns);

#endif
