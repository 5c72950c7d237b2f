/* Waits for the core's small lock, which is held for microseconds. A waiter yields the CPU: spinning could keep the
 * holder off a CPU that both share. */
#ifndef UM_OS_LOCK_H
#define UM_OS_LOCK_H

#include <sched.h>

#include "core/foundation/base.h"

static inline void um_lock_acquire(um_lock *lock)
{
    while (!um_lock_try(lock))
        sched_yield();
}

#endif
