/* The head of the order map: what is complete is delivered, and gaps are given up, one loss event a sqn or one burst
 * event, when their time or the bounds of the map are exceeded (UM-95..UM-101, UX-6, UX-7). Private to the controller's
 * files.
 *
 * Threads: the context lock. Memory: the store's and the queue's. Complexity: amortized constant for each sqn. Errors:
 * false when the queue is full: what has not been delivered stays, and the next call goes on.
 */

#ifndef UM_CORE_LOSS_DECLARATION_H
#define UM_CORE_LOSS_DECLARATION_H

#include "core/delivery/delivery_state.h"

/* Delivers what can be delivered. Returns false when the queue is full. */
bool um_loss_drain(um_delivery *delivery, int64_t now_ns, bool may_give_up);

/* Gives up what is still lost of a gap: one loss event per sqn (UM-101); whole messages up to the last of them are
 * delivered, incomplete ones dropped. A message that begins behind it may wait on for a younger gap. */
bool um_loss_give_up_gap(um_delivery *delivery, const um_gap *gap, int64_t now_ns);

/* Whether the arrival of sqn changed nothing at the head: the gap there is another one, and not due. */
bool um_loss_is_unchanged(um_delivery *delivery, uint32_t sqn, int64_t now_ns);

/* UX-7: a gap too long to wait for is one event, and what was held before it goes too. */
bool um_loss_declare_burst(um_delivery *delivery, uint32_t sqn, int64_t now_ns);

#endif
