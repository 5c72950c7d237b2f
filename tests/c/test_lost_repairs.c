/* Lost retransmissions that are found without a timer, with fabricated times: by those that were NAKed later, and by
 * the reports of the source. The path has a round trip of 10 ms and does not reorder. */
#include "core/receiver/lost_repairs.h"
#include "receiving.h"

enum {
    US = 1000,
    STEP_NS = 50 * US,
    ROUND_TRIP_NS = 10 * NS_PER_MS,
    SAMPLES = 20,
    MEASURED = UM_ADAPTIVE_BACKOFF | UM_ADAPTIVE_SUPPRESS,
    REPORTS_MAX = 4,
};

/* Lets the time pass. Returns the number of NAKed sqns. */
static uint64_t pass(receiving *r, int64_t duration_ns)
{
    uint64_t before = r->session.counters.naks_sent;
    for (int64_t end_ns = r->now_ns + duration_ns; r->now_ns < end_ns;) {
        r->now_ns += STEP_NS;
        um_receiver_session_tick(&r->session, r->now_ns);
    }
    return r->session.counters.naks_sent - before;
}

/* Loses this number of datagrams, which are NAKed within a millisecond. Returns the first one. */
static uint32_t lose(receiving *r, uint32_t count)
{
    uint32_t first = r->next_sqn;
    arrive(r, first + count, false);
    r->next_sqn = first + count + 1;
    CHECK_EQ(pass(r, NS_PER_MS), count);
    return first;
}

static receiving *open_unmeasured(uint32_t adaptive)
{
    um_receiver_session_config config = receiving_config();
    config.adaptive_timers = adaptive;
    config.nak_backoff_ns = config.nak_suppress_ns = 200 * NS_PER_MS;
    receiving *r = receiving_open(&config, NS_PER_S);
    arrive(r, r->next_sqn++, false);
    return r;
}

static receiving *open_receiving(uint32_t adaptive)
{
    receiving *r = open_unmeasured(adaptive);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        uint32_t lost = lose(r, 1);
        pass(r, ROUND_TRIP_NS - NS_PER_MS);
        arrive(r, lost, true);
    }
    CHECK_EQ(r->session.losses.count, 0);
    return r;
}

static int64_t reordering_ns(const receiving *r)
{
    int64_t measured_ns = um_recovery_timing_reordering_ns(&r->session.timing);
    CHECK(measured_ns > ROUND_TRIP_NS / 5 && measured_ns <= ROUND_TRIP_NS / 4); /* a NAK is sent soon after the loss */
    return measured_ns;
}

static const um_loss *loss_of(receiving *r, uint32_t sqn)
{
    const um_loss *loss = um_loss_map_find(&r->session.losses, sqn);
    CHECK(loss != NULL);
    return loss;
}

static void report(receiving *r, uint32_t sqn, int64_t age_ns)
{
    um_repair_report sent = {.count = 1, .entries = {{sqn, age_ns}}};
    um_lost_repairs_on_report(&r->session, &sent, r->now_ns);
}

TEST("UM-122",
     "more repairs that overtake than the path reorders bring the NAK at once, fewer after the reordering time")
{
    for (uint32_t later = 1; later <= UM_REORDERED_BY_MIN + 1; later++) {
        receiving *r = open_receiving(MEASURED);
        uint32_t lost = lose(r, UM_REORDERED_BY_MIN + 2);
        pass(r, ROUND_TRIP_NS - NS_PER_MS);
        for (uint32_t i = 1; i <= later; i++)
            arrive(r, lost + i, true);
        bool is_proved = later > UM_REORDERED_BY_MIN;
        CHECK_EQ(loss_of(r, lost)->state, is_proved ? UM_LOSS_REPAIR_LOST : UM_LOSS_DOUBTED);
        CHECK_EQ(pass(r, reordering_ns(r) - 2 * STEP_NS), is_proved ? 1 : 0);
        CHECK_EQ(pass(r, 4 * STEP_NS), is_proved ? 0 : 1);
        CHECK_EQ(r->session.counters.retransmissions_lost, 1);
        receiving_close(r);
    }
}

TEST("UM-122", "after another NAK, a loss is doubted by later repairs only, counted from that NAK")
{
    receiving *r = open_receiving(MEASURED);
    uint32_t lost = lose(r, UM_REORDERED_BY_MIN + 2);
    pass(r, ROUND_TRIP_NS - NS_PER_MS);
    for (uint32_t i = 1; i <= UM_REORDERED_BY_MIN + 1; i++)
        arrive(r, lost + i, true);
    CHECK_EQ(pass(r, NS_PER_MS), 1); /* its second NAK */
    uint32_t later = lose(r, 1);
    pass(r, ROUND_TRIP_NS - NS_PER_MS);
    CHECK_EQ(loss_of(r, lost)->state, UM_LOSS_NAKED);
    arrive(r, later, true);
    CHECK_EQ(loss_of(r, lost)->state, UM_LOSS_DOUBTED);
    CHECK_EQ(pass(r, reordering_ns(r) - 2 * STEP_NS), 0);
    CHECK_EQ(pass(r, 4 * STEP_NS), 1);
    receiving_close(r);
}

