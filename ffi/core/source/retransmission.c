#include "core/source/retransmission.h"
#include "core/source/oversize.h"

#include "core/source/client_interest.h"
#include "core/source/datagram_building.h"
#include "core/source/repair_reports.h"
#include "core/source/transmission_window.h"

/* ---- the queue: a binary heap, oldest sqn first (UM-133) ---- */

static bool is_older(const um_source_session *session, uint32_t a, uint32_t b)
{
    return um_serial_before(session->retransmit_queue[a], session->retransmit_queue[b]);
}

static void swap(um_source_session *session, uint32_t a, uint32_t b)
{
    uint32_t sqn = session->retransmit_queue[a];
    session->retransmit_queue[a] = session->retransmit_queue[b];
    session->retransmit_queue[b] = sqn;
}

static void push(um_source_session *session, uint32_t sqn)
{
    uint32_t at = session->retransmit_count++;
    session->retransmit_queue[at] = sqn;
    um_source_session_sent(session, sqn)->is_queued = 1;
    for (; at > 0 && is_older(session, at, (at - 1) / 2); at = (at - 1) / 2)
        swap(session, at, (at - 1) / 2);
}

static uint32_t pop(um_source_session *session)
{
    uint32_t sqn = session->retransmit_queue[0];
    session->retransmit_queue[0] = session->retransmit_queue[--session->retransmit_count];
    for (uint32_t at = 0;;) {
        uint32_t child = 2 * at + 1;
        if (child >= session->retransmit_count)
            break;
        if (child + 1 < session->retransmit_count && is_older(session, child + 1, child))
            child++;
        if (!is_older(session, child, at))
            break;
        swap(session, child, at);
        at = child;
    }
    return sqn;
}

/* ---- sending ---- */

/* Returns how many datagrams of the batch the link accepted; *answer is the link's result if it did not accept all. */
static uint32_t offer(um_source_session *session, um_tx *batch, uint32_t count, int *answer)
{
    uint32_t datagram_max =
        atomic_load_explicit(&session->body_max_bytes, memory_order_relaxed) + UM_FRAMING_DATA_BYTES;
    uint32_t done = 0;
    while (done < count) {
        bool is_oversize = batch[done].length > datagram_max;
        uint32_t run = 1;
        while (!is_oversize && done + run < count && batch[done + run].length <= datagram_max)
            run++;
        int taken = is_oversize ? um_oversize_send(session, &batch[done])
                                : session->link->ops->send(session->link, session->config.group, &batch[done], run);
        if (taken <= 0) {
            *answer = taken;
            break;
        }
        done += (uint32_t)taken;
    }
    return done;
}

static uint32_t build_batch(um_source_session *session, um_tx *batch, uint32_t *sqns, int64_t now_ns)
{
    uint32_t count = 0;
    while (count < UM_SEND_BATCH_MAX && session->retransmit_count > 0) {
        uint32_t sqn = session->retransmit_queue[0];
        um_sent *sent = um_source_session_sent(session, sqn);
        if (!um_window_has(session, sqn)) {
            pop(session);
            continue;
        }
        uint32_t copies = um_clients_select(session, sent, count);
        uint32_t bytes = copies * (um_source_session_overhead_bytes(session) + sent->length);
        if (!um_rate_limits_take(session->limits, bytes, true, now_ns))
            break;
        pop(session);
        um_datagram_build(session, sent, sqn, true, count, &batch[count]);
        sqns[count++] = sqn;
    }
    return count;
}

