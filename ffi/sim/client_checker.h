/* Checks the datagrams that an LBT-RU source sends (UX-11; docs/lbtru.md, "What a forger cannot do"). An answer to a
 * possibly forged address follows a datagram from that address, is at most 12 bytes longer, and is sent at most 64
 * times in 10 ms; everything else is sent to addresses that have proved to receive. Forged answers must not change the
 * client id of a receiver: it is the one that its source has assigned.
 *
 * Threads, memory: the world's. Errors: um_sim_complain.
 */
#ifndef UM_SIM_CLIENT_CHECKER_H
#define UM_SIM_CLIENT_CHECKER_H

#include "sim/world.h"

typedef struct um_sim_client_checker {
    /* The last datagram that a source session received, and whether it was answered. */
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

/* A datagram reached the control port of a host; called before the session processes it. */
void um_sim_clients_on_control(um_sim_client_checker *checker, const um_sim_host *host,
                               const um_sim_datagram *datagram);
/* A host sends a datagram. */
void um_sim_clients_on_sent(um_sim_client_checker *checker, const um_sim_host *host, const um_sim_datagram *datagram);
/* Checks all client ids; called periodically. */
void um_sim_clients_check(um_sim_world *world);

#endif
