/* What must hold inside every host after every step: limits, windows, queues and maps within their bounds, and the
 * parts of one structure in agreement with each other.
 */
#ifndef UM_SIM_INVARIANTS_H
#define UM_SIM_INVARIANTS_H

#include "sim/world.h"

/* Cheap enough for every step: counts against bounds. Complains to the world. */
void um_sim_check_bounds(um_sim_world *world);

/* Walks loss maps, gaps, order maps and the reorder buffer. */
void um_sim_check_structures(um_sim_world *world);

/* Nothing is held any more: for a host whose receivers have all left. */
void um_sim_check_empty(um_sim_world *world, const um_sim_host *host);

#endif
