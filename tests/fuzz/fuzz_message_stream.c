/* A TCP stream of any bytes, cut anywhere: runs taken from it are inside the received bytes, are whole messages, and
 * are the same however the bytes were cut. Its control messages are read, and its messages go through a filter of
 * topics.
 */
#include "fuzz.h"

#include "core/source/topic_filter.h"
#include "core/wire/message_stream.h"
#include "core/wire/tcp_control.h"

enum { CAPACITY_MAX = 4096, TAKEN_MAX = 1 << 20, RUN_MAX = 1472 };

typedef struct taken {
    uint32_t bytes;
    uint64_t hash;
    enum um_stream_part end;
} taken;

static um_topic_filter filter;
static void *filter_memory;

static void on_control(const uint8_t *data, uint32_t length)
{
    um_tcp_control_reader reader = um_tcp_control_read(data, length);
    um_tcp_control control;
    uint32_t count = 0;
    while ((control = um_tcp_control_next(&reader)).kind != UM_TCP_NOTHING) {
        REQUIRE(reader.at <= length && ++count <= length / 4);
        if (control.kind == UM_TCP_SSF_INCLUDE)
            um_topic_filter_add(&filter, control.topic_index);
        else if (control.kind == UM_TCP_SSF_EXCLUDE)
            um_topic_filter_remove(&filter, control.topic_index);
    }
}

static void take(um_message_stream *stream, taken *so_far)
{
    const uint8_t *data;
    uint32_t length;
    enum um_stream_part part;
    while ((part = um_message_stream_next(stream, RUN_MAX, &data, &length)) != UM_STREAM_MORE &&
           part != UM_STREAM_BROKEN) {
        uint8_t passed[CAPACITY_MAX];
        REQUIRE(length > 0 && data >= stream->memory && data + length <= stream->memory + stream->end);
        for (uint32_t at = 0; at < length; at += um_load_be16(data + at + 2))
            REQUIRE(um_load_be16(data + at + 2) >= UM_LBMC_CONTROL_BYTES && um_load_be16(data + at + 2) <= length - at);
        if (part == UM_STREAM_CONTROL)
            on_control(data, length);
        REQUIRE(um_topic_filter_copy(&filter, data, length, passed) <= length);
        for (uint32_t i = 0; i < length; i++)
            so_far->hash = (so_far->hash ^ data[i]) * UINT64_C(0x100000001b3);
        so_far->bytes += length;
    }
    so_far->end = part;
}

/* Feeds all bytes in pieces of the lengths in `cuts`, or as long as there is space for. */
static taken feed(fuzz_input bytes, fuzz_input cuts, uint32_t capacity)
{
    taken result = {0};
    um_message_stream stream;
    uint8_t *memory = fuzz_zeroed(capacity);
    um_message_stream_init(&stream, memory, capacity, capacity);
    while (bytes.left > 0 && result.end != UM_STREAM_BROKEN) {
        uint32_t space, piece = cuts.left > 0 ? take_u8(&cuts) % 64 + 1 : CAPACITY_MAX;
        uint8_t *into = um_message_stream_space(&stream, &space);
        REQUIRE(space > 0 && into + space == memory + capacity);
        piece = piece < space ? piece : space;
        piece = piece < bytes.left ? piece : (uint32_t)bytes.left;
        memcpy(into, bytes.at, piece);
        bytes.at += piece;
        bytes.left -= piece;
        um_message_stream_add(&stream, piece);
        BOUNDED(take(&stream, &result));
    }
    free(memory);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    uint32_t capacity = UM_LBMC_HEADER_BYTES + take_u16(&input) % (CAPACITY_MAX - UM_LBMC_HEADER_BYTES);
    fuzz_input cuts = take_bytes(&input, take_u8(&input));
    if (filter_memory == NULL)
        filter_memory = fuzz_zeroed(um_topic_filter_footprint(UM_TOPIC_FILTER_TOPICS_MAX));
    memset(filter_memory, 0, um_topic_filter_footprint(UM_TOPIC_FILTER_TOPICS_MAX));
    um_topic_filter_init(&filter, filter_memory, UM_TOPIC_FILTER_TOPICS_MAX);
    taken in_pieces = feed(input, cuts, capacity);
    taken at_once = feed(input, (fuzz_input){NULL, 0}, capacity);
    REQUIRE(in_pieces.bytes == at_once.bytes && in_pieces.hash == at_once.hash && in_pieces.end == at_once.end);
    return 0;
}
