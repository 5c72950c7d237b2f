#include "core/receiver/nak_timers.h"

#include "core/receiver/gaps.h"
#include "core/receiver/lost_repairs.h"
#include "core/receiver/nak_cutoff.h"
#include "core/receiver/session_claims.h"
#include "core/wire/framing.h"

enum {
    NAK_GAP_MAX_NS = 1000000,   /* longest pause between two NAK datagrams */
    UNREAD_CHECK_NS = 1000000,  /* interval of checks whether the owner has caught up */
    BUDGET_CHECK_NS = 10000000, /* pause of NAKs when the budget was used up */
};

/* ---- NCFs ---- */

/* An NCF neither delays giving up (UM-123) nor brings the next NAK forward. The first that refuses a NAK because the
 * datagram has been retransmitted shows that this retransmission, which was sent before the NCF, is lost or reordered
 * (lost_repairs.h): with measured timers the next NAK waits only until the source does not ignore it. */
static void suppress(um_receiver_session *session, um_loss *loss, bool is_repair_sent, int64_t now_ns)
{
    loss->ncfs_seen++;
    loss->floor_ns = now_ns + UM_RECOVERY_FLOOR_NS;
    if (um_lost_repairs_has_evidence(loss)) { /* the NCF confirms a retransmission that is known to be lost */
        int64_t later_ns = loss->deadline_ns > loss->floor_ns ? loss->deadline_ns : loss->floor_ns;
        um_loss_map_reschedule(&session->losses, loss, later_ns);
        return;
    }
    int64_t next_ns = now_ns + um_recovery_timing_draw_suppress_ns(&session->timing, &session->random, loss->ncfs_seen);
    if (is_repair_sent && loss->ncfs_seen == 1 && um_lost_repairs_is_measured(session) && session->reported_trip_ns > 0)
        next_ns = now_ns + um_recovery_timing_refused_ns(&session->timing, session->reported_trip_ns);
    int64_t give_up_ns = loss->detected_ns + session->config.nak_generation_ns;
    next_ns = next_ns > loss->deadline_ns ? next_ns : loss->deadline_ns;
    next_ns = next_ns > loss->floor_ns ? next_ns : loss->floor_ns;
    um_loss_map_reschedule(&session->losses, loss, um_earliest_ns(next_ns, give_up_ns));
}

/* UM-131: no NAK for the suppress interval, then a normal back-off before the next NAK (C7). */
void um_nak_timers_on_ncf(um_receiver_session *session, const um_packet *packet, int64_t now_ns)
{
    um_receiver_transport_counters *counters = &session->counters;
    uint64_t *reasons[] = {&counters->ncfs_unknown, &counters->ncfs_ignored, &counters->ncfs_rx_delay,
                           &counters->ncfs_shed};
    UM_COUNT(counters->ncf_pckts_rcved, 1);
    UM_COUNT(*(packet->ncf_reason < 4 ? reasons[packet->ncf_reason] : reasons[0]), packet->list_count);
    for (uint32_t i = 0; i < packet->list_count; i++) {
        um_loss *loss = um_loss_map_find(&session->losses, um_load_be32(packet->list + 4 * i));
        if (loss != NULL)
            suppress(session, loss, packet->ncf_reason == UM_NCF_IGNORED, now_ns);
        else
            um_recovery_timing_on_late_ncf(&session->timing, um_load_be32(packet->list + 4 * i));
    }
}

/* ---- NAKs ---- */

/* Shell sort: the list of a NAK is short, and in runs that ascend. */
static void sort(uint32_t *sqns, uint32_t count)
{
    for (uint32_t gap = count / 2; gap > 0; gap /= 2) {
        for (uint32_t i = gap; i < count; i++) {
            uint32_t sqn = sqns[i], at = i;
            for (; at >= gap && um_serial_before(sqn, sqns[at - gap]); at -= gap)
                sqns[at] = sqns[at - gap];
            sqns[at] = sqn;
        }
    }
}

static void send_naks(um_receiver_session *session, uint32_t *sqns, uint32_t count)
{
    uint8_t datagram[UM_FRAMING_NAK_BYTES_MAX + 4 * UM_NAK_LIST_MAX];
    if (count == 0)
        return;
    sort(sqns, count);
    bool has_evidence = false;
    for (uint32_t i = 0; i < count; i++) {
        um_loss *loss = um_loss_map_find(&session->losses, sqns[i]);
        has_evidence |= um_lost_repairs_has_evidence(loss);
        um_lost_repairs_on_nak(session, loss);
    }
    if (has_evidence)
        um_lost_repairs_send_evidence(session);
    uint32_t length = um_framing_write_nak(&session->config.id, datagram, session->connection.client_id, sqns, count);
    um_receiver_session_send_control(session, datagram, length);
    UM_COUNT(session->counters.nak_pckts_sent, 1);
    UM_COUNT(session->counters.naks_sent, count);
}

/* True if a retransmission may be among received datagrams that are still unread. A NAK before they are read would make
 * the queue longer for every receiver of the group, until nothing else is sent (a repair storm). NAKs wait until the
 * owner has caught up, or for so many back-offs that the cause must be another. */
static bool can_be_unread(const um_receiver_session *session, const um_loss *loss, int64_t now_ns)
{
    enum { BEHIND_BACKOFFS = 16 };
    return session->is_behind && loss->naks_sent > 0 && !um_lost_repairs_has_evidence(loss) &&
           now_ns - loss->detected_ns <
               BEHIND_BACKOFFS * um_recovery_timing_backoff_ns(&session->timing) * loss->naks_sent;
}

