#include "io/late_joining.h"

#include "core/delivery/delivery_fetch.h"
#include "io/publication_private.h"
#include "io/subscription_private.h"
#include "os/clock.h"
#include "os/lock.h"
#include "os/memory.h"

/* ---- receivers ---- */

/* Stores the first sqn that the controller has not delivered, if it has a position in the stream. */
static bool position_of(const um_delivery *delivery, uint32_t *next_sqn)
{
    bool is_begun = delivery->state == UM_DELIVERY_RUNNING || delivery->state == UM_DELIVERY_ENDING;
    if (delivery->fetch.state == UM_DELIVERY_FETCH_AWAITS_RANGE && delivery->fetch.kind == UM_DELIVERY_FETCH_RESUMED)
        *next_sqn = delivery->fetch.resume_sqn;
    else
        *next_sqn = is_begun ? delivery->next_sqn : delivery->resume_sqn;
    return is_begun || delivery->has_resume;
}

int um_subscription_unmap(um_subscription *subscription, const um_session_id *id, uint32_t topic_index,
                          bool *has_position, uint32_t *next_sqn)
{
    um_receiving *receiving = subscription->receiving;
    if (!um_gate_enter(&subscription->gate))
        return UM_CLOSED;
    um_reactor_lock(receiving->reactor);
    um_delivery *delivery = um_subscription_find_mapped(subscription, id, topic_index);
    if (delivery != NULL) {
        *has_position = position_of(delivery, next_sqn);
        um_receiving_unmap(receiving, delivery);
    }
    um_reactor_unlock(receiving->reactor);
    um_reactor_wake_by(receiving->reactor, 0);
    um_gate_leave(&subscription->gate);
    return delivery == NULL ? -ENOENT : 0;
}

int um_subscription_note_stored(um_subscription *subscription, const um_session_id *id, uint32_t topic_index,
                                uint32_t high_sqn)
{
    um_receiving *receiving = subscription->receiving;
    int result = -ENOENT;
    if (!um_gate_enter(&subscription->gate))
        return UM_CLOSED;
    um_reactor_lock(receiving->reactor);
    um_delivery *delivery = um_subscription_find_mapped(subscription, id, topic_index);
    if (delivery != NULL && !delivery->session->has_ended && delivery->state == UM_DELIVERY_RUNNING) {
        if (delivery->fetch.state == UM_DELIVERY_FETCH_RUNNING)
            um_delivery_fetch_to(delivery, high_sqn + 1);
        um_delivery_fetch_note_missing(delivery, high_sqn, um_clock_ns());
        um_node_wake(&receiving->node, um_clock_ns());
        result = 0;
    }
    um_reactor_unlock(receiving->reactor);
    um_reactor_wake_by(receiving->reactor, 0);
    um_gate_leave(&subscription->gate);
    return result;
}

int um_subscription_fetch(um_subscription *subscription, um_fetch *fetch, const char *received, uint32_t length,
                          char *out, uint32_t capacity)
{
    um_receiving *receiving = subscription->receiving;
    fetch->consumed = fetch->written = 0;
    if (!um_gate_enter(&subscription->gate))
        return UM_CLOSED;
    um_reactor_lock(receiving->reactor);
    um_receiver_session *session;
    um_delivery *delivery = um_fetch_find(fetch, &receiving->node, &subscription->core, &session);
    int result = -ENOENT;
    bool wakes = false;
    if (delivery != NULL) {
        int64_t now_ns = um_clock_ns();
        delivery->fetch.received_ns = um_clock_wall_ns();
        result = um_fetch_step(fetch, session, delivery, (const uint8_t *)received, length, (uint8_t *)out, capacity,
                               now_ns);
        wakes = fetch->wakes_node;
        if (wakes)
            um_node_wake(&receiving->node, now_ns);
    }
    um_event_queues_notify(subscription->queue->queues);
    um_receiving_report_recoveries(receiving);
    um_reactor_unlock(receiving->reactor);
    if (wakes)
        um_reactor_wake_by(receiving->reactor, 0);
    um_gate_leave(&subscription->gate);
    return result;
}

