/* Writes messages into claimed frames of the log: fragmentation (UM-42..UM-48; UX-25: a message that fits is never
 * split), LBMC headers, and publishing frame by frame. Private to the files of the topic layer (source.h).
 *
 * Threads: any publisher; no lock. Memory: the log's claim; the payload is copied. Complexity: linear in the bytes.
 * Errors: um_publish_result of the claim; a refused message takes no sqn (UX-23). Inline, because it runs once per
 * message.
 */

#ifndef UM_CORE_FRAME_WRITER_H
#define UM_CORE_FRAME_WRITER_H

#include "core/source/batcher.h"

enum { UM_FETCH_AHEAD_BYTES = 4096 }; /* how far ahead of the writer memory is prefetched */

typedef struct um_fragmentation {
    uint32_t count;
    uint32_t chunk; /* payload bytes of each fragment but the last */
    uint32_t span;  /* log bytes of all fragments */
} um_fragmentation;

static inline um_fragmentation um_fragmentation_plan(const um_source *source, uint32_t body_max, uint32_t length,
                                                     bool is_batch)
{
    uint32_t whole = um_lbmc_overhead(false, is_batch, source->has_send_time) + length;
    uint32_t fixed_bytes = source->fragment_bytes;
    if (UM_LIKELY(fixed_bytes == 0 ? whole <= body_max : length <= fixed_bytes))
        return (um_fragmentation){1, length, um_frame_span(whole)};
    uint32_t overhead = um_lbmc_overhead(true, is_batch, source->has_send_time);
    um_fragmentation f = {.chunk = fixed_bytes ? fixed_bytes : body_max - overhead};
    f.count = (length + f.chunk - 1) / f.chunk;
    uint32_t last = length - (f.count - 1) * f.chunk;
    f.span = (f.count - 1) * um_frame_span(overhead + f.chunk) + um_frame_span(overhead + last);
    return f;
}

typedef struct um_frame_writer {
    um_source *source;
    const um_publication_log *log;
    uint8_t *frame;
    uint32_t left; /* bytes of the claim from `frame` on */
    int64_t position;
    um_batcher batch;
} um_frame_writer;

/* Advances to the next frame of the claim. */
static inline void um_frame_writer_step(um_frame_writer *w, uint32_t body, uint32_t payload_length)
{
    uint32_t span = um_frame_span(body);
    um_batcher_add(&w->batch, w->position, w->position + span, body, payload_length);
    w->frame += span;
    w->position += span;
}

/* The lines have left the caches long ago; memory serves many requests in the time of one. */
static inline void um_frame_writer_fetch_ahead(const uint8_t *frame, uint32_t span)
{
    for (uint32_t i = 0; i < span; i += UM_CACHE_LINE_BYTES)
        __builtin_prefetch(frame + UM_FETCH_AHEAD_BYTES + i, 1, 3);
}

static inline void um_frame_writer_write(um_frame_writer *w, const um_lbmc_layout *layout, const uint8_t *payload)
{
    uint32_t body =
        um_lbmc_overhead(layout->flags & UM_MESSAGE_FRAGMENT,
                         layout->flags & (UM_MESSAGE_BATCH_START | UM_MESSAGE_BATCH_END), layout->sent_ns != 0) +
        layout->payload_length;
    uint32_t span = um_frame_span(body);
    um_frame_writer_fetch_ahead(w->frame, span);
    memcpy(um_lbmc_write_message(w->frame + UM_FRAME_HEADER_BYTES, layout), payload, layout->payload_length);
    w->left -= span;
    if (w->left > 0)
        um_frame_begin(w->log, w->frame + span, w->left - UM_FRAME_HEADER_BYTES);
    um_frame_publish(w->log, w->frame, body);
    um_frame_writer_step(w, body, layout->payload_length);
}

static inline void um_frame_writer_write_message(um_frame_writer *w, uint32_t sqn, const uint8_t *data, uint32_t length,
                                                 uint16_t batch_flags, int64_t sent_ns, const um_fragmentation *f)
{
    um_lbmc_layout layout = {.topic_index = w->source->topic_index,
                             .sqn = sqn,
                             .flags = batch_flags,
                             .first_sqn = sqn,
                             .total = length,
                             .payload_length = length,
                             .sent_ns = sent_ns};
    if (UM_LIKELY(f->count == 1)) {
        um_frame_writer_write(w, &layout, data);
        return;
    }
    layout.flags |= UM_MESSAGE_FRAGMENT;
    for (uint32_t i = 0; i < f->count; i++) {
        layout.sqn = sqn + i;
        layout.offset = i * f->chunk;
        layout.payload_length = i + 1 < f->count ? f->chunk : length - layout.offset;
        um_frame_writer_write(w, &layout, data + layout.offset);
    }
}

/* Marks the claimed frame as being written. */
static inline um_frame_writer um_frame_writer_open(um_source *source, const um_claim *claim)
{
    um_frame_begin(&source->session->log, claim->frames, claim->length - UM_FRAME_HEADER_BYTES);
    return (um_frame_writer){.source = source,
                             .log = &source->session->log,
                             .frame = claim->frames,
                             .left = claim->length,
                             .position = claim->position,
                             .batch = um_batcher_open(source->session, claim->position)};
}

/* Header of a message held until the end of its explicit batch; its bytes follow. */
typedef struct um_held_record {
    uint32_t length;
    uint32_t sqn;      /* sqn of the first fragment */
    uint32_t body_max; /* datagram size for which the sqns were counted, even if the path changes later */
    uint32_t flags;
    int64_t now_ns; /* time of sending */
} um_held_record;

/* Publishes one message, with the next sqns of the topic or those in `held`. Stores the sqn of the last fragment.
 * Returns 0 or a um_publish_result. */
static inline int um_source_publish(um_source *source, const uint8_t *data, uint32_t length, uint16_t batch_flags,
                                    bool is_flush, const um_held_record *held, uint32_t *last_sqn, int64_t now_ns,
                                    uint32_t *actions)
{
    uint32_t body_max =
        held ? held->body_max : atomic_load_explicit(&source->session->body_max_bytes, memory_order_relaxed);
    um_fragmentation f = um_fragmentation_plan(source, body_max, length, batch_flags != 0);
    um_claim claim;
    int result = um_source_claim_space(source, f.span, actions, &claim);
    if (UM_UNLIKELY(result != 0))
        return result;
    uint32_t sqn = held ? held->sqn : um_source_take_sqns(source, f.count);
    um_frame_writer w = um_frame_writer_open(source, &claim);
    int64_t sent_ns = um_source_send_time(source, held ? held->now_ns : now_ns);
    um_frame_writer_write_message(&w, sqn, data, length, batch_flags, sent_ns, &f);
    *last_sqn = sqn + f.count - 1;
    atomic_store_explicit(&source->last_send_ns, now_ns, memory_order_relaxed);
    um_batcher_close(&w.batch, w.position, is_flush, now_ns, actions);
    if (held != NULL)
        atomic_fetch_sub_explicit(&source->held_fragments, f.count, memory_order_relaxed);
    if (f.count > 1)
        atomic_fetch_add_explicit(&source->extra_fragments, f.count - 1, memory_order_relaxed);
    um_count_shared(&source->counters.bytes_sent, length);
    return 0;
}

#endif
