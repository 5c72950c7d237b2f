/* Adaptive lingering: whether who waits for events goes on polling for a moment before it sleeps. Waking a thread costs
 * more than a short wait, so polling pays while what comes, comes soon; it is waste when nothing does. Polling is tried
 * once an event has come within twice the limit, and goes on as long as events come within the limit; each time none
 * did, twice as many short waits have to be seen before the next attempt, so a stream that is always just too slow
 * costs one attempt in UM_LINGER_EARN_MAX. (Hypervisors poll on behalf of halted processors by such a rule.)
 *
 * One thread. Times are those of its loop, in nanoseconds.
 */
#ifndef UM_CORE_LINGER_H
#define UM_CORE_LINGER_H

#include "core/base.h"

enum { UM_LINGER_EARN_MAX = 1024 };

typedef struct um_linger {
    int64_t limit_ns; /* longest polling for one event; 0: never */
    int64_t last_event_ns;
    uint32_t short_waits; /* in a row */
    uint32_t earn;        /* how many it takes */
} um_linger;

static inline void um_linger_init(um_linger *linger, int64_t limit_ns)
{
    *linger = (um_linger){.limit_ns = limit_ns, .last_event_ns = INT64_MIN / 2, .earn = 1};
}

/* Until when to poll for the next event; in the past: sleep at once. */
static inline int64_t um_linger_until_ns(const um_linger *linger)
{
    bool lingers = linger->limit_ns > 0 && linger->short_waits >= linger->earn;
    return lingers ? linger->last_event_ns + linger->limit_ns : INT64_MIN;
}

static inline void um_linger_on_event(um_linger *linger, int64_t now_ns)
{
    int64_t waited_ns = now_ns - linger->last_event_ns;
    bool lingered = linger->short_waits >= linger->earn;
    linger->last_event_ns = now_ns;
    if (lingered && waited_ns <= linger->limit_ns) {
        linger->earn = 1;
    } else if (lingered) {
        linger->short_waits = 0;
        linger->earn = linger->earn < UM_LINGER_EARN_MAX ? 2 * linger->earn : UM_LINGER_EARN_MAX;
    } else {
        linger->short_waits = waited_ns <= 2 * linger->limit_ns ? linger->short_waits + 1 : 0;
    }
}

#endif
