#include "core/delivery/conflation.h"

/* ---- memory ---- */

static uint32_t row_capacity_of(const um_message_queue *input)
{
    return input->block_count * input->row_capacity;
}

static size_t payload_capacity_of(const um_message_queue *input)
{
    return (size_t)input->block_count * input->payload_capacity + input->message_max_bytes;
}

/* conflation: NULL only measures. Returns the memory of the output queue. */
static void *carve(um_conflation *conflation, um_arena *arena, const um_message_queue *input)
{
    um_conflation ignored;
    um_conflation *c = conflation ? conflation : &ignored;
    c->row_capacity = row_capacity_of(input);
    c->payload_capacity = payload_capacity_of(input);
    c->table_mask = (uint32_t)um_power_of_two_at_least(2 * (uint64_t)c->row_capacity) - 1;
    c->rows = um_arena_take(arena, c->row_capacity * sizeof *c->rows);
    c->table = um_arena_take(arena, (c->table_mask + 1) * sizeof *c->table);
    c->payloads = um_arena_take(arena, c->payload_capacity);
    c->spare = um_arena_take(arena, c->payload_capacity);
    return um_arena_take(arena, um_queue_footprint(input->block_count, input->row_capacity, input->payload_capacity,
                                                   input->message_max_bytes));
}

size_t um_conflation_footprint(const um_message_queue *input)
{
    um_arena arena = {NULL, 0};
    carve(NULL, &arena, input);
    return arena.used_bytes;
}

void um_conflation_init(um_conflation *conflation, void *memory, um_message_queue *input, uint32_t key_bytes)
{
    um_debug_assert(key_bytes <= UM_CONFLATION_KEY_BYTES_MAX);
    memset(conflation, 0, sizeof *conflation);
    um_arena arena = {memory, 0};
    void *out = carve(conflation, &arena, input);
    um_queue_init(&conflation->out, out, input->block_count, input->row_capacity, input->payload_capacity,
                  input->message_max_bytes);
    conflation->out.clock_ns = &conflation->enqueued_ns;
    conflation->input = input;
    conflation->key_bytes = key_bytes;
}

/* ---- keys ---- */

/* Bytes of the payload that belong to the key; an event has none. */
static uint32_t prefix_bytes(const um_conflation *c, uint16_t flags, uint32_t payload_bytes)
{
    if (um_row_kind_of(flags) != UM_ROW_MESSAGE)
        return 0;
    return payload_bytes < c->key_bytes ? payload_bytes : c->key_bytes;
}

static uint32_t hash_of(const um_conflated_row *row, const uint8_t *payload, uint32_t prefix)
{
    uint64_t hash = ((uint64_t)row->row.source << 32 | um_row_kind_of(row->row.flags)) * 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < prefix; i++)
        hash = (hash ^ payload[i]) * 0x100000001b3u;
    return (uint32_t)(hash ^ hash >> 32);
}

static bool has_key_of(const um_conflation *c, const um_conflated_row *held, const um_conflated_row *row,
                       const uint8_t *payload)
{
    uint32_t prefix = prefix_bytes(c, row->row.flags, row->payload_bytes);
    return held->hash == row->hash && held->row.source == row->row.source &&
           um_row_kind_of(held->row.flags) == um_row_kind_of(row->row.flags) &&
           prefix == prefix_bytes(c, held->row.flags, held->payload_bytes) &&
           memcmp(c->payloads + held->offset, payload, prefix) == 0;
}

static bool is_held(const um_conflation *c, uint32_t index)
{
    return index >= c->first && index < c->end;
}

/* Returns the held row with the key of `row`, or NULL, and the entry of the key: unused, or of a row that has left, if
 * there is no such row. */
static um_conflated_row *find(const um_conflation *c, const um_conflated_row *row, const uint8_t *payload,
                              uint32_t **entry)
{
    *entry = NULL;
    for (uint32_t at = row->hash & c->table_mask;; at = (at + 1) & c->table_mask) {
        uint32_t index = c->table[at] - 1;
        if (is_held(c, index) && has_key_of(c, &c->rows[index], row, payload))
            return &c->rows[index];
        if (*entry == NULL && !is_held(c, index))
            *entry = &c->table[at];
        if (c->table[at] == 0)
            return NULL;
    }
}

/* ---- held rows ---- */

static uint32_t bytes_of(const um_conflated_row *row)
{
    return row->payload_bytes + row->properties_bytes;
}

/* Moves the held rows to the start of their memory, and removes entries of other rows from the table. */
static void compact(um_conflation *c)
{
    uint8_t *target = c->spare;
    uint32_t end = 0;
    size_t payload_end = 0;
    memset(c->table, 0, (c->table_mask + 1) * sizeof *c->table);
    for (uint32_t i = c->first; i < c->end; i++) {
        um_conflated_row *row = &c->rows[end];
        *row = c->rows[i];
        row->space_bytes = bytes_of(row);
        memcpy(target + payload_end, c->payloads + row->offset, row->space_bytes);
        row->offset = payload_end;
        payload_end += row->space_bytes;
        uint32_t at = row->hash & c->table_mask;
        while (c->table[at] != 0)
            at = (at + 1) & c->table_mask;
        c->table[at] = ++end;
    }
    c->spare = c->payloads;
    c->payloads = target;
    c->first = 0;
    c->end = c->table_used = end;
    c->payload_end = payload_end;
}

static bool has_space(const um_conflation *c, uint32_t bytes)
{
    return c->end < c->row_capacity && c->table_used < c->row_capacity && c->payload_capacity - c->payload_end >= bytes;
}

