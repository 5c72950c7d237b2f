/* Decides where a delivery controller starts (UM-76..UM-81): one that is mapped to a running session waits while a lost
 * datagram may carry a message of its topic from before the first message it has seen.
 *
 * Threads: the context lock. Memory: the session's and the controller's. Complexity: linear in the loss map, once for
 * all controllers mapped at the same time, and constant while the cached result holds. Errors: none.
 */

#ifndef UM_CORE_START_GATE_H
#define UM_CORE_START_GATE_H

#include "core/receiver/receiver_state.h"

/* True while a lost datagram may carry a message of the topic from before transport sqn `before`. */
bool um_start_gate_is_closed(um_receiver_session *session, um_delivery *delivery, uint32_t before);

/* Starts the controllers for which no such datagram is lost any more. */
void um_start_gate_open(um_receiver_session *session, int64_t now_ns);

#endif
