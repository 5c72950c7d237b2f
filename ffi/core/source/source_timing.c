#include "core/source/source_timing.h"

#include "core/foundation/recovery_limits.h"

enum {
    CROSSING_ASSUMED_NS =
        2 * UM_RECOVERY_FIRST_ROUND_TRIP_NS, /* round trip assumed for a receiver that has not measured one */
    FIRST_SM_ASSUMED_NS = 20000000,          /* used until a receiver has measured a round trip */
    CROSSING_FLOOR_NS = UM_RECOVERY_FLOOR_NS / 2,
    CENSUS_SETTLES_NS = 250000000, /* by then every receiver has sent a status message */
    GROWTH_GAP_NS = 100000000,     /* minimum interval between reports if the number of receivers doubled */
    REPORT_GAP_NS = 1000000000,    /* minimum interval between reports for other reasons */
    RETRY_NS = 1000000,
};

static const int64_t REPEAT_NS = 10000000000; /* interval of unchanged reports while data is sent */

static void note_first_sm(um_source_timing *timing)
{
    int64_t crossing_ns = um_census_shortest_ns(&timing->census);
    int64_t found_ns = timing->first_sm_ceiling_ns;
    if (timing->adaptive & UM_ADAPTIVE_SM)
        found_ns =
            um_between_ns(crossing_ns > 0 ? crossing_ns : FIRST_SM_ASSUMED_NS, timing->first_sm_floor_ns, found_ns);
    atomic_store_explicit(&timing->first_sm_ns, found_ns, memory_order_relaxed);
}

void um_source_timing_init(um_source_timing *timing, uint32_t adaptive, int64_t ignore_ns, int64_t first_sm_ns,
                           int64_t first_sm_floor_ns, int64_t now_ns)
{
    memset(timing, 0, sizeof *timing);
    timing->adaptive = adaptive;
    timing->ignore_ceiling_ns = ignore_ns;
    timing->first_sm_ceiling_ns = first_sm_ns;
    timing->first_sm_floor_ns = first_sm_floor_ns > UM_RECOVERY_FLOOR_NS ? first_sm_floor_ns : UM_RECOVERY_FLOOR_NS;
    um_census_init(&timing->census, now_ns);
    note_first_sm(timing);
}

void um_source_timing_on_status(um_source_timing *timing, um_receiver_account *account, uint64_t receiver_id,
                                uint32_t round_trip_us, int64_t now_ns)
{
    int64_t round_trip_ns = (int64_t)round_trip_us * 1000;
    if (timing->adaptive == 0)
        return;
    um_census_on_status(&timing->census, receiver_id, round_trip_ns, now_ns);
    if (account != NULL)
        account->round_trip_ns = round_trip_ns;
    note_first_sm(timing);
}

int64_t um_source_timing_ignore_ns(const um_source_timing *timing, const um_receiver_account *account)
{
    if (!(timing->adaptive & UM_ADAPTIVE_IGNORE))
        return timing->ignore_ceiling_ns;
    int64_t crossing_ns = account != NULL ? account->round_trip_ns : 0;
    if (crossing_ns == 0)
        crossing_ns = um_census_longest_ns(&timing->census);
    if (crossing_ns == 0)
        crossing_ns = CROSSING_ASSUMED_NS;
    return um_between_ns(crossing_ns, CROSSING_FLOOR_NS, timing->ignore_ceiling_ns);
}

/* ---- group reports ---- */

static bool has_changed_much(int64_t a, int64_t b)
{
    return a >= 2 * b || b >= 2 * a;
}

static int64_t report_due_ns(const um_source_timing *timing, uint32_t next_sqn)
{
    uint32_t receivers = um_census_receivers(&timing->census);
    int64_t round_trip_ns = um_census_longest_ns(&timing->census);
    if (receivers == 0)
        return UM_NEVER_NS;
    if (timing->reported_receivers == 0)
        return timing->census.first_ns + CENSUS_SETTLES_NS;
    if (receivers >= 2 * timing->reported_receivers)
        return timing->reported_ns + GROWTH_GAP_NS;
    bool is_news = timing->census.has_newcomer || has_changed_much(receivers, timing->reported_receivers) ||
                   (round_trip_ns > 0 && has_changed_much(round_trip_ns, timing->reported_round_trip_ns));
    if (is_news)
        return timing->reported_ns + REPORT_GAP_NS;
    return next_sqn != timing->reported_sqn ? timing->reported_ns + REPEAT_NS : UM_NEVER_NS;
}

bool um_source_timing_is_report_due(um_source_timing *timing, uint32_t next_sqn, int64_t now_ns, int64_t *due_ns)
{
    *due_ns = UM_NEVER_NS;
    if (!(timing->adaptive & UM_ADAPTIVE_REPORTS))
        return false;
    um_census_advance(&timing->census, now_ns);
    *due_ns = report_due_ns(timing, next_sqn);
    if (now_ns < *due_ns)
        return false;
    *due_ns = now_ns + RETRY_NS;
    return true;
}

void um_source_timing_on_reported(um_source_timing *timing, uint32_t receivers, int64_t round_trip_ns,
                                  uint32_t next_sqn, int64_t now_ns)
{
    timing->reported_receivers = receivers;
    timing->reported_round_trip_ns = round_trip_ns;
    timing->reported_ns = now_ns;
    timing->reported_sqn = next_sqn;
    timing->census.has_newcomer = false;
}
