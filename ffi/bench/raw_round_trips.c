#include "bench/raw_round_trips.h"

#include <errno.h>

#include "bench/raw_socket.h"

/* Timeout for reaching the server, and maximum warm-up time: on a busy machine, a round trip between two polling ends
 * takes as long as a time slice of the scheduler. */
#define REACH_NS (3 * UM_NS_PER_SECOND)
#define WARMUP_NS (1 * UM_NS_PER_SECOND)

/* A group just joined may not be known to every switch on the path, and datagrams are lost until it is: that is not a
 * property of the round trip. Ends with the first reply. */
static int reach_server(const um_raw_client *client, um_raw_ping_result *result)
{
    int64_t deadline_ns = um_raw_clock_ns(CLOCK_MONOTONIC) + REACH_NS;
    uint64_t counter = UINT64_MAX - 1; /* no other round trip has these */
    int outcome = 0;
    while (outcome == 0 && um_raw_clock_ns(CLOCK_MONOTONIC) < deadline_ns)
        outcome = client->round_trip(client->end, true, counter--, result);
    if (outcome == 0)
        return -ETIMEDOUT;
    return outcome < 0 ? outcome : 0;
}

/* Ends after `count` round trips or duration_ns, but not before the first; samples_ns may be NULL. */
static int make_some(const um_raw_client *client, uint64_t first_counter, uint64_t count, int64_t duration_ns,
                     uint64_t *samples_ns, um_raw_ping_result *result)
{
    int64_t sent_ns = um_raw_clock_ns(CLOCK_MONOTONIC), deadline_ns = sent_ns + duration_ns;
    for (uint64_t i = 0; i < count && (i == 0 || sent_ns < deadline_ns); i++) {
        int outcome = client->round_trip(client->end, false, first_counter + i, result);
        if (outcome < 0)
            return outcome;
        int64_t now_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
        if (outcome == 0)
            result->lost_count++;
        else if (samples_ns)
            samples_ns[result->sample_count++] = (uint64_t)(now_ns - sent_ns);
        sent_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
    }
    return 0;
}

int um_raw_make_round_trips(const um_raw_client *client, uint64_t warmup_count, uint64_t sample_count,
                            int64_t duration_ns, uint64_t *samples_ns, um_raw_ping_result *result)
{
    memset(result, 0, sizeof *result);
    int error = reach_server(client, result);
    if (error == 0)
        error = make_some(client, 0, warmup_count, WARMUP_NS, NULL, result);
    if (error != 0)
        return error;
    int64_t start_ns = um_raw_clock_ns(CLOCK_MONOTONIC);
    int64_t cpu_start_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    error = make_some(client, warmup_count, sample_count, duration_ns, samples_ns, result);
    result->elapsed_ns = um_raw_clock_ns(CLOCK_MONOTONIC) - start_ns;
    result->cpu_ns = um_raw_clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns;
    return error;
}
