/* Event queues: delivery into them, and how their readers wait and are woken. One file, because waking and waiting are
 * two halves of one protocol. */
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/foundation/time_histogram.h"
#include "io/event_queue_private.h"
#include "os/clock.h"
#include "os/lock.h"
#include "os/memory.h"

#ifdef UM_DEBUG
void (*um_event_queue_arm_hook)(void);
#endif

static void arm_hook(void)
{
#ifdef UM_DEBUG
    if (um_event_queue_arm_hook != NULL)
        um_event_queue_arm_hook();
#endif
}

/* The core is the first member of its event queue. */
static void absorb(um_message_queue *core)
{
    um_event_queue *queue = (um_event_queue *)core;
    um_lock_acquire(&queue->conflation_lock);
    um_conflation_absorb(queue->conflation);
    um_lock_release(&queue->conflation_lock);
}

static int open_conflation(um_event_queue *queue, uint32_t key_bytes)
{
    size_t head_bytes = um_align_up(sizeof(um_conflation), UM_CACHE_LINE_BYTES);
    queue->conflation_bytes = head_bytes + um_conflation_footprint(&queue->core);
    um_conflation *conflation = um_map(queue->conflation_bytes);
    if (conflation == NULL)
        return -ENOMEM;
    um_conflation_init(conflation, (uint8_t *)conflation + head_bytes, &queue->core, key_bytes);
    queue->conflation = conflation;
    queue->core.absorb = absorb;
    queue->core.hold_ns = 0; /* without space for another key it is cut loose at once */
    return 0;
}

int um_event_queues_open(um_event_queues *queues, const um_event_queue_config *config, um_event_queue **opened)
{
    size_t queue_bytes =
        um_queue_footprint(config->block_count, config->block_rows, config->block_bytes, config->message_max_bytes);
    size_t head_bytes = um_align_up(sizeof(um_event_queue), UM_CACHE_LINE_BYTES);
    queues->reactor->error_step = "receiver queue";
    if (queue_bytes == 0)
        return -EINVAL;
    um_event_queue *queue = um_map(head_bytes + queue_bytes);
    if (queue == NULL)
        return -ENOMEM;
    queue->memory_bytes = head_bytes + queue_bytes;
    atomic_init(&queue->wake_at_ns, UM_NEVER_NS);
    queue->queues = queues;
    queue->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (queue->event_fd < 0) {
        int error = errno;
        um_unmap(queue, queue->memory_bytes);
        return -error;
    }
    um_queue_init(&queue->core, (uint8_t *)queue + head_bytes, config->block_count, config->block_rows,
                  config->block_bytes, config->message_max_bytes);
    queue->core.hold_ns = config->hold_ns;
    int result = config->conflates ? open_conflation(queue, config->key_bytes) : 0;
    if (result != 0) {
        um_event_queue_free(queue);
        return result;
    }
    queue->watch.notes_age = config->notes_age;
    queue->watch.size_warning = config->size_warning;
    queue->watch.delay_warning_ns = config->delay_warning_ns;
    queue->watch.is_on =
        config->conflates || config->notes_age || config->size_warning != 0 || config->delay_warning_ns != 0;
    um_event_queue_counters_reset(&queue->watch.counters);
    if (config->notes_age || config->delay_warning_ns != 0)
        queue->core.clock_ns = &queues->node->now_ns;
    um_reactor_lock(queues->reactor);
    bool added = um_node_add_queue(queues->node, &queue->core);
    if (added) {
        queue->next = queues->first;
        queues->first = queue;
    }
    um_reactor_unlock(queues->reactor);
    if (!added)
        um_event_queue_free(queue);
    *opened = added ? queue : NULL;
    return added ? 0 : -ENOSPC;
}

bool um_event_queue_is_ready(um_event_queue *queue)
{
    if (UM_UNLIKELY(queue->conflation != NULL)) {
        um_lock_acquire(&queue->conflation_lock);
        bool is_ready = um_conflation_is_ready(queue->conflation);
        um_lock_release(&queue->conflation_lock);
        return is_ready;
    }
    if (UM_LIKELY(queue->hot_failover == NULL))
        return um_queue_is_ready(&queue->core);
    return um_hot_failover_is_ready(queue->hot_failover, um_clock_ns());
}

