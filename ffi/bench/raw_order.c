#include "bench/raw_order.h"

void um_raw_order_init(um_raw_order *order)
{
    memset(order, 0, sizeof *order);
}

static void remove_gap(um_raw_order *order, uint32_t index)
{
    order->gap_count--;
    memmove(&order->gaps[index], &order->gaps[index + 1], (order->gap_count - index) * sizeof order->gaps[0]);
}

/* Closes the oldest gap if there is no space: its messages stay lost even if they arrive later. */
static void insert_gap(um_raw_order *order, uint32_t index, um_raw_gap gap)
{
    if (order->gap_count == UM_RAW_GAP_CAPACITY) {
        remove_gap(order, 0);
        index -= index > 0;
    }
    memmove(&order->gaps[index + 1], &order->gaps[index], (order->gap_count - index) * sizeof order->gaps[0]);
    order->gaps[index] = gap;
    order->gap_count++;
}

static void fill(um_raw_order *order, uint32_t index, uint64_t counter)
{
    um_raw_gap *gap = &order->gaps[index];
    um_raw_gap rest = {counter + 1, gap->end};

    order->lost_count--;
    order->out_of_order_count++;
    if (counter == gap->first) {
        gap->first++;
        if (gap->first == gap->end)
            remove_gap(order, index);
        return;
    }
    gap->end = counter;
    if (rest.first < rest.end)
        insert_gap(order, index + 1, rest);
}

void um_raw_order_note_misplaced(um_raw_order *order, uint64_t counter)
{
    if (counter >= order->next) {
        if (counter > order->next) {
            insert_gap(order, order->gap_count, (um_raw_gap){order->next, counter});
            order->lost_count += counter - order->next;
        }
        order->next = counter + 1;
        return;
    }
    for (uint32_t i = order->gap_count; i > 0; i--) {
        const um_raw_gap *gap = &order->gaps[i - 1];
        if (counter >= gap->end)
            break;
        if (counter >= gap->first) {
            fill(order, i - 1, counter);
            return;
        }
    }
    order->duplicate_count++;
}
