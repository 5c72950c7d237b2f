/* Streams of messages that carry the counters 0, 1, 2, ... in their first eight bytes, and a record of the lost, late
 * and duplicate ones.
 *
 * The raw baselines must inspect every message, as the stack does. A message in order costs one comparison; only gaps
 * are stored. The record belongs to its caller, one thread at a time uses it, and it allocates nothing.
 */
#ifndef UM_BENCH_RAW_ORDER_H
#define UM_BENCH_RAW_ORDER_H

#include "core/foundation/base.h"

/* Beyond this many open gaps the oldest is closed: its missing messages stay lost, and count as duplicates if they
 * arrive after all. */
#define UM_RAW_GAP_CAPACITY 1024

/* Counters in [first, end) have not been seen. */
typedef struct um_raw_gap {
    uint64_t first;
    uint64_t end;
} um_raw_gap;

typedef struct um_raw_order {
    uint64_t next; /* one past the highest counter seen */
    uint64_t lost_count;
    uint64_t out_of_order_count; /* arrived after a later one; no longer lost */
    uint64_t duplicate_count;
    uint32_t gap_count;
    um_raw_gap gaps[UM_RAW_GAP_CAPACITY]; /* ascending */
} um_raw_order;

/* Writes the counters from `first` on into messages of one size, stored back to back. */
static inline void um_raw_order_stamp(uint8_t *messages, uint32_t message_bytes, uint32_t count, uint64_t first)
{
    for (uint64_t counter = first; counter < first + count; counter++, messages += message_bytes)
        memcpy(messages, &counter, sizeof counter);
}

void um_raw_order_init(um_raw_order *order);

/* Records a counter that is not the next one. */
void um_raw_order_note_misplaced(um_raw_order *order, uint64_t counter);

static inline void um_raw_order_note(um_raw_order *order, uint64_t counter)
{
    if (UM_LIKELY(counter == order->next))
        order->next++;
    else
        um_raw_order_note_misplaced(order, counter);
}

#endif
