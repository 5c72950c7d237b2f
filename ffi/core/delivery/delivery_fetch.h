/* The fetch of one delivery controller: messages that its source retains, delivered in one order with those that the
 * transport delivers (UM-136..UM-143). A late join fetches the past of a topic before its present; off-transport
 * recovery fetches gaps that the transport may not recover (off_transport.h).
 *
 *   IDLE --late join--> AWAITS_RANGE --range--> STARTING --set up--> RUNNING --next_sqn reaches target--> IDLE
 *     |                      |                                         ^  |
 *     +---- off transport ---+-----------------------------------------+  | given up
 *                            | given up; nothing was received: IDLE        v
 *                            +-----------------------------------------> GIVEN_UP --missing messages lost or here-->
 * IDLE
 *
 * A range is the source's report of the messages that it retains. Until a live message has been seen a fetch stays
 * active at its target, because the first live message shows the messages in between.
 *
 * Live messages within the caching proximity of delivery wait in the order map; others are dropped and fetched later,
 * which moves `target` behind them. All missing messages of [next_sqn, target) arrive over TCP; gaps behind target are
 * the transport's. A missing message is a gap of the order map from the moment it is known. Before `lost_to` it cannot
 * be fetched: a late join loses it at once, off-transport recovery when the transport has given it up as well. A long
 * run of them is one event (UX-7).
 *
 * This file is the part that concerns the controller alone; fetch_live.h decides about live messages, and
 * receiver/fetch_protocol.h has requests and answers.
 *
 * Threads: the context lock. Memory: in the controller. Errors: none.
 */
#ifndef UM_CORE_DELIVERY_FETCH_H
#define UM_CORE_DELIVERY_FETCH_H

#include "core/delivery/delivery_state.h"

/* Starts the late join of a controller that was just mapped; if the controller resumes (resume_points.h), from there.
 */
void um_delivery_fetch_begin(um_delivery *delivery, uint32_t caching_proximity);

/* Extends the fetch to all missing messages before `end`. */
void um_delivery_fetch_to(um_delivery *delivery, uint32_t end);

/* Ends the fetch if nothing is missing any more. */
void um_delivery_fetch_end_if_complete(um_delivery *delivery);

/* Ends a fetch whose peer reported a range that it does not have: delivery waits for the next live message, which shows
 * a gap if it is behind the passed messages, and starts delivery anywhere else. */
void um_delivery_fetch_begin_with_live(um_delivery *delivery);

/* Records that all sqns before `end` exist. */
void um_delivery_fetch_note_shown(um_delivery_fetch *fetch, uint32_t end);

/* Records that the sqns up to `sqn` exist and are missing. */
void um_delivery_fetch_note_missing(um_delivery *delivery, uint32_t sqn, int64_t now_ns);

/* True if only ranges of the peer reported that the stream reaches the position of delivery. */
bool um_delivery_fetch_is_unproved(const um_delivery *delivery);

/* True if delivery is ahead of every message that exists, because the peer reported a range that does not exist. */
bool um_delivery_fetch_is_ahead_of_stream(const um_delivery *delivery);

/* True if a fetch is active and requests messages. */
static inline bool um_delivery_fetch_is_running(const um_delivery *delivery)
{
    return delivery->fetch.state != UM_DELIVERY_FETCH_IDLE && delivery->fetch.state != UM_DELIVERY_FETCH_GIVEN_UP;
}

#endif
