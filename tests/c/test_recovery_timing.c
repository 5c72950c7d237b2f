/* The measured NAK timers in isolation, with simulated times. */
#include "core/foundation/random.h"
#include "core/receiver/recovery_timing.h"
#include "core/source/source_timing.h"
#include "core/wire/group_report.h"
#include "core/wire/status_message.h"
#include "support.h"

enum {
    US = 1000,
    INITIAL_NS = 50 * NS_PER_MS,
    BACKOFF_NS = 200 * NS_PER_MS,
    ALL = UM_ADAPTIVE_INITIAL | UM_ADAPTIVE_BACKOFF | UM_ADAPTIVE_SUPPRESS,
    ALL_OF_SOURCE = UM_ADAPTIVE_IGNORE | UM_ADAPTIVE_SM | UM_ADAPTIVE_REPORTS,
};

static const int64_t SUPPRESS_NS = 1000 * (int64_t)NS_PER_MS;

static um_recovery_timing timing_of(uint32_t adaptive, uint32_t receivers)
{
    um_recovery_timing timing;
    um_recovery_timing_init(&timing, adaptive, INITIAL_NS, BACKOFF_NS, SUPPRESS_NS);
    um_recovery_timing_on_group_report(&timing, receivers, 0);
    return timing;
}

static void answer(um_recovery_timing *timing, int64_t waited_ns, uint32_t times)
{
    while (times-- > 0)
        um_recovery_timing_on_retransmission(timing, 1, 0, waited_ns);
}

TEST("UM-117 UM-122 UM-131", "fixed timers are the configured ones, whatever is measured or reported")
{
    um_recovery_timing timing = timing_of(0, 1);
    um_random random = {1}, same = {1};
    answer(&timing, 300 * US, 20);
    um_recovery_timing_on_reordered(&timing, 40 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), INITIAL_NS);
    CHECK_EQ(um_recovery_timing_backoff_ns(&timing), BACKOFF_NS);
    CHECK_EQ(um_recovery_timing_suppress_ns(&timing), SUPPRESS_NS);
    CHECK_EQ(um_recovery_timing_draw_initial_ns(&timing, &random), um_random_backoff_ns(&same, INITIAL_NS));
    CHECK_EQ(um_recovery_timing_draw_backoff_ns(&timing, &random, 7), um_random_backoff_ns(&same, BACKOFF_NS));
    CHECK_EQ(um_recovery_timing_draw_suppress_ns(&timing, &random, 7),
             SUPPRESS_NS + um_random_backoff_ns(&same, BACKOFF_NS));
}

TEST("UM-117 UM-122 UM-131", "each timer is measured separately")
{
    um_recovery_timing timing = timing_of(UM_ADAPTIVE_BACKOFF, 1);
    answer(&timing, 300 * US, 100);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), INITIAL_NS);
    CHECK(um_recovery_timing_backoff_ns(&timing) <= 450 * US);
    CHECK_EQ(um_recovery_timing_suppress_ns(&timing), SUPPRESS_NS);
    timing = timing_of(UM_ADAPTIVE_SUPPRESS, 1);
    answer(&timing, 300 * US, 100);
    CHECK_EQ(um_recovery_timing_backoff_ns(&timing), BACKOFF_NS);
    CHECK(um_recovery_timing_suppress_ns(&timing) <= 450 * US);
}

TEST("UM-117 UM-122", "a single receiver NAKs at once, and again after a round trip and its margin")
{
    um_recovery_timing timing = timing_of(ALL, 1);
    um_random random = {1};
    CHECK_EQ(um_recovery_timing_draw_initial_ns(&timing, &random), 0);
    CHECK_EQ(um_recovery_timing_draw_backoff_ns(&timing, &random, 1),
             6 * NS_PER_MS); /* 2 ms assumed, with a variance of 1 ms */
    answer(&timing, 800 * US, 1);
    CHECK_EQ(um_recovery_timing_draw_backoff_ns(&timing, &random, 1), (800 + 4 * 400) * US);
    answer(&timing, 800 * US, 100);
    CHECK_EQ(um_recovery_timing_draw_backoff_ns(&timing, &random, 1), 1200 * US);
    CHECK_EQ(um_recovery_timing_draw_backoff_ns(&timing, &random, 4), 8 * 1200 * US);
    CHECK_EQ(um_recovery_timing_draw_suppress_ns(&timing, &random, 3), 4 * 1200 * US);
    CHECK_EQ(um_recovery_timing_draw_backoff_ns(&timing, &random, 4000000000u), BACKOFF_NS + BACKOFF_NS / 2);
}

