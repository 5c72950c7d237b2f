/* Late join of one delivery controller (UM-136..UM-143): the past of a topic, fetched from what the source retains, and
 * the present behind it, in one order. Sans-I/O: requests are bytes to send on a TCP connection, answers bytes
 * received.
 *
 *   inactive --begin--> awaits range (UM_DELIVERY_STARTING, or _WAITING) --range--> fetches [next_sqn, target)
 *                            | give up: begins with the first live message          | next_sqn reaches target
 *                            v                                                      v
 *                        inactive                                                inactive
 *
 * Live messages wait in the order map when they are no further from what is delivered than the caching proximity;
 * others are dropped and fetched, too: each moves `target` behind it. Everything in [next_sqn, target) that is not held
 * comes by TCP; gaps behind target are the transport's as ever. What the source does not retain any more becomes a gap
 * whose time is up: one loss event for each sqn.
 *
 * Threads: the context lock. Memory: in the controller. Errors: a false result is a peer's fault.
 */
#ifndef UM_CORE_LATE_JOIN_H
#define UM_CORE_LATE_JOIN_H

#include "core/delivery_controller.h"
#include "core/receiver_session.h"

/* The controller, just mapped, is to have the past first. */
void um_late_join_begin(um_delivery *delivery, uint32_t caching_proximity);

/* True for a live message, or a TSNI, that is dropped because it is too far ahead: it will be fetched. */
bool um_late_join_leaves_out(um_delivery *delivery, uint32_t sqn, bool is_message, const um_arrival *arrival);

/* Everything before `end` that is not held is to be fetched. */
void um_late_join_fetch_to(um_delivery *delivery, uint32_t end);

/* Takes bytes received from the source. Returns how many were used: whole messages, fewer when the queue is full or a
 * message is not all there; -EBADMSG for what is not the protocol's. */
int64_t um_late_join_receive(um_receiver_session *session, um_delivery *delivery, const uint8_t *data, uint32_t length,
                             int64_t now_ns);

/* Writes requests for what comes next, so that at most `outstanding` sqns are requested and not delivered. Returns
 * bytes.
 */
uint32_t um_late_join_request(um_delivery *delivery, uint32_t outstanding, uint8_t *out, uint32_t capacity);

/* What was requested is requested again. */
static inline void um_late_join_retry(um_delivery *delivery)
{
    delivery->late_join.requested = delivery->next_sqn;
}

/* The past, as far as it is lacking, is not to be had: it is lost, and the present goes on. */
void um_late_join_give_up(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);

#endif
