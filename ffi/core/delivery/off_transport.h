/* Off-transport recovery of one delivery controller (OTR: UM-137, UM-142, UM-143): what the transport does not recover
 * is fetched from what the source retains, over TCP (late_join.h has the fetch).
 *
 *           oldest gap older than the initial delay, or given up by the transport's timer,
 *           or more entries in the order map than the caching threshold
 *     out ------------------------------------------------------------------------------> in
 *      ^                                                                                   |
 *      +------------- everything that lacked when it began, and was left out since, -------+
 *                     is there, from either side, or lost
 *
 * A controller is in or out of it as a whole. While it is in, the transport goes on: whichever recovers a message first
 * delivers it. A message is lost when both have given it up. A controller whose source offers no late join never is in.
 *
 * Threads: the context lock. Memory: in the controller. Errors: none.
 */
#ifndef UM_CORE_OFF_TRANSPORT_H
#define UM_CORE_OFF_TRANSPORT_H

#include "core/delivery/delivery_state.h"

/* Whether gaps of the controller are ever fetched. */
static inline bool um_otr_is_offered(const um_delivery *delivery)
{
    return delivery->receiver->config.use_otr && delivery->request_port.ip != 0;
}

/* Whether it begins now, for the oldest gap; `is_over` when that would be given up. */
bool um_otr_is_due(const um_delivery *delivery, const um_gap *gap, bool is_over, int64_t now_ns);
/* When it begins if nothing else happens; UM_NEVER_NS where it does not. */
int64_t um_otr_due_ns(um_delivery *delivery);
void um_otr_begin(um_delivery *delivery);

#endif
