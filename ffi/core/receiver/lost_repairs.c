#include "core/receiver/lost_repairs.h"

#include "core/receiver/connection.h"

enum { REPORTS_MAX = 4 }; /* NAKs per loss that reports, which may be forged, bring forward */

bool um_lost_repairs_is_measured(const um_receiver_session *session)
{
    const uint32_t needed = UM_ADAPTIVE_BACKOFF | UM_ADAPTIVE_SUPPRESS;
    return (session->timing.adaptive & needed) == needed;
}

void um_lost_repairs_on_nak(um_receiver_session *session, um_loss *loss)
{
    loss->state = UM_LOSS_NAKED;
    loss->later_seen = 0;
    loss->nak_number = ++session->nak_number;
    um_loss_map_list(&session->losses, loss);
}

/* A loss never waits longer because of evidence, and its next NAK never comes before its floor. */
static void bring_forward(um_receiver_session *session, um_loss *loss, int64_t wanted_ns)
{
    int64_t due_ns = wanted_ns > loss->floor_ns ? wanted_ns : loss->floor_ns;
    um_loss_map_reschedule(&session->losses, loss, um_earliest_ns(due_ns, loss->deadline_ns));
}

static void doubt(um_receiver_session *session, um_loss *loss, int64_t now_ns)
{
    if (++loss->later_seen > um_recovery_timing_reordered_by(&session->timing)) {
        loss->state = UM_LOSS_REPAIR_LOST;
        um_loss_map_unlist(&session->losses, loss);
        bring_forward(session, loss, now_ns);
    } else if (loss->state == UM_LOSS_NAKED) {
        loss->state = UM_LOSS_DOUBTED;
        bring_forward(session, loss, now_ns + um_recovery_timing_reordering_ns(&session->timing));
    }
}

static void note_evidence(um_receiver_session *session, const um_loss *loss, bool is_reported)
{
    if (session->has_repair && !um_serial_before(session->repaired_nak_number, loss->nak_number))
        return;
    session->has_repair = true;
    session->repair = (um_repair_evidence){loss->sqn, is_reported};
    session->repaired_nak_number = loss->nak_number;
}

void um_lost_repairs_on_repaired(um_receiver_session *session, const um_loss *loss, int64_t now_ns)
{
    um_loss_map *losses = &session->losses;
    if (loss->naks_sent == 0 || !um_lost_repairs_is_measured(session))
        return;
    note_evidence(session, loss, false);
    for (uint32_t at = losses->oldest_naked; at != 0;) {
        um_loss *other = &losses->entries[at - 1];
        if (!um_serial_before(other->nak_number, loss->nak_number))
            break;
        at = other->newer;
        if (um_serial_before(other->sqn, loss->sqn))
            doubt(session, other, now_ns);
    }
}

/* True if the reported retransmission may be the answer to the last NAK: this NAK had arrived when it was sent. */
static bool can_answer(const um_receiver_session *session, const um_loss *loss, int64_t age_ns, int64_t now_ns)
{
    int64_t round_trip_ns = um_recovery_timing_shortest_ns(&session->timing);
    int64_t nak_ns = loss->floor_ns - UM_RECOVERY_FLOOR_NS; /* or a later NCF */
    return round_trip_ns > 0 && now_ns - nak_ns >= round_trip_ns + age_ns;
}

void um_lost_repairs_on_report(um_receiver_session *session, const um_repair_report *report, int64_t now_ns)
{
    if (!um_lost_repairs_is_measured(session))
        return;
    int64_t reordering_ns = um_recovery_timing_reordering_ns(&session->timing);
    for (uint32_t i = 0; i < report->count; i++) {
        const um_repair_report_entry *entry = &report->entries[i];
        um_loss *loss = um_loss_map_find(&session->losses, entry->sqn);
        if (loss == NULL || loss->state != UM_LOSS_NAKED || loss->naks_sent == 0 || loss->reports_seen == REPORTS_MAX ||
            !can_answer(session, loss, entry->age_ns, now_ns))
            continue;
        loss->reports_seen++;
        loss->state = UM_LOSS_DOUBTED;
        note_evidence(session, loss, true);
        bring_forward(session, loss, now_ns + um_between_ns(reordering_ns - entry->age_ns, 0, reordering_ns));
    }
}

bool um_lost_repairs_has_evidence(const um_loss *loss)
{
    return loss->state == UM_LOSS_DOUBTED || loss->state == UM_LOSS_REPAIR_LOST;
}

void um_lost_repairs_send_evidence(um_receiver_session *session)
{
    uint8_t datagram[UM_REPAIR_EVIDENCE_BYTES_MAX];
    um_debug_assert(session->has_repair);
    uint32_t length =
        um_repair_evidence_write(datagram, &session->config.id, session->connection.client_id, &session->repair);
    um_receiver_session_send_control(session, datagram, length);
}
