#include "sim/request_connections.h"

#include "core/delivery/delivery_fetch.h"
#include "core/delivery/order_map.h"
#include "sim/request_peer.h"

enum {
    REQUEST_BYTES_MAX = 1 << 16,
    RETRANSMISSION_NS = 5000000, /* delay of bytes while a host is partitioned */
    STARVED_NS = 1000000,
    REQUEST_PORT = 14391,
    ANSWERS_A_STEP = 16,
};

/* ---- pipes ---- */

static uint32_t space_of(const um_sim_pipe *pipe)
{
    return pipe->piece_count == UM_SIM_PIPE_PIECES_MAX ? 0 : UM_SIM_PIPE_BYTES - pipe->used;
}

static void put(um_sim_pipe *pipe, const uint8_t *data, uint32_t length, int64_t now_ns,
                const um_sim_peer_faults *faults)
{
    if (length == 0)
        return;
    int64_t from_ns = pipe->last_ns - faults->delay_ns > now_ns ? pipe->last_ns - faults->delay_ns : now_ns;
    int64_t takes_ns = faults->bps == 0 ? 0 : (int64_t)((uint64_t)length * 8 * 1000000000 / faults->bps);
    memcpy(pipe->bytes + pipe->used, data, length);
    pipe->used += length;
    pipe->last_ns = from_ns + takes_ns + faults->delay_ns;
    uint32_t at = (pipe->piece_first + pipe->piece_count++) % UM_SIM_PIPE_PIECES_MAX;
    pipe->pieces[at].arrives_ns = pipe->last_ns;
    pipe->pieces[at].bytes = length;
}

static void take(um_sim_pipe *pipe, uint32_t count)
{
    pipe->used -= count;
    pipe->arrived -= count;
    memmove(pipe->bytes, pipe->bytes + count, pipe->used);
}

/* Delivers the pieces that are due; while the path is cut, they are retried later. */
static void arrive(um_sim_pipe *pipe, int64_t now_ns, bool is_cut)
{
    while (pipe->piece_count > 0 && pipe->pieces[pipe->piece_first].arrives_ns <= now_ns) {
        if (is_cut) {
            pipe->pieces[pipe->piece_first].arrives_ns = now_ns + RETRANSMISSION_NS;
            return;
        }
        pipe->arrived += pipe->pieces[pipe->piece_first].bytes;
        pipe->piece_first = (pipe->piece_first + 1) % UM_SIM_PIPE_PIECES_MAX;
        pipe->piece_count--;
    }
}

static void empty(um_sim_pipe *pipe)
{
    *pipe = (um_sim_pipe){.bytes = pipe->bytes};
}

static int64_t next_arrival_ns(const um_sim_pipe *pipe)
{
    return pipe->piece_count == 0 ? UM_NEVER_NS : pipe->pieces[pipe->piece_first].arrives_ns;
}

/* ---- connections ---- */

static bool is_source_gone(const um_sim_join_state *join)
{
    return join->source->is_deleted || join->source->session->host->is_dead;
}

static void schedule(um_sim_world *world, um_sim_join_state *join, int64_t time_ns)
{
    um_sim_connection *connection = join->connection;
    time_ns = time_ns < world->now_ns ? world->now_ns : time_ns;
    if (time_ns >= connection->due_ns)
        return;
    connection->due_ns = time_ns;
    if (!um_sim_schedule(&world->events, time_ns, join->receiver->host->on_request, join->index, 0))
        um_sim_complain(world, "more than %d events are due", UM_SIM_EVENTS_MAX);
}

static void disconnect(um_sim_connection *connection)
{
    empty(&connection->to_source);
    empty(&connection->to_receiver);
    connection->is_open = connection->is_ending = connection->has_range = false;
    connection->skip = 0;
    um_fetch_on_disconnect(&connection->fetch);
}

static void open_connection(um_sim_world *world, um_sim_join_state *join)
{
    um_sim_connection *connection = join->connection;
    uint8_t request[UM_RANGE_REQUEST_BYTES_MAX];
    disconnect(connection);
    connection->core = (um_fetch_connection){0};
    um_fetch_on_connect(&connection->fetch, &connection->core);
    uint32_t length = um_fetch_request_range(&connection->fetch, request);
    connection->is_open = true;
    connection->is_ending = is_source_gone(join); /* refused */
    connection->count++;
    um_sim_peer_accept(world, join);
    put(&connection->to_source, request, length, world->now_ns, &join->source->session->host->peer_faults);
}

static bool make_connection(um_sim_world *world, um_sim_join_state *join)
{
    if (join->connection != NULL)
        return true;
    um_sim_connection *connection = um_sim_take(world, sizeof *connection);
    uint8_t *bytes = um_sim_take(world, 2 * UM_SIM_PIPE_BYTES);
    if (connection == NULL || bytes == NULL)
        return false;
    connection->to_source.bytes = bytes;
    connection->to_receiver.bytes = bytes + UM_SIM_PIPE_BYTES;
    connection->due_ns = UM_NEVER_NS;
    join->connection = connection;
    return true;
}

