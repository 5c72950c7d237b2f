/* Rate limiting and flow control: the limiter and the receivers' table by themselves. */
#include "core/foundation/random.h"
#include "core/source/flow_control.h"
#include "support.h"

/* ---- rate limiter ---- */

static um_rate_limiter limiter_of(uint64_t bits_per_second, int64_t interval_ns)
{
    um_rate_limiter limiter;
    um_rate_limiter_init(&limiter, bits_per_second, interval_ns, 0);
    return limiter;
}

/* Takes datagrams of `bytes` at `now_ns` until refused; returns how many. */
static uint32_t take_all(um_rate_limiter *limiter, int64_t now_ns, uint32_t bytes)
{
    uint32_t count = 0;
    um_rate_limiter_advance(limiter, now_ns, bytes);
    while (um_rate_limiter_can_take(limiter, bytes)) {
        um_rate_limiter_take(limiter, bytes);
        count++;
    }
    return count;
}

TEST("UX-1", "1 Mbit/s in slices of 100 ms: 12,500 bytes each")
{
    um_rate_limiter limiter = limiter_of(1000000, 100 * (int64_t)NS_PER_MS);
    CHECK_EQ(limiter.allowance_bytes, 12500);
    CHECK_EQ(take_all(&limiter, 0, 1250), 10);
    CHECK_EQ(take_all(&limiter, 99 * (int64_t)NS_PER_MS, 1250), 0);
    CHECK_EQ(take_all(&limiter, 100 * (int64_t)NS_PER_MS, 1250), 10);
    CHECK_EQ(take_all(&limiter, 200 * (int64_t)NS_PER_MS, 1472), 8);
}

TEST("UX-1", "an idle slice earns nothing")
{
    um_rate_limiter limiter = limiter_of(1000000, 100 * (int64_t)NS_PER_MS);
    CHECK_EQ(take_all(&limiter, 3600 * (int64_t)NS_PER_S, 1250), 10);
    CHECK_EQ(take_all(&limiter, 3600 * (int64_t)NS_PER_S, 1250), 0);
}

TEST("UX-3", "a datagram larger than a slice waits for several slices")
{
    um_rate_limiter limiter = limiter_of(80000, 10 * (int64_t)NS_PER_MS); /* 100 bytes per slice */
    for (int64_t slice = 0; slice < 14; slice++)
        CHECK_EQ(take_all(&limiter, slice * 10 * NS_PER_MS, 1472), 0);
    CHECK_EQ(take_all(&limiter, 14 * 10 * (int64_t)NS_PER_MS, 1472), 1);
    CHECK(limiter.credit_bytes < 100);
}

TEST("UX-3", "a rate below one byte per slice is not zero")
{
    um_rate_limiter limiter = limiter_of(1, NS_PER_MS);
    CHECK_EQ(limiter.allowance_bytes, 1);
    CHECK_EQ(take_all(&limiter, 2000 * (int64_t)NS_PER_MS, 1472), 1);
}

TEST("UX-1", "no limit")
{
    um_rate_limiter limiter = limiter_of(0, NS_PER_MS);
    CHECK(um_rate_limiter_can_take(&limiter, UINT32_MAX));
    um_rate_limiter_take(&limiter, UINT32_MAX);
    CHECK(um_rate_limiter_can_take(&limiter, UINT32_MAX));
}

TEST("UX-1 UX-3", "the rate holds over any second, for any sequence of requests")
{
    um_random random = {check_seed()};
    for (uint32_t run = 0; run < 200; run++) {
        uint64_t bps = 1000 + um_random_below(&random, 1000000000);
        int64_t interval_ns = NS_PER_MS + (int64_t)um_random_below(&random, 100 * NS_PER_MS);
        um_rate_limiter limiter = limiter_of(bps, interval_ns);
        uint64_t taken = 0;
        int64_t now_ns = 0;
        while (now_ns < NS_PER_S) {
            uint32_t bytes = 20 + (uint32_t)um_random_below(&random, 1452);
            um_rate_limiter_advance(&limiter, now_ns, bytes);
            if (um_rate_limiter_can_take(&limiter, bytes)) {
                um_rate_limiter_take(&limiter, bytes);
                taken += bytes;
                CHECK(limiter.credit_bytes >= 0);
            } else {
                now_ns += (int64_t)um_random_below(&random, (uint64_t)interval_ns);
            }
        }
        uint64_t slices = (uint64_t)(NS_PER_S / interval_ns) + 2;
        CHECK(taken <= slices * (uint64_t)limiter.allowance_bytes + 1472);
    }
}

/* ---- flow control ---- */

enum { TIMEOUT_NS = 1000 };

static um_flow_control flow_of(enum um_flow_control_policy policy)
{
    um_flow_control flow;
    um_flow_init(&flow, policy, 7, 2, TIMEOUT_NS);
    if (policy != UM_FLOW_TAGGED)
        um_flow_init(&flow, policy, 0, 0, TIMEOUT_NS);
    return flow;
}

