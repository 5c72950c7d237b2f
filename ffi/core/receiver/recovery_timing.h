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
 *            +---- told: until its first sample a receiver takes the round trip that the source tells
 *
 * Held: no back-off is shorter than what that retransmission took, until a sample (Karn: a retransmission after several
 * NAKs, or after an NCF, is no sample, for nobody knows which NAK it answers). A datagram that arrives late without the
 * retransmission flag was reordered, not lost: it widens the initial back-off, and every sample narrows that again.
 *
 * Spread: receivers with the same loss draw their back-offs so that a few NAK and their retransmission suppresses the
 * others: round trip x ln(1 + u e (receivers - 1)), u uniform in [0, 1). The density rises by e within a round trip, so
 * 1 + e NAKs are sent in the mean however many receivers there are, and the first after about a round trip. One
 * receiver alone does not wait. Until the source has told the number, UM_RECOVERY_RECEIVERS_ASSUMED.
 *
 * Whatever the samples and what is told (both may be forged), a repeated NAK waits UM_RECOVERY_FLOOR_NS at least and
 * twice as long each time, and no timer is longer than its configured value can be drawn (3/2). A receiver that sees
 * retransmissions it did not NAK for knows that it is not alone, whatever it is told.
 *
 * Pure: no clock, no memory of its own. Threads: the owner's lock. Complexity: constant.
 */
#ifndef UM_CORE_RECOVERY_TIMING_H
#define UM_CORE_RECOVERY_TIMING_H

#include "core/foundation/random.h"
#include "core/foundation/recovery_limits.h"

/* Timers of a receiver that are measured. */
enum um_adaptive_timer {
    UM_ADAPTIVE_INITIAL = 1,
    UM_ADAPTIVE_BACKOFF = 2,
    UM_ADAPTIVE_SUPPRESS = 4,
};

enum {
    UM_REPAIRED_SLOTS = 64, /* repaired datagrams whose original may still come; a power of two */
    UM_RECOVERY_RECEIVERS_ASSUMED = 16,
    UM_RECOVERY_RECEIVERS_MAX = 65535,
};

typedef struct um_repaired {
    bool is_used;
    uint32_t sqn;
    int64_t detected_ns;
} um_repaired;

typedef struct um_recovery_timing {
    uint32_t adaptive; /* um_adaptive_timer */
    int64_t initial_ceiling_ns;
    int64_t backoff_ceiling_ns;
    int64_t suppress_ceiling_ns;
    uint64_t sample_count;
    int64_t round_trip_ns; /* smoothed: first NAK to retransmission */
    int64_t variance_ns;
    int64_t reordering_ns; /* how late datagrams arrive that were not lost */
    int64_t held_ns;
    uint32_t receivers;                      /* as told; 0: not yet */
    uint32_t others_seen;                    /* runs down with each sample; more than 0: others NAK, too */
    um_repaired repaired[UM_REPAIRED_SLOTS]; /* by sqn modulo their number */
} um_recovery_timing;

void um_recovery_timing_init(um_recovery_timing *timing, uint32_t adaptive, int64_t initial_ceiling_ns,
                             int64_t backoff_ceiling_ns, int64_t suppress_ceiling_ns);

/* What was missing came again, waited_ns after the first of naks_sent NAKs and after ncfs_seen NCFs. */
void um_recovery_timing_on_retransmission(um_recovery_timing *timing, uint32_t naks_sent, uint32_t ncfs_seen,
                                          int64_t waited_ns);
/* What was missing came by itself, waited_ns after it was missed. */
void um_recovery_timing_on_reordered(um_recovery_timing *timing, int64_t waited_ns);
/* Sqn, missed at detected_ns, was repaired: a datagram with it that comes by itself later was reordered beyond the
 * timer. */
void um_recovery_timing_on_repaired(um_recovery_timing *timing, uint32_t sqn, int64_t detected_ns);
/* A datagram came that was not missing. */
void um_recovery_timing_on_duplicate(um_recovery_timing *timing, uint32_t sqn, bool retransmission, int64_t now_ns);
/* The source tells how many receivers it knows and their longest round trip; 0: it knows none. */
void um_recovery_timing_on_group_report(um_recovery_timing *timing, uint32_t receivers, int64_t round_trip_ns);

/* Draws a timer. naks_sent: with the one that is being sent; ncfs_seen: with the one that is being handled. */
int64_t um_recovery_timing_draw_initial_ns(const um_recovery_timing *timing, um_random *random);
int64_t um_recovery_timing_draw_backoff_ns(const um_recovery_timing *timing, um_random *random, uint32_t naks_sent);
int64_t um_recovery_timing_draw_suppress_ns(const um_recovery_timing *timing, um_random *random, uint32_t ncfs_seen);

/* The timers in force: the configured ones or, measured, the least that is drawn now for a back-off and a suppress
 * interval, and the most for the initial back-off. */
int64_t um_recovery_timing_initial_ns(const um_recovery_timing *timing);
int64_t um_recovery_timing_backoff_ns(const um_recovery_timing *timing);
int64_t um_recovery_timing_suppress_ns(const um_recovery_timing *timing);

/* For how long a NAK of this receiver may have crossed a retransmission, which is what the source needs to know: the
 * round trip and two variances. 0: not measured. */
int64_t um_recovery_timing_crossing_ns(const um_recovery_timing *timing);

/* Receivers that the spread counts on. */
uint32_t um_recovery_timing_receivers(const um_recovery_timing *timing);

#endif