static bool begin_fetch(um_sim_world *world, um_sim_join_state *join, const um_fetch_plan *plan)
{
    if (!make_connection(world, join))
        return false;
    um_sim_connection *connection = join->connection;
    disconnect(connection);
    connection->fetch = (um_fetch){.id = join->session->config.id,
                                   .topic_index = join->core.topic_index,
                                   .epoch = join->core.fetch.epoch,
                                   .plan = *plan};
    um_fetch_begin(&connection->fetch);
    connection->is_active = true;
    world->fetch_count++;
    schedule(world, join, world->now_ns);
    return true;
}

bool um_sim_begin_late_join(um_sim_world *world, um_sim_join_state *join)
{
    const um_sim_recovery_config *config = &join->receiver->recovery;
    um_delivery *delivery = &join->core;
    if (join->source->retention == NULL)
        return true;
    delivery->request_port = (um_address){join->source->session->host->address.ip, REQUEST_PORT};
    if (!config->use_late_join && !delivery->has_resume)
        return true;
    um_fetch_plan plan = config->use_late_join ? config->late_join : config->otr;
    plan.is_otr = !config->use_late_join;
    if (delivery->has_resume)
        plan.bounds = (um_range_bounds){.has_low_sqn = true, .low_sqn = delivery->resume_sqn};
    um_delivery_fetch_begin(delivery, config->caching_proximity);
    return begin_fetch(world, join, &plan);
}

void um_sim_take_recoveries(um_sim_host *host)
{
    um_sim_world *world = host->world;
    host->node->has_begun_otr = false;
    for (uint32_t i = 0; i < world->join_count; i++) {
        um_sim_join_state *join = world->joins[i];
        um_delivery_fetch *fetch = &join->core.fetch;
        if (join->receiver->host != host || join->session == NULL || fetch->state == UM_DELIVERY_FETCH_IDLE ||
            fetch->kind != UM_DELIVERY_FETCH_OFF_TRANSPORT || fetch->is_taken)

            continue;
        fetch->is_taken = true;
        um_fetch_plan plan = join->receiver->recovery.otr;
        plan.is_otr = true;
        plan.bounds = (um_range_bounds){.has_low_sqn = true, .low_sqn = join->core.next_sqn};
        if (!begin_fetch(world, join, &plan))
            um_sim_complain(world, "no memory for the connection of join %u", i);
    }
}

void um_sim_end_fetch(um_sim_join_state *join)
{
    if (join->connection == NULL || !join->connection->is_active)
        return;
    disconnect(join->connection);
    join->connection->is_active = false;
}

/* ---- both ends ---- */

/* Returns the time until which the peer answers nothing; 0: it does not stall. */
static int64_t stalled_until_ns(const um_sim_world *world, const um_sim_connection *connection)
{
    bool stalls = !world->has_true_peers && world->now_ns >= connection->stalls_from_ns &&
                  world->now_ns < connection->stalls_until_ns;
    return stalls ? connection->stalls_until_ns : 0;
}

static void run_source(um_sim_world *world, um_sim_join_state *join)
{
    um_sim_connection *connection = join->connection;
    uint8_t bytes[UM_SIM_ANSWER_BYTES_MAX];
    um_sim_answers answers = {.bytes = bytes};
    if (is_source_gone(join))
        connection->is_ending = true;
    if (stalled_until_ns(world, connection) != 0)
        return;
    for (uint32_t i = 0; i < ANSWERS_A_STEP && !connection->is_ending; i++) {
        uint32_t space = space_of(&connection->to_receiver);
        if (space < sizeof bytes)
            return; /* wait until the receiver has read some */
        connection->is_ending = !um_sim_peer_answer(world, join, connection->to_source.bytes,
                                                    connection->to_source.arrived, UM_LBMC_MESSAGE_BYTES_MAX, &answers);
        take(&connection->to_source, answers.consumed);
        put(&connection->to_receiver, bytes, answers.length, world->now_ns, &join->source->session->host->peer_faults);
        if (answers.length == 0)
            return;
    }
}

static void check_outstanding(um_sim_world *world, um_sim_join_state *join)
{
    const um_delivery_fetch *fetch = &join->core.fetch;
    uint32_t most = join->connection->fetch.plan.outstanding_max, outstanding = 0;
    if (fetch->state == UM_DELIVERY_FETCH_IDLE || fetch->state == UM_DELIVERY_FETCH_AWAITS_RANGE)
        return;
    for (uint32_t sqn = join->core.next_sqn; um_serial_before(sqn, fetch->requested); sqn++)
        outstanding += um_order_map_is_gap(&join->core, sqn) && !um_delivery_is_past_lost(&join->core, sqn);
    if (outstanding > most)
        um_sim_complain(world, "t=%lld ns: join %u has %u messages requested, the limit is %u",
                        (long long)world->now_ns, join->index, outstanding, most);
}