uint64_t um_event_queue_waiting(um_event_queue *queue)
{
    uint64_t taken = atomic_load(&queue->core.taken_count), appended = atomic_load(&queue->core.appended_count);
    uint64_t waiting = appended > taken ? appended - taken : 0;
    if (queue->conflation == NULL)
        return waiting;
    um_lock_acquire(&queue->conflation_lock);
    waiting += um_conflation_held(queue->conflation);
    um_lock_release(&queue->conflation_lock);
    return waiting;
}

int um_event_queue_hot_failover(um_event_queue *queue, const um_hot_failover_config *config)
{
    const um_message_queue *core = &queue->core;
    size_t head_bytes = um_align_up(sizeof(um_hot_failover), UM_CACHE_LINE_BYTES);
    size_t slots_bytes = um_align_up(um_hot_failover_footprint(config), UM_CACHE_LINE_BYTES);
    size_t out_bytes =
        um_queue_footprint(core->block_count, core->row_capacity, core->payload_capacity, core->message_max_bytes);
    if (slots_bytes == 0)
        return -EINVAL;
    queue->hot_failover_bytes = head_bytes + slots_bytes + out_bytes;
    um_hot_failover *hf = um_map(queue->hot_failover_bytes);
    if (hf == NULL)
        return -ENOMEM;
    um_hot_failover_init(hf, (uint8_t *)hf + head_bytes, config);
    um_queue_init(&hf->out, (uint8_t *)hf + head_bytes + slots_bytes, core->block_count, core->row_capacity,
                  core->payload_capacity, core->message_max_bytes);
    hf->inputs[hf->input_count++] = &queue->core;
    queue->hot_failover = hf;
    queue->watch.is_on = true;
    return 0;
}

int um_event_queue_join(um_event_queue *queue, um_event_queue *other)
{
    um_hot_failover *hf = queue->hot_failover;
    if (hf == NULL || hf->input_count == UM_HF_INPUTS_MAX)
        return -ENOSPC;
    hf->inputs[hf->input_count++] = &other->core;
    atomic_fetch_add(&other->queues->joined_count, 1);
    atomic_store_explicit(&other->joined_to, queue, memory_order_release);
    return 0;
}

uint32_t um_event_queue_hot_failover_counters(um_event_queue *queue, uint64_t *out)
{
    if (queue->hot_failover == NULL)
        return 0;
    memcpy(out, &queue->hot_failover->counters, sizeof queue->hot_failover->counters);
    return (uint32_t)(sizeof queue->hot_failover->counters / sizeof *out);
}

uint64_t um_event_queue_conflated(um_event_queue *queue)
{
    if (queue->conflation == NULL)
        return 0;
    um_lock_acquire(&queue->conflation_lock);
    uint64_t count = queue->conflation->conflated_count;
    um_lock_release(&queue->conflation_lock);
    return count;
}

static void note_age(um_event_queue_counters *counters, int64_t now_ns, int64_t enqueued_ns)
{
    uint64_t age_ns = now_ns > enqueued_ns ? (uint64_t)(now_ns - enqueued_ns) : 0;
    bool is_first = counters->age_min == UINT64_MAX;
    counters->age_min = age_ns < counters->age_min ? age_ns : counters->age_min;
    counters->age_max = age_ns > counters->age_max ? age_ns : counters->age_max;
    counters->age_mean = um_moving_mean(counters->age_mean, age_ns, is_first);
}

/* Counts the first of consecutive reads that exceed a warning limit. */
static bool note_warning(bool was_so, bool is_so, uint64_t *counter)
{
    UM_COUNT(*counter, is_so && !was_so);
    return is_so;
}

/* Checks the warnings of a read that takes these rows of `size` that waited (UX-20). */
static void watch_read(um_queue_watch *watch, uint64_t size, const um_rows *rows)
{
    const int64_t *enqueued_ns = rows->block->enqueued_ns + rows->first;
    int64_t now_ns = watch->notes_age || watch->delay_warning_ns != 0 ? um_clock_ns() : 0;
    if (watch->size_warning != 0)
        watch->is_too_long =
            note_warning(watch->is_too_long, size > watch->size_warning, &watch->counters.size_warnings);
    if (watch->delay_warning_ns != 0)
        watch->is_too_slow = note_warning(watch->is_too_slow, now_ns - enqueued_ns[0] > watch->delay_warning_ns,
                                          &watch->counters.delay_warnings);
    for (uint32_t i = 0; watch->notes_age && i < rows->count; i++)
        note_age(&watch->counters, now_ns, enqueued_ns[i]);
}

