#include "io/loop_leader.h"

#include <poll.h>

#include "io/receiving_connections.h"
#include "os/clock.h"

enum {
    FOLLOW_NS = 100000000, /* a follower checks at this interval whether it may lead */
    DESCRIPTORS_MAX = 1 + UM_RECEIVING_DIRECT_MAX,
};

/* A waiting thread: it waits for rows in a queue, or for a descriptor. */
typedef struct waiter {
    um_event_queue *queue;
    int fd;
} waiter;

void um_loop_leader_init(um_loop_leader *leader, const um_loop_leader_config *config, um_links *links,
                         um_receiving *receiving, um_event_queues *queues)
{
    leader->config = *config;
    leader->links = links;
    leader->receiving = receiving;
    leader->queues = queues;
    um_coalescing_init(&leader->load, config->coalesce_ns, config->coalesce_ns);
    um_adaptive_spin_init(&leader->spin, config->adaptive_spin_ns);
}

/* ---- waiting ---- */

static bool is_ready(const waiter *w)
{
    struct pollfd descriptor = {.fd = w->fd, .events = POLLIN};
    if (w->queue == NULL)
        return poll(&descriptor, 1, 0) != 0;
    return um_event_queue_is_ready(w->queue) || um_gate_is_shut(&w->queue->gate);
}

/* Sleeps until one of the descriptors is readable; the first is the waiter's own. Returns how many are, or -1. */
static int sleep_until(const waiter *w, struct pollfd *descriptors, uint32_t count, int64_t end_ns)
{
    int64_t wait_ns = end_ns == UM_NEVER_NS ? UM_NEVER_NS : end_ns - um_clock_ns();
    if (w->queue != NULL)
        return um_event_queue_sleep(w->queue, descriptors, count, wait_ns);
    descriptors[0] = (struct pollfd){.fd = w->fd, .events = POLLIN};
    return um_poll_descriptors(descriptors, count, wait_ns);
}

static bool follow(const waiter *w, int64_t end_ns)
{
    struct pollfd own;
    return sleep_until(w, &own, 1, end_ns) >= 0;
}

/* ---- leading ---- */

static int64_t loaded_until(const um_loop_leader *leader)
{
    return atomic_load_explicit(&leader->loaded_until_ns, memory_order_relaxed);
}

