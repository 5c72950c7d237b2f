/* Session messages of an idle source session (UM-67..UM-71): they carry the lead and the trail to receivers.
 *
 * Threads: the holder of the sender lock. Memory: none beyond the session. Complexity: constant. Errors: a message that
 * the link does not accept is not repeated before the next one is due.
 */

#ifndef UM_CORE_SESSION_MESSAGES_H
#define UM_CORE_SESSION_MESSAGES_H

#include "core/source/source_state.h"

/* Sends a session message now. */
void um_source_session_message_send(um_source_session *session, int64_t now_ns);

/* Sends a session message if it is due. Returns when the next is due. */
int64_t um_source_session_message_tick(um_source_session *session, int64_t now_ns);

#endif
