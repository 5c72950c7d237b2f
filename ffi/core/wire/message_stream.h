/* LBMC messages out of a byte stream (LBT-TCP, design W1): bytes come in pieces of any size, whole messages go out in
 * runs that lie back to back. A message is framed by its own length, so the only state is what has come of the last
 * one. A stream that cannot be LBMC is broken, for good: nothing behind a wrong length has a known beginning.
 *
 *     space -> the caller receives into it -> add -> next, until it returns UM_STREAM_MORE
 *
 * With a verifier the bytes are records (core/wire/stream_record.h), and nothing of one is taken before all of it has
 * come and its tag was found right. A record holds whole messages.
 *
 * Threads: the owner's. Memory: the owner's block; runs point into it until the next space. Complexity: linear in the
 * messages, and one move of an incomplete message a piece received. Errors: UM_STREAM_BROKEN.
 */
#ifndef UM_CORE_MESSAGE_STREAM_H
#define UM_CORE_MESSAGE_STREAM_H

#include "core/wire/lbmc.h"
#include "core/wire/stream_record.h"

typedef struct um_message_stream {
    uint8_t *memory;
    uint32_t capacity;
    uint32_t message_max_bytes; /* a longer message breaks the stream */
    uint32_t begin;             /* of what was not taken yet */
    uint32_t end;
    enum um_dgram_status broken_by; /* UM_DGRAM_OK: it is not, or by refused_by */
    um_record_verifier *verifier;   /* NULL: there are no records */
    uint32_t record_end;            /* of the messages of the record that is being taken */
    enum um_tag_status refused_by;  /* UM_TAG_OK: its tags are right so far */
} um_message_stream;

enum um_stream_part {
    UM_STREAM_MORE = 0, /* nothing whole is left */
    UM_STREAM_MESSAGES, /* whole messages of topics */
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

/* Forgets what it holds: a new connection. */
static inline void um_message_stream_restart(um_message_stream *stream)
{
    stream->begin = stream->end = stream->record_end = 0;
    stream->broken_by = UM_DGRAM_OK;
    stream->verifier = NULL;
    stream->refused_by = UM_TAG_OK;
}

/* What was not taken yet, and what follows, are records. */
static inline void um_message_stream_verify(um_message_stream *stream, um_record_verifier *verifier)
{
    stream->verifier = verifier;
    stream->record_end = stream->begin;
}

/* Where the next bytes go. There is space unless whole messages wait to be taken. */
uint8_t *um_message_stream_space(um_message_stream *stream, uint32_t *bytes);

/* So many were received there. */
static inline void um_message_stream_add(um_message_stream *stream, uint32_t bytes)
{
    um_debug_assert(bytes <= stream->capacity - stream->end);
    stream->end += bytes;
}

/* Takes what comes next: a run of whole messages of at most run_max bytes, or one that is longer. */
enum um_stream_part um_message_stream_next(um_message_stream *stream, uint32_t run_max, const uint8_t **data,
                                           uint32_t *length);

/* Whether bytes wait that next has not been asked for yet. */
static inline bool um_message_stream_is_empty(const um_message_stream *stream)
{
    return stream->begin == stream->end;
}

#endif
