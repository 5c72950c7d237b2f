/* Penalties of addresses whose clients held a receiver-paced LBT-TCP session. */
#include "core/source/stall_penalties.h"

#include "check.h"

enum { STALL_NS = 1000, A = 0x0a000001, B = 0x0a000002 };

TEST("", "a penalty applies to one address, and ends")
{
    um_stall_penalties penalties = {0};
    CHECK_EQ(um_stall_penalties_until_ns(&penalties, um_ip_of_v4(A), 0), 0);
    CHECK_EQ(um_stall_penalties_add(&penalties, um_ip_of_v4(A), STALL_NS, 5000), 6000);
    CHECK_EQ(um_stall_penalties_until_ns(&penalties, um_ip_of_v4(A), 5999), 6000);
    CHECK_EQ(um_stall_penalties_until_ns(&penalties, um_ip_of_v4(A), 6000), 0);
    CHECK_EQ(um_stall_penalties_until_ns(&penalties, um_ip_of_v4(B), 5999), 0);
}

TEST("AE-22 UM-108", "a penalty doubles with each stall up to 64 times; after a penalty's length without a stall the "
                     "next is a first one")
{
    um_stall_penalties penalties = {0};
    int64_t now_ns = 0, length_ns = STALL_NS;
    for (uint32_t i = 0; i < 10; i++) {
        CHECK_EQ(um_stall_penalties_add(&penalties, um_ip_of_v4(A), STALL_NS, now_ns), now_ns + length_ns);
        now_ns += length_ns + STALL_NS / 2;
        length_ns = length_ns == 64 * STALL_NS ? length_ns : 2 * length_ns;
    }
    CHECK_EQ(length_ns, 64 * STALL_NS);
    now_ns += length_ns;
    CHECK_EQ(um_stall_penalties_add(&penalties, um_ip_of_v4(A), STALL_NS, now_ns), now_ns + STALL_NS);
}

TEST("", "with too many addresses, the penalty that ends first is discarded")
{
    um_stall_penalties penalties = {0};
    for (uint32_t i = 0; i < UM_STALL_PENALTIES_MAX; i++)
        um_stall_penalties_add(&penalties, um_ip_of_v4(A + i), STALL_NS, i);
    um_stall_penalties_add(&penalties, um_ip_of_v4(A + UM_STALL_PENALTIES_MAX), STALL_NS, 500);
    CHECK_EQ(um_stall_penalties_until_ns(&penalties, um_ip_of_v4(A), 600), 0);
    for (uint32_t i = 1; i < UM_STALL_PENALTIES_MAX; i++)
        CHECK_EQ(um_stall_penalties_until_ns(&penalties, um_ip_of_v4(A + i), 600), i + STALL_NS);
}

CHECK_MAIN
