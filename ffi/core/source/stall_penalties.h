/* Addresses whose clients held a receiver-paced LBT-TCP session until they were closed for it, so that one that
 * connects again does not hold it again at once. The first penalty is as long as the stall timeout, each further one
 * twice as long, up to 64 of them. An address without a stall for as long as its last penalty, after that, begins anew.
 * All clients of an address have its penalty: a port costs nothing.
 *
 * Threads: the holder of the sender lock. Memory: the owner's; when every place is taken, the penalty that ends first
 * makes space. Complexity: linear in the places. Errors: none.
 */
#ifndef UM_CORE_STALL_PENALTIES_H
#define UM_CORE_STALL_PENALTIES_H

#include "core/foundation/base.h"

enum { UM_STALL_PENALTIES_MAX = 64, UM_STALL_DOUBLINGS_MAX = 6 };

typedef struct um_stall_penalty {
    uint32_t ip;
    int64_t length_ns; /* 0: a free place */
    int64_t until_ns;
} um_stall_penalty;

typedef struct um_stall_penalties {
    um_stall_penalty places[UM_STALL_PENALTIES_MAX];
} um_stall_penalties;

/* A client of this address has stalled. Returns until when its clients are not waited for. */
int64_t um_stall_penalties_add(um_stall_penalties *penalties, uint32_t ip, int64_t stall_timeout_ns, int64_t now_ns);

/* Until when clients of this address are not waited for; 0: they are. */
int64_t um_stall_penalties_until_ns(const um_stall_penalties *penalties, uint32_t ip, int64_t now_ns);

#endif
