#include "core/source.h"

#include "core/streaming.h"

enum {
    GROUP_SPAN_MAX = 68 * 1024, /* log bytes claimed at once by a batch of messages */
    TSNI_RETRY_NS = 1000000,    /* how soon a TSNI that could not go out is tried again */
    FETCH_AHEAD_BYTES = 4096,   /* memory is asked for so far ahead of what is written */
    CLAIM_RETRIES_MAX = 64,     /* term rotations met in a row before a claim reports back-pressure */
};

void um_source_init(um_source *source, void *memory, const um_source_config *config, um_source_session *session)
{
    memset(source, 0, sizeof *source);
    source->session = session;
    source->topic_index = config->topic_index;
    source->tsni_interval_ns = config->tsni_interval_ns;
    source->tsni_threshold_ns = config->tsni_threshold_ns;
    source->explicit_memory = memory;
    source->explicit_capacity = config->explicit_capacity;
    source->initial_sqn = config->initial_sqn;
    atomic_init(&source->next_sqn, config->initial_sqn);
    atomic_init(&source->last_send_ns, INT64_MIN);
    um_source_counters_reset(&source->counters);
    if (source->tsni_interval_ns != 0 && source->tsni_interval_ns < session->tsni_interval_ns)
        session->tsni_interval_ns = source->tsni_interval_ns;
    source->next = session->sources;
    session->sources = source;
}

void um_source_fini(um_source *source)
{
    atomic_store(&source->closed, true);
    for (um_source **link = &source->session->sources; *link != NULL; link = &(*link)->next) {
        if (*link == source) {
            *link = source->next;
            return;
        }
    }
}

void um_source_snapshot(um_source *source)
{
    uint64_t taken = atomic_load_explicit(&source->next_sqn, memory_order_relaxed) - source->initial_sqn;
    uint64_t fragments = taken - atomic_load_explicit(&source->held_fragments, memory_order_relaxed);
    uint64_t extra = atomic_load_explicit(&source->extra_fragments, memory_order_relaxed);
    __atomic_store_n(&source->counters.fragments_sent, fragments, __ATOMIC_RELAXED);
    __atomic_store_n(&source->counters.messages_sent, fragments - extra, __ATOMIC_RELAXED);
}

uint32_t um_source_message_max(const um_source *source)
{
    return source->session->log.term_length / 16;
}

/* ---- batching: when the flush limit moves ---- */

static void flush_to(um_source_session *session, int64_t position)
{
    int64_t limit = atomic_load_explicit(&session->flush_limit, memory_order_relaxed);
    while (limit < position && !atomic_compare_exchange_weak_explicit(&session->flush_limit, &limit, position,
                                                                      memory_order_seq_cst, memory_order_relaxed))
        ;
}

void um_source_flush_all(um_source_session *session)
{
    atomic_store_explicit(&session->batch, 0, memory_order_relaxed);
    flush_to(session, um_log_tail(&session->log));
}

static uint32_t take_sqns(um_source *source, uint32_t count)
{
    return (uint32_t)atomic_fetch_add_explicit(&source->next_sqn, count, memory_order_relaxed);
}

