/* The measured NAK timers by themselves, with made-up times. */
#include "core/random.h"
#include "core/recovery_timing.h"
#include "support.h"

enum { US = 1000, INITIAL_NS = 50 * NS_PER_MS, BACKOFF_NS = 200 * NS_PER_MS };

static um_recovery_timing timing_of(bool adaptive)
{
    um_recovery_timing timing;
    um_recovery_timing_init(&timing, adaptive, INITIAL_NS, BACKOFF_NS);
    return timing;
}

static void answer(um_recovery_timing *timing, int64_t waited_ns, uint32_t times)
{
    while (times-- > 0)
        um_recovery_timing_on_retransmission(timing, 1, waited_ns);
}

TEST("UM-117 UM-122", "fixed timers are the configured ones, whatever is measured")
{
    um_recovery_timing timing = timing_of(false);
    answer(&timing, 300 * US, 20);
    um_recovery_timing_on_reordered(&timing, 40 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), INITIAL_NS);
    CHECK_EQ(um_recovery_timing_backoff_ns(&timing), BACKOFF_NS);
}

TEST("UM-117 UM-122", "the first loss waits a few milliseconds, later ones a round trip")
{
    um_recovery_timing timing = timing_of(true);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), 2 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_backoff_ns(&timing), 12 * NS_PER_MS);
    answer(&timing, 800 * US, 1);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), 800 * US);
    CHECK_EQ(um_recovery_timing_backoff_ns(&timing), 2 * (800 + 4 * 400) * US);
    answer(&timing, 800 * US, 100);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), 800 * US);
    CHECK(um_recovery_timing_backoff_ns(&timing) < 1700 * US);
}

TEST("UM-122", "half of the back-off, the least that is drawn, covers a round trip that varies")
{
    um_recovery_timing timing = timing_of(true);
    for (uint32_t i = 0; i < 200; i++)
        answer(&timing, i % 2 ? 1 * NS_PER_MS : 3 * NS_PER_MS, 1);
    CHECK(um_recovery_timing_backoff_ns(&timing) / 2 > 3 * NS_PER_MS);
}

TEST("UM-122", "an answer to one of several NAKs is no sample; it holds the back-off until there is one")
{
    um_recovery_timing timing = timing_of(true);
    answer(&timing, 1 * NS_PER_MS, 50);
    um_recovery_timing_on_retransmission(&timing, 3, 20 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), 1 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_backoff_ns(&timing), 40 * NS_PER_MS);
    answer(&timing, 1 * NS_PER_MS, 1);
    CHECK(um_recovery_timing_backoff_ns(&timing) < 3 * NS_PER_MS);
    um_recovery_timing before = timing;
    um_recovery_timing_on_retransmission(&timing, 0, 30 * NS_PER_MS); /* another receiver's */
    CHECK_EQ(memcmp(&before, &timing, sizeof timing), 0);
}

TEST("UM-117", "reordering widens the initial back-off beyond what was seen, and samples narrow it again")
{
    um_recovery_timing timing = timing_of(true);
    answer(&timing, 500 * US, 50);
    um_recovery_timing_on_reordered(&timing, 5 * NS_PER_MS);
    CHECK(um_recovery_timing_initial_ns(&timing) / 2 >= 5 * NS_PER_MS);
    answer(&timing, 500 * US, 100);
    CHECK(um_recovery_timing_initial_ns(&timing) < 510 * US);
}

TEST("UM-117", "an original that comes after its repair was reordered; any other duplicate says nothing")
{
    um_recovery_timing timing = timing_of(true);
    answer(&timing, 500 * US, 50);
    int64_t before_ns = um_recovery_timing_initial_ns(&timing);
    um_recovery_timing_on_repaired(&timing, 7, 1000);
    um_recovery_timing_on_duplicate(&timing, 7 + UM_REPAIRED_SLOTS, 9 * NS_PER_MS);
    um_recovery_timing_on_duplicate(&timing, 8, 9 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), before_ns);
    um_recovery_timing_on_duplicate(&timing, 7, 1000 + 4 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), before_ns + 8 * NS_PER_MS);
    um_recovery_timing_on_duplicate(&timing, 7, 40 * NS_PER_MS);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), before_ns + 8 * NS_PER_MS);
}

TEST("UM-117 UM-122", "forged samples stay within floor and ceiling")
{
    static const int64_t samples[] = {INT64_MIN, -1, 0, 1, NS_PER_MS, INT64_MAX};
    um_recovery_timing timing = timing_of(true);
    um_random random = {1};
    for (uint32_t i = 0; i < 100000; i++) {
        int64_t sample_ns = samples[um_random_below(&random, 6)];
        if (um_random_below(&random, 4) == 0)
            um_recovery_timing_on_reordered(&timing, sample_ns);
        else
            um_recovery_timing_on_retransmission(&timing, (uint32_t)um_random_below(&random, 4), sample_ns);
        CHECK(um_recovery_timing_initial_ns(&timing) >= UM_RECOVERY_FLOOR_NS);
        CHECK(um_recovery_timing_initial_ns(&timing) <= INITIAL_NS);
        CHECK(um_recovery_timing_backoff_ns(&timing) >= UM_RECOVERY_FLOOR_NS);
        CHECK(um_recovery_timing_backoff_ns(&timing) <= BACKOFF_NS);
    }
    um_recovery_timing_init(&timing, true, 0, 10 * US);
    CHECK_EQ(um_recovery_timing_initial_ns(&timing), 0);
    CHECK_EQ(um_recovery_timing_backoff_ns(&timing), 10 * US);
}

CHECK_MAIN
