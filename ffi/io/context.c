#include "io/context_private.h"

#include <pthread.h>
#include <signal.h>

#include "os/clock.h"
#include "os/memory.h"

/* ---- creating and closing ---- */

static int64_t pass(um_reactor *reactor, int64_t wait_until_ns)
{
    return um_loop_pass(&((um_context *)reactor)->loop, wait_until_ns);
}

static bool wait_for_rows(um_reactor *reactor, um_event_queue *queue, int64_t end_ns)
{
    return um_loop_leader_wait_queue(&((um_context *)reactor)->leader, queue, end_ns);
}

static void look_for_rows(um_reactor *reactor, um_event_queue *queue, bool has_rows)
{
    um_loop_leader_look(&((um_context *)reactor)->leader, queue, has_rows);
}

static const um_reactor_loop reactor_loop = {.pass = pass, .wait = wait_for_rows, .look = look_for_rows};

static um_socket_config socket_config(const um_context_config *config)
{
    um_socket_config socket = {.interface_ip = config->interface_ip,
                               .ttl = config->ttl,
                               .traffic_class = config->traffic_class,
                               .send_buffer_bytes = config->source_buffer_bytes,
                               .receive_buffer_bytes = config->receiver_buffer_bytes,
                               .gso = config->gso,
                               .gro = config->gro,
                               .timestamps = config->timestamps,
                               .is_source_specific = config->is_source_specific,
                               .fragments = config->fragments};
    memcpy(socket.interface, config->interface, sizeof socket.interface);
    return socket;
}

static int open_sessions(um_context *context, const um_context_config *config)
{
    um_publication_sessions *sessions = &context->sessions;
    int64_t now_ns = um_clock_ns();
    um_rate_limiter_init(&sessions->limits.data, config->data_rate_bps, config->rate_interval_ns, now_ns);
    um_rate_limiter_init(&sessions->limits.retransmit, config->retransmit_rate_bps, config->rate_interval_ns, now_ns);
    const um_lbtru_config *lbtru = &config->lbtru;
    sessions->lbtru_limits.is_new_only = true;
    um_rate_limiter_init(&sessions->lbtru_limits.data, lbtru->data_rate_bps, lbtru->rate_interval_ns, now_ns);
    um_rate_limiter_init(&sessions->lbtru_limits.retransmit, lbtru->retransmit_rate_bps, lbtru->rate_interval_ns,
                         now_ns);
    um_rate_limiter_init(&sessions->unlimited.data, 0, config->rate_interval_ns, now_ns);
    um_rate_limiter_init(&sessions->unlimited.retransmit, 0, config->rate_interval_ns, now_ns);
    sessions->reactor = &context->reactor;
    sessions->links = &context->links;
    sessions->counters = &context->receiving.node.counters;
    sessions->table = um_map(sizeof *sessions->table * UM_PUBLICATION_SESSIONS_MAX);
    return sessions->table == NULL ? -ENOMEM : 0;
}

static void init_leader(um_context *context, const um_context_config *config)
{
    um_loop_leader_config leader = {.is_disabled = config->busy_wait || config->ipc_busy_wait,
                                    .spin_ns = config->spin_ns,
                                    .adaptive_spin_ns = config->adaptive_spin_ns,
                                    .coalesce_ns = config->coalesce_ns};
    um_loop_leader_init(&context->leader, &leader, &context->links, &context->receiving, &context->queues);
}

static void init_loop(um_context *context, const um_context_config *config)
{
    um_loop *loop = &context->loop;
    loop->config = (um_loop_config){
        .busy_wait = config->busy_wait, .ipc_busy_wait = config->ipc_busy_wait, .spin_ns = config->spin_ns};
    loop->reactor = &context->reactor;
    loop->links = &context->links;
    loop->receiving = &context->receiving;
    loop->sessions = &context->sessions;
    loop->queues = &context->queues;
    loop->leader = &context->leader;
    um_coalescing_init(&loop->coalescing, config->coalesce_ns, config->coalesce_max_ns);
    um_adaptive_spin_init(&loop->spin, config->adaptive_spin_ns);
}

