#include "core/wire/message_stream.h"

uint8_t *um_message_stream_space(um_message_stream *stream, uint32_t *bytes)
{
    uint32_t left = stream->end - stream->begin;
    if (stream->begin > 0) { /* usually an incomplete message: short compared with what a receive call returns */
        memmove(stream->memory, stream->memory + stream->begin, left);
        stream->record_end -= stream->verifier != NULL ? stream->begin : 0;
        stream->begin = 0;
        stream->end = left;
    }
    *bytes = stream->capacity - stream->end;
    return stream->memory + stream->end;
}

/* Classifies a message by its first four bytes; *length is set to its length. */
static enum um_stream_part classify(um_message_stream *stream, const uint8_t *head, uint32_t *length)
{
    uint8_t type = head[0] & 0x0f;
    *length = um_load_be16(head + 2);
    bool has_topic = type == UM_LBMC_MESSAGE;
    if (head[0] >> 4 != 0)
        stream->broken_by = UM_DGRAM_VERSION;
    else if (!has_topic && type != UM_LBMC_CONTROL && type != UM_LBMC_END)
        stream->broken_by = UM_DGRAM_TYPE;
    else if (*length < (has_topic ? (uint32_t)UM_LBMC_HEADER_BYTES : (uint32_t)UM_LBMC_CONTROL_BYTES))
        stream->broken_by = UM_DGRAM_HDR;
    else if (*length > stream->message_max_bytes)
        stream->broken_by = UM_DGRAM_SIZE;
    else
        return has_topic ? UM_STREAM_MESSAGES : type == UM_LBMC_CONTROL ? UM_STREAM_CONTROL : UM_STREAM_END;
    return UM_STREAM_BROKEN;
}

/* Enters the next record. Returns false if it is incomplete or its tag is wrong. */
static bool open_record(um_message_stream *stream)
{
    uint32_t left = stream->end - stream->begin;
    const uint8_t *record = stream->memory + stream->begin;
    int64_t bytes = left > 0 ? um_stream_record_bytes(record, left) : -EAGAIN;
    if (bytes == 0 || bytes == -EBADMSG)
        stream->refused_by = UM_TAG_MISSING;
    else if (bytes > stream->capacity)
        stream->broken_by = UM_DGRAM_SIZE;
    if (bytes <= 0 || bytes > left)
        return false;
    stream->refused_by = stream->verifier->verify(stream->verifier, record);
    if (stream->refused_by != UM_TAG_OK)
        return false;
    stream->record_end = stream->begin + (uint32_t)bytes;
    stream->begin += UM_RECORD_HEADER_BYTES;
    return true;
}

static bool is_broken(const um_message_stream *stream)
{
    return stream->broken_by != UM_DGRAM_OK || stream->refused_by != UM_TAG_OK;
}

enum um_stream_part um_message_stream_next(um_message_stream *stream, uint32_t run_max, const uint8_t **data,
                                           uint32_t *length)
{
    bool has_records = stream->verifier != NULL;
    *length = 0;
    if (is_broken(stream))
        return UM_STREAM_BROKEN;
    if (has_records && stream->begin == stream->record_end && !open_record(stream))
        return is_broken(stream) ? UM_STREAM_BROKEN : UM_STREAM_MORE;
    uint32_t at = stream->begin, end = has_records ? stream->record_end : stream->end;
    *data = stream->memory + at;
    while (end - at >= UM_LBMC_CONTROL_BYTES && stream->broken_by == UM_DGRAM_OK) {
        uint32_t message_length;
        enum um_stream_part part = classify(stream, stream->memory + at, &message_length);
        bool is_whole = part != UM_STREAM_BROKEN && message_length <= end - at;
        bool is_first = at == stream->begin;
        if (!is_whole || (!is_first && (part != UM_STREAM_MESSAGES || at + message_length - stream->begin > run_max)))
            break;
        at += message_length;
        if (part != UM_STREAM_MESSAGES) {
            *length = message_length;
            stream->begin = at;
            return part;
        }
    }
    *length = at - stream->begin;
    stream->begin = at;
    if (*length > 0)
        return UM_STREAM_MESSAGES;
    if (has_records && stream->broken_by == UM_DGRAM_OK) /* the record ends inside a message */
        stream->broken_by = UM_DGRAM_SIZE;
    return stream->broken_by == UM_DGRAM_OK ? UM_STREAM_MORE : UM_STREAM_BROKEN;
}
