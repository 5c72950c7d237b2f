/* Adds hosts, sessions, sources, receivers and joins to a world, removes and inspects them. */
#include "core/delivery/delivery_controller.h"
#include "sim/host.h"
#include "sim/network.h"
#include "sim/request_connections.h"

enum { HOST_IP = 0x0a000001, CONTROL_PORT = 40000, RESUME_POINTS = 256 };

int um_sim_add_host(um_sim_world *world, const um_sim_host_config *config)
{
    if (world->host_count == UM_SIM_HOSTS_MAX)
        return -ENOSPC;
    size_t reorder_bytes =
        um_reorder_footprint(config->hold_datagrams, config->datagram_max_bytes, config->hold_messages);
    if (reorder_bytes == 0 || config->inbox_datagrams == 0 || config->receive_batch == 0 ||
        config->path_bytes > UM_SIM_DATAGRAM_BYTES || config->datagram_max_bytes > UM_SIM_DATAGRAM_BYTES)
        return -EINVAL;
    um_sim_host *host = um_sim_take(world, sizeof *host);
    um_node *node = um_sim_take(world, sizeof *node);
    void *reorder_memory = um_sim_take(world, reorder_bytes);
    uint32_t *inbox = um_sim_take(world, config->inbox_datagrams * sizeof *inbox);
    void *resume_memory = um_sim_take(world, um_resume_points_footprint(RESUME_POINTS));
    if (host == NULL || node == NULL || reorder_memory == NULL || inbox == NULL || resume_memory == NULL)
        return -ENOMEM;
    host->world = world;
    host->config = *config;
    host->index = world->host_count;
    host->address = (um_address){um_sim_ip(world, HOST_IP + host->index), CONTROL_PORT};
    host->inbox = inbox;
    host->requested_ns = host->due_ns = UM_NEVER_NS;
    host->on_arrival = um_sim_on_arrival;
    host->on_request = um_sim_on_request;
    host->node = node;
    um_node_init(node);
    um_resume_points_init(&node->resume_points, resume_memory, RESUME_POINTS);
    um_reorder_init(&node->store, reorder_memory, config->hold_datagrams, config->datagram_max_bytes,
                    config->hold_messages);
    um_sim_link_init(&host->link, host, host->address);
    host->limits.is_new_only = world->transport == UM_TRANSPORT_LBTRU;
    int64_t now_ns = um_sim_local_ns(host);
    um_rate_limiter_init(&host->limits.data, config->data_rate_bps, config->rate_interval_ns, now_ns);
    um_rate_limiter_init(&host->limits.retransmit, config->retransmit_rate_bps, config->rate_interval_ns, now_ns);
    world->hosts[world->host_count] = host;
    return (int)world->host_count++;
}

void um_sim_kill_host(um_sim_world *world, int host)
{
    world->hosts[host]->is_dead = true;
}

int um_sim_set_faults(um_sim_world *world, int host, const um_sim_faults *faults)
{
    if (faults->delay_ns < 0 || faults->jitter_ns < 0 || faults->reorder_ns < 0)
        return -EINVAL;
    world->hosts[host]->faults = *faults;
    world->hosts[host]->is_in_burst = false;
    return 0;
}

int um_sim_set_path(um_sim_world *world, int host_index, uint32_t path_bytes)
{
    if (path_bytes < UM_DATAGRAM_BYTES_MIN || path_bytes > UM_SIM_DATAGRAM_BYTES)
        return -EINVAL;
    um_sim_host *host = world->hosts[host_index];
    host->config.path_bytes = path_bytes;
    for (uint32_t i = 0; i < world->session_count; i++)
        if (world->sessions[i]->host == host && !world->sessions[i]->is_deleted)
            um_source_session_set_datagram_max(&world->sessions[i]->core, path_bytes);
    return 0;
}

