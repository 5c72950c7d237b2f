#include "core/source_session.h"

#include "core/source.h"

enum {
    SENT_SPAN_BYTES_MIN = 64,       /* window bookkeeping is sized for datagrams of at least this log span */
    CLEAN_STEP_BYTES = 256 * 1024,  /* cleaned at once: more than a batch of datagrams, less than takes long (AE-48) */
    LINK_FULL_RETRY_NS = 100000,    /* how soon a full link is tried again */
    LINK_ERROR_RETRY_NS = 10000000, /* and one that failed */
    SENT_AHEAD = 16,                /* and the entry of the window */
    RUNS_AHEAD = 4,                 /* the frame so many datagrams ahead is fetched */
    ELICITED_SM_GAP_NS = 1000000,   /* bounds what a flood of status messages can make us send */
};

static uint32_t sent_capacity(const um_session_config *config)
{
    return config->term_length / SENT_SPAN_BYTES_MIN;
}

static void lay_out(um_source_session *session, um_arena *arena, const um_session_config *config)
{
    um_source_session ignored;
    um_source_session *s = session ? session : &ignored;
    s->sent = um_arena_take(arena, sent_capacity(config) * sizeof(um_sent));
    s->staging = um_arena_take(arena, (size_t)UM_SEND_BATCH_MAX * config->datagram_max_bytes);
    s->headers = um_arena_take(arena, (size_t)UM_SEND_BATCH_MAX * UM_LBTRM_DATA_BYTES);
    s->staged.memory = um_arena_take(arena, um_staged_footprint());
    s->parts = um_arena_take(arena, sizeof(um_part) * UM_SEND_BATCH_MAX * UM_DATAGRAM_PARTS_MAX);
}

size_t um_session_footprint(const um_session_config *config)
{
    size_t log_bytes = um_log_footprint(config->term_length);
    if (log_bytes == 0 || config->window_bytes > config->term_length ||
        config->datagram_max_bytes < UM_DATAGRAM_BYTES_MIN || config->datagram_max_bytes > UM_DATAGRAM_BYTES_MAX ||
        config->datagram_max_bytes > config->term_length / 8)
        return 0;
    um_arena arena = {NULL, 0};
    um_arena_take(&arena, log_bytes);
    lay_out(NULL, &arena, config);
    return arena.used_bytes;
}

void um_session_init(um_source_session *session, void *memory, const um_session_config *config, um_link *link,
                     um_rate_limits *limits, int64_t now_ns)
{
    memset(session, 0, sizeof *session);
    session->config = *config;
    session->link = session->staged.link = link;
    session->limits = limits;
    um_arena arena = {memory, 0};
    void *log_memory = um_arena_take(&arena, um_log_footprint(config->term_length));
    um_log_init(&session->log, log_memory, config->term_length, config->initial_term_id, config->unblock_timeout_ns);
    lay_out(session, &arena, config);
    session->sent_mask = sent_capacity(config) - 1;
    session->next_sqn = session->trail_sqn = config->initial_sqn;
    session->sm_interval_ns = config->sm_minimum_interval_ns;
    session->last_sent_ns = now_ns;
    session->last_sm_ns = INT64_MIN / 2;
    session->flow_expiry_ns = session->tsni_due_ns = session->tsni_interval_ns = UM_NEVER_NS;
    atomic_init(&session->body_max_bytes, config->datagram_max_bytes - UM_LBTRM_DATA_BYTES);
    um_flow_init(&session->flow, config->flow_policy, config->flow_group_tag, config->flow_group_minimum_size,
                 config->flow_receiver_timeout_ns);
    session->sender_limit = um_flow_connected(&session->flow) ? um_flow_limit(&session->flow) : 0;
    atomic_init(&session->log.connected, um_flow_connected(&session->flow));
    um_log_conduct(&session->log, 0, 0);
    um_source_transport_counters_reset(&session->counters);
}

void um_session_close(um_source_session *session)
{
    atomic_store(&session->log.closed, true);
}

