/* Implicit batching (UM-16..UM-33): when a publisher moves the session's flush limit, and how it claims space in the
 * log. Private to the files of the topic layer (source.h).
 *
 * Threads: any publisher; no lock. Racing publishers may each miss the other's bytes, which affects when a batch is
 * flushed, never whether: the interval timer compares the flush limit with the log's tail. Memory: on the publisher's
 * stack. Complexity: constant. Errors: um_publish_result of a claim. Inline, because it runs once per message.
 */

#ifndef UM_CORE_BATCHER_H
#define UM_CORE_BATCHER_H

#include "core/source/source_state.h"

enum { UM_CLAIM_RETRIES_MAX = 64 }; /* consecutive term rotations after which a claim reports back-pressure */

static inline void um_source_flush_to(um_source_session *session, int64_t position)
{
    int64_t limit = atomic_load_explicit(&session->flush_limit, memory_order_relaxed);
    while (limit < position && !atomic_compare_exchange_weak_explicit(&session->flush_limit, &limit, position,
                                                                      memory_order_seq_cst, memory_order_relaxed))
        ;
}

static inline void um_batcher_flush_all(um_source_session *session)
{
    atomic_store_explicit(&session->batch, 0, memory_order_relaxed);
    um_source_flush_to(session, um_log_tail(&session->log));
}

static inline uint32_t um_source_take_sqns(um_source *source, uint32_t count)
{
    return (uint32_t)atomic_fetch_add_explicit(&source->next_sqn, count, memory_order_relaxed);
}

static inline void um_count_shared(uint64_t *counter, uint64_t n)
{
    __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* A publisher's view of the session's batch while it appends frames. */
typedef struct um_batcher {
    um_source_session *session;
    uint32_t body_bytes; /* LBMC bytes in the open datagram */
    uint32_t user_bytes; /* deferred user bytes */
    uint32_t body_max;
    bool was_empty;
    int64_t flush_to; /* -1: nothing to flush */
    /* Added to the counters at the end: a locked addition would wait for the bytes just copied. */
    uint32_t flushes_full;
    uint32_t flushes_length;
} um_batcher;

/* Returns the batch that the frame at `position` may join. Only frames before it can be deferred; if another publisher
 * has flushed up to here there are none, even if the last publisher noted some. */
static inline um_batcher um_batcher_open(um_source_session *session, int64_t position)
{
    bool is_held = atomic_load_explicit(&session->flush_limit, memory_order_relaxed) < position;
    uint64_t word = is_held ? atomic_load_explicit(&session->batch, memory_order_relaxed) : 0;
    return (um_batcher){.session = session,
                        .body_bytes = (uint32_t)(word >> 32),
                        .user_bytes = (uint32_t)word,
                        .body_max = atomic_load_explicit(&session->body_max_bytes, memory_order_relaxed),
                        .was_empty = word == 0,
                        .flush_to = -1};
}

/* Accounts for one message: flushes before it if it would overfill the datagram (UM-19c), after it if the batch has
 * reached its minimum length (UM-19a). */
static inline void um_batcher_add(um_batcher *b, int64_t frame_position, int64_t end_position, uint32_t body_bytes,
                                  uint32_t user_bytes)
{
    if (b->body_bytes + body_bytes > b->body_max && b->body_bytes > 0) {
        b->flush_to = frame_position;
        b->body_bytes = b->user_bytes = 0;
        b->flushes_full++;
    }
    b->body_bytes += body_bytes;
    b->user_bytes += user_bytes;
    if (b->user_bytes >= b->session->config.batch_minimum_bytes) {
        b->flush_to = end_position;
        b->body_bytes = b->user_bytes = 0;
        b->flushes_length++;
    }
}

/* After a commit: requests a run of the sender if it can proceed, also if another publisher's flush covers the frame,
 * because the sender may have stopped at it. The fence orders the commit before the reads of the sender's state. */
static inline void um_source_wake_sender(um_source_session *session, uint32_t *actions)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&session->is_sender_waiting, memory_order_relaxed))
        atomic_store_explicit(&session->is_sender_waiting, false, memory_order_relaxed);
    if (atomic_load_explicit(&session->flush_limit, memory_order_relaxed) >
        atomic_load_explicit(&session->sender_position, memory_order_relaxed))
        *actions |= UM_ACTION_RUN_SENDER;
}

static inline void um_batcher_close(um_batcher *b, int64_t end_position, bool is_flush, int64_t now_ns,
                                    uint32_t *actions)
{
    um_source_session *session = b->session;
    if (is_flush) {
        b->flush_to = end_position;
        b->body_bytes = b->user_bytes = 0;
        um_count_shared(&session->counters.flushes_explicit, 1);
    }
    if (b->flushes_full > 0)
        um_count_shared(&session->counters.flushes_full, b->flushes_full);
    if (b->flushes_length > 0)
        um_count_shared(&session->counters.flushes_length, b->flushes_length);
    uint64_t word = (uint64_t)b->body_bytes << 32 | b->user_bytes;
    atomic_store_explicit(&session->batch, word, memory_order_relaxed);
    if (word != 0 && (b->was_empty || b->flush_to >= 0)) {
        atomic_store_explicit(&session->batch_started_ns, now_ns, memory_order_relaxed);
        *actions |= UM_ACTION_BATCH_STARTED;
    }
    if (b->flush_to >= 0)
        um_source_flush_to(session, b->flush_to);
    um_source_wake_sender(session, actions);
}

/* The caller marks the claimed frame (um_frame_begin, um_frame_borrow) after it took the sqns: the first write may wait
 * for a page, and messages of several threads should have their sqns in the order of the log. */
static inline int um_source_claim_space(um_source *source, uint32_t span, uint32_t *actions, um_claim *claim)
{
    um_source_session *session = source->session;
    if (atomic_load_explicit(&source->is_closed, memory_order_relaxed))
        return UM_CLOSED;
    if (atomic_load_explicit(&session->limits->is_blocked, memory_order_relaxed))
        return UM_RATE_LIMITED;
    int result = UM_ADMIN_ACTION;
    for (int i = 0; i < UM_CLAIM_RETRIES_MAX && result == UM_ADMIN_ACTION; i++)
        result = um_log_claim(&session->log, span, claim);
    if (UM_LIKELY(result == 0))
        return 0;
    /* Deferred frames must be sent before there can be space, so a full log flushes itself. The claim may also have
     * padded the end of a term, which is a commit: the sender may have stopped at it. */
    if (result == UM_BACK_PRESSURED || result == UM_ADMIN_ACTION) {
        um_batcher_flush_all(session);
        um_source_wake_sender(session, actions);
        *actions |= UM_ACTION_RUN_SENDER;
        um_count_shared(&session->counters.back_pressured, 1);
        result = UM_BACK_PRESSURED;
    } else if (result == UM_NOT_CONNECTED) {
        um_count_shared(&session->counters.not_connected, 1);
    }
    um_count_shared(&source->counters.sends_refused, 1);
    return result;
}

#endif
