/* The group is protected from its worst member: repair budget shares, NAK cutoff, receivers that stall flow control.
 */
#include "core/source/receiver_accounting.h"
#include "core/source/repair_budget.h"
#include "core/wire/repair_evidence.h"
#include "support.h"

enum { ORDERS = 0x3e9, BUDGET_BPS = 8000000, NAK_LIST = 364, SENT = 4000 };

static const um_address HONEST = UM_ADDRESS_V4(0x0a000002, 40000), HOSTILE = UM_ADDRESS_V4(0x0a000063, 5555);

static um_source_session_config guarded_config(void)
{
    um_source_session_config config = default_config();
    config.term_length = 1 << 23;
    config.window_bytes = 1 << 23;
    config.repair_budget_bps = BUDGET_BPS;
    return config;
}

static fixture *guarded_session(um_source_session_config config, uint32_t count)
{
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(send_bytes(f, source, 1000, (uint8_t)i, UM_SEND_FLUSH) >= 0);
        run_sender(f);
        capture_clear(&f->link);
    }
    return f;
}

static void report_from(fixture *f, um_address from, uint64_t id, uint32_t sqn, uint32_t window)
{
    f->from = from;
    status(f, (um_status_message){.receiver_id = id, .next_sqn = sqn, .window_bytes = window});
}

static void become_member(fixture *f, um_address from)
{
    report_from(f, from, um_ip_v4(from.ip), 1, 1 << 20);
    report_from(f, from, um_ip_v4(from.ip), 2, 1 << 20);
}

/* NAKs the sqns from `first` on, as many as one datagram lists; returns the bytes of retransmissions this causes. */
static uint64_t nak_run(fixture *f, um_address from, uint32_t first)
{
    uint32_t sqns[NAK_LIST];
    for (uint32_t i = 0; i < NAK_LIST; i++)
        sqns[i] = first + i;
    uint64_t before = f->session->counters.rx_bytes_sent;
    f->from = from;
    nak(f, sqns, NAK_LIST);
    capture_clear(&f->link);
    return f->session->counters.rx_bytes_sent - before;
}

static const um_source_event *last_event(const fixture *f)
{
    const um_source_events *events = &f->session->events;
    CHECK(events->count > 0);
    return &events->ring[(events->count - 1) % UM_SOURCE_EVENTS_MAX];
}

TEST("UM-129", "a non-member's NAKs cause a tenth of the budget, get no NCFs for the rest, and are reported")
{
    fixture *f = guarded_session(guarded_config(), SENT);
    capture_clear(&f->link);
    uint64_t caused = nak_run(f, HOSTILE, 0);
    CHECK(caused > 60000 && caused <= 65536);
    CHECK_EQ(last_event(f)->kind, UM_SOURCE_RECEIVER_NOISY);
    CHECK(um_address_equal(last_event(f)->receiver, HOSTILE));
    uint64_t attacked_ns = NS_PER_S;
    for (uint32_t i = 0; i < 100; i++) {
        f->now_ns += attacked_ns / 100;
        f->from = (um_address){HOSTILE.ip, (uint16_t)(i + 1)}; /* from another port each time, but with one share */
        caused += nak_run(f, f->from, (i % 10) * NAK_LIST);
    }
    CHECK(caused <= 65536 + BUDGET_BPS / 8 / 10);
    CHECK(f->session->counters.naks_over_share > 10000);
    CHECK_EQ(f->session->counters.ncfs_sent, f->session->counters.naks_ignored);
    CHECK_EQ(f->session->events.count, 1); /* one event for all ports */
    session_close(f);
}

TEST("UM-129", "a member is served while non-members flood")
{
    fixture *f = guarded_session(guarded_config(), SENT);
    become_member(f, HONEST);
    uint32_t served = 0;
    for (uint32_t i = 0; i < 500; i++) {
        f->now_ns += 5 * NS_PER_MS;
        nak_run(f, HOSTILE, (i * 37) % 3000);
        uint32_t wanted = 3500 + i % 500; /* not NAKed by the non-member */
        uint64_t before = f->session->counters.rxs_sent;
        f->from = HONEST;
        nak_one(f, wanted);
        served += f->session->counters.rxs_sent == before + 1;
        capture_clear(&f->link);
    }
    CHECK_EQ(served, 500);
    session_close(f);
}

