#include "io/loop.h"

#include <time.h>

#include "io/receiving_connections.h"
#include "os/clock.h"

enum {
    EVENTS_MAX = 64,
    POLL_INTERVAL_NS = 20000, /* a pass that does not sleep polls idle sockets only this often */
};

static int handle_event(um_loop *loop, uint64_t data, int64_t now_ns)
{
    uint32_t index = (uint32_t)data;
    um_publication_session *session = &loop->sessions->table[index];
    switch (data >> 32) {
    case UM_WATCH_GROUP:
        return um_receiving_receive_group(loop->receiving, index, now_ns);
    case UM_WATCH_SESSION:
        return session->is_used ? um_publication_session_receive(session, now_ns) : 0;
    case UM_WATCH_CONNECTING:
        um_receiving_on_connected(loop->receiving, index, now_ns);
        return 0;
    case UM_WATCH_CONTROL:
        um_receiving_on_control(loop->receiving, index, now_ns);
        return 0;
    case UM_WATCH_STREAM:
        session = &loop->sessions->table[index >> 16];
        return session->is_used ? um_publication_session_on_stream(session, index & 0xffff, now_ns) : 0;
    case UM_WATCH_RINGS: /* every pass polls the rings */
        return 0;
    case UM_WATCH_OUTSIDE:
        loop->reactor->is_outside_ready = true;
        return 0;
    default:
        um_reactor_on_wake(loop->reactor);
        return 0;
    }
}

/* Runs the timers that are due, or all if a thread requested the loop; returns when the next one is due. */
static int64_t run_timers(um_loop *loop, bool all, int64_t now_ns)
{
    int64_t next_ns = um_node_tick(&loop->receiving->node, now_ns);
    next_ns = um_earliest_ns(next_ns, um_receiving_tick_connections(loop->receiving, now_ns));
    for (uint32_t i = 0; i < loop->sessions->limit; i++) {
        um_publication_session *session = &loop->sessions->table[i];
        um_sender *sender = &session->sender;
        if (!session->is_used)
            continue;
        if (all || sender->due_ns <= now_ns || atomic_load_explicit(&sender->has_deferred_tail, memory_order_relaxed))
            sender->due_ns = um_publication_session_service(session, now_ns);
        next_ns = um_earliest_ns(sender->due_ns, next_ns);
    }
    um_receiving_reap(loop->receiving);
    um_rings *rings = loop->links->rings;
    int64_t rings_ns = rings != NULL ? rings->ops->service(rings, now_ns) : UM_NEVER_NS;
    int64_t readers_ns = atomic_load_explicit(&loop->queues->wake_at_ns, memory_order_relaxed);
    next_ns = um_earliest_ns(readers_ns, next_ns);
    return um_earliest_ns(rings_ns, next_ns);
}

/* How a pass waits before it receives: decided under the context lock, executed without it. */
typedef struct wait_plan {
    int64_t gather_ns;   /* sleeps while datagrams gather; 0: no */
    bool uses_epoll;     /* false: does not wait */
    int64_t until_ns;    /* sleeps in epoll until then; 0: only checks */
    bool reads_directly; /* reads the groups without a report by epoll */
} wait_plan;

static wait_plan plan_coalescing(um_loop *loop, int64_t now_ns)
{
    um_rings *rings = loop->links->rings;
    int64_t wait_ns = um_coalescing_next_ns(&loop->coalescing, rings != NULL ? rings->receive_frames : 0,
                                            rings != NULL ? um_node_window_bytes(&loop->receiving->node) : 0,
                                            loop->next_due_ns - now_ns);
    um_reactor_watch_rings(loop->reactor, rings, false);
    return (wait_plan){.gather_ns = wait_ns, .reads_directly = rings == NULL};
}

/* Plans a pass that may wait until wait_until_ns. */
static wait_plan plan_wait(um_loop *loop, int64_t wait_until_ns, int64_t now_ns)
{
    um_rings *rings = loop->links->rings;
    bool is_busy = loop->config.busy_wait || (loop->config.ipc_busy_wait && loop->receiving->ipc_count > 0);
    bool never_sleeps = is_busy || wait_until_ns == 0;
    bool coalesces = wait_until_ns > now_ns && !never_sleeps && um_coalescing_is_active(&loop->coalescing, now_ns);
    /* If the ring set was emptied, datagrams that have arrived since gather for the next pass. */
    bool emptied = rings != NULL && !loop->receiving->node.is_behind;
    if (loop->last_batch > 0 && !(coalesces && emptied)) { /* there may be more, so do not wait */
        wait_until_ns = 0;
        coalesces = false;
    }
    int64_t until_ns = um_earliest_ns(loop->next_due_ns, wait_until_ns);
    if (coalesces)
        return plan_coalescing(loop, now_ns);
    /* With a ring set the groups' sockets are usually idle, so they are read only if they are reported. */
    bool direct = rings == NULL && loop->receiving->group_limit <= UM_RECEIVING_DIRECT_MAX;
    bool no_sleep = never_sleeps || until_ns <= now_ns || now_ns < loop->spin_until_ns;
    /* A watched ring costs the kernel a call per received datagram. So rings are watched only while the loop sleeps,
     * and not while full queues hold every session back: they would be reported but not read. */
    if (never_sleeps || loop->receiving->node.is_held)
        um_reactor_watch_rings(loop->reactor, rings, false);
    else if (!no_sleep && loop->receiving->is_reading_rings)
        um_reactor_watch_rings(loop->reactor, rings, true);
    if (no_sleep && (direct || rings != NULL) && now_ns - loop->last_poll_ns < POLL_INTERVAL_NS)
        return (wait_plan){.reads_directly = direct};
    loop->last_poll_ns = now_ns;
    return (wait_plan){.uses_epoll = true, .until_ns = no_sleep ? 0 : until_ns, .reads_directly = direct && no_sleep};
}

