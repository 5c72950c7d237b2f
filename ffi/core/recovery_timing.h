/* When a receiver session NAKs: the timers as configured (fixed), or measured (adaptive) with the configured values as
 * ceilings.
 *
 *     no sample yet ---- NAKed once, retransmission ----> measured: smoothed round trip and its variance
 *         |                                                  |   ^
 *         |                                 NAKed again: held|   |a sample lets go
 *         |                                                  v   |
 *         +----------- NAKed again ------------------------> held: no back-off below what that one took
 *
 * A datagram that arrives late without the retransmission flag was reordered, not lost: it widens the initial back-off,
 * and every sample narrows that again. Whatever the samples (they may be forged), no timer falls below
 * UM_RECOVERY_FLOOR_NS or rises above its configured value; one configured below the floor is as configured.
 *
 * Pure: no clock, no memory of its own. Threads: the owner's lock. Complexity: constant.
 */
#ifndef UM_CORE_RECOVERY_TIMING_H
#define UM_CORE_RECOVERY_TIMING_H

#include "core/base.h"

enum {
    UM_REPAIRED_SLOTS = 64,                    /* repaired datagrams whose original may still come; a power of two */
    UM_RECOVERY_FLOOR_NS = 100000,             /* the shortest nominal timer that is measured */
    UM_RECOVERY_FIRST_ROUND_TRIP_NS = 2000000, /* assumed before the first sample */
};

typedef struct um_repaired {
    bool used;
    uint32_t sqn;
    int64_t detected_ns;
} um_repaired;

typedef struct um_recovery_timing {
    bool adaptive;
    int64_t initial_ceiling_ns;
    int64_t backoff_ceiling_ns;
    bool measured;         /* there has been a sample */
    int64_t round_trip_ns; /* smoothed: first NAK to retransmission (RFC 6298) */
    int64_t variance_ns;
    int64_t reordering_ns;                   /* how late datagrams arrive that were not lost */
    int64_t held_ns;                         /* no back-off below this until the next sample (Karn) */
    um_repaired repaired[UM_REPAIRED_SLOTS]; /* by sqn modulo their number */
} um_recovery_timing;

void um_recovery_timing_init(um_recovery_timing *timing, bool adaptive, int64_t initial_ceiling_ns,
                             int64_t backoff_ceiling_ns);

/* A retransmission came waited_ns after the first of naks_sent NAKs. Only an answer to one NAK is a sample (Karn). */
void um_recovery_timing_on_retransmission(um_recovery_timing *timing, uint32_t naks_sent, int64_t waited_ns);
/* What was missing came by itself, waited_ns after it was missed. */
void um_recovery_timing_on_reordered(um_recovery_timing *timing, int64_t waited_ns);
/* Sqn, missed at detected_ns, was repaired; a datagram with it that comes by itself later was reordered beyond the
 * timer.
 */
void um_recovery_timing_on_repaired(um_recovery_timing *timing, uint32_t sqn, int64_t detected_ns);
void um_recovery_timing_on_duplicate(um_recovery_timing *timing, uint32_t sqn, int64_t now_ns);

/* The nominal timers, to be drawn from half to one and a half. The initial one is at least one round trip, so that
 * receivers with the same loss spread over one; half of the other is at least a round trip and four variances. */
int64_t um_recovery_timing_initial_ns(const um_recovery_timing *timing);
int64_t um_recovery_timing_backoff_ns(const um_recovery_timing *timing);

#endif
