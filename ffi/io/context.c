#include "io/context.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/clock.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    EVENTS_MAX = 64,
    NAP_MIN_NS = 20000,       /* shorter ones take longer than they say */
    HOT_DATAGRAMS = 16,       /* a pass that handled this many is under load */
    HOT_NS = 1000000,         /* and stays hot for so long */
    LOAD_SPAN_NS = 200000,    /* as do passes that handled as many together within this time */
    POLL_INTERVAL_NS = 20000, /* a pass that does not sleep looks at quiet sockets only this often */
    GROUPS_DIRECT_MAX = 4,    /* up to so many groups are read directly, without asking which has something */
    RECEIVES_PER_PASS = 8,
    PORT_RECEIVES_PER_PASS = 12, /* what gathers in a nap is taken, reported and told of in one go, as a rule */
    LOCK_YIELDS_MAX = 1000,
    PRESSURE_CHECK_NS = 200000, /* how soon a full queue is looked at again */
};

void *um_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void um_back(void *memory, size_t bytes)
{
    madvise(memory, bytes, MADV_HUGEPAGE);
    madvise(memory, bytes, MADV_POPULATE_WRITE); /* before Linux 5.14 pages come with their first use */
}

void um_unmap(void *memory, size_t bytes)
{
    if (memory != NULL)
        munmap(memory, bytes);
}

void *um_allocate(size_t bytes)
{
    bytes = um_align_up(bytes, UM_CACHE_LINE_BYTES);
    void *memory = aligned_alloc(UM_CACHE_LINE_BYTES, bytes);
    return memory == NULL ? NULL : memset(memory, 0, bytes);
}

void um_context_lock(um_context *context)
{
    atomic_fetch_add(&context->lock_waiters, 1);
    pthread_mutex_lock(&context->lock);
    atomic_fetch_sub(&context->lock_waiters, 1);
}

void um_context_unlock(um_context *context)
{
    pthread_mutex_unlock(&context->lock);
}

static int watch(um_context *context, int operation, int fd, enum um_watch_kind kind, uint32_t index)
{
    uint32_t once = kind == UM_WATCH_SESSION ? (uint32_t)EPOLLONESHOT : 0;
    struct epoll_event event = {.events = EPOLLIN | once, .data.u64 = (uint64_t)kind << 32 | index};
    return epoll_ctl(context->epoll_fd, operation, fd, &event) != 0 ? -errno : 0;
}

int um_context_watch(um_context *context, int fd, enum um_watch_kind kind, uint32_t index)
{
    return watch(context, EPOLL_CTL_ADD, fd, kind, index);
}

void um_context_watch_again(um_context *context, int fd, enum um_watch_kind kind, uint32_t index)
{
    watch(context, EPOLL_CTL_MOD, fd, kind, index);
}

/* ---- making and ending ---- */

int um_context_watch_port(um_context *context, bool is_watched)
{
    int fds[UM_PORT_DESCRIPTORS_MAX];
    if (context->port == NULL || context->port_is_watched == is_watched)
        return 0;
    context->error_step = "watching the rings";
    uint32_t count = context->port->ops->descriptors(context->port, fds, UM_PORT_DESCRIPTORS_MAX);
    int result = count > UM_PORT_DESCRIPTORS_MAX ? -E2BIG : 0;
    for (uint32_t i = 0; i < count && result == 0; i++)
        if (!is_watched)
            epoll_ctl(context->epoll_fd, EPOLL_CTL_DEL, fds[i], NULL);
        else
            result = um_context_watch(context, fds[i], UM_WATCH_PORT, i);
    result = result == -EEXIST ? 0 : result; /* the loop and a thread that joins did it at once */
    context->port_is_watched = is_watched;
    return result;
}

static int open_descriptors(um_context *context)
{
    context->error_step = "epoll_create";
    context->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (context->epoll_fd < 0)
        return -errno;
    context->error_step = "eventfd";
    context->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (context->wake_fd < 0)
        return -errno;
    int result = um_context_watch(context, context->wake_fd, UM_WATCH_WAKE, 0);
    if (result != 0)
        return result;
    um_socket_config socket = um_context_socket_config(context);
    result = um_socket_open_unicast(&context->control_link, &socket, 0);
    context->error_step = context->control_link.failed_step;
    um_tap_link_init(&context->tapped_control, &context->control_link.base, &context->tap, context->control_link.local);
    return result;
}