void um_session_set_datagram_max(um_source_session *session, uint32_t datagram_max_bytes)
{
    /* Memory was sized for the configured maximum: a path that grows past it is not used to the full. */
    uint32_t bytes = datagram_max_bytes < session->config.datagram_max_bytes ? datagram_max_bytes
                                                                             : session->config.datagram_max_bytes;
    if (bytes < UM_DATAGRAM_BYTES_MIN)
        bytes = UM_DATAGRAM_BYTES_MIN;
    atomic_store(&session->body_max_bytes, bytes - UM_LBTRM_DATA_BYTES);
}

static bool is_limited(const um_rate_limits *limits, bool retransmission)
{
    return limits->data.bits_per_second != 0 || (retransmission && limits->retransmit.bits_per_second != 0);
}

static void lock_limits(um_rate_limits *limits)
{
    while (!um_lock_try(&limits->lock))
        ;
}

bool um_rate_limits_take(um_rate_limits *limits, uint32_t bytes, bool retransmission, int64_t now_ns)
{
    if (!is_limited(limits, retransmission))
        return true;
    lock_limits(limits);
    um_rate_limiter_advance(&limits->data, now_ns, bytes);
    if (retransmission)
        um_rate_limiter_advance(&limits->retransmit, now_ns, bytes);
    bool allowed = um_rate_limiter_allows(&limits->data, bytes) &&
                   (!retransmission || um_rate_limiter_allows(&limits->retransmit, bytes));
    if (allowed) {
        um_rate_limiter_take(&limits->data, bytes);
        if (retransmission)
            um_rate_limiter_take(&limits->retransmit, bytes);
    }
    um_lock_release(&limits->lock);
    return allowed;
}

void um_rate_limits_return(um_rate_limits *limits, uint32_t bytes, bool retransmission)
{
    if (!is_limited(limits, retransmission))
        return;
    lock_limits(limits);
    um_rate_limiter_return(&limits->data, bytes);
    if (retransmission)
        um_rate_limiter_return(&limits->retransmit, bytes);
    um_lock_release(&limits->lock);
}

int64_t um_rate_limits_next_ns(um_rate_limits *limits, int64_t now_ns)
{
    if (!is_limited(limits, true))
        return UM_NEVER_NS;
    lock_limits(limits);
    int64_t next_ns = UM_NEVER_NS;
    if (limits->data.bits_per_second && limits->data.slice_end_ns > now_ns)
        next_ns = limits->data.slice_end_ns;
    if (limits->retransmit.bits_per_second && limits->retransmit.slice_end_ns > now_ns &&
        limits->retransmit.slice_end_ns < next_ns)
        next_ns = limits->retransmit.slice_end_ns;
    um_lock_release(&limits->lock);
    return next_ns;
}

/* The slice in which the data limiter held a datagram back is over: publishers may try again (UX-1). */
static void tick_limits(um_rate_limits *limits, int64_t now_ns)
{
    if (!atomic_load_explicit(&limits->blocked, memory_order_relaxed))
        return;
    lock_limits(limits);
    if (now_ns >= limits->data.slice_end_ns)
        atomic_store_explicit(&limits->blocked, false, memory_order_relaxed);
    um_lock_release(&limits->lock);
}

/* Finds the longest run of whole committed frames from `position` that fits one datagram and ends by `limit`
 * (AE-38..AE-41). Padding is passed over. Returns LBMC bytes, 0 when nothing is ready. A single frame larger
 * than the datagram (built before the MTU shrank) is a run of its own. */
static uint32_t next_run(um_source_session *session, int64_t position, int64_t limit, uint32_t body_max, uint32_t *span)
{
    int64_t at = position;
    uint32_t bytes = 0;
    while (at < limit) {
        int32_t frame_length = um_log_frame_length(&session->log, at);
        if (frame_length <= 0)
            break;
        uint32_t frame_span = (uint32_t)um_align_up((uint32_t)frame_length, UM_FRAME_ALIGNMENT);
        if (UM_LIKELY(!um_log_frame_is_pad(&session->log, at))) {
            uint32_t message = (uint32_t)frame_length - UM_FRAME_HEADER_BYTES;
            if (at + frame_span > limit || (bytes > 0 && bytes + message > body_max))
                break;
            bytes += message;
        }
        at += frame_span;
        if (bytes > body_max)
            break;
    }
    /* It was written a portion ago, and much has been through the caches since. */
    if (session->staged.count == 0)
        __builtin_prefetch(um_log_at(&session->log, at + RUNS_AHEAD * (at - position)), 1, 3);
    *span = (uint32_t)(at - position);
    return bytes;
}