static void count_shared(uint64_t *counter, uint64_t n)
{
    __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* A publisher's view of the session's batch while it appends frames. Publishers that race may each miss the
 * other's bytes; that shifts when a batch is flushed, never whether: the interval is watched on the log itself. */
typedef struct batcher {
    um_source_session *session;
    uint32_t body_bytes; /* LBMC bytes in the open datagram */
    uint32_t user_bytes; /* user bytes held back */
    uint32_t body_max;
    bool was_empty;
    int64_t flush_to; /* -1: nothing to flush */
    /* Counted at the end: a locked addition would wait for what was just copied. */
    uint32_t flushes_full;
    uint32_t flushes_length;
} batcher;

/* The batch that the frame at `position` may join. What is held back lies in front of it: when somebody has flushed up
 * to here there is none, whatever the last publisher noted. */
static batcher batcher_open(um_source_session *session, int64_t position)
{
    bool held = atomic_load_explicit(&session->flush_limit, memory_order_relaxed) < position;
    uint64_t word = held ? atomic_load_explicit(&session->batch, memory_order_relaxed) : 0;
    return (batcher){.session = session,
                     .body_bytes = (uint32_t)(word >> 32),
                     .user_bytes = (uint32_t)word,
                     .body_max = atomic_load_explicit(&session->body_max_bytes, memory_order_relaxed),
                     .was_empty = word == 0,
                     .flush_to = -1};
}

/* Accounts one message: flush before it when it would overfill the datagram (UM-19c), after it when the batch
 * has reached its minimum length (UM-19a). */
static inline void batcher_add(batcher *b, int64_t frame_position, int64_t end_position, uint32_t body_bytes,
                               uint32_t user_bytes)
{
    if (b->body_bytes + body_bytes > b->body_max && b->body_bytes > 0) {
        b->flush_to = frame_position;
        b->body_bytes = b->user_bytes = 0;
        b->flushes_full++;
    }
    b->body_bytes += body_bytes;
    b->user_bytes += user_bytes;
    if (b->user_bytes >= b->session->config.batch_minimum_bytes) {
        b->flush_to = end_position;
        b->body_bytes = b->user_bytes = 0;
        b->flushes_length++;
    }
}

/* After a commit: may the sender go on? Also when somebody else's flush covers the frame: the sender may have stopped
 * in front of it. The fence is between the commit and the looks at what the sender left behind. */
static void wake_sender(um_source_session *session, uint32_t *actions)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&session->sender_waits, memory_order_relaxed))
        atomic_store_explicit(&session->sender_waits, false, memory_order_relaxed);
    if (atomic_load_explicit(&session->flush_limit, memory_order_relaxed) >
        atomic_load_explicit(&session->sender_position, memory_order_relaxed))
        *actions |= UM_ACTION_RUN_SENDER;
}

static void batcher_close(batcher *b, int64_t end_position, bool flush, int64_t now_ns, uint32_t *actions)
{
    um_source_session *session = b->session;
    if (flush) {
        b->flush_to = end_position;
        b->body_bytes = b->user_bytes = 0;
        count_shared(&session->counters.flushes_explicit, 1);
    }
    if (b->flushes_full > 0)
        count_shared(&session->counters.flushes_full, b->flushes_full);
    if (b->flushes_length > 0)
        count_shared(&session->counters.flushes_length, b->flushes_length);
    uint64_t word = (uint64_t)b->body_bytes << 32 | b->user_bytes;
    atomic_store_explicit(&session->batch, word, memory_order_relaxed);
    if (word != 0 && (b->was_empty || b->flush_to >= 0)) {
        atomic_store_explicit(&session->batch_started_ns, now_ns, memory_order_relaxed);
        *actions |= UM_ACTION_BATCH_STARTED;
    }
    if (b->flush_to >= 0)
        flush_to(session, b->flush_to);
    wake_sender(session, actions);
}

/* ---- claiming ---- */

static int claim_space(um_source *source, uint32_t span, uint32_t *actions, um_claim *claim)
{
    um_source_session *session = source->session;
    if (atomic_load_explicit(&source->closed, memory_order_relaxed))
        return UM_CLOSED;
    if (atomic_load_explicit(&session->limits->blocked, memory_order_relaxed))
        return UM_RATE_LIMITED;
    int result = UM_ADMIN_ACTION;
    for (int i = 0; i < CLAIM_RETRIES_MAX && result == UM_ADMIN_ACTION; i++)
        result = um_log_claim(&session->log, span, claim);
    if (UM_LIKELY(result == 0)) {
        um_frame_begin(&session->log, claim->frames, span - UM_FRAME_HEADER_BYTES);
        return 0;
    }
    /* What is held back must go out before there can be space: a full log flushes itself. On the way the end of a term
     * may have been padded, and that is a commit, too: the sender may have stopped in front of it. */
    if (result == UM_BACK_PRESSURED || result == UM_ADMIN_ACTION) {
        um_source_flush_all(session);
        wake_sender(session, actions);
        *actions |= UM_ACTION_RUN_SENDER;
        count_shared(&session->counters.back_pressured, 1);
        result = UM_BACK_PRESSURED;
    } else if (result == UM_NOT_CONNECTED) {
        count_shared(&session->counters.not_connected, 1);
    }
    count_shared(&source->counters.sends_refused, 1);
    return result;
}

