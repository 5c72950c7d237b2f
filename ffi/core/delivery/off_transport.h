/* Off-transport recovery of one delivery controller (OTR: UM-137, UM-142, UM-143): messages that the transport does not
 * recover are fetched over TCP from those that the source retains (delivery_fetch.h).
 *
 *           oldest gap older than the initial delay, or given up by the transport's timer,
 *           or more entries in the order map than the caching threshold
 *     out ------------------------------------------------------------------------------> in
 *      ^                                                                                   |
 *      +---- all messages that were missing at the start, or were dropped since, ----------+
 *            have arrived from either side or are lost
 *
 * A controller is in or out as a whole. While it is in, the transport continues; whichever side recovers a message
 * first delivers it. A message is lost when both sides have given it up. A controller whose source offers no late join
 * is never in.
 *
 * Threads: the context lock. Memory: in the controller. Errors: none.
 */
#ifndef UM_CORE_OFF_TRANSPORT_H
#define UM_CORE_OFF_TRANSPORT_H

#include "core/delivery/delivery_state.h"

/* Returns true if gaps of the controller can be fetched. */
static inline bool um_otr_is_offered(const um_delivery *delivery)
{
    return delivery->receiver->config.use_otr && um_ip_is_set(delivery->request_port.ip);
}

/* Returns true if recovery of the oldest gap must start now. is_over: the gap would be given up otherwise. */
bool um_otr_is_due(const um_delivery *delivery, const um_gap *gap, bool is_over, int64_t now_ns);

/* Returns when recovery starts if nothing else happens, or UM_NEVER_NS. */
int64_t um_otr_due_ns(um_delivery *delivery);

/* Starts recovery of all missing messages. */
void um_otr_begin(um_delivery *delivery);

#endif