TEST("UM-122", "the back-off covers the variance of the round trip")
{
    um_recovery_timing timing = timing_of(ALL, 1);
    for (uint32_t i = 0; i < 200; i++)
        answer(&timing, i % 2 ? 1 * NS_PER_MS : 3 * NS_PER_MS, 1);
    CHECK(um_recovery_timing_backoff_ns(&timing) > 3 * NS_PER_MS);
}

TEST("UM-122", "a retransmission after several NAKs, or an NCF, is no sample; the first holds the back-off")
{
    um_recovery_timing timing = timing_of(ALL, 1);
    answer(&timing, 1 * NS_PER_MS, 50);
    um_recovery_timing before = timing;
    um_recovery_timing_on_retransmission(&timing, 1, 1, 30 * NS_PER_MS);
    CHECK_EQ(memcmp(&before, &timing, sizeof timing), 0);
    um_recovery_timing_on_retransmission(&timing, 3, 0, 20 * NS_PER_MS);
    CHECK_EQ(timing.round_trip_ns, 1 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_backoff_ns(&timing), 20 * NS_PER_MS);
    answer(&timing, 1 * NS_PER_MS, 1);
    CHECK(um_recovery_timing_backoff_ns(&timing) < 3 * NS_PER_MS);
}

TEST("UM-117 UM-127", "reordering widens the initial back-off beyond the observed delay, and samples narrow it again")
{
    um_recovery_timing timing = timing_of(ALL, 1);
    um_random random = {1};
    answer(&timing, 500 * US, 50);
    um_recovery_timing_on_reordered(&timing, 5 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_draw_initial_ns(&timing, &random), 5 * NS_PER_MS + 5 * NS_PER_MS / 4);
    answer(&timing, 500 * US, 300);
    CHECK(um_recovery_timing_draw_initial_ns(&timing, &random) < US);
}

TEST("UM-117 UM-127",
     "an original that arrives after its retransmission was reordered; other duplicates have no effect")
{
    um_recovery_timing timing = timing_of(ALL, 1);
    answer(&timing, 500 * US, 50);
    um_recovery_timing_on_repaired(&timing, 7, 1000);
    um_recovery_timing_on_duplicate(&timing, 7 + UM_REPAIRED_SLOTS, false, 9 * NS_PER_MS);
    um_recovery_timing_on_duplicate(&timing, 8, false, 9 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_lateness_ns(&timing), 0);
    um_recovery_timing_on_duplicate(&timing, 7, false, 1000 + 4 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_lateness_ns(&timing), 4 * NS_PER_MS);
    um_recovery_timing_on_duplicate(&timing, 7, false, 40 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_lateness_ns(&timing), 4 * NS_PER_MS);
}

TEST("UM-127", "a receiver that sees retransmissions it did not cause assumes other receivers, whatever the reports")
{
    um_recovery_timing timing = timing_of(ALL, 1);
    answer(&timing, 500 * US, 1);
    um_recovery_timing_on_repaired(&timing, 7, 1000);
    um_recovery_timing_on_duplicate(&timing, 7, true, 2000); /* its own retransmission again */
    CHECK_EQ(um_recovery_timing_receivers(&timing), 1);
    um_recovery_timing_on_duplicate(&timing, 9, true, 2000);
    CHECK_EQ(um_recovery_timing_receivers(&timing), 2);
    answer(&timing, 500 * US, 64);
    CHECK_EQ(um_recovery_timing_receivers(&timing), 1);
    timing = timing_of(ALL, 1);
    um_recovery_timing_on_retransmission(&timing, 0, 0, 0);
    CHECK_EQ(um_recovery_timing_receivers(&timing), 2);
    CHECK(um_recovery_timing_initial_ns(&timing) > 500 * US);
}

