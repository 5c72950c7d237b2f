/* Bytes received on a connection that the fetches of several topics share, split by topic (fetch.h).
 *
 * A connection carries at most one fetch per topic, and the index of its requests names the topic, so that every answer
 * belongs to one fetch: messages by their topic index, ranges by the request index that the source repeats.
 *
 * Threads: any. Memory: the caller's. Complexity: linear in the messages of the run. Errors: -EBADMSG for bytes that
 * are not LBMC of the request protocol.
 */
#ifndef UM_CORE_FETCH_RUNS_H
#define UM_CORE_FETCH_RUNS_H

#include "core/foundation/base.h"

/* Number that identifies a topic on a connection: the topic index without its highest bit, which a request index does
 * not have. */
static inline uint32_t um_fetch_topic_key(uint32_t topic_index)
{
    return topic_index & INT32_MAX;
}

/* Returns the length of the run of whole messages of one topic at the start of the data, and stores the topic's key; 0
 * if the first message is incomplete. With `all`, the run ends at the last whole message of any topic. */
int64_t um_fetch_next_run(const uint8_t *data, uint32_t length, bool all, uint32_t *topic_key);

#endif