/* ---- fragmentation (UM-42; UX-25: a message that fits is never split) ---- */

typedef struct fragmentation {
    uint32_t count;
    uint32_t chunk; /* payload bytes of every fragment but the last */
    uint32_t span;  /* log bytes of all */
} fragmentation;

static fragmentation plan(uint32_t body_max, uint32_t length, bool batch)
{
    uint32_t whole = um_lbmc_overhead(false, batch) + length;
    if (UM_LIKELY(whole <= body_max))
        return (fragmentation){1, length, um_frame_span(whole)};
    uint32_t overhead = um_lbmc_overhead(true, batch);
    fragmentation f = {.chunk = body_max - overhead};
    f.count = (length + f.chunk - 1) / f.chunk;
    uint32_t last = length - (f.count - 1) * f.chunk;
    f.span = (f.count - 1) * um_frame_span(overhead + f.chunk) + um_frame_span(overhead + last);
    return f;
}

typedef struct write_state {
    um_source *source;
    const um_publication_log *log;
    uint8_t *frame;
    uint32_t left; /* bytes of the claim from frame on */
    int64_t position;
    batcher batch;
} write_state;

/* On to the next frame of the claim. */
static void step(write_state *w, uint32_t body, uint32_t payload_length)
{
    uint32_t span = um_frame_span(body);
    batcher_add(&w->batch, w->position, w->position + span, body, payload_length);
    w->frame += span;
    w->position += span;
}

/* The lines have left the caches long ago: memory answers many requests in the time of one. */
static void fetch_ahead(const uint8_t *frame, uint32_t span)
{
    for (uint32_t i = 0; i < span; i += UM_CACHE_LINE_BYTES)
        __builtin_prefetch(frame + FETCH_AHEAD_BYTES + i, 1, 3);
}

static void write_frame(write_state *w, const um_lbmc_layout *layout, const uint8_t *payload)
{
    uint32_t body = um_lbmc_overhead(layout->flags & UM_MESSAGE_FRAGMENT,
                                     layout->flags & (UM_MESSAGE_BATCH_START | UM_MESSAGE_BATCH_END)) +
                    layout->payload_length;
    uint32_t span = um_frame_span(body);
    fetch_ahead(w->frame, span);
    memcpy(um_lbmc_write_message(w->frame + UM_FRAME_HEADER_BYTES, layout), payload, layout->payload_length);
    w->left -= span;
    if (w->left > 0)
        um_frame_begin(w->log, w->frame + span, w->left - UM_FRAME_HEADER_BYTES);
    um_frame_publish(w->log, w->frame, body);
    step(w, body, layout->payload_length);
}

/* The same for a message that makes up a datagram: lays that out, and streams what the log keeps. */
static void lay_out(write_state *w, um_staged_datagrams *staged, const um_lbmc_layout *layout, const uint8_t *payload)
{
    uint32_t body = UM_LBMC_HEADER_BYTES + layout->payload_length, bytes = UM_FRAME_HEADER_BYTES + body;
    const um_staged_datagram *added = um_staged_add(staged, w->position, bytes);
    um_borrowed_frame *borrowed = um_staged_borrowed(staged, added);
    uint8_t *datagram = um_staged_data(staged, added);
    uint8_t *rest = um_lbmc_write_message(datagram + UM_FRAME_HEADER_BYTES, layout);
    uint32_t in_first_line = UM_CACHE_LINE_BYTES - UM_FRAME_HEADER_BYTES - UM_LBMC_HEADER_BYTES;
    uint32_t head = layout->payload_length < in_first_line ? layout->payload_length : in_first_line;
    uint32_t lines_bytes = (layout->payload_length - head) / UM_CACHE_LINE_BYTES * UM_CACHE_LINE_BYTES;
    uint32_t tail = layout->payload_length - head - lines_bytes;
    memcpy(rest, payload, head);
    um_stream_line(w->frame, datagram);
    uint8_t *lines = w->frame + UM_CACHE_LINE_BYTES;
    if (borrowed == NULL) {
        um_stream_and_copy(lines, rest + head, payload + head, lines_bytes, false);
    } else {
        uint64_t sum = um_stream_and_copy(lines, rest + head, payload + head, lines_bytes, true);
        borrowed->unsummed_bytes = UM_CACHE_LINE_BYTES;
        borrowed->sum = um_internet_sum(payload + head + lines_bytes, tail, sum);
    }
    if (tail > 0) {
        memcpy(rest + head + lines_bytes, payload + head + lines_bytes, tail);
        um_stream_line(lines + lines_bytes, rest + head + lines_bytes);
    }
    step(w, body, layout->payload_length);
}