static um_rows take(um_event_queue *queue, uint32_t max)
{
    um_message_queue *core = &queue->core;
    if (UM_LIKELY(!queue->watch.is_on))
        return um_queue_take(core, max);
    if (queue->hot_failover != NULL)
        return um_hot_failover_take(queue->hot_failover, max, um_clock_ns());
    uint64_t waiting = um_event_queue_waiting(queue);
    um_rows rows;
    if (queue->conflation != NULL) {
        um_lock_acquire(&queue->conflation_lock);
        rows = um_conflation_take(queue->conflation, max);
        um_lock_release(&queue->conflation_lock);
    } else {
        rows = um_queue_take(core, max);
    }
    if (rows.count > 0)
        watch_read(&queue->watch, waiting, &rows);
    return rows;
}

void um_event_queue_note_service(um_event_queue *queue, int64_t service_ns)
{
    um_event_queue_counters *counters = &queue->watch.counters;
    uint64_t ns = service_ns > 0 ? (uint64_t)service_ns : 0;
    bool is_first = counters->events_svc_min == UINT64_MAX;
    counters->events_svc_min = ns < counters->events_svc_min ? ns : counters->events_svc_min;
    counters->events_svc_max = ns > counters->events_svc_max ? ns : counters->events_svc_max;
    counters->events_svc_mean = um_moving_mean(counters->events_svc_mean, ns, is_first);
}

uint64_t um_event_queue_appended_rows(const um_event_queue *queue)
{
    return atomic_load_explicit(&queue->core.appended_count, memory_order_acquire);
}

uint64_t um_event_queue_taken_rows(const um_event_queue *queue)
{
    return atomic_load_explicit(&queue->core.taken_count, memory_order_acquire);
}

bool um_event_queue_append_event(um_event_queue *queue, uint32_t kind, uint32_t sequence_number, uint32_t source)
{
    um_reactor *reactor = queue->queues->reactor;
    if (!um_gate_enter(&queue->gate))
        return false;
    um_reactor_lock(reactor);
    queue->queues->node->now_ns = um_clock_ns();
    bool has_space = um_queue_reserve(&queue->core, 0) != NULL;
    if (has_space) {
        um_row row = {.flags = (uint16_t)(kind << 8),
                      .sequence_number = sequence_number,
                      .source = source,
                      .received_ns = um_clock_wall_ns()};
        um_queue_append(&queue->core, &row, 0);
        um_event_queues_notify(queue->queues);
    }
    um_reactor_unlock(reactor);
    um_reactor_wake_by(reactor, 0);
    um_gate_leave(&queue->gate);
    return has_space;
}

/* Copies in-frame payloads out, because the ring set that owns the frames may be closed before the rows are released.
 */
static void materialize_all(um_event_queue *queue)
{
    um_message_queue *core = &queue->core;
    for (uint32_t i = 0; i < core->block_count && core->pinned_count > 0; i++)
        if (core->blocks[i].is_in_use)
            um_rows_materialize(&core->blocks[i], 0, core->row_capacity);
    um_queue_return_frames(core);
}

static void wake(um_event_queue *queue)
{
    uint64_t one = 1;
    ssize_t ignored = write(queue->event_fd, &one, sizeof one); /* full means readable */
    (void)ignored;
}

/* Stops joined queues from waking this queue's reader. Each core is the first member of its event queue. */
static void leave_joined(um_event_queue *queue)
{
    for (uint32_t i = 1; queue->hot_failover != NULL && i < queue->hot_failover->input_count; i++) {
        um_event_queue *other = (um_event_queue *)queue->hot_failover->inputs[i];
        if (atomic_load(&other->joined_to) == NULL) /* already closed */
            continue;
        um_reactor_lock(other->queues->reactor);
        if (atomic_exchange(&other->joined_to, NULL) != NULL)
            atomic_fetch_sub(&other->queues->joined_count, 1);
        um_reactor_unlock(other->queues->reactor);
    }
}

