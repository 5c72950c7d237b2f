/* The receiving half of a context: subscriptions, the groups they need, and waking their readers. */
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "io/clock.h"
#include "io/context.h"

/* A receiving session's memory: the session, its loss map and table, in one mapping. */
typedef struct session_block {
    um_receiver_session core;
    um_group *group;
    size_t memory_bytes;
} session_block;

typedef struct delivery_block {
    um_delivery core;
} delivery_block;

/* ---- subscriptions ---- */

int um_subscription_open(um_context *context, const um_subscription_config *config, um_subscription **opened)
{
    size_t queue_bytes =
        um_queue_footprint(config->block_count, config->block_rows, config->block_bytes, config->message_max_bytes);
    size_t head_bytes = um_align_up(sizeof(um_subscription), UM_CACHE_LINE_BYTES);
    context->error_step = "receiver queue";
    if (queue_bytes == 0)
        return -EINVAL;
    um_subscription *subscription = um_map(head_bytes + queue_bytes);
    if (subscription == NULL)
        return -ENOMEM;
    subscription->memory_bytes = head_bytes + queue_bytes;
    subscription->context = context;
    subscription->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (subscription->event_fd < 0) {
        int error = errno;
        um_unmap(subscription, subscription->memory_bytes);
        return -error;
    }
    um_queue_init(&subscription->queue, (uint8_t *)subscription + head_bytes, config->block_count, config->block_rows,
                  config->block_bytes, config->message_max_bytes);
    subscription->core.config = config->receiver;
    subscription->core.queue = &subscription->queue;
    subscription->core.store = &context->node.store;
    subscription->core.context_counters = &context->node.counters;
    um_receiver_counters_reset(&subscription->core.counters);
    um_context_lock(context);
    bool added = um_node_add_receiver(&context->node, &subscription->core);
    if (added) {
        subscription->next = context->subscriptions;
        context->subscriptions = subscription;
    }
    um_context_unlock(context);
    *opened = subscription;
    return added ? 0 : -ENOSPC;
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
    group->session_count = 0;
    group->in_use = true;
    uint32_t index = (uint32_t)(group - context->groups);
    if (index >= context->group_limit)
        context->group_limit = index + 1;
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
    if (context->group_limit == 0)
        um_context_watch_port(context, false);
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
    um_unmap(delivery, sizeof(delivery_block));
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
        session_block *block;
        int result = open_session(context, config, &block);
        if (result != 0)
            return result;
        session = &block->core;
    }
    if (session->ended)
        return -EAGAIN;
    for (const um_delivery *d = session->controllers; d != NULL; d = d->next)
        if (d->receiver == &subscription->core && d->topic_index == topic_index)
            return -EEXIST;
    delivery_block *delivery = um_map(sizeof *delivery);
    if (delivery == NULL)
        return -ENOMEM;
    um_delivery_init(&delivery->core, &subscription->core, context->next_delivery_id++, source, topic_index,
                     session->config.nak_generation_ns);
    if (um_receiver_session_map(session, &delivery->core, um_clock_ns()))
        return 0;
    subscription->core.controller_count--;
    um_unmap(delivery, sizeof *delivery);
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
    um_subscription_wake(subscription);
    um_context_wake_by(context, 0); /* in sequential mode a reader waits in the loop */
    um_gate_await_empty(&subscription->gate);
    um_context_lock(context);
    drop_controllers(context, &subscription->core);
    um_node_remove_receiver(&context->node, &subscription->core);
    um_subscription **link = &context->subscriptions;
    while (*link != subscription)
        link = &(*link)->next;
    *link = subscription->next;
    um_context_unlock(context);
}

void um_subscription_free(um_subscription *subscription)
{
    close(subscription->event_fd);
    um_unmap(subscription, subscription->memory_bytes);
}

/* ---- the loop's part ---- */

static uint32_t datagrams_in(const um_rx *rx)
{
    return rx->segment_length == 0 ? 1 : (rx->length + rx->segment_length - 1) / rx->segment_length;
}

int um_receiving_receive(um_context *context, um_group *group, int64_t now_ns)
{
    int count = um_socket_receive(&group->link, &context->ring, (int)context->config.receive_batch);
    if (count > 0)
        um_tap_received(&context->tap, context->ring.batch, (uint32_t)count);
    for (int i = 0; i < count; i++) {
        um_node_on_data(&context->node, &context->ring.batch[i], now_ns);
        context->pass_datagrams += datagrams_in(&context->ring.batch[i]);
    }
    if (count > 0 && context->port != NULL)
        UM_COUNT(group->link.counters.ring_kernel_path, count);
    if (count > 0)
        um_node_after_batch(&context->node, now_ns);
    return count;
}

int um_receiving_receive_port(um_context *context, int64_t now_ns)
{
    um_port *port = context->port;
    int count = port->ops->receive(port, context->port_batch, UM_PORT_BATCH_MAX);
    if (count > 0)
        um_tap_received(&context->tap, context->port_batch, (uint32_t)count);
    for (int i = 0; i < count; i++)
        um_node_on_data(&context->node, &context->port_batch[i], now_ns);
    if (count > 0)
        um_node_after_batch(&context->node, now_ns);
    port->ops->release(port);
    context->pass_datagrams += count > 0 ? (uint32_t)count : 0;
    return count > 0 ? count : 0;
}

