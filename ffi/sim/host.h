/* A simulated host: what ffi/io's context does with sockets and a clock, done with an inbox and virtual time. A session
 * is ticked only at its own deadline or when a publisher requested the loop, so a wrong deadline shows.
 *
 * Threads: the world's. Memory: the world's. Errors: um_sim_complain.
 */
#ifndef UM_SIM_HOST_H
#define UM_SIM_HOST_H

#include "sim/world.h"

/* Runs one pass of the host, as the loop of a context does: receive, run timers, read. */
void um_sim_service(um_sim_host *host);

/* Requests a pass of the host by `local_ns`, as a publisher does. */
void um_sim_request(um_sim_host *host, int64_t local_ns);

/* The handlers of a host's events: an arriving datagram, and a step of a join's request connection. */
um_sim_handler um_sim_on_arrival, um_sim_on_request;

/* Unmaps every controller of a receiving session and removes the session. */
void um_sim_close_transport(um_sim_host *host, um_receiver_session *session);

#endif