static void evidence_from(fixture *f, um_address from, um_repair_evidence evidence)
{
    uint8_t datagram[UM_REPAIR_EVIDENCE_BYTES_MAX];
    um_session_id id = {.source.port = f->session->config.nak_port, .session_id = f->session->config.session_id};
    f->from = from;
    control(f, datagram, um_repair_evidence_write(datagram, &id, 0, &evidence));
}

/* NAKs two datagrams in turn within the ignore interval, each time with the other as evidence. */
static uint64_t caused_by_evidence(um_source_session_config config, um_address from, bool is_member)
{
    fixture *f = guarded_session(config, SENT);
    if (is_member)
        become_member(f, from);
    for (uint32_t i = 0; i < 1000; i++) {
        f->from = from;
        nak_one(f, 100 + i % 2);
        evidence_from(f, from, (um_repair_evidence){100 + i % 2, false});
        capture_clear(&f->link);
        f->now_ns++;
    }
    uint64_t caused = f->session->counters.rx_bytes_sent;
    session_close(f);
    return caused;
}

TEST("UM-129", "evidence opens the ignore interval to a member within its share, and not to a non-member")
{
    um_source_session_config config = guarded_config();
    config.adaptive_timers = UM_ADAPTIVE_IGNORE;
    uint64_t by_other = caused_by_evidence(config, HOSTILE, false);
    uint64_t by_member = caused_by_evidence(config, HONEST, true);
    CHECK(by_other > 2000 && by_other < 2200);      /* two datagrams */
    CHECK(by_member > 60000 && by_member <= 65536); /* the burst of its share */
    config.adaptive_timers = 0;                     /* a configured ignore interval applies to everyone */
    CHECK(caused_by_evidence(config, HONEST, true) < 2200);
}

TEST("UM-129", "a NAK with evidence is served once for each retransmission that was sent later")
{
    um_source_session_config config = guarded_config();
    config.adaptive_timers = UM_ADAPTIVE_IGNORE;
    fixture *f = guarded_session(config, 200);
    um_source_transport_counters *counters = &f->session->counters;
    become_member(f, HONEST);
    uint32_t sqns[] = {100, 101};
    f->from = HONEST;
    nak(f, sqns, 2);
    nak_one(f, 100);
    CHECK_EQ(counters->rxs_sent, 2); /* the NAK may have crossed the retransmission */
    f->now_ns++;
    evidence_from(f, HONEST, (um_repair_evidence){101, false});
    nak_one(f, 101);
    CHECK_EQ(counters->rxs_sent, 2); /* 101 is no evidence of its own loss */
    nak_one(f, 100);
    CHECK_EQ(counters->rxs_sent, 3);
    CHECK_EQ(counters->naks_with_evidence, 1);
    nak_one(f, 100);
    evidence_from(f, HONEST, (um_repair_evidence){101, false});
    evidence_from(f, HONEST, (um_repair_evidence){5000, false}); /* never sent */
    evidence_from(f, HONEST, (um_repair_evidence){150, false});  /* never retransmitted */
    nak_one(f, 100);
    CHECK_EQ(counters->rxs_sent, 3); /* older than the latest retransmission */
    CHECK_EQ(counters->status_malformed, 0);
    session_close(f);
}

/* Sends one datagram at a time; returns how many reports follow it, and the last one in *report. */
static uint32_t reports_after_data(fixture *f, um_repair_report *report)
{
    uint32_t found = 0, sm_sqn = f->session->sm_sqn;
    capture_clear(&f->link);
    CHECK(send_bytes(f, f->session->sources, 100, 0, UM_SEND_FLUSH) >= 0);
    run_sender(f);
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_packet packet = packet_at(f, i);
        um_lbmc_message message;
        uint32_t length;
        if (packet.type != UM_LBTRM_SM || packet.body_length == 0)
            continue;
        CHECK_EQ(um_lbmc_decode(packet.body, packet.body_length, &message, &length), UM_DGRAM_OK);
        CHECK(um_repair_report_decode(&message, report));
        CHECK_EQ(packet.lead, f->session->next_sqn - 1);
        CHECK_EQ(packet.sqn, f->session->sm_sqn - 1); /* numbered as a session message */
        CHECK_EQ(f->session->sm_sqn, sm_sqn + ++found);
    }
    CHECK_EQ(f->link.count, 1 + found);
    return found;
}

