/* The simulated network: the links of a world, and the fate of each datagram on its way to each host.
 *
 * Threads: the world's. Memory: the world's, UM_SIM_DATAGRAMS_MAX datagrams. Errors: without a free one, a datagram is
 * lost.
 */
#ifndef UM_SIM_NETWORK_H
#define UM_SIM_NETWORK_H

#include "sim/world.h"

/* Makes a link of `host` whose datagrams have the source address `from`. */
void um_sim_link_init(um_sim_link *link, um_sim_host *host, um_address from);

void um_sim_release_datagram(um_sim_world *world, uint32_t datagram);

static inline uint8_t *um_sim_bytes_of(um_sim_world *world, uint32_t datagram)
{
    return world->datagram_bytes + (size_t)datagram * UM_SIM_DATAGRAM_BYTES;
}

#endif
