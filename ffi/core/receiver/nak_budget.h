/* Limits the sequence numbers that a receiver session NAKs per second, so that losses invented by a forged datagram do
 * not cause a storm of NAKs. Unused budget of up to a quarter of a second is saved for bursts.
 *
 * Threads: the context lock. Memory: the session's. Complexity: constant. Errors: none; a postponed NAK is sent as soon
 * as the budget allows.
 */
#ifndef UM_CORE_NAK_BUDGET_H
#define UM_CORE_NAK_BUDGET_H

#include "core/foundation/base.h"

typedef struct um_nak_budget {
    uint32_t per_second; /* 0: no limit */
    uint32_t credit;     /* sequence numbers that may be NAKed now */
    int64_t filled_ns;
    int64_t limited_ns;       /* when NAKs were last postponed; INT64_MIN: never */
    int64_t limited_since_ns; /* since when NAKs have been postponed without a pause of a second */
} um_nak_budget;

enum { UM_NAK_BUDGET_SECOND_NS = 1000000000 };

static inline uint32_t um_nak_budget_burst(uint32_t per_second)
{
    enum { BURSTS_A_SECOND = 4 };
    return per_second / BURSTS_A_SECOND > 0 ? per_second / BURSTS_A_SECOND : 1;
}

static inline void um_nak_budget_init(um_nak_budget *budget, uint32_t per_second, int64_t now_ns)
{
    *budget = (um_nak_budget){per_second, um_nak_budget_burst(per_second), now_ns, INT64_MIN, INT64_MIN};
}

static inline void um_nak_budget_fill(um_nak_budget *budget, int64_t now_ns)
{
    uint32_t burst = um_nak_budget_burst(budget->per_second);
    if (budget->credit >= burst || budget->per_second == 0) {
        budget->filled_ns = now_ns;
        return;
    }
    uint64_t elapsed_ns = (uint64_t)(now_ns - budget->filled_ns);
    elapsed_ns = elapsed_ns < UM_NAK_BUDGET_SECOND_NS ? elapsed_ns : UM_NAK_BUDGET_SECOND_NS;
    uint64_t earned = elapsed_ns * budget->per_second / UM_NAK_BUDGET_SECOND_NS;
    if (earned == 0)
        return;
    budget->credit = earned > burst - budget->credit ? burst : budget->credit + (uint32_t)earned;
    budget->filled_ns += (int64_t)(earned * UM_NAK_BUDGET_SECOND_NS / budget->per_second);
    if (now_ns - budget->filled_ns >= UM_NAK_BUDGET_SECOND_NS)
        budget->filled_ns = now_ns;
}

/* Takes one NAK from the budget. Returns false if it is used up. */
static inline bool um_nak_budget_take(um_nak_budget *budget, int64_t now_ns)
{
    if (budget->per_second == 0)
        return true;
    if (budget->credit == 0) {
        if (budget->limited_ns == INT64_MIN || now_ns - budget->limited_ns > UM_NAK_BUDGET_SECOND_NS)
            budget->limited_since_ns = now_ns;
        budget->limited_ns = now_ns;
        return false;
    }
    budget->credit--;
    return true;
}

#endif