void um_event_queue_close(um_event_queue *queue)
{
    um_event_queues *queues = queue->queues;
    um_gate_shut(&queue->gate);
    wake(queue);
    do /* in sequential mode a reader waits in the loop, and another thread there may take the wake-up */
        um_reactor_wake_by(queues->reactor, 0);
    while (!um_gate_try_empty(&queue->gate));
    leave_joined(queue);
    um_reactor_lock(queues->reactor);
    if (atomic_exchange(&queue->joined_to, NULL) != NULL)
        atomic_fetch_sub(&queues->joined_count, 1);
    um_node_remove_queue(queues->node, &queue->core);
    materialize_all(queue);
    um_event_queue **link = &queues->first;
    while (*link != queue)
        link = &(*link)->next;
    *link = queue->next;
    um_reactor_unlock(queues->reactor);
}

void um_event_queue_free(um_event_queue *queue)
{
    close(queue->event_fd);
    if (queue->hot_failover != NULL)
        um_unmap(queue->hot_failover, queue->hot_failover_bytes);
    if (queue->conflation != NULL)
        um_unmap(queue->conflation, queue->conflation_bytes);
    um_unmap(queue, queue->memory_bytes);
}

static void wake_waiting(um_event_queue *queue)
{
    if (atomic_exchange(&queue->waiting, 0) == 0)
        return;
    atomic_fetch_sub(&queue->queues->waiting_count, 1);
    wake(queue);
}

static void wake_due(um_event_queues *queues, int64_t now_ns);

void um_event_queues_notify(um_event_queues *queues)
{
    int64_t wake_at_ns = atomic_load_explicit(&queues->wake_at_ns, memory_order_relaxed);
    if (UM_UNLIKELY(wake_at_ns != UM_NEVER_NS)) {
        int64_t now_ns = um_clock_ns();
        if (now_ns >= wake_at_ns)
            wake_due(queues, now_ns);
    }
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&queues->waiting_count, memory_order_relaxed) == 0 &&
        atomic_load_explicit(&queues->joined_count, memory_order_relaxed) == 0)
        return;
    for (um_event_queue *q = queues->first; q != NULL; q = q->next) {
        um_event_queue *reader = atomic_load_explicit(&q->joined_to, memory_order_acquire);
        if (UM_UNLIKELY(reader != NULL) && um_queue_has_rows(&q->core))
            wake_waiting(reader);
        if (!atomic_load_explicit(&q->waiting, memory_order_relaxed) || !um_queue_has_rows(&q->core))
            continue;
        wake_waiting(q);
    }
}

void um_event_queues_wake_all(um_event_queues *queues)
{
    um_reactor_lock(queues->reactor);
    for (um_event_queue *q = queues->first; q != NULL; q = q->next)
        wake(q);
    um_reactor_unlock(queues->reactor);
}

void um_event_queues_return_frames(um_event_queues *queues)
{
    for (um_event_queue *queue = queues->first; queue != NULL; queue = queue->next)
        if (queue->core.pinned_count > 0)
            um_queue_return_frames(&queue->core);
}

int um_event_queue_descriptor(const um_event_queue *queue)
{
    return queue->event_fd;
}

/* Makes the loop wake the queue's reader at this time, if it waits then. */
static void wake_at(um_event_queue *queue, int64_t time_ns)
{
    _Atomic int64_t *first = &queue->queues->wake_at_ns;
    atomic_store(&queue->wake_at_ns, time_ns);
    int64_t earliest_ns = atomic_load(first);
    while (time_ns < earliest_ns && !atomic_compare_exchange_weak(first, &earliest_ns, time_ns))
        ;
    if (time_ns != UM_NEVER_NS)
        um_reactor_wake_by(queue->queues->reactor, time_ns);
}

/* Wakes the readers whose time has come. */
static void wake_due(um_event_queues *queues, int64_t now_ns)
{
    int64_t next_ns = UM_NEVER_NS;
    atomic_store(&queues->wake_at_ns, UM_NEVER_NS);
    for (um_event_queue *q = queues->first; q != NULL; q = q->next) {
        int64_t at_ns = atomic_load(&q->wake_at_ns);
        if (at_ns <= now_ns) {
            atomic_store(&q->wake_at_ns, UM_NEVER_NS);
            wake_waiting(q);
        } else if (at_ns < next_ns) {
            next_ns = at_ns;
        }
    }
    int64_t earliest_ns = atomic_load(&queues->wake_at_ns);
    while (next_ns < earliest_ns && !atomic_compare_exchange_weak(&queues->wake_at_ns, &earliest_ns, next_ns))
        ;
}