static void wake_node(const um_fetch *fetch, um_sim_host *host)
{
    if (fetch->wakes_node)
        um_node_wake(host->node, um_sim_local_ns(host)); /* a tick follows the step */
}

static void attend(um_sim_world *world, um_sim_join_state *join, um_receiver_session *session, um_delivery *delivery)
{
    um_sim_host *host = join->receiver->host;
    int action = um_fetch_attend(&join->connection->fetch, session, delivery, um_sim_local_ns(host));
    wake_node(&join->connection->fetch, host);
    if (action == UM_FETCH_CONNECT)
        open_connection(world, join);
    else if (action == UM_FETCH_DISCONNECT)
        disconnect(join->connection);
    else if (action != UM_FETCH_WAIT && action != UM_FETCH_STEP) /* each event runs a step anyway */
        um_sim_end_fetch(join);
}

/* The equivalent of umstack/recovery/client.py, which uses a socket. */
static void run_receiver(um_sim_world *world, um_sim_join_state *join)
{
    um_sim_host *host = join->receiver->host;
    um_sim_connection *connection = join->connection;
    um_fetch *fetch = &connection->fetch;
    um_receiver_session *session;
    um_delivery *delivery = um_fetch_find(fetch, host->node, &join->receiver->core, &session);
    uint8_t requests[REQUEST_BYTES_MAX];
    if (delivery == NULL) {
        um_sim_end_fetch(join);
        return;
    }
    uint32_t space = space_of(&connection->to_source);
    int64_t now_ns = um_sim_local_ns(host);
    delivery->fetch.received_ns = now_ns;
    int result = um_fetch_step(fetch, session, delivery, connection->to_receiver.bytes, connection->to_receiver.arrived,
                               requests, space < sizeof requests ? space : sizeof requests, now_ns);
    wake_node(fetch, host);
    if (result != 0) {
        um_sim_end_fetch(join);
        return;
    }
    take(&connection->to_receiver, fetch->consumed);
    put(&connection->to_source, requests, fetch->written, world->now_ns, &join->source->session->host->peer_faults);
    check_outstanding(world, join);
    if (connection->is_open && connection->is_ending && connection->to_receiver.piece_count == 0 && !fetch->is_starved)
        disconnect(connection);
    attend(world, join, session, delivery);
}

bool um_sim_step_connection(um_sim_join_state *join)
{
    um_sim_connection *connection = join->connection;
    um_sim_host *host = join->receiver->host, *source_host = join->source->session->host;
    um_sim_world *world = host->world;
    if (world->now_ns < connection->due_ns) /* an earlier event has run since and scheduled a later one */
        return false;
    connection->due_ns = UM_NEVER_NS;
    if (!connection->is_active || host->is_dead)
        return false;
    bool is_cut = host->faults.partitioned || source_host->faults.partitioned;
    arrive(&connection->to_source, world->now_ns, is_cut);
    arrive(&connection->to_receiver, world->now_ns, is_cut);
    um_sim_digest(world, connection->to_source.arrived * 31u + connection->to_receiver.arrived);
    if (connection->is_open)
        run_source(world, join);
    run_receiver(world, join);
    if (connection->is_active) {
        int64_t look_ns = connection->fetch.is_starved ? STARVED_NS : join->receiver->recovery.look_ns;
        schedule(world, join, world->now_ns + look_ns);
        schedule(world, join, next_arrival_ns(&connection->to_receiver));
        schedule(world, join, next_arrival_ns(&connection->to_source));
    }
    return true;
}

/* ---- bounds ---- */

static void check_retention(um_sim_world *world, const um_sim_source *source, uint32_t index)
{
    const um_retention *retention = source->retention;
    uint32_t count = retention->next_sqn - retention->first_sqn;
    if ((um_retention_bytes(retention) > retention->config.size_limit_bytes && count > 1) ||
        count > retention->index_mask + 1)
        um_sim_complain(world, "t=%lld ns: source %u retains %u messages of %llu bytes, the limit is %llu",
                        (long long)world->now_ns, index, count, (unsigned long long)um_retention_bytes(retention),
                        (unsigned long long)retention->config.size_limit_bytes);
}

void um_sim_check_recovery(um_sim_world *world)
{
    for (uint32_t i = 0; i < world->source_count; i++)
        if (world->sources[i]->retention != NULL && !world->sources[i]->is_deleted)
            check_retention(world, world->sources[i], i);
}
