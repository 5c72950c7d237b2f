#include "core/source/rate_limits.h"

static bool is_limited(const um_rate_limits *limits, bool is_retransmission)
{
    return limits->data.bits_per_second != 0 || (is_retransmission && limits->retransmit.bits_per_second != 0);
}

static void lock_limits(um_rate_limits *limits)
{
    while (!um_lock_try(&limits->lock))
        ;
}

bool um_rate_limits_take(um_rate_limits *limits, uint32_t bytes, bool is_retransmission, int64_t now_ns)
{
    if (!is_limited(limits, is_retransmission))
        return true;
    lock_limits(limits);
    bool is_data = !is_retransmission || !limits->is_new_only;
    um_rate_limiter_advance(&limits->data, now_ns, is_data ? bytes : 0);
    if (is_retransmission)
        um_rate_limiter_advance(&limits->retransmit, now_ns, bytes);
    bool is_allowed = (!is_data || um_rate_limiter_can_take(&limits->data, bytes)) &&
                      (!is_retransmission || um_rate_limiter_can_take(&limits->retransmit, bytes));
    if (is_allowed) {
        if (is_data)
            um_rate_limiter_take(&limits->data, bytes);
        if (is_retransmission)
            um_rate_limiter_take(&limits->retransmit, bytes);
    }
    um_lock_release(&limits->lock);
    return is_allowed;
}

void um_rate_limits_return(um_rate_limits *limits, uint32_t bytes, bool is_retransmission)
{
    if (!is_limited(limits, is_retransmission))
        return;
    lock_limits(limits);
    if (!is_retransmission || !limits->is_new_only)
        um_rate_limiter_return(&limits->data, bytes);
    if (is_retransmission)
        um_rate_limiter_return(&limits->retransmit, bytes);
    um_lock_release(&limits->lock);
}

int64_t um_rate_limits_next_ns(um_rate_limits *limits, int64_t now_ns)
{
    if (!is_limited(limits, true))
        return UM_NEVER_NS;
    lock_limits(limits);
    int64_t next_ns = UM_NEVER_NS;
    if (limits->data.bits_per_second && limits->data.slice_end_ns > now_ns)
        next_ns = limits->data.slice_end_ns;
    if (limits->retransmit.bits_per_second && limits->retransmit.slice_end_ns > now_ns &&
        limits->retransmit.slice_end_ns < next_ns)
        next_ns = limits->retransmit.slice_end_ns;
    um_lock_release(&limits->lock);
    return next_ns;
}

void um_rate_limits_tick(um_rate_limits *limits, int64_t now_ns)
{
    if (!atomic_load_explicit(&limits->is_blocked, memory_order_relaxed))
        return;
    lock_limits(limits);
    if (now_ns >= limits->data.slice_end_ns)
        atomic_store_explicit(&limits->is_blocked, false, memory_order_relaxed);
    um_lock_release(&limits->lock);
}
