#include "core/delivery/message_queue.h"

enum {
    MATERIALIZE_AHEAD = 8, /* frames whose lines are prefetched while one is copied */
    RETURNED_TOGETHER = 64,
};

/* A block takes rows while its payloads are below the soft capacity. */
static uint32_t pinned_capacity(uint32_t payload_capacity)
{
    return payload_capacity / UM_QUEUE_PINNED_BYTES_MIN + 1;
}

static void carve(um_block *block, um_arena *arena, uint32_t rows, uint32_t pinned_rows, uint32_t payload_bytes)
{
    um_block ignored;
    um_block *b = block ? block : &ignored;
    b->pinned = um_arena_take(arena, pinned_rows * sizeof *b->pinned);
    b->offsets = um_arena_take(arena, (rows + 1) * sizeof *b->offsets);
    b->sequence_numbers = um_arena_take(arena, rows * sizeof *b->sequence_numbers);
    b->first_sequence_numbers = um_arena_take(arena, rows * sizeof *b->first_sequence_numbers);
    b->fragment_offsets = um_arena_take(arena, rows * sizeof *b->fragment_offsets);
    b->message_lengths = um_arena_take(arena, rows * sizeof *b->message_lengths);
    b->sources = um_arena_take(arena, rows * sizeof *b->sources);
    b->received_ns = um_arena_take(arena, rows * sizeof *b->received_ns);
    b->enqueued_ns = um_arena_take(arena, rows * sizeof *b->enqueued_ns);
    b->sent_ns = um_arena_take(arena, rows * sizeof *b->sent_ns);
    b->flags = um_arena_take(arena, rows * sizeof *b->flags);
    b->requests = um_arena_take(arena, rows * sizeof *b->requests);
    b->properties = um_arena_take(arena, rows * sizeof *b->properties);
    b->payload = um_arena_take(arena, payload_bytes);
}

/* A block takes messages while it is below its soft capacity, so the last one may reach this far. */
static uint32_t payload_space(uint32_t payload_capacity, uint32_t message_max_bytes)
{
    return payload_capacity + message_max_bytes;
}

size_t um_queue_footprint(uint32_t block_count, uint32_t row_capacity, uint32_t payload_capacity,
                          uint32_t message_max_bytes)
{
    if (block_count < 4 || block_count > UM_QUEUE_BLOCKS_MAX || row_capacity < 64 || payload_capacity < 4096 ||
        message_max_bytes < UM_QUEUE_MESSAGE_BYTES_MIN || (uint64_t)payload_capacity + message_max_bytes > INT32_MAX)
        return 0;
    um_arena arena = {NULL, 0};
    for (uint32_t i = 0; i < block_count; i++)
        carve(NULL, &arena, row_capacity, pinned_capacity(payload_capacity),
              payload_space(payload_capacity, message_max_bytes));
    return arena.used_bytes;
}

static um_block *block_at(um_message_queue *queue, uint64_t ordinal)
{
    return &queue->blocks[queue->sequence[ordinal % queue->block_count]];
}

/* ---- frames ---- */

/* Returns how many of a block's frames need no reader: their rows are released or materialized. */
static uint32_t returnable_end(const um_block *block)
{
    uint32_t count = atomic_load_explicit(&block->pinned_count, memory_order_relaxed), done = block->pinned_returned;
    if (done == count || atomic_load_explicit(&block->released_count, memory_order_acquire) ==
                             atomic_load_explicit(&block->published_count, memory_order_relaxed))
        return count;
    while (done < count && atomic_load_explicit(&block->pinned[done].materialized, memory_order_acquire))
        done++;
    return done;
}

static void return_frames(um_message_queue *queue, um_block *block)
{
    uint32_t end = returnable_end(block);
    while (block->pinned_returned < end) {
        const uint8_t *payloads[RETURNED_TOGETHER];
        um_frames *frames = block->pinned[block->pinned_returned].frames;
        uint32_t count = 0;
        while (block->pinned_returned < end && count < RETURNED_TOGETHER &&
               block->pinned[block->pinned_returned].frames == frames)
            payloads[count++] = block->pinned[block->pinned_returned++].payload;
        frames->unpin(frames, payloads, count);
        queue->pinned_count -= count;
    }
}

/* Returns frames in arrival order, except that blocks held long by a reader come last: the kernel fills frames in the
 * order of their return, and its per-frame data stays in the caches if they are adjacent. */