/* The same, where it is known without a look at the log: a datagram laid out with another right behind it. Each is more
 * than half of what fits, so no second frame joins the first; and what is laid out is committed. NULL: look. */
static const um_staged_datagram *next_fresh(um_source_session *session, int64_t position, int64_t limit)
{
    const um_staged_datagram *here = um_staged_at(&session->staged, position);
    if (here == NULL || session->staged.next + 1 == session->staged.count)
        return NULL;
    int64_t end = position + um_align_up(here->bytes, UM_FRAME_ALIGNMENT);
    bool goes_on = um_staged_entry(&session->staged, session->staged.next + 1)->position == end;
    return goes_on && end <= limit ? here : NULL;
}

static uint32_t count_frames(um_source_session *session, const um_sent *sent, uint32_t at_most)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < sent->span && count <= at_most;) {
        int32_t length = um_log_frame_length(&session->log, sent->position + at);
        count += !um_log_frame_is_pad(&session->log, sent->position + at);
        at += (uint32_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
    }
    return count;
}

static void copy_frames(um_source_session *session, const um_sent *sent, uint8_t *out)
{
    for (uint32_t at = 0; at < sent->span;) {
        const uint8_t *frame = um_log_at(&session->log, sent->position + at);
        int32_t length = um_log_frame_length(&session->log, sent->position + at);
        if (!um_log_frame_is_pad(&session->log, sent->position + at)) {
            memcpy(out, frame + UM_FRAME_HEADER_BYTES, (size_t)length - UM_FRAME_HEADER_BYTES);
            out += length - UM_FRAME_HEADER_BYTES;
        }
        at += (uint32_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
    }
}

static uint32_t gather_frames(um_source_session *session, const um_sent *sent, um_part *parts)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < sent->span;) {
        const uint8_t *frame = um_log_at(&session->log, sent->position + at);
        int32_t length = um_log_frame_length(&session->log, sent->position + at);
        if (!um_log_frame_is_pad(&session->log, sent->position + at))
            parts[count++] =
                (um_part){frame + UM_FRAME_HEADER_BYTES, (uint32_t)length - (uint32_t)UM_FRAME_HEADER_BYTES};
        at += (uint32_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
    }
    return count;
}

_Static_assert((int)UM_FRAME_HEADER_BYTES == (int)UM_LBTRM_DATA_BYTES, "one takes the place of the other");

/* Whether a datagram is one frame: it goes out from where it lies in the log. */
static bool is_single(const um_source_session *session, const um_sent *sent)
{
    uint32_t word = atomic_load_explicit(um_log_state_at(&session->log, sent->position), memory_order_acquire);
    return word == um_frame_word(UM_FRAME_HEADER_BYTES + (int32_t)sent->length, UM_FRAME_DATA);
}

/* Whether the link shall gather a datagram from where its frames lie; else it is laid out in the staging buffer. */
static bool is_gathered(um_source_session *session, const um_sent *sent)
{
    if (session->link->takes_whole)
        return false;
    uint32_t gather_max = session->config.coalesce_threshold < UM_DATAGRAM_PARTS_MAX - 1
                              ? session->config.coalesce_threshold
                              : UM_DATAGRAM_PARTS_MAX - 1;
    return count_frames(session, sent, gather_max) <= gather_max;
}

/* What lies in one piece, with room for the transport's header in front: a datagram, or the first part of one. */
static void build_whole(um_source_session *session, uint8_t *datagram, uint32_t length, uint32_t sqn,
                        bool retransmission, uint32_t slot, um_tx *tx)
{
    um_part *part = session->parts + (size_t)slot * UM_DATAGRAM_PARTS_MAX;
    um_lbtrm_write_data(datagram, session->config.session_id, session->config.nak_port, sqn, session->trail_sqn,
                        retransmission);
    if (slot == 0)
        session->staged_bytes = 0;
    *part = (um_part){datagram, length};
    *tx = (um_tx){.parts = part, .part_count = 1, .length = length};
}

