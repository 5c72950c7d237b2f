/* Control messages in the stream, each in its own datagram. TSNIs carry the newest sqn of idle topics (UM-62..UM-66);
 * group reports carry what receivers need for their NAK timers (group_report.h). Declared in source.h. Sender lock. */
#include "core/source/batcher.h"
#include "core/source/explicit_batch.h"
#include "core/source/source.h"
#include "core/wire/group_report.h"

enum { TSNI_RETRY_NS = 1000000 }; /* delay before a TSNI that could not be published is tried again */

/* A control message would flush a held batch early, so it waits for the batch: at most for the batching interval,
 * because under load a batch is always open. since_ns: since when it waits; UM_NEVER_NS: it does not. */
static bool waits_for_batch(const um_source_session *session, int64_t *since_ns, int64_t now_ns)
{
    bool is_held = um_log_tail(&session->log) > atomic_load_explicit(&session->flush_limit, memory_order_relaxed);
    if (is_held && *since_ns == UM_NEVER_NS)
        *since_ns = now_ns;
    if (is_held && now_ns - *since_ns <= session->config.batch_interval_ns)
        return true;
    *since_ns = UM_NEVER_NS;
    return false;
}

/* When the source's next TSNI is due; UM_NEVER_NS if it has never sent, or is idle beyond the threshold. */
static int64_t tsni_due_ns(const um_source *source)
{
    int64_t last_ns = atomic_load_explicit(&source->last_send_ns, memory_order_relaxed);
    if (source->tsni_interval_ns == 0 || last_ns == INT64_MIN)
        return UM_NEVER_NS;
    int64_t from_ns = last_ns > source->tsni_sent_ns ? last_ns : source->tsni_sent_ns;
    int64_t due_ns = from_ns + source->tsni_interval_ns;
    bool is_over = source->tsni_threshold_ns != 0 && due_ns > last_ns + source->tsni_threshold_ns;
    return is_over ? UM_NEVER_NS : due_ns;
}

/* Returns 0 or a um_publish_result. */
static int publish(um_source_session *session, const uint8_t *message, uint32_t length)
{
    um_claim claim;
    int64_t start = um_log_tail(&session->log);
    int result = UM_ADMIN_ACTION;
    for (int i = 0; i < UM_CLAIM_RETRIES_MAX && result == UM_ADMIN_ACTION; i++)
        result = um_log_claim(&session->log, um_frame_span(length), &claim);
    if (result != 0)
        return result;
    um_frame_begin(&session->log, claim.frames, length);
    memcpy(claim.frames + UM_FRAME_HEADER_BYTES, message, length);
    um_frame_publish(&session->log, claim.frames, length);
    um_source_flush_all(session);
    bool is_in_new_term = claim.position % session->log.term_length == 0; /* padding lies between */
    if (claim.position != start && !is_in_new_term)
        start = claim.position; /* a message was published meanwhile */
    if (start != session->control_end)
        session->control_start = start;
    session->control_end = claim.position + claim.length;
    return 0;
}

static int publish_tsnis(um_source_session *session, const uint32_t *topics, const uint32_t *sqns, uint32_t count)
{
    uint8_t message[UM_LBMC_CONTROL_BYTES + UM_LBMC_TSNI_BYTES + UM_LBMC_TSNI_RECORD_BYTES * UM_LBMC_TSNI_RECORDS_MAX];
    int result = publish(session, message, um_lbmc_write_tsni(message, topics, sqns, count));
    UM_COUNT(session->counters.tsnis_sent, result == 0 ? count : 0);
    return result;
}

/* Stores the last topic sqn in the log. Returns false while that is uncertain: a publisher is changing it, or an
 * application holds a claim, which has its place in the log but no sqn; a receiver that started at a TSNI behind the
 * claim would wait for it. The sqns of a held explicit batch are not announced: receivers would give them up as lost.
 */
static bool last_published_sqn(um_source *source, uint32_t *sqn)
{
    if (atomic_load_explicit(&source->session->sender_position, memory_order_relaxed) <
        atomic_load_explicit(&source->claimed_to, memory_order_relaxed))
        return false;
    if (!um_lock_try(&source->explicit_lock))
        return false;
    uint32_t next_sqn;
    if (!um_explicit_batch_first_sqn(source, &next_sqn))
        next_sqn = (uint32_t)atomic_load_explicit(&source->next_sqn, memory_order_relaxed);
    *sqn = next_sqn - 1;
    um_lock_release(&source->explicit_lock);
    return true;
}

int um_source_announce(um_source *source, int64_t now_ns)
{
    uint32_t sqn;
    if (!last_published_sqn(source, &sqn))
        return UM_BACK_PRESSURED;
    int result = publish_tsnis(source->session, &source->topic_index, &sqn, 1);
    if (result != 0)
        return result;
    source->tsni_sent_ns = now_ns;
    UM_COUNT(source->counters.tsnis_sent, 1);
    return 0;
}

int64_t um_source_tick_tsni(um_source_session *session, int64_t now_ns)
{
    um_source *due[UM_LBMC_TSNI_RECORDS_MAX];
    uint32_t topics[UM_LBMC_TSNI_RECORDS_MAX], sqns[UM_LBMC_TSNI_RECORDS_MAX];
    uint32_t count = 0;
    int64_t next_ns = UM_NEVER_NS;
    if (now_ns < session->tsni_due_ns)
        return session->tsni_due_ns;
    if (waits_for_batch(session, &session->tsni_waits_ns, now_ns))
        return session->tsni_due_ns = now_ns + TSNI_RETRY_NS;
    for (um_source *source = session->sources; source != NULL; source = source->next) {
        if (count < UM_LBMC_TSNI_RECORDS_MAX && tsni_due_ns(source) <= now_ns &&
            last_published_sqn(source, &sqns[count])) {
            topics[count] = source->topic_index;
            due[count++] = source;
            source->tsni_sent_ns = now_ns;
        }
        int64_t due_ns = tsni_due_ns(source);
        if (due_ns <= now_ns && count < UM_LBMC_TSNI_RECORDS_MAX) /* not published now, though there was space for it */
            due_ns = now_ns + TSNI_RETRY_NS;
        next_ns = um_earliest_ns(due_ns, next_ns);
    }
    if (count > 0 && publish_tsnis(session, topics, sqns, count) == 0)
        for (uint32_t i = 0; i < count; i++)
            UM_COUNT(due[i]->counters.tsnis_sent, 1);
    session->tsni_due_ns = next_ns;
    return next_ns;
}

/* A session that has never sent a message sends no reports (UM-74). */
int64_t um_source_tick_group_report(um_source_session *session, int64_t now_ns)
{
    uint8_t message[UM_GROUP_REPORT_BYTES];
    um_source_timing *timing = &session->timing;
    int64_t due_ns;
    if (!session->has_sent || !um_source_timing_is_report_due(timing, session->next_sqn, now_ns, &due_ns))
        return session->has_sent ? due_ns : UM_NEVER_NS;
    if (waits_for_batch(session, &session->report_waits_ns, now_ns))
        return due_ns;
    um_group_report report = {um_census_receivers(&timing->census), um_census_longest_ns(&timing->census),
                              session->config.flow_policy == UM_FLOW_NONE};
    if (publish(session, message, um_group_report_encode(message, &report)) == 0) {
        UM_COUNT(session->counters.group_reports_sent, 1);
        um_source_timing_on_reported(timing, report.receivers, report.round_trip_ns, session->next_sqn + 1, now_ns);
    }
    return due_ns;
}
