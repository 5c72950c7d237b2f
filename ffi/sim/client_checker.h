/* Checks what an LBT-RU source sends to whom (UX-11; docs/lbtru.md, "What a forger cannot do"): an answer to an address
 * that may be forged follows on what came from there, is at most 12 bytes longer, and comes 64 times in 10 ms at most;
 * everything else goes to addresses that have shown that they receive. And whatever answers a receiver is made to
 * believe, the client id that it shows is the one that its source has for it.
 *
 * Threads, memory: the world's. Errors: um_sim_complain.
 */
#ifndef UM_SIM_CLIENT_CHECKER_H
#define UM_SIM_CLIENT_CHECKER_H

#include "sim/world.h"

typedef struct um_sim_client_checker {
    /* What a source session was given last, and whether it has answered. */
    const um_sim_host *host;
    um_address from;
    int64_t time_ns;
    uint32_t length;
    bool is_answered;
    struct {
        bool has_any;
        int64_t first_ns; /* local */
        uint64_t count;
    } answers[UM_SIM_SESSIONS_MAX];
} um_sim_client_checker;

/* A datagram reached the control port of a host; before the session has it. */
void um_sim_clients_on_control(um_sim_client_checker *checker, const um_sim_host *host,
                               const um_sim_datagram *datagram);
/* A host sends something. */
void um_sim_clients_on_sent(um_sim_client_checker *checker, const um_sim_host *host, const um_sim_datagram *datagram);
/* Every so often. */
void um_sim_clients_check(um_sim_world *world);

#endif
