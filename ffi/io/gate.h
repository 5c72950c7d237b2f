/* A gate for an object that one thread may close while others call it: calls enter and leave; closing shuts the gate
 * and waits until the last call has left. The object's memory must outlive the calls that find the gate shut, so its
 * closer frees it only once no thread can reach it.
 *
 * Threads: all functions from any thread; um_gate_shut once, and never from inside the gate.
 */
#ifndef UM_IO_GATE_H
#define UM_IO_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef struct um_gate {
    _Atomic uint32_t calls;
    atomic_bool is_shut;
} um_gate;

static inline bool um_gate_is_shut(const um_gate *gate)
{
    return atomic_load_explicit(&gate->is_shut, memory_order_seq_cst);
}

static inline void um_gate_leave(um_gate *gate)
{
    atomic_fetch_sub_explicit(&gate->calls, 1, memory_order_release);
}

/* Returns true if the call may proceed; it must leave when done. Because it enters before it checks, either the call
 * sees the gate shut, or the closer sees the call. */
static inline bool um_gate_enter(um_gate *gate)
{
    atomic_fetch_add_explicit(&gate->calls, 1, memory_order_seq_cst);
    if (!um_gate_is_shut(gate))
        return true;
    um_gate_leave(gate);
    return false;
}

/* Stops later calls from entering. */
static inline void um_gate_shut(um_gate *gate)
{
    atomic_store_explicit(&gate->is_shut, true, memory_order_seq_cst);
}

/* Returns true if all calls have left a shut gate; otherwise waits a moment and returns false. */
static inline bool um_gate_try_empty(const um_gate *gate)
{
    struct timespec wait = {0, 50000};
    if (atomic_load_explicit(&gate->calls, memory_order_acquire) == 0)
        return true;
    nanosleep(&wait, NULL);
    return false;
}

/* Waits until all calls have left a shut gate. The caller has ended what they wait for. */
static inline void um_gate_await_empty(const um_gate *gate)
{
    while (!um_gate_try_empty(gate))
        ;
}

#endif