enum fired { FIRED_NOT_NAKED, FIRED_NAKED, FIRED_OVER_BUDGET };

/* Handles a loss that is due (UM-119, UM-122, UM-123, UM-128) and returns whether it is NAKed. One over the budget
 * stays first in the map. */
static enum fired fire(um_receiver_session *session, um_loss *loss, int64_t now_ns)
{
    int64_t give_up_ns = loss->detected_ns + session->config.nak_generation_ns;
    if (now_ns >= give_up_ns) {
        bool is_claim = um_receiver_session_claims_has(session, loss->sqn);
        um_gaps_give_up(session, loss,
                        is_claim ? &session->counters.claims_given_up : &session->counters.unrecovered_tmo);
        return FIRED_NOT_NAKED;
    }
    if (um_serial_before(loss->sqn, session->trail_sqn)) {
        um_gaps_give_up(session, loss, &session->counters.unrecovered_txw);
        return FIRED_NOT_NAKED;
    }
    if (um_receiver_session_claims_is_ignored(&session->claims, loss, session->next_sqn)) {
        um_gaps_give_up(session, loss, &session->counters.claims_given_up);
        return FIRED_NOT_NAKED;
    }
    if (can_be_unread(session, loss, now_ns)) {
        um_loss_map_reschedule(&session->losses, loss, now_ns + UNREAD_CHECK_NS);
        return FIRED_NOT_NAKED;
    }
    int64_t limited_ns = session->nak_budget.limited_ns;
    bool sends_naks = um_receiver_session_can_nak(session);
    if (sends_naks && !um_nak_budget_take(&session->nak_budget, now_ns))
        return FIRED_OVER_BUDGET;
    UM_COUNT(session->counters.naks_rate_limited, loss->deadline_ns <= limited_ns);
    bool has_evidence = um_lost_repairs_has_evidence(loss);
    UM_COUNT(session->counters.retransmissions_lost, has_evidence);
    loss->naks_since = has_evidence ? 1 : loss->naks_since + 1;
    loss->floor_ns = now_ns + UM_RECOVERY_FLOOR_NS;
    int64_t backoff_ns = um_recovery_timing_draw_backoff_ns(&session->timing, &session->random, loss->naks_since);
    int64_t next_ns = now_ns + (backoff_ns > UM_RECOVERY_FLOOR_NS ? backoff_ns : UM_RECOVERY_FLOOR_NS);
    if (loss->naks_sent == 0 || has_evidence)
        loss->nak_ns = now_ns;
    loss->naks_sent += sends_naks;
    um_loss_map_reschedule(&session->losses, loss, um_earliest_ns(next_ns, give_up_ns));
    UM_COUNT(session->counters.naks_withheld, session->config.send_naks && !sends_naks);
    return sends_naks ? FIRED_NAKED : FIRED_NOT_NAKED;
}

/* Losses that become due shortly after each other share a NAK datagram (UM-119): the next datagram waits for a
 * fraction of the round trip, at most a millisecond. */
static int64_t nak_gap_ns(const um_receiver_session *session)
{
    int64_t gap_ns = um_recovery_timing_gather_ns(&session->timing);
    return um_earliest_ns(gap_ns, NAK_GAP_MAX_NS);
}

int64_t um_nak_timers_tick(um_receiver_session *session, int64_t now_ns, bool *gave_up)
{
    uint32_t sqns[UM_NAK_LIST_MAX];
    uint32_t list_max = (session->config.datagram_max_bytes - um_framing_nak_bytes(session->config.id.transport)) / 4;
    list_max = list_max < UM_NAK_LIST_MAX ? list_max : UM_NAK_LIST_MAX;
    uint32_t count = 0;
    enum fired fired = FIRED_NOT_NAKED;
    uint64_t naks_before = session->counters.nak_pckts_sent;
    um_loss *loss;
    if (now_ns < session->due_ns[UM_TIMER_NAKS])
        return um_loss_map_first(&session->losses) ? session->due_ns[UM_TIMER_NAKS] : UM_NEVER_NS;
    um_nak_budget_fill(&session->nak_budget, now_ns);
    while ((loss = um_loss_map_first(&session->losses)) != NULL && loss->deadline_ns <= now_ns) {
        uint32_t sqn = loss->sqn;
        uint32_t before = session->losses.count;
        fired = fire(session, loss, now_ns);
        if (fired == FIRED_OVER_BUDGET)
            break;
        if (fired == FIRED_NAKED)
            sqns[count++] = sqn;
        *gave_up |= session->losses.count < before;
        if (count == list_max) {
            send_naks(session, sqns, count);
            count = 0;
        }
    }
    send_naks(session, sqns, count);
    if (session->counters.nak_pckts_sent != naks_before)
        session->due_ns[UM_TIMER_NAKS] = now_ns + nak_gap_ns(session);
    if (fired == FIRED_OVER_BUDGET) {
        session->due_ns[UM_TIMER_NAKS] = now_ns + BUDGET_CHECK_NS;
        um_nak_cutoff_on_limited(session);
    }
    if (loss == NULL)
        return UM_NEVER_NS;
    return loss->deadline_ns > session->due_ns[UM_TIMER_NAKS] ? loss->deadline_ns : session->due_ns[UM_TIMER_NAKS];
}
