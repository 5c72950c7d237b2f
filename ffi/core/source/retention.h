/* What a source retains for receivers that join late (UM-136..UM-141): the newest messages of one topic, found by topic
 * sqn. A retained message lies in the publication log as long as that has it; what the log is about to clean is copied,
 * once, into the retained store of its topic. So what is retained never lies in two places.
 *
 *   retained_position: frames before it are in the stores, or not wanted; frames from it on lie in the log
 *
 * The oldest message is dropped when what would remain is as long as the size threshold and the message as old as the
 * age threshold, and in any case beyond the size limit, or beyond the entries of the index. One message stays (UM-141).
 *
 * Threads: the holder of the session's sender lock. Memory: one block of footprint bytes, the creator's, untouched
 * parts of which need no pages. Complexity: amortized constant for each message sent; logarithmic for a range.
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

/* Where one sqn lies: a position of the log, or -1 - offset in the store. */
typedef struct um_retained {
    int64_t place;
    uint64_t bytes_before; /* of the topic, sent before it */
    int64_t sent_ns;
} um_retained;

typedef struct um_retention {
    um_retention_config config;
    um_source_session *session;
    struct um_retention *next; /* the session's list */
    uint32_t topic_index;
    uint32_t initial_sqn;
    bool has_started;
    uint32_t first_sqn; /* retained: [first_sqn, next_sqn) */
    uint32_t next_sqn;
    uint64_t total_bytes; /* of the topic, sent ever */
    um_retained *index;
    uint32_t index_mask;
    uint8_t *store; /* ring; a message does not wrap */
    uint64_t store_bytes;
    uint64_t store_head;
    uint64_t requests;
    uint64_t served_messages;
    uint64_t unavailable;
} um_retention;

size_t um_retention_footprint(const um_retention_config *config);
/* Joins the session's list; memory is zeroed. */
void um_retention_init(um_retention *retention, void *memory, const um_retention_config *config,
                       um_source_session *session, uint32_t topic_index, uint32_t initial_sqn);
void um_retention_fini(um_retention *retention);

/* The sender's: what has been sent since the last call is retained from now on. */
void um_retention_on_sent(um_source_session *session, int64_t now_ns);
/* The sender's: the log is about to clean up to `position`. */
void um_retention_before_cleaning(um_source_session *session, int64_t position);

/* The sqns [*low, *high] that are retained and wanted; *high is *low - 1 when there are none. */
void um_retention_range(um_retention *retention, const um_range_bounds *bounds, int64_t now_ns, uint32_t *low,
                        uint32_t *high);

/* Requests received on one connection, and the answers to them. */
typedef struct um_recovery_exchange {
    const uint8_t *requests; /* control messages, each a chain of options 21 */
    uint32_t length;
    uint32_t skip; /* requests of the first message that were answered before */
    uint8_t *out;
    uint32_t capacity;
    uint32_t consumed; /* bytes of whole messages answered */
    uint32_t written;
} um_recovery_exchange;

/* Answers as much as there is space for: each request with the message, as LBMC type 10. What is not retained any more
 * is answered with the range that is, once a call; what has not been sent yet, not at all. False when the requests are
 * not well-formed, or of another topic. */
bool um_retention_serve(um_retention *retention, um_recovery_exchange *exchange);

static inline uint64_t um_retention_bytes(const um_retention *retention)
{
    return retention->first_sqn == retention->next_sqn
               ? 0
               : retention->total_bytes - retention->index[retention->first_sqn & retention->index_mask].bytes_before;
}

#endif
