/* The source's end of a simulated request connection: it answers from the retention, or misbehaves as its faults
 * require (um_sim_peer_faults). It never makes up a wrong message under a right sqn: only keys could detect that.
 *
 * Threads: the world's. Memory: the caller's. Errors: none.
 */
#ifndef UM_SIM_REQUEST_PEER_H
#define UM_SIM_REQUEST_PEER_H

#include "sim/world.h"

enum { UM_SIM_ANSWER_BYTES_MAX = 2 * UM_LBMC_MESSAGE_BYTES_MAX };

/* Draws how the peer behaves on a new connection. */
void um_sim_peer_accept(um_sim_world *world, um_sim_join_state *join);

typedef struct um_sim_answers {
    uint8_t *bytes; /* UM_SIM_ANSWER_BYTES_MAX */
    uint32_t length;
    uint32_t consumed; /* bytes of the requests */
} um_sim_answers;

/* Answers some of the requests in at most `space` bytes. Returns false if the peer ends the connection. */
bool um_sim_peer_answer(um_sim_world *world, um_sim_join_state *join, const uint8_t *requests, uint32_t length,
                        uint32_t space, um_sim_answers *answers);

#endif