/* Mean number of receivers with the same loss that NAK before the first retransmission arrives. */
static double naks_in_the_mean(uint32_t receivers, uint32_t rounds)
{
    um_recovery_timing timing = timing_of(ALL, receivers);
    answer(&timing, NS_PER_MS, 100);
    um_random random = {receivers};
    uint64_t naks = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        static int64_t drawn[2000];
        int64_t first = INT64_MAX;
        for (uint32_t i = 0; i < receivers; i++) {
            drawn[i] = um_recovery_timing_draw_initial_ns(&timing, &random);
            first = drawn[i] < first ? drawn[i] : first;
        }
        for (uint32_t i = 0; i < receivers; i++)
            naks += drawn[i] < first + NS_PER_MS;
    }
    return (double)naks / rounds;
}

TEST("UM-117 UM-127", "the spread grows with the receivers, so that about four NAK, however many there are")
{
    CHECK(naks_in_the_mean(2, 300) < 2.1);
    CHECK(naks_in_the_mean(20, 300) < 4.5);
    CHECK(naks_in_the_mean(200, 300) < 4.5);
    CHECK(naks_in_the_mean(2000, 300) < 4.5);
    um_recovery_timing timing = timing_of(ALL, 1000);
    answer(&timing, NS_PER_MS, 100);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing) / (10 * US), 790); /* ln(1 + 999 e) is 7.907 */
}

TEST("UM-117", "the reported round trip is used until there is a sample")
{
    um_recovery_timing timing = timing_of(ALL, 0);
    CHECK_EQ(um_recovery_timing_receivers(&timing), UM_RECOVERY_RECEIVERS_ASSUMED);
    um_recovery_timing_on_group_report(&timing, 5, 40 * NS_PER_MS);
    CHECK_EQ(timing.round_trip_ns, 40 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_receivers(&timing), 5);
    CHECK_EQ(um_recovery_timing_crossing_ns(&timing), 0);
    answer(&timing, 1 * NS_PER_MS, 1);
    um_recovery_timing_on_group_report(&timing, 6, 40 * NS_PER_MS);
    CHECK_EQ(timing.round_trip_ns, 1 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_receivers(&timing), 6);
    CHECK_EQ(um_recovery_timing_crossing_ns(&timing), 2 * NS_PER_MS);
}

/* Estimate of one of `receivers` receivers after many datagrams, of which `shared_ppm` are lost to all of them and
 * `private_ppm` to each by itself. */
static double estimated(uint32_t receivers, uint32_t shared_ppm, uint32_t private_ppm)
{
    um_other_losers others;
    um_random random = {receivers};
    um_other_losers_init(&others);
    um_other_losers_begin(&others, 7);
    double sum = 0;
    uint32_t losses = 0;
    for (uint32_t sqn = 8; losses < 1000; sqn++) {
        bool is_common = um_random_below(&random, 1000000) < shared_ppm;
        bool is_mine = is_common || um_random_below(&random, 1000000) < private_ppm;
        bool is_others = is_common;
        for (uint32_t i = 1; i < receivers; i++)
            is_others |= um_random_below(&random, 1000000) < private_ppm;
        if (!is_mine && is_others)
            um_other_losers_on_needless(&others);
        if (!is_mine)
            continue;
        um_other_losers_on_repaired(&others, sqn + 1, is_others);
        losses++;
        sum += losses > 200 ? (double)um_other_losers_estimate(&others, receivers) / UM_OTHER_LOSERS_ONE : 0;
    }
    return sum / 800;
}

TEST("UM-117 UM-127", "receivers that lose independently do not wait for each other, those with a common loss do")
{
    CHECK(estimated(300, 10000, 0) > 298);
    CHECK(estimated(3, 10000, 0) > 1.99);
    CHECK(estimated(3, 0, 10000) < 0.02);
    CHECK(estimated(30, 0, 10000) < 0.1);
    CHECK(estimated(300, 0, 1000) < 1);
    CHECK(estimated(300, 0, 20000) < 1);
    CHECK(estimated(300, 9000, 1000) > 30);
    um_other_losers others;
    um_other_losers_init(&others);
    CHECK_EQ(um_other_losers_estimate(&others, 1), 0);
    CHECK_EQ(um_other_losers_estimate(&others, 16), 15 * UM_OTHER_LOSERS_ONE);
    CHECK_EQ(um_other_losers_estimate(&others, UINT32_MAX), (UINT32_MAX - 1ull) * UM_OTHER_LOSERS_ONE);
}

/* Measures `true_ns` by one loss, then gets the response to another receiver's NAK after `early_ns` and, if with_ncf,
 * the NCF for its own. Returns the estimate. */
