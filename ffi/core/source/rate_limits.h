/* The data limiter and the retransmission limiter of a context, shared by its source sessions of one transport (UX-1,
 * UX-4).
 *
 * Threads: any; a lock is held for a few instructions, and not touched if no limit is set. Memory: the context's.
 * Complexity: constant. Errors: none; a refusal is a result.
 */

#ifndef UM_CORE_RATE_LIMITS_H
#define UM_CORE_RATE_LIMITS_H

#include "core/foundation/rate_limiter.h"

typedef struct um_rate_limits {
    um_lock lock;
    um_rate_limiter data;       /* new data and, unless is_new_only, retransmissions */
    um_rate_limiter retransmit; /* retransmissions only */
    bool is_new_only;           /* LBT-RU: retransmissions do not count against the data limit */
    atomic_bool is_blocked;     /* the data limiter holds a datagram back: publishers wait */
} um_rate_limits;

/* Takes bytes from the data limiter and, for a retransmission, from the retransmit limiter. Returns false if one of
 * them does not allow it now. */
bool um_rate_limits_take(um_rate_limits *limits, uint32_t bytes, bool is_retransmission, int64_t now_ns);

/* Returns the bytes taken for a datagram that the link did not accept. */
void um_rate_limits_return(um_rate_limits *limits, uint32_t bytes, bool is_retransmission);

/* When the current slice of a limiter ends, if it may hold a sender back and has not ended; else UM_NEVER_NS. */
int64_t um_rate_limits_next_ns(um_rate_limits *limits, int64_t now_ns);

/* Unblocks the publishers once the slice in which the data limiter held a datagram back is over (UX-1). */
void um_rate_limits_tick(um_rate_limits *limits, int64_t now_ns);

#endif
