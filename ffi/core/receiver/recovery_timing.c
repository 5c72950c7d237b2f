#include "core/receiver/recovery_timing.h"

enum {
    ROUND_TRIP_WEIGHT = 8, /* the newest sample counts for an eighth, its deviation for a quarter (RFC 6298) */
    VARIANCE_WEIGHT = 4,
    DOUBLINGS_MAX = 16,
    OTHERS_SEEN_SAMPLES = 64,
};

static int64_t longest_ns(int64_t nominal_ns)
{
    return nominal_ns + nominal_ns / 2;
}

void um_recovery_timing_init(um_recovery_timing *timing, uint32_t adaptive, int64_t initial_ceiling_ns,
                             int64_t backoff_ceiling_ns, int64_t suppress_ceiling_ns)
{
    um_debug_assert(initial_ceiling_ns >= 0 && backoff_ceiling_ns >= 0 && suppress_ceiling_ns >= 0);
    *timing = (um_recovery_timing){
        .adaptive = adaptive,
        .initial_ceiling_ns = initial_ceiling_ns,
        .backoff_ceiling_ns = backoff_ceiling_ns,
        .suppress_ceiling_ns = suppress_ceiling_ns,
        .round_trip_ns = UM_RECOVERY_FIRST_ROUND_TRIP_NS,
        .variance_ns = UM_RECOVERY_FIRST_ROUND_TRIP_NS / 2,
    };
    um_other_losers_init(&timing->others);
}

/* ---- measuring ---- */

/* Extremes are those of the current interval and of the one before. */
static void note_extremes(um_recovery_timing *timing, int64_t sample_ns)
{
    if (timing->sample_count % UM_SHORTEST_SAMPLES == 0) {
        timing->shortest_ns[1] = timing->shortest_ns[0];
        timing->shortest_ns[0] = sample_ns;
        timing->reordered_by -= timing->reordered_by > 0;
    }
    if (timing->sample_count % UM_REORDERING_SAMPLES == 0) {
        timing->reordering_ns[1] = timing->reordering_ns[0];
        timing->reordering_ns[0] = 0;
    }
    timing->shortest_ns[0] = um_earliest_ns(timing->shortest_ns[0], sample_ns);
}

static void add_sample(um_recovery_timing *timing, int64_t sample_ns)
{
    int64_t deviation_ns = sample_ns - timing->round_trip_ns;
    deviation_ns = deviation_ns < 0 ? -deviation_ns : deviation_ns;
    if (timing->sample_count > 0) {
        timing->variance_ns += (deviation_ns - timing->variance_ns) / VARIANCE_WEIGHT;
        timing->round_trip_ns += (sample_ns - timing->round_trip_ns) / ROUND_TRIP_WEIGHT;
    } else {
        timing->round_trip_ns = sample_ns;
        timing->variance_ns = sample_ns / 2;
    }
    note_extremes(timing, sample_ns);
    timing->sample_count++;
    timing->held_ns = 0;
    timing->others_seen -= timing->others_seen > 0;
}

void um_recovery_timing_on_retransmission(um_recovery_timing *timing, uint32_t naks_sent, uint32_t ncfs_seen,
                                          int64_t waited_ns)
{
    waited_ns = um_between_ns(waited_ns, 0, timing->backoff_ceiling_ns);
    if (naks_sent == 0)
        timing->others_seen = OTHERS_SEEN_SAMPLES;
    else if (naks_sent == 1 && ncfs_seen == 0)
        add_sample(timing, waited_ns);
    else if (naks_sent > 1 && waited_ns > timing->held_ns)
        timing->held_ns = waited_ns;
}

void um_recovery_timing_on_reordered(um_recovery_timing *timing, int64_t waited_ns)
{
    waited_ns = um_between_ns(waited_ns, 0, timing->initial_ceiling_ns);
    timing->reordering_ns[0] = waited_ns > timing->reordering_ns[0] ? waited_ns : timing->reordering_ns[0];
}

/* True if a loss is common to several receivers, more likely than not, so that their NAKs are spread. */
static bool has_common_losses(const um_recovery_timing *timing)
{
    return um_other_losers_estimate(&timing->others, um_recovery_timing_receivers(timing)) >= UM_OTHER_LOSERS_ONE;
}

