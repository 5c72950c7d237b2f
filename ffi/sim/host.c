#include "sim/host.h"

#include "core/receiver/status_reports.h"
#include "sim/network.h"
#include "sim/request_connections.h"
#include "sim/trace.h"

enum {
    PASSES_MAX = 64,
    PPM = 1000000,
    INLINE_BUDGET = 128, /* datagrams that a publisher sends on its own thread */
};

/* ---- reading ---- */

static uint32_t read_rows(um_sim_receiver *receiver, uint32_t max)
{
    um_sim_world *world = receiver->host->world;
    um_rows rows = um_queue_take(&receiver->queue, max);
    for (uint32_t i = rows.first; i < rows.first + rows.count; i++) {
        um_sim_note_row(world, receiver, rows.block, i);
        if (world->watcher.on_row != NULL)
            world->watcher.on_row(world->watcher.owner, receiver, rows.block, i);
    }
    if (receiver->kept.count > 0)
        um_queue_release(receiver->kept.block, receiver->kept.count);
    receiver->kept = rows;
    if (!receiver->config.keep_rows && rows.count > 0) {
        um_queue_release(rows.block, rows.count);
        receiver->kept.count = 0;
    }
    return rows.count;
}

/* Lets eager readers read all rows. Returns true if there were any. */
static bool read_eagerly(um_sim_host *host)
{
    bool any = false;
    for (um_sim_receiver *receiver = host->receivers; receiver != NULL; receiver = receiver->next_of_host) {
        if (receiver->config.read_interval_ns != 0)
            continue;
        while (read_rows(receiver, receiver->config.read_rows) > 0)
            any = true;
    }
    return any;
}

static void on_read(um_sim_world *world, uint32_t index, uint32_t detail);

static void schedule_reading(um_sim_receiver *receiver)
{
    um_sim_world *world = receiver->host->world;
    if (receiver->config.read_interval_ns == 0 || receiver->is_read_scheduled || receiver->host->is_dead)
        return;
    receiver->is_read_scheduled =
        um_sim_schedule(&world->events, world->now_ns + receiver->config.read_interval_ns, on_read, receiver->index, 0);
}

static void on_read(um_sim_world *world, uint32_t index, uint32_t detail)
{
    um_sim_receiver *receiver = world->receivers[index];
    (void)detail;
    receiver->is_read_scheduled = false;
    if (receiver->host->is_dead)
        return;
    if (receiver->config.read_interval_ns != 0)
        read_rows(receiver, receiver->config.read_rows);
    schedule_reading(receiver);
    um_sim_service(receiver->host);
}

void um_sim_set_reading(um_sim_world *world, int receiver_index, int64_t interval_ns, uint32_t rows)
{
    um_sim_receiver *receiver = world->receivers[receiver_index];
    receiver->config.read_interval_ns = interval_ns;
    receiver->config.read_rows = rows;
    schedule_reading(receiver);
    um_sim_service(receiver->host);
}

/* ---- receiving ---- */

static void deliver(um_sim_host *host, uint32_t slot, int64_t now_ns)
{
    um_sim_world *world = host->world;
    const um_sim_datagram *datagram = &world->datagrams[slot];
    um_rx rx = {.data = um_sim_bytes_of(world, slot),
                .length = datagram->length,
                .from = datagram->from,
                .to = datagram->to,
                .received_ns = now_ns};
    um_sim_note(world, datagram, UM_SIM_RECEIVED, (int32_t)host->index, UM_SIM_DROP_NONE);
    if (world->watcher.on_received != NULL)
        world->watcher.on_received(world->watcher.owner, host, datagram, um_sim_bytes_of(world, slot));
    um_node_on_data(host->node, &rx, now_ns);
    um_sim_release_datagram(world, slot);
}

static void take_arrivals(um_sim_host *host, int64_t now_ns)
{
    while (host->inbox_count > 0 && !um_node_review_queues(host->node, now_ns)) {
        for (uint32_t i = 0; i < host->config.receive_batch && host->inbox_count > 0; i++) {
            uint32_t slot = host->inbox[host->inbox_first];
            host->inbox_first = (host->inbox_first + 1) % host->config.inbox_datagrams;
            host->inbox_count--;
            deliver(host, slot, now_ns);
        }
        um_node_after_batch(host->node, now_ns);
    }
}

static void drop(um_sim_host *host, uint32_t slot, enum um_sim_drop_reason reason)
{
    um_sim_world *world = host->world;
    world->dropped_count++;
    um_sim_note(world, &world->datagrams[slot], UM_SIM_DROPPED, (int32_t)host->index, reason);
}