TEST("UM-122", "a report after the next data names the retransmissions of members' NAKs, each once")
{
    enum { AGE_US = 30, SOON_US = 20, US = 1000 };
    um_source_session_config config = guarded_config();
    config.adaptive_timers = UM_ADAPTIVE_IGNORE;
    fixture *f = guarded_session(config, 200);
    um_repair_report report = {0};
    become_member(f, HONEST);
    f->from = HONEST;
    nak(f, (const uint32_t[]){100, 101}, 2);
    f->now_ns += SOON_US * US;
    CHECK_EQ(reports_after_data(f, &report), 0); /* a burst could take both */
    f->now_ns += (AGE_US - SOON_US) * US;
    CHECK_EQ(reports_after_data(f, &report), 1);
    CHECK_EQ(report.count, 2);
    CHECK_EQ(report.entries[0].sqn, 100);
    CHECK_EQ(report.entries[1].sqn, 101);
    CHECK_EQ(report.entries[1].age_ns, AGE_US * US);
    f->now_ns += NS_PER_S;
    CHECK_EQ(reports_after_data(f, &report), 0);
    uint32_t many[40];
    for (uint32_t i = 0; i < 40; i++)
        many[i] = 20 + i;
    nak(f, many, 40);
    f->now_ns += NS_PER_S;
    CHECK_EQ(reports_after_data(f, &report), 1);
    CHECK_EQ(report.count, UM_REPAIR_REPORT_ENTRIES_MAX);
    CHECK_EQ(report.entries[UM_REPAIR_REPORT_ENTRIES_MAX - 1].sqn, 59);
    for (uint32_t i = 0; i < 2; i++) { /* one datagram, sent again twice before the report */
        nak_one(f, 105);
        f->now_ns += NS_PER_S;
    }
    CHECK_EQ(f->session->counters.rxs_sent, 44);
    CHECK_EQ(reports_after_data(f, &report), 1);
    CHECK_EQ(report.count, 1);
    f->from = HOSTILE;
    nak_one(f, 110);
    f->now_ns += NS_PER_S;
    CHECK_EQ(reports_after_data(f, &report), 0);
    CHECK_EQ(f->session->counters.repair_reports_sent, 3);
    session_close(f);
}

TEST("UM-122", "a retransmission younger than the interval waits for the next report, a whole interval later")
{
    enum { INTERVAL_US = 25, US = 1000 };
    um_source_session_config config = guarded_config();
    config.adaptive_timers = UM_ADAPTIVE_IGNORE;
    fixture *f = guarded_session(config, 200);
    um_repair_report report = {0};
    become_member(f, HONEST);
    f->from = HONEST;
    nak_one(f, 100);
    f->now_ns += INTERVAL_US / 2 * US;
    nak_one(f, 101);
    f->now_ns += (INTERVAL_US - INTERVAL_US / 2) * US;
    CHECK_EQ(reports_after_data(f, &report), 1);
    CHECK_EQ(report.count, 1);
    CHECK_EQ(report.entries[0].sqn, 100);
    f->now_ns += (INTERVAL_US - 1) * US;
    CHECK_EQ(reports_after_data(f, &report), 0);
    f->now_ns += US;
    CHECK_EQ(reports_after_data(f, &report), 1);
    CHECK_EQ(report.count, 1);
    CHECK_EQ(report.entries[0].sqn, 101);
    session_close(f);
}

