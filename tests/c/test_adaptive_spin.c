/* Adaptive spin in isolation, with simulated times. */
#include "core/foundation/adaptive_spin.h"

#include "support.h"

enum { LIMIT = 100 };

/* Adds events `gap` apart after the last one; returns in how many of the waits it polled. */
static uint32_t polled_waits(um_adaptive_spin *spin, int64_t gap, uint32_t count)
{
    uint32_t polled = 0;
    for (uint32_t i = 0; i < count; i++) {
        polled += um_adaptive_spin_until_ns(spin) > spin->last_event_ns;
        um_adaptive_spin_on_event(spin, spin->last_event_ns + gap);
    }
    return polled;
}

static um_adaptive_spin spin_at(int64_t first_event_ns)
{
    um_adaptive_spin spin;
    um_adaptive_spin_init(&spin, LIMIT);
    um_adaptive_spin_on_event(&spin, first_event_ns);
    return spin;
}

TEST("", "polls from the second event on if events arrive within the limit, and for no longer than the limit")
{
    um_adaptive_spin spin = spin_at(1000);
    CHECK(um_adaptive_spin_until_ns(&spin) < 1000);
    um_adaptive_spin_on_event(&spin, 1000 + LIMIT / 2);
    CHECK_EQ(um_adaptive_spin_until_ns(&spin), 1000 + LIMIT / 2 + LIMIT);
    CHECK_EQ(polled_waits(&spin, LIMIT, 5000), 5000);
}

TEST("", "an event within twice the limit, wake-up included, causes one attempt")
{
    um_adaptive_spin spin = spin_at(0);
    um_adaptive_spin_on_event(&spin, 2 * LIMIT);
    CHECK(um_adaptive_spin_until_ns(&spin) > 2 * LIMIT);
    spin = spin_at(0);
    um_adaptive_spin_on_event(&spin, 2 * LIMIT + 1);
    CHECK(um_adaptive_spin_until_ns(&spin) < 0);
}

TEST("", "a stream that is always slightly too slow causes few attempts")
{
    um_adaptive_spin spin = spin_at(0);
    CHECK(polled_waits(&spin, 2 * LIMIT, 2048) <= 12);
    CHECK(polled_waits(&spin, 2 * LIMIT, 100 * UM_SPIN_EARN_MAX) <= 100);
}

TEST("", "a slow stream causes no attempt")
{
    um_adaptive_spin spin = spin_at(0);
    CHECK_EQ(polled_waits(&spin, 10 * LIMIT, 10000), 0);
}

TEST("", "a late event interrupts the polling of a fast stream only briefly")
{
    um_adaptive_spin spin = spin_at(0);
    polled_waits(&spin, LIMIT / 4, 10);
    um_adaptive_spin_on_event(&spin, spin.last_event_ns + 50 * LIMIT);
    CHECK(polled_waits(&spin, LIMIT / 4, 10) >= 8);
    CHECK_EQ(spin.earn, 1);
}

TEST("", "with a limit of 0 it never polls")
{
    um_adaptive_spin spin;
    um_adaptive_spin_init(&spin, 0);
    CHECK_EQ(polled_waits(&spin, 0, 100), 0);
}

CHECK_MAIN
