/* What one delivery controller fetches from what its source retains, in one order with what the transport delivers
 * (UM-136..UM-143). Sans-I/O: requests are bytes to send on a TCP connection, answers bytes received. Here are late
 * join, the past of a topic before its present, and the fetch itself, which off-transport recovery shares
 * (off_transport.h).
 *
 *   inactive --begin--> awaits range (UM_DELIVERY_STARTING, or _WAITING) --range--> fetches [next_sqn, target)
 *                            | give up: begins with the first live message          | next_sqn reaches target
 *                            v                                                      v
 *                        inactive                                                inactive
 *
 * Where no live message has been seen it stays active at the target: the first live message shows what lies between.
 *
 * Live messages wait in the order map when they are no further from what is delivered than the caching proximity;
 * others are dropped and fetched, too: each moves `target` behind it. Everything in [next_sqn, target) that is not held
 * comes by TCP; gaps behind target are the transport's as ever. What lacks is a gap of the order map from the moment it
 * is known. Before `lost_to` it is not to be had by TCP: of a late join it is lost at once, of off-transport recovery
 * when the transport has given it up, too. A long run is one event (UX-7).
 *
 * A source that is found again after its session ended is joined late, too, but its past begins where the session
 * ended.
 *
 * Threads: the context lock. Memory: in the controller. Errors: a false result is a peer's fault.
 */
#ifndef UM_CORE_LATE_JOIN_H
#define UM_CORE_LATE_JOIN_H

#include "core/delivery/delivery_controller.h"
#include "core/receiver/receiver_session.h"

/* The controller, just mapped, is to have the past first: where it resumes (resume_points.h), from there on. */
void um_late_join_begin(um_delivery *delivery, uint32_t caching_proximity);

/* True for a live message, or a TSNI, that is dropped because it is too far ahead: it will be fetched. */
bool um_late_join_leaves_out(um_delivery *delivery, uint32_t sqn, bool is_message, const um_arrival *arrival);

/* Everything before `end` that is not held is to be fetched. */
void um_late_join_fetch_to(um_delivery *delivery, uint32_t end);

/* Ends the fetch when nothing lacks any more. */
void um_late_join_end_if_complete(um_delivery *delivery);

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

/* Whether what lacks next is not to be had by fetching, and not lost yet. */
bool um_late_join_is_left_to_transport(um_delivery *delivery);

/* What lacks is not to be had. */
void um_late_join_give_up(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);

/* Declares lost what was promised, when the transport has not shown it for as long as NAKs are generated after the
 * fetch was given up. Returns when the next call is due. */
int64_t um_late_join_tick(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);

/* What comes next did not come in time. A source that sent what lies behind it is not asked for it again; one that
 * sent nothing is given up: false. */
bool um_late_join_pass_over(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);

#endif