TEST("UM-122", "no report names a datagram whose retransmission is queued, or was never sent")
{
    um_source_session_config config = guarded_config();
    config.adaptive_timers = UM_ADAPTIVE_IGNORE;
    fixture *f = guarded_session(config, 200);
    um_repair_report report = {0};
    become_member(f, HONEST);
    f->from = HONEST;
    nak(f, (const uint32_t[]){100, 101}, 2);
    um_sent *queued = um_source_session_sent(f->session, 100), *unsent = um_source_session_sent(f->session, 101);
    queued->is_queued = 1;
    unsent->answered_ns = INT64_MIN;
    f->now_ns += NS_PER_S;
    CHECK_EQ(reports_after_data(f, &report), 0);
    CHECK_EQ(f->session->pending_reports.count, 1);
    queued->is_queued = 0;
    queued->answered_ns = f->now_ns;
    f->now_ns += NS_PER_S;
    CHECK_EQ(reports_after_data(f, &report), 1);
    CHECK_EQ(report.count, 1);
    CHECK_EQ(report.entries[0].sqn, 100);
    CHECK_EQ(report.entries[0].age_ns, NS_PER_S);
    session_close(f);
}

TEST("UM-129", "with a configured ignore interval nothing is reported")
{
    fixture *f = guarded_session(guarded_config(), 200);
    um_repair_report report;
    become_member(f, HONEST);
    f->from = HONEST;
    nak_one(f, 100);
    f->now_ns += NS_PER_S;
    CHECK_EQ(reports_after_data(f, &report), 0);
    CHECK_EQ(f->session->counters.rxs_sent, 1);
    session_close(f);
}

TEST("UM-129", "a NAK of a reported retransmission is served once within the ignore interval")
{
    um_source_session_config config = guarded_config();
    config.adaptive_timers = UM_ADAPTIVE_IGNORE;
    fixture *f = guarded_session(config, 200);
    become_member(f, HONEST);
    f->from = HONEST;
    nak(f, (const uint32_t[]){100, 101}, 2);
    f->now_ns++;
    evidence_from(f, HONEST, (um_repair_evidence){100, true});
    nak_one(f, 101);
    CHECK_EQ(f->session->counters.rxs_sent, 2); /* sent after the reported one */
    nak_one(f, 100);
    nak_one(f, 100);
    CHECK_EQ(f->session->counters.rxs_sent, 3);
    CHECK_EQ(f->session->counters.naks_with_evidence, 1);
    session_close(f);
}

TEST("UM-129", "members that NAK at once get equal parts")
{
    fixture *f = guarded_session(guarded_config(), SENT);
    enum { MEMBERS = 4 };
    uint64_t bytes[MEMBERS] = {0};
    for (uint32_t m = 0; m < MEMBERS; m++)
        become_member(f, um_address_of_v4(0x0a000010 + m, 40000));
    for (uint32_t i = 0; i < 400; i++) {
        f->now_ns += 10 * NS_PER_MS;
        for (uint32_t m = 0; m < MEMBERS; m++) /* the first one NAKs four times as often */
            for (uint32_t again = 0; again < (m == 0 ? 4u : 1u); again++)
                bytes[m] += nak_run(f, um_address_of_v4(0x0a000010 + m, 40000), (m * 900 + i * 7 + again * 100) % 3600);
    }
    uint64_t total = bytes[0] + bytes[1] + bytes[2] + bytes[3];
    CHECK(total <= 4 * 65536 + (uint64_t)BUDGET_BPS / 8 * 4 * 11 / 10);
    for (uint32_t m = 0; m < MEMBERS; m++)
        CHECK(bytes[m] * 100 > total * 20 && bytes[m] * 100 < total * 30);
    session_close(f);
}

