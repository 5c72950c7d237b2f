#include "core/source/publication_log.h"

size_t um_log_footprint(uint32_t term_length)
{
    if (!um_is_power_of_two(term_length) || term_length < UM_LOG_TERM_BYTES_MIN || term_length > UM_LOG_TERM_BYTES_MAX)
        return 0;
    size_t bytes = (size_t)UM_LOG_TERM_COUNT * term_length;
    return bytes + bytes / UM_FRAME_ALIGNMENT * sizeof(um_frame_state);
}

static uint64_t tail_word(uint32_t term_id, uint32_t offset)
{
    return (uint64_t)term_id << 32 | offset;
}

static int64_t log_bytes(const um_publication_log *log)
{
    return (int64_t)UM_LOG_TERM_COUNT << log->term_bits;
}

void um_log_init(um_publication_log *log, void *memory, uint32_t term_length, uint32_t initial_term_id,
                 int64_t unblock_timeout_ns)
{
    assert(um_log_footprint(term_length) != 0);
    memset(log, 0, sizeof *log);
    log->terms = memory;
    log->states = (um_frame_state *)(void *)(log->terms + (size_t)UM_LOG_TERM_COUNT * term_length);
    log->term_length = term_length;
    log->window_bytes = term_length / 2;
    log->term_bits = (uint32_t)__builtin_ctz(term_length);
    log->initial_term_id = initial_term_id;
    log->unblock_timeout_ns = unblock_timeout_ns;
    log->blocked_position = -1;
    atomic_init(&log->writable_end, log_bytes(log));
    atomic_init(&log->tails[0], tail_word(initial_term_id, 0));
    /* The other tails carry the ids of one round earlier, so that rotation can compare-and-set each from the id it
     * expects. */
    for (uint32_t i = 1; i < UM_LOG_TERM_COUNT; i++)
        atomic_init(&log->tails[i], tail_word(initial_term_id + i - UM_LOG_TERM_COUNT, 0));
}

static int64_t position_of(const um_publication_log *log, uint32_t term_id, uint32_t offset)
{
    return ((int64_t)(term_id - log->initial_term_id) << log->term_bits) + offset;
}

int64_t um_log_tail(const um_publication_log *log)
{
    uint32_t term_count = atomic_load_explicit(&log->active_term_count, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&log->tails[term_count % UM_LOG_TERM_COUNT], memory_order_acquire);
    uint64_t offset = tail & UINT32_MAX;
    return position_of(log, (uint32_t)(tail >> 32), offset < log->term_length ? (uint32_t)offset : log->term_length);
}

static void write_pad(um_publication_log *log, const uint8_t *frame, uint32_t length)
{
    atomic_store_explicit(um_frame_state_of(log, frame), um_frame_word((int32_t)length, UM_FRAME_PAD),
                          memory_order_release);
}

static void rotate(um_publication_log *log, uint32_t term_count, uint32_t term_id)
{
    uint32_t next_index = (term_count + 1) % UM_LOG_TERM_COUNT;
    uint64_t tail = atomic_load_explicit(&log->tails[next_index], memory_order_acquire);
    while ((uint32_t)(tail >> 32) == term_id + 1 - UM_LOG_TERM_COUNT &&
           !atomic_compare_exchange_weak_explicit(&log->tails[next_index], &tail, tail_word(term_id + 1, 0),
                                                  memory_order_acq_rel, memory_order_acquire))
        ;
    uint32_t expected = term_count;
    atomic_compare_exchange_strong_explicit(&log->active_term_count, &expected, term_count + 1, memory_order_acq_rel,
                                            memory_order_relaxed);
}