static void disarm(um_event_queue *queue)
{
    if (atomic_exchange(&queue->waiting, 0) == 1)
        atomic_fetch_sub(&queue->queues->waiting_count, 1);
}

/* The count is incremented before the queue waits and decremented after it has stopped, so it always includes every
 * waiting queue. The loop checks no queue while the count is 0, and subtracts 1 for each queue that it wakes. In the
 * other order the loop could wake this queue first, decrement the count of another, waiting queue to 0, and miss that
 * queue. */
static bool arm(um_event_queue *queue)
{
    if (queue->hot_failover != NULL)
        wake_at(queue, um_hot_failover_deadline_ns(queue->hot_failover));
    _Atomic uint32_t *waiting_count = &queue->queues->waiting_count;
    uint64_t ignored;
    ssize_t unread = read(queue->event_fd, &ignored, sizeof ignored); /* nothing to read: not readable */
    (void)unread;
    atomic_fetch_add(waiting_count, 1);
    arm_hook();
    if (atomic_exchange(&queue->waiting, 1) == 1)
        atomic_fetch_sub(waiting_count, 1); /* already counted */
    atomic_thread_fence(memory_order_seq_cst);
    if (!um_event_queue_is_ready(queue))
        return false;
    disarm(queue);
    return true;
}

bool um_event_queue_arm(um_event_queue *queue)
{
    if (!um_gate_enter(&queue->gate))
        return true;
    bool ready = arm(queue);
    um_gate_leave(&queue->gate);
    return ready;
}

void um_rows_summarize(const um_rows *rows, int32_t *offsets, um_rows_summary *summary)
{
    const um_block *block = rows->block;
    const int32_t *from = block->offsets + rows->first;
    int32_t length = rows->count > 0 ? from[1] - from[0] : 0;
    int64_t source = rows->count > 0 ? (int64_t)block->sources[rows->first] : -1;
    uint32_t events = 0, flags = 0, sent = 0;
    offsets[0] = 0;
    for (uint32_t i = 0; i < rows->count; i++) {
        offsets[i + 1] = from[i + 1] - from[0];
        length = from[i + 1] - from[i] == length ? length : -1;
        source = (int64_t)block->sources[rows->first + i] == source ? source : -1;
        events += um_row_kind_of(block->flags[rows->first + i]) != UM_ROW_MESSAGE;
        flags |= block->flags[rows->first + i];
        sent += block->sent_ns[rows->first + i] != 0;
    }
    *summary = (um_rows_summary){
        events, length, source, sent, flags == 0, flags & UM_MESSAGE_REQUEST, flags & UM_MESSAGE_PROPERTIES};
}

void um_rows_materialize(um_block *block, uint32_t first, uint32_t count)
{
    if (!um_block_has_pinned(block))
        return;
    um_lock_acquire(&block->pinned_lock);
    um_block_materialize(block, first, count);
    um_lock_release(&block->pinned_lock);
}

void um_rows_heads(um_block *block, uint32_t first, uint32_t count, uint32_t bytes, uint8_t *out)
{
    bool keeps = um_block_has_pinned(block);
    if (keeps)
        um_lock_acquire(&block->pinned_lock);
    um_block_heads(block, first, count, bytes, out);
    if (keeps)
        um_lock_release(&block->pinned_lock);
}

uint32_t um_rows_copy(um_block *block, uint32_t row, uint8_t *out, uint32_t capacity)
{
    bool keeps = um_block_has_pinned(block);
    if (keeps)
        um_lock_acquire(&block->pinned_lock);
    uint32_t length = um_block_copy(block, row, out, capacity);
    if (keeps)
        um_lock_release(&block->pinned_lock);
    return length;
}

/* True if the queue was closed or its reader unblocked since the wait began. Checked after arming, which clears
 * event_fd: a wake-up from before would be lost otherwise. */
static bool is_interrupted(const um_event_queue *queue)
{
    return um_gate_is_shut(&queue->gate) || atomic_load(&queue->queues->reactor->unblock_count) != queue->unblocks_seen;
}

