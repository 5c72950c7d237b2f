/* The receiving half of a context: subscriptions, and the groups and sessions they need. */
#include <stdlib.h>

#include "io/context.h"
#include "os/clock.h"

enum {
    KEPT_MAX = 8, /* datagrams of a port whose frames a polling loop keeps for a pass; ports have 64 and more */
    PREFETCHED_AHEAD = 8,
    HEADERS_BYTES = 64, /* of a datagram's; what stays in its frame is not read any further here */
};

/* A receiving session's memory: the session, its loss map and table, in one mapping. */
typedef struct session_block {
    um_receiver_session core;
    um_group *group;
    size_t memory_bytes;
} session_block;

/* ---- subscriptions ---- */

int um_subscription_open(um_event_queue *queue, const um_receiver_config *config, um_subscription **opened)
{
    um_context *context = queue->context;
    context->error_step = "receiver";
    um_subscription *subscription = um_allocate(sizeof *subscription);
    if (subscription == NULL)
        return -ENOMEM;
    subscription->context = context;
    subscription->queue = queue;
    subscription->core.config = *config;
    subscription->core.queue = &queue->core;
    subscription->core.store = &context->node.store;
    subscription->core.context_counters = &context->node.counters;
    um_receiver_counters_reset(&subscription->core.counters);
    um_context_lock(context);
    bool is_open = !um_gate_is_shut(&queue->gate);
    if (is_open) {
        subscription->next = context->subscriptions;
        context->subscriptions = subscription;
    }
    um_context_unlock(context);
    if (!is_open)
        free(subscription);
    *opened = is_open ? subscription : NULL;
    return is_open ? 0 : UM_CLOSED;
}

/* ---- groups and sessions ---- */

static um_group *find_group(um_context *context, um_address address)
{
    um_group *unused = NULL;
    for (uint32_t i = 0; i < UM_CONTEXT_GROUPS_MAX; i++) {
        um_group *group = &context->groups[i];
        if (group->in_use && um_address_equal(group->link.local, address))
            return group;
        if (!group->in_use && unused == NULL)
            unused = group;
    }
    return unused;
}

static int join_group(um_context *context, um_address address, um_group **joined)
{
    um_group *group = find_group(context, address);
    context->error_step = "group table";
    if (group == NULL)
        return -ENOSPC;
    *joined = group;
    if (group->in_use)
        return 0;
    um_socket_config config = um_context_socket_config(context);
    int result = um_socket_open_group(&group->link, &config, address);
    context->error_step = group->link.failed_step;
    if (result != 0)
        return result;
    uint32_t granted = group->link.granted_receive_bytes;
    if (context->least_receive_bytes == 0 || granted < context->least_receive_bytes)
        context->least_receive_bytes = granted;
    group->session_count = 0;
    group->in_use = true;
    uint32_t index = (uint32_t)(group - context->groups);
    if (index >= context->group_limit)
        context->group_limit = index + 1;
    context->port_is_read = true;
    result = um_context_watch_port(context, true);
    if (result != 0)
        return result;
    return um_context_watch(context, group->link.fd, UM_WATCH_GROUP, index);
}

static void leave_group(um_context *context, um_group *group)
{
    if (--group->session_count > 0)
        return;
    um_context_close_link(context, &group->link);
    group->in_use = false;
    while (context->group_limit > 0 && !context->groups[context->group_limit - 1].in_use)
        context->group_limit--;
    if (context->group_limit == 0) {
        context->port_is_read = false;
        um_context_watch_port(context, false);
    }
}

static int open_session(um_context *context, const um_receiver_session_config *config, session_block **opened)
{
    size_t head_bytes = um_align_up(sizeof(session_block), UM_CACHE_LINE_BYTES);
    size_t bytes = um_receiver_session_footprint(config);
    if (bytes == 0)
        return -EINVAL;
    session_block *block = um_map(head_bytes + bytes);
    if (block == NULL)
        return -ENOMEM;
    block->memory_bytes = head_bytes + bytes;
    int result = join_group(context, config->id.group, &block->group);
    if (result == 0) {
        um_receiver_session_init(&block->core, (uint8_t *)block + head_bytes, config, &context->tapped_control.base,
                                 &context->node.store, um_clock_ns());
        result = um_node_add_session(&context->node, &block->core) ? 0 : -ENOSPC;
        block->group->session_count++;
        if (result != 0)
            leave_group(context, block->group);
    }
    if (result != 0) {
        um_unmap(block, block->memory_bytes);
        return result;
    }
    *opened = block;
    return 0;
}

static void unmap_controller(um_receiver_session *session, um_delivery *delivery)
{
    um_receiver_session_unmap(session, delivery);
    free(delivery);
}

static void close_session(um_context *context, session_block *block)
{
    um_receiver_session_leave(&block->core);
    while (block->core.controllers != NULL)
        unmap_controller(&block->core, block->core.controllers);
    um_node_remove_session(&context->node, &block->core);
    leave_group(context, block->group);
    um_unmap(block, block->memory_bytes);
}

static int map_topic(um_subscription *subscription, const um_receiver_session_config *config, uint32_t topic_index,
                     uint32_t source)
{
    um_context *context = subscription->context;
    um_receiver_session *session = um_node_find_session(&context->node, &config->id);
    if (session == NULL) {
        session_block *block = NULL;
        int result = open_session(context, config, &block);
        if (result != 0)
            return result;
        session = &block->core;
    }
    if (session->ended)
        return -EAGAIN;
    if (um_receiver_session_is_mapped(session, &subscription->core, topic_index))
        return -EEXIST;
    um_delivery *delivery = um_allocate(sizeof *delivery);
    if (delivery == NULL)
        return -ENOMEM;
    um_delivery_init(delivery, &subscription->core, context->next_delivery_id++, source, topic_index,
                     session->config.nak_generation_ns);
    if (um_receiver_session_map(session, delivery, um_clock_ns()))
        return 0;
    subscription->core.controller_count--;
    free(delivery);
    context->error_step = "topic table";
    return -ENOSPC;
}