static int64_t after_early_response(uint32_t receivers, int64_t true_ns, int64_t early_ns, bool with_ncf)
{
    um_recovery_timing timing = timing_of(ALL, receivers);
    for (uint32_t sqn = 1; sqn <= 20; sqn++) {
        um_recovery_timing_on_repaired(&timing, sqn, 0);
        um_recovery_timing_on_retransmission(&timing, 1, 0, sqn == 1 ? true_ns : early_ns);
        if (with_ncf && sqn > 1)
            um_recovery_timing_on_late_ncf(&timing, sqn);
    }
    CHECK_EQ(um_recovery_timing_shortest_ns(&timing), timing.round_trip_ns < true_ns ? early_ns : true_ns);
    return timing.round_trip_ns;
}

TEST("UM-122 UM-129", "if losses are common, a retransmission that an NCF follows does not shorten the round trip")
{
    CHECK_EQ(after_early_response(30, 4 * NS_PER_MS, 1 * NS_PER_MS, true), 4 * NS_PER_MS);
    CHECK(after_early_response(30, 4 * NS_PER_MS, 1 * NS_PER_MS, false) < 2 * NS_PER_MS);
    CHECK(after_early_response(1, 4 * NS_PER_MS, 1 * NS_PER_MS, true) < 2 * NS_PER_MS);
}

TEST("UM-117", "the round trip of an answered request is used and reported until there is a sample")
{
    um_recovery_timing timing = timing_of(ALL, 2);
    um_recovery_timing_on_answer(&timing, 40 * NS_PER_MS);
    CHECK_EQ(timing.round_trip_ns, 40 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_crossing_ns(&timing), 80 * NS_PER_MS);
    um_recovery_timing_on_group_report(&timing, 2, 70 * NS_PER_MS);
    CHECK_EQ(timing.round_trip_ns, 40 * NS_PER_MS);
    answer(&timing, 1 * NS_PER_MS, 1);
    um_recovery_timing_on_answer(&timing, 40 * NS_PER_MS);
    CHECK_EQ(timing.round_trip_ns, 1 * NS_PER_MS);
}

TEST("UM-117 UM-122 UM-131", "forged samples and forged reports stay within floor and ceiling")
{
    static const int64_t samples[] = {INT64_MIN, -1, 0, 1, NS_PER_MS, INT64_MAX};
    static const uint32_t counts[] = {0, 1, 2, 1000, UINT32_MAX};
    um_recovery_timing timing = timing_of(ALL, 0);
    um_random random = {1};
    for (uint32_t i = 0; i < 100000; i++) {
        int64_t sample_ns = samples[um_random_below(&random, 6)];
        uint32_t many = (uint32_t)um_random_below(&random, 4);
        switch (um_random_below(&random, 6)) {
        case 4:
            um_recovery_timing_on_answer(&timing, sample_ns);
            break;
        case 5:
            um_recovery_timing_on_duplicate(&timing, many, true, sample_ns);
            um_other_losers_on_repaired(&timing.others, counts[um_random_below(&random, 5)], many % 2);
            break;
        case 0:
            um_recovery_timing_on_reordered(&timing, sample_ns);
            break;
        case 1:
            um_recovery_timing_on_group_report(&timing, counts[um_random_below(&random, 5)], sample_ns);
            break;
        default:
            um_recovery_timing_on_retransmission(&timing, many, (uint32_t)um_random_below(&random, 2), sample_ns);
        }
        int64_t initial_ns = um_recovery_timing_draw_initial_ns(&timing, &random);
        int64_t backoff_ns = um_recovery_timing_draw_backoff_ns(&timing, &random, many);
        int64_t suppress_ns = um_recovery_timing_draw_suppress_ns(&timing, &random, many);
        CHECK(initial_ns >= 0 && initial_ns <= INITIAL_NS + INITIAL_NS / 2);
        CHECK(backoff_ns >= UM_RECOVERY_FLOOR_NS && backoff_ns <= BACKOFF_NS + BACKOFF_NS / 2);
        CHECK(suppress_ns >= UM_RECOVERY_FLOOR_NS && suppress_ns <= SUPPRESS_NS + BACKOFF_NS + BACKOFF_NS / 2);
    }
    um_recovery_timing_init(&timing, ALL, 0, 10 * US, 0);
    CHECK_EQ(um_recovery_timing_draw_initial_ns(&timing, &random), 0);
    CHECK_EQ(um_recovery_timing_draw_backoff_ns(&timing, &random, 1), 15 * US);
}