TEST("UX-21", "NAKs of a receiver that a call cut off are not served until another call revokes it")
{
    fixture *f = guarded_session(guarded_config(), 20);
    CHECK(um_source_session_set_nak_cutoff(f->session, HONEST, true, f->now_ns));
    CHECK_EQ(last_event(f)->kind, UM_SOURCE_RECEIVER_CUT_OFF);
    f->from = HONEST;
    nak_one(f, 3);
    CHECK_EQ(f->session->counters.rxs_sent, 0);
    CHECK_EQ(f->session->counters.naks_cut_off, 1);
    f->from.port++;
    nak_one(f, 3); /* another receiver */
    CHECK_EQ(f->session->counters.rxs_sent, 1);
    um_source_session_set_nak_cutoff(f->session, HONEST, false, f->now_ns);
    f->from = HONEST;
    nak_one(f, 4);
    CHECK_EQ(f->session->counters.rxs_sent, 2);
    session_close(f);
}

TEST("UX-21", "a receiver over its share for the cutoff interval is cut off; one that pauses for a second is not")
{
    um_source_session_config config = guarded_config();
    config.nak_cutoff_interval_ns = 2 * (int64_t)NS_PER_S;
    fixture *f = guarded_session(config, SENT);
    become_member(f, HONEST);
    for (uint32_t i = 0; i < 6; i++) {
        f->now_ns += 1500 * NS_PER_MS;
        for (uint32_t k = 0; k < 10; k++)
            nak_run(f, HONEST, k * NAK_LIST);
    }
    CHECK(f->session->counters.naks_over_share > 0);
    CHECK_EQ(f->session->counters.naks_cut_off, 0);
    for (uint32_t i = 0; i < 30 && f->session->counters.naks_cut_off == 0; i++) {
        f->now_ns += 200 * NS_PER_MS;
        for (uint32_t k = 0; k < 10; k++)
            nak_run(f, HONEST, k * NAK_LIST);
    }
    CHECK(f->session->counters.naks_cut_off > 0);
    CHECK_EQ(last_event(f)->kind, UM_SOURCE_RECEIVER_CUT_OFF);
    session_close(f);
}

TEST("UM-125", "an event reports, once in ten seconds, that a receiver NAKs datagrams that have left the window")
{
    um_source_session_config config = guarded_config();
    config.window_bytes = 3100;
    fixture *f = guarded_session(config, 10);
    f->from = HONEST;
    for (uint32_t i = 0; i < 5; i++)
        nak_one(f, i);
    CHECK_EQ(f->session->events.count, 1);
    CHECK_EQ(last_event(f)->kind, UM_SOURCE_RECEIVER_LOSES);
    f->now_ns += 10 * (int64_t)NS_PER_S;
    nak_one(f, 0);
    CHECK_EQ(f->session->events.count, 2);
    CHECK_EQ(last_event(f)->count, 6);
    session_close(f);
}

TEST("UM-129", "the table of accounts is bounded: non-members are replaced, members and receivers cut off stay")
{
    um_receiver_accounting *accounting = zeroed(sizeof *accounting);
    for (uint32_t sqn = 1; sqn <= 2; sqn++)
        um_accounting_on_status(accounting, HONEST, sqn, 0);
    um_accounting_of(accounting, HOSTILE, 0)->is_cut_off = true;
    for (uint32_t i = 0; i < 5000; i++)
        CHECK(um_accounting_of(accounting, um_address_of_v4(0x0b000000 + i, 1), 1 + i) != NULL);
    CHECK_EQ(accounting->count, UM_ACCOUNTS_MAX);
    CHECK(um_accounting_of(accounting, HONEST, 6000)->is_member);
    CHECK(um_accounting_of(accounting, HOSTILE, 6000)->is_cut_off);
    for (uint32_t i = 0; i < UM_ACCOUNTS_MAX; i++)
        accounting->accounts[i].is_member = true;
    CHECK(um_accounting_of(accounting, um_address_of_v4(1, 1), 7000) == NULL);
    free(accounting);
}

TEST("UM-129", "a budget's credit is bounded after any idle time, and without a budget every NAK is served")
{
    um_repair_budget budget = {BUDGET_BPS, {0, INT64_MIN}}, none = {0, {0, INT64_MIN}};
    CHECK(um_repair_budget_take(&budget, NULL, 0, 1000, 0));
    uint32_t taken = 0;
    while (um_repair_budget_take(&budget, NULL, 0, 1000, INT64_MAX / 2))
        taken++;
    CHECK_EQ(taken, 65);
    for (uint32_t i = 0; i < 100000; i++)
        CHECK(um_repair_budget_take(&none, NULL, 0, 9000, 0));
}

