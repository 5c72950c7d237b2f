/* An application that publishes on one topic of a run: chooses its next message, how to send it, and what to do if it
 * is refused. It checks the core: the returned sqn is that of the last fragment (UM-57), a message that fits is not
 * fragmented (UX-25), a refused send consumes no sqn (UX-23), an abandoned claim is aborted (AE-35).
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
    uint32_t group_left; /* messages left in the explicit batch; 0: none open */
    uint32_t length;     /* of the next message; 0: not chosen yet */
    uint32_t flags;
    bool has_claim;
    uint32_t claim_length;
    bool is_abandoned;
    bool is_done; /* everything is published and flushed */
    uint64_t refused_count;
} um_sim_publisher;

/* Publishes, or tries to. Returns the ns until the next call; negative when done. */
int64_t um_sim_publisher_step(um_sim_publisher *publisher);

#endif
