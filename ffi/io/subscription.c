#include <stdlib.h>

#include "io/subscription_private.h"
#include "os/clock.h"
#include "os/memory.h"

int um_subscription_open(um_event_queue *queue, const um_receiver_config *config, um_subscription **opened)
{
    um_receiving *receiving = queue->queues->receiving;
    um_reactor *reactor = receiving->reactor;
    *opened = NULL;
    reactor->error_step = "receiver";
    um_subscription *subscription = um_allocate(sizeof *subscription);
    if (subscription == NULL)
        return -ENOMEM;
    subscription->receiving = receiving;
    subscription->queue = queue;
    subscription->core.config = *config;
    subscription->core.queue = &queue->core;
    subscription->core.store = &receiving->node.store;
    subscription->core.context_counters = &receiving->node.counters;
    subscription->core.has_begun_otr = &receiving->node.has_begun_otr;
    um_receiver_counters_reset(&subscription->core.counters);
    um_reactor_lock(reactor);
    bool is_open = !um_gate_is_shut(&queue->gate);
    if (is_open) {
        subscription->next = receiving->subscriptions;
        receiving->subscriptions = subscription;
    }
    um_reactor_unlock(reactor);
    if (!is_open)
        free(subscription);
    *opened = is_open ? subscription : NULL;
    return is_open ? 0 : UM_CLOSED;
}

int um_subscription_map(um_subscription *subscription, const um_receiver_session_config *session, uint32_t topic_index,
                        uint32_t source)
{
    um_receiving *receiving = subscription->receiving;
    if (!um_gate_enter(&subscription->gate))
        return UM_CLOSED;
    um_reactor_lock(receiving->reactor);
    int result = um_receiving_map(receiving, &subscription->core, session, topic_index, source);
    if (result == 0)
        um_node_wake(&receiving->node, um_clock_ns());
    um_reactor_unlock(receiving->reactor);
    um_reactor_wake_by(receiving->reactor, 0);
    um_gate_leave(&subscription->gate);
    return result;
}

void um_subscription_set_nak_cutoff(um_subscription *subscription, bool is_cut_off)
{
    if (!um_gate_enter(&subscription->gate))
        return;
    um_receiving_set_nak_cutoff(subscription->receiving, &subscription->core, is_cut_off);
    um_gate_leave(&subscription->gate);
}

void um_subscription_close(um_subscription *subscription)
{
    um_receiving *receiving = subscription->receiving;
    um_gate_shut(&subscription->gate);
    um_gate_await_empty(&subscription->gate);
    um_reactor_lock(receiving->reactor);
    um_receiving_drop(receiving, &subscription->core);
    um_subscription **link = &receiving->subscriptions;
    while (*link != subscription)
        link = &(*link)->next;
    *link = subscription->next;
    um_reactor_unlock(receiving->reactor);
}

void um_subscription_free(um_subscription *subscription)
{
    free(subscription);
}