int um_sim_add_session(um_sim_world *world, int host, const um_sim_session_config *config)
{
    size_t bytes = um_source_session_footprint(config);
    if (bytes == 0)
        return -EINVAL;
    if (world->session_count == UM_SIM_SESSIONS_MAX)
        return -ENOSPC;
    um_sim_session *session = um_sim_take(world, sizeof *session);
    void *memory = um_sim_take(world, bytes);
    if (session == NULL || memory == NULL)
        return -ENOMEM;
    session->host = world->hosts[host];
    int64_t now_ns = um_sim_local_ns(session->host);
    /* LBT-RU datagrams have the address that receivers connect to as their source. */
    um_address from = {session->host->address.ip, config->nak_port};
    world->transport = config->transport;
    um_sim_link_init(&session->link, session->host,
                     config->transport == UM_TRANSPORT_LBTRU ? from : session->host->address);
    um_source_session_init(&session->core, memory, config, &session->link.base, &session->host->limits, now_ns);
    um_source_session_set_datagram_max(&session->core, session->host->config.path_bytes);
    session->due_ns = now_ns;
    world->sessions[world->session_count] = session;
    um_sim_request(session->host, now_ns);
    return (int)world->session_count++;
}

int um_sim_add_source(um_sim_world *world, int session, const um_sim_source_config *config)
{
    if (world->source_count == UM_SIM_SOURCES_MAX)
        return -ENOSPC;
    um_sim_source *source = um_sim_take(world, sizeof *source);
    void *memory = um_sim_take(world, um_source_footprint(config));
    if (source == NULL || memory == NULL)
        return -ENOMEM;
    source->session = world->sessions[session];
    um_source_init(&source->core, memory, config, &source->session->core);
    source->session->source_count++;
    world->sources[world->source_count] = source;
    return (int)world->source_count++;
}

int um_sim_retain(um_sim_world *world, int index, const um_sim_retention_config *config)
{
    um_sim_source *source = world->sources[index];
    if (source->retention != NULL)
        return -EBUSY;
    um_retention *retention = um_sim_take(world, sizeof *retention);
    void *memory = um_sim_take(world, um_retention_footprint(config));
    if (retention == NULL || memory == NULL)
        return -ENOMEM;
    um_retention_init(retention, memory, config, &source->session->core, source->core.topic_index,
                      um_sim_next_sqn(world, index));
    source->retention = retention;
    return 0;
}

void um_sim_delete_source(um_sim_world *world, int index)
{
    um_sim_source *source = world->sources[index];
    if (source->is_deleted)
        return;
    source->is_deleted = true;
    if (source->retention != NULL)
        um_retention_fini(source->retention);
    um_source_fini(&source->core);
    if (--source->session->source_count > 0)
        return;
    um_source_session_close(&source->session->core);
    source->session->is_deleted = true;
}

int um_sim_add_receiver(um_sim_world *world, int host, const um_sim_receiver_config *config)
{
    size_t bytes =
        um_queue_footprint(config->block_count, config->block_rows, config->block_bytes, config->message_max_bytes);
    if (bytes == 0 || config->read_rows == 0)
        return -EINVAL;
    if (world->receiver_count == UM_SIM_RECEIVERS_MAX)
        return -ENOSPC;
    um_sim_receiver *receiver = um_sim_take(world, sizeof *receiver);
    void *memory = um_sim_take(world, bytes);
    if (receiver == NULL || memory == NULL)
        return -ENOMEM;
    receiver->host = world->hosts[host];
    receiver->config = *config;
    receiver->index = world->receiver_count;
    um_queue_init(&receiver->queue, memory, config->block_count, config->block_rows, config->block_bytes,
                  config->message_max_bytes);
    receiver->queue.hold_ns = config->hold_ns;
    receiver->core.config = (um_receiver_config){.ordered_delivery = (um_ordered_delivery)config->ordered_delivery,
                                                 .map_entries_max = config->map_entries_max,
                                                 .burst_loss_max = config->burst_loss_max,
                                                 .loss_check_interval_ns = config->loss_check_interval_ns};
    receiver->core.queue = &receiver->queue;
    receiver->core.store = &receiver->host->node->store;
    receiver->core.has_begun_otr = &receiver->host->node->has_begun_otr;
    receiver->core.context_counters = &receiver->host->node->counters;
    um_receiver_counters_reset(&receiver->core.counters);
    if (!um_node_add_queue(receiver->host->node, &receiver->queue))
        return -ENOSPC;
    um_sim_receiver **last = &receiver->host->receivers;
    while (*last != NULL)
        last = &(*last)->next_of_host;
    *last = receiver;
    world->receivers[world->receiver_count++] = receiver;
    um_sim_set_reading(world, (int)receiver->index, config->read_interval_ns, config->read_rows);
    return (int)receiver->index;
}

