/* Adaptive spin: whether a thread that waits for events polls for a moment before it sleeps. Waking a thread costs
 * more than a short wait, so polling pays while events follow closely, and wastes the processor when they do not. The
 * thread polls once an event has come within twice the limit, and goes on as long as events come within the limit.
 * Each time none did, twice as many short waits have to be seen before the next attempt, so that a stream that is
 * always just too slow costs one attempt in UM_SPIN_EARN_MAX. (KVM's halt polling grows and shrinks by such a rule.)
 *
 * One thread. Times are those of its loop, in nanoseconds.
 */
#ifndef UM_CORE_ADAPTIVE_SPIN_H
#define UM_CORE_ADAPTIVE_SPIN_H

#include "core/foundation/base.h"

enum { UM_SPIN_EARN_MAX = 1024 };

typedef struct um_adaptive_spin {
    int64_t limit_ns; /* longest polling for one event; 0: never */
    int64_t last_event_ns;
    uint32_t short_waits; /* in a row */
    uint32_t earn;        /* how many it takes */
} um_adaptive_spin;

static inline void um_adaptive_spin_init(um_adaptive_spin *spin, int64_t limit_ns)
{
    *spin = (um_adaptive_spin){.limit_ns = limit_ns, .last_event_ns = INT64_MIN / 2, .earn = 1};
}

/* Until when to poll for the next event; in the past: sleep at once. */
static inline int64_t um_adaptive_spin_until_ns(const um_adaptive_spin *spin)
{
    bool spins = spin->limit_ns > 0 && spin->short_waits >= spin->earn;
    return spins ? spin->last_event_ns + spin->limit_ns : INT64_MIN;
}

static inline void um_adaptive_spin_on_event(um_adaptive_spin *spin, int64_t now_ns)
{
    int64_t waited_ns = now_ns - spin->last_event_ns;
    bool was_spinning = spin->short_waits >= spin->earn;
    spin->last_event_ns = now_ns;
    if (was_spinning && waited_ns <= spin->limit_ns) {
        spin->earn = 1;
    } else if (was_spinning) {
        spin->short_waits = 0;
        spin->earn = spin->earn < UM_SPIN_EARN_MAX ? 2 * spin->earn : UM_SPIN_EARN_MAX;
    } else {
        spin->short_waits = waited_ns <= 2 * spin->limit_ns ? spin->short_waits + 1 : 0;
    }
}

#endif
