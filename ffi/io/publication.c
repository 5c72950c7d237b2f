/* One file, because every call that publishes enters the same gate and waits under back-pressure in the same way. */
#include <time.h>

#include "core/source/flow_reports.h"
#include "io/publication_private.h"
#include "os/clock.h"
#include "os/lock.h"
#include "os/memory.h"

enum {
    /* Messages are sent in batches of this size while they are still in the cache. With headers a batch fits into one
     * system call, or a few datagrams remain. */
    BATCH_BYTES = 62 * 1024,
    BACK_PRESSURE_WAIT_NS = 50000, /* between attempts under back-pressure */
    HELD_WAIT_NS = 1000000,        /* how long a held publication lets a call wait */
};

/* ---- opening and closing ---- */

int um_publication_open(um_publication_session *session, const um_source_config *config, um_publication **opened)
{
    size_t bytes = um_align_up(sizeof(um_publication), UM_CACHE_LINE_BYTES) + um_source_footprint(config);
    um_publication *publication = um_map(bytes);
    if (publication == NULL)
        return -ENOMEM;
    publication->session = session;
    publication->memory_bytes = bytes;
    uint8_t *memory = (uint8_t *)publication + um_align_up(sizeof(um_publication), UM_CACHE_LINE_BYTES);
    um_lock_acquire(&session->core.sender_lock);
    um_source_init(&publication->core, memory, config, &session->core);
    atomic_store(&publication->core.wall_offset_ns, um_clock_wall_offset_ns());
    session->publication_count++;
    um_lock_release(&session->core.sender_lock);
    *opened = publication;
    return 0;
}

static void after_publishing(um_publication *publication, uint32_t actions, bool flush)
{
    um_sender_outcome outcome = um_sender_on_published(&publication->session->sender, actions, flush);
    um_publication_session_after(publication->session, &outcome);
}

static int64_t flush(um_publication *publication)
{
    int64_t now_ns = um_clock_ns();
    uint32_t actions = 0;
    int64_t result = um_source_flush(&publication->core, now_ns, &actions);
    after_publishing(publication, actions, true);
    return result;
}

void um_publication_disown(um_publication *publication)
{
    um_gate_shut(&publication->gate);
}

void um_publication_hold(um_publication *publication, bool is_held)
{
    atomic_store_explicit(&publication->is_held, is_held, memory_order_release);
    if (!is_held)
        um_sender_wake_publishers(&publication->session->sender); /* threads that wait for the descriptor try again */
}

void um_publication_close(um_publication *publication)
{
    um_publication_session *session = publication->session;
    um_gate_shut(&publication->gate);
    um_sender_wake_publishers(&session->sender); /* threads that wait for the descriptor try again: UM_CLOSED */
    um_gate_await_empty(&publication->gate);
    flush(publication);
    um_lock_acquire(&session->core.sender_lock);
    um_source_fini(&publication->core);
    if (publication->retention != NULL) /* UM-89 */
        um_retention_fini(publication->retention);
    session->publication_count--;
    um_lock_release(&session->core.sender_lock);
}

void um_publication_free(um_publication *publication)
{
    if (publication->retention != NULL)
        um_unmap(publication->retention, publication->retention_bytes);
    um_unmap(publication, publication->memory_bytes);
}

/* ---- waiting ---- */

/* Returns true for results after which a publisher may wait and try again. */
/* Waits while the context's thread runs the loop, or runs it here in sequential mode. Without a lock. */
static void wait_between_attempts(um_reactor *reactor)
{
    if (!um_reactor_is_threaded(reactor)) {
        reactor->loop->pass(reactor, um_clock_ns() + BACK_PRESSURE_WAIT_NS);
        return;
    }
    struct timespec wait = {0, BACK_PRESSURE_WAIT_NS};
    nanosleep(&wait, NULL);
}

static bool is_refusing(const um_publication *publication)
{
    return UM_UNLIKELY(atomic_load_explicit(&publication->is_held, memory_order_relaxed));
}

/* Enters the gate for a new message. Returns 0, or why there can be none now: after a moment, if the caller may wait.
 */
