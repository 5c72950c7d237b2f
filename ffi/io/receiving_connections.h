/* The connections of the receiving half: sessions over TCP and LBT-IPC, which it reads like groups. The rest of their
 * life is here: attempts to connect, what a full queue held back, and the wake-up of LBT-IPC. Internal to ffi/io; above
 * the receiving half, below the loop and its leader.
 *
 * Threads: the context lock.
 */
#ifndef UM_IO_RECEIVING_CONNECTIONS_H
#define UM_IO_RECEIVING_CONNECTIONS_H

#include "io/receiving.h"

/* Handles the end of a TCP session's attempt to connect. */
void um_receiving_on_connected(um_receiving *receiving, uint32_t index, int64_t now_ns);
/* Handles a report of the control socket of an attached LBT-IPC session. */
void um_receiving_on_control(um_receiving *receiving, uint32_t index, int64_t now_ns);
/* Starts the connections that are due. Returns when to call again. */
int64_t um_receiving_tick_connections(um_receiving *receiving, int64_t now_ns);
/* Delivers what no descriptor reports: messages held back because a queue was full, and the shared logs of LBT-IPC.
 * Returns runs delivered. */
int um_receiving_resume_connections(um_receiving *receiving, int64_t now_ns);
/* Called under the lock before a thread sleeps: sources of LBT-IPC wake a thread from now on. Loop and leader arm every
 * log, since either may have read, and so disarmed, what the other waits for. Returns false if a log has something to
 * read: do not sleep. */
bool um_receiving_arm(um_receiving *receiving);

#endif
