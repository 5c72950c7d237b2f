/* One random run: a world, what is published in it and what goes wrong in it all come from a seed; for a while there
 * are faults, then there are none and the world must become idle. Checkers watch every step (checker.h).
 */
#ifndef UM_SIM_RUN_H
#define UM_SIM_RUN_H

#include "sim/sim.h"

/* Deliberate mistakes: a run with one of them must fail, or the checkers see nothing. */
enum um_sim_canary {
    UM_SIM_CANARY_NONE,
    UM_SIM_CANARY_STALE_PAYLOAD, /* the network changes a byte of some datagrams */
    UM_SIM_CANARY_LOSE_ROW,      /* a row is withheld from a checker */
    UM_SIM_CANARY_REPEAT_ROW,    /* a checker is given a row twice */
    UM_SIM_CANARY_DEAF_RECEIVER, /* a receiver receives nothing more and is expected to */
    UM_SIM_CANARY_STALE_ANSWER,  /* a peer changes a byte of some messages that it retains */
    UM_SIM_CANARY_KNOWN_KEY,     /* the adversary knows the key that LBT-RU's client ids are made with */
    UM_SIM_CANARY_END,
};

typedef struct um_sim_params {
    uint32_t canary;
    uint32_t adversary; /* enum um_sim_adversary_mode (adversary.h) */
    uint32_t transport; /* enum um_transport: LBT-RM or LBT-RU */
    bool recovers;      /* late join and off-transport recovery, too (recovery_plan.h) */
    bool trace;         /* keep everything for um_sim_trace and um_sim_rows */
} um_sim_params;

enum { UM_SIM_MESSAGE_BYTES = 512, UM_SIM_SCENARIO_BYTES = 2048 };

typedef struct um_sim_result {
    uint64_t seed;
    bool failed;
    char message[UM_SIM_MESSAGE_BYTES];   /* what was violated, and when */
    char scenario[UM_SIM_SCENARIO_BYTES]; /* what the seed chose */
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
    uint64_t fetches;            /* late joins, and off-transport recoveries, begun */
    uint64_t messages_recovered; /* by them */
    uint64_t datagrams_forged;   /* of the adversary's */
} um_sim_result;

/* Runs a seed. Returns 0, also when the run failed (result->failed); -ENOMEM when there is no space for a world. */
int um_sim_run(const um_sim_params *params, uint64_t seed, um_sim_result *result);

/* The same, and returns the world with its trace; the caller destroys it. NULL when there is no space. */
um_sim_world *um_sim_run_world(const um_sim_params *params, uint64_t seed, um_sim_result *result);

#endif