static int begin_message(um_publication *publication, int64_t timeout_ns)
{
    if (!um_gate_enter(&publication->gate))
        return UM_CLOSED;
    if (!is_refusing(publication))
        return 0;
    um_gate_leave(&publication->gate);
    struct timespec wait = {0, HELD_WAIT_NS};
    if (timeout_ns != 0)
        nanosleep(&wait, NULL);
    return UM_NOT_CONNECTED;
}

/* The wait of one call. */
typedef struct wait_state {
    int64_t timeout_ns;  /* 0: do not wait; negative: no timeout */
    int64_t deadline_ns; /* 0: has not waited yet */
    bool counted;
} wait_state;

static wait_state wait_of(int64_t timeout_ns, uint32_t flags)
{
    return (wait_state){timeout_ns, 0, flags & UM_SEND_CONTINUED};
}

static void count_once(wait_state *wait, uint64_t *counter)
{
    if (!wait->counted)
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
    wait->counted = true;
}

/* Polls control messages, which may report space, if no loop reads them. */
static bool poll_for_space(um_publication_session *session, int64_t now_ns)
{
    if (um_reactor_is_threaded(session->sessions->reactor) && !um_control_is_unwatched(&session->control))
        return false;
    um_publication_session_poll_control(session, 0, now_ns);
    return um_sender_is_sendable(&session->sender);
}

/* Waits once between two attempts; returns false if the time is up or the source is being closed. Updates UM's counters
 * of blocked sends. */
static bool wait_held_back(um_publication *publication, wait_state *wait, int64_t now_ns)
{
    um_publication_session *session = publication->session;
    um_context_counters *counters = session->sessions->counters;
    if (um_sender_make_space(&session->sender, now_ns) || poll_for_space(session, now_ns))
        return true;
    if (wait->timeout_ns == 0) {
        count_once(wait, &counters->send_would_block);
        um_sender_request_wakeup(&session->sender);
        return false;
    }
    if (wait->deadline_ns == 0)
        wait->deadline_ns = wait->timeout_ns < 0 ? UM_NEVER_NS : now_ns + wait->timeout_ns;
    count_once(wait, &counters->send_blocked);
    if (now_ns >= wait->deadline_ns || um_gate_is_shut(&publication->gate) || is_refusing(publication))
        return false;
    um_sender_run(&session->sender, now_ns);
    if (!um_sender_is_sendable(&session->sender))
        wait_between_attempts(session->sessions->reactor);
    return true;
}

/* ---- publishing ---- */

/* Returns the time of a publication, and records the wall clock if messages carry it. */
static int64_t precise_now_ns(um_publication *publication)
{
    um_source *core = &publication->core;
    if (UM_LIKELY(!core->has_send_time))
        return um_clock_ns();
    int64_t offset_ns = atomic_load_explicit(&core->wall_offset_ns, memory_order_relaxed);
    int64_t now_ns = um_clock_note_wall_offset(&offset_ns);
    atomic_store_explicit(&core->wall_offset_ns, offset_ns, memory_order_relaxed);
    return now_ns;
}

/* Returns a coarse time if messages carry none: a send then only restarts timers of milliseconds and more. */
static int64_t send_now_ns(um_publication *publication)
{
    return publication->core.has_send_time ? precise_now_ns(publication) : um_clock_coarse_ns();
}

/* Reports the receivers that drop a message because it is too long for them. */
static void note_length(um_publication *publication, uint32_t length)
{
    um_source_session *core = &publication->session->core;
    if (UM_LIKELY(!um_source_session_may_be_too_long(core, length)))
        return;
    int64_t now_ns = um_clock_ns();
    um_lock_acquire(&core->sender_lock);
    um_source_session_note_too_long(core, publication->core.topic_index, length, now_ns);
    um_lock_release(&core->sender_lock);
}

static int64_t send_one(um_publication *publication, const char *data, uint32_t length, uint32_t flags,
                        int64_t timeout_ns)
{
    wait_state wait = wait_of(timeout_ns, flags);
    for (;;) {
        int64_t now_ns = send_now_ns(publication);
        uint32_t actions = 0;
        int64_t result = um_source_send(&publication->core, (const uint8_t *)data, length, flags, now_ns, &actions);
        if (actions != 0)
            after_publishing(publication, actions, (flags & UM_SEND_FLUSH) || result < 0);
        if (UM_LIKELY(!um_is_held_back(result)) || !wait_held_back(publication, &wait, now_ns))
            return result;
    }
}