/* ---- the source's timers ---- */

static um_source_timing *source_timing(uint32_t adaptive)
{
    static um_source_timing timing;
    um_source_timing_init(&timing, adaptive, 500 * NS_PER_MS, 200 * NS_PER_MS, 0, 0);
    return &timing;
}

TEST("UM-68 UM-129", "fixed timers of a source are the configured ones")
{
    um_source_timing *timing = source_timing(0);
    um_receiver_account account = {0};
    um_source_timing_on_status(timing, &account, 1, 70, 0);
    CHECK_EQ(um_source_timing_ignore_ns(timing, &account), 500 * NS_PER_MS);
    CHECK_EQ(um_source_timing_first_sm_ns(timing), 200 * NS_PER_MS);
    int64_t due_ns;
    CHECK(!um_source_timing_is_report_due(timing, 1, 10 * (int64_t)NS_PER_S, &due_ns));
    CHECK_EQ(due_ns, UM_NEVER_NS);
}

TEST("UM-129 UM-130", "a NAK is ignored for the round trip of the receiver that sends it")
{
    um_source_timing *timing = source_timing(ALL_OF_SOURCE);
    um_receiver_account near_one = {0}, far_one = {0}, silent = {0}, hasty = {0};
    CHECK_EQ(um_source_timing_ignore_ns(timing, NULL), 4 * NS_PER_MS); /* assumed */
    um_source_timing_on_status(timing, &near_one, 1, 200, 0);
    um_source_timing_on_status(timing, &far_one, 2, 80000, 0);
    um_source_timing_on_status(timing, &silent, 3, 0, 0);
    um_source_timing_on_status(timing, &hasty, 4, 1, 0);
    CHECK_EQ(um_source_timing_ignore_ns(timing, &near_one), 200 * US);
    CHECK_EQ(um_source_timing_ignore_ns(timing, &far_one), 80 * NS_PER_MS);
    CHECK_EQ(um_source_timing_ignore_ns(timing, &silent), 80 * NS_PER_MS);
    CHECK_EQ(um_source_timing_ignore_ns(timing, NULL), 80 * NS_PER_MS);
    CHECK_EQ(um_source_timing_ignore_ns(timing, &hasty), 50 * US);
    um_source_timing_on_status(timing, &hasty, 4, UINT32_MAX, 0);
    CHECK_EQ(um_source_timing_ignore_ns(timing, &hasty), 500 * NS_PER_MS);
}

TEST("UM-68", "the first session message is sent after the shortest round trip, within floor and ceiling")
{
    um_source_timing *timing = source_timing(ALL_OF_SOURCE);
    CHECK_EQ(um_source_timing_first_sm_ns(timing), 20 * NS_PER_MS);
    um_source_timing_on_status(timing, NULL, 1, 300, 0);
    CHECK_EQ(um_source_timing_first_sm_ns(timing), 300 * US);
    um_source_timing_on_status(timing, NULL, 2, 7000, 0);
    CHECK_EQ(um_source_timing_first_sm_ns(timing), 300 * US);
    um_source_timing_on_status(timing, NULL, 2, 1, 0);
    CHECK_EQ(um_source_timing_first_sm_ns(timing), UM_RECOVERY_FLOOR_NS);
    um_source_timing_on_status(timing, NULL, 1, UINT32_MAX,
                               3 * (int64_t)NS_PER_S); /* the intervals with short ones are over */
    CHECK_EQ(um_source_timing_first_sm_ns(timing), 200 * NS_PER_MS);
}

TEST("", "a census counts the receivers of the last one or two seconds, at most as many as it has bits")
{
    um_receiver_census census;
    um_census_init(&census, 0);
    for (uint32_t round = 0; round < 5; round++)
        for (uint64_t id = 1; id <= 1000; id++)
            um_census_on_status(&census, id * 0x123456789abcdefu, 0, 0);
    CHECK(um_census_receivers(&census) > 920 && um_census_receivers(&census) <= 1000);
    um_census_advance(&census, NS_PER_S);
    CHECK(um_census_receivers(&census) > 920 && um_census_receivers(&census) <= 1000);
    um_census_on_status(&census, 5, 0, NS_PER_S);
    um_census_advance(&census, 2 * (int64_t)NS_PER_S);
    CHECK_EQ(um_census_receivers(&census), 1);
    um_census_advance(&census, 9 * (int64_t)NS_PER_S);
    CHECK_EQ(um_census_receivers(&census), 0);
    um_random random = {1};
    for (uint32_t i = 0; i < 1000000; i++)
        um_census_on_status(&census, um_random_next(&random), 0, 9 * (int64_t)NS_PER_S);
    CHECK_EQ(um_census_receivers(&census), UM_CENSUS_BITS);
}

