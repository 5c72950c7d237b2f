#include "core/delivery/hot_failover.h"

enum {
    TAKEN_TOGETHER = 64,
    LOSS_EVENTS_MAX = 1024, /* a longer run is one event */
    JUMP_CONFIRMED_WITHIN = 1024,
};

size_t um_hot_failover_footprint(const um_hot_failover_config *config)
{
    if (!um_is_power_of_two(config->capacity) || config->capacity > UM_HF_GAP_MAX / 2)
        return 0;
    return (size_t)config->capacity * sizeof(um_hf_slot);
}

void um_hot_failover_init(um_hot_failover *hf, void *memory, const um_hot_failover_config *config)
{
    memset(hf, 0, sizeof *hf);
    hf->config = *config;
    hf->slots = memory;
    um_hot_failover_counters_reset(&hf->counters);
}

static um_hf_slot *slot_of(const um_hot_failover *hf, uint64_t sqn)
{
    return &hf->slots[sqn & (hf->config.capacity - 1)];
}

/* ---- the output ---- */

static bool has_space(um_hot_failover *hf)
{
    return um_queue_reserve(&hf->out, 0) != NULL;
}

static void append_event(um_hot_failover *hf, enum um_row_kind kind, uint32_t source, uint64_t first, uint64_t last)
{
    bool is_range = kind == UM_ROW_BURST_LOSS;
    um_row row = {.flags = (uint16_t)((unsigned)kind << 8 | (is_range ? 0u : (unsigned)UM_MESSAGE_HOT_FAILOVER)),
                  .sequence_number = (uint32_t)last,
                  .first_sequence_number = is_range ? (uint32_t)first : (uint32_t)(last >> 32),
                  .source = source,
                  .received_ns = 0};
    um_queue_append(&hf->out, &row, 0);
}

/* Rows of hot failover receivers are never left in frames. */
static const uint8_t *payload_of(const um_block *block, uint32_t row)
{
    return block->payload + block->offsets[row];
}

static uint32_t length_of(const um_block *block, uint32_t row)
{
    return (uint32_t)(block->offsets[row + 1] - block->offsets[row]);
}

/* Delivers a row of an input without its first `skipped` bytes, and releases it. The output has space. */
static void deliver(um_hot_failover *hf, um_block *block, uint32_t row, uint32_t skipped, uint16_t flags,
                    const uint64_t *sqn)
{
    uint32_t length = length_of(block, row) - skipped;
    um_properties_place properties = {0};
    if (block->flags[row] & UM_MESSAGE_PROPERTIES)
        properties = block->properties[row];
    uint8_t *space = um_queue_reserve(&hf->out, length + properties.bytes);
    memcpy(space, payload_of(block, row) + skipped, length);
    um_row out = {.flags = block->flags[row] | flags,
                  .sequence_number = sqn ? (uint32_t)*sqn : block->sequence_numbers[row],
                  .first_sequence_number = sqn ? (uint32_t)(*sqn >> 32) : block->first_sequence_numbers[row],
                  .fragment_offset = 0,
                  .message_length = length,
                  .source = block->sources[row],
                  .received_ns = block->received_ns[row],
                  .sent_ns = block->sent_ns[row]};
    if (out.flags & UM_MESSAGE_REQUEST)
        um_queue_note_request(&hf->out, &block->requests[row]);
    if (properties.bytes > 0) {
        memcpy(space + length, block->payload + properties.offset, properties.bytes);
        um_queue_append_with_properties(&hf->out, &out, length, properties.bytes);
    } else {
        um_queue_append(&hf->out, &out, length);
    }
    um_queue_release(block, 1);
}

/* ---- gaps ---- */

static void find_lowest(um_hot_failover *hf)
{
    for (hf->lowest = hf->next_sqn; hf->held_count > 0 && slot_of(hf, hf->lowest)->block == NULL;)
        hf->lowest++;
}

static uint32_t source_of_head(const um_hot_failover *hf)
{
    const um_hf_slot *slot = slot_of(hf, hf->lowest);
    return slot->block->sources[slot->row];
}

/* Declares [next_sqn, end) lost. Returns false if there is no space for all of it. */
static bool give_up(um_hot_failover *hf, uint64_t end, uint32_t source)
{
    while (hf->next_sqn < end) {
        if (!has_space(hf))
            return false;
        uint64_t left = end - hf->next_sqn;
        bool is_long = left > LOSS_EVENTS_MAX;
        append_event(hf, is_long ? UM_ROW_BURST_LOSS : UM_ROW_UNRECOVERABLE_LOSS, source, hf->next_sqn,
                     is_long ? end - 1 : hf->next_sqn);
        UM_COUNT(hf->counters.hf_lost, is_long ? left : 1);
        hf->next_sqn += is_long ? left : 1;
    }
    return true;
}