int64_t um_publication_send(um_publication *publication, const char *data, uint32_t length, uint32_t flags,
                            int64_t timeout_ns)
{
    int refusal = begin_message(publication, timeout_ns);
    if (UM_UNLIKELY(refusal != 0))
        return refusal;
    int64_t result = send_one(publication, data, length, flags, timeout_ns);
    if (result >= 0)
        note_length(publication, length);
    um_gate_leave(&publication->gate);
    return result;
}

/* numbers: those of a relayed message; NULL: the source numbers it. */
static int64_t send_with(um_publication *publication, const char *data, uint32_t length, const um_lbmc_extras *extras,
                         const um_relayed_numbers *numbers, uint32_t flags, int64_t timeout_ns)
{
    if (extras->properties_bytes > length)
        return -EINVAL;
    int refusal = begin_message(publication, timeout_ns);
    if (UM_UNLIKELY(refusal != 0))
        return refusal;
    wait_state wait = wait_of(timeout_ns, flags);
    um_source *core = &publication->core;
    const uint8_t *bytes = (const uint8_t *)data;
    int64_t result, now_ns;
    do {
        now_ns = precise_now_ns(publication);
        uint32_t actions = 0;
        result = numbers != NULL ? um_source_relay(core, bytes, length, extras, numbers, now_ns, &actions)
                                 : um_source_send_with(core, bytes, length, extras, flags, now_ns, &actions);
        if (actions != 0)
            after_publishing(publication, actions, (flags & UM_SEND_FLUSH) || result < 0);
    } while (um_is_held_back(result) && wait_held_back(publication, &wait, now_ns));
    if (result >= 0)
        note_length(publication, length);
    um_gate_leave(&publication->gate);
    return result;
}

int64_t um_publication_send_with(um_publication *publication, const char *data, uint32_t length,
                                 const um_lbmc_extras *extras, uint32_t flags, int64_t timeout_ns)
{
    return send_with(publication, data, length, extras, NULL, flags, timeout_ns);
}

int64_t um_publication_relay(um_publication *publication, const char *data, uint32_t length,
                             const um_lbmc_extras *extras, const um_relayed_numbers *numbers, int64_t timeout_ns)
{
    return send_with(publication, data, length, extras, numbers, 0, timeout_ns);
}

static int64_t announce(um_publication *publication, int64_t now_ns)
{
    um_publication_session *session = publication->session;
    um_lock_acquire(&session->core.sender_lock);
    int result = um_source_announce(&publication->core, now_ns);
    um_lock_release(&session->core.sender_lock);
    um_sender_run(&session->sender, now_ns);
    return result;
}

int64_t um_publication_leave_out(um_publication *publication, uint32_t next_sqn, int64_t timeout_ns)
{
    int refusal = begin_message(publication, timeout_ns);
    if (UM_UNLIKELY(refusal != 0))
        return refusal;
    um_source_number_next(&publication->core, next_sqn);
    wait_state wait = wait_of(timeout_ns, 0);
    int64_t result, now_ns;
    do {
        now_ns = um_clock_ns();
        result = announce(publication, now_ns);
    } while (um_is_held_back(result) && wait_held_back(publication, &wait, now_ns));
    um_gate_leave(&publication->gate);
    return result;
}

/* Returns how many messages from `first` make up one batch: enough to complete a full batch of this many bytes,
 * together with the backlog. */
static uint32_t batch_size(const um_source *source, const uint32_t *lengths, const int32_t *offsets, uint32_t first,
                           uint32_t count, int64_t waiting_bytes, uint32_t *bytes)
{
    uint32_t overhead = um_source_overhead(source);
    uint32_t i = first, enough = BATCH_BYTES;
    if (waiting_bytes > 0 && waiting_bytes < UM_SENDER_TAIL_BYTES_MAX)
        enough -= (uint32_t)waiting_bytes;
    for (*bytes = 0; i < count && *bytes < enough; i++)
        *bytes += overhead + (lengths ? lengths[i] : (uint32_t)(offsets[i + 1] - offsets[i]));
    return i - first;
}

