/* The fields of a subscription, for the files of ffi/io. */
#ifndef UM_IO_SUBSCRIPTION_PRIVATE_H
#define UM_IO_SUBSCRIPTION_PRIVATE_H

#include <stdatomic.h>

#include "io/event_queue_private.h"
#include "io/receiving.h"
#include "io/subscription.h"

struct um_subscription {
    um_receiver core;
    um_receiving *receiving;
    um_gate gate;
    um_event_queue *queue; /* outlives the subscription */
    um_subscription *next;
    um_subscription **link;       /* the pointer to it in the list */
    um_ended_source *ended;       /* not taken yet */
    _Atomic uint32_t ended_count; /* changed under the reactor's lock */
    uint32_t ended_capacity;
};

/* Returns NULL if the source is not mapped. Under the reactor's lock. */
static inline um_delivery *um_subscription_find_mapped(um_subscription *subscription, const um_session_id *id,
                                                       uint32_t topic_index)
{
    um_receiver_session *session = um_node_find_session(&subscription->receiving->node, id);
    return session == NULL ? NULL : um_receiver_session_find(session, &subscription->core, topic_index);
}

#endif