int um_context_create(const um_context_config *config, um_context **created)
{
    um_context *context = um_map(sizeof *context);
    *created = context;
    if (context == NULL)
        return -ENOMEM;
    um_receiving_config receiving = {config->receive_batch, config->hold_datagrams, config->hold_messages,
                                     config->datagram_max_bytes, config->joins_datagrams};
    um_socket_config socket = socket_config(config);
    context->queues = (um_event_queues){.reactor = &context->reactor,
                                        .node = &context->receiving.node,
                                        .receiving = &context->receiving,
                                        .wake_at_ns = UM_NEVER_NS};
    context->receiving.control.link.fd = context->receiving.ipv6_control.link.fd = -1;
    context->links.authentication.scope = (enum um_authentication_scope)config->authentication_scope;
    context->links.authentication.tolerance_ns = config->authentication_tolerance_ns;
    init_loop(context, config);
    init_leader(context, config);
    int result = um_reactor_open(&context->reactor, &reactor_loop);
    if (result == 0 && config->busy_poll_us > 0)
        result = um_reactor_prefer_busy_poll(&context->reactor, config->busy_poll_us);
    if (result != 0)
        return result;
    context->reactor.error_step = "memory";
    result = um_links_open(&context->links, &socket, config->rings);
    context->links.ipv6_socket_config = socket;
    context->links.ipv6_socket_config.interface_ip = config->interface_ipv6;
    socket.send_buffer_bytes = config->lbtru.source_buffer_bytes;
    socket.receive_buffer_bytes = config->lbtru.receiver_buffer_bytes;
    context->links.lbtru_socket_config = socket;
    if (result == 0)
        result = open_sessions(context, config);
    if (result == 0)
        result = um_receiving_open(&context->receiving, &context->reactor, &context->links, &context->loop.coalescing,
                                   &receiving);
    return result;
}

void um_context_close(um_context *context)
{
    um_gate_shut(&context->gate);
    um_context_unblock(context);
    um_gate_await_empty(&context->gate);
    um_context_stop(context);
    while (context->receiving.subscriptions != NULL)
        um_subscription_close(context->receiving.subscriptions);
    while (context->queues.first != NULL)
        um_event_queue_close(context->queues.first);
    for (uint32_t i = 0; i < context->sessions.limit; i++)
        if (context->sessions.table[i].is_used)
            um_publication_session_shut(&context->sessions.table[i]);
    um_reactor_lock(&context->reactor);
    context->links.rings = NULL;
    um_reactor_unlock(&context->reactor);
    um_tap_counters ignored;
    um_tap_stop(&context->links.tap, &ignored);
    um_reactor_close(&context->reactor);
    /* The loop, which has ended, is the only user of the memory freed here; the rest may still be read. */
    um_receiving_close(&context->receiving);
    explicit_bzero(context->links.authentication.sets, sizeof context->links.authentication.sets);
    um_links_close(&context->links);
}

void um_context_free(um_context *context)
{
    um_unmap(context->sessions.table, sizeof *context->sessions.table * UM_PUBLICATION_SESSIONS_MAX);
    um_receiving_free(&context->receiving);
    um_reactor_free(&context->reactor);
    um_unmap(context, sizeof *context);
}

const char *um_context_failed_step(const um_context *context)
{
    return context->reactor.error_step ? context->reactor.error_step : "";
}

int um_context_set_keys(um_context *context, uint32_t key_set, const um_key_set *keys)
{
    if (key_set == 0 || key_set > UM_KEY_SETS_MAX || keys->count == 0 || keys->count > UM_KEYS_PER_SET)
        return -EINVAL;
    um_reactor_lock(&context->reactor);
    context->links.authentication.sets[key_set - 1] = *keys;
    int result = um_publication_sessions_rekey(&context->sessions, key_set);
    if (result == 0)
        result = um_receiving_rekey(&context->receiving, key_set);
    context->reactor.error_step = "authentication";
    um_reactor_unlock(&context->reactor);
    return result;
}

