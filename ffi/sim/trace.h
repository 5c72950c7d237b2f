/* The record of a run: always a hash; datagrams and rows after um_sim_keep_trace.
 *
 * Threads: the world's. Memory: grows with the trace, freed with the world. Errors: um_sim_complain without memory.
 */
#ifndef UM_SIM_TRACE_H
#define UM_SIM_TRACE_H

#include "sim/world.h"

/* Fills in the trace entry of a datagram from its bytes, and stores the bytes. */
void um_sim_note_datagram(um_sim_world *world, um_sim_datagram *datagram, const uint8_t *data);

/* Records what happened to a datagram; `to`: host, or -1. */
void um_sim_note(um_sim_world *world, const um_sim_datagram *datagram, enum um_sim_trace_what what, int32_t to,
                 enum um_sim_drop_reason reason);

/* Records a row that a receiver has read. */
void um_sim_note_row(um_sim_world *world, const um_sim_receiver *receiver, const um_block *block, uint32_t row);

#endif
