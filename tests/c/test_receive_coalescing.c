/* Receive coalescing in isolation, with simulated times. */
#include "core/foundation/receive_coalescing.h"

#include "support.h"

enum { INTERVAL_NS = 80000, MAX_NS = 160000, RING_FRAMES = 1200, WINDOW_BYTES = 1 << 20, FAR_NS = 1 << 30 };

static um_receive_coalescing made(void)
{
    um_receive_coalescing coalescing;
    um_coalescing_init(&coalescing, INTERVAL_NS, MAX_NS);
    return coalescing;
}

static int64_t next_ns(um_receive_coalescing *coalescing, uint32_t frames, uint64_t bytes)
{
    um_coalescing_on_frames(coalescing, frames, bytes);
    return um_coalescing_next_ns(coalescing, RING_FRAMES, WINDOW_BYTES, FAR_NS);
}

TEST("", "a loop coalesces once enough datagrams arrive together, and for a bounded time")
{
    um_receive_coalescing coalescing = made();
    int64_t now_ns = 10 * UM_COALESCING_HOT_NS;
    um_coalescing_on_pass(&coalescing, UM_COALESCING_HOT_DATAGRAMS - 1, 0, now_ns);
    CHECK(!um_coalescing_is_active(&coalescing, now_ns));
    um_coalescing_on_pass(&coalescing, 1, 0, now_ns + UM_COALESCING_LOAD_SPAN_NS);
    int64_t hot_ns = now_ns + UM_COALESCING_LOAD_SPAN_NS;
    CHECK(um_coalescing_is_active(&coalescing, hot_ns + UM_COALESCING_HOT_NS - 1));
    CHECK(!um_coalescing_is_active(&coalescing, hot_ns + UM_COALESCING_HOT_NS));
}

TEST("", "datagrams further apart are no load")
{
    um_receive_coalescing coalescing = made();
    int64_t now_ns = 10 * UM_COALESCING_HOT_NS;
    for (int i = 0; i < 1000; i++, now_ns += UM_COALESCING_LOAD_SPAN_NS / 10)
        um_coalescing_on_pass(&coalescing, 1, 0, now_ns);
    CHECK(!um_coalescing_is_active(&coalescing, now_ns));
}

TEST("", "replies to sends are no load, other datagrams are")
{
    um_receive_coalescing coalescing = made();
    int64_t now_ns = 10 * UM_COALESCING_HOT_NS;
    uint32_t sends = UINT32_MAX - 20; /* the count wraps */
    coalescing.sends_seen = sends;
    for (int i = 0; i < 100; i++)
        um_coalescing_on_pass(&coalescing, 2, ++sends, now_ns);
    CHECK(!um_coalescing_is_active(&coalescing, now_ns));
    um_coalescing_on_pass(&coalescing, UM_COALESCING_HOT_DATAGRAMS, sends, now_ns);
    CHECK(um_coalescing_is_active(&coalescing, now_ns));
}

TEST("", "replies that never arrive excuse a bounded number of datagrams")
{
    um_receive_coalescing coalescing = made();
    int64_t now_ns = 10 * UM_COALESCING_HOT_NS;
    um_coalescing_on_pass(&coalescing, 0, 1000000, now_ns);
    um_coalescing_on_pass(&coalescing, 2 * UM_COALESCING_HOT_DATAGRAMS, 1000000, now_ns);
    CHECK(um_coalescing_is_active(&coalescing, now_ns));
}

TEST("", "an interval of 0 turns coalescing off")
{
    um_receive_coalescing coalescing;
    um_coalescing_init(&coalescing, 0, 0);
    um_coalescing_on_pass(&coalescing, 1000, 0, 10 * UM_COALESCING_HOT_NS);
    CHECK(!um_coalescing_is_active(&coalescing, 10 * UM_COALESCING_HOT_NS));
}

TEST("", "over sockets the interval is the configured one")
{
    um_receive_coalescing coalescing = made();
    for (int i = 0; i < 10; i++)
        CHECK_EQ(um_coalescing_next_ns(&coalescing, 0, WINDOW_BYTES, 0), INTERVAL_NS);
}

TEST("", "over rings the interval grows to its maximum while little gathers")
{
    um_receive_coalescing coalescing = made();
    CHECK_EQ(next_ns(&coalescing, 1, 1), INTERVAL_NS + INTERVAL_NS / 8);
    for (int i = 0; i < 100; i++)
        CHECK(next_ns(&coalescing, 1, 1) <= MAX_NS);
    CHECK_EQ(next_ns(&coalescing, 1, 1), MAX_NS);
    CHECK_EQ(next_ns(&coalescing, RING_FRAMES / 5, 1), MAX_NS); /* between the two thresholds */
}

TEST("", "over rings the interval is halved when frames or the window run low, to a lower bound")
{
    um_receive_coalescing coalescing = made();
    CHECK_EQ(next_ns(&coalescing, RING_FRAMES / 4 + 1, 1), INTERVAL_NS / 2);
    CHECK_EQ(next_ns(&coalescing, 1, WINDOW_BYTES / 8 * 5 + 1), UM_COALESCING_MIN_NS);
    CHECK_EQ(next_ns(&coalescing, RING_FRAMES, 1), UM_COALESCING_MIN_NS);
    CHECK(next_ns(&coalescing, 0, 0) > UM_COALESCING_MIN_NS); /* frames gathered before are not counted again */
}

TEST("", "a timer waits no longer than it would over sockets")
{
    um_receive_coalescing coalescing = made();
    for (int i = 0; i < 100; i++)
        next_ns(&coalescing, 1, 1);
    CHECK_EQ(um_coalescing_next_ns(&coalescing, RING_FRAMES, WINDOW_BYTES, 0), INTERVAL_NS);
    CHECK_EQ(um_coalescing_next_ns(&coalescing, RING_FRAMES, WINDOW_BYTES, INTERVAL_NS + 1), INTERVAL_NS + 1);
}

TEST("", "a new load starts with the configured interval, a load that continues keeps its interval")
{
    um_receive_coalescing coalescing = made();
    int64_t now_ns = 10 * UM_COALESCING_HOT_NS;
    um_coalescing_on_pass(&coalescing, 100, 0, now_ns);
    int64_t learned_ns = next_ns(&coalescing, 1, 1);
    um_coalescing_on_pass(&coalescing, 100, 0, now_ns + UM_COALESCING_HOT_NS);
    CHECK_EQ(coalescing.current_ns, learned_ns);
    um_coalescing_on_pass(&coalescing, 100, 0, now_ns + 2 * UM_COALESCING_HOT_NS + MAX_NS);
    CHECK_EQ(coalescing.current_ns, INTERVAL_NS);
}

CHECK_MAIN