void um_context_set_nak_cutoff(um_context *context, bool is_cut_off)
{
    um_receiving_set_nak_cutoff(&context->receiving, NULL, is_cut_off);
}

int um_publication_session_open(um_context *context, um_source_session_config *config, uint16_t port_low,
                                uint16_t port_high, um_publication_session **session)
{
    return um_publication_sessions_open(&context->sessions, config, port_low, port_high, session);
}

int um_publication_session_open_tcp(um_context *context, um_source_session_config *config,
                                    const um_tcp_source_config *tcp, um_publication_session **session)
{
    return um_publication_sessions_open_tcp(&context->sessions, config, tcp, session);
}

int um_publication_session_open_ipc(um_context *context, um_source_session_config *config,
                                    const um_ipc_source_config *ipc, um_publication_session **session)
{
    return um_publication_sessions_open_ipc(&context->sessions, config, ipc, session);
}

int um_event_queue_open(um_context *context, const um_event_queue_config *config, um_event_queue **queue)
{
    return um_event_queues_open(&context->queues, config, queue);
}

/* ---- running ---- */

static void *run(void *argument)
{
    um_context *context = argument;
    pthread_setname_np(pthread_self(), "umstack-context");
    while (!atomic_load_explicit(&context->is_stopping, memory_order_relaxed))
        um_loop_pass(&context->loop, UM_NEVER_NS);
    return NULL;
}