/* Delivers the slot of next_sqn. */
static void deliver_held(um_hot_failover *hf)
{
    um_hf_slot *slot = slot_of(hf, hf->next_sqn);
    um_lbmc_hot_failover number;
    const uint8_t *payload = payload_of(slot->block, slot->row);
    uint32_t skipped = um_lbmc_read_hot_failover(payload, length_of(slot->block, slot->row), &number);
    if (slot->is_optional && !hf->config.delivers_optional) {
        UM_COUNT(hf->counters.hf_optional_dropped, 1);
        um_queue_release(slot->block, 1);
    } else {
        deliver(hf, slot->block, slot->row, skipped, 0, &hf->next_sqn);
        UM_COUNT(hf->counters.hf_delivered, 1);
    }
    slot->block = NULL;
    hf->held_count--;
    hf->next_sqn++;
}

/* True if waiting messages use half of an input's blocks, so that the context would soon stop receiving. */
static bool is_input_half_used(const um_hot_failover *hf, const um_hf_slot *slot)
{
    const um_message_queue *input = hf->inputs[slot->input];
    uint64_t opened = atomic_load_explicit(&input->opened_count, memory_order_acquire);
    return opened - slot->block->ordinal > input->block_count / 2;
}

/* True if the line of the lowest message left out all numbers between next_sqn and it; they are passed. */
static bool pass_left_out(um_hot_failover *hf)
{
    const um_hf_slot *slot = slot_of(hf, hf->lowest);
    if (!slot->has_previous || slot->previous >= hf->next_sqn)
        return false;
    UM_COUNT(hf->counters.hf_left_out, hf->lowest - hf->next_sqn);
    hf->next_sqn = hf->lowest;
    return true;
}

/* Delivers the next messages, passes numbers that do not exist, and gives up those that have timed out. Timeouts count
 * only when every input was read, because the missing number may wait there. Returns false if there is no space. */
static bool drain(um_hot_failover *hf, bool is_caught_up)
{
    while (hf->held_count > 0) {
        if (slot_of(hf, hf->next_sqn)->block != NULL) {
            if (!has_space(hf))
                return false;
            deliver_held(hf);
            if (hf->held_count > 0 && hf->lowest < hf->next_sqn)
                find_lowest(hf);
            continue;
        }
        const um_hf_slot *slot = slot_of(hf, hf->lowest);
        if (pass_left_out(hf))
            continue;
        if ((is_caught_up && hf->now_ns - slot->arrived_ns >= hf->config.max_delay_ns) ||
            is_input_half_used(hf, slot)) {
            if (!give_up(hf, hf->lowest, source_of_head(hf)))
                return false;
        } else {
            return true;
        }
    }
    return true;
}

int64_t um_hot_failover_deadline_ns(const um_hot_failover *hf)
{
    return hf->held_count == 0 ? UM_NEVER_NS : slot_of(hf, hf->lowest)->arrived_ns + hf->config.max_delay_ns;
}

/* Delivers everything held, then the reset. Returns false if there is no space; the reset stays due. */
static bool reset(um_hot_failover *hf)
{
    while (hf->held_count > 0) {
        if ((!pass_left_out(hf) && !give_up(hf, hf->lowest, source_of_head(hf))) || !has_space(hf))
            return false;
        deliver_held(hf);
        find_lowest(hf);
    }
    if (!has_space(hf))
        return false;
    append_event(hf, UM_ROW_HF_RESET, hf->reset_source, 0, hf->reset_sqn);
    UM_COUNT(hf->counters.hf_resets, 1);
    hf->next_sqn = hf->reset_sqn;
    hf->has_begun = true;
    hf->is_reset_due = false;
    return true;
}

/* ---- sources ---- */

/* A new source takes the entry of the source that sent nothing for the longest time, so restarts never fill the table.
 * With more sources alive than entries, skipped numbers of an evicted one are not recognized and time out. */
static um_hf_source *find_source(um_hot_failover *hf, uint32_t number)
{
    um_hf_source *oldest = &hf->sources[number % UM_HF_SOURCES];
    hf->uses++;
    for (uint32_t i = 0; i < UM_HF_SOURCES && oldest->is_in_use; i++) {
        um_hf_source *source = &hf->sources[(number + i) % UM_HF_SOURCES];
        if (source->is_in_use && source->number == number) {
            source->last_use = hf->uses;
            return source;
        }
        if (!source->is_in_use || source->last_use < oldest->last_use)
            oldest = source;
    }
    memset(oldest, 0, sizeof *oldest);
    oldest->is_in_use = true;
    oldest->number = number;
    oldest->resets = hf->resets;
    oldest->last_use = hf->uses;
    return oldest;
}