static int map_memory(um_context *context)
{
    const um_context_config *config = &context->config;
    context->error_step = "memory";
    context->hold_bytes = um_hold_footprint(config->hold_datagrams, config->datagram_max_bytes, config->hold_messages);
    if (context->hold_bytes == 0)
        return -EINVAL;
    context->hold_memory = um_map(context->hold_bytes);
    context->ring_memory = um_map((size_t)UM_RECEIVE_BATCH_MAX * UM_RECEIVE_STRIDE_BYTES);
    context->sessions = um_map(sizeof *context->sessions * UM_CONTEXT_SESSIONS_MAX);
    context->groups = um_map(sizeof *context->groups * UM_CONTEXT_GROUPS_MAX);
    if (!context->hold_memory || !context->ring_memory || !context->sessions || !context->groups)
        return -ENOMEM;
    um_hold_init(&context->node.store, context->hold_memory, config->hold_datagrams, config->datagram_max_bytes,
                 config->hold_messages);
    um_receive_ring_init(&context->ring, context->ring_memory);
    return 0;
}

int um_context_create(const um_context_config *config, um_context **created)
{
    um_context *context = um_map(sizeof *context);
    *created = context;
    if (context == NULL)
        return -ENOMEM;
    context->config = *config;
    context->port = config->port;
    context->nap_ns = config->coalesce_ns;
    context->epoll_fd = context->wake_fd = context->control_link.fd = -1;
    context->next_delivery_id = 1;
    atomic_init(&context->requested_ns, UM_NEVER_NS);
    context->request_due_ns = UM_NEVER_NS;
    pthread_mutex_init(&context->lock, NULL);
    um_node_init(&context->node);
    um_linger_init(&context->linger, config->adaptive_linger_ns);
    int64_t now_ns = um_clock_ns();
    um_rate_limiter_init(&context->limits.data, config->data_rate_bps, config->rate_interval_ns, now_ns);
    um_rate_limiter_init(&context->limits.retransmit, config->retransmit_rate_bps, config->rate_interval_ns, now_ns);
    int result = map_memory(context);
    return result == 0 ? open_descriptors(context) : result;
}

void um_context_close(um_context *context)
{
    um_gate_shut(&context->gate);
    um_context_unblock(context);
    um_gate_await_empty(&context->gate);
    um_context_stop(context);
    while (context->subscriptions != NULL)
        um_subscription_close(context->subscriptions);
    while (context->event_queues != NULL)
        um_event_queue_close(context->event_queues);
    for (uint32_t i = 0; context->sessions != NULL && i < context->session_limit; i++)
        if (context->sessions[i].in_use)
            um_session_shut(&context->sessions[i]);
    um_context_lock(context);
    um_receiving_give_back(context);
    context->port = NULL;
    um_context_unlock(context);
    um_socket_close(&context->control_link);
    um_tap_counters ignored;
    um_tap_stop(&context->tap, &ignored);
    if (context->epoll_fd >= 0)
        close(context->epoll_fd);
    if (context->wake_fd >= 0)
        close(context->wake_fd);
    context->epoll_fd = context->wake_fd = -1;
    /* Only the loop uses these, which is at its end; the rest may still be looked at. */
    um_unmap(context->hold_memory, context->hold_bytes);
    um_unmap(context->ring_memory, (size_t)UM_RECEIVE_BATCH_MAX * UM_RECEIVE_STRIDE_BYTES);
    context->hold_memory = context->ring_memory = NULL;
}

void um_context_free(um_context *context)
{
    um_unmap(context->sessions, sizeof *context->sessions * UM_CONTEXT_SESSIONS_MAX);
    um_unmap(context->groups, sizeof *context->groups * UM_CONTEXT_GROUPS_MAX);
    pthread_mutex_destroy(&context->lock);
    um_unmap(context, sizeof *context);
}

const char *um_context_failed_step(const um_context *context)
{
    return context->error_step ? context->error_step : "";
}

uint32_t um_context_receive_buffer(um_context *context)
{
    um_context_lock(context);
    uint32_t least = context->least_receive_bytes;
    um_context_unlock(context);
    return least;
}