static um_link *open_receive_port(um_sim_host *host)
{
    um_sim_link *link = um_sim_take(host->world, sizeof *link);
    if (link == NULL)
        return NULL;
    uint16_t port = (uint16_t)(UM_SIM_RECEIVE_PORT + host->receive_port_count++ % UM_SIM_RECEIVE_PORT);
    um_sim_link_init(link, host, (um_address){host->address.ip, port});
    return &link->base;
}

static um_receiver_session *open_transport(um_sim_host *host, const um_receiver_session_config *config)
{
    size_t bytes = um_receiver_session_footprint(config);
    um_receiver_session *session = bytes == 0 ? NULL : um_sim_take(host->world, sizeof *session);
    void *memory = bytes == 0 ? NULL : um_sim_take(host->world, bytes);
    if (session == NULL || memory == NULL)
        return NULL;
    um_link *link = config->id.transport == UM_TRANSPORT_LBTRU ? open_receive_port(host) : &host->link.base;
    if (link == NULL)
        return NULL;
    um_receiver_session_init(session, memory, config, link, &host->node->store, um_sim_local_ns(host));
    session->local = ((um_sim_link *)(void *)link)->from;
    return um_node_add_session(host->node, session) ? session : NULL;
}

int um_sim_join(um_sim_world *world, int receiver_index, int source_index, const um_sim_transport_config *config)
{
    if (world->join_count == UM_SIM_JOINS_MAX)
        return -ENOSPC;
    um_sim_receiver *receiver = world->receivers[receiver_index];
    um_sim_source *source = world->sources[source_index];
    um_sim_host *host = receiver->host;
    const um_source_session_config *session_config = &source->session->core.config;
    um_receiver_session_config full = *config;
    full.id = (um_session_id){{source->session->host->address.ip, session_config->nak_port},
                              session_config->group,
                              session_config->session_id,
                              session_config->transport,
                              0};
    full.receiver_id = um_sim_receiver_id(host);
    um_receiver_session *session = um_node_find_session(host->node, &full.id);
    if (session != NULL && session->has_ended)
        return -EAGAIN;
    um_sim_join_state *join = um_sim_take(world, sizeof *join);
    if (session == NULL)
        session = open_transport(host, &full);
    if (join == NULL || session == NULL)
        return -ENOMEM;
    uint32_t index = world->join_count;
    um_delivery_init(&join->core, &receiver->core, index + 1, index, source->core.topic_index,
                     session->config.nak_generation_ns);
    if (!um_receiver_session_map(session, &join->core, um_sim_local_ns(host)))
        return -ENOSPC;
    um_resume_points_apply(&host->node->resume_points, session, &join->core);
    join->session = join->transport = session;
    join->receiver = receiver;
    join->source = source;
    join->index = index;
    world->joins[world->join_count++] = join;
    if (!um_sim_begin_late_join(world, join))
        return -ENOMEM;
    um_node_wake(host->node, um_sim_local_ns(host));
    um_sim_request(host, um_sim_local_ns(host));
    return (int)index;
}

void um_sim_leave(um_sim_world *world, int index)
{
    um_sim_join_state *join = world->joins[index];
    um_receiver_session *session = join->session;
    if (session == NULL)
        return;
    if (session->controller_count == 1) {
        um_sim_close_transport(join->receiver->host, session);
        return;
    }
    um_sim_end_fetch(join);
    um_receiver_session_unmap(session, &join->core);
    join->session = NULL;
}