static void build_fresh(um_source_session *session, const um_staged_datagram *staged, uint32_t sqn, bool retransmission,
                        uint32_t slot, um_tx *tx)
{
    build_whole(session, um_staged_data(&session->staged, staged), staged->bytes, sqn, retransmission, slot, tx);
    tx->borrowed = um_staged_borrowed(&session->staged, staged);
}

void um_datagram_build(um_source_session *session, const um_sent *sent, uint32_t sqn, bool retransmission, uint32_t slot,
                      um_tx *tx)
{
    uint32_t length = UM_LBTRM_DATA_BYTES + sent->length;
    const um_staged_datagram *staged = um_staged_find(&session->staged, sent->position, length);
    if (staged != NULL) {
        build_fresh(session, staged, sqn, retransmission, slot, tx);
    } else if (is_single(session, sent)) {
        build_whole(session, um_log_at(&session->log, sent->position), length, sqn, retransmission, slot, tx);
    } else if (is_gathered(session, sent)) {
        build_whole(session, session->headers + (size_t)slot * UM_LBTRM_DATA_BYTES, UM_LBTRM_DATA_BYTES, sqn,
                    retransmission, slot, tx);
        tx->part_count += gather_frames(session, sent, session->parts + (size_t)slot * UM_DATAGRAM_PARTS_MAX + 1);
        tx->length = length;
    } else {
        um_debug_assert(length <= session->config.datagram_max_bytes);
        uint8_t *staged = session->staging + (slot == 0 ? 0 : session->staged_bytes);
        copy_frames(session, sent, staged + UM_LBTRM_DATA_BYTES);
        build_whole(session, staged, length, sqn, retransmission, slot, tx);
        session->staged_bytes += length;
    }
}

static void drop_oldest(um_source_session *session)
{
    session->window_used_bytes -= um_session_sent(session, session->trail_sqn)->length;
    session->trail_sqn++;
}

/* Makes room in the transmission window for a datagram that ends at `end` in the log, behind `pending` others laid
 * out but not sent; `bytes` are theirs and its own (UM-125). The trail goes out in its header, so this comes first. */
static void make_room(um_source_session *session, int64_t end, uint32_t pending, uint64_t bytes)
{
    int64_t keep_from = end - session->log.term_length;
    while (session->trail_sqn != session->next_sqn &&
           (session->window_used_bytes + bytes > session->config.window_bytes ||
            session->next_sqn + pending - session->trail_sqn > session->sent_mask ||
            um_session_sent(session, session->trail_sqn)->position < keep_from))
        drop_oldest(session);
}

/* Lays out up to budget datagrams from the sender's position; they take effect only when the link accepts them. */
static uint32_t build_batch(um_source_session *session, int64_t limit, uint32_t budget, int64_t now_ns, um_tx *batch)
{
    int64_t start = atomic_load_explicit(&session->sender_position, memory_order_relaxed), position = start;
    uint32_t body_max = atomic_load_explicit(&session->body_max_bytes, memory_order_relaxed);
    uint32_t count = 0;
    uint64_t bytes = 0;
    while (count < budget) {
        const um_staged_datagram *staged = next_fresh(session, position, limit);
        uint32_t span = staged ? (uint32_t)um_align_up(staged->bytes, UM_FRAME_ALIGNMENT) : 0;
        uint32_t length =
            staged ? staged->bytes - UM_FRAME_HEADER_BYTES : next_run(session, position, limit, body_max, &span);
        uint64_t wire_bytes = bytes + length + (uint64_t)(count + 1) * UM_LBTRM_DATA_BYTES;
        if (length == 0 || (count > 0 && wire_bytes > UM_SEND_BATCH_BYTES_MAX))
            break;
        if (!um_rate_limits_take(session->limits, UM_LBTRM_DATA_BYTES + length, false, now_ns)) {
            atomic_store_explicit(&session->limits->blocked, true, memory_order_relaxed);
            atomic_store_explicit(&session->sender_blocked, true, memory_order_relaxed);
            break;
        }
        uint32_t sqn = session->next_sqn + count;
        __builtin_prefetch(um_session_sent(session, sqn + SENT_AHEAD), 1, 3);
        __builtin_prefetch(um_session_sent(session, session->trail_sqn + SENT_AHEAD), 0, 3);
        um_log_fetch_uncleaned(&session->log, position - start, span);
        bytes += length;
        make_room(session, position + span, count, bytes);
        um_sent *sent = um_session_sent(session, sqn);
        *sent = (um_sent){position, INT64_MIN, span, (uint16_t)length, 0, 0};
        if (staged)
            build_fresh(session, staged, sqn, false, count, &batch[count]);
        else
            um_datagram_build(session, sent, sqn, false, count, &batch[count]);
        position += span;
        count++;
        if (length > body_max)
            break;
    }
    return count;
}

