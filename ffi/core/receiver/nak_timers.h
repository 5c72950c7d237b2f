/* Lost datagrams of a receiver session and the timers of their NAKs: initial back-off, repetition, suppression by NCFs,
 * and giving up (UM-112..UM-134). The entries and their deadlines are the loss map's (loss_map.h).
 *
 * Threads: the context lock. Memory: the session's. Complexity: logarithmic in the loss map for each sqn. Errors: what
 * the map has no space for is given up and counted.
 */

#ifndef UM_CORE_NAK_TIMERS_H
#define UM_CORE_NAK_TIMERS_H

#include "core/receiver/receiver_session.h"

/* Sqns [first, last] were lost: they are NAKed after one back-off for the whole gap. */
void um_nak_timers_add_gap(um_receiver_session *session, uint32_t first, uint32_t last, int64_t now_ns);

/* The datagram of `loss` is there: takes it off the map and counts how long that took. */
void um_nak_timers_on_recovered(um_receiver_session *session, um_loss *loss, bool retransmission, int64_t now_ns);

/* The datagram of `loss` came and is longer than the receiver takes: no more NAKs, it is given up. */
void um_nak_timers_give_up_too_long(um_receiver_session *session, um_loss *loss);

/* NCFs: their NAKs wait for the suppress interval. */
void um_nak_timers_on_ncf(um_receiver_session *session, const um_packet *packet, int64_t now_ns);

/* NAKs and gives up what is due. *gave_up is set when something was given up. Returns when the next call is due.
 */
int64_t um_nak_timers_tick(um_receiver_session *session, int64_t now_ns, bool *gave_up);

#endif
