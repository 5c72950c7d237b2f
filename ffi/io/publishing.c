/* The sending half of a context: sessions with their sockets, and publishing from application threads. A send runs
 * the sender on its own thread when nobody else is running it (design W8).
 */
#include <sched.h>
#include <unistd.h>

#include "core/internet.h"
#include "io/context.h"
#include "os/clock.h"

enum {
    BATCH_BYTES = 62 * 1024,     /* a batch of messages is sent in portions of this size, still in the cache: with its
                                    headers no more than the kernel takes at once, or a few datagrams are left over */
    HELD_BACK_NAP_NS = 50000,    /* between attempts while held back */
    RUN_AHEAD_BYTES = 64 * 1024, /* a publisher gets so far ahead of another thread that sends for it */
    HEAR_BYTES = 256 * 1024,     /* while it sends in the loop's place, it looks for reports so often */
    YIELDS_MAX = 64,             /* and gives way to it so often at most */
    DEFER_NS = 1000000,          /* a session that sent so recently is streaming: full datagrams that nobody asked to
                                    flush wait so long for more */
    DEFER_BYTES = 60 * 1024,     /* or for so many bytes, and then go out together (UDP GSO) */
    REST_MAX_NS = 4000000,       /* or, at the end of a longer stream, until the loop looks again */
    TIMERS_NS = 20000000,        /* while it streams, its timers are run so often at least */
    CONTROL_RECEIVES_MAX = 16,   /* datagrams to the NAK socket, taken at once */
    CONTROL_ROUNDS_MAX = 4,      /* and so often before others have their turn */
};

/* ---- the sender ---- */

void um_lock_sender(um_source_session *core)
{
    while (!um_lock_try(&core->sender_lock))
        sched_yield();
}

/* The path takes less than it did (or the interface is gone): learn what it takes now. */
static void on_send_error(um_publication_session *session)
{
    int error = session->core.link_error;
    session->core.link_error = 0;
    if (error != -EMSGSIZE)
        return;
    int mtu = um_socket_interface_mtu(session->nak_link.fd, session->context->config.interface);
    if (mtu > UM_IPV4_UDP_HEADER_BYTES)
        um_session_set_datagram_max(&session->core, (uint32_t)mtu - UM_IPV4_UDP_HEADER_BYTES);
}

/* ---- UM's WAKEUP (UX-2) ---- */

static bool is_sendable(const um_publication_session *session)
{
    const um_publication_log *log = &session->core.log;
    return atomic_load(&log->connected) && um_log_tail(log) < atomic_load(&log->publication_limit) &&
           !atomic_load(&session->context->limits.blocked);
}

static void wake_senders(um_publication_session *session)
{
    uint64_t one = 1;
    ssize_t ignored = write(session->wakeup_fd, &one, sizeof one); /* full means readable */
    (void)ignored;
}

/* With a fence between what made room and this. */
static void notify_sendable(um_publication_session *session)
{
    if (!atomic_load_explicit(&session->wakeup_wanted, memory_order_relaxed) || !is_sendable(session))
        return;
    if (atomic_exchange(&session->wakeup_wanted, 0) != 0)
        wake_senders(session);
}

/* A send was refused that did not wait: its caller may wait for the descriptor. Looking again after asking closes
 * the gap in which the way became free, so a wake-up may come before the refusal is returned. */
static void want_wakeup(um_publication_session *session)
{
    uint64_t ignored;
    ssize_t drained = read(session->wakeup_fd, &ignored, sizeof ignored);
    (void)drained;
    atomic_store(&session->wakeup_wanted, 1);
    atomic_thread_fence(memory_order_seq_cst);
    notify_sendable(session);
}

int um_publication_wakeup_fd(const um_publication *publication)
{
    return publication->session->wakeup_fd;
}

bool um_publication_sendable(const um_publication *publication)
{
    return is_sendable(publication->session);
}

/* ---- running the sender ---- */

/* The loop is to run the session's timers then, even if publishers stream. */
static void ask_loop(um_publication_session *session, int64_t time_ns)
{
    int64_t asked_ns = atomic_load_explicit(&session->asked_ns, memory_order_relaxed);
    while (time_ns < asked_ns && !atomic_compare_exchange_weak(&session->asked_ns, &asked_ns, time_ns))
        ;
    um_context_wake_by(session->context, time_ns);
}