/* The datagrams [0, count) of the batch are on their way: they join the transmission window. */
static void accept_batch(um_source_session *session, uint32_t count, int64_t now_ns)
{
    if (count == 0)
        return;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += um_session_sent(session, session->next_sqn + i)->length;
    const um_sent *last = um_session_sent(session, session->next_sqn + count - 1);
    session->next_sqn += count;
    session->window_used_bytes += bytes;
    atomic_store_explicit(&session->sender_position, last->position + last->span, memory_order_seq_cst);
    um_staged_drop_sent(&session->staged, last->position + last->span);
    while (session->window_used_bytes > session->config.window_bytes && session->trail_sqn + 1 != session->next_sqn)
        drop_oldest(session); /* a batch larger than the window */
    UM_COUNT(session->counters.msgs_sent, count);
    UM_COUNT(session->counters.bytes_sent, bytes + (uint64_t)count * UM_LBTRM_DATA_BYTES);
    session->has_sent = true;
    session->at_limit = false;
    session->last_sent_ns = now_ns;
    session->sm_interval_ns = session->config.sm_minimum_interval_ns;
    if (session->tsni_interval_ns < session->tsni_due_ns - now_ns)
        session->tsni_due_ns = now_ns + session->tsni_interval_ns;
}

/* How many datagrams at the head of the batch are no larger than the path takes. */
static uint32_t fitting(const um_source_session *session, const um_tx *batch, uint32_t count)
{
    uint32_t most = atomic_load_explicit(&session->body_max_bytes, memory_order_relaxed) + UM_LBTRM_DATA_BYTES;
    uint32_t fit = 0;
    while (fit < count && batch[fit].length <= most)
        fit++;
    return fit;
}

/* Offers the fitting head of the batch, or the oversize datagram that leads it. */
static int offer(um_source_session *session, const um_tx *batch, uint32_t fit)
{
    const um_link_ops *ops = session->link->ops;
    return fit == 0 ? ops->send_oversize(session->link, session->config.group, batch)
                    : ops->send(session->link, session->config.group, batch, fit);
}

/* Padding at the sender's position is never sent: step over it. */
static void skip_padding(um_source_session *session)
{
    int64_t start = atomic_load_explicit(&session->sender_position, memory_order_relaxed), position = start;
    int64_t tail = um_log_tail(&session->log);
    while (position < tail) {
        int32_t length = um_log_frame_length(&session->log, position);
        if (length <= 0 || !um_log_frame_is_pad(&session->log, position))
            break;
        position += (int64_t)um_align_up((uint32_t)length, UM_FRAME_ALIGNMENT);
    }
    if (position != start)
        atomic_store_explicit(&session->sender_position, position, memory_order_seq_cst);
}

static void note_limit(um_source_session *session, int64_t flushed)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    bool limited =
        position < flushed && session->sender_limit < flushed && um_log_frame_length(&session->log, position) > 0;
    if (limited && !session->at_limit)
        UM_COUNT(session->counters.snd_bpe, 1);
    session->at_limit = limited;
    if (limited)
        atomic_store_explicit(&session->sender_blocked, true, memory_order_relaxed);
}

static void conduct(um_source_session *session)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    while (session->trail_sqn != session->next_sqn &&
           um_session_sent(session, session->trail_sqn)->position < position - (int64_t)session->log.term_length)
        drop_oldest(session);
    um_log_conduct(&session->log, position, CLEAN_STEP_BYTES);
}

/* Nothing could be laid out: is it that the next frame is not committed? The fence pairs with a publisher's between
 * its commit and its look at sender_waits: either it clears the flag, or we see its frame. */
