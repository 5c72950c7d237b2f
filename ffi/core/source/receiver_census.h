/* How many receivers a source session has, and the longest and the shortest round trip that they report: counted from
 * their status messages, of which each sends one every 200 ms, in intervals of a second.
 *
 *     this interval:        a bit for each receiver id seen, their number, the round trips
 *     the one before:       the same, complete
 *     what is believed:     the larger number, the longer and the shorter round trip
 *
 * The number is that of set bits, so it is a lower bound: 943 of 1000 receivers, 5800 of 10 000, at most
 * UM_CENSUS_BITS. What it is for (the spread of NAKs) needs its logarithm. Forged status messages raise it no further.
 *
 * Pure: no clock. Threads: the owner's lock. Memory: inside. Complexity: constant, an interval's end is linear in the
 * bits. Errors: none.
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
    int64_t longest_ns; /* 0: none reported */
    int64_t shortest_ns;
} um_census_interval;

typedef struct um_receiver_census {
    um_census_interval current;
    um_census_interval before;
    int64_t began_ns;  /* the current interval */
    int64_t first_ns;  /* the first receiver was seen; UM_NEVER_NS: none was */
    bool has_newcomer; /* a receiver that was in neither interval; the owner clears it */
} um_receiver_census;

void um_census_init(um_receiver_census *census, int64_t now_ns);

/* A status message; round_trip_ns 0: not measured. */
void um_census_on_status(um_receiver_census *census, uint64_t receiver_id, int64_t round_trip_ns, int64_t now_ns);

/* Ends intervals that are over. */
void um_census_advance(um_receiver_census *census, int64_t now_ns);

uint32_t um_census_receivers(const um_receiver_census *census);
/* 0: none is known. */
int64_t um_census_longest_ns(const um_receiver_census *census);
int64_t um_census_shortest_ns(const um_receiver_census *census);

#endif