/* Notes the length of a claim refused at the writable end, so that the conductor keeps that much more clean. */
static void note_claim_span(um_publication_log *log, uint32_t length)
{
    uint32_t span = atomic_load_explicit(&log->claim_span, memory_order_relaxed);
    while (span < length && !atomic_compare_exchange_weak_explicit(&log->claim_span, &span, length,
                                                                   memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Returns the reason to refuse a claim at `position`, or 0. */
static int refusal(um_publication_log *log, int64_t position, uint32_t length)
{
    if (UM_UNLIKELY(atomic_load_explicit(&log->is_closed, memory_order_relaxed)))
        return UM_CLOSED;
    if (UM_UNLIKELY(position + length > ((int64_t)1 << log->term_bits) * INT32_MAX))
        return UM_MAX_POSITION_EXCEEDED;
    if (UM_LIKELY(position < atomic_load_explicit(&log->publication_limit, memory_order_relaxed))) {
        if (UM_LIKELY(position + length <= atomic_load_explicit(&log->writable_end, memory_order_acquire)))
            return 0;
        note_claim_span(log, length);
        return UM_BACK_PRESSURED;
    }
    return atomic_load_explicit(&log->is_connected, memory_order_acquire) ? UM_BACK_PRESSURED : UM_NOT_CONNECTED;
}

/* The claim at `offset` does not fit its term: pads the rest, which the claim has just taken, and rotates. */
static void close_term(um_publication_log *log, uint32_t term_count, uint32_t offset)
{
    if (offset < log->term_length) {
        uint64_t term = (uint64_t)(term_count % UM_LOG_TERM_COUNT) << log->term_bits;
        write_pad(log, log->terms + term + offset, log->term_length - offset);
    }
    rotate(log, term_count, log->initial_term_id + term_count);
}

int um_log_claim(um_publication_log *log, uint32_t length, um_claim *claim)
{
    um_debug_assert(length % UM_FRAME_ALIGNMENT == 0);
    um_debug_assert(length <= um_log_claim_max(log));
    uint32_t term_count = atomic_load_explicit(&log->active_term_count, memory_order_acquire);
    uint32_t term_id = log->initial_term_id + term_count;
    _Atomic uint64_t *tail_counter = &log->tails[term_count % UM_LOG_TERM_COUNT];
    uint64_t tail = atomic_load_explicit(tail_counter, memory_order_acquire);
    uint32_t offset;
    do {
        if (UM_UNLIKELY((uint32_t)(tail >> 32) != term_id))
            return UM_ADMIN_ACTION;
        offset = (uint32_t)tail;
        if (UM_UNLIKELY(offset > log->term_length)) { /* the thread that closed this term has not moved on yet */
            rotate(log, term_count, term_id);
            return UM_ADMIN_ACTION;
        }
        int refused = refusal(log, position_of(log, term_id, offset), length);
        if (UM_UNLIKELY(refused))
            return refused;
    } while (!atomic_compare_exchange_weak_explicit(tail_counter, &tail, tail + length, memory_order_acq_rel,
                                                    memory_order_acquire));
    if (UM_UNLIKELY(offset + length > log->term_length)) {
        close_term(log, term_count, offset);
        return UM_ADMIN_ACTION;
    }
    claim->position = position_of(log, term_id, offset);
    claim->frames = um_log_at(log, claim->position);
    claim->length = length;
    return 0;
}

bool um_log_abort(const um_publication_log *log, const um_claim *claim)
{
    um_frame_state *state = um_frame_state_of(log, claim->frames);
    uint32_t borrowed = atomic_load_explicit(state, memory_order_relaxed);
    return um_frame_kind_of(borrowed) == UM_FRAME_BORROWED &&
           atomic_compare_exchange_strong_explicit(state, &borrowed,
                                                   um_frame_word((int32_t)claim->length, UM_FRAME_PAD),
                                                   memory_order_acq_rel, memory_order_relaxed);
}

/* Zeroes the words of [from, from + length) inside one term, the first one last: an early reader sees the old frame
 * instead of a hole (AE-48). */
static void clean(um_publication_log *log, int64_t from, uint32_t length)
{
    um_frame_state *first = um_log_state_at(log, from);
    memset((void *)(first + 1), 0, (length / UM_FRAME_ALIGNMENT - 1) * sizeof *first);
    atomic_store_explicit(first, 0, memory_order_release);
}

/* The position up to which the log should be clean. Space cleaned earlier would have left the caches when it is
 * written. A claim at the publication limit reaches up to an eighth of a term beyond it. */
static int64_t clean_goal(const um_publication_log *log, int64_t sender_position)
{
    int64_t soon =
        um_log_tail(log) + UM_LOG_CLEAN_AHEAD_BYTES + atomic_load_explicit(&log->claim_span, memory_order_relaxed);
    int64_t most = sender_position - log->term_length + log_bytes(log); /* AE-46 */
    return soon < most ? soon : most;
}

int64_t um_log_cleaning_due(const um_publication_log *log, int64_t sender_position, uint32_t budget_bytes)
{
    int64_t due = clean_goal(log, sender_position) - log_bytes(log) - log->clean_position;
    uint32_t to_end = um_log_to_term_end(log, log->clean_position);
    due = due < budget_bytes ? due : budget_bytes;
    due = due < to_end ? due : to_end;
    return due < UM_FRAME_ALIGNMENT ? 0 : due - due % UM_FRAME_ALIGNMENT;
}

static void clean_ahead(um_publication_log *log, int64_t sender_position, uint32_t budget_bytes)
{
    int64_t due = um_log_cleaning_due(log, sender_position, budget_bytes);
    if (due == 0)
        return;
    clean(log, log->clean_position, (uint32_t)due);
    log->clean_position += due;
    atomic_store_explicit(&log->writable_end, log->clean_position + log_bytes(log), memory_order_release);
}

void um_log_conduct(um_publication_log *log, int64_t sender_position, uint32_t budget_bytes)
{
    clean_ahead(log, sender_position, budget_bytes);
    if (!atomic_load_explicit(&log->is_connected, memory_order_relaxed)) {
        atomic_store_explicit(&log->publication_limit, sender_position, memory_order_release);
        return;
    }
    int64_t limit = sender_position + log->window_bytes;
    if (limit > atomic_load_explicit(&log->publication_limit, memory_order_relaxed))
        atomic_store_explicit(&log->publication_limit, limit, memory_order_release);
}

bool um_log_needs_cleaning(const um_publication_log *log, int64_t sender_position)
{
    int64_t missing_bytes =
        clean_goal(log, sender_position) - atomic_load_explicit(&log->writable_end, memory_order_relaxed);
    int64_t soon = UM_LOG_CLEAN_AHEAD_BYTES / 2;
    return missing_bytes >= (soon < log->term_length / 4 ? soon : log->term_length / 4);
}

/* Bytes of an unwritten hole at `position`: up to the next written frame or the end of the claimed space. */
static uint32_t hole_length(const um_publication_log *log, int64_t position, int64_t tail)
{
    uint32_t to_end = um_log_to_term_end(log, position);
    int64_t bound = tail - position < to_end ? tail - position : to_end;
    bound = bound < UM_FRAME_LENGTH_MAX ? bound : UM_FRAME_LENGTH_MAX;
    int64_t length = UM_FRAME_ALIGNMENT;
    while (length < bound && um_log_frame_length(log, position + length) == 0)
        length += UM_FRAME_ALIGNMENT;
    return (uint32_t)(length < bound ? length : bound);
}

/* Adds the time since the last observation to the time that the frame at `position` has blocked the sender. Returns
 * true once that is the unblock timeout. */
static bool is_blocked_long_enough(um_publication_log *log, int64_t position, int64_t now_ns)
{
    int64_t step_ns = log->unblock_timeout_ns / 4;
    int64_t passed_ns = now_ns - log->blocked_look_ns;
    if (log->blocked_position != position) {
        log->blocked_position = position;
        log->blocked_for_ns = passed_ns = 0;
    }
    log->blocked_for_ns += um_earliest_ns(passed_ns, step_ns);
    log->blocked_look_ns = now_ns;
    return log->blocked_for_ns >= 4 * step_ns;
}

bool um_log_unblock(um_publication_log *log, int64_t sender_position, int64_t now_ns)
{
    int64_t tail = um_log_tail(log);
    um_frame_state *state = um_log_state_at(log, sender_position);
    uint32_t word = tail > sender_position ? atomic_load_explicit(state, memory_order_acquire) : 0;
    int32_t length = um_frame_length_of(word);
    bool can_be_abandoned =
        tail > sender_position && (length == 0 || (length < 0 && um_frame_kind_of(word) == UM_FRAME_BORROWED));
    if (!can_be_abandoned) {
        log->blocked_position = -1;
        return false;
    }
    if (!is_blocked_long_enough(log, sender_position, now_ns))
        return false;
    uint32_t span = length < 0 ? (uint32_t)um_align_up((uint64_t) - (int64_t)length, UM_FRAME_ALIGNMENT)
                               : hole_length(log, sender_position, tail);
    log->blocked_position = -1;
    if (!atomic_compare_exchange_strong_explicit(state, &word, um_frame_word((int32_t)span, UM_FRAME_PAD),
                                                 memory_order_acq_rel, memory_order_relaxed))
        return false;
    UM_COUNT(log->unblocked_count, 1);
    return true;
}

int64_t um_log_unblock_due_ns(const um_publication_log *log)
{
    int64_t step_ns = log->unblock_timeout_ns / 4;
    int64_t left_ns = 4 * step_ns - log->blocked_for_ns;
    return log->blocked_position < 0 ? UM_NEVER_NS : log->blocked_look_ns + um_earliest_ns(left_ns, step_ns);
}