static bool is_due(um_source_timing *timing, uint32_t next_sqn, int64_t now_ms)
{
    int64_t due_ns, now_ns = now_ms * NS_PER_MS;
    bool due = um_source_timing_is_report_due(timing, next_sqn, now_ns, &due_ns);
    if (due)
        um_source_timing_on_reported(timing, um_census_receivers(&timing->census), 0, next_sqn + 1, now_ns);
    return due;
}

TEST("", "a group report is sent when the first receivers are counted, when they double, and for a new one")
{
    um_source_timing *timing = source_timing(ALL_OF_SOURCE);
    CHECK(!is_due(timing, 1, 0));
    um_source_timing_on_status(timing, NULL, 1, 0, 0);
    CHECK(!is_due(timing, 1, 249));
    CHECK(is_due(timing, 1, 250));
    CHECK(!is_due(timing, 2, 600));
    for (uint64_t id = 2; id < 10; id++)
        um_source_timing_on_status(timing, NULL, id, 0, 300 * NS_PER_MS);
    CHECK(!is_due(timing, 2, 349));
    CHECK(is_due(timing, 2, 350));
    um_source_timing_on_status(timing, NULL, 10, 0, 400 * NS_PER_MS);
    CHECK(!is_due(timing, 3, 1349));
    CHECK(is_due(timing, 3, 1350));
    for (int64_t ms = 1400; ms < 60000; ms += 200) {
        for (uint64_t id = 1; id <= 10; id++)
            um_source_timing_on_status(timing, NULL, id, 0, ms * NS_PER_MS);
        CHECK(!is_due(timing, 4, ms));
    }
    CHECK(is_due(timing, 5, 60000)); /* data was sent since */
}

TEST("", "a group report is read back as it was written, and no other message is taken for one")
{
    uint8_t bytes[UM_GROUP_REPORT_BYTES];
    um_group_report report = {1000, 123456, true}, found;
    um_lbmc_message message;
    uint32_t length;
    CHECK_EQ(um_group_report_encode(bytes, &report), UM_GROUP_REPORT_BYTES);
    CHECK_EQ(um_lbmc_decode(bytes, sizeof bytes, &message, &length), UM_DGRAM_OK);
    CHECK_EQ(length, UM_GROUP_REPORT_BYTES);
    CHECK(um_group_report_decode(&message, &found));
    CHECK_EQ(found.receivers, 1000);
    CHECK(found.is_unlimited);
    CHECK_EQ(found.round_trip_ns, 123000);
    CHECK_EQ(um_round_trip_us(0), 0);
    CHECK_EQ(um_round_trip_us(1), 1);
    CHECK_EQ(um_round_trip_us(INT64_MAX), UINT32_MAX);
    bytes[UM_LBMC_CONTROL_BYTES + UM_LBMC_EXTENDED_BYTES] = 2; /* another version */
    CHECK_EQ(um_lbmc_decode(bytes, sizeof bytes, &message, &length), UM_DGRAM_OK);
    CHECK(!um_group_report_decode(&message, &found));
    uint8_t status_bytes[UM_STATUS_DATAGRAM_BYTES];
    um_status_message status = {.round_trip_us = 77}, read;
    um_status_encode(status_bytes, 1, 2, &status);
    um_packet packet;
    CHECK_EQ(um_lbtrm_decode(status_bytes, sizeof status_bytes, &packet), UM_DGRAM_OK);
    CHECK(um_status_decode(&packet, &read));
    CHECK_EQ(read.round_trip_us, 77);
    CHECK_EQ(um_lbmc_decode(packet.body, packet.body_length, &message, &length), UM_DGRAM_OK);
    CHECK(!um_group_report_decode(&message, &found));
}

CHECK_MAIN
