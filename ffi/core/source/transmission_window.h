/* The transmission window of a source session: the sqns that can be sent again, [trail_sqn, next_sqn), and the log
 * behind them (UM-67, UM-125; AE-45..AE-48). Three limits bound it: LBMC bytes, entries, and one term of log.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: amortized constant, because each datagram
 * is dropped once. Errors: none. Inline, because it runs once per datagram.
 */

#ifndef UM_CORE_TRANSMISSION_WINDOW_H
#define UM_CORE_TRANSMISSION_WINDOW_H

#include "core/source/retention.h"

/* Bytes cleaned per step: more than a batch of datagrams, but quick to clean (AE-48). */
enum { UM_WINDOW_CLEAN_STEP_BYTES = 256 * 1024 };

static inline bool um_window_has(const um_source_session *session, uint32_t sqn)
{
    return !um_serial_before(sqn, session->trail_sqn) && um_serial_before(sqn, session->next_sqn);
}

/* Advances the trail by one datagram. Precondition: the window is not empty. */
static inline void um_window_drop_oldest(um_source_session *session)
{
    session->window_used_bytes -= um_source_session_sent(session, session->trail_sqn)->length;
    session->trail_sqn++;
}

/* Makes space for a datagram that ends at `end` in the log, after `pending` others that are built but not sent; `bytes`
 * counts them and it (UM-125). Called before the datagram is built, because its header carries the trail. */
static inline void um_window_make_space(um_source_session *session, int64_t end, uint32_t pending, uint64_t bytes)
{
    int64_t keep_from = end - session->log.term_length;
    while (session->trail_sqn != session->next_sqn &&
           (session->window_used_bytes + bytes > session->config.window_bytes ||
            session->next_sqn + pending - session->trail_sqn > session->sent_mask ||
            um_source_session_sent(session, session->trail_sqn)->position < keep_from))
        um_window_drop_oldest(session);
}

/* Drops the entries whose frames the log is about to clean, cleans one step and moves the publication limit. */
static inline void um_window_conduct(um_source_session *session)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    while (session->trail_sqn != session->next_sqn &&
           um_source_session_sent(session, session->trail_sqn)->position < position - (int64_t)session->log.term_length)
        um_window_drop_oldest(session);
    uint32_t budget = UM_WINDOW_CLEAN_STEP_BYTES;
    if (UM_UNLIKELY(session->retention_count > 0)) {
        /* Clean no more than was retained first, whatever is claimed now. */
        budget = (uint32_t)um_log_cleaning_due(&session->log, position, budget);
        um_retention_before_cleaning(session, session->log.clean_position + budget);
    }
    um_log_conduct(&session->log, position, budget);
}

#endif