int um_context_start(um_context *context)
{
    context->reactor.error_step = "thread";
    /* Signals are left to the application's threads: one of them may be waiting to be interrupted. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store(&context->reactor.is_threaded, true); /* before the thread's first pass, which reads it */
    int error = pthread_create(&context->thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        atomic_store(&context->reactor.is_threaded, false);
    return -error;
}

void um_context_stop(um_context *context)
{
    if (!um_reactor_is_threaded(&context->reactor))
        return;
    atomic_store(&context->is_stopping, true);
    um_reactor_wake_by(&context->reactor, 0);
    pthread_join(context->thread, NULL);
    atomic_store(&context->reactor.is_threaded, false);
}

void um_context_unblock(um_context *context)
{
    atomic_fetch_add(&context->reactor.unblock_count, 1);
    um_reactor_wake_by(&context->reactor, 0);
    um_event_queues_wake_all(&context->queues);
}

static int64_t process(um_context *context, int64_t timeout_ns)
{
    if (timeout_ns == 0)
        return um_loop_pass(&context->loop, 0);
    uint32_t unblocks = atomic_load(&context->reactor.unblock_count);
    int64_t end_ns = timeout_ns < 0 ? UM_NEVER_NS : um_clock_ns() + timeout_ns;
    int64_t handled = 0;
    do
        handled += um_loop_pass(&context->loop, end_ns);
    while (atomic_load(&context->reactor.unblock_count) == unblocks && um_clock_ns() < end_ns);
    if (atomic_load(&context->reactor.unblock_count) != unblocks)
        um_reactor_pass_on_wake(&context->reactor);
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

bool um_context_wait(um_context *context, int fd, int64_t timeout_ns)
{
    int64_t end_ns = timeout_ns < 0 ? UM_NEVER_NS : um_clock_ns() + timeout_ns;
    return um_loop_leader_wait_descriptor(&context->leader, fd, end_ns);
}

/* ---- facts ---- */

uint32_t um_context_receive_buffer(um_context *context)
{
    return atomic_load_explicit(&context->receiving.least_buffer_bytes, memory_order_relaxed);
}

uint64_t um_context_ephemeral_ports(um_context *context)
{
    return context->receiving.node.counters.receive_ports_ephemeral;
}

uint32_t um_context_groups(um_context *context, um_address *groups, uint32_t max)
{
    uint32_t count = 0;
    um_reactor_lock(&context->reactor);
    for (uint32_t i = 0; i < context->receiving.group_limit && count < max; i++)
        if (context->receiving.groups[i].is_used && !um_group_is_connection(&context->receiving.groups[i]))
            groups[count++] = context->receiving.groups[i].link.local;
    um_reactor_unlock(&context->reactor);
    return count;
}

static void set_interface(um_socket_config *config, const char *name, um_ip ip)
{
    strncpy(config->interface, name, sizeof config->interface - 1);
    config->interface_ip = ip;
}

int um_context_follow_interface(um_context *context, const char *name, um_ip ip, um_ip ipv6, bool has_returned)
{
    um_reactor_lock(&context->reactor);
    set_interface(&context->links.socket_config, name, ip);
    set_interface(&context->links.lbtru_socket_config, name, ip);
    set_interface(&context->links.ipv6_socket_config, name, ipv6);
    int receiving = um_receiving_follow_interface(&context->receiving, has_returned);
    int sending = um_publication_sessions_follow_interface(&context->sessions);
    um_reactor_unlock(&context->reactor);
    return receiving != 0 ? receiving : sending;
}

void um_context_set_datagram_max(um_context *context, uint32_t bytes, uint32_t ipv6_bytes)
{
    um_reactor_lock(&context->reactor);
    for (uint32_t i = 0; i < context->sessions.limit; i++) {
        um_publication_session *session = &context->sessions.table[i];
        bool is_ipv6 = um_ip_is_v6(session->core.config.group.ip);
        if (session->is_used)
            um_source_session_set_datagram_max(&session->core, is_ipv6 ? ipv6_bytes : bytes);
    }
    um_reactor_unlock(&context->reactor);
}

bool um_context_session_config(um_context *context, const um_session_id *id, um_receiver_session_config *config)
{
    um_reactor_lock(&context->reactor);
    const um_receiver_session *session = um_node_find_session(&context->receiving.node, id);
    if (session != NULL)
        *config = session->config;
    um_reactor_unlock(&context->reactor);
    return session != NULL;
}

int um_context_take_ended(um_context *context, um_session_id *id)
{
    um_receiving *receiving = &context->receiving;
    um_reactor_lock(&context->reactor);
    uint32_t count = receiving->ended_count - receiving->ended_taken;
    if (count > UM_RECEIVING_ENDED_MAX)
        receiving->ended_taken = receiving->ended_count;
    else if (count > 0)
        *id = receiving->ended[receiving->ended_taken++ % UM_RECEIVING_ENDED_MAX];
    um_reactor_unlock(&context->reactor);
    return count > UM_RECEIVING_ENDED_MAX ? -EOVERFLOW : count > 0;
}

uint32_t um_context_take_recoveries(um_context *context, um_begun_recovery *begun, uint32_t max)
{
    um_reactor_lock(&context->reactor);
    uint32_t count = um_receiving_take_recoveries(&context->receiving, begun, max);
    um_reactor_unlock(&context->reactor);
    return count;
}

void um_context_watch_recoveries(um_context *context, int event_fd)
{
    um_reactor_lock(&context->reactor);
    context->receiving.recoveries_fd = event_fd;
    um_reactor_unlock(&context->reactor);
}

/* ---- the tap ---- */

int um_context_tap_start(um_context *context, const um_tap_config *config)
{
    if (!um_gate_enter(&context->gate))
        return UM_CLOSED;
    um_reactor_lock(&context->reactor);
    int result = um_tap_start(&context->links.tap, config);
    um_reactor_unlock(&context->reactor);
    um_gate_leave(&context->gate);
    return result;
}

/* Without the lock, because the tap's thread may have much to write. */
int um_context_tap_stop(um_context *context, um_tap_counters *counters)
{
    return um_tap_stop(&context->links.tap, counters);
}

void um_context_tap_read(const um_context *context, um_tap_counters *counters)
{
    um_tap_read(&context->links.tap, counters);
}

bool um_context_tap_is_running(const um_context *context)
{
    return um_tap_is_running(&context->links.tap);
}

void um_context_tap_datagram(um_context *context, bool sent, um_address from, um_address to, const char *data,
                             uint32_t length)
{
    um_tap_datagram(&context->links.tap, sent, from, to, (const uint8_t *)data, length, um_clock_wall_ns());
}
