#include "core/recovery_timing.h"

enum {
    ROUND_TRIP_WEIGHT = 8, /* the newest sample counts an eighth, its deviation a quarter (RFC 6298) */
    VARIANCE_WEIGHT = 4,
    REORDERING_WEIGHT = 8, /* each sample takes an eighth off */
    VARIANCES = 4,
};

static int64_t between(int64_t value, int64_t low, int64_t high)
{
    value = value < low ? low : value;
    return value < high ? value : high; /* the ceiling holds when it lies below the floor */
}

void um_recovery_timing_init(um_recovery_timing *timing, bool adaptive, int64_t initial_ceiling_ns,
                             int64_t backoff_ceiling_ns)
{
    um_debug_assert(initial_ceiling_ns >= 0 && backoff_ceiling_ns >= 0);
    *timing = (um_recovery_timing){
        .adaptive = adaptive,
        .initial_ceiling_ns = initial_ceiling_ns,
        .backoff_ceiling_ns = backoff_ceiling_ns,
        .round_trip_ns = UM_RECOVERY_FIRST_ROUND_TRIP_NS,
        .variance_ns = UM_RECOVERY_FIRST_ROUND_TRIP_NS / 2,
    };
}

static void add_sample(um_recovery_timing *timing, int64_t sample_ns)
{
    int64_t deviation_ns = sample_ns - timing->round_trip_ns;
    deviation_ns = deviation_ns < 0 ? -deviation_ns : deviation_ns;
    if (timing->measured) {
        timing->variance_ns += (deviation_ns - timing->variance_ns) / VARIANCE_WEIGHT;
        timing->round_trip_ns += (sample_ns - timing->round_trip_ns) / ROUND_TRIP_WEIGHT;
    } else {
        timing->round_trip_ns = sample_ns;
        timing->variance_ns = sample_ns / 2;
    }
    timing->measured = true;
    timing->held_ns = 0;
    timing->reordering_ns -= timing->reordering_ns / REORDERING_WEIGHT;
}

void um_recovery_timing_on_retransmission(um_recovery_timing *timing, uint32_t naks_sent, int64_t waited_ns)
{
    waited_ns = between(waited_ns, 0, timing->backoff_ceiling_ns);
    if (naks_sent == 1)
        add_sample(timing, waited_ns);
    else if (naks_sent > 1 && waited_ns > timing->held_ns)
        timing->held_ns = waited_ns;
}

void um_recovery_timing_on_reordered(um_recovery_timing *timing, int64_t waited_ns)
{
    waited_ns = between(waited_ns, 0, timing->initial_ceiling_ns);
    timing->reordering_ns = waited_ns > timing->reordering_ns ? waited_ns : timing->reordering_ns;
}

void um_recovery_timing_on_repaired(um_recovery_timing *timing, uint32_t sqn, int64_t detected_ns)
{
    timing->repaired[sqn % UM_REPAIRED_SLOTS] = (um_repaired){true, sqn, detected_ns};
}

void um_recovery_timing_on_duplicate(um_recovery_timing *timing, uint32_t sqn, int64_t now_ns)
{
    um_repaired *repaired = &timing->repaired[sqn % UM_REPAIRED_SLOTS];
    if (!repaired->used || repaired->sqn != sqn)
        return;
    repaired->used = false;
    um_recovery_timing_on_reordered(timing, now_ns - repaired->detected_ns);
}

int64_t um_recovery_timing_initial_ns(const um_recovery_timing *timing)
{
    if (!timing->adaptive)
        return timing->initial_ceiling_ns;
    int64_t nominal_ns = timing->round_trip_ns + 2 * timing->reordering_ns; /* half of it is drawn at least */
    return between(nominal_ns, UM_RECOVERY_FLOOR_NS, timing->initial_ceiling_ns);
}

int64_t um_recovery_timing_backoff_ns(const um_recovery_timing *timing)
{
    if (!timing->adaptive)
        return timing->backoff_ceiling_ns;
    int64_t answer_ns = timing->round_trip_ns + VARIANCES * timing->variance_ns;
    answer_ns = answer_ns > timing->held_ns ? answer_ns : timing->held_ns;
    return between(2 * answer_ns, UM_RECOVERY_FLOOR_NS, timing->backoff_ceiling_ns);
}
