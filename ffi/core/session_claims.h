/* What session messages alone say of a session: that numbers up to a lead were sent. Anybody can forge one, so it is a
 * claim, which data has to bear out.
 *
 *     [.. received or lost ..)[ .. claimed .. )
 *                        data_next          next_sqn of the session
 *
 * A claim reaches no further than `reach` beyond what was received as data: of a lead beyond that one number is NAKed,
 * and believed when it comes. Within it the numbers are NAKed as any that are lost, and real data with them fills them
 * in. When they are given up, the claim is withdrawn: next_sqn goes back to data_next, so that data which comes later
 * is accepted, and nothing up to the withdrawn end is claimed again before there is new data. A claim never moves the
 * trail past what was received.
 *
 * Threads: the session's. Memory: the session's. Complexity: constant. Errors: none.
 */
#ifndef UM_CORE_SESSION_CLAIMS_H
#define UM_CORE_SESSION_CLAIMS_H

#include "core/base.h"

typedef struct um_session_claims {
    uint32_t data_next;     /* 1 + the highest sqn received as data */
    uint32_t reach;         /* how many numbers can be claimed */
    uint32_t withdrawn_end; /* valid while has_withdrawn */
    bool has_withdrawn;
    bool has_failed;   /* one of the numbers claimed was given up */
    uint32_t far_lead; /* of the last session message that told of too much to claim */
    int64_t probe_ns;  /* when it is worth a NAK */
} um_session_claims;

static inline void um_session_claims_init(um_session_claims *claims, uint32_t loss_capacity)
{
    enum { LOSS_MAP_PARTS = 16 };
    *claims = (um_session_claims){.reach = loss_capacity / LOSS_MAP_PARTS > 0 ? loss_capacity / LOSS_MAP_PARTS : 1};
}

/* Data up to before `next` was received, the newest there is. */
static inline void um_session_claims_on_data(um_session_claims *claims, uint32_t next)
{
    claims->data_next = next;
    claims->has_withdrawn = false;
}

/* Whether a lost number is known from a session message only. */
static inline bool um_session_claims_has(const um_session_claims *claims, uint32_t sqn)
{
    return !um_serial_before(sqn, claims->data_next);
}

/* Whether a lead is further off than can be claimed: data near it has to show it. */
static inline bool um_session_claims_exceed(const um_session_claims *claims, uint32_t lead)
{
    return um_serial_diff(lead, claims->data_next) >= (int32_t)claims->reach;
}

/* A lead too far off to be claimed: whether to NAK it now. What was only overtaken has an initial back-off to arrive.
 */
static inline bool um_session_claims_probe(um_session_claims *claims, uint32_t lead, int64_t now_ns,
                                           int64_t initial_backoff_ns, int64_t backoff_ns)
{
    bool is_new = lead != claims->far_lead || claims->probe_ns == 0;
    bool is_due = !is_new && now_ns >= claims->probe_ns;
    claims->far_lead = lead;
    if (is_new)
        claims->probe_ns = now_ns + initial_backoff_ns;
    else if (is_due)
        claims->probe_ns = now_ns + backoff_ns;
    return is_due;
}

/* The end of what a session message with this lead claims; next_sqn when that is nothing new. */
static inline uint32_t um_session_claims_end(const um_session_claims *claims, uint32_t next_sqn, uint32_t lead)
{
    uint32_t end = lead + 1;
    if (claims->has_withdrawn && !um_serial_before(claims->withdrawn_end, end))
        return next_sqn;
    return um_serial_before(next_sqn, end) ? end : next_sqn;
}

/* The part of a trail that a session message may tell. */
static inline uint32_t um_session_claims_trail(const um_session_claims *claims, uint32_t trail)
{
    return um_serial_before(claims->data_next, trail) ? claims->data_next : trail;
}

/* What was claimed up to before next_sqn is no longer believed. */
static inline void um_session_claims_withdraw(um_session_claims *claims, uint32_t next_sqn)
{
    claims->withdrawn_end = next_sqn;
    claims->has_withdrawn = true;
    claims->has_failed = false;
}

#endif
