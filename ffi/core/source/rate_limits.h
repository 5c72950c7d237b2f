/* The data limiter and the retransmission limiter of a context, shared by all its source sessions of a transport (UX-1,
 * UX-4).
 *
 * Threads: any; a lock of their own is held for a few instructions, and not touched where no limit is set. Memory: the
 * context's. Complexity: constant. Errors: none; a refusal is a result.
 */

#ifndef UM_CORE_RATE_LIMITS_H
#define UM_CORE_RATE_LIMITS_H

#include "core/foundation/rate_limiter.h"

typedef struct um_rate_limits {
    um_lock lock;
    um_rate_limiter data;       /* new data and, unless is_new_only, retransmissions */
    um_rate_limiter retransmit; /* retransmissions */
    bool is_new_only;           /* LBT-RU */
    atomic_bool is_blocked;     /* the data limiter holds a datagram back: publishers wait */
} um_rate_limits;

/* Takes bytes from the data limiter and, for a retransmission, from the retransmit limiter too; false when one
 * does not allow it now. */
bool um_rate_limits_take(um_rate_limits *limits, uint32_t bytes, bool is_retransmission, int64_t now_ns);

/* Gives back what was taken for a datagram that the link did not take. */
void um_rate_limits_return(um_rate_limits *limits, uint32_t bytes, bool is_retransmission);

/* When the current slice of a limiter ends that may hold a sender back; one that is over holds none back. */
int64_t um_rate_limits_next_ns(um_rate_limits *limits, int64_t now_ns);

/* Unblocks the publishers when the slice in which the data limiter held a datagram back is over (UX-1). */
void um_rate_limits_tick(um_rate_limits *limits, int64_t now_ns);

#endif