TEST("AE-9", "none: always connected, no limit")
{
    um_flow_control flow = flow_of(UM_FLOW_NONE);
    CHECK(um_flow_is_connected(&flow));
    CHECK_EQ(um_flow_limit(&flow), INT64_MAX);
}

TEST("AE-9 AE-20", "min: the slowest receiver")
{
    um_flow_control flow = flow_of(UM_FLOW_MIN);
    CHECK(!um_flow_is_connected(&flow));
    um_flow_on_status(&flow, 1, 0, 100, 0);
    um_flow_on_status(&flow, 2, 0, 50, 0);
    um_flow_on_status(&flow, 3, 0, 200, 0);
    CHECK(um_flow_is_connected(&flow));
    CHECK_EQ(um_flow_limit(&flow), 50);
    um_flow_on_status(&flow, 2, 0, 300, 0);
    CHECK_EQ(um_flow_limit(&flow), 100);
}

TEST("AE-9", "max: the fastest receiver")
{
    um_flow_control flow = flow_of(UM_FLOW_MAX);
    um_flow_on_status(&flow, 1, 0, 100, 0);
    um_flow_on_status(&flow, 2, 0, 50, 0);
    CHECK_EQ(um_flow_limit(&flow), 100);
}

TEST("AE-9", "tagged: the slowest of the group, once the group is large enough")
{
    um_flow_control flow = flow_of(UM_FLOW_TAGGED);
    um_flow_on_status(&flow, 1, 7, 100, 0);
    um_flow_on_status(&flow, 2, 8, 50, 0);
    CHECK(!um_flow_is_connected(&flow));
    um_flow_on_status(&flow, 3, 7, 200, 0);
    CHECK(um_flow_is_connected(&flow));
    CHECK_EQ(um_flow_limit(&flow), 100);
    um_flow_on_leave(&flow, 1);
    CHECK(!um_flow_is_connected(&flow));
}

TEST("AE-19", "an old status message does not lower the limit")
{
    um_flow_control flow = flow_of(UM_FLOW_MIN);
    um_flow_on_status(&flow, 1, 0, 100, 0);
    um_flow_on_status(&flow, 1, 0, 60, 0);
    CHECK_EQ(um_flow_limit(&flow), 100);
}

TEST("AE-20", "an idle receiver stops counting after the timeout")
{
    um_flow_control flow = flow_of(UM_FLOW_MIN);
    um_flow_on_status(&flow, 1, 0, 100, 0);
    um_flow_on_status(&flow, 2, 0, 200, 600);
    CHECK_EQ(um_flow_expire(&flow, 999), 1000);
    CHECK_EQ(flow.receiver_count, 2);
    CHECK_EQ(um_flow_expire(&flow, 1000), 1600);
    CHECK_EQ(flow.receiver_count, 1);
    CHECK_EQ(um_flow_limit(&flow), 200);
    CHECK_EQ(um_flow_expire(&flow, 1600), UM_NEVER_NS);
    CHECK(!um_flow_is_connected(&flow));
}

TEST("", "the table is bounded, and a full one is reported")
{
    um_flow_control flow = flow_of(UM_FLOW_MIN);
    for (uint64_t id = 0; id < UM_FLOW_RECEIVERS_MAX + 10; id++)
        um_flow_on_status(&flow, id, 0, 100, (int64_t)id);
    CHECK_EQ(flow.receiver_count, UM_FLOW_RECEIVERS_MAX);
    CHECK_EQ(flow.refused_count, 10);
    um_flow_on_status(&flow, 5, 0, 150, 5); /* a known receiver still counts */
    CHECK_EQ(flow.refused_count, 10);
    um_flow_expire(&flow, TIMEOUT_NS + 9);
    CHECK_EQ(flow.receiver_count, UM_FLOW_RECEIVERS_MAX - 10);
    um_flow_on_status(&flow, 1000, 0, 100, TIMEOUT_NS);
    CHECK_EQ(flow.receiver_count, UM_FLOW_RECEIVERS_MAX - 9);
}

TEST("AE-19", "the position all receivers have reached")
{
    um_flow_control flow = flow_of(UM_FLOW_MIN);
    CHECK_EQ(um_flow_reached(&flow), INT64_MAX);
    um_flow_on_status(&flow, 1, 0, 100, 0);
    um_flow_on_status(&flow, 2, 0, 100, 0);
    um_flow_note_position(&flow, 1, 40);
    um_flow_note_position(&flow, 2, 30);
    um_flow_note_position(&flow, 2, 20);
    um_flow_note_position(&flow, 3, 10); /* unknown receiver */
    CHECK_EQ(um_flow_reached(&flow), 30);
}

CHECK_MAIN