static void note_waiting(um_source_session *session, int64_t flushed)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    if (position >= flushed || um_log_frame_length(&session->log, position) > 0)
        return;
    atomic_store_explicit(&session->sender_waits, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (um_log_frame_length(&session->log, position) > 0)
        atomic_store_explicit(&session->sender_waits, false, memory_order_relaxed);
}

/* Offers one batch to the link. Returns how many datagrams it took, and says why there are no more. */
static int send_batch(um_source_session *session, int64_t now_ns, uint32_t budget)
{
    skip_padding(session);
    atomic_store_explicit(&session->sender_blocked, false, memory_order_relaxed);
    atomic_store_explicit(&session->sender_waits, false, memory_order_relaxed);
    int64_t flushed = atomic_load_explicit(&session->flush_limit, memory_order_seq_cst);
    int64_t limit = flushed < session->sender_limit ? flushed : session->sender_limit;
    um_tx batch[UM_SEND_BATCH_MAX];
    uint32_t count = build_batch(session, limit, budget, now_ns, batch);
    uint32_t fit = fitting(session, batch, count);
    uint32_t offered = fit > 0 || count == 0 ? fit : 1;
    int result = count == 0 ? 0 : offer(session, batch, fit);
    uint32_t taken = result < 0 ? 0 : (uint32_t)result;
    for (uint32_t i = taken; i < count; i++)
        um_rate_limits_return(session->limits, batch[i].length, false);
    accept_batch(session, taken, now_ns);
    session->link_retry_ns = taken == offered ? 0 : result < 0 ? LINK_ERROR_RETRY_NS : LINK_FULL_RETRY_NS;
    if (result < 0)
        session->link_error = result;
    if (taken < offered)
        atomic_store_explicit(&session->sender_blocked, true, memory_order_relaxed);
    if (result == 0)
        note_limit(session, flushed);
    if (count == 0)
        note_waiting(session, flushed);
    return result;
}

static void send_sm(um_source_session *session, int64_t now_ns)
{
    uint8_t datagram[UM_LBTRM_SM_BYTES];
    uint32_t length = um_lbtrm_write_sm(datagram, session->config.session_id, session->config.nak_port,
                                        session->sm_sqn++, session->next_sqn - 1, session->trail_sqn);
    um_part part = {datagram, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length};
    session->last_sm_ns = now_ns;
    if (session->link->ops->send(session->link, session->config.group, &tx, 1) == 1)
        UM_COUNT(session->counters.session_messages_sent, 1);
}

/* How far ahead of a receiver the sender may go so that everything it may still ask for stays in the transmission
 * window, however small the datagrams. */
static uint32_t repairable_bytes(const um_source_session *session)
{
    uint32_t datagrams = session->sent_mask - UM_SEND_BATCH_MAX;
    uint32_t by_count = datagrams * um_frame_span(UM_LBMC_HEADER_BYTES + 1);
    return by_count < session->config.window_bytes ? by_count : session->config.window_bytes;
}

/* A receiver reports by its own window. One that takes more than can be repaired would be heard of too late, so before
 * the sender has used up what it may, a session message asks for the position; two more if that is lost. */
static void ask_for_position(um_source_session *session, int64_t now_ns)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    int64_t most = repairable_bytes(session);
    if (position < session->sender_limit - most / 2 || position < session->asked_position + most / 4)
        return;
    session->asked_position = position;
    send_sm(session, now_ns);
}

int um_session_send(um_source_session *session, int64_t now_ns, uint32_t budget)
{
    int sent = 0, taken;
    do {
        uint32_t left = budget - (uint32_t)sent;
        taken = send_batch(session, now_ns, left < UM_SEND_BATCH_MAX ? left : UM_SEND_BATCH_MAX);
        sent += taken > 0 ? taken : 0;
        conduct(session);
        if (session->window_capped)
            ask_for_position(session, now_ns);
    } while (taken > 0 && budget - (uint32_t)sent >= UM_SEND_BATCH_MAX); /* what is left would cut a batch short */
    return taken < 0 ? taken : sent;
}