int um_event_queue_sleep(um_event_queue *queue, struct pollfd *descriptors, uint32_t count, int64_t wait_ns)
{
    bool is_over = arm(queue) || is_interrupted(queue);
    descriptors[0] = (struct pollfd){.fd = queue->event_fd, .events = POLLIN, .revents = is_over ? POLLIN : 0};
    int readable = is_over ? 1 : um_poll_descriptors(descriptors, count, wait_ns);
    disarm(queue);
    return readable;
}

uint32_t um_event_queue_take(um_event_queue *queue, uint32_t max, um_rows *rows)
{
    *rows = take(queue, max);
    return rows->count;
}

/* Returns when the wait ends: gaps of hot failover numbers must be declared lost in time. */
static int64_t wait_end(const um_event_queue *queue, int64_t end_ns)
{
    int64_t deadline_ns = queue->hot_failover != NULL ? um_hot_failover_deadline_ns(queue->hot_failover) : UM_NEVER_NS;
    return um_earliest_ns(deadline_ns, end_ns);
}

static void await_rows(um_event_queue *queue, uint32_t max, int64_t timeout_ns, um_rows *rows)
{
    um_reactor *reactor = queue->queues->reactor;
    uint32_t unblocks = queue->unblocks_seen = atomic_load(&reactor->unblock_count);
    int64_t now_ns = um_clock_ns();
    int64_t end_ns = timeout_ns < 0 ? UM_NEVER_NS : now_ns + timeout_ns;
    do {
        bool goes_on = true;
        if (!um_reactor_is_threaded(reactor))
            reactor->loop->pass(reactor, wait_end(queue, end_ns));
        else
            goes_on = reactor->loop->wait(reactor, queue, wait_end(queue, end_ns));
        *rows = take(queue, max);
        if (!goes_on)
            return;
        now_ns = um_clock_ns();
    } while (rows->count == 0 && now_ns < end_ns && atomic_load(&reactor->unblock_count) == unblocks &&
             !um_gate_is_shut(&queue->gate));
    if (atomic_load(&reactor->unblock_count) != unblocks)
        um_reactor_pass_on_wake(reactor);
}

uint32_t um_event_queue_poll(um_event_queue *queue, uint32_t max, int64_t timeout_ns, um_rows *rows)
{
    um_reactor *reactor = queue->queues->reactor;
    *rows = take(queue, max);
    if (rows->count > 0 || !um_gate_enter(&queue->gate))
        return rows->count;
    if (timeout_ns != 0) {
        await_rows(queue, max, timeout_ns, rows);
    } else if (!um_reactor_is_threaded(reactor)) {
        reactor->loop->pass(reactor, 0);
        *rows = take(queue, max);
    }
    um_gate_leave(&queue->gate);
    return rows->count;
}

uint32_t um_event_queue_look(um_event_queue *queue, uint32_t max, um_rows *rows)
{
    um_reactor *reactor = queue->queues->reactor;
    *rows = take(queue, max);
    if (!um_gate_enter(&queue->gate))
        return rows->count;
    if (um_reactor_is_threaded(reactor))
        reactor->loop->look(reactor, queue, rows->count > 0);
    if (rows->count == 0)
        *rows = take(queue, max);
    um_gate_leave(&queue->gate);
    return rows->count;
}

int64_t um_event_queue_receive(um_event_queue *queue, uint8_t *out, uint32_t capacity, int64_t timeout_ns, um_row *row)
{
    um_rows rows;
    if (um_event_queue_poll(queue, 1, timeout_ns, &rows) == 0)
        return UM_RECEIVED_NOTHING;
    um_block *block = rows.block;
    uint32_t i = rows.first;
    uint32_t length = um_rows_copy(block, i, out, capacity);
    *row = (um_row){.flags = block->flags[i],
                    .sequence_number = block->sequence_numbers[i],
                    .first_sequence_number = block->first_sequence_numbers[i],
                    .fragment_offset = block->fragment_offsets[i],
                    .message_length = block->message_lengths[i],
                    .source = block->sources[i],
                    .received_ns = block->received_ns[i],
                    .sent_ns = block->sent_ns[i]};
    um_queue_release(block, 1);
    return um_row_kind_of(row->flags) == UM_ROW_MESSAGE ? (int64_t)length : UM_RECEIVED_EVENT;
}
