/* What a seed chooses: how many of everything, every option, and how bad the network is. A scenario is of one of three
 * kinds, which define what may be lost.
 */
#ifndef UM_SIM_SCENARIO_H
#define UM_SIM_SCENARIO_H

#include "core/foundation/random.h"
#include "sim/sim.h"

enum {
    UM_SIM_SCENARIO_SESSIONS_MAX = 3,
    UM_SIM_SCENARIO_TOPICS_MAX = 4, /* of a session */
    UM_SIM_SCENARIO_HOSTS_MAX = 4,  /* with receivers */
    UM_SIM_SCENARIO_RECEIVERS_MAX = 2 * UM_SIM_SCENARIO_HOSTS_MAX,
};

typedef enum um_sim_scenario_kind {
    UM_SIM_WINDOWED, /* flow control min: nothing may be unrecoverable */
    UM_SIM_ROOMY,    /* everything sent stays in the window: nothing may be unrecoverable once a receiver has begun */
    UM_SIM_HARSH,    /* small limits, short time-outs: loss is allowed if it is reported */
} um_sim_scenario_kind;

typedef struct um_sim_publisher_plan {
    um_source_config source;
    uint32_t message_count;
    uint32_t message_bytes_max;
    int64_t start_ns;
    int64_t gap_ns; /* mean time between messages */
    uint32_t flush_ppm;
    uint32_t batch_ppm; /* of starting an explicit batch */
    uint32_t many_ppm;  /* of a group of messages in one call */
    uint32_t claim_ppm;
    uint32_t abandon_ppm; /* of a claim that is never committed in time */
} um_sim_publisher_plan;

typedef struct um_sim_scenario {
    um_sim_scenario_kind kind;
    uint32_t session_count;
    uint32_t host_count; /* receiving */
    uint32_t receiver_count;
    um_source_session_config sessions[UM_SIM_SCENARIO_SESSIONS_MAX];
    uint32_t topic_counts[UM_SIM_SCENARIO_SESSIONS_MAX];
    um_sim_publisher_plan publishers[UM_SIM_SCENARIO_SESSIONS_MAX][UM_SIM_SCENARIO_TOPICS_MAX];
    um_sim_host_config hosts[UM_SIM_SCENARIO_SESSIONS_MAX + UM_SIM_SCENARIO_HOSTS_MAX]; /* source hosts first */
    um_sim_faults faults[UM_SIM_SCENARIO_SESSIONS_MAX + UM_SIM_SCENARIO_HOSTS_MAX];
    um_receiver_session_config transports[UM_SIM_SCENARIO_HOSTS_MAX];
    um_sim_receiver_config receivers[UM_SIM_SCENARIO_RECEIVERS_MAX];
    uint32_t receiver_hosts[UM_SIM_SCENARIO_RECEIVERS_MAX];
    bool subscribed[UM_SIM_SCENARIO_RECEIVERS_MAX][UM_SIM_SCENARIO_SESSIONS_MAX][UM_SIM_SCENARIO_TOPICS_MAX];
    int64_t faults_end_ns;
} um_sim_scenario;

void um_sim_draw_scenario(um_sim_scenario *scenario, um_random *random);

/* The same world over LBT-RU: receivers connect, and in a harsh one are dropped for silence. */
void um_sim_scenario_to_lbtru(um_sim_scenario *scenario, uint64_t seed);

/* One line for people. */
void um_sim_describe_scenario(const um_sim_scenario *scenario, char *out, size_t bytes);

#endif