um_socket_config um_context_socket_config(const um_context *context)
{
    const um_context_config *config = &context->config;
    um_socket_config socket = {.interface_ip = config->interface_ip,
                               .ttl = config->ttl,
                               .send_buffer_bytes = config->source_buffer_bytes,
                               .receive_buffer_bytes = config->receiver_buffer_bytes,
                               .gso = config->gso,
                               .gro = config->gro,
                               .timestamps = config->timestamps};
    memcpy(socket.interface, config->interface, sizeof socket.interface);
    return socket;
}

/* ---- the loop ---- */

void um_context_wake_by(um_context *context, int64_t time_ns)
{
    int64_t requested = atomic_load_explicit(&context->requested_ns, memory_order_relaxed);
    while (time_ns < requested && !atomic_compare_exchange_weak(&context->requested_ns, &requested, time_ns))
        ;
    /* Pairs with the fence in sleep_until: either the loop sees the request or we see it asleep. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&context->sleeping_until_ns, memory_order_relaxed) > time_ns) {
        uint64_t one = 1;
        ssize_t ignored = write(context->wake_fd, &one, sizeof one); /* full means a wake-up is pending */
        (void)ignored;
    }
}

bool um_context_wakes_by(um_context *context, int64_t time_ns)
{
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the one after the sleep */
    int64_t until_ns = atomic_load_explicit(&context->sleeping_until_ns, memory_order_relaxed);
    return until_ns != 0 && until_ns <= time_ns;
}

/* Waits for events for at most wait_ns. */
static int wait_events(um_context *context, struct epoll_event *events, int64_t wait_ns)
{
    struct timespec timeout = {wait_ns / 1000000000, wait_ns % 1000000000};
#ifdef SYS_epoll_pwait2
    int count = (int)syscall(SYS_epoll_pwait2, context->epoll_fd, events, EVENTS_MAX, &timeout, NULL, 0);
    if (count >= 0 || errno != ENOSYS)
        return count;
#endif
    return epoll_wait(context->epoll_fd, events, EVENTS_MAX, (int)((wait_ns + 999999) / 1000000));
}

