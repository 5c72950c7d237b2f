#include "io/statistics.h"
#include "os/clock.h"

#include "io/context_private.h"
#include "io/publication_private.h"
#include "os/lock.h"

#define FIELDS(type) ((uint32_t)(sizeof(type) / sizeof(uint64_t)))

_Static_assert(FIELDS(um_source_transport_counters) <= UM_STATISTICS_FIELDS_MAX, "space for the largest group");
_Static_assert(FIELDS(um_receiver_transport_counters) <= UM_STATISTICS_FIELDS_MAX, "space for the largest group");
_Static_assert((int)UM_RECOVERY_BUCKETS <= (int)UM_STATISTICS_FIELDS_MAX, "space for the histogram");
_Static_assert((int)UM_LATENCY_BUCKETS <= (int)UM_STATISTICS_FIELDS_MAX, "space for the histogram");

/* Under the lock of the counting object; publishers count some fields without it, by atomic additions. */
static void copy_counters(uint64_t *out, const void *counters, uint32_t fields)
{
    const uint64_t *from = counters;
    for (uint32_t i = 0; i < fields; i++)
        out[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

uint32_t um_statistics_context(um_context *context, uint64_t *out)
{
    um_reactor_lock(&context->reactor);
    um_node_snapshot(&context->receiving.node);
    copy_counters(out, &context->receiving.node.counters, FIELDS(um_context_counters));
    for (uint32_t i = 0; i < context->sessions.limit; i++) {
        um_publication_session *session = &context->sessions.table[i];
        if (!session->is_used)
            continue;
        um_lock_acquire(&session->core.sender_lock);
        um_publication_session_add_counts(session, (um_context_counters *)out);
        um_lock_release(&session->core.sender_lock);
    }
    um_reactor_unlock(&context->reactor);
    return FIELDS(um_context_counters);
}

uint32_t um_statistics_source_transport(um_publication_session *session, uint64_t *out)
{
    um_lock_acquire(&session->core.sender_lock);
    um_source_session_snapshot(&session->core);
    if (session->tcp != NULL)
        session->core.counters.bytes_buffered = um_tcp_fan_out_backlog_bytes(&session->tcp->fan_out);
    copy_counters(out, &session->core.counters, FIELDS(um_source_transport_counters));
    um_lock_release(&session->core.sender_lock);
    return FIELDS(um_source_transport_counters);
}

static void snapshot_retention(um_publication *publication)
{
    const um_retention *retention = publication->retention;
    um_source_counters *counters = &publication->core.counters;
    if (retention == NULL)
        return;
    um_lock_acquire(&publication->session->core.sender_lock);
    counters->retained_messages = retention->next_sqn - retention->first_sqn;
    counters->retained_bytes = um_retention_bytes(retention);
    counters->recovery_requests = retention->requests;
    counters->recovery_messages_sent = retention->served_messages;
    counters->recovery_unavailable = retention->unavailable;
    um_lock_release(&publication->session->core.sender_lock);
}

uint32_t um_statistics_source(um_publication *publication, uint64_t *out)
{
    um_source_snapshot(&publication->core);
    snapshot_retention(publication);
    copy_counters(out, &publication->core.counters, FIELDS(um_source_counters));
    return FIELDS(um_source_counters);
}

uint32_t um_statistics_event_queue(um_event_queue *queue, uint64_t *out)
{
    um_event_queue_counters counters;
    copy_counters((uint64_t *)&counters, &queue->watch.counters, FIELDS(um_event_queue_counters));
    counters.events = um_event_queue_waiting(queue);
    counters.events_tot = atomic_load(&queue->core.appended_count);
    memcpy(out, &counters, sizeof counters);
    return FIELDS(um_event_queue_counters);
}

uint32_t um_statistics_receiver(um_subscription *subscription, uint64_t *out)
{
    um_reactor_lock(subscription->receiving->reactor);
    um_receiver_counters *counters = &subscription->core.counters;
    const um_message_queue *queue = subscription->core.queue;
    counters->queue_full_time = (uint64_t)um_queue_full_ns(queue, um_clock_ns());
    counters->queued_messages = um_event_queue_waiting(subscription->queue);
    counters->conflated_messages = um_event_queue_conflated(subscription->queue);
    memcpy(out, counters, sizeof *counters);
    um_reactor_unlock(subscription->receiving->reactor);
    return FIELDS(um_receiver_counters);
}

uint32_t um_statistics_receiver_transport(um_context *context, uint32_t index, um_session_id *id, uint64_t *out)
{
    uint32_t fields = 0;
    um_reactor_lock(&context->reactor);
    if (index < context->receiving.node.session_count) {
        um_receiver_session *session = context->receiving.node.sessions[index];
        um_receiver_session_snapshot(session);
        *id = session->config.id;
        memcpy(out, &session->counters, sizeof session->counters);
        fields = FIELDS(um_receiver_transport_counters);
    }
    um_reactor_unlock(&context->reactor);
    return fields;
}

uint32_t um_statistics_recovery_histogram(um_context *context, uint32_t index, uint64_t *out)
{
    uint32_t buckets = 0;
    um_reactor_lock(&context->reactor);
    if (index < context->receiving.node.session_count) {
        const um_receiver_session *session = context->receiving.node.sessions[index];
        memcpy(out, session->recovery_buckets, sizeof session->recovery_buckets);
        buckets = UM_RECOVERY_BUCKETS;
    }
    um_reactor_unlock(&context->reactor);
    return buckets;
}

uint32_t um_statistics_latency_histogram(um_context *context, uint32_t index, uint64_t *out)
{
    uint32_t buckets = 0;
    um_reactor_lock(&context->reactor);
    if (index < context->receiving.node.session_count) {
        const um_receiver_session *session = context->receiving.node.sessions[index];
        memcpy(out, session->latency_buckets, sizeof session->latency_buckets);
        buckets = UM_LATENCY_BUCKETS;
    }
    um_reactor_unlock(&context->reactor);
    return buckets;
}

uint32_t um_statistics_link(um_context *context, uint64_t *out)
{
    um_reactor_lock(&context->reactor);
    um_link_counters *sum = (um_link_counters *)out;
    *sum = context->links.closed;
    um_link_counters_add(sum, &context->receiving.control.link.counters);
    um_link_counters_add(sum, &context->receiving.ipv6_control.link.counters);
    for (uint32_t i = 0; i < context->sessions.limit; i++) {
        um_publication_session *session = &context->sessions.table[i];
        if (!session->is_used)
            continue;
        um_lock_acquire(&session->core.sender_lock);
        um_link_counters_add(sum, &session->data_link.counters);
        um_link_counters_add(sum, &session->control.nak_link.counters);
        if (session->tcp != NULL)
            um_link_counters_add(sum, &session->tcp->fan_out.counters);
        if (session->ipc != NULL)
            um_link_counters_add(sum, &session->ipc->fan_out.counters);
        um_lock_release(&session->core.sender_lock);
    }
    for (uint32_t i = 0; i < context->receiving.group_limit; i++)
        if (context->receiving.groups[i].is_used)
            um_link_counters_add(sum, &context->receiving.groups[i].link.counters);
    if (context->links.rings != NULL)
        context->links.rings->ops->add_counters(context->links.rings, sum);
    um_reactor_unlock(&context->reactor);
    return FIELDS(um_link_counters);
}