/* ---- flow control ---- */

enum { MESSAGE_SPAN = 1024, STALL_MS = 1000 };

static fixture *flow_session(void)
{
    um_source_session_config config = guarded_config();
    config.flow_policy = UM_FLOW_MIN;
    config.flow_stall_timeout_ns = STALL_MS * (int64_t)NS_PER_MS;
    fixture *f = session_open(&config);
    source_open(f, ORDERS, 0);
    return f;
}

/* Publishes as much as is accepted, with an honest receiver that follows, and another that repeats `again`. */
static uint32_t publish_for(fixture *f, uint32_t ms, const um_status_message *again, um_address from)
{
    uint32_t first = f->session->next_sqn;
    for (uint32_t i = 0; i < ms; i += 10) {
        f->now_ns += 10 * NS_PER_MS;
        report_from(f, HONEST, 1, f->session->next_sqn, 65536);
        if (again != NULL && i % 100 == 0)
            report_from(f, from, again->receiver_id, again->next_sqn, again->window_bytes);
        while (send_bytes(f, f->session->sources, 1000, 0, UM_SEND_FLUSH) >= 0 && f->session->next_sqn - first < i)
            run_sender(f);
        um_source_session_tick(f->session, f->now_ns);
        capture_clear(&f->link);
    }
    return f->session->next_sqn - first;
}

TEST("AE-19 AE-20",
     "a receiver that reports but never advances holds the sender for the stall timeout, and is reported")
{
    fixture *f = flow_session();
    report_from(f, HONEST, 1, 0, 65536);
    CHECK(publish_for(f, 1000, NULL, HOSTILE) > 500);
    um_status_message forged = {.receiver_id = 99, .next_sqn = f->session->next_sqn, .window_bytes = 0};
    uint32_t during = publish_for(f, STALL_MS, &forged, HOSTILE);
    CHECK_EQ(f->session->counters.receivers_stalled, 0);
    publish_for(f, 500, &forged, HOSTILE);
    CHECK_EQ(f->session->counters.receivers_stalled, 1);
    CHECK_EQ(last_event(f)->kind, UM_SOURCE_RECEIVER_STALLED);
    CHECK(um_address_equal(last_event(f)->receiver, HOSTILE));
    CHECK(last_event(f)->count >= (uint64_t)STALL_MS * NS_PER_MS);
    um_source_session_snapshot(f->session);
    CHECK_EQ(f->session->counters.receivers_known, 1);
    CHECK(publish_for(f, 1000, &forged, HOSTILE) > during + 500); /* it still reports, but does not hold the sender */
    forged.receiver_id = 100; /* another id at a stalled address starts as stalled */
    forged.next_sqn = f->session->next_sqn;
    CHECK(publish_for(f, 1000, &forged, HOSTILE) > 500);
    CHECK_EQ(f->session->counters.receivers_stalled, 1);
    session_close(f);
}

TEST("AE-19", "a stalled receiver counts again once it advances inside the window, not if it repeats its report")
{
    fixture *f = flow_session();
    const um_address slow = UM_ADDRESS_V4(0x0a000003, 40000);
    report_from(f, HONEST, 1, 0, 65536);
    um_status_message paused = {.receiver_id = 2, .next_sqn = 0, .window_bytes = 0};
    publish_for(f, STALL_MS + 500, &paused, slow);
    CHECK_EQ(f->session->counters.receivers_stalled, 1);
    publish_for(f, 500, &paused, slow);
    um_source_session_snapshot(f->session);
    CHECK_EQ(f->session->counters.receivers_known, 1);
    report_from(f, slow, 2, f->session->next_sqn - 1, 65536);
    CHECK_EQ(last_event(f)->kind, UM_SOURCE_RECEIVER_RETURNED);
    um_source_session_snapshot(f->session);
    CHECK_EQ(f->session->counters.receivers_known, 2);
    session_close(f);
}