static int sleep_until(um_context *context, struct epoll_event *events, int64_t until_ns, int64_t now_ns)
{
    atomic_store_explicit(&context->sleeping_until_ns, until_ns, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    int64_t requested_ns = atomic_load_explicit(&context->requested_ns, memory_order_relaxed);
    until_ns = requested_ns < until_ns ? requested_ns : until_ns;
    int64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    int64_t day_ns = 86400 * (int64_t)1000000000;
    int count = wait_events(context, events, wait_ns < day_ns ? wait_ns : day_ns);
    atomic_store_explicit(&context->sleeping_until_ns, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    UM_COUNT(context->node.counters.wakeups, 1);
    return count;
}

static int receive_group(um_context *context, um_group *group, int64_t now_ns)
{
    int handled = 0;
    for (int i = 0; i < RECEIVES_PER_PASS && !um_node_pressured(&context->node, now_ns); i++) {
        int count = um_receiving_receive(context, group, now_ns);
        handled += count > 0 ? count : 0;
        if (count < (int)context->config.receive_batch)
            return handled;
    }
    context->node.behind = true;
    return handled;
}

static int receive_groups(um_context *context, int64_t now_ns)
{
    int handled = 0;
    for (uint32_t i = 0; i < context->group_limit; i++)
        if (context->groups[i].in_use)
            handled += receive_group(context, &context->groups[i], now_ns);
    return handled;
}

static int receive_port(um_context *context, bool polls, int64_t now_ns)
{
    int handled = 0;
    um_receiving_take_back(context);
    for (int i = 0; i < PORT_RECEIVES_PER_PASS && !um_node_pressured(&context->node, now_ns); i++) {
        int count = um_receiving_receive_port(context, polls, now_ns);
        handled += count;
        if (count == 0 || !context->port->more)
            return handled;
    }
    context->node.behind = true;
    return handled;
}

static int handle_event(um_context *context, uint64_t data, int64_t now_ns)
{
    uint32_t index = (uint32_t)data;
    uint64_t ignored;
    switch (data >> 32) {
    case UM_WATCH_GROUP:
        return context->groups[index].in_use ? receive_group(context, &context->groups[index], now_ns) : 0;
    case UM_WATCH_SESSION:
        return context->sessions[index].in_use ? um_publishing_receive(&context->sessions[index], now_ns) : 0;
    case UM_WATCH_PORT: /* every pass looks at the rings */
        return 0;
    default:
        return (int)read(context->wake_fd, &ignored, sizeof ignored) * 0;
    }
}

/* Runs the timers that are due, all of them when somebody asked for the loop; returns when the next one is. */
static int64_t run_timers(um_context *context, bool all, int64_t now_ns)
{
    int64_t next_ns = um_node_tick(&context->node, now_ns);
    for (uint32_t i = 0; i < context->session_limit; i++) {
        um_publication_session *session = &context->sessions[i];
        if (!session->in_use)
            continue;
        if (all || session->due_ns <= now_ns || atomic_load_explicit(&session->left, memory_order_relaxed))
            session->due_ns = um_publishing_tick(session, now_ns);
        next_ns = session->due_ns < next_ns ? session->due_ns : next_ns;
    }
    um_receiving_reap(context);
    int64_t port_ns = context->port != NULL ? context->port->ops->tend(context->port, now_ns) : UM_NEVER_NS;
    return port_ns < next_ns ? port_ns : next_ns;
}

/* A control call waits for the lock: give it a chance, since a mutex does not queue fairly. */
static void step_aside(um_context *context)
{
    for (int i = 0; i < LOCK_YIELDS_MAX && atomic_load_explicit(&context->lock_waiters, memory_order_relaxed); i++)
        sched_yield();
}

/* What this pass received beyond two datagrams for each send: they may be an answer and, on one host, what was sent;
 * who waits for the next answer is not to find this end napping. */
static uint32_t unasked_datagrams(um_context *context)
{
    uint32_t sends = atomic_load_explicit(&context->send_count, memory_order_relaxed);
    uint32_t due = context->answers_due + 2 * (sends - context->sends_seen);
    uint32_t answers = context->pass_datagrams < due ? context->pass_datagrams : due;
    context->sends_seen = sends;
    context->answers_due = due - answers < HOT_DATAGRAMS ? due - answers : HOT_DATAGRAMS;
    return context->pass_datagrams - answers;
}

/* Datagrams of a ring come one by one: a loop that sleeps between them is woken for every few, and is under load all
 * the same. */
static bool is_under_load(um_context *context, int64_t now_ns)
{
    uint32_t unasked = unasked_datagrams(context);
    if (now_ns - context->load_since_ns > LOAD_SPAN_NS) {
        context->load_since_ns = now_ns;
        context->load_datagrams = 0;
    }
    context->load_datagrams += unasked;
    return context->load_datagrams >= HOT_DATAGRAMS;
}

/* Rings hold more than a socket's share of a window does, so that with them fewer, longer naps save the timers; but no
 * more is to gather than a quarter of a queue and five eighths of what a source may send without a report, whatever the
 * rate, and no timer is to wait longer than over sockets. */
static int64_t next_nap_ns(um_context *context, int64_t now_ns)
{
    int64_t usual_ns = context->config.coalesce_ns, due_ns = context->next_due_ns - now_ns;
    if (context->port == NULL)
        return usual_ns;
    uint32_t room = context->port->receive_frames, frames = context->gathered_frames;
    uint64_t window = um_node_window_bytes(&context->node), bytes = context->gathered_bytes;
    if (frames > room / 4 || bytes > window / 8 * 5)
        context->nap_ns = context->nap_ns / 2 > NAP_MIN_NS ? context->nap_ns / 2 : NAP_MIN_NS;
    else if (frames < room / 6 && bytes < window / 2 &&
             context->nap_ns + usual_ns / 8 <= context->config.coalesce_max_ns)
        context->nap_ns += usual_ns / 8;
    context->gathered_frames = 0;
    context->gathered_bytes = 0;
    int64_t longest_ns = due_ns > usual_ns ? due_ns : usual_ns;
    return context->nap_ns < longest_ns ? context->nap_ns : longest_ns;
}

/* The rate of a load that begins is not known yet; one that goes on may be seen a nap later. */
static void note_load(um_context *context, int64_t now_ns)
{
    if (now_ns >= context->hot_until_ns + context->config.coalesce_max_ns)
        context->nap_ns = context->config.coalesce_ns;
    context->hot_until_ns = now_ns + HOT_NS;
}

/* *time_ns is the time, and changes with what is waited. */
static int take_events(um_context *context, struct epoll_event *events, int64_t wait_until_ns, int64_t *time_ns)
{
    int64_t now_ns = *time_ns;
    bool never_sleeps = context->config.busy_wait || wait_until_ns == 0;
    bool naps =
        now_ns < context->hot_until_ns && wait_until_ns > now_ns && !never_sleeps && context->config.coalesce_ns != 0;
    /* A ring that was emptied: what came since gathers for the next pass. */
    bool emptied = context->port != NULL && !context->node.behind;
    if (context->last_batch > 0 && !(naps && emptied)) { /* there may be more: do not wait for it */
        wait_until_ns = 0;
        naps = false;
    }
    int64_t until_ns = context->next_due_ns < wait_until_ns ? context->next_due_ns : wait_until_ns;
    context->napped = naps;
    if (naps) {
        struct timespec nap = {0, next_nap_ns(context, now_ns)};
        um_context_watch_port(context, false);
        nanosleep(&nap, NULL);
        *time_ns = um_clock_ns();
        context->read_directly = context->port == NULL;
        return 0;
    }
    /* With a port the groups' sockets are silent as a rule: they are read when they are reported ready. */
    bool direct = context->port == NULL && context->group_limit <= GROUPS_DIRECT_MAX;
    bool no_sleep = never_sleeps || until_ns <= now_ns || now_ns < context->linger_until_ns;
    /* Watched rings cost the kernel a call for every datagram that comes, so they are only while somebody sleeps. */
    if (never_sleeps)
        um_context_watch_port(context, false);
    else if (!no_sleep && context->port_is_read)
        um_context_watch_port(context, true);
    if (no_sleep && (direct || context->port != NULL) && now_ns - context->last_poll_ns < POLL_INTERVAL_NS) {
        context->read_directly = direct;
        return 0;
    }
    context->last_poll_ns = now_ns;
    context->read_directly = direct && no_sleep;
    int count = sleep_until(context, events, no_sleep ? 0 : until_ns, now_ns);
    *time_ns = um_clock_ns();
    return count;
}

/* True when a time that was asked for with um_context_wake_by has come. */
static bool take_request(um_context *context, int64_t now_ns)
{
    int64_t requested_ns = atomic_load_explicit(&context->requested_ns, memory_order_relaxed);
    if (requested_ns != UM_NEVER_NS)
        requested_ns = atomic_exchange(&context->requested_ns, UM_NEVER_NS);
    if (requested_ns < context->request_due_ns)
        context->request_due_ns = requested_ns;
    bool due = context->request_due_ns <= now_ns;
    if (due)
        context->request_due_ns = UM_NEVER_NS;
    return due;
}

/* The context's own thread does not poll for what may come soon: it may share a processor with the readers it woke. */
static void note_event(um_context *context, int64_t now_ns)
{
    context->linger_until_ns = now_ns + context->config.linger_ns;
    um_linger_on_event(&context->linger, now_ns);
    int64_t until_ns = context->threaded ? 0 : um_linger_until_ns(&context->linger);
    if (until_ns > context->linger_until_ns)
        context->linger_until_ns = until_ns;
}

int64_t um_context_pass(um_context *context, int64_t wait_until_ns)
{
    struct epoll_event events[EVENTS_MAX];
    bool polls = context->config.busy_wait || wait_until_ns == 0;
    int64_t now_ns = um_clock_ns();
    int count = take_events(context, events, wait_until_ns, &now_ns);
    bool direct = context->read_directly;
    step_aside(context);
    pthread_mutex_lock(&context->lock);
    bool requested = take_request(context, now_ns);
    int handled = 0;
    context->pass_datagrams = 0;
    context->node.behind = false;
    for (int i = 0; i < count; i++)
        if (!direct || events[i].data.u64 >> 32 != UM_WATCH_GROUP)
            handled += handle_event(context, events[i].data.u64, now_ns);
    uint32_t received = direct ? (uint32_t)receive_groups(context, now_ns) : (uint32_t)handled;
    handled += direct ? (int)received : 0;
    if (context->port != NULL) {
        int by_port = receive_port(context, polls, now_ns);
        received += (uint32_t)by_port;
        handled += by_port;
    }
    if (context->pass_datagrams > 0)
        um_node_after_batch(&context->node, now_ns);
    if (count > 0 || handled > 0 || requested || now_ns >= context->next_due_ns)
        context->next_due_ns = run_timers(context, requested, now_ns);
    if (context->request_due_ns < context->next_due_ns)
        context->next_due_ns = context->request_due_ns;
    if (um_node_pressured(&context->node, now_ns) && context->next_due_ns > now_ns + PRESSURE_CHECK_NS)
        context->next_due_ns = now_ns + PRESSURE_CHECK_NS;
    um_event_queue_notify(context);
    if (is_under_load(context, now_ns))
        note_load(context, now_ns);
    if (handled > 0)
        note_event(context, now_ns);
    context->last_batch = received;
    context->read_directly = false;
    UM_COUNT(context->node.counters.loop_iterations, 1);
    UM_COUNT(context->node.counters.loop_naps, context->napped);
    pthread_mutex_unlock(&context->lock);
    return handled;
}

static void *run(void *argument)
{
    um_context *context = argument;
    pthread_setname_np(pthread_self(), "umstack-context");
    while (!atomic_load_explicit(&context->stop, memory_order_relaxed))
        um_context_pass(context, UM_NEVER_NS);
    return NULL;
}

int um_context_start(um_context *context)
{
    context->error_step = "thread";
    /* Signals belong to the application's threads: one of them may be waiting to be interrupted. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&context->thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    context->threaded = error == 0;
    return -error;
}

void um_context_stop(um_context *context)
{
    if (!context->threaded)
        return;
    atomic_store(&context->stop, true);
    um_context_wake_by(context, 0);
    pthread_join(context->thread, NULL);
    context->threaded = false;
}

void um_context_unblock(um_context *context)
{
    atomic_fetch_add(&context->unblock_count, 1);
    um_context_wake_by(context, 0);
    um_context_lock(context);
    for (um_event_queue *q = context->event_queues; q != NULL; q = q->next)
        um_event_queue_wake(q);
    um_context_unlock(context);
}

static int64_t process(um_context *context, int64_t timeout_ns)
{
    if (timeout_ns == 0)
        return um_context_pass(context, 0);
    uint32_t unblocks = atomic_load(&context->unblock_count);
    int64_t end_ns = timeout_ns < 0 ? UM_NEVER_NS : um_clock_ns() + timeout_ns;
    int64_t handled = 0;
    do
        handled += um_context_pass(context, end_ns);
    while (atomic_load(&context->unblock_count) == unblocks && um_clock_ns() < end_ns);
    return handled;
}

int64_t um_context_process(um_context *context, int64_t timeout_ns)
{
    if (!um_gate_enter(&context->gate))
        return UM_CLOSED;
    int64_t handled = process(context, timeout_ns);
    um_gate_leave(&context->gate);
    return handled;
}

uint32_t um_context_groups(um_context *context, um_address *groups, uint32_t max)
{
    uint32_t count = 0;
    um_context_lock(context);
    for (uint32_t i = 0; i < context->group_limit && count < max; i++)
        if (context->groups[i].in_use)
            groups[count++] = context->groups[i].link.local;
    um_context_unlock(context);
    return count;
}

void um_context_set_datagram_max(um_context *context, uint32_t bytes)
{
    um_context_lock(context);
    for (uint32_t i = 0; i < context->session_limit; i++)
        if (context->sessions[i].in_use)
            um_session_set_datagram_max(&context->sessions[i].core, bytes);
    um_context_unlock(context);
}

/* ---- the tap ---- */

int um_context_tap_start(um_context *context, const um_tap_config *config)
{
    if (!um_gate_enter(&context->gate))
        return UM_CLOSED;
    um_context_lock(context);
    int result = um_tap_start(&context->tap, config);
    um_context_unlock(context);
    um_gate_leave(&context->gate);
    return result;
}

/* Not under the lock: the tap's thread may have much to write. */
int um_context_tap_stop(um_context *context, um_tap_counters *counters)
{
    return um_tap_stop(&context->tap, counters);
}

void um_context_tap_read(const um_context *context, um_tap_counters *counters)
{
    um_tap_read(&context->tap, counters);
}

bool um_context_tap_is_running(const um_context *context)
{
    return um_tap_is_running(&context->tap);
}

void um_context_tap_datagram(um_context *context, bool sent, um_address from, um_address to, const char *data,
                             uint32_t length)
{
    um_tap_datagram(&context->tap, sent, from, to, (const uint8_t *)data, length, um_clock_wall_ns());
}