/* The log has the youngest datagrams laid out. Nobody looks at them before the first is published. */
static void publish_laid_out(const um_publication_log *log, um_staged_datagrams *staged, uint32_t count)
{
    um_stream_fence();
    for (uint32_t i = staged->count; i-- > staged->count - count;) {
        const um_staged_datagram *kept = um_staged_entry(staged, i);
        um_frame_publish(log, um_log_at(log, kept->position), kept->bytes - UM_FRAME_HEADER_BYTES);
    }
}

static void write_message(write_state *w, uint32_t sqn, const uint8_t *data, uint32_t length, uint16_t batch_flags,
                          const fragmentation *f)
{
    um_lbmc_layout layout = {.topic_index = w->source->topic_index,
                             .sqn = sqn,
                             .flags = batch_flags,
                             .first_sqn = sqn,
                             .total = length,
                             .payload_length = length};
    if (UM_LIKELY(f->count == 1)) {
        write_frame(w, &layout, data);
        return;
    }
    layout.flags |= UM_MESSAGE_FRAGMENT;
    for (uint32_t i = 0; i < f->count; i++) {
        layout.sqn = sqn + i;
        layout.offset = i * f->chunk;
        layout.payload_length = i + 1 < f->count ? f->chunk : length - layout.offset;
        write_frame(w, &layout, data + layout.offset);
    }
}

static write_state write_open(um_source *source, const um_claim *claim)
{
    return (write_state){.source = source,
                         .log = &source->session->log,
                         .frame = claim->frames,
                         .left = claim->length,
                         .position = claim->position,
                         .batch = batcher_open(source->session, claim->position)};
}

/* A message of an explicit batch, held until the end of the batch; its bytes follow. */
typedef struct held_record {
    uint32_t length;
    uint32_t sqn;      /* of the first fragment */
    uint32_t body_max; /* the sqns were counted for datagrams of this size, whatever the path takes later */
    uint32_t flags;
} held_record;

static bool is_batching(const um_source *source)
{
    return atomic_load_explicit(&source->explicit_open, memory_order_relaxed);
}

static void set_batching(um_source *source, bool open)
{
    atomic_store_explicit(&source->explicit_open, open, memory_order_relaxed);
}

/* Publishes one message. It takes the next sqns of the topic, or those of the record it was held in. Stores the
 * sqn of the last fragment. */
static int publish(um_source *source, const uint8_t *data, uint32_t length, uint16_t batch_flags, bool flush,
                   const held_record *held, uint32_t *last_sqn, int64_t now_ns, uint32_t *actions)
{
    uint32_t body_max =
        held ? held->body_max : atomic_load_explicit(&source->session->body_max_bytes, memory_order_relaxed);
    fragmentation f = plan(body_max, length, batch_flags != 0);
    um_claim claim;
    int result = claim_space(source, f.span, actions, &claim);
    if (UM_UNLIKELY(result != 0))
        return result;
    uint32_t sqn = held ? held->sqn : take_sqns(source, f.count);
    write_state w = write_open(source, &claim);
    write_message(&w, sqn, data, length, batch_flags, &f);
    *last_sqn = sqn + f.count - 1;
    atomic_store_explicit(&source->last_send_ns, now_ns, memory_order_relaxed);
    batcher_close(&w.batch, w.position, flush, now_ns, actions);
    if (held != NULL)
        atomic_fetch_sub_explicit(&source->held_fragments, f.count, memory_order_relaxed);
    if (f.count > 1)
        atomic_fetch_add_explicit(&source->extra_fragments, f.count - 1, memory_order_relaxed);
    count_shared(&source->counters.bytes_sent, length);
    return 0;
}

