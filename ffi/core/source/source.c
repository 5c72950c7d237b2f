#include "core/source/source.h"

#include "core/foundation/nontemporal.h"
#include "core/source/explicit_batch.h"
#include "core/source/frame_writer.h"

enum { GROUP_SPAN_MAX = 68 * 1024 }; /* log bytes claimed at once by a batch of messages */

void um_source_init(um_source *source, void *memory, const um_source_config *config, um_source_session *session)
{
    memset(source, 0, sizeof *source);
    source->session = session;
    source->topic_index = config->topic_index;
    source->tsni_interval_ns = config->tsni_interval_ns;
    source->tsni_threshold_ns = config->tsni_threshold_ns;
    assert(config->fragment_bytes + um_source_session_overhead_bytes(session) <= session->config.datagram_max_bytes);
    source->has_send_time = config->has_send_time;
    source->fragment_bytes = config->fragment_bytes;
    source->explicit_memory = memory;
    source->explicit_capacity = config->explicit_capacity;
    source->initial_sqn = config->initial_sqn;
    atomic_init(&source->next_sqn, config->initial_sqn);
    atomic_init(&source->last_send_ns, INT64_MIN);
    um_source_counters_reset(&source->counters);
    if (source->tsni_interval_ns != 0 && source->tsni_interval_ns < session->tsni_interval_ns)
        session->tsni_interval_ns = source->tsni_interval_ns;
    source->next = session->sources;
    source->link = &session->sources;
    if (source->next != NULL)
        source->next->link = &source->next;
    session->sources = source;
}

