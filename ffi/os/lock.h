/* Waiting for the core's small lock, whose holders keep it for microseconds: a waiter gives way to them, since one that
 * spins could keep the holder off the processor they share. */
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