/* The kernel left some of it in the ring: the loop goes on with it. */
static bool port_stalled(const um_publication_session *session)
{
    const um_port *port = session->port_link != NULL ? session->context->port : NULL;
    return port != NULL && atomic_load_explicit(&port->stalled, memory_order_relaxed);
}

/* What is left goes out with what follows soon; if nothing does, the loop sends it. It need not be woken for that when
 * it looks soon anyway. */
static void leave_to_loop(um_publication_session *session, int64_t now_ns)
{
    atomic_store_explicit(&session->left, true, memory_order_relaxed);
    if (!um_context_wakes_by(session->context, now_ns + REST_MAX_NS))
        um_context_wake_by(session->context, now_ns + DEFER_NS);
}

/* What is flushed and not sent yet. */
static int64_t backlog_bytes(const um_source_session *core)
{
    return atomic_load_explicit(&core->flush_limit, memory_order_relaxed) -
           atomic_load_explicit(&core->sender_position, memory_order_relaxed);
}

/* True with the sender locked. Who wants all of it sent and finds it busy says so, and looks again: a holder that means
 * to leave something has not looked yet or is done. */
static bool lock_sender_or_hurry(um_publication_session *session, bool wants_all)
{
    if (um_lock_try(&session->core.sender_lock))
        return true;
    if (!wants_all)
        return false;
    atomic_store_explicit(&session->hurried, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    return um_lock_try(&session->core.sender_lock);
}

static void count_send(um_context *context)
{
    uint32_t count = atomic_load_explicit(&context->send_count, memory_order_relaxed);
    atomic_store_explicit(&context->send_count, count + 1, memory_order_relaxed);
}

/* Under the sender's lock. Returns when they are due next. */
static int64_t run_session_timers(um_publication_session *session, int64_t now_ns)
{
    atomic_store_explicit(&session->asked_ns, UM_NEVER_NS, memory_order_relaxed);
    atomic_store_explicit(&session->timers_wanted, false, memory_order_relaxed);
    atomic_store_explicit(&session->left, false, memory_order_relaxed);
    uint32_t before = session->core.next_sqn;
    int64_t due_ns = um_session_tick(&session->core, now_ns);
    if (session->core.next_sqn != before)
        atomic_store_explicit(&session->last_run_ns, now_ns, memory_order_relaxed);
    on_send_error(session);
    int64_t by_ns = due_ns < now_ns + TIMERS_NS ? due_ns : now_ns + TIMERS_NS;
    atomic_store_explicit(&session->timers_ns, by_ns, memory_order_relaxed);
    return due_ns;
}

/* One turn of the sender, under its lock, which it gives back. Notes when the loop has to go on with it. */
static int send_turn(um_publication_session *session, int64_t now_ns, bool *goes_on)
{
    um_source_session *core = &session->core;
    int sent = um_session_send(core, now_ns, UM_SEND_BATCH_MAX);
    count_send(session->context);
    atomic_store_explicit(&session->last_run_ns, now_ns, memory_order_relaxed);
    on_send_error(session);
    if (atomic_load_explicit(&session->timers_wanted, memory_order_relaxed))
        um_context_wake_by(session->context, run_session_timers(session, now_ns));
    /* Held back by a limiter or a full link: the loop's timers go on. By flow control: what a receiver reports. */
    bool timed = atomic_load_explicit(&core->sender_blocked, memory_order_relaxed) && !core->at_limit;
    *goes_on |= sent < 0 || timed || port_stalled(session);
    um_lock_release(&core->sender_lock);
    return sent;
}

/* After a turn, and a fence behind it. */
static bool was_hurried(um_publication_session *session)
{
    return atomic_load_explicit(&session->hurried, memory_order_relaxed) &&
           atomic_exchange_explicit(&session->hurried, false, memory_order_relaxed);
}

/* Sends what is pending down to `leave_bytes`, unless another thread is at it: that one looks again when it is done.
 * Who holds the lock already has it no more afterwards. */
static void run_sender_to(um_publication_session *session, int64_t leave_bytes, bool holds, int64_t now_ns)
{
    um_source_session *core = &session->core;
    bool goes_on = false, pending = holds || um_session_pending(core);
    int sent = 1;
    while (sent > 0 && pending && (holds || lock_sender_or_hurry(session, leave_bytes == 0))) {
        sent = send_turn(session, now_ns, &goes_on);
        holds = false;
        pending = um_session_pending(core); /* its fence comes between the release and the look at who hurries, too */
        if (was_hurried(session))
            leave_bytes = 0;
        if (backlog_bytes(core) < leave_bytes)
            break;
    }
    notify_sendable(session);
    if (goes_on)
        ask_loop(session, now_ns);
    else if (pending)
        leave_to_loop(session, now_ns);
    else
        um_context_wake_by(session->context, now_ns + core->config.sm_minimum_interval_ns);
}

static void run_sender(um_publication_session *session, int64_t now_ns)
{
    run_sender_to(session, 0, false, now_ns);
}

/* While another thread sends: a publisher that ran far ahead of it would write what has left the caches when it is
 * sent. */
static void keep_close(um_publication_session *session, int64_t now_ns)
{
    um_source_session *core = &session->core;
    for (int i = 0; i < YIELDS_MAX && backlog_bytes(core) > RUN_AHEAD_BYTES && um_session_pending(core); i++) {
        sched_yield();
        run_sender(session, now_ns);
    }
}

/* ---- what receivers say ---- */

/* Under the context's lock, for its ring, and the sender's. Returns datagrams handled; true in *more when the socket
 * was not emptied. */
static int read_control(um_publication_session *session, int64_t now_ns, bool *more)
{
    um_receive_ring *ring = &session->context->ring;
    int handled = 0, count = CONTROL_RECEIVES_MAX;
    for (int i = 0; i < CONTROL_ROUNDS_MAX && count == CONTROL_RECEIVES_MAX; i++) {
        count = um_socket_receive(&session->nak_link, ring, CONTROL_RECEIVES_MAX);
        if (count > 0)
            um_tap_received(&session->context->tap, ring->batch, (uint32_t)count);
        for (int k = 0; k < count; k++)
            um_session_on_control(&session->core, ring->batch[k].data, ring->batch[k].length, now_ns);
        handled += count > 0 ? count : 0;
    }
    on_send_error(session); /* a NAK is answered at once */
    *more = count == CONTROL_RECEIVES_MAX;
    return handled;
}

/* The loop does not wait for a sender that another thread runs: on a processor they share, that one would not get on
 * while the receivers' reports are with the loop. It leaves them in the socket, of which nothing is reported until it
 * has been emptied. */
int um_publishing_receive(um_publication_session *session, int64_t now_ns)
{
    bool more = false;
    if (!um_lock_try(&session->core.sender_lock)) {
        atomic_store_explicit(&session->unwatched, true, memory_order_relaxed);
        session->due_ns = now_ns + session->rest_ns;
        return 0;
    }
    int handled = read_control(session, now_ns, &more);
    um_lock_release(&session->core.sender_lock);
    if (!more)
        um_context_watch_again(session->context, session->nak_link.fd, UM_WATCH_SESSION,
                               (uint32_t)(session - session->context->sessions));
    atomic_store_explicit(&session->unwatched, more, memory_order_relaxed);
    if (handled > 0) { /* a status message may have opened the window, a repair may wait for its limiter */
        session->due_ns = now_ns;
        atomic_store_explicit(&session->asked_ns, now_ns, memory_order_relaxed);
    }
    return handled;
}

/* Reads them on a publisher's own thread, unless the loop or another publisher is at it, and sends what they allow down
 * to `leave_bytes`. */
static void hear_receivers(um_publication_session *session, int64_t leave_bytes, int64_t now_ns)
{
    um_source_session *core = &session->core;
    int heard = 0;
    if (pthread_mutex_trylock(&session->context->lock) != 0)
        return;
    if (um_lock_try(&core->sender_lock)) {
        bool ignored;
        atomic_store_explicit(&session->heard_at, atomic_load_explicit(&core->flush_limit, memory_order_relaxed),
                              memory_order_relaxed);
        atomic_store_explicit(&session->heard_ns, now_ns, memory_order_relaxed);
        heard = read_control(session, now_ns, &ignored);
        if (core->retransmit_count > 0) /* for their limiter */
            ask_loop(session, now_ns);
        um_lock_release(&core->sender_lock);
    }
    pthread_mutex_unlock(&session->context->lock);
    if (heard > 0 && backlog_bytes(core) >= leave_bytes)
        run_sender_to(session, leave_bytes, false, now_ns);
}

/* A publisher that goes on reads them when the loop left them, and when flow control holds the sender back: once for as
 * many bytes as it may be ahead. What is written while the sender stands has left the caches when it is sent. */
static bool is_time_to_hear(const um_publication_session *session)
{
    const um_source_session *core = &session->core;
    int64_t since = atomic_load_explicit(&core->flush_limit, memory_order_relaxed) -
                    atomic_load_explicit(&session->heard_at, memory_order_relaxed);
    bool held_back =
        core->config.flow_policy != UM_FLOW_NONE && atomic_load_explicit(&core->sender_blocked, memory_order_relaxed);
    bool unwatched = atomic_load_explicit(&session->unwatched, memory_order_relaxed);
    return (held_back && since >= RUN_AHEAD_BYTES / 2) || (unwatched && since >= HEAR_BYTES);
}

/* How many bytes of full datagrams that nobody asked to flush may wait for company: the loop sends them when the time
 * is up. What comes after a pause is not kept back. */
static int64_t deferrable_bytes(const um_publication_session *session, bool flush, int64_t now_ns)
{
    int64_t since_ns = now_ns - atomic_load_explicit(&session->last_run_ns, memory_order_relaxed);
    return !flush && since_ns < DEFER_NS && session->context->threaded ? DEFER_BYTES : 0;
}

/* What a publisher does with the actions a send asks for. One that laid datagrams out holds the sender lock, and gives
 * it back. The precise time costs as much as all of this, and only with a loop beside the publishers is it needed: for
 * what may wait for company, and for how long the loop may rest. */
static void act(um_publication_session *session, uint32_t actions, bool flush, bool holds)
{
    int64_t now_ns = session->context->threaded ? um_clock_ns() : um_clock_coarse_ns();
    int64_t deferrable = deferrable_bytes(session, flush, now_ns);
    bool asked = actions & UM_ACTION_RUN_SENDER, runs = asked && backlog_bytes(&session->core) >= deferrable;
    if (holds && !runs) {
        um_lock_release(&session->core.sender_lock);
        atomic_thread_fence(memory_order_seq_cst);
        holds = false;
        runs = was_hurried(session);
        deferrable = runs ? 0 : deferrable;
    }
    if (runs) {
        run_sender_to(session, deferrable, holds, now_ns);
        if (is_time_to_hear(session))
            hear_receivers(session, deferrable, um_clock_ns());
        keep_close(session, now_ns);
    } else if (asked) {
        leave_to_loop(session, now_ns);
    }
    if (actions & UM_ACTION_BATCH_STARTED)
        ask_loop(session, now_ns + session->core.config.batch_interval_ns);
}

/* Publishers that stream run the sender and read what receivers say: the loop has nothing to do for the session, and on
 * a processor they share each of its turns, a timer's interrupt above all, costs them several times what it takes. It
 * looks again after a millisecond, and if they go on after two, then four. Returns until when it may rest. */
static int64_t rest_until(um_publication_session *session, int64_t now_ns)
{
    int64_t run_ns = atomic_load_explicit(&session->last_run_ns, memory_order_relaxed);
    int64_t heard_ns = atomic_load_explicit(&session->unwatched, memory_order_relaxed)
                           ? atomic_load_explicit(&session->heard_ns, memory_order_relaxed)
                           : now_ns;
    int64_t asked_ns = atomic_load_explicit(&session->asked_ns, memory_order_relaxed);
    if (!session->context->threaded || now_ns - run_ns >= DEFER_NS || now_ns - heard_ns >= DEFER_NS) {
        session->rest_ns = DEFER_NS;
        return 0;
    }
    int64_t until_ns = now_ns + session->rest_ns;
    int64_t timers_ns = atomic_load_explicit(&session->timers_ns, memory_order_relaxed);
    timers_ns = asked_ns < timers_ns ? asked_ns : timers_ns;
    if (timers_ns > now_ns && session->rest_ns < REST_MAX_NS)
        session->rest_ns *= 2;
    return until_ns < timers_ns ? until_ns : timers_ns;
}

int64_t um_publishing_tick(um_publication_session *session, int64_t now_ns)
{
    int64_t until_ns = rest_until(session, now_ns);
    if (until_ns > now_ns)
        return until_ns;
    if (atomic_load_explicit(&session->unwatched, memory_order_relaxed))
        um_publishing_receive(session, now_ns);
    if (!um_lock_try(&session->core.sender_lock)) {
        atomic_store_explicit(&session->timers_wanted, true, memory_order_relaxed);
        return now_ns + session->rest_ns;
    }
    int64_t due_ns = run_session_timers(session, now_ns);
    um_lock_release(&session->core.sender_lock);
    bool pending = um_session_pending(&session->core); /* its fence comes before the look at who waits, too */
    notify_sendable(session);
    if (pending || atomic_load_explicit(&session->unwatched, memory_order_relaxed))
        return now_ns;
    /* While it streams, publishers leave datagrams to this loop without waking it. */
    bool streams = now_ns - atomic_load_explicit(&session->last_run_ns, memory_order_relaxed) < DEFER_NS;
    return streams && due_ns > now_ns + session->rest_ns ? now_ns + session->rest_ns : due_ns;
}

void um_publishing_init(um_publication_session *session)
{
    atomic_init(&session->asked_ns, UM_NEVER_NS);
    session->rest_ns = DEFER_NS;
}

/* ---- sources ---- */

int um_publication_open(um_publication_session *session, const um_source_config *config, um_publication **opened)
{
    size_t bytes = um_align_up(sizeof(um_publication), UM_CACHE_LINE_BYTES) + um_source_footprint(config);
    um_publication *publication = um_map(bytes);
    if (publication == NULL)
        return -ENOMEM;
    publication->session = session;
    publication->memory_bytes = bytes;
    uint8_t *memory = (uint8_t *)publication + um_align_up(sizeof(um_publication), UM_CACHE_LINE_BYTES);
    um_lock_sender(&session->core);
    um_source_init(&publication->core, memory, config, &session->core);
    session->publication_count++;
    um_lock_release(&session->core.sender_lock);
    *opened = publication;
    return 0;
}

static int64_t flush(um_publication *publication)
{
    int64_t now_ns = um_clock_ns();
    uint32_t actions = 0;
    int64_t result = um_source_flush(&publication->core, now_ns, &actions);
    act(publication->session, actions, true, false);
    return result;
}

void um_publication_close(um_publication *publication)
{
    um_publication_session *session = publication->session;
    um_gate_shut(&publication->gate);
    wake_senders(session); /* who waits for the descriptor tries again, and hears that the source is closed */
    um_gate_await_empty(&publication->gate);
    flush(publication);
    um_lock_sender(&session->core);
    um_source_fini(&publication->core);
    session->publication_count--;
    um_lock_release(&session->core.sender_lock);
}

void um_publication_free(um_publication *publication)
{
    um_unmap(publication, publication->memory_bytes);
}

/* ---- publishing ---- */

/* What a publisher may wait for. */
static bool is_held_back(int64_t result)
{
    return result == UM_BACK_PRESSURED || result == UM_NOT_CONNECTED || result == UM_RATE_LIMITED;
}

/* Lets the context get on: its thread in embedded mode, this one in sequential mode. Called under no lock. */
static void wait_a_little(um_context *context)
{
    if (!context->threaded) {
        um_context_pass(context, um_clock_ns() + HELD_BACK_NAP_NS);
        return;
    }
    struct timespec nap = {0, HELD_BACK_NAP_NS};
    nanosleep(&nap, NULL);
}

/* A call's waiting: how long it may, and since when it has. */
typedef struct patience {
    int64_t timeout_ns;  /* 0: none, negative: without end */
    int64_t deadline_ns; /* 0: has not waited yet */
    bool counted;
} patience;

static patience patience_of(int64_t timeout_ns, uint32_t flags)
{
    return (patience){timeout_ns, 0, flags & UM_SEND_CONTINUED};
}

static void count_once(patience *patience, uint64_t *counter)
{
    if (!patience->counted)
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
    patience->counted = true;
}

/* Refused for want of clean space, of which there can be more: nothing to wait for. */
static bool make_room(um_publication_session *session, int64_t now_ns)
{
    um_source_session *core = &session->core;
    if (!um_log_wants_cleaning(&core->log, atomic_load_explicit(&core->sender_position, memory_order_relaxed)))
        return false;
    um_lock_sender(core);
    um_session_send(core, now_ns, UM_SEND_BATCH_MAX);
    on_send_error(session);
    um_lock_release(&core->sender_lock);
    return true;
}

/* Where nobody else reads what receivers report, they may have reported room. */
static bool hears_of_room(um_publication_session *session, int64_t now_ns)
{
    if (session->context->threaded && !atomic_load_explicit(&session->unwatched, memory_order_relaxed))
        return false;
    hear_receivers(session, 0, now_ns);
    return is_sendable(session);
}

/* One wait between two attempts; false when the time is up or the source is being closed. Keeps UM's counters of
 * blocked sends. */
static bool wait_held_back(um_publication *publication, patience *patience, int64_t now_ns)
{
    um_context *context = publication->session->context;
    if (make_room(publication->session, now_ns) || hears_of_room(publication->session, now_ns))
        return true;
    if (patience->timeout_ns == 0) {
        count_once(patience, &context->node.counters.send_would_block);
        want_wakeup(publication->session);
        return false;
    }
    if (patience->deadline_ns == 0)
        patience->deadline_ns = patience->timeout_ns < 0 ? UM_NEVER_NS : now_ns + patience->timeout_ns;
    count_once(patience, &context->node.counters.send_blocked);
    if (now_ns >= patience->deadline_ns || um_gate_is_shut(&publication->gate))
        return false;
    run_sender(publication->session, now_ns);
    if (!is_sendable(publication->session))
        wait_a_little(context);
    return true;
}

static int64_t send_one(um_publication *publication, const char *data, uint32_t length, uint32_t flags,
                        int64_t timeout_ns)
{
    patience patience = patience_of(timeout_ns, flags);
    for (;;) {
        int64_t now_ns = um_clock_coarse_ns(); /* only restarts timers of milliseconds and more */
        uint32_t actions = 0;
        int64_t result = um_source_send(&publication->core, (const uint8_t *)data, length, flags, now_ns, &actions);
        if (actions != 0)
            act(publication->session, actions, (flags & UM_SEND_FLUSH) || result < 0, false);
        if (UM_LIKELY(!is_held_back(result)) || !wait_held_back(publication, &patience, now_ns))
            return result;
    }
}

int64_t um_publication_send(um_publication *publication, const char *data, uint32_t length, uint32_t flags,
                            int64_t timeout_ns)
{
    if (!um_gate_enter(&publication->gate))
        return UM_CLOSED;
    int64_t result = send_one(publication, data, length, flags, timeout_ns);
    um_gate_leave(&publication->gate);
    return result;
}

/* How many messages from `first` on make up one portion, of so many bytes: what is still needed for a full one with
 * what waits. */
static uint32_t portion(const uint32_t *lengths, const int32_t *offsets, uint32_t first, uint32_t count,
                        int64_t waiting_bytes, uint32_t *bytes)
{
    uint32_t i = first, enough = BATCH_BYTES;
    if (waiting_bytes > 0 && waiting_bytes < DEFER_BYTES)
        enough -= (uint32_t)waiting_bytes;
    for (*bytes = 0; i < count && *bytes < enough; i++)
        *bytes += UM_LBMC_HEADER_BYTES + (lengths ? lengths[i] : (uint32_t)(offsets[i + 1] - offsets[i]));
    return i - first;
}

/* Large messages are laid out as datagrams, and the log only keeps them. Takes the sender lock for that; NULL when they
 * are not large or another thread runs the sender. */
static um_fresh_datagrams *begin_fresh(um_publication_session *session, uint32_t count, uint32_t bytes)
{
    um_source_session *core = &session->core;
    bool large = 2 * bytes / count > atomic_load_explicit(&core->body_max_bytes, memory_order_relaxed);
    if (!large || !um_lock_try(&core->sender_lock))
        return NULL;
    return &core->fresh;
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
    patience patience = patience_of(timeout_ns, flags);
    int64_t result = 0;
    uint32_t done = 0;
    while (done < count) {
        int64_t waiting_bytes = backlog_bytes(&publication->session->core);
        uint32_t bytes, portion_count = portion(lengths, offsets, done, count, waiting_bytes, &bytes);
        um_messages messages = {(const uint8_t *)data, lengths ? lengths + done : NULL, offsets ? offsets + done : NULL,
                                portion_count, begin_fresh(publication->session, portion_count, bytes)};
        bool last = done + portion_count == count;
        int64_t now_ns = um_clock_ns();
        uint32_t actions = 0;
        uint64_t done_bytes;
        result = um_source_send_many(&publication->core, &messages, last ? flags : 0, now_ns, &actions, &done_bytes);
        bool flush = (last && (flags & UM_SEND_FLUSH)) || result < 0;
        if (actions != 0 || messages.fresh != NULL)
            act(publication->session, actions, flush, messages.fresh != NULL);
        if (result >= 0) {
            done += (uint32_t)result;
            data += lengths ? done_bytes : 0;
        } else if (!is_held_back(result) || !wait_held_back(publication, &patience, now_ns)) {
            break;
        }
    }
    return done > 0 ? (int64_t)done : result;
}

int64_t um_publication_send_many(um_publication *publication, const char *data, uint64_t data_bytes,
                                 const uint32_t *lengths, const int32_t *offsets, uint32_t count, uint32_t flags,
                                 int64_t timeout_ns)
{
    if (!(lengths ? lengths_fit(lengths, count, data_bytes) : offsets_fit(offsets, count, data_bytes)))
        return -EINVAL;
    if (!um_gate_enter(&publication->gate))
        return UM_CLOSED;
    int64_t result = send_many(publication, data, lengths, offsets, count, flags, timeout_ns);
    um_gate_leave(&publication->gate);
    return result;
}

static int claim(um_publication *publication, uint32_t length, um_source_claim *claim, uint32_t flags,
                 int64_t timeout_ns)
{
    patience patience = patience_of(timeout_ns, flags);
    for (;;) {
        int64_t now_ns = um_clock_ns();
        int result = um_source_claim_begin(&publication->core, length, claim);
        if (result != 0)
            run_sender(publication->session, now_ns);
        if (!is_held_back(result) || !wait_held_back(publication, &patience, now_ns))
            return result;
    }
}

int um_publication_claim(um_publication *publication, uint32_t length, um_source_claim *claimed, uint32_t flags,
                         int64_t timeout_ns)
{
    if (!um_gate_enter(&publication->gate))
        return UM_CLOSED;
    int result = claim(publication, length, claimed, flags, timeout_ns);
    um_gate_leave(&publication->gate);
    return result;
}

int64_t um_publication_commit(um_publication *publication, um_source_claim *claim, uint32_t flags)
{
    if (!um_gate_enter(&publication->gate))
        return UM_CLOSED;
    int64_t now_ns = um_clock_ns();
    uint32_t actions = 0;
    int64_t result = um_source_claim_commit(&publication->core, claim, flags, now_ns, &actions);
    act(publication->session, actions, flags & UM_SEND_FLUSH, false);
    um_gate_leave(&publication->gate);
    return result;
}

void um_publication_abort(um_publication *publication, um_source_claim *claim)
{
    if (!um_gate_enter(&publication->gate))
        return;
    uint32_t actions = 0;
    um_source_claim_abort(&publication->core, claim, &actions);
    act(publication->session, actions, true, false);
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

static bool is_drained(um_source_session *core)
{
    um_lock_sender(core);
    int64_t sent = atomic_load(&core->sender_position);
    bool drained = sent >= um_log_tail(&core->log) && core->retransmit_count == 0 &&
                   (core->config.flow_policy == UM_FLOW_NONE || um_flow_reached(&core->flow) >= sent);
    um_lock_release(&core->sender_lock);
    return drained;
}

bool um_publication_drained(um_publication *publication)
{
    if (!um_gate_enter(&publication->gate))
        return false;
    bool drained = is_drained(&publication->session->core);
    um_gate_leave(&publication->gate);
    return drained;
}

uint32_t um_publication_message_max(const um_publication *publication)
{
    return um_source_message_max(&publication->core);
}

bool um_publication_connected(const um_publication *publication)
{
    return atomic_load_explicit(&publication->session->core.log.connected, memory_order_acquire);
}
