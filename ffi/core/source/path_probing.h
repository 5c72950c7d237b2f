/* The session's side of path MTU discovery (path_mtu.h): sends the probes and follows the size.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: that of path_mtu.h. Errors: a probe that
 * the link does not accept is lost.
 */
#ifndef UM_CORE_PATH_PROBING_H
#define UM_CORE_PATH_PROBING_H

#include "core/source/source_state.h"

/* Sends the probes that are due. Returns when the next call is due. */
int64_t um_path_probing_tick(um_source_session *session, int64_t now_ns);

/* Lets later datagrams have the size in effect. */
void um_path_probing_apply(um_source_session *session);

#endif
