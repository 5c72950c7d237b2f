/* The part of the retransmit rate that one requester may cause, so that a NAK datagram from anywhere does not use up
 * what honest receivers need. Of the budget a member gets at most a quarter, and an equal part where several members
 * NAK; all strangers together get a tenth. What is over that is not served, and no NCF is sent for it: an NCF goes to
 * the whole group, and a flood of NAKs could silence the NAKs of honest receivers with it. An honest receiver NAKs
 * again.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: constant. Errors: none.
 */
#ifndef UM_CORE_REPAIR_BUDGET_H
#define UM_CORE_REPAIR_BUDGET_H

#include "core/source/receiver_accounting.h"

typedef struct um_repair_budget {
    uint64_t bits_per_second; /* 0: no budget, everything is served */
    um_repair_bucket strangers;
} um_repair_budget;

/* Takes the bytes of one retransmission from a requester's share; account NULL: a stranger without an account. */
bool um_repair_budget_take(um_repair_budget *budget, um_receiver_account *account, uint32_t active_members,
                           uint32_t bytes, int64_t now_ns);

#endif