static int64_t longer_ns(int64_t a_ns, int64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

void um_recovery_timing_on_late_ncf(um_recovery_timing *timing, uint32_t sqn)
{
    const um_repaired *repaired = &timing->repaired[sqn % UM_REPAIRED_SLOTS];
    if (!repaired->is_used || repaired->sqn != sqn)
        return;
    um_other_losers_on_late_ncf(&timing->others);
    if (!has_common_losses(timing))
        return;
    timing->round_trip_ns = longer_ns(timing->round_trip_ns, repaired->round_trip_ns);
    timing->shortest_ns[0] = longer_ns(timing->shortest_ns[0], repaired->shortest_ns);
}

void um_recovery_timing_on_reordered_by(um_recovery_timing *timing, uint32_t datagrams)
{
    datagrams = datagrams < UM_REORDERED_BY_MAX ? datagrams : UM_REORDERED_BY_MAX;
    timing->reordered_by = datagrams > timing->reordered_by ? datagrams : timing->reordered_by;
}

void um_recovery_timing_on_repaired(um_recovery_timing *timing, uint32_t sqn, int64_t detected_ns)
{
    timing->repaired[sqn % UM_REPAIRED_SLOTS] =
        (um_repaired){true, sqn, detected_ns, timing->round_trip_ns, timing->shortest_ns[0]};
}

void um_recovery_timing_on_duplicate(um_recovery_timing *timing, uint32_t sqn, bool retransmission, int64_t now_ns)
{
    um_repaired *repaired = &timing->repaired[sqn % UM_REPAIRED_SLOTS];
    bool was_missed = repaired->is_used && repaired->sqn == sqn;
    if (retransmission) {
        if (!was_missed) {
            timing->others_seen = OTHERS_SEEN_SAMPLES;
            um_other_losers_on_needless(&timing->others);
        }
        return;
    }
    if (!was_missed)
        return;
    repaired->is_used = false;
    um_recovery_timing_on_reordered(timing, now_ns - repaired->detected_ns);
}

static void assume(um_recovery_timing *timing, int64_t round_trip_ns)
{
    timing->round_trip_ns = um_between_ns(round_trip_ns, 0, timing->backoff_ceiling_ns);
    timing->variance_ns = timing->round_trip_ns / 2;
}

void um_recovery_timing_on_group_report(um_recovery_timing *timing, uint32_t receivers, int64_t round_trip_ns)
{
    timing->receivers = receivers < UM_RECOVERY_RECEIVERS_MAX ? receivers : UM_RECOVERY_RECEIVERS_MAX;
    if (timing->sample_count > 0 || timing->is_answered || round_trip_ns <= 0)
        return;
    assume(timing, round_trip_ns);
}

void um_recovery_timing_on_answer(um_recovery_timing *timing, int64_t waited_ns)
{
    if (timing->sample_count > 0)
        return;
    assume(timing, waited_ns);
    timing->is_answered = true;
}

/* ---- drawing ---- */

uint32_t um_recovery_timing_receivers(const um_recovery_timing *timing)
{
    if (timing->receivers == 0)
        return UM_RECOVERY_RECEIVERS_ASSUMED;
    return timing->receivers == 1 && timing->others_seen > 0 ? 2 : timing->receivers;
}

/* The binary logarithm of value / 2^16, in 2^-16; value >= 2^16. */
static uint64_t log2_of(uint64_t value)
{
    uint32_t whole = 63u - (uint32_t)__builtin_clzll(value);
    uint64_t mantissa = value << (63 - whole) >> 32;
    uint64_t found = (uint64_t)(whole - 16) << 16;
    for (uint32_t bit = 1u << 15; bit > 0; bit >>= 1) {
        mantissa = mantissa * mantissa >> 31;
        if (mantissa >> 32) {
            found |= bit;
            mantissa >>= 1;
        }
    }
    return found;
}

/* round trip x ln(1 + u e others), u in [0, 2^24]. */
static int64_t spread_ns(const um_recovery_timing *timing, uint64_t u)
{
    static const uint64_t E = 178145, LN_2 = 45426; /* in 2^-16 */
    uint64_t others = um_other_losers_estimate(&timing->others, um_recovery_timing_receivers(timing));
    uint64_t logarithm = log2_of(65536 + (u * (others * E / UM_OTHER_LOSERS_ONE) >> 24)) * LN_2 >> 16;
    return (int64_t)((unsigned __int128)timing->round_trip_ns * logarithm >> 16);
}

static int64_t draw_spread_ns(const um_recovery_timing *timing, um_random *random)
{
    return spread_ns(timing, um_random_below(random, 1u << 24));
}

int64_t um_recovery_timing_lateness_ns(const um_recovery_timing *timing)
{
    return timing->reordering_ns[timing->reordering_ns[0] < timing->reordering_ns[1]];
}

static int64_t reordering_guard_ns(const um_recovery_timing *timing)
{
    int64_t latest_ns = um_recovery_timing_lateness_ns(timing);
    return latest_ns + latest_ns / 4;
}

/* The retransmission time-out of RFC 6298, with half a round trip as its granularity. */
static int64_t timeout_ns(const um_recovery_timing *timing)
{
    int64_t margin_ns = 4 * timing->variance_ns;
    margin_ns = margin_ns > timing->round_trip_ns / 2 ? margin_ns : timing->round_trip_ns / 2;
    int64_t found_ns = timing->round_trip_ns + margin_ns;
    return found_ns > timing->held_ns ? found_ns : timing->held_ns;
}

static int64_t doubled_ns(int64_t value_ns, uint32_t times)
{
    return (int64_t)((uint64_t)value_ns << (times < DOUBLINGS_MAX ? times : DOUBLINGS_MAX));
}

int64_t um_recovery_timing_draw_initial_ns(const um_recovery_timing *timing, um_random *random)
{
    if (!(timing->adaptive & UM_ADAPTIVE_INITIAL))
        return um_random_backoff_ns(random, timing->initial_ceiling_ns);
    int64_t drawn_ns = reordering_guard_ns(timing) + draw_spread_ns(timing, random);
    return um_between_ns(drawn_ns, 0, longest_ns(timing->initial_ceiling_ns));
}

int64_t um_recovery_timing_draw_backoff_ns(const um_recovery_timing *timing, um_random *random, uint32_t naks_sent)
{
    if (!(timing->adaptive & UM_ADAPTIVE_BACKOFF))
        return um_random_backoff_ns(random, timing->backoff_ceiling_ns);
    int64_t drawn_ns =
        doubled_ns(timeout_ns(timing), naks_sent > 0 ? naks_sent - 1 : 0) + draw_spread_ns(timing, random);
    return um_between_ns(drawn_ns, UM_RECOVERY_FLOOR_NS, longest_ns(timing->backoff_ceiling_ns));
}

int64_t um_recovery_timing_draw_suppress_ns(const um_recovery_timing *timing, um_random *random, uint32_t ncfs_seen)
{
    int64_t suppress_ns = timing->suppress_ceiling_ns;
    if (timing->adaptive & UM_ADAPTIVE_SUPPRESS)
        suppress_ns = um_between_ns(doubled_ns(timeout_ns(timing), ncfs_seen > 0 ? ncfs_seen - 1 : 0),
                                    UM_RECOVERY_FLOOR_NS, suppress_ns);
    if (!(timing->adaptive & UM_ADAPTIVE_BACKOFF))
        return suppress_ns + um_random_backoff_ns(random, timing->backoff_ceiling_ns);
    return suppress_ns + um_between_ns(draw_spread_ns(timing, random), 0, longest_ns(timing->backoff_ceiling_ns));
}

/* ---- reading ---- */

int64_t um_recovery_timing_initial_ns(const um_recovery_timing *timing)
{
    if (!(timing->adaptive & UM_ADAPTIVE_INITIAL))
        return timing->initial_ceiling_ns;
    int64_t most_ns = reordering_guard_ns(timing) + spread_ns(timing, 1u << 24);
    return um_between_ns(most_ns, 0, longest_ns(timing->initial_ceiling_ns));
}

int64_t um_recovery_timing_backoff_ns(const um_recovery_timing *timing)
{
    if (!(timing->adaptive & UM_ADAPTIVE_BACKOFF))
        return timing->backoff_ceiling_ns;
    return um_between_ns(timeout_ns(timing), UM_RECOVERY_FLOOR_NS, timing->backoff_ceiling_ns);
}

int64_t um_recovery_timing_suppress_ns(const um_recovery_timing *timing)
{
    if (!(timing->adaptive & UM_ADAPTIVE_SUPPRESS))
        return timing->suppress_ceiling_ns;
    return um_between_ns(timeout_ns(timing), UM_RECOVERY_FLOOR_NS, timing->suppress_ceiling_ns);
}

uint32_t um_recovery_timing_reordered_by(const um_recovery_timing *timing)
{
    return timing->reordered_by > UM_REORDERED_BY_MIN ? timing->reordered_by : UM_REORDERED_BY_MIN;
}

int64_t um_recovery_timing_shortest_ns(const um_recovery_timing *timing)
{
    if (timing->sample_count == 0)
        return 0;
    return timing->sample_count <= UM_SHORTEST_SAMPLES ? timing->shortest_ns[0]
                                                       : um_earliest_ns(timing->shortest_ns[0], timing->shortest_ns[1]);
}

static int64_t shortest_round_trip_ns(const um_recovery_timing *timing)
{
    return timing->sample_count == 0 ? timing->round_trip_ns : um_recovery_timing_shortest_ns(timing);
}

int64_t um_recovery_timing_reordering_ns(const um_recovery_timing *timing)
{
    int64_t quarter_ns = shortest_round_trip_ns(timing) / 4, guard_ns = reordering_guard_ns(timing);
    return guard_ns > quarter_ns ? guard_ns : quarter_ns;
}

int64_t um_recovery_timing_refused_ns(const um_recovery_timing *timing, int64_t reported_crossing_ns)
{
    int64_t ignored_ns = reported_crossing_ns - shortest_round_trip_ns(timing);
    int64_t reordering_ns = um_recovery_timing_reordering_ns(timing);
    return ignored_ns > reordering_ns ? ignored_ns : reordering_ns;
}

int64_t um_recovery_timing_gather_ns(const um_recovery_timing *timing)
{
    int64_t gap_ns = um_recovery_timing_backoff_ns(timing) / 16;
    if (!(timing->adaptive & UM_ADAPTIVE_BACKOFF))
        return gap_ns;
    return um_earliest_ns(gap_ns, shortest_round_trip_ns(timing) / 4);
}

int64_t um_recovery_timing_crossing_ns(const um_recovery_timing *timing)
{
    if (timing->sample_count == 0 && !timing->is_answered)
        return 0;
    int64_t margin_ns = 2 * timing->variance_ns;
    margin_ns = margin_ns > timing->round_trip_ns / 4 ? margin_ns : timing->round_trip_ns / 4;
    return timing->round_trip_ns + margin_ns;
}
