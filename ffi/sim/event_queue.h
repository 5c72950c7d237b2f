/* The scheduled events of a simulated world: a binary heap ordered by time, then by the order of scheduling, so that a
 * run is a function of its seed. An event is a call of its handler. Fixed capacity. Owner: the world.
 */
#ifndef UM_SIM_EVENT_QUEUE_H
#define UM_SIM_EVENT_QUEUE_H

#include "core/foundation/base.h"

struct um_sim_world;

/* Handles an event; the handler defines the meaning of `index` and `detail`. */
typedef void um_sim_handler(struct um_sim_world *world, uint32_t index, uint32_t detail);

typedef struct um_sim_event {
    int64_t time_ns;
    uint64_t order; /* of scheduling */
    um_sim_handler *handler;
    uint32_t index;
    uint32_t detail;
} um_sim_event;

typedef struct um_sim_event_queue {
    um_sim_event *heap;
    uint32_t capacity;
    uint32_t count;
    uint64_t next_order;
} um_sim_event_queue;

/* Returns false if the queue is full. */
bool um_sim_schedule(um_sim_event_queue *queue, int64_t time_ns, um_sim_handler *handler, uint32_t index,
                     uint32_t detail);

/* Removes the next event due by `until_ns`; returns false if there is none. */
bool um_sim_next_event(um_sim_event_queue *queue, int64_t until_ns, um_sim_event *event);

#endif