TEST("AE-20", "a receiver that advances slowly holds the sender")
{
    fixture *f = flow_session();
    report_from(f, HONEST, 1, 0, 65536);
    um_status_message slow = {.receiver_id = 2, .next_sqn = 0, .window_bytes = 4096};
    for (uint32_t i = 0; i < 10; i++) {
        publish_for(f, STALL_MS * 8 / 10, &slow, um_address_of_v4(0x0a000003, 40000));
        slow.next_sqn++;
    }
    CHECK_EQ(f->session->counters.receivers_stalled, 0);
    CHECK(f->session->next_sqn < 100);
    session_close(f);
}

static um_network network_of(uint32_t ip, uint32_t mask)
{
    return (um_network){um_ip_of_v4(ip), {UINT64_MAX, (uint64_t)UINT32_MAX << 32 | mask}};
}

TEST("AE-19", "status messages from outside the allowed networks do not count")
{
    um_source_session_config config = guarded_config();
    config.flow_policy = UM_FLOW_MIN;
    config.flow_network_count = 2;
    config.flow_networks[0] = network_of(0x0a000000, 0xffffffc0);
    config.flow_networks[1] = network_of(0x0b000001, 0xffffffff);
    fixture *f = session_open(&config);
    report_from(f, HOSTILE, 9, 0, 0);
    report_from(f, um_address_of_v4(0x0b000002, 1), 9, 0, 0);
    CHECK_EQ(f->session->counters.status_not_allowed, 2);
    CHECK(!um_flow_is_connected(&f->session->flow));
    report_from(f, HONEST, 1, 0, 65536);
    report_from(f, um_address_of_v4(0x0b000001, 1), 2, 0, 65536);
    CHECK_EQ(um_flow_counted(&f->session->flow), 2);
    session_close(f);
}
static void slow_report(fixture *f, uint32_t sqn, uint8_t flags)
{
    f->from = HONEST;
    status(f, (um_status_message){.receiver_id = 1, .next_sqn = sqn, .window_bytes = 65536, .flags = flags});
}

TEST("AE-18", "a slow receiver, its cut and its return are reported; a flapping one is counted, and reported rarely")
{
    fixture *f = guarded_session(guarded_config(), SENT);
    become_member(f, HONEST);
    uint64_t before = f->session->events.count;
    slow_report(f, 3, UM_STATUS_SLOW);
    CHECK_EQ(last_event(f)->kind, UM_SOURCE_RECEIVER_SLOW);
    CHECK(um_address_equal(last_event(f)->receiver, HONEST));
    slow_report(f, 4, UM_STATUS_SLOW);
    CHECK_EQ(f->session->events.count, before + 1);
    slow_report(f, 5, UM_STATUS_CUT_LOOSE);
    CHECK_EQ(last_event(f)->kind, UM_SOURCE_RECEIVER_CUT_LOOSE);
    slow_report(f, 6, 0);
    CHECK_EQ(last_event(f)->kind, UM_SOURCE_RECEIVER_RETURNED);
    for (uint32_t i = 0; i < 100; i++) {
        f->now_ns += NS_PER_MS;
        slow_report(f, 7, i % 2 == 0 ? UM_STATUS_CUT_LOOSE : 0);
    }
    CHECK_EQ(f->session->events.count, before + 3);
    CHECK_EQ(f->session->counters.receivers_cut_loose, 51);
    f->now_ns += UM_SOURCE_EVENT_GAP_NS;
    slow_report(f, 8, UM_STATUS_CUT_LOOSE);
    CHECK_EQ(f->session->events.count, before + 4);
    slow_report(f, 8, UM_STATUS_CUT_LOOSE | UM_STATUS_LEAVE);
    CHECK(last_event(f)->kind != UM_SOURCE_RECEIVER_RETURNED);
    session_close(f);
}

static const um_receiver_account *account_of_sender(const fixture *f)
{
    return um_accounting_of(&f->session->accounting, f->from, f->now_ns);
}

