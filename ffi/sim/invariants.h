/* Invariants of every host after every step: limits, windows, queues and maps are within their bounds, and the parts of
 * a structure agree with each other.
 */
#ifndef UM_SIM_INVARIANTS_H
#define UM_SIM_INVARIANTS_H

#include "sim/world.h"

/* Compares counts with bounds; cheap enough for every step. Complains to the world. */
void um_sim_check_bounds(um_sim_world *world);

/* Checks loss maps, gaps, order maps and the reorder buffer. */
void um_sim_check_structures(um_sim_world *world);

/* Checks that a host whose receivers have all left holds nothing. */
void um_sim_check_empty(um_sim_world *world, const um_sim_host *host);

#endif
