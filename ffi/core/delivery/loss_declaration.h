/* Works at the head of the order map: delivers complete messages, and gives up gaps that are too old or exceed the
 * bounds of the map, with one loss event per sqn or one burst event (UM-95..UM-101, UX-6, UX-7). Private to the
 * controller's files.
 *
 * Threads: the context lock. Memory: the reorder buffer's and the queue's. Complexity: amortized constant per sqn.
 * Errors: false if the queue is full; undelivered messages stay, and the next call continues.
 */

#ifndef UM_CORE_LOSS_DECLARATION_H
#define UM_CORE_LOSS_DECLARATION_H

#include "core/delivery/delivery_state.h"

/* Delivers complete messages; if may_give_up, also gives up gaps that are due. Returns false if the queue is full. */
bool um_loss_drain(um_delivery *delivery, int64_t now_ns, bool may_give_up);

/* Gives up the sqns of a gap that are still lost, one loss event per sqn (UM-101). Whole messages up to the last of
 * them are delivered, incomplete ones dropped. A message that starts behind it may still wait for a younger gap. */
bool um_loss_give_up_gap(um_delivery *delivery, const um_gap *gap, int64_t now_ns);

/* Returns true if the arrival of sqn changes nothing at the head: another gap is there, and it is not due. */
bool um_loss_is_unchanged(um_delivery *delivery, uint32_t sqn, int64_t now_ns);

/* Declares everything before sqn lost in one event and drops held messages, because the gap is too long (UX-7). */
bool um_loss_declare_burst(um_delivery *delivery, uint32_t sqn, int64_t now_ns);

#endif
