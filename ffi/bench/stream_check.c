#include "bench/stream_check.h"

#include "io/context.h"

static bool take(um_stream *stream, um_block *block, uint32_t i, uint32_t message_bytes)
{
    uint64_t counter;
    if ((uint32_t)(block->offsets[i + 1] - block->offsets[i]) != message_bytes ||
        block->flags[i] >> 8 != UM_ROW_MESSAGE)
        return false;
    um_rows_copy(block, i, (uint8_t *)&counter, sizeof counter);
    if (counter != stream->next)
        return false;
    stream->next++;
    stream->sqn_fault_count += stream->has_sqn && block->first_sequence_numbers[i] != stream->next_sqn;
    stream->next_sqn = block->sequence_numbers[i] + 1;
    stream->has_sqn = true;
    return true;
}

uint32_t um_stream_take(um_stream *streams, const uint32_t *stream_of, uint32_t source_count, const um_rows *rows,
                        uint32_t message_bytes)
{
    um_block *block = rows->block;
    for (uint32_t i = 0; i < rows->count; i++) {
        uint32_t source = block->sources[rows->first + i];
        if (source >= source_count || !take(&streams[stream_of[source]], block, rows->first + i, message_bytes))
            return i;
    }
    return rows->count;
}