static void lock(um_loop *loop)
{
    um_reactor_yield_lock(loop->reactor);
    pthread_mutex_lock(&loop->reactor->lock);
}

/* Waits as planned, without the lock. Returns events. */
static int wait_as_planned(um_loop *loop, const wait_plan *plan, struct epoll_event *events, int64_t now_ns)
{
    um_reactor *reactor = loop->reactor;
    struct timespec gathering = {0, plan->gather_ns};
    int count = 0;
    um_reactor_begin_sleep(reactor, plan->until_ns);
    pthread_mutex_unlock(&reactor->lock);
    if (plan->uses_epoll)
        count = um_reactor_sleep(reactor, events, EVENTS_MAX, plan->until_ns, now_ns);
    else
        nanosleep(&gathering, NULL);
    lock(loop);
    um_reactor_end_sleep(reactor, plan->until_ns);
    return count;
}

/* The context's thread does not spin adaptively, because it may share a CPU with the readers that it woke. */
static void note_event(um_loop *loop, int64_t now_ns)
{
    loop->spin_until_ns = now_ns + loop->config.spin_ns;
    um_adaptive_spin_on_event(&loop->spin, now_ns);
    int64_t until_ns = um_reactor_is_threaded(loop->reactor) ? 0 : um_adaptive_spin_until_ns(&loop->spin);
    if (until_ns > loop->spin_until_ns)
        loop->spin_until_ns = until_ns;
}

/* Receives from every source that has, or may have, datagrams. Returns datagrams handled. */
static int receive(um_loop *loop, const struct epoll_event *events, int count, bool direct, int64_t now_ns)
{
    int handled = 0;
    for (int i = 0; i < count; i++)
        if (!direct || events[i].data.u64 >> 32 != UM_WATCH_GROUP)
            handled += handle_event(loop, events[i].data.u64, now_ns);
    uint32_t received = direct ? (uint32_t)um_receiving_receive_groups(loop->receiving, now_ns) : (uint32_t)handled;
    handled += direct ? (int)received : 0;
    if (loop->links->rings != NULL) {
        um_event_queues_return_frames(loop->queues);
        int by_rings = um_receiving_receive_rings(loop->receiving, now_ns);
        received += (uint32_t)by_rings;
        handled += by_rings;
    }
    int resumed = um_receiving_resume_connections(loop->receiving, now_ns);
    loop->last_batch = received + (uint32_t)resumed;
    return handled + resumed;
}

static void note_pass(um_loop *loop, const wait_plan *plan, int handled, int64_t now_ns)
{
    um_context_counters *counters = &loop->receiving->node.counters;
    uint32_t sends = atomic_load_explicit(&loop->links->send_count, memory_order_relaxed);
    um_coalescing_on_pass(&loop->coalescing, loop->receiving->pass_datagrams, sends, now_ns);
    if (um_coalescing_is_active(&loop->coalescing, now_ns))
        um_loop_leader_note_load(loop->leader, loop->coalescing.hot_until_ns);
    if (handled > 0)
        note_event(loop, now_ns);
    UM_COUNT(counters->loop_iterations, 1);
    UM_COUNT(counters->loop_naps, plan->gather_ns > 0);
    UM_COUNT(counters->wakeups, plan->uses_epoll);
}

int64_t um_loop_pass(um_loop *loop, int64_t wait_until_ns)
{
    struct epoll_event events[EVENTS_MAX];
    um_reactor *reactor = loop->reactor;
    um_node *node = &loop->receiving->node;
    int64_t now_ns = um_clock_ns();
    int count = 0;
    lock(loop);
    wait_plan plan = plan_wait(loop, wait_until_ns, now_ns);
    if (plan.until_ns > now_ns && !um_receiving_arm(loop->receiving))
        plan.until_ns = 0;
    if (plan.uses_epoll || plan.gather_ns > 0) {
        count = wait_as_planned(loop, &plan, events, now_ns);
        now_ns = um_clock_ns();
    }
    bool requested = um_reactor_take_request(reactor, now_ns);
    loop->receiving->pass_datagrams = 0;
    node->is_behind = false;
    int handled = receive(loop, events, count, plan.reads_directly, now_ns);
    if (loop->receiving->pass_datagrams > 0)
        um_node_after_batch(node, now_ns);
    if (count > 0 || handled > 0 || requested || now_ns >= loop->next_due_ns)
        loop->next_due_ns = run_timers(loop, requested, now_ns);
    if (reactor->request_due_ns < loop->next_due_ns)
        loop->next_due_ns = reactor->request_due_ns;
    if (um_receiving_review_queues(loop->receiving, now_ns))
        um_loop_leader_note_load(loop->leader, now_ns + UM_LEADER_PRESSURED_NS);
    loop->next_due_ns = um_earliest_ns(loop->next_due_ns, um_node_review_by_ns(node, now_ns));
    um_event_queues_notify(loop->queues);
    um_receiving_report_recoveries(loop->receiving);
    note_pass(loop, &plan, handled, now_ns);
    if (reactor->sleepers > 0 && !um_receiving_arm(loop->receiving)) /* this thread may not sleep itself */
        um_reactor_pass_on_wake(reactor);
    pthread_mutex_unlock(&reactor->lock);
    return handled;
}