int um_retransmission_pump(um_source_session *session, int64_t now_ns)
{
    while (session->retransmit_count > 0) {
        um_tx batch[UM_SEND_BATCH_MAX];
        uint32_t sqns[UM_SEND_BATCH_MAX];
        uint32_t count = build_batch(session, batch, sqns, now_ns);
        if (count == 0)
            break; /* a limiter does not allow more yet */
        int answer = 0;
        uint32_t taken = offer(session, batch, count, &answer);
        for (uint32_t i = 0; i < taken; i++) {
            um_sent *sent = um_source_session_sent(session, sqns[i]);
            sent->answered_ns = now_ns;
            sent->is_queued = sent->is_confirmed = 0;
            UM_COUNT(session->counters.rxs_sent, 1);
            UM_COUNT(session->counters.rx_bytes_sent, um_source_session_overhead_bytes(session) + sent->length);
        }
        for (uint32_t i = taken; i < count; i++) {
            um_rate_limits_return(
                session->limits, um_clients_copies(session, i) * (batch[i].length + session->config.data_trailer_bytes),
                true);
            push(session, sqns[i]);
        }
        if (answer < 0)
            session->link_error = answer;
        if (taken < count)
            return answer;
    }
    return 1;
}

/* ---- requests ---- */

typedef struct ncf_lists {
    uint32_t counts[4];
    uint32_t sqns[4][UM_NCF_LIST_MAX];
} ncf_lists;

static void flush_ncfs(um_source_session *session, ncf_lists *lists, enum um_ncf_reason reason)
{
    uint8_t datagram[UM_FRAMING_NCF_BYTES_MAX + 4 * UM_NCF_LIST_MAX];
    uint32_t count = lists->counts[reason];
    if (count == 0)
        return;
    const um_source_session_config *config = &session->config;
    uint32_t length = um_framing_write_ncf(config->transport, datagram, config->session_id, config->nak_port,
                                           session->trail_sqn, reason, lists->sqns[reason], count);
    um_part part = {datagram, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length};
    if (session->link->ops->send(session->link, session->config.group, &tx, 1) == 1) {
        UM_COUNT(session->counters.ncf_pckts_sent, 1);
        UM_COUNT(session->counters.ncfs_sent, count);
    }
    lists->counts[reason] = 0;
}

static void refuse(um_source_session *session, ncf_lists *lists, enum um_ncf_reason reason, uint32_t sqn)
{
    uint32_t body_max = atomic_load_explicit(&session->body_max_bytes, memory_order_relaxed);
    uint32_t fixed_bytes = um_framing_ncf_bytes(session->config.transport) + session->config.control_trailer_bytes;
    uint32_t list_max = (body_max + um_source_session_overhead_bytes(session) - fixed_bytes) / 4;
    lists->sqns[reason][lists->counts[reason]++] = sqn;
    if (lists->counts[reason] == (list_max < UM_NCF_LIST_MAX ? list_max : UM_NCF_LIST_MAX))
        flush_ncfs(session, lists, reason);
}

/* The receiver whose NAK datagram is being served. */
typedef struct requester {
    um_address address;
    um_receiver_account *account; /* NULL if the table of accounts is full */
    uint32_t active_members;
} requester;

static void note_too_late(um_source_session *session, requester *from, int64_t now_ns)
{
    UM_COUNT(session->counters.naks_out_of_window, 1);
    if (from->account == NULL)
        return;
    UM_COUNT(from->account->too_late, 1);
    if (um_source_event_is_due(from->account->is_member ? &from->account->loses_ns : &session->nonmembers_lose_ns,
                               now_ns))
        um_source_events_add(&session->events, UM_SOURCE_RECEIVER_LOSES, from->address, from->account->too_late);
}

/* Takes a retransmission from the requester's share of the repair budget. Returns false if the share is used up: the
 * NAK is dropped without an NCF (repair_budget.h). */
static bool take_share(um_source_session *session, requester *from, uint32_t bytes, int64_t now_ns)
{
    um_receiver_account *account = from->account;
    if (um_repair_budget_take(&session->repair_budget, account, from->active_members, bytes, now_ns)) {
        if (account != NULL)
            UM_COUNT(account->bytes, bytes);
        return true;
    }
    UM_COUNT(session->counters.naks_over_share, 1);
    if (account == NULL)
        return false;
    if (um_accounting_refuse(account, session->config.nak_cutoff_interval_ns, now_ns))
        um_source_events_add(&session->events, UM_SOURCE_RECEIVER_CUT_OFF, from->address, account->refused);
    else if (um_source_event_is_due(account->is_member ? &account->noisy_ns : &session->nonmembers_noisy_ns, now_ns))
        um_source_events_add(&session->events, UM_SOURCE_RECEIVER_NOISY, from->address, account->refused);
    return false;
}