void um_source_fini(um_source *source)
{
    atomic_store(&source->is_closed, true);
    if (source->link == NULL)
        return;
    *source->link = source->next;
    if (source->next != NULL)
        source->next->link = source->link;
    source->link = NULL;
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

void um_source_flush_all(um_source_session *session)
{
    um_batcher_flush_all(session);
}

/* Writes a message that makes up a datagram: stages it, and writes its copy in the log with non-temporal stores. */
static void stage_message(um_frame_writer *w, um_staged_datagrams *staged, const um_lbmc_layout *layout,
                          const uint8_t *payload)
{
    uint32_t overhead = um_source_overhead(w->source);
    uint32_t body = overhead + layout->payload_length, bytes = UM_FRAME_HEADER_BYTES + body;
    const um_staged_datagram *added = um_staged_add(staged, w->position, bytes);
    um_borrowed_frame *borrowed = um_staged_borrowed(staged, added);
    uint8_t *datagram = um_staged_data(staged, added);
    uint8_t *rest = um_lbmc_write_message(datagram + UM_FRAME_HEADER_BYTES, layout);
    uint32_t in_first_line = UM_CACHE_LINE_BYTES - UM_FRAME_HEADER_BYTES - overhead;
    uint32_t head = layout->payload_length < in_first_line ? layout->payload_length : in_first_line;
    uint32_t lines_bytes = (layout->payload_length - head) / UM_CACHE_LINE_BYTES * UM_CACHE_LINE_BYTES;
    uint32_t tail = layout->payload_length - head - lines_bytes;
    memcpy(rest, payload, head);
    um_nontemporal_copy_line(w->frame, datagram);
    uint8_t *lines = w->frame + UM_CACHE_LINE_BYTES;
    if (borrowed == NULL) {
        um_nontemporal_copy_twice(lines, rest + head, payload + head, lines_bytes, false);
    } else {
        uint64_t sum = um_nontemporal_copy_twice(lines, rest + head, payload + head, lines_bytes, true);
        borrowed->unsummed_bytes = UM_CACHE_LINE_BYTES;
        borrowed->sum = um_internet_sum(payload + head + lines_bytes, tail, sum);
    }
    if (tail > 0) {
        memcpy(rest + head + lines_bytes, payload + head + lines_bytes, tail);
        um_nontemporal_copy_line(lines + lines_bytes, rest + head + lines_bytes);
    }
    um_frame_writer_step(w, body, layout->payload_length);
}

/* Publishes the newest `count` staged datagrams, the first of them last: until then the sender stops in front of it. */
static void publish_staged(const um_publication_log *log, um_staged_datagrams *staged, uint32_t count)
{
    um_nontemporal_fence();
    for (uint32_t i = staged->count; i-- > staged->count - count;) {
        const um_staged_datagram *datagram = um_staged_entry(staged, i);
        um_frame_publish(log, um_log_at(log, datagram->position), datagram->bytes - UM_FRAME_HEADER_BYTES);
    }
}

/* ---- sending ---- */

int64_t um_source_send(um_source *source, const uint8_t *data, uint32_t length, uint32_t flags, int64_t now_ns,
                       uint32_t *actions)
{
    if (UM_UNLIKELY(length > um_source_message_max(source)))
        return -EMSGSIZE;
    if (UM_UNLIKELY((flags & (UM_SEND_START_BATCH | UM_SEND_END_BATCH)) || um_explicit_batch_is_open(source))) {
        while (!um_lock_try(&source->explicit_lock))
            ;
        int64_t held = um_explicit_batch_send(source, data, length, flags, now_ns, actions);
        um_lock_release(&source->explicit_lock);
        return held;
    }
    uint32_t sqn;
    int result = um_source_publish(source, data, length, 0, flags & UM_SEND_FLUSH, NULL, &sqn, now_ns, actions);
    return result == 0 ? (int64_t)sqn : result;
}

/* ---- messages with more options ---- */

/* Every fragment carries the options, so the plan is that of smaller datagrams. */
static um_fragmentation plan_with_options(const um_source *source, uint32_t length, uint32_t options_bytes)
{
    uint32_t body_max = atomic_load_explicit(&source->session->body_max_bytes, memory_order_relaxed);
    bool send_time = source->has_send_time;
    um_fragmentation f = um_fragmentation_plan(source, body_max - options_bytes, length, false);
    uint32_t overhead = um_lbmc_overhead(f.count > 1, false, send_time) + options_bytes;
    uint32_t last = length - (f.count - 1) * f.chunk;
    f.span = (f.count - 1) * um_frame_span(overhead + f.chunk) + um_frame_span(overhead + last);
    return f;
}

static void write_with_options(um_frame_writer *w, const um_lbmc_layout *layout, const um_lbmc_first_options *options,
                               const uint8_t *payload)
{
    uint8_t *body = w->frame + UM_FRAME_HEADER_BYTES;
    uint8_t *out = um_lbmc_write_with_options(body, layout, options);
    memcpy(out, payload, layout->payload_length);
    uint32_t bytes = (uint32_t)(out - body) + layout->payload_length, span = um_frame_span(bytes);
    w->left -= span;
    if (w->left > 0)
        um_frame_begin(w->log, w->frame + span, w->left - UM_FRAME_HEADER_BYTES);
    um_frame_publish(w->log, w->frame, bytes);
    um_frame_writer_step(w, bytes, layout->payload_length);
}

/* One message with options, before its space is claimed. */
typedef struct message_with_options {
    const uint8_t *data;
    uint32_t length;
    uint32_t properties_bytes;
    um_lbmc_first_options options;
    um_fragmentation f;
} message_with_options;

/* Writes the message into its claim. Returns the sqn of its last fragment. */
static int64_t publish_with_options(um_source *source, const message_with_options *m, const um_claim *claim,
                                    uint32_t sqn, int64_t sent_ns, uint32_t flags, int64_t now_ns, uint32_t *actions)
{
    um_frame_writer w = um_frame_writer_open(source, claim);
    um_lbmc_layout layout = {.topic_index = source->topic_index,
                             .flags = m->f.count > 1 ? UM_MESSAGE_FRAGMENT : 0,
                             .first_sqn = sqn,
                             .total = m->length,
                             .sent_ns = sent_ns};
    for (uint32_t i = 0; i < m->f.count; i++) {
        layout.sqn = sqn + i;
        layout.offset = i * m->f.chunk;
        layout.payload_length = i + 1 < m->f.count ? m->f.chunk : m->length - layout.offset;
        write_with_options(&w, &layout, &m->options, m->data + layout.offset);
    }
    atomic_store_explicit(&source->last_send_ns, now_ns, memory_order_relaxed);
    um_batcher_close(&w.batch, w.position, flags & UM_SEND_FLUSH, now_ns, actions);
    if (m->f.count > 1)
        atomic_fetch_add_explicit(&source->extra_fragments, m->f.count - 1, memory_order_relaxed);
    um_count_shared(&source->counters.bytes_sent, m->length - m->properties_bytes);
    return (int64_t)(sqn + m->f.count - 1);
}

int64_t um_source_send_with(um_source *source, const uint8_t *data, uint32_t length, const um_lbmc_extras *extras,
                            uint32_t flags, int64_t now_ns, uint32_t *actions)
{
    assert(extras->properties_bytes <= length);
    if (length > um_source_message_max(source))
        return -EMSGSIZE;
    if (um_explicit_batch_is_open(source))
        return -EBUSY;
    message_with_options m = {.data = data, .length = length, .properties_bytes = extras->properties_bytes};
    um_lbmc_make_first_options(&m.options, extras);
    m.f = plan_with_options(source, length, m.options.length);
    um_claim claim;
    int result = um_source_claim_space(source, m.f.span, actions, &claim);
    if (result != 0)
        return result;
    uint32_t sqn = um_source_take_sqns(source, m.f.count);
    return publish_with_options(source, &m, &claim, sqn, um_source_send_time(source, now_ns), flags, now_ns, actions);
}

/* ---- relayed messages ---- */

void um_source_number_next(um_source *source, uint32_t sqn)
{
    uint64_t next_sqn = atomic_load_explicit(&source->next_sqn, memory_order_relaxed);
    uint32_t left_out = sqn - (uint32_t)next_sqn;
    source->initial_sqn += left_out; /* the sent messages are counted from it */
    atomic_store_explicit(&source->next_sqn, next_sqn + left_out, memory_order_relaxed);
}

/* Stores the plan of `count` fragments, the last of which may be shorter: of the source's fixed length, or of equal
 * length. Returns 0, -EINVAL or -EMSGSIZE. */
static int plan_fragments(const um_source *source, uint32_t count, bool has_send_time, message_with_options *m)
{
    bool is_fixed = source->fragment_bytes != 0;
    uint32_t chunk = is_fixed ? source->fragment_bytes : count == 0 ? 0 : m->length / count + (m->length % count != 0);
    if (count == 0 || (uint64_t)count * chunk < m->length || (count > 1 && (uint64_t)(count - 1) * chunk >= m->length))
        return -EINVAL;
    uint32_t overhead = um_lbmc_overhead(count > 1, false, has_send_time) + m->options.length;
    const um_source_session *session = source->session;
    uint32_t body_max = is_fixed ? session->config.datagram_max_bytes - um_source_session_overhead_bytes(session)
                                 : atomic_load_explicit(&session->body_max_bytes, memory_order_relaxed);
    if (m->length > um_source_message_max(source) || overhead + chunk > body_max)
        return -EMSGSIZE;
    uint32_t last = m->length - (count - 1) * chunk;
    uint64_t span = (uint64_t)(count - 1) * um_frame_span(overhead + chunk) + um_frame_span(overhead + last);
    if (span > um_log_claim_max(&source->session->log))
        return -EMSGSIZE;
    m->f = (um_fragmentation){count, chunk, (uint32_t)span};
    return 0;
}

int64_t um_source_relay(um_source *source, const uint8_t *data, uint32_t length, const um_lbmc_extras *extras,
                        const um_relayed_numbers *numbers, int64_t now_ns, uint32_t *actions)
{
    message_with_options m = {.data = data, .length = length, .properties_bytes = extras->properties_bytes};
    um_lbmc_make_first_options(&m.options, extras);
    uint32_t count = numbers->last_sqn - numbers->first_sqn + 1;
    int result = plan_fragments(source, count, numbers->sent_ns != 0, &m);
    um_claim claim;
    if (result == 0)
        result = um_source_claim_space(source, m.f.span, actions, &claim);
    if (result != 0)
        return result;
    um_source_number_next(source, numbers->first_sqn);
    um_source_take_sqns(source, count);
    return publish_with_options(source, &m, &claim, numbers->first_sqn, numbers->sent_ns, 0, now_ns, actions);
}

/* ---- many messages ---- */

static inline uint32_t message_length(const um_messages *messages, uint32_t i)
{
    return messages->lengths ? messages->lengths[i] : (uint32_t)(messages->offsets[i + 1] - messages->offsets[i]);
}

/* Messages that share one claim. */
typedef struct group {
    uint32_t count;
    uint32_t span;
    uint32_t datagram_bytes; /* bytes of all, each with a transport header */
    bool is_staged;          /* each is staged as a datagram */
} group;

/* Returns true if the next message of a group can be staged: it fills more than half a datagram, and there is space. */
static bool can_stage(um_staged_space space, const group *g, uint32_t body, uint32_t body_max)
{
    return 2 * body > body_max && g->datagram_bytes + UM_FRAME_HEADER_BYTES + body <= space.bytes &&
           g->count < space.datagrams;
}

/* Returns the messages from `first` on that fit one claim unsplit, either all staged or none. */
static group plan_group(const um_source *source, const um_messages *messages, uint32_t first, uint32_t body_max)
{
    const um_source_session *session = source->session;
    uint32_t overhead = um_source_overhead(source);
    uint32_t claim_max = um_log_claim_max(&session->log);
    uint32_t span_max = claim_max < GROUP_SPAN_MAX ? claim_max : GROUP_SPAN_MAX;
    uint32_t length_max = body_max - overhead;
    if (source->fragment_bytes != 0 && source->fragment_bytes < length_max)
        length_max = source->fragment_bytes;
    um_staged_space space = {0};
    if (messages->staged != NULL)
        space = um_staged_make_space(messages->staged, messages->count - first, UM_FRAME_HEADER_BYTES + body_max);
    group g = {0};
    for (uint32_t i = first; i < messages->count; i++, g.count++) {
        uint32_t length = message_length(messages, i), body = overhead + length;
        if (length > length_max || g.span + um_frame_span(body) > span_max)
            break;
        bool is_staged = can_stage(space, &g, body, body_max);
        if (g.count > 0 && is_staged != g.is_staged)
            break;
        g.is_staged = is_staged;
        g.span += um_frame_span(body);
        g.datagram_bytes += UM_FRAME_HEADER_BYTES + body;
    }
    return g;
}

static int send_group(um_source *source, const um_messages *messages, uint32_t first, const group *g,
                      const uint8_t **data, int64_t now_ns, uint32_t *actions)
{
    um_claim claim;
    int result = um_source_claim_space(source, g->span, actions, &claim);
    if (result != 0)
        return result;
    uint32_t sqn = um_source_take_sqns(source, g->count);
    um_frame_writer w = um_frame_writer_open(source, &claim);
    const uint8_t *start = *data;
    um_lbmc_layout layout = {.topic_index = source->topic_index, .sent_ns = um_source_send_time(source, now_ns)};
    for (uint32_t i = 0; i < g->count; i++) {
        layout.sqn = sqn + i;
        layout.payload_length = message_length(messages, first + i);
        if (g->is_staged)
            stage_message(&w, messages->staged, &layout, *data);
        else
            um_frame_writer_write(&w, &layout, *data);
        *data += layout.payload_length;
    }
    if (g->is_staged)
        publish_staged(&source->session->log, messages->staged, g->count);
    atomic_store_explicit(&source->last_send_ns, now_ns, memory_order_relaxed);
    um_batcher_close(&w.batch, w.position, false, now_ns, actions);
    um_count_shared(&source->counters.bytes_sent, (uint64_t)(*data - start));
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
        group g = um_explicit_batch_is_open(source) ? (group){0} : plan_group(source, messages, done, body_max);
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
    uint32_t overhead = um_source_overhead(source);
    if (length > body_max - overhead)
        return -EMSGSIZE;
    uint32_t body = overhead + length;
    uint32_t actions = 0;
    int result = um_source_claim_space(source, um_frame_span(body), &actions, &claim->claim);
    if (result != 0)
        return result;
    int64_t claimed_to = claim->claim.position + claim->claim.length;
    if (claimed_to > atomic_load_explicit(&source->claimed_to, memory_order_relaxed))
        atomic_store_explicit(&source->claimed_to, claimed_to, memory_order_relaxed);
    um_frame_borrow(&source->session->log, claim->claim.frames, body);
    claim->payload = claim->claim.frames + UM_FRAME_HEADER_BYTES + overhead;
    claim->length = length;
    return 0;
}

int64_t um_source_claim_commit(um_source *source, um_source_claim *claim, uint32_t flags, int64_t now_ns,
                               uint32_t *actions)
{
    uint32_t body = um_source_overhead(source) + claim->length;
    const um_publication_log *log = &source->session->log;
    /* The sqn is assigned only now: a claim that is aborted or unblocked must not leave a hole (UX-23). */
    if (!um_frame_return(log, claim->claim.frames, body))
        return UM_CLOSED;
    um_lbmc_layout layout = {.topic_index = source->topic_index,
                             .sqn = um_source_take_sqns(source, 1),
                             .payload_length = claim->length,
                             .sent_ns = um_source_send_time(source, now_ns)};
    um_lbmc_write_message(claim->claim.frames + UM_FRAME_HEADER_BYTES, &layout);
    um_frame_publish(log, claim->claim.frames, body);
    /* Frames that others have published after the claim in the meantime belong to the same batch. */
    int64_t end = um_log_tail(&source->session->log);
    bool is_last = end == claim->claim.position + claim->claim.length;
    um_batcher b = um_batcher_open(source->session, is_last ? claim->claim.position : end);
    um_batcher_add(&b, claim->claim.position, end, body, claim->length);
    atomic_store_explicit(&source->last_send_ns, now_ns, memory_order_relaxed);
    um_batcher_close(&b, end, flags & UM_SEND_FLUSH, now_ns, actions);
    um_count_shared(&source->counters.bytes_sent, claim->length);
    return (int64_t)layout.sqn;
}

void um_source_claim_abort(um_source *source, um_source_claim *claim, uint32_t *actions)
{
    um_log_abort(&source->session->log, &claim->claim);
    um_count_shared(&source->counters.claims_aborted, 1);
    um_source_wake_sender(source->session, actions);
}

int64_t um_source_flush(um_source *source, int64_t now_ns, uint32_t *actions)
{
    int64_t result = 0;
    if (um_explicit_batch_is_open(source)) {
        while (!um_lock_try(&source->explicit_lock))
            ;
        result = um_explicit_batch_release(source, now_ns, actions);
        um_lock_release(&source->explicit_lock);
    }
    um_source_session *session = source->session;
    um_source_flush_all(session);
    um_count_shared(&session->counters.flushes_explicit, 1);
    *actions |= UM_ACTION_RUN_SENDER;
    return result;
}