/* UM-68: the first after the minimum interval of silence, then twice as far apart each time, up to the maximum. */
static int64_t tick_sm(um_source_session *session, int64_t now_ns)
{
    if (!session->has_sent || session->config.sm_minimum_interval_ns == 0)
        return UM_NEVER_NS;
    int64_t due_ns = session->last_sent_ns + session->sm_interval_ns;
    if (now_ns < due_ns)
        return due_ns;
    send_sm(session, now_ns);
    session->last_sent_ns = due_ns;
    int64_t doubled_ns = 2 * session->sm_interval_ns;
    session->sm_interval_ns =
        doubled_ns < session->config.sm_maximum_interval_ns ? doubled_ns : session->config.sm_maximum_interval_ns;
    if (now_ns - due_ns > session->sm_interval_ns)
        session->last_sent_ns = now_ns; /* the caller was away: do not send a burst to catch up */
    return session->last_sent_ns + session->sm_interval_ns;
}

/* UM-19b: the oldest held message has waited the interval. */
static int64_t tick_batch(um_source_session *session, int64_t now_ns)
{
    int64_t tail = um_log_tail(&session->log);
    if (tail <= atomic_load_explicit(&session->flush_limit, memory_order_relaxed))
        return UM_NEVER_NS;
    int64_t due_ns =
        atomic_load_explicit(&session->batch_started_ns, memory_order_relaxed) + session->config.batch_interval_ns;
    if (now_ns < due_ns)
        return due_ns;
    um_source_flush_all(session);
    UM_COUNT(session->counters.flushes_interval, 1);
    return UM_NEVER_NS;
}

static void apply_flow(um_source_session *session)
{
    bool connected = um_flow_connected(&session->flow);
    if (connected) {
        int64_t limit = um_flow_limit(&session->flow);
        if (limit > session->sender_limit) {
            session->sender_limit = limit;
            atomic_store_explicit(&session->sender_blocked, false, memory_order_relaxed); /* it has to look again */
        }
    }
    atomic_store_explicit(&session->log.connected, connected, memory_order_release);
}

static int64_t tick_flow(um_source_session *session, int64_t now_ns)
{
    if (session->config.flow_policy == UM_FLOW_NONE)
        return UM_NEVER_NS;
    if (now_ns >= session->flow_expiry_ns) {
        uint32_t before = session->flow.receiver_count;
        session->flow_expiry_ns = um_flow_expire(&session->flow, now_ns);
        UM_COUNT(session->counters.receivers_timed_out, before - session->flow.receiver_count);
        apply_flow(session);
    }
    return session->flow_expiry_ns;
}

static int64_t tick_unblock(um_source_session *session, int64_t now_ns)
{
    int64_t position = atomic_load_explicit(&session->sender_position, memory_order_relaxed);
    if (um_log_unblock(&session->log, position, now_ns)) {
        session->counters.unblocked_publications = session->log.unblocked_count;
        return now_ns;
    }
    return um_log_unblock_due_ns(&session->log);
}

