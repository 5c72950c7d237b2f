/* The wake-ups of a shared log (core/ipc/ipc_control.h): eventfds that the source makes for each receiver and passes to
 * it once. A wake-up is one write of 8 bytes. Internal to ffi/io; below the two ends of LBT-IPC.
 *
 * An eventfd is one open file, whose flags both holders can change: a peer that makes it blocking and fills its counter
 * would stop the other side in its next write, and a write has no flag against that. So eventfds are shared only by
 * processes of one user, which could stop each other by a signal anyway (core/ipc/ipc_control.h). Reads are
 * non-blocking by themselves, as are writes while nobody changes the flags. A full counter is a wake-up that was not
 * taken yet, so it is no error.
 *
 * Threads: any. Errors: negative errno.
 */
#ifndef UM_IO_IPC_WAKEUP_H
#define UM_IO_IPC_WAKEUP_H

#include <stdbool.h>

/* Returns a new eventfd. */
int um_ipc_wakeup_create(void);
/* Returns true if um_ipc_wakeup_check works here: it needs /proc. */
bool um_ipc_wakeup_can_check(void);
/* Returns true if the descriptor of another process is an eventfd that does not block. */
bool um_ipc_wakeup_check(int fd);

/* Makes the descriptor readable. */
void um_ipc_wakeup_send(int fd);
/* Takes all wake-ups: the descriptor is no longer readable. */
void um_ipc_wakeup_take(int fd);

#endif
