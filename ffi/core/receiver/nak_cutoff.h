/* The receiver's own NAK cutoff (UX-21): a session sends no NAKs for as long as there is a reason (um_nak_cutoff). What
 * is lost meanwhile is treated as in a session without NAKs: it comes with what others NAK or off the transport, or
 * runs out of time.
 *
 * Threads: the context lock. Memory: the session's. Complexity: linear in the session's controllers. Errors: none.
 */
#ifndef UM_CORE_NAK_CUTOFF_H
#define UM_CORE_NAK_CUTOFF_H

#include "core/receiver/receiver_state.h"

/* The reasons are these from now on. */
void um_nak_cutoff_set(um_receiver_session *session, uint32_t reasons);

/* Receivers came or went, or one's is_cut_off changed: it is a reason when every one is cut off. */
void um_nak_cutoff_on_receivers(um_receiver_session *session);

/* A NAK was over the budget: a reason, with a row for every controller, after nak_cutoff_interval_ns of that. */
void um_nak_cutoff_on_limited(um_receiver_session *session);

#endif
