#include "io/sender.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/lock.h"

enum {
    STREAM_NS = 1000000,               /* a session that sent within this time is streaming */
    SKIP_MAX_NS = 4000000,             /* maximum time that the loop skips it */
    TIMERS_NS = 20000000,              /* maximum interval between runs of its timers */
    WRITE_AHEAD_BYTES = 64 * 1024,     /* how far a publisher may be ahead of the thread that sends its data */
    COARSE_CLOCK_ENOUGH_NS = 20000000, /* a coarse clock suffices for timers of at least this time */
    YIELDS_MAX = 64,                   /* how often a publisher that is ahead yields at most */
};

int um_sender_open(um_sender *sender, um_reactor *reactor, um_links *links, um_source_session *core)
{
    sender->core = core;
    sender->reactor = reactor;
    sender->links = links;
    sender->skip_ns = STREAM_NS;
    atomic_init(&sender->requested_ns, UM_NEVER_NS);
    sender->wakeup_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return sender->wakeup_fd < 0 ? -errno : 0;
}

void um_sender_close(um_sender *sender)
{
    if (sender->wakeup_fd >= 0)
        close(sender->wakeup_fd);
    sender->wakeup_fd = -1;
}

/* ---- UM's WAKEUP (UX-2) ---- */

bool um_sender_is_sendable(const um_sender *sender)
{
    const um_publication_log *log = &sender->core->log;
    return atomic_load(&log->is_connected) && um_log_tail(log) < atomic_load(&log->publication_limit) &&
           !atomic_load(&sender->core->limits->is_blocked);
}

void um_sender_wake_publishers(um_sender *sender)
{
    uint64_t one = 1;
    ssize_t ignored = write(sender->wakeup_fd, &one, sizeof one); /* full means readable */
    (void)ignored;
}

/* The caller has issued a fence after it made space. */
static void notify_sendable(um_sender *sender)
{
    if (!atomic_load_explicit(&sender->is_wakeup_requested, memory_order_relaxed) || !um_sender_is_sendable(sender))
        return;
    if (atomic_exchange(&sender->is_wakeup_requested, 0) != 0)
        um_sender_wake_publishers(sender);
}

/* Checks again after the request, in case sending became possible in between; so a wake-up may precede the refusal's
 * return. */
void um_sender_request_wakeup(um_sender *sender)
{
    uint64_t ignored;
    ssize_t drained = read(sender->wakeup_fd, &ignored, sizeof ignored);
    (void)drained;
    atomic_store(&sender->is_wakeup_requested, 1);
    atomic_thread_fence(memory_order_seq_cst);
    notify_sendable(sender);
}

/* ---- the deferred tail ---- */

static bool is_streaming(const um_sender *sender, int64_t now_ns)
{
    return now_ns - atomic_load_explicit(&sender->last_run_ns, memory_order_relaxed) < STREAM_NS;
}

/* Returns how many bytes of full datagrams may wait, without a flush, to be sent with later data in one GSO run. Data
 * after a pause is not deferred, nor any data without a loop that would send it if no more follows. */
static int64_t deferrable_bytes(um_sender *sender, bool flush, int64_t now_ns)
{
    bool defers = !flush && is_streaming(sender, now_ns) && um_reactor_is_threaded(sender->reactor);
    return defers ? UM_SENDER_TAIL_BYTES_MAX : 0;
}

/* Leaves the tail to the loop, which sends it if no data follows. The loop is not woken if it wakes soon anyway. */
static void defer_tail(um_sender *sender, int64_t now_ns)
{
    atomic_store_explicit(&sender->has_deferred_tail, true, memory_order_relaxed);
    if (!um_reactor_wakes_by(sender->reactor, now_ns + SKIP_MAX_NS))
        um_reactor_wake_by(sender->reactor, now_ns + STREAM_NS);
}

/* Requests a flush from the thread that runs the sender. The caller then tries the lock once more: a holder about to
 * defer a tail has either not checked for requests yet, or has released the lock. */