static const um_hf_neighbour *find_neighbour(const um_hf_neighbour *table, uint32_t topic_sqn)
{
    const um_hf_neighbour *found = &table[topic_sqn % UM_HF_NEIGHBOURS];
    return found->is_known && found->topic_sqn == topic_sqn ? found : NULL;
}

/* Remembers a message and returns the one before it. If the one behind it waits already, its slot is updated. */
static const um_hf_neighbour *note_neighbours(um_hot_failover *hf, um_hf_source *source, uint32_t first, uint32_t last,
                                              uint64_t sqn)
{
    const um_hf_neighbour *next = find_neighbour(source->by_first, last + 1);
    source->by_last[last % UM_HF_NEIGHBOURS] = (um_hf_neighbour){true, last, sqn};
    source->by_first[first % UM_HF_NEIGHBOURS] = (um_hf_neighbour){true, first, sqn};
    if (next != NULL && next->sqn >= hf->next_sqn && next->sqn - hf->next_sqn < hf->config.capacity) {
        um_hf_slot *slot = slot_of(hf, next->sqn);
        if (slot->block != NULL && !slot->has_previous) {
            slot->has_previous = true;
            slot->previous = sqn;
        }
    }
    return find_neighbour(source->by_last, first - 1);
}

/* ---- arrivals ---- */

static void drop(um_hot_failover *hf, um_block *block, uint32_t row, uint64_t sqn, uint32_t skipped)
{
    UM_COUNT(hf->counters.hf_duplicates, 1);
    if (hf->config.delivers_duplicates)
        deliver(hf, block, row, skipped, UM_MESSAGE_HF_DUPLICATE, &sqn);
    else
        um_queue_release(block, 1);
}

static void on_other_row(um_hot_failover *hf, um_block *block, uint32_t row)
{
    uint32_t kind = um_row_kind_of(block->flags[row]);
    if (kind != UM_ROW_UNRECOVERABLE_LOSS && kind != UM_ROW_BURST_LOSS) {
        deliver(hf, block, row, 0, 0, NULL);
        return;
    }
    bool is_burst = kind == UM_ROW_BURST_LOSS;
    um_hf_source *source = find_source(hf, block->sources[row]);
    UM_COUNT(hf->counters.hf_line_losses,
             is_burst ? block->sequence_numbers[row] - block->first_sequence_numbers[row] + 1 : 1);
    source->resets = hf->resets; /* the gap may have contained a reset */
    um_queue_release(block, 1);
}

static void on_reset(um_hot_failover *hf, um_block *block, uint32_t row, uint64_t sqn, um_hf_source *source)
{
    uint64_t of_source = ++source->resets;
    if (of_source > hf->resets) {
        hf->resets = of_source;
        hf->is_reset_due = true;
        hf->reset_sqn = sqn;
        hf->reset_source = block->sources[row];
    }
    um_queue_release(block, 1);
}

/* Returns the number as 64 bits. A 32-bit number is extended to the value nearest to the expected one. */
static uint64_t widened(const um_hot_failover *hf, const um_lbmc_hot_failover *number)
{
    if (number->is_64_bits || !hf->has_begun)
        return number->sqn;
    return hf->next_sqn + (uint64_t)(int64_t)(int32_t)((uint32_t)number->sqn - (uint32_t)hf->next_sqn);
}

/* A jump beyond the slots would give up everything that it passes. It is accepted when another message confirms it, so
 * that one forged or damaged message cannot derail the stream. */
static bool is_jump_confirmed(um_hot_failover *hf, uint64_t sqn)
{
    uint64_t beyond = sqn - hf->jump_sqn;
    bool is_confirmed = hf->has_jumped && beyond >= 1 && beyond <= JUMP_CONFIRMED_WITHIN;
    hf->has_jumped = !is_confirmed;
    hf->jump_sqn = sqn;
    return is_confirmed;
}

static void hold(um_hot_failover *hf, uint32_t input, um_block *block, uint32_t row, uint64_t sqn,
                 const um_hf_neighbour *previous, bool is_optional)
{
    *slot_of(hf, sqn) = (um_hf_slot){.block = block,
                                     .row = row,
                                     .input = input,
                                     .has_previous = previous != NULL,
                                     .is_optional = is_optional,
                                     .previous = previous != NULL ? previous->sqn : 0,
                                     .arrived_ns = hf->now_ns};
    if (hf->held_count++ == 0 || sqn < hf->lowest)
        hf->lowest = sqn;
}

/* Handles a row; there is space for one. Returns false if the caller must repeat it, because there is no space for the
 * losses that it reveals. */
