/* The choices of a seed for late join and off-transport recovery, drawn from separate numbers, so that a run without
 * recovery is the same run: which sources retain how much, how receivers fetch, which receivers start late, how their
 * peers misbehave, and whose clock jumps.
 */
#ifndef UM_SIM_RECOVERY_PLAN_H
#define UM_SIM_RECOVERY_PLAN_H

#include "sim/scenario.h"

typedef struct um_sim_recovery_plan {
    bool has_retention[UM_SIM_SCENARIO_SESSIONS_MAX]; /* the sources of the session retain messages */
    bool has_all[UM_SIM_SCENARIO_SESSIONS_MAX];
    bool is_faithful[UM_SIM_SCENARIO_SESSIONS_MAX]; /* peers stall and disconnect, but send no false data */
    um_retention_config retentions[UM_SIM_SCENARIO_SESSIONS_MAX];
    um_sim_peer_faults peers[UM_SIM_SCENARIO_SESSIONS_MAX];
    bool is_late[UM_SIM_SCENARIO_RECEIVERS_MAX];
    bool is_patient[UM_SIM_SCENARIO_RECEIVERS_MAX]; /* declares no loss while there are faults */
    bool needs_all[UM_SIM_SCENARIO_RECEIVERS_MAX];
    um_sim_recovery_config receivers[UM_SIM_SCENARIO_RECEIVERS_MAX];
    int64_t jumps_at_ns[UM_SIM_SCENARIO_SESSIONS_MAX + UM_SIM_SCENARIO_HOSTS_MAX]; /* 0: never */
    int64_t jump_ns[UM_SIM_SCENARIO_SESSIONS_MAX + UM_SIM_SCENARIO_HOSTS_MAX];
} um_sim_recovery_plan;

void um_sim_draw_recovery(um_sim_recovery_plan *plan, const um_sim_scenario *scenario, um_random *random);

/* Appends to the description of the scenario. */
void um_sim_describe_recovery(const um_sim_recovery_plan *plan, const um_sim_scenario *scenario, char *out,
                              size_t bytes);

/* True if a receiver's fetches from a session must get everything that was sent. */
static inline bool um_sim_recovery_is_whole(const um_sim_recovery_plan *plan, uint32_t session, uint32_t receiver)
{
    return plan->has_retention[session] && plan->has_all[session] && plan->is_faithful[session] &&
           plan->is_patient[receiver];
}

#endif