int um_subscription_attend_fetch(um_subscription *subscription, um_fetch *fetch)
{
    um_receiving *receiving = subscription->receiving;
    if (!um_gate_enter(&subscription->gate))
        return UM_CLOSED;
    um_reactor_lock(receiving->reactor);
    um_receiver_session *session;
    um_delivery *delivery = um_fetch_find(fetch, &receiving->node, &subscription->core, &session);
    int64_t now_ns = um_clock_ns();
    int action = delivery == NULL ? -ENOENT : um_fetch_attend(fetch, session, delivery, now_ns);
    bool wakes = delivery != NULL && fetch->wakes_node;
    if (wakes) {
        um_event_queues_notify(subscription->queue->queues);
        um_receiving_report_recoveries(receiving);
        um_node_wake(&receiving->node, now_ns);
    }
    um_reactor_unlock(receiving->reactor);
    if (wakes)
        um_reactor_wake_by(receiving->reactor, 0);
    um_gate_leave(&subscription->gate);
    return action;
}

uint32_t um_attend_fetches(um_attended_fetch *fetches, uint32_t count, uint32_t *due)
{
    uint32_t due_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        um_attended_fetch *one = &fetches[i];
        one->action = um_subscription_attend_fetch(one->subscription, one->fetch);
        if (one->action != UM_FETCH_WAIT)
            due[due_count++] = i;
    }
    return due_count;
}

/* ---- sources ---- */

int um_publication_retain(um_publication *publication, const um_retention_config *config)
{
    size_t head_bytes = um_align_up(sizeof(um_retention), UM_CACHE_LINE_BYTES);
    size_t bytes = head_bytes + um_retention_footprint(config);
    if (publication->retention != NULL)
        return -EBUSY;
    um_retention *retention = um_map(bytes);
    if (retention == NULL)
        return -ENOMEM;
    um_source_session *session = &publication->session->core;
    um_lock_acquire(&session->sender_lock);
    um_retention_init(retention, (uint8_t *)retention + head_bytes, config, session, publication->core.topic_index,
                      (uint32_t)atomic_load(&publication->core.next_sqn));
    publication->retention = retention;
    publication->retention_bytes = bytes;
    um_lock_release(&session->sender_lock);
    return 0;
}

int um_publication_retained(um_publication *publication, const um_range_bounds *bounds, uint32_t *low, uint32_t *high)
{
    if (!um_gate_enter(&publication->gate))
        return UM_CLOSED;
    if (publication->retention != NULL) {
        um_lock_acquire(&publication->session->core.sender_lock);
        um_retention_range(publication->retention, bounds, um_clock_ns(), low, high);
        um_lock_release(&publication->session->core.sender_lock);
    }
    um_gate_leave(&publication->gate);
    return publication->retention == NULL ? -ENOENT : 0;
}

int um_publication_serve(um_publication *publication, um_served *served, const char *requests, uint32_t length,
                         char *out, uint32_t capacity)
{
    um_recovery_exchange exchange = {.requests = (const uint8_t *)requests,
                                     .length = length,
                                     .skip = served->skip,
                                     .out = (uint8_t *)out,
                                     .capacity = capacity};
    if (!um_gate_enter(&publication->gate))
        return UM_CLOSED;
    bool is_good = publication->retention != NULL;
    if (is_good) {
        um_lock_acquire(&publication->session->core.sender_lock);
        is_good = um_retention_serve(publication->retention, &exchange);
        um_lock_release(&publication->session->core.sender_lock);
    }
    um_gate_leave(&publication->gate);
    *served = (um_served){exchange.skip, exchange.consumed, exchange.written};
    return is_good ? 0 : -EBADMSG;
}
