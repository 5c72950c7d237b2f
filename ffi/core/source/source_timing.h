/* The timers of a source session that are measured, with the configured values as ceilings, and what it tells its
 * receivers for theirs (recovery_timing.h).
 *
 *     status messages ---> census: receivers, longest round trip ----> group reports (DATA datagrams, group_report.h)
 *            |                 \-> shortest round trip --------------> first session message
 *            +-----------> account: this receiver's round trip -----> ignore interval for its NAKs
 *
 * A NAK that arrives sooner after a retransmission than the round trip of its receiver may have crossed it: it is
 * ignored. One that arrives later comes of a retransmission that was lost. A receiver that reports a short round trip
 * is served more retransmissions of its share of the repair budget, and nobody else's. A receiver that reports a long
 * one, and a session whose receivers report none, get the configured values at worst.
 *
 * The first session message after a burst comes when the nearest receiver could have NAKed the burst and been answered,
 * whatever a far or a busy one reports; the interval then doubles as ever (UM-68), so that after some more it is as
 * configured. A receiver that reports too short a round trip causes a few session messages after each burst.
 *
 * Threads: the holder of the sender lock, except um_source_timing_first_sm_ns. Memory: the session's. Errors: a group
 * report that has no space in the log is tried again.
 */
#ifndef UM_CORE_SOURCE_TIMING_H
#define UM_CORE_SOURCE_TIMING_H

#include "core/source/receiver_accounting.h"
#include "core/source/receiver_census.h"

/* What of a source is measured. */
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
    uint32_t told_receivers; /* 0: nothing was told yet */
    int64_t told_round_trip_ns;
    int64_t told_ns;
    uint32_t told_sqn; /* the next sqn after the report */
    _Atomic int64_t first_sm_ns;
} um_source_timing;

void um_source_timing_init(um_source_timing *timing, uint32_t adaptive, int64_t ignore_ns, int64_t first_sm_ns,
                           int64_t first_sm_floor_ns, int64_t now_ns);

/* A status message of a receiver; round_trip_us 0: it has not measured one. account NULL: there is no space for one. */
void um_source_timing_on_status(um_source_timing *timing, um_receiver_account *account, uint64_t receiver_id,
                                uint32_t round_trip_us, int64_t now_ns);

/* For how long NAKs of a receiver are refused after a retransmission. account NULL: an unknown receiver's. */
int64_t um_source_timing_ignore_ns(const um_source_timing *timing, const um_receiver_account *account);

/* Idle time before the first session message. Any thread. */
static inline int64_t um_source_timing_first_sm_ns(const um_source_timing *timing)
{
    return atomic_load_explicit(&timing->first_sm_ns, memory_order_relaxed);
}

/* Whether receivers are to be told now; next_sqn: of the session. *due_ns: when to look again. */
bool um_source_timing_is_report_due(um_source_timing *timing, uint32_t next_sqn, int64_t now_ns, int64_t *due_ns);
/* They were, in the datagram before next_sqn. */
void um_source_timing_on_told(um_source_timing *timing, uint32_t receivers, int64_t round_trip_ns, uint32_t next_sqn,
                              int64_t now_ns);

#endif