TEST("AE-15 AE-16", "datagrams that a receiver gave up are counted by receiver, over its sessions")
{
    um_source_session_config config = default_config();
    config.flow_policy = UM_FLOW_MIN;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 4; i++) {
        send_text(f, source, "x", UM_SEND_FLUSH);
        report_from(f, f->from, 1, f->session->next_sqn, 1000);
        run_sender(f);
    }
    uint32_t next = f->session->next_sqn;
    status(f, (um_status_message){.receiver_id = 1, .next_sqn = next - 1, .given_up = 2, .unconfirmed = 1});
    CHECK_EQ(account_of_sender(f)->given_up, 2);
    CHECK_EQ(account_of_sender(f)->session_unconfirmed, 1);
    CHECK_EQ(f->session->counters.datagrams_given_up, 2);
    uint64_t events = f->session->events.count;
    CHECK_EQ(f->session->events.ring[(events - 1) % UM_SOURCE_EVENTS_MAX].kind, UM_SOURCE_RECEIVER_GAVE_UP);
    CHECK_EQ(f->session->events.ring[(events - 1) % UM_SOURCE_EVENTS_MAX].count, 3);
    status(f, (um_status_message){.receiver_id = 1, .next_sqn = next - 2, .given_up = 0}); /* overtaken */
    CHECK_EQ(account_of_sender(f)->session_given_up, 2);
    status(f, (um_status_message){.receiver_id = 1, .next_sqn = next, .given_up = 2});
    CHECK_EQ(account_of_sender(f)->session_unconfirmed, 0);
    status(f, (um_status_message){.receiver_id = 1, .next_sqn = next, .given_up = 1}); /* a new session of it */
    CHECK_EQ(account_of_sender(f)->given_up, 3);
    status(f, (um_status_message){.receiver_id = 1, .next_sqn = next, .given_up = 4, .flags = UM_STATUS_LEAVE});
    CHECK_EQ(f->session->counters.datagrams_given_up, 6);
    CHECK_EQ(f->session->events.count, events + 1); /* at most one in 10 s */
    session_close(f);
}

CHECK_MAIN

TEST("AE-19", "a receiver counts after it repeated the cookie of a session message; one that cannot is not counted")
{
    um_source_session_config config = guarded_config();
    config.flow_policy = UM_FLOW_MIN;
    config.flow_cookie = 0x1122334455667788;
    fixture *f = session_open(&config);
    source_open(f, ORDERS, 0);
    capture_clear(&f->link);
    f->from = HONEST;
    status(f, (um_status_message){.receiver_id = 1, .window_bytes = 65536, .flags = UM_STATUS_ELICIT});
    CHECK(!um_flow_is_connected(&f->session->flow));
    CHECK_EQ(f->session->counters.status_unproven, 1);
    um_packet sm;
    CHECK_EQ(um_lbtrm_decode(f->link.datagrams[0].data, f->link.datagrams[0].length, &sm), UM_DGRAM_OK);
    CHECK(sm.type == UM_LBTRM_SM && um_cookie_decode(&sm) == config.flow_cookie);
    status(f, (um_status_message){.receiver_id = 1, .window_bytes = 65536, .cookie = config.flow_cookie});
    CHECK(um_flow_is_connected(&f->session->flow));
    um_status_message invented = {.receiver_id = 9};
    for (uint32_t i = 0; i < 3; i++) { /* without a cookie, with a wrong one, as one that leaves */
        f->from = HOSTILE;
        invented.cookie = i;
        invented.flags = i == 2 ? UM_STATUS_LEAVE : 0;
        status(f, invented);
    }
    CHECK_EQ(f->session->counters.status_unproven, 4);
    CHECK_EQ(f->session->flow.receiver_count, 1);
    CHECK(publish_for(f, 1000, &invented, HOSTILE) > 500);
    /* One that counts stays, even if a forged session message gave it another cookie. */
    f->from = HONEST;
    status(f, (um_status_message){.receiver_id = 1, .next_sqn = f->session->next_sqn, .cookie = 77});
    CHECK_EQ(f->session->flow.receivers[0].sqn, f->session->next_sqn);
    session_close(f);
}
