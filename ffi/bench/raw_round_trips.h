/* The client of a raw ping-pong over any link: it reaches the server, warms up and measures. */
#ifndef UM_BENCH_RAW_ROUND_TRIPS_H
#define UM_BENCH_RAW_ROUND_TRIPS_H

#include "core/foundation/base.h"

typedef struct um_raw_ping_result {
    uint64_t sample_count;
    uint64_t lost_count;
    uint64_t stale_count; /* replies to round trips already given up */
    int64_t elapsed_ns;
    int64_t cpu_ns; /* of the calling thread */
} um_raw_ping_result;

/* The end of a client. round_trip sends the counter and waits for its return, at most UM_RAW_REACH_ATTEMPT_NS while
 * reaching the server and timeout_ns of the config afterwards. Returns 1 if it returned, 0 if not, or a negative errno.
 */
typedef struct um_raw_client {
    void *end;
    int (*round_trip)(void *end, bool is_reaching, uint64_t counter, um_raw_ping_result *result);
} um_raw_client;

#define UM_RAW_REACH_ATTEMPT_NS 20000000LL

/* Does the same as um_raw_ping, but does not end the server. */
int um_raw_make_round_trips(const um_raw_client *client, uint64_t warmup_count, uint64_t sample_count,
                            int64_t duration_ns, uint64_t *samples_ns, um_raw_ping_result *result);

#endif