void um_queue_return_frames(um_message_queue *queue)
{
    uint64_t opened = atomic_load_explicit(&queue->opened_count, memory_order_relaxed);
    uint64_t first = opened > queue->block_count ? opened - queue->block_count : 0;
    for (uint64_t ordinal = first; ordinal < opened && queue->pinned_count > 0; ordinal++) {
        um_block *block = block_at(queue, ordinal);
        if (block->ordinal == ordinal)
            return_frames(queue, block);
    }
    for (uint32_t i = 0; i < queue->block_count && queue->pinned_count > 0; i++)
        if (queue->blocks[i].is_in_use)
            return_frames(queue, &queue->blocks[i]);
}

/* Returns the first entry for this row or a later one. */
static uint32_t find_pinned(const um_block *block, uint32_t count, uint32_t row)
{
    uint32_t low = 0;
    while (low < count) {
        uint32_t middle = low + (count - low) / 2;
        if (block->pinned[middle].row < row)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

static uint32_t length_of(const um_block *block, uint32_t row)
{
    return (uint32_t)(block->offsets[row + 1] - block->offsets[row]);
}

/* Prefetches a payload, which another processor wrote. */
static void prefetch_pinned(const um_block *block, uint32_t at)
{
    um_prefetch(block->pinned[at].payload, length_of(block, block->pinned[at].row));
}

void um_block_materialize(um_block *block, uint32_t first, uint32_t count)
{
    uint32_t pinned_count = atomic_load_explicit(&block->pinned_count, memory_order_acquire);
    uint32_t from = find_pinned(block, pinned_count, first), end = find_pinned(block, pinned_count, first + count);
    for (uint32_t at = from; at < end && at < from + MATERIALIZE_AHEAD; at++)
        prefetch_pinned(block, at);
    for (uint32_t at = from; at < end; at++) {
        um_pinned_row *pinned = &block->pinned[at];
        if (at + MATERIALIZE_AHEAD < end)
            prefetch_pinned(block, at + MATERIALIZE_AHEAD);
        if (atomic_load_explicit(&pinned->materialized, memory_order_relaxed))
            continue;
        memcpy(block->payload + block->offsets[pinned->row], pinned->payload, length_of(block, pinned->row));
        atomic_store_explicit(&pinned->materialized, 1, memory_order_release);
    }
}

/* Returns the payload of a row. `at`: the row's entry, or the first of a later row. */
static const uint8_t *payload_of(const um_block *block, uint32_t row, uint32_t at, uint32_t pinned_count)
{
    const um_pinned_row *pinned = &block->pinned[at];
    if (at < pinned_count && pinned->row == row && !atomic_load_explicit(&pinned->materialized, memory_order_relaxed))
        return pinned->payload;
    return block->payload + block->offsets[row];
}

void um_block_heads(const um_block *block, uint32_t first, uint32_t count, uint32_t bytes, uint8_t *out)
{
    uint32_t pinned_count = atomic_load_explicit(&block->pinned_count, memory_order_acquire);
    uint32_t at = find_pinned(block, pinned_count, first);
    for (uint32_t row = first; row < first + count; row++, out += bytes) {
        uint32_t length = length_of(block, row), copied = length < bytes ? length : bytes;
        memcpy(out, payload_of(block, row, at, pinned_count), copied);
        memset(out + copied, 0, bytes - copied);
        at += at < pinned_count && block->pinned[at].row == row;
    }
}

uint32_t um_block_copy(const um_block *block, uint32_t row, uint8_t *out, uint32_t capacity)
{
    uint32_t pinned_count = atomic_load_explicit(&block->pinned_count, memory_order_acquire);
    uint32_t length = length_of(block, row);
    const uint8_t *payload = payload_of(block, row, find_pinned(block, pinned_count, row), pinned_count);
    memcpy(out, payload, length < capacity ? length : capacity);
    return length;
}

/* ---- blocks ---- */

static void open_block(um_message_queue *queue, uint32_t index)
{
    um_block *block = &queue->blocks[index];
    atomic_store_explicit(&block->published_count, 0, memory_order_relaxed);
    atomic_store_explicit(&block->released_count, 0, memory_order_relaxed);
    return_frames(queue, block);
    atomic_store_explicit(&block->pinned_count, 0, memory_order_relaxed);
    block->pinned_returned = 0;
    block->is_in_use = true;
    block->payload_bytes = 0;
    block->payload_limit = queue->payload_capacity;
    block->properties_begin = payload_space(queue->payload_capacity, queue->message_max_bytes);
    block->offsets[0] = 0;
    uint64_t ordinal = atomic_load_explicit(&queue->opened_count, memory_order_relaxed);
    block->ordinal = ordinal;
    queue->sequence[ordinal % queue->block_count] = index;
    queue->current = block;
    queue->current_row = 0;
    atomic_store_explicit(&queue->opened_count, ordinal + 1, memory_order_release);
}

void um_queue_init(um_message_queue *queue, void *memory, uint32_t block_count, uint32_t row_capacity,
                   uint32_t payload_capacity, uint32_t message_max_bytes)
{
    memset(queue, 0, sizeof *queue);
    queue->block_count = block_count;
    queue->row_capacity = row_capacity;
    queue->payload_capacity = payload_capacity;
    queue->message_max_bytes = message_max_bytes;
    queue->hold_ns = UM_NEVER_NS;
    um_arena arena = {memory, 0};
    for (uint32_t i = 0; i < block_count; i++)
        carve(&queue->blocks[i], &arena, row_capacity, pinned_capacity(payload_capacity),
              payload_space(payload_capacity, message_max_bytes));
    open_block(queue, 0);
}

static bool is_free(const um_message_queue *queue, const um_block *block)
{
    if (!block->is_in_use)
        return true;
    return block != queue->current && block->ordinal < atomic_load_explicit(&queue->read_block, memory_order_acquire) &&
           atomic_load_explicit(&block->released_count, memory_order_acquire) ==
               atomic_load_explicit(&block->published_count, memory_order_relaxed);
}

bool um_queue_has_free_blocks(const um_message_queue *queue, uint32_t blocks)
{
    for (uint32_t i = 0; i < queue->block_count && blocks > 0; i++)
        blocks -= is_free(queue, &queue->blocks[i]);
    return blocks == 0;
}

static enum um_queue_state next_state(um_message_queue *queue, int64_t now_ns)
{
    if (queue->state == UM_QUEUE_OPEN)
        return UM_QUEUE_OPEN;
    bool is_cut = queue->state == UM_QUEUE_CUT_LOOSE;
    if (um_queue_has_free_blocks(queue, is_cut ? queue->block_count / 2 : 1))
        return UM_QUEUE_OPEN;
    if (!is_cut && queue->full_since_ns == 0)
        queue->full_since_ns = now_ns;
    return is_cut || now_ns - queue->full_since_ns >= queue->hold_ns ? UM_QUEUE_CUT_LOOSE : queue->state;
}

bool um_queue_review(um_message_queue *queue, int64_t now_ns)
{
    enum um_queue_state before = queue->state;
    queue->state = next_state(queue, now_ns);
    return queue->state != before;
}

uint64_t um_queue_free_bytes(const um_message_queue *queue)
{
    uint64_t bytes = 0;
    if (queue->current_row < queue->row_capacity && queue->current->payload_bytes < queue->current->payload_limit)
        bytes += queue->current->payload_limit - queue->current->payload_bytes;
    for (uint32_t i = 0; i < queue->block_count; i++)
        if (is_free(queue, &queue->blocks[i]))
            bytes += queue->payload_capacity;
    return bytes;
}

static bool next_block(um_message_queue *queue)
{
    for (uint32_t i = 0; i < queue->block_count; i++) {
        if (!is_free(queue, &queue->blocks[i]))
            continue;
        open_block(queue, i);
        return true;
    }
    return false;
}

uint8_t *um_queue_reserve(um_message_queue *queue, uint32_t payload_bytes)
{
    (void)payload_bytes; /* only asserted: beyond its capacity each block has space for the longest message */
    um_debug_assert(payload_bytes <= queue->message_max_bytes);
    um_block *block = queue->current;
    bool full = queue->current_row == queue->row_capacity || block->payload_bytes >= block->payload_limit;
    if (UM_UNLIKELY(full && queue->absorb != NULL))
        queue->absorb(queue);
    if (UM_UNLIKELY(full && !next_block(queue)))
        return NULL;
    return queue->current->payload + queue->current->payload_bytes;
}

void um_queue_append_pinned(um_message_queue *queue, const um_row *row, const uint8_t *payload, uint32_t payload_bytes,
                            um_frames *frames)
{
    um_block *block = queue->current;
    uint32_t count = atomic_load_explicit(&block->pinned_count, memory_order_relaxed);
    um_debug_assert(payload_bytes >= UM_QUEUE_PINNED_BYTES_MIN && count < pinned_capacity(queue->payload_capacity));
    um_pinned_row *pinned = &block->pinned[count];
    pinned->payload = payload;
    pinned->frames = frames;
    pinned->row = queue->current_row;
    atomic_store_explicit(&pinned->materialized, 0, memory_order_relaxed);
    atomic_store_explicit(&block->pinned_count, count + 1, memory_order_release);
    queue->pinned_count++;
    um_queue_append(queue, row, payload_bytes);
}

void um_queue_append(um_message_queue *queue, const um_row *row, uint32_t payload_bytes)
{
    um_block *block = queue->current;
    uint32_t i = queue->current_row++;
    block->payload_bytes += payload_bytes;
    block->offsets[i + 1] = (int32_t)block->payload_bytes;
    block->sequence_numbers[i] = row->sequence_number;
    block->first_sequence_numbers[i] = row->first_sequence_number;
    block->fragment_offsets[i] = row->fragment_offset;
    block->message_lengths[i] = row->message_length;
    block->sources[i] = row->source;
    block->received_ns[i] = row->received_ns;
    block->sent_ns[i] = row->sent_ns;
    block->flags[i] = row->flags;
    if (UM_UNLIKELY(queue->clock_ns != NULL))
        block->enqueued_ns[i] = *queue->clock_ns;
    uint64_t appended = atomic_load_explicit(&queue->appended_count, memory_order_relaxed);
    atomic_store_explicit(&queue->appended_count, appended + 1, memory_order_relaxed);
    atomic_store_explicit(&block->published_count, i + 1, memory_order_release);
}

/* There is space for both: the limit, reduced by all properties, leaves space for the longest message. */
void um_queue_append_with_properties(um_message_queue *queue, const um_row *row, uint32_t payload_bytes,
                                     uint32_t properties_bytes)
{
    um_block *block = queue->current;
    um_debug_assert(row->flags & UM_MESSAGE_PROPERTIES);
    um_debug_assert(payload_bytes + properties_bytes <= block->properties_begin - block->payload_bytes);
    block->properties_begin -= properties_bytes;
    block->payload_limit -= properties_bytes < block->payload_limit ? properties_bytes : block->payload_limit;
    memmove(block->payload + block->properties_begin, block->payload + block->payload_bytes + payload_bytes,
            properties_bytes);
    block->properties[queue->current_row] = (um_properties_place){block->properties_begin, properties_bytes};
    um_queue_append(queue, row, payload_bytes);
}

/* Returns the block that the consumer reads; moves to the next one if all rows of a complete block are taken. */
static um_block *reading_block(um_message_queue *queue)
{
    uint64_t ordinal = atomic_load_explicit(&queue->read_block, memory_order_relaxed);
    um_block *block = block_at(queue, ordinal);
    if (ordinal + 1 < atomic_load_explicit(&queue->opened_count, memory_order_acquire) &&
        queue->read_row == atomic_load_explicit(&block->published_count, memory_order_relaxed)) {
        block = block_at(queue, ordinal + 1);
        queue->read_row = 0;
        atomic_store_explicit(&queue->read_block, ordinal + 1, memory_order_release);
    }
    return block;
}

um_rows um_queue_take(um_message_queue *queue, uint32_t max)
{
    um_block *block = reading_block(queue);
    uint32_t ready = atomic_load_explicit(&block->published_count, memory_order_acquire) - queue->read_row;
    um_rows rows = {block, queue->read_row, ready < max ? ready : max};
    queue->read_row += rows.count;
    uint64_t taken = atomic_load_explicit(&queue->taken_count, memory_order_relaxed);
    atomic_store_explicit(&queue->taken_count, taken + rows.count, memory_order_release);
    return rows;
}

bool um_queue_is_ready(um_message_queue *queue)
{
    const um_block *block = reading_block(queue);
    return atomic_load_explicit(&block->published_count, memory_order_acquire) > queue->read_row;
}
