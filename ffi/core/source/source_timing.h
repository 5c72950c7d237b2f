/* The measured timers of a source session, with the configured values as maxima, and the group reports that receivers
 * use for theirs (recovery_timing.h).
 *
 *     status messages ---> census: receivers, longest round trip ----> group reports (DATA datagrams, group_report.h)
 *            |                 \-> shortest round trip --------------> first session message
 *            +-----------> account: this receiver's round trip -----> ignore interval for its NAKs
 *
 * A NAK that arrives after a retransmission within the round trip of its receiver may have crossed it: it is ignored. A
 * later one means that the retransmission was lost. A receiver that reports too short a round trip is served more
 * retransmissions, but only from its own share of the repair budget. The configured values apply at worst: if a
 * receiver reports a long round trip, or none does.
 *
 * The first session message after a burst is sent when the nearest receiver could have NAKed the burst and been
 * answered, whatever distant or busy receivers report; the interval then doubles as usual (UM-68), so after a few
 * messages it is the configured one. A receiver that reports too short a round trip causes a few session messages after
 * each burst.
 *
 * Threads: the holder of the sender lock, except um_source_timing_first_sm_ns. Memory: the session's. Errors: a group
 * report for which the log has no space is tried again.
 */
#ifndef UM_CORE_SOURCE_TIMING_H
#define UM_CORE_SOURCE_TIMING_H

#include "core/source/receiver_accounting.h"
#include "core/source/receiver_census.h"

/* The measured timers of a source. */
enum um_adaptive_source_timer {
    UM_ADAPTIVE_IGNORE = 1,
    UM_ADAPTIVE_SM = 2,
    UM_ADAPTIVE_REPORTS = 4, /* group reports are sent */
};

typedef struct um_source_timing {
    uint32_t adaptive; /* um_adaptive_source_timer */
    int64_t ignore_ceiling_ns;
    int64_t first_sm_ceiling_ns;
    int64_t first_sm_floor_ns;
    um_receiver_census census;
    uint32_t reported_receivers; /* receivers in the last group report; 0: none was sent */
    int64_t reported_round_trip_ns;
    int64_t reported_ns;
    uint32_t reported_sqn; /* the next sqn after the report */
    _Atomic int64_t first_sm_ns;
} um_source_timing;

void um_source_timing_init(um_source_timing *timing, uint32_t adaptive, int64_t ignore_ns, int64_t first_sm_ns,
                           int64_t first_sm_floor_ns, int64_t now_ns);

/* Notes a status message; round_trip_us 0: not measured. account NULL: the table of accounts is full. */
void um_source_timing_on_status(um_source_timing *timing, um_receiver_account *account, uint64_t receiver_id,
                                uint32_t round_trip_us, int64_t now_ns);

/* How long NAKs of a receiver are ignored after a retransmission. account NULL: an unknown receiver. */
int64_t um_source_timing_ignore_ns(const um_source_timing *timing, const um_receiver_account *account);

/* Idle time before the first session message. Any thread. */
static inline int64_t um_source_timing_first_sm_ns(const um_source_timing *timing)
{
    return atomic_load_explicit(&timing->first_sm_ns, memory_order_relaxed);
}

/* Returns true if a group report must be sent now; next_sqn: of the session. *due_ns: when to check again. */
bool um_source_timing_is_report_due(um_source_timing *timing, uint32_t next_sqn, int64_t now_ns, int64_t *due_ns);
/* Notes that a report was sent, in the datagram before next_sqn. */
void um_source_timing_on_reported(um_source_timing *timing, uint32_t receivers, int64_t round_trip_ns,
                                  uint32_t next_sqn, int64_t now_ns);

#endif
