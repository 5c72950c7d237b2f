#include "core/source/repair_reports.h"

#include "core/foundation/recovery_limits.h"
#include "core/source/transmission_window.h"

enum { ROUND_TRIP_PART = 8, INTERVAL_FLOOR_NS = UM_RECOVERY_FLOOR_NS / 4 };

/* How long after a retransmission its report is sent. */
static int64_t interval_ns(const um_source_session *session)
{
    int64_t part_ns = um_census_shortest_ns(&session->timing.census) / ROUND_TRIP_PART;
    return part_ns > INTERVAL_FLOOR_NS ? part_ns : INTERVAL_FLOOR_NS;
}

void um_repair_reports_add(um_source_session *session, uint32_t sqn, int64_t now_ns)
{
    um_pending_reports *pending = &session->pending_reports;
    if (!(session->timing.adaptive & UM_ADAPTIVE_IGNORE))
        return;
    for (uint32_t i = 0; i < pending->count; i++)
        if (pending->sqns[i] == sqn)
            return;
    if (pending->count == UM_REPAIR_REPORT_ENTRIES_MAX) /* later retransmissions show the loss of the first ones, too */
        memmove(pending->sqns, pending->sqns + 1, --pending->count * sizeof pending->sqns[0]);
    if (pending->count == 0)
        pending->due_ns = now_ns + interval_ns(session);
    pending->sqns[pending->count++] = sqn;
}

/* Moves the pending sqns that were retransmitted at least `age_ns` ago into the report. */
static um_repair_report take_due(um_source_session *session, int64_t age_ns, int64_t now_ns)
{
    um_pending_reports *pending = &session->pending_reports;
    um_repair_report report = {.count = 0};
    uint32_t kept = 0;
    for (uint32_t i = 0; i < pending->count; i++) {
        uint32_t sqn = pending->sqns[i];
        const um_sent *sent = um_source_session_sent(session, sqn);
        if (!um_window_has(session, sqn) || (!sent->is_queued && sent->answered_ns == INT64_MIN))
            continue;
        if (sent->is_queued || now_ns - sent->answered_ns < age_ns)
            pending->sqns[kept++] = sqn;
        else
            report.entries[report.count++] = (um_repair_report_entry){sqn, now_ns - sent->answered_ns};
    }
    pending->count = kept;
    return report;
}

void um_repair_reports_send(um_source_session *session, int64_t now_ns)
{
    if (UM_LIKELY(session->pending_reports.count == 0) || now_ns < session->pending_reports.due_ns)
        return;
    int64_t age_ns = interval_ns(session);
    um_repair_report report = take_due(session, age_ns, now_ns);
    session->pending_reports.due_ns = now_ns + age_ns;
    if (report.count == 0)
        return;
    uint8_t datagram[UM_FRAMING_SM_BYTES_MAX + UM_REPAIR_REPORT_BYTES_MAX];
    const um_source_session_config *config = &session->config;
    uint32_t length = um_framing_write_sm(config->transport, datagram, config->session_id, config->nak_port,
                                          session->sm_sqn++, session->next_sqn - 1, session->trail_sqn);
    length += um_repair_report_encode(datagram + length, &report);
    um_part part = {datagram, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length};
    if (session->link->ops->send(session->link, config->group, &tx, 1) == 1)
        UM_COUNT(session->counters.repair_reports_sent, 1);
}