/* ---- explicit batches (UM-34..UM-37) ---- */

static uint32_t held_span(uint32_t length)
{
    return (uint32_t)um_align_up(sizeof(held_record) + length, 8);
}

static int release_held(um_source *source, int64_t now_ns, uint32_t *actions)
{
    while (source->explicit_released < source->explicit_used) {
        held_record record;
        uint32_t last_sqn;
        const uint8_t *at = source->explicit_memory + source->explicit_released;
        memcpy(&record, at, sizeof record);
        int result = publish(source, at + sizeof record, record.length, (uint16_t)record.flags, false, &record,
                             &last_sqn, now_ns, actions);
        if (result != 0)
            return result;
        source->explicit_released += held_span(record.length);
    }
    source->explicit_used = source->explicit_released = 0;
    return 0;
}

static int64_t hold(um_source *source, const uint8_t *data, uint32_t length, uint16_t batch_flags)
{
    uint32_t body_max = atomic_load_explicit(&source->session->body_max_bytes, memory_order_relaxed);
    uint32_t count = plan(body_max, length, batch_flags != 0).count;
    held_record record = {length, take_sqns(source, count), body_max, batch_flags};
    atomic_fetch_add_explicit(&source->held_fragments, count, memory_order_relaxed);
    memcpy(source->explicit_memory + source->explicit_used, &record, sizeof record);
    memcpy(source->explicit_memory + source->explicit_used + sizeof record, data, length);
    source->explicit_used += held_span(length);
    return (int64_t)(record.sqn + count - 1);
}

/* A message of an explicit batch: held until the batch's end, a flush, or until no more can be held (UM-39: no
 * guarantee that a group stays together). */
static int64_t send_explicit(um_source *source, const uint8_t *data, uint32_t length, uint32_t flags, int64_t now_ns,
                             uint32_t *actions)
{
    bool ends = flags & (UM_SEND_END_BATCH | UM_SEND_FLUSH);
    bool full = source->explicit_used + held_span(length) > source->explicit_capacity;
    uint16_t batch_flags = (flags & UM_SEND_START_BATCH ? UM_MESSAGE_BATCH_START : 0) |
                           (flags & UM_SEND_END_BATCH ? UM_MESSAGE_BATCH_END : 0);
    if (!ends && !full) {
        set_batching(source, true);
        return hold(source, data, length, batch_flags);
    }
    int result = release_held(source, now_ns, actions);
    uint32_t sqn = 0;
    if (result == 0)
        result = publish(source, data, length, batch_flags, flags & UM_SEND_FLUSH, NULL, &sqn, now_ns, actions);
    if (result == 0)
        set_batching(source, !(flags & UM_SEND_END_BATCH));
    return result == 0 ? (int64_t)sqn : result;
}

/* ---- sending ---- */

int64_t um_source_send(um_source *source, const uint8_t *data, uint32_t length, uint32_t flags, int64_t now_ns,
                       uint32_t *actions)
{
    if (UM_UNLIKELY(length > um_source_message_max(source)))
        return -EMSGSIZE;
    if (UM_UNLIKELY((flags & (UM_SEND_START_BATCH | UM_SEND_END_BATCH)) || is_batching(source))) {
        while (!um_lock_try(&source->explicit_lock))
            ;
        int64_t held = send_explicit(source, data, length, flags, now_ns, actions);
        um_lock_release(&source->explicit_lock);
        return held;
    }
    uint32_t sqn;
    int result = publish(source, data, length, 0, flags & UM_SEND_FLUSH, NULL, &sqn, now_ns, actions);
    return result == 0 ? (int64_t)sqn : result;
}