void um_receiving_notify(um_context *context)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&context->waiting_count, memory_order_relaxed) == 0)
        return;
    for (um_subscription *s = context->subscriptions; s != NULL; s = s->next) {
        if (!atomic_load_explicit(&s->waiting, memory_order_relaxed) || !um_queue_holds_rows(&s->queue))
            continue;
        if (atomic_exchange(&s->waiting, 0) == 0)
            continue;
        atomic_fetch_sub(&context->waiting_count, 1);
        um_subscription_wake(s);
    }
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

/* ---- readers ---- */

void um_subscription_wake(um_subscription *subscription)
{
    uint64_t one = 1;
    ssize_t ignored = write(subscription->event_fd, &one, sizeof one); /* full means readable */
    (void)ignored;
}

static bool arm(um_subscription *subscription)
{
    uint64_t ignored;
    ssize_t unread = read(subscription->event_fd, &ignored, sizeof ignored); /* nothing to read: not readable */
    (void)unread;
    if (atomic_exchange(&subscription->waiting, 1) == 0)
        atomic_fetch_add(&subscription->context->waiting_count, 1);
    atomic_thread_fence(memory_order_seq_cst);
    if (!um_queue_ready(&subscription->queue))
        return false;
    if (atomic_exchange(&subscription->waiting, 0) == 1)
        atomic_fetch_sub(&subscription->context->waiting_count, 1);
    return true;
}

bool um_subscription_arm(um_subscription *subscription)
{
    if (!um_gate_enter(&subscription->gate))
        return true;
    bool ready = arm(subscription);
    um_gate_leave(&subscription->gate);
    return ready;
}

void um_rows_summarize(const um_rows *rows, int32_t *offsets, um_rows_summary *summary)
{
    const um_block *block = rows->block;
    const int32_t *from = block->offsets + rows->first;
    int32_t length = rows->count > 0 ? from[1] - from[0] : 0;
    int64_t source = rows->count > 0 ? (int64_t)block->sources[rows->first] : -1;
    uint32_t events = 0, flags = 0;
    offsets[0] = 0;
    for (uint32_t i = 0; i < rows->count; i++) {
        offsets[i + 1] = from[i + 1] - from[0];
        length = from[i + 1] - from[i] == length ? length : -1;
        source = (int64_t)block->sources[rows->first + i] == source ? source : -1;
        events += block->flags[rows->first + i] >> 8 != UM_ROW_MESSAGE;
        flags |= block->flags[rows->first + i];
    }
    *summary = (um_rows_summary){events, length, source, flags == 0};
}

/* False when a signal ended the wait: the application's handlers come first. */
static bool wait_embedded(um_subscription *subscription, int64_t wait_ns)
{
    struct timespec timeout = {wait_ns / 1000000000, wait_ns % 1000000000};
    struct pollfd descriptor = {.fd = subscription->event_fd, .events = POLLIN};
    return arm(subscription) || ppoll(&descriptor, 1, wait_ns == UM_NEVER_NS ? NULL : &timeout, NULL) >= 0;
}

uint32_t um_subscription_take(um_subscription *subscription, uint32_t max, um_rows *rows)
{
    *rows = um_queue_take(&subscription->queue, max);
    return rows->count;
}

static void await_rows(um_subscription *subscription, uint32_t max, int64_t timeout_ns, um_rows *rows)
{
    um_context *context = subscription->context;
    uint32_t unblocks = atomic_load(&context->unblock_count);
    int64_t now_ns = um_clock_ns();
    int64_t end_ns = timeout_ns < 0 ? UM_NEVER_NS : now_ns + timeout_ns;
    do {
        bool goes_on = true;
        if (!context->threaded)
            um_context_pass(context, timeout_ns == 0 ? 0 : end_ns);
        else
            goes_on = wait_embedded(subscription, end_ns == UM_NEVER_NS ? UM_NEVER_NS : end_ns - now_ns);
        *rows = um_queue_take(&subscription->queue, max);
        if (!goes_on)
            return;
        now_ns = um_clock_ns();
    } while (rows->count == 0 && now_ns < end_ns && atomic_load(&context->unblock_count) == unblocks &&
             !um_gate_is_shut(&subscription->gate));
}

uint32_t um_subscription_poll(um_subscription *subscription, uint32_t max, int64_t timeout_ns, um_rows *rows)
{
    *rows = um_queue_take(&subscription->queue, max);
    if (rows->count > 0 || !um_gate_enter(&subscription->gate))
        return rows->count;
    if (timeout_ns != 0 || !subscription->context->threaded)
        await_rows(subscription, max, timeout_ns, rows);
    um_gate_leave(&subscription->gate);
    return rows->count;
}

int64_t um_subscription_receive(um_subscription *subscription, uint8_t *out, uint32_t capacity, int64_t timeout_ns,
                                um_row *row)
{
    um_rows rows;
    if (um_subscription_poll(subscription, 1, timeout_ns, &rows) == 0)
        return UM_RECEIVED_NOTHING;
    const um_block *block = rows.block;
    uint32_t i = rows.first;
    uint32_t length = (uint32_t)(block->offsets[i + 1] - block->offsets[i]);
    *row = (um_row){.flags = block->flags[i],
                    .sequence_number = block->sequence_numbers[i],
                    .first_sequence_number = block->first_sequence_numbers[i],
                    .fragment_offset = block->fragment_offsets[i],
                    .message_length = block->message_lengths[i],
                    .source = block->sources[i],
                    .received_ns = block->received_ns[i]};
    memcpy(out, block->payload + block->offsets[i], length < capacity ? length : capacity);
    um_queue_release(rows.block, 1);
    return row->flags >> 8 == UM_ROW_MESSAGE ? (int64_t)length : UM_RECEIVED_EVENT;
}
