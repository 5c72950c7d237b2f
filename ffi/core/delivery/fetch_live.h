/* Live messages during a fetch (delivery_fetch.h): each is delivered, held, or dropped and fetched later. Messages that
 * cannot be fetched are declared lost here.
 *
 * Threads: the context lock. Memory: in the controller. Errors: none.
 */
#ifndef UM_CORE_FETCH_LIVE_H
#define UM_CORE_FETCH_LIVE_H

#include "core/delivery/delivery_state.h"

/* A live message, or a TSNI, has arrived. Returns true if it is dropped because it is too far ahead: it is fetched. */
bool um_fetch_live_leaves_out(um_delivery *delivery, uint32_t sqn, bool is_message, const um_arrival *arrival);

/* Missing messages before `end` cannot be fetched. */
void um_fetch_live_lose_to(um_delivery *delivery, uint32_t end, int64_t now_ns);

/* Messages before `end` that the source reported and did not send are lost, now that they are known to exist. */
void um_fetch_live_lose_reported(um_delivery *delivery, uint32_t end, int64_t now_ns);

#endif
