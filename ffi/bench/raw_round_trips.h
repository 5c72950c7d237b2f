/* What a client of a raw ping-pong does whatever carries its datagrams: reach the server, warm up, measure. */
#ifndef UM_BENCH_RAW_ROUND_TRIPS_H
#define UM_BENCH_RAW_ROUND_TRIPS_H

#include "core/foundation/base.h"

typedef struct um_raw_ping_result {
    uint64_t sample_count;
    uint64_t lost_count;
    uint64_t stale_count; /* replies to a round trip already given up */
    int64_t elapsed_ns;
    int64_t cpu_ns; /* of the calling thread */
} um_raw_ping_result;

/* The client's end. round_trip sends the counter and waits for it to come back, at most UM_RAW_REACH_ATTEMPT_NS while
 * the server is being reached and the config's timeout_ns afterwards. Returns 1 when it came, 0 when it did not, or a
 * negative errno. */
typedef struct um_raw_client {
    void *end;
    int (*round_trip)(void *end, bool is_reaching, uint64_t counter, um_raw_ping_result *result);
} um_raw_client;

#define UM_RAW_REACH_ATTEMPT_NS 20000000LL

/* um_raw_ping without telling the server of the end. */
int um_raw_make_round_trips(const um_raw_client *client, uint64_t warmup_count, uint64_t sample_count,
                            int64_t duration_ns, uint64_t *samples_ns, um_raw_ping_result *result);

#endif
