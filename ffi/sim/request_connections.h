/* Late join and off-transport recovery in a simulated world: connects the core's fetch (core/receiver/fetch.h) with the
 * retention of a source (core/source/retention.h) by simulated connections. A connection delays its bytes and keeps
 * their order; while a host is partitioned nothing arrives. The peer may stall, disconnect half way, lie about its
 * range, repeat or omit messages, and send messages that were not requested: um_sim_peer_faults (sim.h), drawn for each
 * connection from the world's seed.
 *
 * Threads: the world's. Memory: the world's; a join has one connection at a time, with buffers of fixed size.
 */
#ifndef UM_SIM_REQUEST_CONNECTIONS_H
#define UM_SIM_REQUEST_CONNECTIONS_H

#include "sim/world.h"

/* Starts the late join of a new join if source and receiver are configured for it. Returns false without memory. */
bool um_sim_begin_late_join(um_sim_world *world, um_sim_join_state *join);

/* Starts the off-transport recoveries that controllers of a host have requested. */
void um_sim_take_recoveries(um_sim_host *host);

/* Runs a due step of a join's connection. Returns true if the receiver's host must be serviced. */
bool um_sim_step_connection(um_sim_join_state *join);

/* Disconnects: the receiver has left, or the fetch is over. */
void um_sim_end_fetch(um_sim_join_state *join);

/* Complains if a source retains more than its limits allow. */
void um_sim_check_recovery(um_sim_world *world);

#endif
