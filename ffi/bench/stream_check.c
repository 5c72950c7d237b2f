#include "bench/stream_check.h"

#include "io/event_queue.h"

enum { LOOKED_AT_TOGETHER = 64 };

static bool take(um_stream *stream, const um_block *block, uint32_t i, uint64_t counter, uint32_t message_bytes)
{
    if ((uint32_t)(block->offsets[i + 1] - block->offsets[i]) != message_bytes ||
        um_row_kind_of(block->flags[i]) != UM_ROW_MESSAGE || counter != stream->next)
        return false;
    stream->next++;
    stream->sqn_fault_count += stream->has_sqn && block->first_sequence_numbers[i] != stream->next_sqn;
    stream->next_sqn = block->sequence_numbers[i] + 1;
    stream->has_sqn = true;
    return true;
}

static uint64_t counter_in(const um_block *block, uint32_t row)
{
    uint64_t counter;
    memcpy(&counter, block->payload + block->offsets[row], sizeof counter);
    return counter;
}

uint32_t um_stream_take(um_stream *streams, const uint32_t *stream_of, uint32_t source_count, const um_rows *rows,
                        uint32_t message_bytes)
{
    const um_block *block = rows->block;
    uint64_t heads[LOOKED_AT_TOGETHER];
    bool keeps = um_block_has_pinned(block);
    for (uint32_t i = 0; i < rows->count; i++) {
        uint32_t row = rows->first + i, source = block->sources[row], left = rows->count - i;
        uint32_t at = i % LOOKED_AT_TOGETHER;
        if (keeps && at == 0)
            um_rows_heads(rows->block, row, left < LOOKED_AT_TOGETHER ? left : LOOKED_AT_TOGETHER, sizeof *heads,
                          (uint8_t *)heads);
        uint64_t counter = keeps ? heads[at] : counter_in(block, row);
        if (source >= source_count || !take(&streams[stream_of[source]], block, row, counter, message_bytes))
            return i;
    }
    return rows->count;
}
