/* The choices of a seed: the number of hosts, sessions and topics, every option, and the faults of the network. The
 * kind of a scenario defines which losses are allowed.
 */
#ifndef UM_SIM_SCENARIO_H
#define UM_SIM_SCENARIO_H

#include "core/foundation/random.h"
#include "sim/sim.h"

enum {
    UM_SIM_SCENARIO_SESSIONS_MAX = 3,
    UM_SIM_SCENARIO_TOPICS_MAX = 4, /* per session */
    UM_SIM_SCENARIO_HOSTS_MAX = 4,  /* hosts with receivers */
    UM_SIM_SCENARIO_RECEIVERS_MAX = 2 * UM_SIM_SCENARIO_HOSTS_MAX,
};

typedef enum um_sim_scenario_kind {
    UM_SIM_WINDOWED, /* flow control min: no loss may be unrecoverable */
    UM_SIM_ROOMY,    /* all data stays in the window: no loss may be unrecoverable once a receiver has started */
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
    uint32_t many_ppm;  /* of sending many messages in one call */
    uint32_t claim_ppm;
    uint32_t abandon_ppm; /* of never committing a claim in time */
} um_sim_publisher_plan;

typedef struct um_sim_scenario {
    um_sim_scenario_kind kind;
    uint32_t session_count;
    uint32_t host_count; /* hosts with receivers */
    uint32_t receiver_count;
    um_source_session_config sessions[UM_SIM_SCENARIO_SESSIONS_MAX];
    uint32_t topic_counts[UM_SIM_SCENARIO_SESSIONS_MAX];
    um_sim_publisher_plan publishers[UM_SIM_SCENARIO_SESSIONS_MAX][UM_SIM_SCENARIO_TOPICS_MAX];
    um_sim_host_config hosts[UM_SIM_SCENARIO_SESSIONS_MAX + UM_SIM_SCENARIO_HOSTS_MAX]; /* source hosts first */
    um_sim_faults faults[UM_SIM_SCENARIO_SESSIONS_MAX + UM_SIM_SCENARIO_HOSTS_MAX];
    um_receiver_session_config transports[UM_SIM_SCENARIO_HOSTS_MAX];
    um_sim_receiver_config receivers[UM_SIM_SCENARIO_RECEIVERS_MAX];
    uint32_t receiver_hosts[UM_SIM_SCENARIO_RECEIVERS_MAX];
    bool is_subscribed[UM_SIM_SCENARIO_RECEIVERS_MAX][UM_SIM_SCENARIO_SESSIONS_MAX][UM_SIM_SCENARIO_TOPICS_MAX];
    int64_t faults_end_ns;
} um_sim_scenario;

void um_sim_draw_scenario(um_sim_scenario *scenario, um_random *random);

/* Converts a scenario to LBT-RU: receivers connect, and idle ones are dropped in a harsh scenario. */
void um_sim_scenario_to_lbtru(um_sim_scenario *scenario, uint64_t seed);

/* Writes a description of one line. */
void um_sim_describe_scenario(const um_sim_scenario *scenario, char *out, size_t bytes);

#endif
