/* Estimates how many receivers a source session has, and the longest and shortest round trip they report. Counts their
 * status messages in intervals of a second, or longer if receivers report less often because the session is idle.
 *
 *     current interval:     a bit for each receiver id seen, their number, the round trips
 *     interval before:      the same, complete
 *     estimate:             the larger number, the longer and the shorter round trip
 *
 * The number is that of set bits, so it is a lower bound: 943 for 1000 receivers, 5800 for 10 000, at most
 * UM_CENSUS_BITS. The spread of NAKs, for which it is used, needs only its logarithm. Forged status messages cannot
 * raise it above UM_CENSUS_BITS.
 *
 * Pure: no clock. Threads: the owner's lock. Memory: inside. Complexity: constant; the end of an interval is linear in
 * the bits. Errors: none.
 */
#ifndef UM_CORE_RECEIVER_CENSUS_H
#define UM_CORE_RECEIVER_CENSUS_H

#include "core/foundation/base.h"

enum {
    UM_CENSUS_BITS = 8192,
    UM_CENSUS_INTERVAL_NS = 1000000000,
};

typedef struct um_census_interval {
    uint64_t seen[UM_CENSUS_BITS / 64];
    uint32_t count;
    int64_t longest_ns;  /* 0: none reported */
    int64_t shortest_ns; /* 0: none reported */
    int64_t length_ns;   /* the longest time between status messages of a receiver; 0: below a second */
} um_census_interval;

typedef struct um_receiver_census {
    um_census_interval current;
    um_census_interval before;
    int64_t began_ns;  /* start of the current interval */
    int64_t first_ns;  /* when the first receiver was seen; UM_NEVER_NS: none was */
    bool has_newcomer; /* a receiver was seen that was in neither interval; the owner clears it */
} um_receiver_census;

void um_census_init(um_receiver_census *census, int64_t now_ns);

/* Counts a status message; round_trip_ns 0: not measured. */
void um_census_on_status(um_receiver_census *census, uint64_t receiver_id, int64_t round_trip_ns, int64_t now_ns);

/* Makes the current interval at least this long: the time until a receiver reports again. */
void um_census_note_interval(um_receiver_census *census, int64_t interval_ns);

/* Starts a new interval if the current one is over. */
void um_census_advance(um_receiver_census *census, int64_t now_ns);

uint32_t um_census_receivers(const um_receiver_census *census);
/* Round trips; 0 if none is known. */
int64_t um_census_longest_ns(const um_receiver_census *census);
int64_t um_census_shortest_ns(const um_receiver_census *census);

#endif
