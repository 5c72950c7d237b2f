/* Adaptive lingering by itself, under made-up time. */
#include "core/linger.h"

#include "support.h"

enum { LIMIT = 100 };

/* Events `gap` apart, from where the last one was; returns in how many of the waits it polled. */
static uint32_t polled_waits(um_linger *linger, int64_t gap, uint32_t count)
{
    uint32_t polled = 0;
    for (uint32_t i = 0; i < count; i++) {
        polled += um_linger_until_ns(linger) > linger->last_event_ns;
        um_linger_on_event(linger, linger->last_event_ns + gap);
    }
    return polled;
}

static um_linger linger_at(int64_t first_event_ns)
{
    um_linger linger;
    um_linger_init(&linger, LIMIT);
    um_linger_on_event(&linger, first_event_ns);
    return linger;
}

TEST("UM-13", "polls from the second event on when they come within the limit, and for no longer than that")
{
    um_linger linger = linger_at(1000);
    CHECK(um_linger_until_ns(&linger) < 1000);
    um_linger_on_event(&linger, 1000 + LIMIT / 2);
    CHECK_EQ(um_linger_until_ns(&linger), 1000 + LIMIT / 2 + LIMIT);
    CHECK_EQ(polled_waits(&linger, LIMIT, 5000), 5000);
}

TEST("UM-13", "an event that took the limit twice to come, waking included, is worth one attempt")
{
    um_linger linger = linger_at(0);
    um_linger_on_event(&linger, 2 * LIMIT);
    CHECK(um_linger_until_ns(&linger) > 2 * LIMIT);
    linger = linger_at(0);
    um_linger_on_event(&linger, 2 * LIMIT + 1);
    CHECK(um_linger_until_ns(&linger) < 0);
}

TEST("UM-13", "a stream that is always just too slow is hardly polled for")
{
    um_linger linger = linger_at(0);
    CHECK(polled_waits(&linger, 2 * LIMIT, 2048) <= 12);
    CHECK(polled_waits(&linger, 2 * LIMIT, 100 * UM_LINGER_EARN_MAX) <= 100);
}

TEST("UM-13", "a slow stream is never polled for")
{
    um_linger linger = linger_at(0);
    CHECK_EQ(polled_waits(&linger, 10 * LIMIT, 10000), 0);
}

TEST("UM-13", "one late event does not end the polling of a fast stream for long")
{
    um_linger linger = linger_at(0);
    polled_waits(&linger, LIMIT / 4, 10);
    um_linger_on_event(&linger, linger.last_event_ns + 50 * LIMIT);
    CHECK(polled_waits(&linger, LIMIT / 4, 10) >= 8);
    CHECK_EQ(linger.earn, 1);
}

TEST("UM-13", "without a limit nothing is polled for")
{
    um_linger linger;
    um_linger_init(&linger, 0);
    CHECK_EQ(polled_waits(&linger, 0, 100), 0);
}

CHECK_MAIN
