#include "sim/event_queue.h"

static bool earlier(const um_sim_event *a, const um_sim_event *b)
{
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->order < b->order;
}

bool um_sim_schedule(um_sim_event_queue *queue, int64_t time_ns, um_sim_handler *handler, uint32_t index,
                     uint32_t detail)
{
    if (queue->count == queue->capacity)
        return false;
    um_sim_event event = {time_ns, queue->next_order++, handler, index, detail};
    uint32_t at = queue->count++;
    for (; at > 0 && earlier(&event, &queue->heap[(at - 1) / 2]); at = (at - 1) / 2)
        queue->heap[at] = queue->heap[(at - 1) / 2];
    queue->heap[at] = event;
    return true;
}

bool um_sim_next_event(um_sim_event_queue *queue, int64_t until_ns, um_sim_event *event)
{
    if (queue->count == 0 || queue->heap[0].time_ns > until_ns)
        return false;
    *event = queue->heap[0];
    um_sim_event moved = queue->heap[--queue->count];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < queue->count; at = child) {
        child += child + 1 < queue->count && earlier(&queue->heap[child + 1], &queue->heap[child]);
        if (!earlier(&queue->heap[child], &moved))
            break;
        queue->heap[at] = queue->heap[child];
    }
    queue->heap[at] = moved;
    return true;
}