/* Retransmissions are sent in the order of these times; those of one batch in the order of their numbers. */
static bool is_sent_before(int64_t a_ns, uint32_t a_sqn, int64_t b_ns, uint32_t b_sqn)
{
    return a_ns < b_ns || (a_ns == b_ns && um_serial_before(a_sqn, b_sqn));
}

/* True if the requester has evidence that the network has lost the last retransmission of `sqn`: one that was sent
 * later has arrived, or a repair report names it or a later one. So its NAK did not cross it. The report of a
 * non-member is ignored; a member's NAKs stay within its share. */
static bool is_known_lost(const um_source_session *session, const requester *from, const um_sent *sent, uint32_t sqn)
{
    const um_receiver_account *account = from->account;
    if (account == NULL || !account->is_member || !(session->timing.adaptive & UM_ADAPTIVE_IGNORE))
        return false;
    return is_sent_before(sent->answered_ns, sqn, account->repaired_ns, account->repaired_end);
}

void um_retransmission_on_evidence(um_source_session *session, um_address from, const um_repair_evidence *evidence,
                                   int64_t now_ns)
{
    uint32_t repaired_sqn = evidence->sqn, end = repaired_sqn + evidence->is_reported;
    um_receiver_account *account = um_accounting_of(&session->accounting, from, now_ns);
    if (account == NULL || !um_window_has(session, repaired_sqn))
        return;
    int64_t answered_ns = um_source_session_sent(session, repaired_sqn)->answered_ns;
    if (!is_sent_before(account->repaired_ns, account->repaired_end, answered_ns, end))
        return;
    account->repaired_ns = answered_ns;
    account->repaired_end = end;
}

/* Handles one requested sqn. Returns true if it was put into the retransmit queue. */
static bool consider(um_source_session *session, requester *from, ncf_lists *lists, uint32_t sqn, int64_t now_ns)
{
    um_source_transport_counters *counters = &session->counters;
    if (!um_window_has(session, sqn)) {
        if (um_serial_before(sqn, session->trail_sqn))
            note_too_late(session, from, now_ns);
        else
            UM_COUNT(counters->nak_unknown_sqn, 1);
        return false;
    }
    um_sent *sent = um_source_session_sent(session, sqn);
    bool is_recent = sent->answered_ns != INT64_MIN &&
                     now_ns - sent->answered_ns < um_source_timing_ignore_ns(&session->timing, from->account);
    bool is_lost = is_recent && !sent->is_queued && is_known_lost(session, from, sent, sqn);
    UM_COUNT(counters->naks_with_evidence, is_lost);
    if (sent->is_queued || (is_recent && !is_lost)) {
        if (sent->is_confirmed) { /* one NCF per ignore interval, then no response (UM-130) */
            UM_COUNT(counters->naks_suppressed, 1);
            return false;
        }
        sent->is_confirmed = 1;
        UM_COUNT(*(sent->is_queued ? &counters->naks_rx_delay_ignored : &counters->naks_ignored), 1);
        refuse(session, lists, sent->is_queued ? UM_NCF_RX_DELAY : UM_NCF_IGNORED, sqn);
        return false;
    }
    if (!take_share(session, from, um_source_session_overhead_bytes(session) + sent->length, now_ns))
        return false;
    if (session->retransmit_count == UM_RETRANSMIT_QUEUE_MAX) {
        sent->answered_ns = now_ns;
        sent->is_confirmed = 1;
        UM_COUNT(counters->naks_shed, 1);
        refuse(session, lists, UM_NCF_SHED, sqn);
        return false;
    }
    if (sent->answered_ns != INT64_MIN)
        um_path_mtu_on_repeat(&session->path, um_source_session_overhead_bytes(session) + sent->length, now_ns);
    push(session, sqn);
    if (from->account != NULL && from->account->is_member)
        um_repair_reports_add(session, sqn, now_ns);
    return true;
}