/* Makes space for another row or a longer payload. Returns false if held rows use most of the memory: a little space
 * would soon be used, and each compaction copies them all. */
static bool make_space(um_conflation *c, uint32_t bytes)
{
    if (has_space(c, bytes))
        return true;
    if (c->held_bytes > c->payload_capacity / 4 * 3 || c->end - c->first > c->row_capacity / 4 * 3)
        return false;
    compact(c);
    return has_space(c, bytes);
}

static void read_row(const um_conflation *c, const um_block *block, uint32_t i, um_conflated_row *row)
{
    *row = (um_conflated_row){.row = {.flags = block->flags[i],
                                      .sequence_number = block->sequence_numbers[i],
                                      .first_sequence_number = block->first_sequence_numbers[i],
                                      .fragment_offset = block->fragment_offsets[i],
                                      .message_length = block->message_lengths[i],
                                      .source = block->sources[i],
                                      .received_ns = block->received_ns[i],
                                      .sent_ns = block->sent_ns[i]},
                              .enqueued_ns = c->input->clock_ns != NULL ? block->enqueued_ns[i] : 0,
                              .payload_bytes = (uint32_t)(block->offsets[i + 1] - block->offsets[i])};
    if (row->row.flags & UM_MESSAGE_REQUEST)
        row->request = block->requests[i];
    if (row->row.flags & UM_MESSAGE_PROPERTIES)
        row->properties_bytes = block->properties[i].bytes;
}

/* Holds a row of the input, in place of an older one of its key. Returns false without space. */
static bool hold(um_conflation *c, const um_block *block, uint32_t i)
{
    um_conflated_row row;
    read_row(c, block, i, &row);
    const uint8_t *payload = block->payload + block->offsets[i]; /* rows of the input are not left in frames */
    row.hash = hash_of(&row, payload, prefix_bytes(c, row.row.flags, row.payload_bytes));
    uint32_t bytes = bytes_of(&row);
    uint32_t *entry;
    um_conflated_row *held = find(c, &row, payload, &entry);
    if (held == NULL || held->space_bytes < bytes) {
        if (!make_space(c, bytes))
            return false;
        held = find(c, &row, payload, &entry); /* rows may have moved */
        row.offset = c->payload_end;
        row.space_bytes = bytes;
        c->payload_end += bytes;
    } else {
        row.offset = held->offset;
        row.space_bytes = held->space_bytes;
    }
    if (held != NULL) {
        c->conflated_count += um_row_kind_of(row.row.flags) == UM_ROW_MESSAGE;
        c->held_bytes -= bytes_of(held);
    } else {
        held = &c->rows[c->end++];
        c->table_used += *entry == 0;
        *entry = c->end;
    }
    *held = row;
    c->held_bytes += bytes;
    memcpy(c->payloads + row.offset, payload, row.payload_bytes);
    if (row.properties_bytes > 0)
        memcpy(c->payloads + row.offset + row.payload_bytes, block->payload + block->properties[i].offset,
               row.properties_bytes);
    return true;
}

void um_conflation_absorb(um_conflation *conflation)
{
    um_rows *rows = &conflation->unread;
    for (;;) {
        if (rows->count == 0)
            *rows = um_queue_take(conflation->input, UINT32_MAX);
        if (rows->count == 0)
            return;
        uint32_t held = 0;
        while (held < rows->count && hold(conflation, rows->block, rows->first + held))
            held++;
        um_queue_release(rows->block, held);
        rows->first += held;
        rows->count -= held;
        if (rows->count > 0)
            return;
    }
}

/* ---- the output ---- */

/* Appends the first held row to the output, which has space. */
static void deliver(um_conflation *c, uint8_t *space)
{
    const um_conflated_row *held = &c->rows[c->first++];
    memcpy(space, c->payloads + held->offset, bytes_of(held));
    c->enqueued_ns = held->enqueued_ns;
    c->held_bytes -= bytes_of(held);
    if (held->row.flags & UM_MESSAGE_REQUEST)
        um_queue_note_request(&c->out, &held->request);
    if (held->row.flags & UM_MESSAGE_PROPERTIES)
        um_queue_append_with_properties(&c->out, &held->row, held->payload_bytes, held->properties_bytes);
    else
        um_queue_append(&c->out, &held->row, held->payload_bytes);
}

/* Rows move to the output only if this read returns them: they could not be replaced there. So all of them are in one
 * block. */
um_rows um_conflation_take(um_conflation *conflation, uint32_t max)
{
    um_conflation *c = conflation;
    const um_block *block = NULL;
    um_conflation_absorb(c);
    for (uint32_t count = 0; count < max && c->first < c->end; count++) {
        uint8_t *space = um_queue_reserve(&c->out, bytes_of(&c->rows[c->first]));
        if (space == NULL || (block != NULL && block != c->out.current))
            break;
        block = c->out.current;
        deliver(c, space);
    }
    if (c->first == c->end) { /* the memory is used from its start again */
        c->first = c->end = 0;
        c->payload_end = 0;
    }
    return um_queue_take(&c->out, max);
}

uint32_t um_conflation_held(const um_conflation *conflation)
{
    return conflation->end - conflation->first + conflation->unread.count;
}

bool um_conflation_is_ready(um_conflation *conflation)
{
    bool has_rows = um_conflation_held(conflation) > 0 || um_queue_is_ready(conflation->input);
    return has_rows && um_queue_reserve(&conflation->out, 0) != NULL;
}