static void on_control(um_sim_host *host, uint32_t slot)
{
    um_sim_world *world = host->world;
    const um_sim_datagram *datagram = &world->datagrams[slot];
    for (uint32_t i = 0; i < world->session_count; i++) {
        um_sim_session *session = world->sessions[i];
        if (session->host != host || session->is_deleted || session->core.config.nak_port != datagram->to.port)
            continue;
        um_sim_note(world, datagram, UM_SIM_RECEIVED, (int32_t)host->index, UM_SIM_DROP_NONE);
        if (world->watcher.on_control != NULL)
            world->watcher.on_control(world->watcher.owner, host, datagram);
        int64_t now_ns = um_sim_local_ns(host);
        um_source_session_on_control(&session->core, datagram->from, um_sim_bytes_of(world, slot), datagram->length,
                                     now_ns);
        session->due_ns = now_ns;
        return;
    }
    drop(host, slot, UM_SIM_DROP_NO_PORT);
}

/* An LBT-RU session closes its port when it ends. */
static bool is_port_open(const um_sim_host *host, um_address to)
{
    for (uint32_t i = 0; i < host->node->session_count; i++)
        if (um_address_equal(host->node->sessions[i]->local, to))
            return true;
    return um_ip_is_multicast(to.ip);
}

void um_sim_on_arrival(um_sim_world *world, uint32_t host_index, uint32_t slot)
{
    um_sim_host *host = world->hosts[host_index];
    um_sim_datagram *datagram = &world->datagrams[slot];
    bool to_receivers = um_sim_goes_to_receivers(datagram->to);
    if (host->is_dead) {
        um_sim_release_datagram(world, slot);
        return;
    }
    if (!to_receivers) {
        on_control(host, slot);
        um_sim_release_datagram(world, slot);
    } else if (host->inbox_count == host->config.inbox_datagrams || !is_port_open(host, datagram->to)) {
        bool is_full = host->inbox_count == host->config.inbox_datagrams;
        drop(host, slot, is_full ? UM_SIM_DROP_INBOX : UM_SIM_DROP_NO_PORT);
        um_sim_release_datagram(world, slot);
    } else {
        host->inbox[(host->inbox_first + host->inbox_count++) % host->config.inbox_datagrams] = slot;
    }
    um_sim_service(host);
}

/* ---- the loop ---- */

void um_sim_close_transport(um_sim_host *host, um_receiver_session *session)
{
    um_status_reports_leave(session);
    uint32_t given_up = um_resume_points_save(&host->node->resume_points, session);
    UM_COUNT(host->node->counters.resume_points_dropped, given_up);
    for (uint32_t i = 0; i < host->world->join_count; i++) {
        um_sim_join_state *join = host->world->joins[i];
        if (join->session != session)
            continue;
        um_sim_end_fetch(join);
        um_receiver_session_unmap(session, &join->core);
        join->session = NULL;
    }
    um_node_remove_session(host->node, session);
}

static void reap(um_sim_host *host)
{
    um_receiver_session *finished;
    while ((finished = um_node_finished_session(host->node)) != NULL)
        um_sim_close_transport(host, finished);
}

static int64_t run_timers(um_sim_host *host, int64_t now_ns)
{
    um_sim_world *world = host->world;
    bool all = host->requested_ns != UM_NEVER_NS;
    host->requested_ns = UM_NEVER_NS;
    int64_t next_ns = um_node_tick(host->node, now_ns);
    for (uint32_t i = 0; i < world->session_count; i++) {
        um_sim_session *session = world->sessions[i];
        if (session->host != host || session->is_deleted)
            continue;
        if (all || session->due_ns <= now_ns)
            session->due_ns = um_source_session_tick(&session->core, now_ns);
        next_ns = um_earliest_ns(session->due_ns, next_ns);
    }
    reap(host);
    return next_ns;
}

static void on_timer(um_sim_world *world, uint32_t index, uint32_t detail)
{
    um_sim_host *host = world->hosts[index];
    (void)detail;
    if (host->due_ns > world->now_ns) /* an earlier event has run since and scheduled a later one */
        return;
    host->due_ns = UM_NEVER_NS;
    um_sim_service(host);
}

static void set_timer(um_sim_host *host, int64_t local_ns)
{
    um_sim_world *world = host->world;
    if (local_ns == UM_NEVER_NS)
        return;
    int64_t due_ns = um_sim_world_ns(host, local_ns);
    due_ns = due_ns < world->now_ns ? world->now_ns : due_ns;
    if (due_ns >= host->due_ns)
        return;
    host->due_ns = due_ns;
    if (!um_sim_schedule(&world->events, due_ns, on_timer, host->index, 0))
        um_sim_complain(world, "more than %d events are due", UM_SIM_EVENTS_MAX);
}

void um_sim_request(um_sim_host *host, int64_t local_ns)
{
    if (local_ns < host->requested_ns)
        host->requested_ns = local_ns;
    set_timer(host, local_ns);
}