/* Opens or finds the requester's account. Returns false if its NAKs are not served (UX-21). */
static bool admit(um_source_session *session, requester *from, uint32_t nak_count, int64_t now_ns)
{
    um_receiver_account *account = um_accounting_of(&session->accounting, from->address, now_ns);
    from->account = account;
    if (account != NULL) {
        UM_COUNT(account->naks, nak_count);
        account->last_nak_ns = now_ns;
    }
    if (account != NULL && account->is_cut_off) {
        UM_COUNT(session->counters.naks_cut_off, nak_count);
        UM_COUNT(account->refused, nak_count);
        return false;
    }
    from->active_members = um_accounting_active_members(&session->accounting, now_ns);
    return true;
}

/* Counts consecutive datagrams of the NAK's list, starting at index `from`, that the client does not need. */
static uint32_t unwanted_run(um_source_session *session, const um_client *client, const um_packet *nak, uint32_t from)
{
    uint32_t first = um_load_be32(nak->list + 4 * from), count = 0;
    while (from + count < nak->list_count && um_load_be32(nak->list + 4 * (from + count)) == first + count &&
           um_window_has(session, first + count) &&
           !um_clients_is_wanted(session, client, um_source_session_sent(session, first + count)))
        count++;
    return count;
}

/* A client that NAKs datagrams it does not need has missed the report about them: sends it again. Returns how many sqns
 * of the list it covers. */
static uint32_t answer_unwanted(um_source_session *session, requester *requester, const um_packet *nak, uint32_t from,
                                int64_t now_ns)
{
    if (UM_LIKELY(!um_clients_has_filters(session)))
        return 0;
    um_client *client = um_client_map_find(&session->clients, requester->address);
    uint32_t count = client != NULL ? unwanted_run(session, client, nak, from) : 0;
    if (count > 0 && take_share(session, requester, um_source_session_overhead_bytes(session), now_ns))
        um_clients_pass_over(session, client, um_load_be32(nak->list + 4 * from), count);
    return count;
}

void um_retransmission_on_nak(um_source_session *session, um_address from, const um_packet *nak, int64_t now_ns)
{
    requester requester = {.address = from};
    ncf_lists lists;
    memset(lists.counts, 0, sizeof lists.counts);
    UM_COUNT(session->counters.nak_pckts_rcved, 1);
    UM_COUNT(session->counters.naks_rcved, nak->list_count);
    if (!admit(session, &requester, nak->list_count, now_ns))
        return;
    for (uint32_t done = 0; done < nak->list_count;) {
        uint32_t accepted[UM_SEND_BATCH_MAX];
        uint32_t count = 0;
        while (done < nak->list_count && count < UM_SEND_BATCH_MAX) {
            uint32_t unwanted = answer_unwanted(session, &requester, nak, done, now_ns);
            done += unwanted;
            if (unwanted > 0)
                continue;
            uint32_t sqn = um_load_be32(nak->list + 4 * done++);
            if (consider(session, &requester, &lists, sqn, now_ns))
                accepted[count++] = sqn;
        }
        um_retransmission_pump(session, now_ns);
        for (uint32_t i = 0; i < count; i++) {
            um_sent *sent = um_source_session_sent(session, accepted[i]);
            if (sent->is_queued && um_window_has(session, accepted[i])) {
                sent->is_confirmed = 1;
                UM_COUNT(session->counters.naks_rx_delay_ignored, 1);
                refuse(session, &lists, UM_NCF_RX_DELAY, accepted[i]);
            }
        }
    }
    for (uint32_t reason = 0; reason < 4; reason++)
        flush_ncfs(session, &lists, (enum um_ncf_reason)reason);
}