/* Returns true for messages that are published as staged datagrams, with the log only for retransmission; not while
 * another thread runs the sender, because staging is a part of that. */
static bool are_large(const um_source_session *core, uint32_t count, uint32_t bytes)
{
    return 2 * bytes / count > atomic_load_explicit(&core->body_max_bytes, memory_order_relaxed);
}

/* Publishes one batch and sets batch->result and done_bytes. */
static void send_batch(um_publication *publication, um_staged_batch *batch, uint32_t bytes)
{
    um_publication_session *session = publication->session;
    um_sender_outcome outcome;
    if (are_large(&session->core, batch->messages.count, bytes) &&
        um_sender_publish_staged(&session->sender, batch, &outcome)) {
        um_publication_session_after(session, &outcome);
        return;
    }
    uint32_t actions = 0;
    batch->result = um_source_send_many(&publication->core, &batch->messages, batch->flags, batch->now_ns, &actions,
                                        &batch->done_bytes);
    if (actions != 0)
        after_publishing(publication, actions, batch->needs_flush || batch->result < 0);
}

static bool lengths_fit(const uint32_t *lengths, uint32_t count, uint64_t data_bytes)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += lengths[i];
    return bytes <= data_bytes;
}

static bool offsets_fit(const int32_t *offsets, uint32_t count, uint64_t data_bytes)
{
    uint32_t backwards = 0;
    for (uint32_t i = 0; i < count; i++)
        backwards += offsets[i + 1] < offsets[i];
    return backwards == 0 && offsets[0] >= 0 && (uint64_t)offsets[count] <= data_bytes;
}

static int64_t send_many(um_publication *publication, const char *data, const uint32_t *lengths, const int32_t *offsets,
                         uint32_t count, uint32_t flags, int64_t timeout_ns)
{
    wait_state wait = wait_of(timeout_ns, flags);
    int64_t result = 0;
    uint32_t done = 0;
    while (done < count) {
        int64_t waiting_bytes = um_sender_backlog_bytes(&publication->session->sender);
        uint32_t bytes, batch_count;
        batch_count = batch_size(&publication->core, lengths, offsets, done, count, waiting_bytes, &bytes);
        bool last = done + batch_count == count;
        um_staged_batch batch = {.source = &publication->core,
                                 .messages = {(const uint8_t *)data, lengths ? lengths + done : NULL,
                                              offsets ? offsets + done : NULL, batch_count, NULL},
                                 .flags = last ? flags : 0,
                                 .needs_flush = last && (flags & UM_SEND_FLUSH),
                                 .now_ns = precise_now_ns(publication)};
        send_batch(publication, &batch, bytes);
        result = batch.result;
        if (result >= 0) {
            done += (uint32_t)result;
            data += lengths ? batch.done_bytes : 0;
        } else if (!um_is_held_back(result) || !wait_held_back(publication, &wait, batch.now_ns)) {
            break;
        }
    }
    return done > 0 ? (int64_t)done : result;
}

static uint32_t longest_of(const uint32_t *lengths, const int32_t *offsets, uint32_t count)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = lengths ? lengths[i] : (uint32_t)(offsets[i + 1] - offsets[i]);
        longest = length > longest ? length : longest;
    }
    return longest;
}

int64_t um_publication_send_many(um_publication *publication, const char *data, uint64_t data_bytes,
                                 const uint32_t *lengths, const int32_t *offsets, uint32_t count, uint32_t flags,
                                 int64_t timeout_ns)
{
    if (!(lengths ? lengths_fit(lengths, count, data_bytes) : offsets_fit(offsets, count, data_bytes)))
        return -EINVAL;
    int refusal = begin_message(publication, timeout_ns);
    if (UM_UNLIKELY(refusal != 0))
        return refusal;
    int64_t result = send_many(publication, data, lengths, offsets, count, flags, timeout_ns);
    if (result > 0 && um_source_session_may_be_too_long(&publication->session->core, UINT32_MAX))
        note_length(publication, longest_of(lengths, offsets, (uint32_t)result));
    um_gate_leave(&publication->gate);
    return result;
}

