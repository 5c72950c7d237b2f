/* Adaptive spin: decides if a thread that waits for events polls for a moment before it sleeps. Waking a thread costs
 * more than a short wait, so polling pays while events follow closely, and wastes the processor if they do not. The
 * thread starts to poll once an event has arrived within twice the limit, and polls as long as events arrive within the
 * limit. After each poll without an event, twice as many consecutive short waits are required before the next attempt,
 * so a stream that is always slightly too slow costs one attempt in UM_SPIN_EARN_MAX. (KVM's halt polling has a similar
 * rule.)
 *
 * One thread. Times are those of its loop, in nanoseconds.
 */
#ifndef UM_CORE_ADAPTIVE_SPIN_H
#define UM_CORE_ADAPTIVE_SPIN_H

#include "core/foundation/base.h"

enum { UM_SPIN_EARN_MAX = 1024 };

typedef struct um_adaptive_spin {
    int64_t limit_ns; /* maximum polling for one event; 0: never poll */
    int64_t last_event_ns;
    uint32_t short_waits; /* consecutive */
    uint32_t earn;        /* short waits required before polling */
} um_adaptive_spin;

static inline void um_adaptive_spin_init(um_adaptive_spin *spin, int64_t limit_ns)
{
    *spin = (um_adaptive_spin){.limit_ns = limit_ns, .last_event_ns = INT64_MIN / 2, .earn = 1};
}

/* When to stop polling for the next event; a time in the past: sleep at once. */
static inline int64_t um_adaptive_spin_until_ns(const um_adaptive_spin *spin)
{
    bool is_spinning = spin->limit_ns > 0 && spin->short_waits >= spin->earn;
    return is_spinning ? spin->last_event_ns + spin->limit_ns : INT64_MIN;
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