void um_sim_service(um_sim_host *host)
{
    if (host->is_dead)
        return;
    int64_t now_ns = um_sim_local_ns(host);
    int64_t next_ns;
    int passes = 0;
    do {
        take_arrivals(host, now_ns);
        next_ns = run_timers(host, now_ns);
        /* Reading makes space in the queues for the datagrams that wait. */
    } while (read_eagerly(host) && passes++ < PASSES_MAX);
    um_node_review_queues(host->node, now_ns);
    next_ns = um_earliest_ns(next_ns, um_node_review_by_ns(host->node, now_ns));
    set_timer(host, next_ns);
    if (host->node->has_begun_otr)
        um_sim_take_recoveries(host);
}

void um_sim_on_request(um_sim_world *world, uint32_t join, uint32_t detail)
{
    (void)detail;
    if (um_sim_step_connection(world->joins[join]))
        um_sim_service(world->joins[join]->receiver->host);
}

/* ---- publishing: how a context performs the actions of a send ---- */

static void run_sender(um_sim_session *session, int64_t now_ns)
{
    um_source_session *core = &session->core;
    int64_t wake_ns = now_ns + um_source_timing_first_sm_ns(&core->timing);
    int sent = 1;
    while (sent > 0 && um_source_session_has_pending(core)) {
        sent = um_source_session_send(core, now_ns, INLINE_BUDGET);
        if (sent < 0 || atomic_load_explicit(&core->is_sender_blocked, memory_order_relaxed))
            wake_ns = now_ns;
    }
    um_sim_request(session->host, wake_ns);
}

static void act(um_sim_session *session, uint32_t actions, int64_t now_ns)
{
    if (actions & UM_ACTION_RUN_SENDER)
        run_sender(session, now_ns);
    if (actions & UM_ACTION_BATCH_STARTED)
        um_sim_request(session->host, now_ns + session->core.config.batch_interval_ns);
}

static um_sim_source *usable(um_sim_world *world, int index)
{
    um_sim_source *source = world->sources[index];
    return source->is_deleted || source->session->host->is_dead ? NULL : source;
}

int64_t um_sim_send(um_sim_world *world, int index, const uint8_t *data, uint32_t length, uint32_t flags)
{
    um_sim_source *source = usable(world, index);
    if (source == NULL)
        return UM_CLOSED;
    int64_t now_ns = um_sim_local_ns(source->session->host);
    uint32_t actions = 0;
    int64_t result = um_source_send(&source->core, data, length, flags, now_ns, &actions);
    act(source->session, actions, now_ns);
    return result;
}

int64_t um_sim_send_many(um_sim_world *world, int index, const uint8_t *data, const uint32_t *lengths, uint32_t count,
                         uint32_t flags)
{
    um_sim_source *source = usable(world, index);
    if (source == NULL)
        return UM_CLOSED;
    int64_t now_ns = um_sim_local_ns(source->session->host);
    um_staged_datagrams *staged = &source->session->core.staged;
    um_messages messages = {.data = data, .lengths = lengths, .count = count, .staged = staged};
    uint32_t actions = 0;
    uint64_t done_bytes;
    int64_t result = um_source_send_many(&source->core, &messages, flags, now_ns, &actions, &done_bytes);
    act(source->session, actions, now_ns);
    return result;
}

int64_t um_sim_flush(um_sim_world *world, int index)
{
    um_sim_source *source = usable(world, index);
    if (source == NULL)
        return UM_CLOSED;
    int64_t now_ns = um_sim_local_ns(source->session->host);
    uint32_t actions = 0;
    int64_t result = um_source_flush(&source->core, now_ns, &actions);
    act(source->session, actions, now_ns);
    return result;
}

int um_sim_claim(um_sim_world *world, int index, const uint8_t *data, uint32_t length)
{
    um_sim_source *source = usable(world, index);
    if (source == NULL)
        return UM_CLOSED;
    int result = um_source_claim_begin(&source->core, length, &source->claim);
    if (result == 0)
        memcpy(source->claim.payload, data, length);
    else
        run_sender(source->session, um_sim_local_ns(source->session->host));
    return result;
}

int64_t um_sim_commit(um_sim_world *world, int index, uint32_t flags)
{
    um_sim_source *source = usable(world, index);
    if (source == NULL)
        return UM_CLOSED;
    int64_t now_ns = um_sim_local_ns(source->session->host);
    uint32_t actions = 0;
    int64_t result = um_source_claim_commit(&source->core, &source->claim, flags, now_ns, &actions);
    act(source->session, actions, now_ns);
    return result;
}

void um_sim_abort(um_sim_world *world, int index)
{
    um_sim_source *source = usable(world, index);
    if (source == NULL)
        return;
    uint32_t actions = 0;
    source->session->has_aborted_claim = true;
    um_source_claim_abort(&source->core, &source->claim, &actions);
    act(source->session, actions, um_sim_local_ns(source->session->host));
}