static int claim(um_publication *publication, uint32_t length, um_source_claim *claim, uint32_t flags,
                 int64_t timeout_ns)
{
    wait_state wait = wait_of(timeout_ns, flags);
    for (;;) {
        int64_t now_ns = um_clock_ns();
        int result = um_source_claim_begin(&publication->core, length, claim);
        if (result != 0)
            um_sender_run(&publication->session->sender, now_ns);
        if (!um_is_held_back(result) || !wait_held_back(publication, &wait, now_ns))
            return result;
    }
}

int um_publication_claim(um_publication *publication, uint32_t length, um_source_claim *claimed, uint32_t flags,
                         int64_t timeout_ns)
{
    int refusal = begin_message(publication, timeout_ns);
    if (UM_UNLIKELY(refusal != 0))
        return refusal;
    int result = claim(publication, length, claimed, flags, timeout_ns);
    um_gate_leave(&publication->gate);
    return result;
}

int64_t um_publication_commit(um_publication *publication, um_source_claim *claim, uint32_t flags)
{
    if (!um_gate_enter(&publication->gate))
        return UM_CLOSED;
    int64_t now_ns = precise_now_ns(publication);
    uint32_t actions = 0;
    int64_t result = um_source_claim_commit(&publication->core, claim, flags, now_ns, &actions);
    after_publishing(publication, actions, flags & UM_SEND_FLUSH);
    um_gate_leave(&publication->gate);
    return result;
}

void um_publication_abort(um_publication *publication, um_source_claim *claim)
{
    if (!um_gate_enter(&publication->gate))
        return;
    uint32_t actions = 0;
    um_source_claim_abort(&publication->core, claim, &actions);
    after_publishing(publication, actions, true);
    um_gate_leave(&publication->gate);
}

int64_t um_publication_flush(um_publication *publication)
{
    if (!um_gate_enter(&publication->gate))
        return UM_CLOSED;
    int64_t result = flush(publication);
    um_gate_leave(&publication->gate);
    return result;
}

static bool is_drained(um_publication_session *session)
{
    um_source_session *core = &session->core;
    um_lock_acquire(&core->sender_lock);
    bool drained = atomic_load(&core->sender_position) >= um_log_tail(&core->log) && core->retransmit_count == 0 &&
                   um_flow_reports_are_complete(core) &&
                   (session->tcp == NULL || um_tcp_fan_out_is_drained(&session->tcp->fan_out)) &&
                   (session->ipc == NULL || um_ipc_fan_out_is_drained(&session->ipc->fan_out));
    um_lock_release(&core->sender_lock);
    return drained;
}

bool um_publication_drained(um_publication *publication)
{
    if (!um_gate_enter(&publication->gate))
        return false;
    bool drained = is_drained(publication->session);
    um_gate_leave(&publication->gate);
    return drained;
}

static uint32_t receivers_of(um_publication_session *session, uint32_t topic_index)
{
    int64_t now_ns = um_clock_ns();
    um_lock_acquire(&session->core.sender_lock);
    uint32_t count = session->tcp != NULL   ? um_tcp_fan_out_receivers(&session->tcp->fan_out, topic_index, now_ns)
                     : session->ipc != NULL ? um_ipc_fan_out_receivers(&session->ipc->fan_out, topic_index)
                                            : um_source_session_receivers(&session->core, topic_index, now_ns);
    um_lock_release(&session->core.sender_lock);
    return count;
}

uint32_t um_publication_receivers(um_publication *publication)
{
    if (!um_gate_enter(&publication->gate))
        return 0;
    uint32_t count = receivers_of(publication->session, publication->core.topic_index);
    um_gate_leave(&publication->gate);
    return count;
}

uint32_t um_publication_message_max(const um_publication *publication)
{
    return um_source_message_max(&publication->core);
}

bool um_publication_connected(const um_publication *publication)
{
    return atomic_load_explicit(&publication->session->core.log.is_connected, memory_order_acquire);
}

int um_publication_wakeup_fd(const um_publication *publication)
{
    return publication->session->sender.wakeup_fd;
}

bool um_publication_sendable(const um_publication *publication)
{
    return um_sender_is_sendable(&publication->session->sender);
}
