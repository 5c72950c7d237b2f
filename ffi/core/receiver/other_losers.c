#include "core/receiver/other_losers.h"

enum {
    ONE = UM_OTHER_LOSERS_ONE,
    SHARED_WEIGHT_MAX = 8, /* the newest loss counts for at least an eighth */
    LOST_MAX = 64,         /* then the counts are halved */
    NEEDLESS_MAX = 1 << 22,
    PRIVATE_WEIGHT = 3,
};

void um_other_losers_init(um_other_losers *others)
{
    *others = (um_other_losers){.shared_part = ONE, .shared_weight = 1};
}

void um_other_losers_begin(um_other_losers *others, uint32_t sqn)
{
    others->first_sqn = others->end_sqn = sqn;
    others->lost = others->needless = 0;
}

static void halve_if_full(um_other_losers *others)
{
    if (others->lost < LOST_MAX && others->needless < NEEDLESS_MAX)
        return;
    others->lost /= 2;
    others->needless /= 2;
    others->first_sqn += (others->end_sqn - others->first_sqn) / 2;
}

/* A moving mean, which starts as that of all losses and one that is shared. */
static void note_shared(um_other_losers *others, bool is_shared)
{
    others->shared_weight += others->shared_weight < SHARED_WEIGHT_MAX;
    if (is_shared)
        others->shared_part += (ONE - others->shared_part + others->shared_weight - 1) / others->shared_weight;
    else
        others->shared_part -= (others->shared_part + others->shared_weight - 1) / others->shared_weight;
}

void um_other_losers_on_repaired(um_other_losers *others, uint32_t next_sqn, bool is_shared)
{
    note_shared(others, is_shared);
    others->lost++;
    others->end_sqn = next_sqn;
    halve_if_full(others);
}

void um_other_losers_on_late_ncf(um_other_losers *others)
{
    note_shared(others, true);
}

void um_other_losers_on_needless(um_other_losers *others)
{
    others->needless++;
    halve_if_full(others);
}

/* Returns how many of so many receivers lose a datagram, in 1/ONE. */
static uint64_t independent_losers(const um_other_losers *others, uint64_t receivers)
{
    uint32_t datagrams = others->end_sqn - others->first_sqn;
    return datagrams > 0 ? receivers * others->lost * ONE / datagrams : 0;
}

/* Needless retransmissions per loss if all receivers lose independently, in 1/ONE. */
static uint64_t needless_expected(const um_other_losers *others, uint64_t receivers)
{
    uint64_t losers = independent_losers(others, receivers);
    uint64_t divisor = ONE + losers / 2 > losers ? ONE + losers / 2 : losers;
    uint64_t repairs = receivers * ONE * ONE / divisor;
    return repairs > ONE ? repairs - ONE : 1;
}

/* Half a loss that all share is assumed before any is known. The result counts PRIVATE_WEIGHT times: one that loses
 * more than the others, or by chance early, would otherwise take its losses for common ones. */
static uint64_t private_part(const um_other_losers *others, uint64_t receivers)
{
    uint64_t seen = (uint64_t)others->needless * ONE * ONE;
    uint64_t part = 2 * seen / (needless_expected(others, receivers) * (2 * others->lost + 1));
    part *= PRIVATE_WEIGHT;
    return part < ONE ? part : ONE;
}

uint64_t um_other_losers_estimate(const um_other_losers *others, uint32_t receivers)
{
    if (receivers < 2)
        return 0;
    uint64_t private = private_part(others, receivers);
    uint64_t shared = (ONE - private) * others->shared_part / ONE;
    uint64_t apart = independent_losers(others, receivers - 1) * private / ONE;
    uint64_t allowed = (uint64_t)UM_OTHER_LOSERS_ALLOWED * ONE;
    return (receivers - 1) * shared + (apart > allowed ? apart - allowed : 0);
}
