/* One-way latency of the messages of a receiving session whose publisher stamps them (send_timestamps).
 *
 * Threads: the context lock. Memory: the session's. Complexity: constant. Errors: none. Inline because it runs once per
 * message.
 */
#ifndef UM_CORE_LATENCY_H
#define UM_CORE_LATENCY_H

#include "core/receiver/receiver_state.h"

/* Records the latency of a message from two clocks, the publisher's and ours. If ours is behind by more than the
 * transit time, the difference is negative and only counted. */
static inline void um_latency_note(um_receiver_session *session, int64_t sent_ns, int64_t received_ns)
{
    um_receiver_transport_counters *counters = &session->counters;
    if (UM_UNLIKELY(received_ns < sent_ns)) {
        UM_COUNT(counters->latency_negative, 1);
        return;
    }
    uint64_t latency_ns = (uint64_t)received_ns - (uint64_t)sent_ns;
    counters->latency_min = latency_ns < counters->latency_min ? latency_ns : counters->latency_min;
    counters->latency_max = latency_ns > counters->latency_max ? latency_ns : counters->latency_max;
    counters->latency_mean = um_moving_mean(counters->latency_mean, latency_ns, session->latency_count == 0);
    UM_COUNT(session->latency_buckets[um_time_bucket(latency_ns, UM_LATENCY_OCTAVE_FIRST, UM_LATENCY_BUCKETS)], 1);
    UM_COUNT(session->latency_count, 1);
}

#endif