static inline uint32_t message_length(const um_messages *messages, uint32_t i)
{
    return messages->lengths ? messages->lengths[i] : (uint32_t)(messages->offsets[i + 1] - messages->offsets[i]);
}

/* Messages that one claim is made for. */
typedef struct group {
    uint32_t count;
    uint32_t span;
    uint32_t datagram_bytes; /* with a header of the transport for each */
    bool laid_out;           /* each as a datagram */
} group;

/* Whether the next message of a group can be laid out as a datagram: no second like it fits, and there is room. */
static bool fills_datagram(um_staged_room room, const group *g, uint32_t body, uint32_t body_max)
{
    return 2 * body > body_max && g->datagram_bytes + UM_FRAME_HEADER_BYTES + body <= room.bytes &&
           g->count < room.datagrams;
}

/* The messages from `first` on that fit one claim unsplit. Either all are laid out as datagrams or none. */
static group plan_group(const um_source_session *session, const um_messages *messages, uint32_t first,
                        uint32_t body_max)
{
    uint32_t claim_max = um_log_claim_max(&session->log);
    uint32_t span_max = claim_max < GROUP_SPAN_MAX ? claim_max : GROUP_SPAN_MAX;
    um_staged_room room = {0};
    if (messages->staged != NULL)
        room = um_staged_make_room(messages->staged, messages->count - first, UM_FRAME_HEADER_BYTES + body_max);
    group g = {0};
    for (uint32_t i = first; i < messages->count; i++, g.count++) {
        uint32_t length = message_length(messages, i), body = UM_LBMC_HEADER_BYTES + length;
        if (length > body_max - UM_LBMC_HEADER_BYTES || g.span + um_frame_span(body) > span_max)
            break;
        bool lays_out = fills_datagram(room, &g, body, body_max);
        if (g.count > 0 && lays_out != g.laid_out)
            break;
        g.laid_out = lays_out;
        g.span += um_frame_span(body);
        g.datagram_bytes += UM_FRAME_HEADER_BYTES + body;
    }
    return g;
}

static int send_group(um_source *source, const um_messages *messages, uint32_t first, const group *g,
                      const uint8_t **data, int64_t now_ns, uint32_t *actions)
{
    um_claim claim;
    int result = claim_space(source, g->span, actions, &claim);
    if (result != 0)
        return result;
    uint32_t sqn = take_sqns(source, g->count);
    write_state w = write_open(source, &claim);
    const uint8_t *start = *data;
    um_lbmc_layout layout = {.topic_index = source->topic_index};
    for (uint32_t i = 0; i < g->count; i++) {
        layout.sqn = sqn + i;
        layout.payload_length = message_length(messages, first + i);
        if (g->laid_out)
            lay_out(&w, messages->staged, &layout, *data);
        else
            write_frame(&w, &layout, *data);
        *data += layout.payload_length;
    }
    if (g->laid_out)
        publish_laid_out(&source->session->log, messages->staged, g->count);
    atomic_store_explicit(&source->last_send_ns, now_ns, memory_order_relaxed);
    batcher_close(&w.batch, w.position, false, now_ns, actions);
    count_shared(&source->counters.bytes_sent, (uint64_t)(*data - start));
    return 0;
}

int64_t um_source_send_many(um_source *source, const um_messages *messages, uint32_t flags, int64_t now_ns,
                            uint32_t *actions, uint64_t *done_bytes)
{
    const uint8_t *base = messages->data + (messages->offsets ? messages->offsets[0] : 0);
    const uint8_t *data = base;
    uint32_t done = 0;
    int64_t result = 0;
    while (done < messages->count && result == 0) {
        uint32_t body_max = atomic_load_explicit(&source->session->body_max_bytes, memory_order_relaxed);
        group g = is_batching(source) ? (group){0} : plan_group(source->session, messages, done, body_max);
        uint32_t count = g.count;
        if (count > 0) {
            result = send_group(source, messages, done, &g, &data, now_ns, actions);
        } else {
            uint32_t length = message_length(messages, done);
            int64_t sqn = um_source_send(source, data, length, 0, now_ns, actions);
            result = sqn < 0 ? sqn : 0;
            data += result == 0 ? length : 0;
            count = 1;
        }
        done += result == 0 ? count : 0;
    }
    if (messages->staged != NULL)
        um_staged_return_unused(messages->staged);
    if (done > 0 && (flags & UM_SEND_FLUSH) && done == messages->count)
        um_source_flush(source, now_ns, actions);
    *done_bytes = (uint64_t)(data - base);
    return done > 0 ? (int64_t)done : result;
}