static bool on_row(um_hot_failover *hf, uint32_t input, um_block *block, uint32_t row)
{
    um_lbmc_hot_failover number;
    uint32_t skipped = 0;
    if (um_row_kind_of(block->flags[row]) == UM_ROW_MESSAGE && block->flags[row] & UM_MESSAGE_HOT_FAILOVER)
        skipped = um_lbmc_read_hot_failover(payload_of(block, row), length_of(block, row), &number);
    if (skipped == 0) {
        on_other_row(hf, block, row);
        return true;
    }
    um_hf_source *source = find_source(hf, block->sources[row]);
    uint64_t sqn = widened(hf, &number);
    if (number.is_reset) {
        on_reset(hf, block, row, number.sqn, source);
        return true;
    }
    if (source->resets < hf->resets) { /* sent before the reset */
        drop(hf, block, row, sqn, skipped);
        return true;
    }
    if (!hf->has_begun) {
        hf->has_begun = true;
        hf->next_sqn = sqn;
    }
    const um_hf_neighbour *previous =
        note_neighbours(hf, source, block->first_sequence_numbers[row], block->sequence_numbers[row], sqn);
    if (sqn < hf->next_sqn) {
        drop(hf, block, row, sqn, skipped);
        return true;
    }
    /* A number shortly after another one of its source is no jump, however long a gap blocks delivery. */
    bool follows = previous != NULL && (previous->sqn < hf->next_sqn || sqn - previous->sqn < hf->config.capacity);
    bool is_jump = sqn - hf->next_sqn >= hf->config.capacity && !follows;
    if (sqn - hf->next_sqn > UM_HF_GAP_MAX || (is_jump && !is_jump_confirmed(hf, sqn))) {
        UM_COUNT(hf->counters.hf_out_of_range, 1);
        um_queue_release(block, 1);
        return true;
    }
    while (sqn - hf->next_sqn >= hf->config.capacity) { /* beyond the slots */
        if (hf->held_count == 0 && previous != NULL && previous->sqn < hf->next_sqn) {
            UM_COUNT(hf->counters.hf_left_out, sqn - hf->next_sqn);
            hf->next_sqn = sqn;
        } else if (hf->held_count == 0 ? !give_up(hf, sqn - hf->config.capacity + 1, block->sources[row])
                                       : !give_up(hf, hf->lowest, source_of_head(hf)) || !drain(hf, false)) {
            return false;
        }
    }
    if (slot_of(hf, sqn)->block != NULL)
        drop(hf, block, row, sqn, skipped);
    else
        hold(hf, input, block, row, sqn, previous, number.is_optional);
    return true;
}

static bool merge_input(um_hot_failover *hf, uint32_t input)
{
    um_rows *taken = &hf->taken[input];
    if (taken->count == 0)
        *taken = um_queue_take(hf->inputs[input], TAKEN_TOGETHER);
    while (taken->count > 0) {
        if ((hf->is_reset_due && !reset(hf)) || !has_space(hf) || !on_row(hf, input, taken->block, taken->first))
            return false;
        taken->first++;
        taken->count--;
        if ((hf->is_reset_due && !reset(hf)) || !drain(hf, false))
            return false;
    }
    return true;
}

static uint64_t waiting(const um_message_queue *queue)
{
    return atomic_load_explicit(&queue->appended_count, memory_order_relaxed) -
           atomic_load_explicit(&queue->taken_count, memory_order_relaxed);
}

um_rows um_hot_failover_take(um_hot_failover *hf, uint32_t max, int64_t now_ns)
{
    hf->now_ns = now_ns;
    bool goes_on = (!hf->is_reset_due || reset(hf)) && drain(hf, false), is_caught_up = false;
    while (goes_on && !is_caught_up && waiting(&hf->out) < max) {
        is_caught_up = true;
        for (uint32_t i = 0; i < hf->input_count && goes_on; i++) {
            is_caught_up &= hf->taken[i].count == 0 && !um_queue_is_ready(hf->inputs[i]);
            goes_on = merge_input(hf, i);
        }
    }
    if (goes_on && is_caught_up)
        drain(hf, true);
    hf->counters.hf_waiting = hf->held_count;
    return um_queue_take(&hf->out, max);
}

bool um_hot_failover_is_ready(um_hot_failover *hf, int64_t now_ns)
{
    bool is_ready = um_queue_is_ready(&hf->out) || now_ns >= um_hot_failover_deadline_ns(hf);
    for (uint32_t i = 0; i < hf->input_count && !is_ready; i++)
        is_ready = hf->taken[i].count > 0 || um_queue_is_ready(hf->inputs[i]);
    return is_ready;
}
