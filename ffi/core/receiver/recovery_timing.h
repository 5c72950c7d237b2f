/* When a receiver session NAKs: each timer as configured (fixed), or measured (adaptive) with the configured value as
 * its ceiling.
 *
 *                        one NAK, its retransmission: a sample
 *       +---------+ ------------------------------------------> +----------+ ---+ sample: smoothed round trip and
 *       | assumed |                                             | measured |    | variance (RFC 6298)
 *       +---------+ ---+                                   +--> +----------+ <--+
 *            ^         | several NAKs, a retransmission    |         |
 *            |         v                                   | sample  | several NAKs, a retransmission
 *            |     +------+ -------------------------------+         |
 *            |     | held | <----------------------------------------+
 *            |     +------+
 *            +---- group report: until its first sample, a receiver uses the round trip that the source reports
 *
 * Held: until a sample, no back-off is shorter than the time that retransmission took (Karn: a retransmission after
 * several NAKs or after an NCF is no sample, because it is unknown which NAK it answers). A datagram that arrives late
 * without the retransmission flag was reordered, not lost: the initial back-off allows for the latest of them until up
 * to 32 samples later.
 *
 * Spread: receivers with the same loss draw their back-offs so that a few NAK and their retransmission suppresses the
 * others: round trip x ln(1 + u e others), u uniform in [0, 1). The density rises by e within a round trip, so on
 * average 1 + e NAKs are sent for any number of receivers, the first after about a round trip. A receiver without
 * others does not wait. other_losers.h estimates the others that have the same loss, from the number of receivers that
 * the source reports, UM_RECOVERY_RECEIVERS_ASSUMED until then.
 *
 * Samples and reports may be forged. Whatever they are, a repeated NAK waits at least UM_RECOVERY_FLOOR_NS, twice as
 * long each time, and no timer exceeds the longest drawn with its configured value (3/2 of it). A receiver that sees
 * retransmissions it did not NAK assumes other receivers, whatever the report.
 *
 * Threads: the owner's lock. Memory: the caller's. Complexity: constant. Errors: none. No clock is read.
 */
#ifndef UM_CORE_RECOVERY_TIMING_H
#define UM_CORE_RECOVERY_TIMING_H

#include "core/foundation/random.h"
#include "core/foundation/recovery_limits.h"
#include "core/receiver/other_losers.h"

/* Timers of a receiver that are measured. */
enum um_adaptive_timer {
    UM_ADAPTIVE_INITIAL = 1,
    UM_ADAPTIVE_BACKOFF = 2,
    UM_ADAPTIVE_SUPPRESS = 4,
};

enum {
    UM_SHORTEST_SAMPLES = 64,
    UM_REORDERING_SAMPLES = 16,
    UM_REORDERED_BY_MIN = 3, /* datagrams that may overtake another before any was measured */
    UM_REORDERED_BY_MAX = 64,
    UM_REPAIRED_SLOTS = 64, /* retransmitted datagrams whose original may still arrive; a power of two */
    UM_RECOVERY_RECEIVERS_ASSUMED = 4,
    UM_RECOVERY_RECEIVERS_MAX = 65535,
};

typedef struct um_repaired {
    bool is_used;
    uint32_t sqn;
    int64_t detected_ns;
    int64_t round_trip_ns; /* estimates before this retransmission became a sample */
    int64_t shortest_ns;
} um_repaired;

typedef struct um_recovery_timing {
    uint32_t adaptive; /* um_adaptive_timer */
    int64_t initial_ceiling_ns;
    int64_t backoff_ceiling_ns;
    int64_t suppress_ceiling_ns;
    uint64_t sample_count;
    int64_t round_trip_ns; /* smoothed: first NAK to retransmission */
    int64_t variance_ns;
    int64_t held_ns;
    int64_t shortest_ns[2];   /* shortest sample of the current and of the last UM_SHORTEST_SAMPLES; 0: none */
    int64_t reordering_ns[2]; /* how late reordered datagrams arrived, in two intervals of UM_REORDERING_SAMPLES */
    um_other_losers others;
    uint32_t reordered_by; /* datagrams that overtook a reordered one */
    uint32_t receivers;    /* as the source reported; 0: no report yet */
    bool is_answered;      /* the round trip is that of a request for a session message, until there is a sample */
    uint32_t others_seen;  /* above 0: other receivers NAK, too; reduced by each sample */
    um_repaired repaired[UM_REPAIRED_SLOTS]; /* by sqn modulo their number */
} um_recovery_timing;