int um_subscription_map(um_subscription *subscription, const um_receiver_session_config *config, uint32_t topic_index,
                        uint32_t source)
{
    um_context *context = subscription->context;
    if (!um_gate_enter(&subscription->gate))
        return UM_CLOSED;
    um_context_lock(context);
    int result = map_topic(subscription, config, topic_index, source);
    if (result == 0)
        um_node_wake(&context->node, um_clock_ns());
    um_context_unlock(context);
    um_context_wake_by(context, 0);
    um_gate_leave(&subscription->gate);
    return result;
}

static void drop_controllers(um_context *context, um_receiver *receiver)
{
    for (uint32_t i = context->node.session_count; i-- > 0;) {
        um_receiver_session *session = context->node.sessions[i];
        for (um_delivery *d = session->controllers, *next; d != NULL; d = next) {
            next = d->next;
            if (d->receiver == receiver)
                unmap_controller(session, d);
        }
        if (session->controllers == NULL)
            close_session(context, (session_block *)session);
    }
}

void um_subscription_close(um_subscription *subscription)
{
    um_context *context = subscription->context;
    um_gate_shut(&subscription->gate);
    um_gate_await_empty(&subscription->gate);
    um_context_lock(context);
    drop_controllers(context, &subscription->core);
    um_subscription **link = &context->subscriptions;
    while (*link != subscription)
        link = &(*link)->next;
    *link = subscription->next;
    um_context_unlock(context);
}

void um_subscription_free(um_subscription *subscription)
{
    free(subscription);
}

/* ---- the loop's part ---- */

int um_receiving_receive(um_context *context, um_group *group, int64_t now_ns)
{
    int count = um_socket_receive(&group->link, &context->ring, (int)context->config.receive_batch);
    if (count > 0)
        um_tap_received(&context->tap, context->ring.batch, (uint32_t)count);
    for (int i = 0; i < count; i++) {
        um_node_on_data(&context->node, &context->ring.batch[i], now_ns);
        context->pass_datagrams +=
            um_datagrams_in(context->ring.batch[i].length, context->ring.batch[i].segment_length);
    }
    if (count > 0 && context->port != NULL)
        UM_COUNT(group->link.counters.ring_kernel_path, count);
    return count;
}

void um_receiving_give_back(um_context *context)
{
    if (!context->port_keeps)
        return;
    context->port->ops->release(context->port);
    context->port_keeps = false;
}

void um_receiving_take_back(um_context *context)
{
    for (um_event_queue *queue = context->event_queues; queue != NULL; queue = queue->next)
        if (queue->core.kept_count > 0)
            um_queue_return_frames(&queue->core);
}

/* Another processor wrote it, but what was put together of several frames is here. A datagram at a time: requests that
 * come all at once are dropped. */
static void prefetch(const um_rx *rx)
{
    if (rx->frames == NULL)
        return;
    bool stays = rx->frames->kept_last && rx->length > HEADERS_BYTES;
    um_prefetch(rx->data, stays ? HEADERS_BYTES : rx->length);
}

int um_receiving_receive_port(um_context *context, bool polls, int64_t now_ns)
{
    um_port *port = context->port;
    um_receiving_give_back(context);
    int count = port->ops->receive(port, context->port_batch, UM_PORT_BATCH_MAX);
    if (count > 0)
        um_tap_received(&context->tap, context->port_batch, (uint32_t)count);
    context->gathered_frames += port->taken_frames;
    for (int i = 0; i < count && i < PREFETCHED_AHEAD; i++)
        prefetch(&context->port_batch[i]);
    for (int i = 0; i < count; i++) {
        if (i + PREFETCHED_AHEAD < count)
            prefetch(&context->port_batch[i + PREFETCHED_AHEAD]);
        um_rx *rx = &context->port_batch[i];
        if (rx->frames != NULL)
            rx->frames->kept_last = false;
        context->gathered_bytes += rx->length;
        um_node_on_data(&context->node, rx, now_ns);
    }
    context->port_keeps = true; /* without a datagram, too: frames that held none were taken all the same */
    if (!polls || count <= 0 || count > KEPT_MAX)
        um_receiving_give_back(context);
    context->pass_datagrams += count > 0 ? (uint32_t)count : 0;
    return count > 0 ? count : 0;
}

void um_receiving_reap(um_context *context)
{
    um_receiver_session *finished;
    while ((finished = um_node_finished_session(&context->node)) != NULL) {
        context->ended[context->ended_count++ % UM_CONTEXT_ENDED_MAX] = finished->config.id;
        close_session(context, (session_block *)finished);
    }
}

bool um_context_take_ended(um_context *context, um_session_id *id)
{
    um_context_lock(context);
    bool any = context->ended_taken != context->ended_count;
    if (context->ended_count - context->ended_taken > UM_CONTEXT_ENDED_MAX)
        context->ended_taken = context->ended_count - UM_CONTEXT_ENDED_MAX;
    if (any)
        *id = context->ended[context->ended_taken++ % UM_CONTEXT_ENDED_MAX];
    um_context_unlock(context);
    return any;
}
