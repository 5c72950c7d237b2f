/* Messages that a source retains for receivers that join late (UM-136..UM-141): the newest of one topic, indexed by
 * topic sqn. A retained message stays in the publication log while the log has it; before the log cleans it, it is
 * copied once to the retained store of its topic. So no message is retained in two places.
 *
 *   retained_position: retained frames before it are in the stores, frames from it on in the log
 *
 * The oldest message is dropped if the others have at least the size threshold's bytes and the message as old as the
 * age threshold, and in any case beyond the size limit or the entries of the index. One message always stays (UM-141).
 * A topic drops messages when it sends and when a range of it is requested: other topics' sends do not examine it.
 *
 * Threads: the holder of the session's sender lock. Memory: one block of footprint bytes, owned by the creator;
 * untouched parts need no pages. Complexity: amortized constant per message sent, for up to UM_RETENTION_BUCKETS topics
 * of a session; logarithmic for a range.
 */
#ifndef UM_CORE_RETENTION_H
#define UM_CORE_RETENTION_H

#include "core/source/source_state.h"
#include "core/wire/range_request.h"

typedef struct um_retention_config {
    uint64_t size_limit_bytes;
    uint64_t size_threshold_bytes;
    int64_t age_threshold_ns;
} um_retention_config;

/* Place of one sqn: a position of the log, or -1 - offset in the store. */
typedef struct um_retained {
    int64_t place;
    uint64_t bytes_before; /* bytes of the topic sent before it */
    int64_t sent_ns;
} um_retained;

typedef struct um_retention {
    um_retention_config config;
    um_source_session *session;
    struct um_retention *next; /* next one in its bucket of the session */
    uint32_t topic_index;
    uint32_t initial_sqn;
    bool has_started;
    uint32_t first_sqn; /* [first_sqn, next_sqn) is retained */
    uint32_t next_sqn;
    uint64_t total_bytes; /* bytes of the topic ever sent */
    um_retained *index;
    uint32_t index_mask;
    uint8_t *store; /* ring buffer; a message does not wrap */
    uint64_t store_bytes;
    uint64_t store_head;
    uint64_t requests;
    uint64_t served_messages;
    uint64_t unavailable;
} um_retention;

size_t um_retention_footprint(const um_retention_config *config);
/* Adds the retention to the session's; memory is zeroed. */
void um_retention_init(um_retention *retention, void *memory, const um_retention_config *config,
                       um_source_session *session, uint32_t topic_index, uint32_t initial_sqn);
void um_retention_fini(um_retention *retention);

/* The sender calls this after sending: retains the messages sent since the last call. */
void um_retention_on_sent(um_source_session *session, int64_t now_ns);
/* The sender calls this before the log is cleaned up to `position`. */
void um_retention_before_cleaning(um_source_session *session, int64_t position);

/* Stores the retained sqns within the bounds as [*low, *high]; *high is *low - 1 if there are none. */
void um_retention_range(um_retention *retention, const um_range_bounds *bounds, int64_t now_ns, uint32_t *low,
                        uint32_t *high);

/* Requests received on one connection, and the responses to them. */
typedef struct um_recovery_exchange {
    const uint8_t *requests; /* control messages, each a chain of options 21 */
    uint32_t length;
    uint32_t skip; /* requests of the first message that are already answered */
    uint8_t *out;
    uint32_t capacity;
    uint32_t consumed; /* bytes of whole messages answered */
    uint32_t written;
} um_recovery_exchange;

/* Answers as many requests as there is space for, each with the message as LBMC type 10. A message that is no longer
 * retained is answered with the retained range, once per call; a message not sent yet is not answered. Stops before a
 * control message that requests messages of another topic. Returns false if the requests are malformed. */
bool um_retention_serve(um_retention *retention, um_recovery_exchange *exchange);

static inline uint64_t um_retention_bytes(const um_retention *retention)
{
    return retention->first_sqn == retention->next_sqn
               ? 0
               : retention->total_bytes - retention->index[retention->first_sqn & retention->index_mask].bytes_before;
}

#endif
