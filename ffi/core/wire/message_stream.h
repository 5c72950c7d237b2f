/* Extracts LBMC messages from a byte stream (LBT-TCP, W1): bytes arrive in pieces of any size and are returned as runs
 * of whole messages, back to back. Messages are framed by their own length, so the only state is the incomplete last
 * message. A stream that cannot be LBMC stays broken: after a wrong length no start of a message can be found.
 *
 *     space -> the caller receives into it -> add -> next, until it returns UM_STREAM_MORE
 *
 * With a verifier the bytes are records (core/wire/stream_record.h) of whole messages. Messages of a record are
 * returned only after the whole record has arrived and its tag has been verified.
 *
 * Threads: the owner's. Memory: the owner's block; runs point into it until the next call of space. Complexity: linear
 * in the messages, plus one move of an incomplete message per piece. Errors: UM_STREAM_BROKEN.
 */
#ifndef UM_CORE_MESSAGE_STREAM_H
#define UM_CORE_MESSAGE_STREAM_H

#include "core/wire/lbmc.h"
#include "core/wire/stream_record.h"

typedef struct um_message_stream {
    uint8_t *memory;
    uint32_t capacity;
    uint32_t message_max_bytes; /* a longer message breaks the stream */
    uint32_t begin;             /* offset of the first byte not taken yet */
    uint32_t end;
    enum um_dgram_status broken_by; /* UM_DGRAM_OK: not broken, or by refused_by */
    um_record_verifier *verifier;   /* NULL: no records */
    uint32_t record_end;            /* end of the record whose messages are being taken */
    enum um_tag_status refused_by;  /* UM_TAG_OK: all tags so far were right */
} um_message_stream;

enum um_stream_part {
    UM_STREAM_MORE = 0, /* no whole message is left */
    UM_STREAM_MESSAGES, /* whole topic messages */
    UM_STREAM_CONTROL,  /* one control message */
    UM_STREAM_END,      /* the source has ended the stream (UM_LBMC_END) */
    UM_STREAM_BROKEN,
};

/* capacity: at least message_max_bytes. */
static inline void um_message_stream_init(um_message_stream *stream, uint8_t *memory, uint32_t capacity,
                                          uint32_t message_max_bytes)
{
    assert(capacity >= message_max_bytes && message_max_bytes >= UM_LBMC_HEADER_BYTES);
    *stream = (um_message_stream){.memory = memory, .capacity = capacity, .message_max_bytes = message_max_bytes};
}

/* Discards all bytes, for a new connection. */
static inline void um_message_stream_restart(um_message_stream *stream)
{
    stream->begin = stream->end = stream->record_end = 0;
    stream->broken_by = UM_DGRAM_OK;
    stream->verifier = NULL;
    stream->refused_by = UM_TAG_OK;
}

/* From the first byte not taken yet on, the stream consists of records. */
static inline void um_message_stream_verify(um_message_stream *stream, um_record_verifier *verifier)
{
    stream->verifier = verifier;
    stream->record_end = stream->begin;
}

/* Returns the space for the next bytes. It is empty only if whole messages wait to be taken. */
uint8_t *um_message_stream_space(um_message_stream *stream, uint32_t *bytes);

/* Adds `bytes` that were received there. */
static inline void um_message_stream_add(um_message_stream *stream, uint32_t bytes)
{
    um_debug_assert(bytes <= stream->capacity - stream->end);
    stream->end += bytes;
}

/* Takes the next part: a run of whole messages of at most run_max bytes, or one longer message. */
enum um_stream_part um_message_stream_next(um_message_stream *stream, uint32_t run_max, const uint8_t **data,
                                           uint32_t *length);

/* Returns true if all bytes have been taken. */
static inline bool um_message_stream_is_empty(const um_message_stream *stream)
{
    return stream->begin == stream->end;
}

#endif
