/* The NAK timers of a receiver session's lost datagrams: back-off, repetition, suppression by NCFs, and giving up
 * (UM-112..UM-134). Entries and deadlines are in the loss map (loss_map.h); gaps.h adds and removes them.
 *
 * Threads: the context lock. Memory: the session's. Complexity: logarithmic in the loss map for each sqn. Errors:
 * none.
 */

#ifndef UM_CORE_NAK_TIMERS_H
#define UM_CORE_NAK_TIMERS_H

#include "core/receiver/receiver_state.h"

/* Handles NCFs: the NAKs for their sqns wait for the suppress interval. */
void um_nak_timers_on_ncf(um_receiver_session *session, const um_packet *packet, int64_t now_ns);

/* NAKs or gives up the losses that are due; sets *gave_up if it gave one up. Returns when the next call is due. */
int64_t um_nak_timers_tick(um_receiver_session *session, int64_t now_ns, bool *gave_up);

#endif
