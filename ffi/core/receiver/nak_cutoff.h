/* The receiver's own NAK cutoff (UX-21): a session sends no NAKs while there is a reason (um_nak_cutoff). Meanwhile
 * lost datagrams are treated as in a session without NAKs: other receivers' NAKs or off-transport recovery bring them
 * back, or they time out.
 *
 * Threads: the context lock. Memory: the session's. Complexity: linear in the session's controllers. Errors: none.
 */
#ifndef UM_CORE_NAK_CUTOFF_H
#define UM_CORE_NAK_CUTOFF_H

#include "core/receiver/receiver_state.h"

/* Replaces the reasons. */
void um_nak_cutoff_set(um_receiver_session *session, uint32_t reasons);

/* Call this when receivers were added or removed, or is_cut_off of one has changed. It is a reason if all are cut off.
 */
void um_nak_cutoff_on_receivers(um_receiver_session *session);

/* A NAK exceeded the budget. After nak_cutoff_interval_ns of this it is a reason, with a row for every controller. */
void um_nak_cutoff_on_limited(um_receiver_session *session);

#endif
