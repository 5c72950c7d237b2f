/* One application that publishes on one topic of a run: what it sends next, how, and what it does when it is refused.
 * It holds the core to its promises: the sqn returned is that of the last fragment (UM-57), a message that fits is not
 * split (UX-25), a refused send takes no sqn (UX-23), an abandoned claim is given up (AE-35).
 */
#ifndef UM_SIM_PUBLISHER_H
#define UM_SIM_PUBLISHER_H

#include "sim/published.h"
#include "sim/scenario.h"

typedef struct um_sim_publisher {
    um_sim_world *world;
    um_random *random;
    const um_sim_publisher_plan *plan;
    um_sim_topic *topic;
    uint32_t group_left; /* messages until the end of the explicit batch; 0: none open */
    uint32_t length;     /* of the message to send next; 0: not chosen yet */
    uint32_t flags;
    bool claimed;
    uint32_t claim_length;
    bool abandon;
    bool done; /* everything is published and flushed */
    uint64_t refused_count;
} um_sim_publisher;

/* Publishes, or tries to. Returns after how many ns it is to be called again; negative when it is done. */
int64_t um_sim_publisher_step(um_sim_publisher *publisher);

#endif