int um_source_claim_begin(um_source *source, uint32_t length, um_source_claim *claim)
{
    uint32_t body_max = atomic_load_explicit(&source->session->body_max_bytes, memory_order_relaxed);
    if (length > body_max - UM_LBMC_HEADER_BYTES)
        return -EMSGSIZE;
    uint32_t body = UM_LBMC_HEADER_BYTES + length;
    uint32_t actions = 0;
    int result = claim_space(source, um_frame_span(body), &actions, &claim->claim);
    if (result != 0)
        return result;
    int64_t claimed_to = claim->claim.position + claim->claim.length;
    if (claimed_to > atomic_load_explicit(&source->claimed_to, memory_order_relaxed))
        atomic_store_explicit(&source->claimed_to, claimed_to, memory_order_relaxed);
    um_frame_borrow(&source->session->log, claim->claim.frames, body);
    claim->payload = claim->claim.frames + UM_FRAME_HEADER_BYTES + UM_LBMC_HEADER_BYTES;
    claim->length = length;
    return 0;
}

int64_t um_source_claim_commit(um_source *source, um_source_claim *claim, uint32_t flags, int64_t now_ns,
                               uint32_t *actions)
{
    uint32_t body = UM_LBMC_HEADER_BYTES + claim->length;
    const um_publication_log *log = &source->session->log;
    /* The sqn is taken only now: a claim that is aborted or unblocked must not leave a hole (UX-23). */
    if (!um_frame_return(log, claim->claim.frames, body))
        return UM_CLOSED;
    um_lbmc_layout layout = {
        .topic_index = source->topic_index, .sqn = take_sqns(source, 1), .payload_length = claim->length};
    um_lbmc_write_message(claim->claim.frames + UM_FRAME_HEADER_BYTES, &layout);
    um_frame_publish(log, claim->claim.frames, body);
    /* What others have published behind the claim in the meantime belongs to the same batch. */
    int64_t end = um_log_tail(&source->session->log);
    bool alone = end == claim->claim.position + claim->claim.length;
    batcher b = batcher_open(source->session, alone ? claim->claim.position : end);
    batcher_add(&b, claim->claim.position, end, body, claim->length);
    atomic_store_explicit(&source->last_send_ns, now_ns, memory_order_relaxed);
    batcher_close(&b, end, flags & UM_SEND_FLUSH, now_ns, actions);
    count_shared(&source->counters.bytes_sent, claim->length);
    return (int64_t)layout.sqn;
}

void um_source_claim_abort(um_source *source, um_source_claim *claim, uint32_t *actions)
{
    um_log_abort(&source->session->log, &claim->claim);
    count_shared(&source->counters.claims_aborted, 1);
    wake_sender(source->session, actions);
}

int64_t um_source_flush(um_source *source, int64_t now_ns, uint32_t *actions)
{
    int64_t result = 0;
    if (is_batching(source)) {
        while (!um_lock_try(&source->explicit_lock))
            ;
        result = release_held(source, now_ns, actions);
        um_lock_release(&source->explicit_lock);
    }
    um_source_session *session = source->session;
    um_source_flush_all(session);
    count_shared(&session->counters.flushes_explicit, 1);
    *actions |= UM_ACTION_RUN_SENDER;
    return result;
}

/* ---- TSNIs (UM-62..UM-66) ---- */