static void request_flush(um_sender *sender)
{
    atomic_store_explicit(&sender->is_flush_requested, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

/* The caller has issued a fence after it released the lock. */
static bool take_flush_request(um_sender *sender)
{
    return atomic_load_explicit(&sender->is_flush_requested, memory_order_relaxed) &&
           atomic_exchange_explicit(&sender->is_flush_requested, false, memory_order_relaxed);
}

/* ---- duty cycles: under the sender lock ---- */

static int64_t run_timers(um_sender *sender, int64_t now_ns)
{
    um_source_session *core = sender->core;
    atomic_store_explicit(&sender->requested_ns, UM_NEVER_NS, memory_order_relaxed);
    atomic_store_explicit(&sender->needs_timers, false, memory_order_relaxed);
    atomic_store_explicit(&sender->has_deferred_tail, false, memory_order_relaxed);
    uint32_t before = core->next_sqn;
    int64_t due_ns = um_source_session_tick(core, now_ns);
    if (core->next_sqn != before)
        atomic_store_explicit(&sender->last_run_ns, now_ns, memory_order_relaxed);
    um_links_on_send_error(sender->links, core, sender->mtu_fd);
    int64_t by_ns = um_earliest_ns(due_ns, now_ns + TIMERS_NS);
    atomic_store_explicit(&sender->timers_ns, by_ns, memory_order_relaxed);
    return due_ns;
}

/* Returns true if the kernel left submitted frames in the ring, which the loop retries. */
static bool is_ring_stalled(const um_sender *sender)
{
    const um_rings *rings = sender->uses_rings ? sender->links->rings : NULL;
    return rings != NULL && atomic_load_explicit(&rings->stalled, memory_order_relaxed);
}

static void count_send(um_links *links)
{
    uint32_t count = atomic_load_explicit(&links->send_count, memory_order_relaxed);
    atomic_store_explicit(&links->send_count, count + 1, memory_order_relaxed);
}

/* One run of the sender: one or more duty cycles. */
typedef struct sender_run {
    int64_t now_ns;
    int64_t tail_bytes; /* may be deferred */
    int sent;           /* datagrams of the last duty cycle, or a negative errno */
    bool is_pending;    /* data is pending after it */
    bool needs_loop;    /* a limiter, a full link or a stalled ring blocks the sender until some time passes */
    int64_t
        look_by_ns; /* when the loop checks a full link that reports space, in case no report arrives; 0: not full */
} sender_run;

static void duty_cycle(um_sender *sender, sender_run *run)
{
    um_source_session *core = sender->core;
    run->sent = um_source_session_send(core, run->now_ns, UM_SEND_BATCH_MAX);
    count_send(sender->links);
    atomic_store_explicit(&sender->last_run_ns, run->now_ns, memory_order_relaxed);
    um_links_on_send_error(sender->links, core, sender->mtu_fd);
    if (atomic_load_explicit(&sender->needs_timers, memory_order_relaxed))
        um_reactor_wake_by(sender->reactor, run_timers(sender, run->now_ns));
    /* If flow control blocks the sender, it waits for a receiver's report, not for a time. */
    bool timed = atomic_load_explicit(&core->is_sender_blocked, memory_order_relaxed) && !core->is_at_limit;
    bool is_reported = core->link->can_report_space && core->link_retry_ns != 0; /* reports space to the loop */
    run->look_by_ns = timed && is_reported ? run->now_ns + core->link_retry_ns : 0;
    run->needs_loop |= run->sent < 0 || (timed && !is_reported) || is_ring_stalled(sender);
}

/* ---- running ---- */

/* Called after a duty cycle and the release of the lock: returns true if another one follows. */
static bool needs_another_cycle(um_sender *sender, sender_run *run)
{
    run->is_pending =
        um_source_session_has_pending(sender->core); /* its fence also orders the read of is_flush_requested */
    if (take_flush_request(sender))
        run->tail_bytes = 0;
    return run->sent > 0 && run->is_pending && um_sender_backlog_bytes(sender) >= run->tail_bytes;
}

/* Returns false if another thread runs the sender. With `flush`, that thread is requested to send everything. */
static bool try_duty_cycle(um_sender *sender, sender_run *run)
{
    um_lock *lock = &sender->core->sender_lock;
    if (!um_lock_try(lock)) {
        if (run->tail_bytes != 0)
            return false;
        request_flush(sender);
        if (!um_lock_try(lock))
            return false;
    }
    duty_cycle(sender, run);
    um_lock_release(lock);
    return true;
}

/* Returns when the loop looks at the session after a run that sent all data: session messages may be due, or a claim
 * that blocks later data may have to be skipped. Streams have no session messages. */
static int64_t next_look_ns(const um_sender *sender, int64_t now_ns)
{
    const um_source_session *core = sender->core;
    int64_t after_ns = um_source_timing_first_sm_ns(&core->timing);
    if (um_log_tail(&core->log) > atomic_load_explicit(&core->sender_position, memory_order_relaxed))
        after_ns = um_earliest_ns(after_ns, core->log.unblock_timeout_ns / 4);
    return now_ns + after_ns;
}

static void run_on(um_sender *sender, sender_run *run, bool is_continuing)
{
    while (is_continuing && try_duty_cycle(sender, run))
        is_continuing = needs_another_cycle(sender, run);
    notify_sendable(sender);
    if (run->needs_loop)
        um_sender_request_loop(sender, run->now_ns);
    else if (run->look_by_ns != 0)
        um_sender_request_loop(sender, run->look_by_ns);
    else if (run->is_pending)
        defer_tail(sender, run->now_ns);
    else
        um_reactor_wake_by(sender->reactor, next_look_ns(sender, run->now_ns));
}

void um_sender_run_to(um_sender *sender, int64_t tail_bytes, int64_t now_ns)
{
    sender_run run = {.now_ns = now_ns,
                      .tail_bytes = tail_bytes,
                      .sent = 1,
                      .is_pending = um_source_session_has_pending(sender->core)};
    run_on(sender, &run, run.is_pending);
}

void um_sender_run(um_sender *sender, int64_t now_ns)
{
    um_sender_run_to(sender, 0, now_ns);
}

bool um_sender_make_space(um_sender *sender, int64_t now_ns)
{
    um_source_session *core = sender->core;
    if (!um_log_needs_cleaning(&core->log, atomic_load_explicit(&core->sender_position, memory_order_relaxed)))
        return false;
    um_lock_acquire(&core->sender_lock);
    um_source_session_send(core, now_ns, UM_SEND_BATCH_MAX);
    um_links_on_send_error(sender->links, core, sender->mtu_fd);
    um_lock_release(&core->sender_lock);
    return true;
}

/* Data that a publisher writes further ahead than this has left the caches when the other thread sends it. */
void um_sender_bound_write_ahead(um_sender *sender, int64_t now_ns)
{
    for (int i = 0; i < YIELDS_MAX && um_sender_backlog_bytes(sender) > WRITE_AHEAD_BYTES &&
                    um_source_session_has_pending(sender->core);
         i++) {
        sched_yield();
        um_sender_run(sender, now_ns);
    }
}

/* ---- after a publication ---- */

/* Reading the precise time costs as much as the rest of this function. It is read only if there is a loop beside the
 * publishers (for the deferred tail, and for how long the loop may skip the session), or if a session message is due so
 * soon that the coarse clock would send it at once. */
static um_sender_outcome begin_outcome(um_sender *sender, bool flush)
{
    bool is_precise = um_reactor_is_threaded(sender->reactor) ||
                      um_source_timing_first_sm_ns(&sender->core->timing) < COARSE_CLOCK_ENOUGH_NS;
    int64_t now_ns = is_precise ? um_clock_ns() : um_clock_coarse_ns();
    return (um_sender_outcome){.now_ns = now_ns, .tail_bytes = deferrable_bytes(sender, flush, now_ns)};
}

static bool is_run_due(const um_sender *sender, uint32_t actions, const um_sender_outcome *outcome)
{
    return (actions & UM_ACTION_RUN_SENDER) && um_sender_backlog_bytes(sender) >= outcome->tail_bytes;
}

/* Performs the actions left by a publication that did not run the sender, and starts the timer of a batch it started.
 */
static void end_outcome(um_sender *sender, uint32_t actions, const um_sender_outcome *outcome)
{
    if (!outcome->has_run && (actions & UM_ACTION_RUN_SENDER))
        defer_tail(sender, outcome->now_ns);
    if (actions & UM_ACTION_BATCH_STARTED)
        um_sender_request_loop(sender, outcome->now_ns + sender->core->config.batch_interval_ns);
}

um_sender_outcome um_sender_on_published(um_sender *sender, uint32_t actions, bool flush)
{
    um_sender_outcome outcome = begin_outcome(sender, flush);
    outcome.has_run = is_run_due(sender, actions, &outcome);
    if (outcome.has_run)
        um_sender_run_to(sender, outcome.tail_bytes, outcome.now_ns);
    end_outcome(sender, actions, &outcome);
    return outcome;
}

bool um_sender_publish_staged(um_sender *sender, um_staged_batch *batch, um_sender_outcome *outcome)
{
    um_source_session *core = sender->core;
    uint32_t actions = 0;
    if (!um_lock_try(&core->sender_lock))
        return false;
    batch->messages.staged = &core->staged;
    batch->result =
        um_source_send_many(batch->source, &batch->messages, batch->flags, batch->now_ns, &actions, &batch->done_bytes);
    *outcome = begin_outcome(sender, batch->needs_flush || batch->result < 0);
    outcome->has_run = is_run_due(sender, actions, outcome);
    sender_run run = {.now_ns = outcome->now_ns, .tail_bytes = outcome->tail_bytes};
    if (outcome->has_run)
        duty_cycle(sender, &run);
    um_lock_release(&core->sender_lock);
    if (outcome->has_run) {
        run_on(sender, &run, needs_another_cycle(sender, &run));
    } else {
        atomic_thread_fence(memory_order_seq_cst);
        if (take_flush_request(sender)) {
            outcome->has_run = true;
            outcome->tail_bytes = 0;
            um_sender_run(sender, outcome->now_ns);
        }
    }
    end_outcome(sender, actions, outcome);
    return true;
}

/* ---- called by the loop ---- */

void um_sender_request_loop(um_sender *sender, int64_t time_ns)
{
    int64_t requested_ns = atomic_load_explicit(&sender->requested_ns, memory_order_relaxed);
    while (time_ns < requested_ns && !atomic_compare_exchange_weak(&sender->requested_ns, &requested_ns, time_ns))
        ;
    um_reactor_wake_by(sender->reactor, time_ns);
}

/* Streaming publishers run the sender and poll control, so the loop has nothing to do for the session. On a shared CPU
 * each of its passes, above all the timer interrupt, costs the publishers several times its own time. The loop services
 * the session again after 1 ms, and while they keep streaming after 2, then 4 ms. */
int64_t um_sender_skip_until(um_sender *sender, int64_t control_polled_ns, int64_t now_ns)
{
    if (!um_reactor_is_threaded(sender->reactor) || !is_streaming(sender, now_ns) ||
        now_ns - control_polled_ns >= STREAM_NS) {
        sender->skip_ns = STREAM_NS;
        return 0;
    }
    int64_t until_ns = now_ns + sender->skip_ns;
    int64_t requested_ns = atomic_load_explicit(&sender->requested_ns, memory_order_relaxed);
    int64_t timers_ns = atomic_load_explicit(&sender->timers_ns, memory_order_relaxed);
    timers_ns = um_earliest_ns(requested_ns, timers_ns);
    if (timers_ns > now_ns && sender->skip_ns < SKIP_MAX_NS)
        sender->skip_ns *= 2;
    return um_earliest_ns(until_ns, timers_ns);
}

int64_t um_sender_service(um_sender *sender, int64_t now_ns, bool *ran)
{
    um_source_session *core = sender->core;
    *ran = um_lock_try(&core->sender_lock);
    if (!*ran) {
        atomic_store_explicit(&sender->needs_timers, true, memory_order_relaxed);
        return now_ns + sender->skip_ns;
    }
    int64_t due_ns = run_timers(sender, now_ns);
    um_lock_release(&core->sender_lock);
    bool pending = um_source_session_has_pending(core); /* its fence also orders the read of is_wakeup_requested */
    notify_sendable(sender);
    if (pending)
        return now_ns;
    /* While the session streams, publishers defer tails without waking the loop. */
    bool looks_soon = is_streaming(sender, now_ns) && due_ns > now_ns + sender->skip_ns;
    return looks_soon ? now_ns + sender->skip_ns : due_ns;
}
