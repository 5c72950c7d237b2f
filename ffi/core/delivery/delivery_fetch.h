/* The fetch of one delivery controller: the missing messages that it requests from its source over TCP, out of those
 * that the source retains (UM-136..UM-143). It has two uses. Late join fetches the past of a topic before its present;
 * off-transport recovery (off_transport.h) fetches gaps that the transport may still recover, too.
 *
 *            um_delivery_fetch_begin                  um_otr_begin
 *                      |                                   |
 *     IDLE ------------+                                   |
 *      ^               v                                   v
 *      |          AWAITS_RANGE -- range --> STARTING --> RUNNING: fetches [next_sqn, target)
 *      |               |                                   |  |
 *      |               | give up                   give up |  | next_sqn has reached target
 *      |               v                                   v  |
 *      +----------- GIVEN_UP <-----------------------------+  |
 *      |     no missing message is left                       |
 *      +------------------------------------------------------+
 *
 * A range is the source's report of the messages that it retains. A fetch that has seen no live message stays active at
 * its target, because the first live message shows whether messages are missing in between.
 *
 * Live messages within the caching proximity are kept in the order map. Others are dropped and move `target` behind
 * them, so that they are fetched, too. Missing messages of [next_sqn, target) arrive over TCP; the transport recovers
 * gaps behind target. A missing message is a gap of the order map as soon as it is known to exist. Messages before
 * `lost_to` cannot be fetched: a late join declares them lost at once, off-transport recovery when the transport has
 * given them up as well. A long run of them is one event (UX-7).
 *
 * A source that is rediscovered after its session ended is joined late, too, but its past starts where that session
 * ended.
 *
 * The functions here need the controller alone. fetch_live.h decides about live messages, and
 * core/receiver/fetch_protocol.h has the requests and answers.
 *
 * Threads: the context lock. Memory: in the controller. Complexity: constant, except for the search of the order map.
 * Errors: none.
 */
#ifndef UM_CORE_DELIVERY_FETCH_H
#define UM_CORE_DELIVERY_FETCH_H

#include "core/delivery/delivery_state.h"

/* Starts the late join of a controller that was just mapped, from resume_sqn on if it has one (resume_points.h). */
void um_delivery_fetch_begin(um_delivery *delivery, uint32_t caching_proximity);

/* Extends the fetch to all missing messages before `end`. */
void um_delivery_fetch_to(um_delivery *delivery, uint32_t end);

/* Ends the fetch if no message is missing. */
void um_delivery_fetch_end_if_complete(um_delivery *delivery);

/* Ends the fetch of a source that did not have the range it reported, and waits for the next live message. If that is
 * behind the passed messages, it reveals a gap; anywhere else, delivery restarts there. */
void um_delivery_fetch_begin_with_live(um_delivery *delivery);

/* Records that all sqns before `end` exist. */
void um_delivery_fetch_note_shown(um_delivery_fetch *fetch, uint32_t end);

/* Records that the sqns up to `sqn` exist and are missing. */
void um_delivery_fetch_note_missing(um_delivery *delivery, uint32_t sqn, int64_t now_ns);

/* True if only ranges reported by the source show that the stream reaches next_sqn. */
bool um_delivery_fetch_is_unproved(const um_delivery *delivery);

/* True if delivery has passed everything that exists, because the source reported a range that does not. */
bool um_delivery_fetch_is_ahead_of_stream(const um_delivery *delivery);

/* True if the fetch is active and was not given up. */
static inline bool um_delivery_fetch_is_running(const um_delivery *delivery)
{
    return delivery->fetch.state != UM_DELIVERY_FETCH_IDLE && delivery->fetch.state != UM_DELIVERY_FETCH_GIVEN_UP;
}

#endif
