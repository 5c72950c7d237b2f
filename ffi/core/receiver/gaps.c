#include "core/receiver/gaps.h"

#include "core/receiver/lost_repairs.h"
#include "core/receiver/recovery_timing.h"

/* A claimed number was given up: the position that is reported to the source may pass the claims (session_claims.h). */
static void note_failed_claim(um_receiver_session *session, uint32_t sqn)
{
    um_receiver_session_claims *claims = &session->claims;
    if (!claims->has_any || (sqn != session->next_sqn && !(claims->has_far && sqn == claims->far_sqn)))
        return;
    claims->has_failed = true;
    claims->failed_end = claims->end;
    session->due_ns[UM_TIMER_STATUS] = INT64_MIN; /* the source may be waiting for this position */
}

void um_gaps_give_up(um_receiver_session *session, um_loss *loss, uint64_t *reason_counter)
{
    UM_COUNT(*reason_counter, 1);
    um_gaps_report_closed(session, loss->sqn);
    note_failed_claim(session, loss->sqn);
    um_loss_map_remove(&session->losses, loss);
}

/* One back-off serves the whole gap (UM-116, UM-117). Sqns that the source cannot send again are not NAKed (UM-128),
 * nor those that the loss map has no space for. */
void um_gaps_add(um_receiver_session *session, uint32_t first, uint32_t last, int64_t now_ns)
{
    um_receiver_transport_counters *counters = &session->counters;
    UM_COUNT(counters->lost, last - first + 1);
    UM_COUNT(session->gaps_found, 1);
    if (um_serial_before(first, session->trail_sqn)) {
        uint32_t end = um_serial_before(last, session->trail_sqn) ? last + 1 : session->trail_sqn;
        UM_COUNT(counters->unrecovered_txw, end - first);
        first = end;
    }
    uint32_t space = session->losses.capacity - session->losses.count;
    if (last - first + 1 > space) { /* the newest are the most likely to be retransmitted */
        uint32_t excess = last - first + 1 - space;
        UM_COUNT(counters->loss_map_overflows, excess);
        UM_COUNT(counters->unrecovered_txw, excess);
        first += excess;
    }
    int64_t backoff_ns = um_recovery_timing_draw_initial_ns(&session->timing, &session->random);
    if (!um_receiver_session_can_nak(session) && backoff_ns > session->config.nak_generation_ns)
        backoff_ns = session->config.nak_generation_ns;
    for (; first != last + 1; first++)
        um_loss_map_add(&session->losses, first, now_ns, now_ns + backoff_ns);
}

/* True if about a quarter of the window reported last has been received beyond the position reported with it, the
 * datagrams taken as having the mean length. */
static bool has_opened_window(const um_receiver_session *session)
{
    const um_receiver_transport_counters *counters = &session->counters;
    uint64_t datagrams = session->next_sqn - session->status_sqn;
    uint64_t mean_bytes = counters->msgs_rcved > 0 ? counters->bytes_rcved / counters->msgs_rcved : 0;
    return session->config.window_bytes != 0 &&
           datagrams * mean_bytes >= um_receiver_session_report_after_bytes(session);
}

void um_gaps_on_recovered(um_receiver_session *session, um_loss *loss, bool retransmission, int64_t now_ns)
{
    um_receiver_transport_counters *counters = &session->counters;
    uint64_t waited = (uint64_t)(now_ns - loss->detected_ns);
    if (retransmission) {
        um_recovery_timing_on_repaired(&session->timing, loss->sqn, loss->detected_ns);
        uint32_t naks = loss->naks_sent > 0 ? loss->naks_since : 0;
        um_recovery_timing_on_retransmission(&session->timing, naks, loss->ncfs_seen, now_ns - loss->nak_ns);
        um_other_losers_on_repaired(&session->timing.others, session->next_sqn,
                                    loss->naks_sent == 0 || loss->ncfs_seen > 0);
        um_lost_repairs_on_repaired(session, loss, now_ns);
    } else {
        um_recovery_timing_on_reordered(&session->timing, (int64_t)waited);
        um_recovery_timing_on_reordered_by(&session->timing, session->next_sqn - loss->sqn - 1);
        UM_COUNT(counters->out_of_order, 1);
    }
    counters->nak_stm_min = waited < counters->nak_stm_min ? waited : counters->nak_stm_min;
    counters->nak_stm_max = waited > counters->nak_stm_max ? waited : counters->nak_stm_max;
    counters->nak_stm_mean = um_moving_mean(counters->nak_stm_mean, waited, session->recovered_count == 0);
    uint64_t naks = loss->naks_sent;
    counters->nak_tx_min = naks < counters->nak_tx_min ? naks : counters->nak_tx_min;
    counters->nak_tx_max = naks > counters->nak_tx_max ? naks : counters->nak_tx_max;
    counters->nak_tx_mean = um_moving_mean(counters->nak_tx_mean, 1000 * naks, session->recovered_count == 0);
    UM_COUNT(session->recovered_count, 1);
    uint32_t bucket = um_time_bucket(waited, UM_RECOVERY_OCTAVE_FIRST, UM_RECOVERY_BUCKETS);
    UM_COUNT(session->recovery_buckets[bucket], 1);
    um_gaps_report_closed(session, loss->sqn);
    if (loss->sqn == session->status_sqn && has_opened_window(session))
        session->due_ns[UM_TIMER_STATUS] = INT64_MIN; /* the source may be waiting for this position */
    um_loss_map_remove(&session->losses, loss);       /* UM-118, UM-121 */
}
