/* What is going to happen in a simulated world: a binary heap by time, and by the order of scheduling within one
 * instant, so that a run is a function of its seed. Fixed capacity. Owner: the world.
 */
#ifndef UM_SIM_EVENT_QUEUE_H
#define UM_SIM_EVENT_QUEUE_H

#include "core/foundation/base.h"

enum um_sim_event_kind {
    UM_SIM_EVENT_ARRIVAL, /* index: host, detail: datagram */
    UM_SIM_EVENT_TIMER,   /* index: host */
    UM_SIM_EVENT_READ,    /* index: receiver */
    UM_SIM_EVENT_REQUEST, /* index: join */
    UM_SIM_EVENT_OWNER,   /* the owner's (run.c) */
};

typedef struct um_sim_event {
    int64_t time_ns;
    uint64_t order;
    uint32_t kind;
    uint32_t index;
    uint32_t detail;
} um_sim_event;

typedef struct um_sim_event_queue {
    um_sim_event *heap;
    uint32_t capacity;
    uint32_t count;
    uint64_t next_order;
} um_sim_event_queue;

/* False when the queue is full. */
bool um_sim_schedule(um_sim_event_queue *queue, int64_t time_ns, enum um_sim_event_kind kind, uint32_t index,
                     uint32_t detail);

/* Takes the next event not later than `until_ns`; false when there is none. */
bool um_sim_next_event(um_sim_event_queue *queue, int64_t until_ns, um_sim_event *event);

#endif
