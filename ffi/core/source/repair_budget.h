/* The share of the retransmit rate that one receiver may use, so that forged NAKs do not use up what honest receivers
 * need. A member gets at most a quarter of the budget, and an equal part if several members NAK; all non-members
 * together get a tenth. NAKs over the share are dropped without an NCF: an NCF goes to the whole group, so a flood of
 * NAKs could suppress the NAKs of honest receivers. An honest receiver sends its NAK again.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: constant. Errors: none.
 */
#ifndef UM_CORE_REPAIR_BUDGET_H
#define UM_CORE_REPAIR_BUDGET_H

#include "core/source/receiver_accounting.h"

typedef struct um_repair_budget {
    uint64_t bits_per_second; /* 0: no budget, everything is served */
    um_repair_bucket nonmembers;
} um_repair_budget;

/* Takes the bytes of one retransmission from a receiver's share; account NULL: a non-member without an account. Returns
 * false if the share is used up. */
bool um_repair_budget_take(um_repair_budget *budget, um_receiver_account *account, uint32_t active_members,
                           uint32_t bytes, int64_t now_ns);

#endif