TEST("UM-122", "a repair shows no loss of higher numbers, or of those that were NAKed later")
{
    receiving *r = open_receiving(MEASURED);
    uint32_t first = lose(r, 3), second = lose(r, 1);
    pass(r, ROUND_TRIP_NS - 2 * NS_PER_MS);
    arrive(r, first + 1, true);
    CHECK_EQ(loss_of(r, first)->state, UM_LOSS_DOUBTED);
    CHECK_EQ(loss_of(r, first + 2)->state, UM_LOSS_NAKED);
    CHECK_EQ(loss_of(r, second)->state, UM_LOSS_NAKED);
    CHECK_EQ(pass(r, reordering_ns(r) + STEP_NS), 1);
    arrive(r, first + 2, true); /* NAKed before the second NAK of the first one */
    CHECK_EQ(loss_of(r, first)->state, UM_LOSS_NAKED);
    arrive(r, first, true);
    CHECK_EQ(loss_of(r, second)->state, UM_LOSS_NAKED);
    receiving_close(r);
}

TEST("UM-122", "the evidence is the repair that was NAKed last")
{
    receiving *r = open_receiving(MEASURED);
    uint32_t lost = lose(r, 4);
    pass(r, ROUND_TRIP_NS - NS_PER_MS);
    arrive(r, lost + 3, true);
    arrive(r, lost + 1, true); /* late */
    CHECK_EQ(r->session.repair.sqn, lost + 3);
    receiving_close(r);
}

TEST("UM-122", "without a measured round trip a report shows nothing, nor does a datagram that was never NAKed")
{
    receiving *r = open_unmeasured(MEASURED);
    arrive(r, r->next_sqn + 1, false);
    arrive(r, r->next_sqn, false); /* reordered */
    CHECK(!r->session.has_repair);
    r->next_sqn += 2;
    uint32_t lost = lose(r, 1);
    report(r, lost, 0);
    CHECK_EQ(loss_of(r, lost)->state, UM_LOSS_NAKED);
    receiving_close(r);
}

TEST("UM-122", "evidence never delays a NAK")
{
    receiving *r = open_receiving(MEASURED);
    uint32_t lost = lose(r, 2);
    int64_t due_ns = loss_of(r, lost)->deadline_ns;
    pass(r, due_ns - r->now_ns - 3 * STEP_NS);
    CHECK_EQ(loss_of(r, lost)->state, UM_LOSS_NAKED);
    arrive(r, lost + 1, true);
    CHECK_EQ(loss_of(r, lost)->state, UM_LOSS_DOUBTED);
    CHECK_EQ(loss_of(r, lost)->deadline_ns, due_ns);
    receiving_close(r);
}

TEST("UM-122", "no NAK comes sooner than the floor after the last one, whatever shows the loss")
{
    receiving *r = open_receiving(MEASURED);
    uint32_t lost = lose(r, UM_REORDERED_BY_MIN + 2);
    um_loss *loss = um_loss_map_find(&r->session.losses, lost);
    loss->floor_ns = r->now_ns + NS_PER_MS; /* an NCF has come */
    for (uint32_t i = 1; i <= UM_REORDERED_BY_MIN + 1; i++)
        arrive(r, lost + i, true);
    CHECK_EQ(pass(r, NS_PER_MS - STEP_NS), 0);
    CHECK_EQ(pass(r, 2 * STEP_NS), 1);
    receiving_close(r);
}

TEST("UM-122", "with a fixed back-off or suppress interval nothing is doubted")
{
    static const uint32_t partly[] = {0, UM_ADAPTIVE_BACKOFF, UM_ADAPTIVE_SUPPRESS, UM_ADAPTIVE_INITIAL};
    for (uint32_t k = 0; k < sizeof partly / sizeof partly[0]; k++) {
        receiving *r = open_receiving(partly[k]);
        uint32_t lost = lose(r, UM_REORDERED_BY_MIN + 2);
        pass(r, ROUND_TRIP_NS);
        for (uint32_t i = 1; i <= UM_REORDERED_BY_MIN + 1; i++)
            arrive(r, lost + i, true);
        report(r, lost, 0);
        CHECK_EQ(loss_of(r, lost)->state, UM_LOSS_NAKED);
        CHECK_EQ(r->session.counters.retransmissions_lost, 0);
        receiving_close(r);
    }
}

TEST("UM-122", "a report counts if the NAK had arrived when the repair was sent, and its age is waited no second time")
{
    enum { AGE_NS = NS_PER_MS };
    receiving *r = open_receiving(MEASURED);
    uint32_t lost = lose(r, 1);
    int64_t nak_ns = loss_of(r, lost)->nak_ns;
    pass(r, nak_ns + ROUND_TRIP_NS - r->now_ns); /* a repair of that age was sent for an earlier NAK */
    report(r, lost, AGE_NS);
    CHECK_EQ(loss_of(r, lost)->state, UM_LOSS_NAKED);
    report(r, lost + 100, 0); /* a number that is not lost */
    pass(r, AGE_NS);
    report(r, lost, AGE_NS);
    CHECK_EQ(loss_of(r, lost)->state, UM_LOSS_DOUBTED);
    CHECK_EQ(pass(r, reordering_ns(r) - AGE_NS - 2 * STEP_NS), 0);
    CHECK(r->session.has_repair && r->session.repair.sqn == lost && r->session.repair.is_reported);
    CHECK_EQ(pass(r, 4 * STEP_NS), 1);
    receiving_close(r);
}

TEST("UM-122", "forged reports bring a bounded number of NAKs forward")
{
    receiving *r = open_receiving(MEASURED);
    uint32_t lost = lose(r, 1), doubted = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        bool was_doubted = loss_of(r, lost)->state == UM_LOSS_DOUBTED;
        report(r, lost, 0);
        doubted += loss_of(r, lost)->state == UM_LOSS_DOUBTED && !was_doubted;
        pass(r, NS_PER_MS);
    }
    CHECK_EQ(doubted, REPORTS_MAX);
    receiving_close(r);
}

CHECK_MAIN