static int64_t earliest(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t um_session_tick(um_source_session *session, int64_t now_ns)
{
    int64_t next_ns = tick_flow(session, now_ns);
    tick_limits(session->limits, now_ns);
    next_ns = earliest(next_ns, um_source_tick_tsni(session, now_ns));
    next_ns = earliest(next_ns, tick_batch(session, now_ns));
    int pumped = um_retransmission_pump(session, now_ns);
    um_session_send(session, now_ns, 4 * UM_SEND_BATCH_MAX);
    next_ns = earliest(next_ns, tick_sm(session, now_ns));
    next_ns = earliest(next_ns, tick_unblock(session, now_ns));
    bool waits_for_limiter =
        atomic_load_explicit(&session->limits->blocked, memory_order_relaxed) || session->retransmit_count > 0;
    if (waits_for_limiter)
        next_ns = earliest(next_ns, um_rate_limits_next_ns(session->limits, now_ns));
    if (pumped <= 0 && session->link_retry_ns == 0)
        session->link_retry_ns = pumped < 0 ? LINK_ERROR_RETRY_NS : LINK_FULL_RETRY_NS;
    if (session->link_retry_ns != 0)
        next_ns = earliest(next_ns, now_ns + session->link_retry_ns);
    return um_session_pending(session) ? now_ns : next_ns;
}

static void on_status(um_source_session *session, const um_lbtrm_packet *packet, int64_t now_ns)
{
    um_status_message status;
    if (!um_status_decode(packet, &status)) {
        UM_COUNT(session->counters.status_malformed, 1);
        return;
    }
    if (session->config.flow_policy == UM_FLOW_NONE)
        return;
    if (status.flags & UM_STATUS_LEAVE) {
        um_flow_on_leave(&session->flow, status.receiver_id);
        apply_flow(session);
        return;
    }
    if (status.flags & UM_STATUS_ELICIT) {
        if (now_ns - session->last_sm_ns >= ELICITED_SM_GAP_NS)
            send_sm(session, now_ns);
        return;
    }
    if (um_serial_before(session->next_sqn, status.next_sqn) ||
        session->next_sqn - status.next_sqn > session->sent_mask) {
        UM_COUNT(session->counters.status_out_of_range, 1);
        return;
    }
    /* Older than the window: the receiver is further behind than anything we can still send again. */
    uint32_t sqn = um_serial_before(status.next_sqn, session->trail_sqn) ? session->trail_sqn : status.next_sqn;
    int64_t position =
        sqn == session->next_sqn ? atomic_load(&session->sender_position) : um_session_sent(session, sqn)->position;
    UM_COUNT(session->counters.status_messages_received, 1);
    uint32_t most = repairable_bytes(session);
    uint32_t window = status.window_bytes < most ? status.window_bytes : most;
    session->window_capped |= status.window_bytes > most;
    um_flow_on_status(&session->flow, status.receiver_id, status.group_tag, position + window, now_ns);
    um_flow_note_position(&session->flow, status.receiver_id, position);
    session->counters.receivers_refused = session->flow.refused_count;
    session->flow_expiry_ns = earliest(session->flow_expiry_ns, now_ns + session->config.flow_receiver_timeout_ns);
    apply_flow(session);
    conduct(session);
}

static void count_dropped(um_source_transport_counters *counters, enum um_dgram_status status)
{
    switch (status) {
    case UM_DGRAM_SIZE:
        UM_COUNT(counters->dgrams_dropped_size, 1);
        break;
    case UM_DGRAM_TYPE:
        UM_COUNT(counters->dgrams_dropped_type, 1);
        break;
    case UM_DGRAM_VERSION:
        UM_COUNT(counters->dgrams_dropped_version, 1);
        break;
    case UM_DGRAM_HDR:
        UM_COUNT(counters->dgrams_dropped_hdr, 1);
        break;
    default:
        UM_COUNT(counters->dgrams_dropped_other, 1);
    }
}

void um_session_on_control(um_source_session *session, const uint8_t *data, uint32_t length, int64_t now_ns)
{
    um_lbtrm_packet packet;
    enum um_dgram_status status = um_lbtrm_decode(data, length, &packet);
    if (status != UM_DGRAM_OK)
        count_dropped(&session->counters, status);
    else if (packet.session_id != session->config.session_id || packet.nak_port != session->config.nak_port)
        UM_COUNT(session->counters.dgrams_dropped_sid, 1);
    else if (packet.type == UM_LBTRM_NAK)
        um_retransmission_on_nak(session, &packet, now_ns);
    else if (packet.type == UM_LBTRM_DATA)
        on_status(session, &packet, now_ns);
    else
        UM_COUNT(session->counters.dgrams_dropped_type, 1);
}

void um_session_snapshot(um_source_session *session)
{
    um_source_transport_counters *counters = &session->counters;
    counters->txw_msgs = session->next_sqn - session->trail_sqn;
    counters->txw_bytes = session->window_used_bytes;
    counters->rctlr_rx_msgs = session->retransmit_count;
    counters->pub_pos = (uint64_t)um_log_tail(&session->log);
    counters->pub_lmt = (uint64_t)atomic_load(&session->log.publication_limit);
    counters->snd_pos = (uint64_t)atomic_load(&session->sender_position);
    counters->snd_lmt = (uint64_t)session->sender_limit;
    counters->receivers_known = session->flow.receiver_count;
    counters->term_rotations = atomic_load(&session->log.active_term_count);
}