int um_sim_set_recovery(um_sim_world *world, int index, const um_sim_recovery_config *config)
{
    um_sim_receiver *receiver = world->receivers[index];
    if (config->look_ns <= 0 || config->late_join.outstanding_max == 0 || config->otr.outstanding_max == 0)
        return -EINVAL;
    receiver->recovery = *config;
    receiver->core.config.use_otr = config->use_otr;
    receiver->core.config.otr_initial_delay_ns = config->otr_initial_delay_ns;
    receiver->core.config.otr_caching_threshold = config->otr_caching_threshold;
    return 0;
}

int um_sim_set_peer_faults(um_sim_world *world, int host, const um_sim_peer_faults *faults)
{
    if (faults->delay_ns < 0 || faults->stall_ns < 0)
        return -EINVAL;
    world->hosts[host]->peer_faults = *faults;
    return 0;
}

int um_sim_jump_clock(um_sim_world *world, int index, int64_t ahead_ns)
{
    um_sim_host *host = world->hosts[index];
    if (ahead_ns < 0) /* the protocol runs on CLOCK_MONOTONIC, which never goes back */
        return -EINVAL;
    host->config.clock_offset_ns += ahead_ns;
    um_sim_service(host);
    return 0;
}

/* ---- inspection ---- */

void um_sim_probe_session(um_sim_world *world, int index, um_sim_session_probe *probe)
{
    um_source_session *session = &world->sessions[index]->core;
    *probe = (um_sim_session_probe){.tail = um_log_tail(&session->log),
                                    .publication_limit = atomic_load(&session->log.publication_limit),
                                    .sender_position = atomic_load(&session->sender_position),
                                    .sender_limit = session->sender_limit,
                                    .window_bytes = session->window_used_bytes,
                                    .next_sqn = session->next_sqn,
                                    .trail_sqn = session->trail_sqn,
                                    .retransmit_count = session->retransmit_count,
                                    .connected = atomic_load(&session->log.is_connected)};
}

const um_source_event *um_sim_last_event(const um_sim_world *world, int session)
{
    const um_source_events *events = &world->sessions[session]->core.events;
    return events->count == 0 ? NULL : &events->ring[(events->count - 1) % UM_SOURCE_EVENTS_MAX];
}

void um_sim_probe_join(um_sim_world *world, int index, um_sim_join_probe *probe)
{
    const um_sim_join_state *join = world->joins[index];
    *probe = (um_sim_join_probe){.state = (uint32_t)join->core.state,
                                 .next_sqn = join->core.next_sqn,
                                 .held_count = join->core.held_count,
                                 .gap_count = join->core.gap_count,
                                 .mapped = join->session != NULL};
    if (join->session != NULL) {
        probe->loss_count = join->session->losses.count;
        probe->transport_next_sqn = join->session->next_sqn;
    }
    if (join->connection != NULL) {
        probe->fetches = join->connection->is_active;
        probe->connections = join->connection->count;
    }
}

uint32_t um_sim_next_sqn(const um_sim_world *world, int source)
{
    return (uint32_t)atomic_load(&world->sources[source]->core.next_sqn);
}

const uint64_t *um_sim_session_counters(um_sim_world *world, int session)
{
    um_source_session_snapshot(&world->sessions[session]->core);
    return (const uint64_t *)&world->sessions[session]->core.counters;
}

const uint64_t *um_sim_source_counters(um_sim_world *world, int source)
{
    um_source_snapshot(&world->sources[source]->core);
    return (const uint64_t *)&world->sources[source]->core.counters;
}

const uint64_t *um_sim_transport_counters(um_sim_world *world, int join)
{
    um_receiver_session_snapshot(world->joins[join]->transport);
    return (const uint64_t *)&world->joins[join]->transport->counters;
}

const uint64_t *um_sim_receiver_counters(um_sim_world *world, int receiver)
{
    return (const uint64_t *)&world->receivers[receiver]->core.counters;
}

const uint64_t *um_sim_context_counters(um_sim_world *world, int host)
{
    return (const uint64_t *)&world->hosts[host]->node->counters;
}
