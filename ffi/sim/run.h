/* One random run: a seed chooses the world, its messages and its faults. The faults end after a while, and then the
 * world must become idle. Checkers watch every step.
 */
#ifndef UM_SIM_RUN_H
#define UM_SIM_RUN_H

#include "sim/sim.h"

/* Deliberate mistakes: a run with one of them must fail, or the checkers miss faults. */
enum um_sim_canary {
    UM_SIM_CANARY_NONE,
    UM_SIM_CANARY_STALE_PAYLOAD, /* the network changes a byte of some datagrams */
    UM_SIM_CANARY_LOSE_ROW,      /* a row is withheld from a checker */
    UM_SIM_CANARY_REPEAT_ROW,    /* a checker receives a row twice */
    UM_SIM_CANARY_DEAF_RECEIVER, /* a receiver gets nothing more although the run expects it */
    UM_SIM_CANARY_STALE_ANSWER,  /* a peer changes a byte of some messages that it has retained */
    UM_SIM_CANARY_KNOWN_KEY,     /* the adversary has the key from which LBT-RU client ids are derived */
    UM_SIM_CANARY_END,
};

typedef struct um_sim_params {
    uint32_t canary;
    uint32_t adversary; /* enum um_sim_adversary_mode (adversary.h) */
    uint32_t transport; /* enum um_transport: LBT-RM or LBT-RU */
    bool recovers;      /* with late join and off-transport recovery (recovery_plan.h) */
    bool trace;         /* keep datagrams and rows for um_sim_trace and um_sim_rows */
} um_sim_params;

enum { UM_SIM_MESSAGE_BYTES = 512, UM_SIM_SCENARIO_BYTES = 2048 };

typedef struct um_sim_result {
    uint64_t seed;
    bool failed;
    char message[UM_SIM_MESSAGE_BYTES];   /* the violated invariant and its time */
    char scenario[UM_SIM_SCENARIO_BYTES]; /* the choices of the seed */
    uint64_t hash;
    int64_t virtual_ns;
    uint64_t event_count;
    uint64_t datagrams_sent;
    uint64_t datagrams_dropped;
    uint64_t messages_sent;
    uint64_t messages_delivered;
    uint64_t losses_declared; /* unrecoverable and burst loss events */
    uint64_t naks_sent;
    uint64_t retransmissions;
    uint64_t fetches;            /* late joins and off-transport recoveries started */
    uint64_t messages_recovered; /* by those fetches */
    uint64_t datagrams_forged;   /* by the adversary */
} um_sim_result;

/* Runs a seed. Returns 0, also if the run failed (result->failed); -ENOMEM without memory for a world. */
int um_sim_run(const um_sim_params *params, uint64_t seed, um_sim_result *result);

/* Like um_sim_run, but returns the world with its trace; the caller destroys it. NULL without memory. */
um_sim_world *um_sim_run_world(const um_sim_params *params, uint64_t seed, um_sim_result *result);

#endif
