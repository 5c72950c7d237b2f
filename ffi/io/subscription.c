#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/delivery/delivery_fetch.h"
#include "io/subscription_private.h"
#include "os/clock.h"
#include "os/memory.h"

enum { ENDED_MIN = 16 }; /* entries of the first list of ended sources */

/* Lets the application use the source's number again. Without memory the number stays in use. */
static void note_ended_source(const um_delivery *delivery)
{
    um_subscription *subscription = (um_subscription *)delivery->receiver; /* its first member */
    if (subscription->ended_count == subscription->ended_capacity) {
        uint32_t capacity = subscription->ended_capacity == 0 ? ENDED_MIN : 2 * subscription->ended_capacity;
        um_ended_source *grown = realloc(subscription->ended, capacity * sizeof *grown);
        if (grown == NULL)
            return;
        subscription->ended = grown;
        subscription->ended_capacity = capacity;
    }
    bool has_rows = delivery->has_rows || delivery->is_begun;
    uint64_t rows = um_event_queue_appended_rows(subscription->queue);
    subscription->ended[subscription->ended_count++] =
        (um_ended_source){delivery->source, has_rows ? rows : 0, delivery->has_resume, delivery->resume_sqn};
}

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
        subscription->link = &receiving->subscriptions;
        if (subscription->next != NULL)
            subscription->next->link = &subscription->next;
        receiving->subscriptions = subscription;
        receiving->on_unmapped = note_ended_source;
    }
    um_reactor_unlock(reactor);
    if (!is_open)
        free(subscription);
    *opened = is_open ? subscription : NULL;
    return is_open ? 0 : UM_CLOSED;
}

static void begin_retained(um_delivery *delivery, um_mapping *mapping)
{
    delivery->request_port = mapping->request_port;
    if (mapping->is_relayed) {
        delivery->has_resume = false;
        return;
    }
    if (mapping->has_start && (!delivery->has_resume || um_serial_before(delivery->resume_sqn, mapping->start_sqn))) {
        delivery->has_resume = true;
        delivery->resume_sqn = mapping->start_sqn;
    }
    mapping->is_resumed = delivery->has_resume;
    mapping->is_fetched = mapping->joins_late || mapping->is_resumed;
    if (!mapping->is_fetched)
        return;
    um_delivery_fetch_begin(delivery, mapping->caching_proximity);
    mapping->resume_sqn = delivery->fetch.resume_sqn;
    mapping->epoch = delivery->fetch.epoch;
}

static int map(um_receiving *receiving, um_mapping *mapping)
{
    um_subscription *subscription = mapping->subscription;
    int result =
        um_receiving_map(receiving, &subscription->core, mapping->session, mapping->topic_index, mapping->source);
    if (result != 0)
        return result;
    um_delivery *delivery = um_subscription_find_mapped(subscription, &mapping->session->id, mapping->topic_index);
    if (mapping->is_retaining) {
        begin_retained(delivery, mapping);
    } else if (mapping->has_start) {
        delivery->has_resume = true;
        delivery->resume_sqn = mapping->start_sqn;
    }
    return 0;
}

void um_subscriptions_map(um_mapping *mappings, uint32_t count)
{
    if (count == 0)
        return;
    um_receiving *receiving = mappings[0].subscription->receiving;
    bool is_changed = false;
    for (uint32_t i = 0; i < count; i++) {
        assert(mappings[i].subscription->receiving == receiving);
        mappings[i].is_fetched = false;
        mappings[i].result = UM_CLOSED;
        mappings[i].is_entered = um_gate_enter(&mappings[i].subscription->gate);
    }
    um_reactor_lock(receiving->reactor);
    for (uint32_t i = 0; i < count; i++) {
        if (mappings[i].is_entered)
            mappings[i].result = map(receiving, &mappings[i]);
        is_changed |= mappings[i].result == 0;
    }
    if (is_changed)
        um_node_wake(&receiving->node, um_clock_ns());
    um_reactor_unlock(receiving->reactor);
    um_reactor_wake_by(receiving->reactor, 0);
    for (uint32_t i = 0; i < count; i++)
        if (mappings[i].is_entered)
            um_gate_leave(&mappings[i].subscription->gate);
}

uint32_t um_subscription_take_ended(um_subscription *subscription, um_ended_source *out, uint32_t max)
{
    um_reactor *reactor = subscription->receiving->reactor;
    if (atomic_load_explicit(&subscription->ended_count, memory_order_relaxed) == 0)
        return 0; /* without the lock, for which a caller may wait as long as one pass of the loop */
    um_reactor_lock(reactor);
    uint32_t count = subscription->ended_count < max ? subscription->ended_count : max;
    subscription->ended_count -= count;
    if (count > 0)
        memcpy(out, subscription->ended + subscription->ended_count, count * sizeof *out);
    um_reactor_unlock(reactor);
    return count;
}

uint32_t um_subscription_connected(um_subscription *subscription)
{
    um_reactor *reactor = subscription->receiving->reactor;
    um_reactor_lock(reactor);
    uint32_t count = um_receiving_connected(&subscription->core, um_clock_ns());
    um_reactor_unlock(reactor);
    return count;
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
    *subscription->link = subscription->next;
    if (subscription->next != NULL)
        subscription->next->link = subscription->link;
    um_reactor_unlock(receiving->reactor);
    um_reactor_wake_by(receiving->reactor, 0);
}

void um_subscription_free(um_subscription *subscription)
{
    free(subscription->ended);
    free(subscription);
}
