/* Penalties for addresses whose clients held a receiver-paced LBT-TCP session until they were closed, so that a client
 * that connects again does not hold it again at once. The first penalty lasts as long as the stall timeout, each
 * further one twice as long as the previous one, up to 64 stall timeouts. If an address does not stall for the length
 * of its last penalty after that has ended, its next one counts as the first again. All clients of an address share its
 * penalty, because a new port costs nothing.
 *
 * Threads: the holder of the sender lock. Memory: the owner's; if every place is taken, the penalty that ends first
 * is replaced. Complexity: linear in the places. Errors: none.
 */
#ifndef UM_CORE_STALL_PENALTIES_H
#define UM_CORE_STALL_PENALTIES_H

#include "core/foundation/address.h"

enum { UM_STALL_PENALTIES_MAX = 64, UM_STALL_DOUBLINGS_MAX = 6 };

typedef struct um_stall_penalty {
    um_ip ip;
    int64_t length_ns; /* 0: the place is free */
    int64_t until_ns;
} um_stall_penalty;

typedef struct um_stall_penalties {
    um_stall_penalty places[UM_STALL_PENALTIES_MAX];
} um_stall_penalties;

/* Notes that a client of this address has stalled. Returns when its penalty ends. */
int64_t um_stall_penalties_add(um_stall_penalties *penalties, um_ip ip, int64_t stall_timeout_ns, int64_t now_ns);

/* When the penalty of this address ends; 0: it has none. Clients with a penalty do not hold the session. */
int64_t um_stall_penalties_until_ns(const um_stall_penalties *penalties, um_ip ip, int64_t now_ns);

#endif