/* When the source's next TSNI is due; UM_NEVER_NS when it is silent for good or has never sent. */
static int64_t tsni_due_ns(const um_source *source)
{
    int64_t last_ns = atomic_load_explicit(&source->last_send_ns, memory_order_relaxed);
    if (source->tsni_interval_ns == 0 || last_ns == INT64_MIN)
        return UM_NEVER_NS;
    int64_t from_ns = last_ns > source->tsni_sent_ns ? last_ns : source->tsni_sent_ns;
    int64_t due_ns = from_ns + source->tsni_interval_ns;
    bool over = source->tsni_threshold_ns != 0 && due_ns > last_ns + source->tsni_threshold_ns;
    return over ? UM_NEVER_NS : due_ns;
}

static bool publish_tsnis(um_source_session *session, const uint32_t *topics, const uint32_t *sqns, uint32_t count)
{
    uint8_t message[UM_LBMC_CONTROL_BYTES + UM_LBMC_TSNI_BYTES + UM_LBMC_TSNI_RECORD_BYTES * UM_LBMC_TSNI_RECORDS_MAX];
    uint32_t length = um_lbmc_write_tsni(message, topics, sqns, count);
    um_claim claim;
    int result = UM_ADMIN_ACTION;
    for (int i = 0; i < CLAIM_RETRIES_MAX && result == UM_ADMIN_ACTION; i++)
        result = um_log_claim(&session->log, um_frame_span(length), &claim);
    if (result != 0)
        return false;
    um_frame_begin(&session->log, claim.frames, length);
    memcpy(claim.frames + UM_FRAME_HEADER_BYTES, message, length);
    um_frame_publish(&session->log, claim.frames, length);
    um_source_flush_all(session);
    UM_COUNT(session->counters.tsnis_sent, count);
    return true;
}

/* The last topic sqn that is in the log; false when a publisher is just changing that. What an explicit batch holds
 * has its sqns already, but must not be announced: receivers would miss it and give it up. A claim that is still with
 * the application has its place in the log but no sqn: who began to receive at a TSNI behind it would wait for that. */
static bool last_published_sqn(um_source *source, uint32_t *sqn)
{
    if (atomic_load_explicit(&source->session->sender_position, memory_order_relaxed) <
        atomic_load_explicit(&source->claimed_to, memory_order_relaxed))
        return false;
    if (!um_lock_try(&source->explicit_lock))
        return false;
    held_record record;
    bool held = source->explicit_released < source->explicit_used;
    if (held)
        memcpy(&record, source->explicit_memory + source->explicit_released, sizeof record);
    *sqn = (held ? record.sqn : (uint32_t)atomic_load_explicit(&source->next_sqn, memory_order_relaxed)) - 1;
    um_lock_release(&source->explicit_lock);
    return true;
}

int64_t um_source_tick_tsni(um_source_session *session, int64_t now_ns)
{
    um_source *due[UM_LBMC_TSNI_RECORDS_MAX];
    uint32_t topics[UM_LBMC_TSNI_RECORDS_MAX], sqns[UM_LBMC_TSNI_RECORDS_MAX];
    uint32_t count = 0;
    int64_t next_ns = UM_NEVER_NS;
    if (now_ns < session->tsni_due_ns)
        return session->tsni_due_ns;
    for (um_source *source = session->sources; source != NULL; source = source->next) {
        if (count < UM_LBMC_TSNI_RECORDS_MAX && tsni_due_ns(source) <= now_ns &&
            last_published_sqn(source, &sqns[count])) {
            topics[count] = source->topic_index;
            due[count++] = source;
            source->tsni_sent_ns = now_ns;
        }
        int64_t due_ns = tsni_due_ns(source);
        if (due_ns <= now_ns && count < UM_LBMC_TSNI_RECORDS_MAX) /* it had to wait, not only for the next datagram */
            due_ns = now_ns + TSNI_RETRY_NS;
        next_ns = due_ns < next_ns ? due_ns : next_ns;
    }
    if (count > 0 && publish_tsnis(session, topics, sqns, count))
        for (uint32_t i = 0; i < count; i++)
            UM_COUNT(due[i]->counters.tsnis_sent, 1);
    session->tsni_due_ns = next_ns;
    return next_ns;
}
