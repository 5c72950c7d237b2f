/* The receiving half under load: re-NAKs only for datagrams that could have arrived, status messages at once when
 * the position advances, and recovery times.
 */
#include "core/receiver/status_reports.h"
#include "receiving.h"

enum { BACKOFF_NS = 50 * NS_PER_MS, WINDOW = 1 << 20 };

static receiving *open_session(void)
{
    um_receiver_session_config config = receiving_config();
    config.nak_initial_backoff_ns = 10 * NS_PER_MS;
    config.nak_backoff_ns = BACKOFF_NS;
    config.nak_suppress_ns = 100 * NS_PER_MS;
    config.window_bytes = WINDOW;
    return receiving_open(&config, 0);
}

static void arrive_at(receiving *r, uint32_t sqn, bool is_retransmission, int64_t now_ns)
{
    r->now_ns = now_ns;
    arrive(r, sqn, is_retransmission);
    um_status_reports_after_batch(&r->session, now_ns);
}

/* Ticks every millisecond of (from, to]; returns the NAKs sent meanwhile. */
static uint64_t tick_through(receiving *r, int64_t from_ns, int64_t to_ns)
{
    uint64_t before = r->session.counters.naks_sent;
    for (int64_t now_ns = from_ns + NS_PER_MS; now_ns <= to_ns; now_ns += NS_PER_MS)
        um_receiver_session_tick(&r->session, now_ns);
    return r->session.counters.naks_sent - before;
}

TEST("UM-119", "a receiver with unread datagrams sends no re-NAK")
{
    receiving *r = open_session();
    arrive_at(r, 1, false, 0);
    arrive_at(r, 3, false, 0);
    r->session.is_behind = true; /* the first NAK is not postponed */
    CHECK_EQ(tick_through(r, 0, 20 * NS_PER_MS), 1);
    CHECK_EQ(tick_through(r, 20 * NS_PER_MS, 400 * NS_PER_MS), 0);
    r->session.is_behind = false;
    CHECK_EQ(tick_through(r, 400 * NS_PER_MS, 402 * NS_PER_MS), 1);
    receiving_close(r);
}

TEST("UM-119 UM-123", "a receiver that never catches up still re-NAKs, and gives up in time")
{
    receiving *r = open_session();
    arrive_at(r, 1, false, 0);
    arrive_at(r, 3, false, 0);
    r->session.is_behind = true;
    uint64_t naks = tick_through(r, 0, 9 * (int64_t)NS_PER_S);
    CHECK(naks >= 3 && naks <= 13);
    tick_through(r, 9 * (int64_t)NS_PER_S, 11 * (int64_t)NS_PER_S);
    CHECK_EQ(r->session.counters.unrecovered_tmo, 1);
    CHECK_EQ(r->session.losses.count, 0);
    receiving_close(r);
}

/* The status message captured last. */
static um_status_message last_status(const receiving *r)
{
    um_packet packet;
    um_status_message status;
    for (uint32_t i = r->link.count; i-- > 0;) {
        const capture *datagram = &r->link.datagrams[i];
        CHECK_EQ(um_lbtrm_decode(datagram->data, datagram->length, &packet), UM_DGRAM_OK);
        if (um_status_decode(&packet, &status))
            return status;
    }
    CHECK(!"no status message");
    return status;
}

static uint32_t reported_sqn(const receiving *r)
{
    return last_status(r).next_sqn;
}

TEST("AE-17", "a status message is sent at once when the gap that held the position back is closed")
{
    receiving *r = open_session();
    arrive_at(r, 1, false, 0);
    for (uint32_t sqn = 3; sqn < 3 + WINDOW / 1000; sqn++)
        arrive_at(r, sqn, false, NS_PER_MS);
    CHECK_EQ(reported_sqn(r), 2);
    uint32_t before = r->link.count;
    arrive_at(r, 2, true, 2 * NS_PER_MS);
    CHECK_EQ(r->link.count, before + 1);
    CHECK_EQ(reported_sqn(r), 3 + WINDOW / 1000);
    receiving_close(r);
}

TEST("AE-17", "a gap that is given up lets the position advance, too")
{
    receiving *r = open_session();
    arrive_at(r, 1, false, 0);
    arrive_at(r, 3, false, 0);
    r->session.due_ns[UM_TIMER_STATUS] = 0;
    um_status_reports_after_batch(&r->session, 0);
    CHECK_EQ(reported_sqn(r), 2);
    tick_through(r, 0, 11 * (int64_t)NS_PER_S);
    um_status_reports_after_batch(&r->session, 11 * (int64_t)NS_PER_S);
    CHECK_EQ(reported_sqn(r), 4);
    CHECK_EQ(last_status(r).given_up, 1);
    receiving_close(r);
}

TEST("AE-15 UM-123", "datagrams that only a session message has shown are given up, and reported until they arrive")
{
    receiving *r = open_session();
    arrive_at(r, 1, false, 0);
    um_packet packet = {.type = UM_LBTRM_SM, .session_id = 7, .trail = 1, .lead = 3};
    um_rx rx = {0};
    um_receiver_session_on_packet(&r->session, &packet, &rx, NULL, 0, NS_PER_MS);
    tick_through(r, NS_PER_MS, 12 * (int64_t)NS_PER_S);
    um_status_reports_after_batch(&r->session, 12 * (int64_t)NS_PER_S);
    CHECK_EQ(reported_sqn(r), 4);
    CHECK_EQ(last_status(r).given_up, 0);
    CHECK_EQ(last_status(r).unconfirmed, 2);
    arrive_at(r, 2, false, 12 * (int64_t)NS_PER_S);
    arrive_at(r, 3, false, 12 * (int64_t)NS_PER_S);
    r->session.due_ns[UM_TIMER_STATUS] = 0;
    um_status_reports_after_batch(&r->session, 12 * (int64_t)NS_PER_S);
    CHECK_EQ(last_status(r).unconfirmed, 0);
    receiving_close(r);
}

TEST("", "recovery times are counted in four buckets per octave")
{
    /* microseconds, bucket */
    static const uint32_t cases[][2] = {{1, 0},      {65, 0},       {66, 0},       {82, 1},
                                        {131, 3},    {132, 4},      {1000, 15},    {5000, 24},
                                        {10000, 28}, {1000000, 55}, {4294967, 63}, {9000000, 63}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        receiving *r = open_session();
        arrive_at(r, 1, false, 0);
        arrive_at(r, 3, false, 0);
        arrive_at(r, 2, true, (int64_t)cases[i][0] * 1000);
        for (uint32_t bucket = 0; bucket < UM_RECOVERY_BUCKETS; bucket++)
            CHECK_EQ(r->session.recovery_buckets[bucket], bucket == cases[i][1]);
        receiving_close(r);
    }
}

CHECK_MAIN
