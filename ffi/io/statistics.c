#include "io/statistics.h"

#define FIELDS(type) ((uint32_t)(sizeof(type) / sizeof(uint64_t)))

_Static_assert(FIELDS(um_source_transport_counters) <= UM_STATISTICS_FIELDS_MAX, "room for the largest group");
_Static_assert(FIELDS(um_receiver_transport_counters) <= UM_STATISTICS_FIELDS_MAX, "room for the largest group");
_Static_assert((int)UM_RECOVERY_BUCKETS <= (int)UM_STATISTICS_FIELDS_MAX, "room for the histogram");

uint32_t um_statistics_context(um_context *context, uint64_t *out)
{
    um_context_lock(context);
    memcpy(out, &context->node.counters, sizeof context->node.counters);
    um_context_unlock(context);
    return FIELDS(um_context_counters);
}

uint32_t um_statistics_source_transport(um_publication_session *session, uint64_t *out)
{
    um_context_lock(session->context);
    um_session_snapshot(&session->core);
    memcpy(out, &session->core.counters, sizeof session->core.counters);
    um_context_unlock(session->context);
    return FIELDS(um_source_transport_counters);
}

uint32_t um_statistics_source(um_publication *publication, uint64_t *out)
{
    um_source_snapshot(&publication->core);
    memcpy(out, &publication->core.counters, sizeof publication->core.counters);
    return FIELDS(um_source_counters);
}

uint32_t um_statistics_receiver(um_subscription *subscription, uint64_t *out)
{
    um_context_lock(subscription->context);
    um_receiver_counters *counters = &subscription->core.counters;
    const um_message_queue *queue = subscription->core.queue;
    counters->queued_messages = queue->appended_count - atomic_load(&queue->taken_count);
    counters->order_map_entries = 0;
    const um_node *node = &subscription->context->node;
    for (uint32_t i = 0; i < node->session_count; i++)
        for (const um_delivery *d = node->sessions[i]->controllers; d != NULL; d = d->next)
            counters->order_map_entries += d->receiver == &subscription->core ? d->held_count : 0;
    memcpy(out, counters, sizeof *counters);
    um_context_unlock(subscription->context);
    return FIELDS(um_receiver_counters);
}

uint32_t um_statistics_receiver_transport(um_context *context, uint32_t index, um_session_id *id, uint64_t *out)
{
    uint32_t fields = 0;
    um_context_lock(context);
    if (index < context->node.session_count) {
        const um_receiver_session *session = context->node.sessions[index];
        *id = session->config.id;
        memcpy(out, &session->counters, sizeof session->counters);
        fields = FIELDS(um_receiver_transport_counters);
    }
    um_context_unlock(context);
    return fields;
}

uint32_t um_statistics_recovery_histogram(um_context *context, uint32_t index, uint64_t *out)
{
    uint32_t buckets = 0;
    um_context_lock(context);
    if (index < context->node.session_count) {
        const um_receiver_session *session = context->node.sessions[index];
        memcpy(out, session->recovery_buckets, sizeof session->recovery_buckets);
        buckets = UM_RECOVERY_BUCKETS;
    }
    um_context_unlock(context);
    return buckets;
}

void um_context_close_link(um_context *context, um_socket_link *link)
{
    um_socket_close(link);
    um_link_counters_add(&context->closed_links, &link->counters);
}

uint32_t um_statistics_link(um_context *context, uint64_t *out)
{
    um_context_lock(context);
    um_link_counters *sum = (um_link_counters *)out;
    *sum = context->closed_links;
    um_link_counters_add(sum, &context->control_link.counters);
    for (uint32_t i = 0; i < context->session_limit; i++) {
        const um_publication_session *session = &context->sessions[i];
        if (!session->in_use)
            continue;
        um_link_counters_add(sum, &session->data_link.counters);
        um_link_counters_add(sum, &session->nak_link.counters);
    }
    for (uint32_t i = 0; i < context->group_limit; i++)
        if (context->groups[i].in_use)
            um_link_counters_add(sum, &context->groups[i].link.counters);
    if (context->rings != NULL)
        context->rings->ops->add_counters(context->rings, sum);
    um_context_unlock(context);
    return FIELDS(um_link_counters);
}