/* Takes over the reports of the groups. Returns the number of descriptors; 0: there is nothing to lead. */
static uint32_t begin(um_loop_leader *leader, struct pollfd *descriptors)
{
    int fds[UM_RECEIVING_DIRECT_MAX];
    um_reactor *reactor = leader->queues->reactor;
    um_reactor_lock(reactor);
    uint32_t count = um_receiving_unwatch_groups(leader->receiving, fds);
    leader->group_changes = leader->receiving->group_changes;
    leader->has_ipc = leader->receiving->ipc_count > 0;
    um_reactor_unlock(reactor);
    for (uint32_t i = 0; i < count; i++)
        descriptors[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    return count;
}

/* Returns the reports of the groups. Datagrams that arrived meanwhile are reported to the context's thread. */
static void end(um_loop_leader *leader)
{
    um_reactor *reactor = leader->queues->reactor;
    um_reactor_lock(reactor);
    um_receiving_watch_groups(leader->receiving);
    bool can_sleep = um_receiving_arm(leader->receiving);
    um_reactor_unlock(reactor);
    if (!can_sleep)
        um_reactor_wake_by(reactor, 0);
}

/* Returns true if the leader may sleep: every source of LBT-IPC wakes it. */
static bool arm(um_loop_leader *leader)
{
    um_reactor *reactor = leader->queues->reactor;
    um_reactor_lock(reactor);
    bool can_sleep = um_receiving_arm(leader->receiving);
    um_reactor_unlock(reactor);
    return can_sleep;
}

static void note_event(um_loop_leader *leader, int64_t now_ns)
{
    um_adaptive_spin_on_event(&leader->spin, now_ns);
    int64_t until_ns = um_adaptive_spin_until_ns(&leader->spin);
    leader->spin_until_ns = now_ns + leader->config.spin_ns;
    if (until_ns > leader->spin_until_ns)
        leader->spin_until_ns = until_ns;
}

/* Receives, delivers and wakes. Returns true if the reader stays the leader. */
static bool pass(um_loop_leader *leader, int64_t now_ns)
{
    um_receiving *receiving = leader->receiving;
    um_node *node = &receiving->node;
    um_reactor *reactor = leader->queues->reactor;
    int64_t due_ns = UM_NEVER_NS;
    um_reactor_lock(reactor);
    receiving->pass_datagrams = 0;
    node->is_behind = false;
    um_receiving_receive_groups(receiving, now_ns);
    uint32_t received = receiving->pass_datagrams;
    if (received > 0) {
        um_node_after_batch(node, now_ns);
        due_ns = um_node_tick(node, now_ns);
        um_event_queues_notify(leader->queues);
        um_receiving_report_recoveries(receiving);
    }
    bool is_held = um_receiving_review_queues(receiving, now_ns);
    int64_t review_ns = um_node_review_by_ns(node, now_ns);
    uint32_t sends = atomic_load_explicit(&leader->links->send_count, memory_order_relaxed);
    bool same_groups = receiving->group_changes == leader->group_changes;
    UM_COUNT(node->counters.loop_passes_led, 1);
    um_reactor_unlock(reactor);

    um_coalescing_on_pass(&leader->load, received, sends, now_ns);
    if (is_held)
        um_loop_leader_note_load(leader, now_ns + UM_LEADER_PRESSURED_NS);
    else if (um_coalescing_is_active(&leader->load, now_ns))
        um_loop_leader_note_load(leader, leader->load.hot_until_ns);
    um_reactor_wake_by(reactor, is_held ? 0 : um_earliest_ns(due_ns, review_ns)); /* its thread reviews the queues */
    return same_groups && now_ns >= loaded_until(leader);
}

/* Returns false if a signal ended it. */
static bool lead(um_loop_leader *leader, const waiter *w, int64_t end_ns)
{
    struct pollfd descriptors[DESCRIPTORS_MAX];
    uint32_t count = begin(leader, descriptors + 1);
    if (count == 0)
        return follow(w, end_ns);
    int readable = 1;
    bool stays = true;
    for (int64_t now_ns = um_clock_ns(); stays && now_ns < end_ns; now_ns = um_clock_ns()) {
        if (is_ready(w)) {
            note_event(leader, now_ns);
            break;
        }
        if (now_ns >= leader->spin_until_ns && (!leader->has_ipc || arm(leader))) {
            readable = sleep_until(w, descriptors, 1 + count, end_ns);
            if (readable <= 0 || descriptors[0].revents != 0)
                break;
            now_ns = um_clock_ns();
        }
        stays = pass(leader, now_ns);
    }
    end(leader);
    return readable >= 0;
}

static bool can_lead(const um_loop_leader *leader)
{
    return !leader->config.is_disabled && leader->links->rings == NULL;
}

/* Returns false if another thread leads. */
static bool become_leader(um_loop_leader *leader)
{
    return !atomic_exchange_explicit(&leader->is_led, true, memory_order_acquire);
}

static void leave(um_loop_leader *leader)
{
    atomic_store_explicit(&leader->is_led, false, memory_order_release);
}

static bool wait(um_loop_leader *leader, const waiter *w, int64_t end_ns)
{
    int64_t now_ns = um_clock_ns(), load_ns = loaded_until(leader);
    if (!can_lead(leader))
        return follow(w, end_ns);
    if (now_ns < load_ns)
        return follow(w, um_earliest_ns(load_ns, end_ns));
    if (!become_leader(leader))
        return follow(w, end_ns - now_ns > FOLLOW_NS ? now_ns + FOLLOW_NS : end_ns);
    bool goes_on = lead(leader, w, end_ns);
    leave(leader);
    return goes_on;
}

bool um_loop_leader_wait_queue(um_loop_leader *leader, um_event_queue *queue, int64_t end_ns)
{
    waiter w = {.queue = queue, .fd = -1};
    return wait(leader, &w, end_ns);
}

bool um_loop_leader_wait_descriptor(um_loop_leader *leader, int fd, int64_t end_ns)
{
    waiter w = {.fd = fd};
    while (!is_ready(&w) && um_clock_ns() < end_ns)
        if (!wait(leader, &w, end_ns))
            return false;
    return true;
}

void um_loop_leader_look(um_loop_leader *leader, um_event_queue *queue, bool has_rows)
{
    waiter w = {.queue = queue, .fd = -1};
    int64_t now_ns = um_clock_ns();
    if (!can_lead(leader) || now_ns < loaded_until(leader) || !become_leader(leader))
        return;
    if (has_rows)
        note_event(leader, now_ns);
    else if (now_ns < leader->spin_until_ns)
        lead(leader, &w, leader->spin_until_ns);
    leave(leader);
}