void um_recovery_timing_init(um_recovery_timing *timing, uint32_t adaptive, int64_t initial_ceiling_ns,
                             int64_t backoff_ceiling_ns, int64_t suppress_ceiling_ns);

/* A lost datagram was retransmitted, waited_ns after the first of naks_sent NAKs and after ncfs_seen NCFs. */
void um_recovery_timing_on_retransmission(um_recovery_timing *timing, uint32_t naks_sent, uint32_t ncfs_seen,
                                          int64_t waited_ns);
/* An NCF arrived for a datagram that is not missing: if it was retransmitted, another receiver has NAKed it, too. If
 * losses are common, the retransmission probably was the response to the other's NAK, sent earlier: it is no sample. */
void um_recovery_timing_on_late_ncf(um_recovery_timing *timing, uint32_t sqn);
/* A missing datagram arrived without a retransmission, waited_ns after it was missed. */
void um_recovery_timing_on_reordered(um_recovery_timing *timing, int64_t waited_ns);
/* That many datagrams overtook it. */
void um_recovery_timing_on_reordered_by(um_recovery_timing *timing, uint32_t datagrams);
/* Datagram `sqn`, missed at detected_ns, was retransmitted. If the original arrives later, it was reordered by more
 * than the timer. Called before um_recovery_timing_on_retransmission. */
void um_recovery_timing_on_repaired(um_recovery_timing *timing, uint32_t sqn, int64_t detected_ns);
/* A datagram arrived that was not missing. */
void um_recovery_timing_on_duplicate(um_recovery_timing *timing, uint32_t sqn, bool retransmission, int64_t now_ns);
/* The source has reported the number of receivers and their longest round trip; 0: unknown. */
void um_recovery_timing_on_group_report(um_recovery_timing *timing, uint32_t receivers, int64_t round_trip_ns);

/* The source has answered a request for a session message. */
void um_recovery_timing_on_answer(um_recovery_timing *timing, int64_t waited_ns);

/* Draw a timer. naks_sent includes the NAK being sent, ncfs_seen the NCF being handled. */
int64_t um_recovery_timing_draw_initial_ns(const um_recovery_timing *timing, um_random *random);
int64_t um_recovery_timing_draw_backoff_ns(const um_recovery_timing *timing, um_random *random, uint32_t naks_sent);
int64_t um_recovery_timing_draw_suppress_ns(const um_recovery_timing *timing, um_random *random, uint32_t ncfs_seen);

/* The timers in force: the configured values or, if measured, the shortest back-off and suppress interval that can be
 * drawn now, and the longest initial back-off. */
int64_t um_recovery_timing_initial_ns(const um_recovery_timing *timing);
int64_t um_recovery_timing_backoff_ns(const um_recovery_timing *timing);
int64_t um_recovery_timing_suppress_ns(const um_recovery_timing *timing);

/* The reordering that a path is allowed before a retransmission counts as lost: in datagrams, and in time, at least a
 * quarter of the shortest recent round trip. */
uint32_t um_recovery_timing_reordered_by(const um_recovery_timing *timing);
int64_t um_recovery_timing_reordering_ns(const um_recovery_timing *timing);

/* Returns the shortest recent sample of the round trip; 0: none. */
int64_t um_recovery_timing_shortest_ns(const um_recovery_timing *timing);

/* Wait of a NAK after an NCF has reported that its datagram was retransmitted: allows for reordering, and arrives at
 * the source, a round trip after the NCF was sent, when its ignore interval, the crossing time last reported, is over.
 */
int64_t um_recovery_timing_refused_ns(const um_recovery_timing *timing, int64_t reported_crossing_ns);

/* Returns how late reordered datagrams have arrived recently. */
int64_t um_recovery_timing_lateness_ns(const um_recovery_timing *timing);

/* Minimum interval between two NAK datagrams, so that NAKs share one. */
int64_t um_recovery_timing_gather_ns(const um_recovery_timing *timing);

/* Returns how long a NAK of this receiver may cross a retransmission, as reported to the source: the round trip plus
 * two variances. 0: not measured. */
int64_t um_recovery_timing_crossing_ns(const um_recovery_timing *timing);

/* Returns the number of receivers that the spread assumes. */
uint32_t um_recovery_timing_receivers(const um_recovery_timing *timing);

#endif
