#include "sim/trace.h"

#include <stdlib.h>

static void *append(um_sim_world *world, um_sim_buffer *buffer, size_t bytes)
{
    if (buffer->used + bytes > buffer->capacity) {
        size_t capacity = buffer->capacity == 0 ? 1 << 16 : 2 * buffer->capacity;
        while (capacity < buffer->used + bytes)
            capacity *= 2;
        uint8_t *grown = realloc(buffer->bytes, capacity);
        if (grown == NULL) {
            um_sim_complain(world, "no memory for a trace of %zu bytes", capacity);
            world->is_tracing = false;
            return NULL;
        }
        buffer->bytes = grown;
        buffer->capacity = capacity;
    }
    void *at = buffer->bytes + buffer->used;
    buffer->used += bytes;
    return at;
}

static size_t append_bytes(um_sim_world *world, um_sim_buffer *buffer, const uint8_t *data, size_t bytes)
{
    size_t at = buffer->used;
    void *space = bytes == 0 ? NULL : append(world, buffer, bytes);
    if (space != NULL)
        memcpy(space, data, bytes);
    return at;
}

void um_sim_keep_trace(um_sim_world *world)
{
    world->is_tracing = true;
}

void um_sim_note_datagram(um_sim_world *world, um_sim_datagram *datagram, const uint8_t *data)
{
    um_sim_trace_entry *entry = &datagram->entry;
    *entry = (um_sim_trace_entry){.length = datagram->length,
                                  .from = datagram->from_host,
                                  .from_address = datagram->from,
                                  .to_address = datagram->to,
                                  .type = UM_SIM_TYPE_UNKNOWN};
    um_packet packet = {0};
    if (um_framing_decode(world->transport, data, datagram->length, &packet) == UM_DGRAM_OK) {
        bool status = packet.type == UM_LBTRM_DATA && !um_sim_goes_to_receivers(datagram->to);
        entry->type = status ? UM_SIM_TYPE_STATUS : packet.type;
        entry->session_id = packet.session_id;
        entry->sqn = packet.sqn;
        entry->trail = packet.trail;
        entry->lead = packet.lead;
        entry->flags = packet.flags;
        entry->ncf_reason = packet.ncf_reason;
    }
    if (world->is_tracing)
        entry->bytes_at = append_bytes(world, &world->trace_bytes, data, datagram->length);
}

void um_sim_note(um_sim_world *world, const um_sim_datagram *datagram, enum um_sim_trace_what what, int32_t to,
                 enum um_sim_drop_reason reason)
{
    const um_sim_trace_entry *of = &datagram->entry;
    um_sim_digest(world, (uint64_t)world->now_ns ^ (uint64_t)what << 62);
    um_sim_digest(world, (uint64_t)of->sqn << 32 | (uint64_t)of->type << 24 | of->length);
    um_sim_digest(world, (uint64_t)(uint32_t)of->from << 32 | (uint64_t)(uint32_t)to << 8 | (uint64_t)reason);
    um_sim_trace_entry *entry = world->is_tracing ? append(world, &world->trace, sizeof *entry) : NULL;
    if (entry == NULL)
        return;
    *entry = *of;
    entry->time_ns = world->now_ns;
    entry->to = to;
    entry->what = (uint8_t)what;
    entry->drop_reason = (uint8_t)reason;
}

void um_sim_note_row(um_sim_world *world, const um_sim_receiver *receiver, const um_block *block, uint32_t row)
{
    uint32_t payload_length = (uint32_t)(block->offsets[row + 1] - block->offsets[row]);
    um_sim_digest(world, (uint64_t)world->now_ns ^ (uint64_t)block->flags[row] << 48);
    um_sim_digest(world, (uint64_t)block->sources[row] << 32 | block->sequence_numbers[row]);
    um_sim_row *kept = world->is_tracing ? append(world, &world->rows, sizeof *kept) : NULL;
    if (kept == NULL)
        return;
    *kept = (um_sim_row){.time_ns = world->now_ns,
                         .payload_length = payload_length,
                         .receiver = receiver->index,
                         .join = block->sources[row],
                         .sequence_number = block->sequence_numbers[row],
                         .first_sequence_number = block->first_sequence_numbers[row],
                         .fragment_offset = block->fragment_offsets[row],
                         .message_length = block->message_lengths[row],
                         .kind = um_row_kind_of(block->flags[row]),
                         .flags = block->flags[row] & 0xff};
    size_t at = append_bytes(world, &world->payloads, block->payload + block->offsets[row], payload_length);
    kept->payload_at = at;
}

const um_sim_trace_entry *um_sim_trace(const um_sim_world *world, uint64_t *count)
{
    *count = world->trace.used / sizeof(um_sim_trace_entry);
    return (const um_sim_trace_entry *)(const void *)world->trace.bytes;
}

const uint8_t *um_sim_trace_bytes(const um_sim_world *world)
{
    return world->trace_bytes.bytes;
}

const um_sim_row *um_sim_rows(const um_sim_world *world, uint64_t *count)
{
    *count = world->rows.used / sizeof(um_sim_row);
    return (const um_sim_row *)(const void *)world->rows.bytes;
}

const uint8_t *um_sim_payload_bytes(const um_sim_world *world)
{
    return world->payloads.bytes;
}
