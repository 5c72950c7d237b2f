/* One file, because groups, sessions and delivery share the context lock and the table of groups. */
#include "io/receiving.h"

#include <stdlib.h>
#include <sys/eventfd.h>

#include "authentication/tagging_link.h"
#include "authentication/verifiers.h"
#include "core/delivery/delivery_controller.h"
#include "core/receiver/status_reports.h"
#include "core/receiver/topic_reports.h"
#include "core/wire/lbtrm_run.h"
#include "os/clock.h"
#include "os/memory.h"

enum {
    RECEIVES_PER_PASS = 8,
    RING_RECEIVES_PER_PASS = 12, /* usually receives all datagrams of a coalescing interval */
    PREFETCHED_AHEAD = 8,
    RESUME_POINTS = 16384,
    ENDED_MIN = 16,     /* entries of the first list of ended sources */
    HEADERS_BYTES = 64, /* all that is read of a datagram here if its payload stays in the frame */
};

/* A receiving session's memory: the session, its loss map and table, in one mapping. */
typedef struct session_block {
    um_receiver_session core;
    um_session_verifier verifier; /* with keys, as is the link for datagrams to the source */
    um_tagging_link tagging;
    um_tap_link tapped; /* LBT-RU: sends to the source by the session's own socket */
    um_group *group;
    um_tcp_connection connection; /* over TCP */
    um_ipc_connection ipc;        /* over LBT-IPC */
    size_t memory_bytes;
} session_block;

/* ---- groups, ports and sessions ---- */

static um_group *find_group(um_receiving *receiving, um_address address)
{
    um_group *unused = NULL;
    for (uint32_t i = 0; i < UM_RECEIVING_GROUPS_MAX; i++) {
        um_group *group = &receiving->groups[i];
        if (group->is_used && !um_group_is_connection(group) && um_address_equal(group->link.local, address))
            return group;
        if (!group->is_used && unused == NULL)
            unused = group;
    }
    return unused;
}

/* Reports a group to the loop unless a reader waits for it or full queues hold it back. */
static void update_report(um_receiving *receiving, uint32_t index)
{
    um_group *group = &receiving->groups[index];
    bool is_reported = !group->is_unwatched && !group->is_held;
    if (!group->is_used || is_reported == group->is_reported)
        return;
    group->is_reported = is_reported;
    if (group->connection != NULL)
        um_tcp_connection_report(group->connection, is_reported);
    else if (group->ipc != NULL)
        um_ipc_connection_report(group->ipc, is_reported);
    else if (is_reported)
        um_reactor_watch_again(receiving->reactor, group->link.fd, UM_WATCH_GROUP, index);
    else
        um_reactor_unwatch(receiving->reactor, group->link.fd, UM_WATCH_GROUP, index);
}

/* A group is held while all of its sessions are. */
static void update_holds(um_receiving *receiving)
{
    const um_node *node = &receiving->node;
    for (uint32_t i = 0; i < receiving->group_limit; i++)
        receiving->groups[i].is_held = receiving->groups[i].session_count > 0;
    for (uint32_t i = 0; i < node->session_count; i++)
        ((session_block *)node->sessions[i])->group->is_held &= node->sessions[i]->is_held;
    for (uint32_t i = 0; i < receiving->group_limit; i++)
        update_report(receiving, i);
}

bool um_receiving_review_queues(um_receiving *receiving, int64_t now_ns)
{
    bool is_held = um_node_review_queues(&receiving->node, now_ns);
    if (UM_UNLIKELY(receiving->hold_changes != receiving->node.hold_changes)) {
        receiving->hold_changes = receiving->node.hold_changes;
        update_holds(receiving);
    }
    return is_held;
}

/* Takes an unused entry. Returns its index. */
static uint32_t take_group(um_receiving *receiving, um_group *group)
{
    uint32_t index = (uint32_t)(group - receiving->groups);
    receiving->group_changes++;
    group->session_count = 0;
    group->is_unwatched = false;
    group->is_held = false;
    group->connection = NULL;
    group->ipc = NULL;
    group->is_used = true;
    if (index >= receiving->group_limit)
        receiving->group_limit = index + 1;
    return index;
}

/* Takes an unused entry whose socket is open; it receives from now on. */
static int add_group(um_receiving *receiving, um_group *group)
{
    uint32_t granted = group->link.granted_receive_bytes;
    if (receiving->least_buffer_bytes == 0 || granted < receiving->least_buffer_bytes)
        receiving->least_buffer_bytes = granted;
    uint32_t index = take_group(receiving, group);
    receiving->is_reading_rings = true;
    int result = um_reactor_watch_rings(receiving->reactor, receiving->links->rings, true);
    if (result != 0)
        return result;
    result = um_reactor_watch(receiving->reactor, group->link.fd, UM_WATCH_GROUP, index);
    group->is_reported = true;
    update_report(receiving, index);
    return result;
}

static int join_group(um_receiving *receiving, um_address address, um_group **joined)
{
    um_group *group = find_group(receiving, address);
    receiving->reactor->error_step = "group table";
    if (group == NULL)
        return -ENOSPC;
    *joined = group;
    if (group->is_used)
        return 0;
    const um_socket_config *config = um_links_config_for(receiving->links, address);
    receiving->reactor->error_step = UM_LINKS_NO_IPV6;
    if (config == NULL)
        return -EADDRNOTAVAIL;
    int result = um_socket_open_group(&group->link, config, address);
    receiving->reactor->error_step = group->link.failed_step;
    return result == 0 ? add_group(receiving, group) : result;
}

/* Opens the first free port of the session's range, or any port if all are taken. */
static int open_receive_port(um_receiving *receiving, const um_receiver_session_config *config, um_group **opened)
{
    const um_socket_config *socket = &receiving->links->lbtru_socket_config;
    um_group *group = find_group(receiving, (um_address){0});
    receiving->reactor->error_step = "group table";
    if (group == NULL)
        return -ENOSPC;
    *opened = group;
    int result = -EADDRINUSE;
    for (uint32_t port = config->port_low; port <= config->port_high && result == -EADDRINUSE; port++)
        result = um_socket_open_receiver(&group->link, socket, (uint16_t)port);
    if (result == -EADDRINUSE) {
        UM_COUNT(receiving->node.counters.receive_ports_ephemeral, 1);
        result = um_socket_open_receiver(&group->link, socket, 0);
    }
    receiving->reactor->error_step = group->link.failed_step;
    return result == 0 ? add_group(receiving, group) : result;
}

/* Takes an entry for a connection, which connects later. */
static int take_connection_entry(um_receiving *receiving, um_group **opened)
{
    um_group *group = find_group(receiving, (um_address){0});
    receiving->reactor->error_step = "group table";
    if (group == NULL)
        return -ENOSPC;
    memset(&group->link, 0, sizeof group->link);
    group->link.fd = -1;
    take_group(receiving, group);
    *opened = group;
    return 0;
}

/* Opens the connection of an initialized session over TCP or LBT-IPC; it is read as a group is. */
static int open_connection(um_receiving *receiving, session_block *block, const um_key_set *keys)
{
    um_group *group = block->group;
    uint32_t index = (uint32_t)(group - receiving->groups), *changes = &receiving->group_changes;
    um_link_counters *counters = &group->link.counters;
    bool is_ipc = block->core.config.id.transport == UM_TRANSPORT_LBTIPC;
    receiving->reactor->error_step = "memory";
    int result = is_ipc ? um_ipc_connection_open(&block->ipc, receiving->reactor, &receiving->node, &block->core, index,
                                                 changes, counters)
                        : um_tcp_connection_open(&block->connection, receiving->reactor, &receiving->node, &block->core,
                                                 index, &receiving->links->socket_config, changes, counters, keys);
    if (result != 0)
        return result;
    group->connection = is_ipc ? NULL : &block->connection;
    group->ipc = is_ipc ? &block->ipc : NULL;
    group->is_reported = true;
    receiving->connection_count++;
    receiving->ipc_count += is_ipc;
    update_report(receiving, index);
    return 0;
}

static int open_endpoint(um_receiving *receiving, const um_receiver_session_config *config, um_group **opened)
{
    if (um_transport_is_stream(config->id.transport))
        return take_connection_entry(receiving, opened);
    return config->id.transport == UM_TRANSPORT_LBTRU ? open_receive_port(receiving, config, opened)
                                                      : join_group(receiving, config->id.group, opened);
}

static void leave_group(um_receiving *receiving, um_group *group)
{
    if (--group->session_count > 0)
        return;
    receiving->group_changes++;
    if (um_group_is_connection(group)) {
        receiving->connection_count--;
        receiving->ipc_count -= group->ipc != NULL;
        if (group->ipc != NULL)
            um_ipc_connection_close(group->ipc);
        else
            um_tcp_connection_close(group->connection);
    } else if (group->is_unwatched) { /* the reader that waits for the socket would keep it open */
        shutdown(group->link.fd, SHUT_RDWR);
    }
    um_links_close_socket(receiving->links, &group->link);
    group->connection = NULL;
    group->ipc = NULL;
    group->is_used = false;
    while (receiving->group_limit > 0 && !receiving->groups[receiving->group_limit - 1].is_used)
        receiving->group_limit--;
    if (receiving->group_limit == 0) {
        receiving->is_reading_rings = false;
        um_reactor_watch_rings(receiving->reactor, receiving->links->rings, false);
    }
}

/* Returns true if the source of a session has another session that is received from the group's socket. */
static bool has_other_session(const um_receiving *receiving, const um_group *group, um_ip source_ip)
{
    for (uint32_t i = 0; i < receiving->node.session_count; i++) {
        const session_block *other = (const session_block *)receiving->node.sessions[i];
        if (other->group == group && um_ip_equal(other->core.config.id.source.ip, source_ip))
            return true;
    }
    return false;
}

/* Joins or leaves the source of a session that is not in the node, if groups are joined per source. */
static int set_source(um_receiving *receiving, um_group *group, const um_session_id *id, bool is_joined)
{
    const um_socket_config *config = um_links_config_for(receiving->links, id->group);
    if (config == NULL || !config->is_source_specific || id->transport != UM_TRANSPORT_LBTRM ||
        has_other_session(receiving, group, id->source.ip))
        return 0;
    int result = um_socket_set_source(&group->link, config, id->source.ip, is_joined);
    receiving->reactor->error_step = group->link.failed_step;
    return result;
}

static void leave_endpoint(um_receiving *receiving, um_group *group, const um_session_id *id)
{
    set_source(receiving, group, id, false);
    leave_group(receiving, group);
}

static um_control_sender *control_for(um_receiving *receiving, um_ip peer)
{
    return um_ip_is_v6(peer) ? &receiving->ipv6_control : &receiving->control;
}

/* Opens the socket for datagrams to a source of LBT-RM unless it is open. */
static int need_control(um_receiving *receiving, um_ip source)
{
    um_control_sender *control = control_for(receiving, source);
    um_links *links = receiving->links;
    int result = um_control_sender_need(control, links,
                                        um_ip_is_v6(source) ? &links->ipv6_socket_config : &links->socket_config);
    receiving->reactor->error_step = control->link.failed_step;
    return result;
}

/* Returns the link for datagrams to the source; an LBT-RU session sends them from the port that receives its data. */
static um_tap_link *control_link_of(um_receiving *receiving, session_block *block,
                                    const um_receiver_session_config *config)
{
    return config->id.transport == UM_TRANSPORT_LBTRU ? &block->tapped
                                                      : &control_for(receiving, config->id.source.ip)->tapped;
}

static um_mac_session mac_session(const um_receiver_session_config *config)
{
    return (um_mac_session){config->id.source, config->id.group, config->id.session_id, config->id.transport};
}

/* Opens the verifier of the source's datagrams and the link that tags datagrams to the source. */
static int open_authentication(um_receiving *receiving, session_block *block, const um_key_set *keys,
                               const um_receiver_session_config *config)
{
    const um_authentication *authentication = &receiving->links->authentication;
    um_mac_session identity = mac_session(config);
    receiving->reactor->error_step = "authentication";
    int result = um_session_verifier_open(&block->verifier, keys, authentication->scope, authentication->tolerance_ns,
                                          &identity);
    if (result != 0)
        return result;
    bool is_lbtru = config->id.transport == UM_TRANSPORT_LBTRU;
    result = um_tagging_link_open(&block->tagging, &control_link_of(receiving, block, config)->base, &keys->keys[0],
                                  UM_MAC_CONTROL, authentication->scope, NULL,
                                  is_lbtru ? block->group->link.local
                                           : control_for(receiving, config->id.source.ip)->link.local,
                                  config->datagram_max_bytes, config->random_seed);
    if (result != 0)
        um_session_verifier_close(&block->verifier);
    return result;
}

/* Closes both; neither is open without keys. */
static void close_authentication(session_block *block)
{
    um_session_verifier_close(&block->verifier);
    um_tagging_link_close(&block->tagging);
}

int um_receiving_rekey(um_receiving *receiving, uint32_t key_set)
{
    const um_key_set *keys = um_authentication_keys(&receiving->links->authentication, key_set);
    int result = 0;
    for (uint32_t i = 0; i < receiving->node.session_count && result == 0; i++) {
        session_block *block = (session_block *)receiving->node.sessions[i];
        if (block->core.config.key_set != key_set || keys == NULL)
            continue;
        if (block->core.config.id.transport == UM_TRANSPORT_TCP) {
            result = um_tcp_connection_rekey(&block->connection);
            continue;
        }
        result = um_session_verifier_set_keys(&block->verifier, keys);
        if (result == 0)
            result = um_tagging_link_set_key(&block->tagging, &keys->keys[0], NULL);
    }
    return result;
}

static int open_session(um_receiving *receiving, const um_receiver_session_config *config, session_block **opened)
{
    size_t head_bytes = um_align_up(sizeof(session_block), UM_CACHE_LINE_BYTES);
    size_t bytes = um_receiver_session_footprint(config);
    if (bytes == 0)
        return -EINVAL;
    session_block *block = um_map(head_bytes + bytes);
    if (block == NULL)
        return -ENOMEM;
    block->memory_bytes = head_bytes + bytes;
    const um_key_set *keys = um_authentication_keys(&receiving->links->authentication, config->key_set);
    bool is_stream = um_transport_is_stream(config->id.transport); /* TCP: records, not datagrams, carry tags */
    const um_key_set *datagram_keys = is_stream ? NULL : keys;
    um_receiver_session_config sized = *config;
    sized.datagram_max_bytes -= datagram_keys != NULL ? UM_TRAILER_BYTES : 0;
    bool is_refused = config->id.transport == UM_TRANSPORT_LBTIPC && keys != NULL; /* nothing carries tags there */
    int result = is_refused ? -EKEYREJECTED : open_endpoint(receiving, config, &block->group);
    if (result != 0) {
        um_unmap(block, block->memory_bytes);
        return result;
    }
    block->group->session_count++;
    block->group->is_held = false; /* until the next review: its other sessions may be held, this one is not */
    update_report(receiving, (uint32_t)(block->group - receiving->groups));
    um_tap_link_init(&block->tapped, &block->group->link.base, &receiving->links->tap, block->group->link.local);
    result = set_source(receiving, block->group, &config->id, true);
    if (result == 0 && config->id.transport == UM_TRANSPORT_LBTRM)
        result = need_control(receiving, config->id.source.ip);
    if (result == 0 && datagram_keys != NULL)
        result = open_authentication(receiving, block, datagram_keys, config);
    if (result == 0) {
        um_link *link = datagram_keys != NULL ? &block->tagging.base : &control_link_of(receiving, block, config)->base;
        um_receiver_session_init(&block->core, (uint8_t *)block + head_bytes, &sized, link, &receiving->node.store,
                                 um_clock_ns());
        block->core.verifier = datagram_keys != NULL ? &block->verifier.base : NULL;
        block->core.local = block->group->link.local;
        result = is_stream ? open_connection(receiving, block, keys) : 0;
        if (result == 0 && !um_node_add_session(&receiving->node, &block->core))
            result = -ENOSPC;
        if (result != 0)
            close_authentication(block);
    }
    if (result != 0) {
        leave_endpoint(receiving, block->group, &config->id);
        um_unmap(block, block->memory_bytes);
        return result;
    }
    *opened = block;
    return 0;
}

static void unmap_controller(const um_receiving *receiving, um_receiver_session *session, um_delivery *delivery)
{
    um_receiver_session_unmap(session, delivery);
    receiving->on_unmapped(delivery);
    free(delivery);
}

static void close_session(um_receiving *receiving, session_block *block)
{
    um_status_reports_leave(&block->core);
    while (block->core.controllers != NULL)
        unmap_controller(receiving, &block->core, block->core.controllers);
    um_node_remove_session(&receiving->node, &block->core);
    leave_endpoint(receiving, block->group, &block->core.config.id);
    close_authentication(block);
    um_unmap(block, block->memory_bytes);
}

static void note_ended(um_receiving *receiving, const um_receiver_session *session)
{
    receiving->ended[receiving->ended_count++ % UM_RECEIVING_ENDED_MAX] = session->config.id;
}

/* Returns true if the group needs an entry and there is none. A connection always needs one. */
static bool group_table_is_full(um_receiving *receiving, um_address group)
{
    return find_group(receiving, group) == NULL;
}

/* Evicts sessions that received nothing until one with this identity fits. An evicted source is rediscovered when it
 * advertises again. */
static void make_space(um_receiving *receiving, const um_session_id *id)
{
    um_node *node = &receiving->node;
    bool is_needed;
    um_receiver_session *evicted;
    do {
        is_needed = node->session_count == UM_NODE_SESSIONS_MAX || group_table_is_full(receiving, id->group);
        evicted = um_node_evictable(node, id->source.ip, is_needed);
        if (evicted != NULL) {
            note_ended(receiving, evicted);
            UM_COUNT(node->counters.sessions_evicted, 1);
            close_session(receiving, (session_block *)evicted);
        }
    } while (is_needed && evicted != NULL);
}

static um_group *group_of(um_receiver_session *session)
{
    return ((session_block *)session)->group;
}

int um_receiving_map(um_receiving *receiving, um_receiver *receiver, const um_receiver_session_config *config,
                     uint32_t topic_index, uint32_t source)
{
    um_receiver_session *session = um_node_find_session(&receiving->node, &config->id);
    receiving->node.now_ns = um_clock_ns();
    if (session == NULL) {
        session_block *block = NULL;
        make_space(receiving, &config->id);
        int result = open_session(receiving, config, &block);
        if (result != 0)
            return result;
        session = &block->core;
    } else if (um_ip_equal(config->advertiser, config->id.source.ip)) {
        session->config.advertiser = config->advertiser;
    }
    if (session->has_ended)
        return -EAGAIN;
    if (session->config.key_set != config->key_set) {
        receiving->reactor->error_step = "key set";
        return -EKEYREJECTED;
    }
    if (um_receiver_session_find(session, receiver, topic_index) != NULL)
        return -EEXIST;
    um_delivery *delivery = um_allocate(sizeof *delivery);
    if (delivery == NULL) {
        if (session->controllers == NULL)
            close_session(receiving, (session_block *)session);
        return -ENOMEM;
    }
    um_delivery_init(delivery, receiver, receiving->next_delivery_id++, source, topic_index,
                     session->config.nak_generation_ns);
    if (um_receiver_session_map(session, delivery, um_clock_ns())) {
        um_group_report_topic(group_of(session), delivery);
        um_resume_points_apply(&receiving->node.resume_points, session, delivery);
        return 0;
    }
    receiver->controller_count--;
    free(delivery);
    if (session->controllers == NULL)
        close_session(receiving, (session_block *)session);
    receiving->reactor->error_step = "topic table";
    return -ENOSPC;
}

uint32_t um_receiving_connected(const um_receiver *receiver, int64_t now_ns)
{
    uint32_t count = 0;
    for (const um_delivery *d = receiver->controllers; d != NULL; d = d->next_of_receiver)
        count +=
            um_group_is_joined(group_of(d->session), now_ns) && um_receiver_session_is_connected(d->session, d, now_ns);
    return count;
}

void um_receiving_unmap(um_receiving *receiving, um_delivery *delivery)
{
    um_receiver_session *session = delivery->session;
    uint32_t topic_index = delivery->topic_index;
    uint32_t most_bytes = um_topic_reports_message_max(um_topic_table_slot(&session->topics, topic_index)->first);
    unmap_controller(receiving, session, delivery);
    um_delivery *first = um_topic_table_slot(&session->topics, topic_index)->first;
    if (first == NULL)
        um_group_cancel_topic(group_of(session), topic_index);
    else if (um_topic_reports_message_max(first) != most_bytes)
        um_group_report_limit(group_of(session), first);
    if (session->controllers == NULL)
        close_session(receiving, (session_block *)session);
    um_node_wake(&receiving->node, um_clock_ns()); /* the source learns of the end of the topic */
}

void um_receiving_drop(um_receiving *receiving, um_receiver *receiver)
{
    um_resume_points_forget(&receiving->node.resume_points, receiver);
    while (receiver->controllers != NULL)
        um_receiving_unmap(receiving, receiver->controllers);
}

void um_receiving_set_nak_cutoff(um_receiving *receiving, um_receiver *receiver, bool is_cut_off)
{
    um_reactor_lock(receiving->reactor);
    um_node_set_nak_cutoff(&receiving->node, receiver, is_cut_off);
    um_node_wake(&receiving->node, um_clock_ns());
    um_reactor_unlock(receiving->reactor);
    um_reactor_wake_by(receiving->reactor, 0);
}

/* ---- opening and closing ---- */

int um_receiving_open(um_receiving *receiving, um_reactor *reactor, um_links *links, um_receive_coalescing *coalescing,
                      const um_receiving_config *config)
{
    receiving->reactor = reactor;
    receiving->links = links;
    receiving->coalescing = coalescing;
    receiving->config = *config;
    receiving->next_delivery_id = 1;
    receiving->recoveries_fd = -1;
    receiving->control.link.fd = receiving->ipv6_control.link.fd = -1;
    um_node_init(&receiving->node);
    reactor->error_step = "memory";
    receiving->reorder_bytes =
        um_reorder_footprint(config->hold_datagrams, config->datagram_max_bytes, config->hold_messages);
    if (receiving->reorder_bytes == 0)
        return -EINVAL;
    receiving->reorder_memory = um_map(receiving->reorder_bytes);
    receiving->groups = um_map(sizeof *receiving->groups * UM_RECEIVING_GROUPS_MAX);
    receiving->resume_memory = um_map(um_resume_points_footprint(RESUME_POINTS));
    if (!receiving->reorder_memory || !receiving->groups || !receiving->resume_memory)
        return -ENOMEM;
    um_resume_points_init(&receiving->node.resume_points, receiving->resume_memory, RESUME_POINTS);
    um_reorder_init(&receiving->node.store, receiving->reorder_memory, config->hold_datagrams,
                    config->datagram_max_bytes, config->hold_messages);
    return need_control(receiving, (um_ip){0});
}

static int rejoin_groups(um_receiving *receiving, bool has_returned)
{
    int result = 0;
    for (uint32_t i = 0; i < receiving->group_limit; i++) {
        um_group *group = &receiving->groups[i];
        if (!group->is_used || !um_ip_is_multicast(group->link.local.ip))
            continue;
        const um_socket_config *config = um_links_config_for(receiving->links, group->link.local);
        int joined = -EADDRNOTAVAIL;
        const um_control_sender *control = control_for(receiving, group->link.local.ip);
        if (config != NULL)
            joined =
                um_socket_rejoin(&group->link, config, has_returned || um_control_sender_has_moved(control, config));
        result = joined != 0 ? joined : result;
    }
    for (uint32_t i = 0; i < receiving->node.session_count; i++) {
        session_block *block = (session_block *)receiving->node.sessions[i];
        const um_socket_config *config = um_links_config_for(receiving->links, block->group->link.local);
        if (config == NULL || !config->is_source_specific)
            continue;
        if (um_ip_is_multicast(block->group->link.local.ip)) /* joined already if the source has another session */
            um_socket_set_source(&block->group->link, config, block->core.config.id.source.ip, true);
    }
    return result;
}

int um_receiving_follow_interface(um_receiving *receiving, bool has_returned)
{
    um_links *links = receiving->links;
    receiving->reactor->error_step = "MCAST_JOIN_GROUP";
    int result = rejoin_groups(receiving, has_returned);
    int moved = um_control_sender_follow(&receiving->control, links, &links->socket_config);
    int ipv6_moved = um_control_sender_follow(&receiving->ipv6_control, links, &links->ipv6_socket_config);
    if (moved == 0 && ipv6_moved == 0)
        return result;
    result = moved < 0 ? moved : ipv6_moved < 0 ? ipv6_moved : result;
    for (uint32_t i = 0; i < receiving->node.session_count && result == 0; i++) {
        const session_block *block = (const session_block *)receiving->node.sessions[i];
        if ((um_ip_is_v6(block->core.config.id.source.ip) ? ipv6_moved : moved) == 0)
            continue;
        if (block->core.verifier != NULL || block->core.config.id.transport == UM_TRANSPORT_LBTRU)
            result = -EADDRNOTAVAIL;
    }
    return result;
}

void um_receiving_close(um_receiving *receiving)
{
    um_socket_close(&receiving->control.link);
    um_socket_close(&receiving->ipv6_control.link);
    um_unmap(receiving->reorder_memory, receiving->reorder_bytes);
    um_unmap(receiving->resume_memory, um_resume_points_footprint(RESUME_POINTS));
    receiving->reorder_memory = receiving->resume_memory = NULL;
}

void um_receiving_free(um_receiving *receiving)
{
    um_unmap(receiving->groups, sizeof *receiving->groups * UM_RECEIVING_GROUPS_MAX);
}

/* ---- called by the loop ---- */

static int receive_batch(um_receiving *receiving, um_group *group, int64_t now_ns)
{
    um_links *links = receiving->links;
    int count = um_links_receive(links, &group->link, (int)receiving->config.batch);
    for (int i = 0; i < count; i++) {
        const um_rx *rx = &links->ring.batch[i];
        uint32_t datagrams = um_datagrams_in(rx->length, rx->segment_length);
        receiving->pass_datagrams += datagrams;
        UM_COUNT(group->link.counters.ring_kernel_path, links->rings != NULL ? datagrams : 0);
        um_node_on_data(&receiving->node, rx, now_ns);
    }
    return count;
}

/* The same for a connection, whose runs of messages count as datagrams. */
static int receive_connection(um_receiving *receiving, um_group *group, int64_t now_ns)
{
    bool more;
    int delivered = group->ipc != NULL ? um_ipc_connection_receive(group->ipc, now_ns, &more)
                                       : um_tcp_connection_receive(group->connection, now_ns, &more);
    receiving->pass_datagrams += (uint32_t)delivered;
    receiving->node.is_behind |= more;
    return delivered;
}

int um_receiving_receive_group(um_receiving *receiving, uint32_t index, int64_t now_ns)
{
    um_group *group = &receiving->groups[index];
    int handled = 0;
    if (!group->is_used)
        return 0;
    if (um_group_is_connection(group))
        return receive_connection(receiving, group, now_ns);
    for (int i = 0; i < RECEIVES_PER_PASS; i++) {
        um_receiving_review_queues(receiving, now_ns);
        if (UM_UNLIKELY(group->is_held))
            break;
        int count = receive_batch(receiving, group, now_ns);
        handled += count > 0 ? count : 0;
        if (count < (int)receiving->config.batch)
            return handled;
    }
    receiving->node.is_behind = true;
    return handled;
}

int um_receiving_receive_groups(um_receiving *receiving, int64_t now_ns)
{
    int handled = 0;
    for (uint32_t i = 0; i < receiving->group_limit; i++)
        handled += um_receiving_receive_group(receiving, i, now_ns);
    return handled;
}

uint32_t um_receiving_unwatch_groups(um_receiving *receiving, int fds[UM_RECEIVING_DIRECT_MAX])
{
    uint32_t count = 0;
    if (receiving->group_limit > UM_RECEIVING_DIRECT_MAX)
        return 0;
    for (uint32_t i = 0; i < receiving->group_limit; i++) {
        um_group *group = &receiving->groups[i];
        if (!group->is_used)
            continue;
        int fd = um_group_descriptor(group);
        if (fd < 0) /* the loop connects it, and that counts as a change */
            continue;
        group->is_unwatched = true;
        update_report(receiving, i);
        fds[count++] = fd;
    }
    return count;
}

void um_receiving_watch_groups(um_receiving *receiving)
{
    for (uint32_t i = 0; i < receiving->group_limit; i++) {
        receiving->groups[i].is_unwatched = false;
        update_report(receiving, i);
    }
}

/* Prefetches a frame, which was written by another CPU; a datagram assembled from several frames is already in this
 * CPU's caches. One datagram at a time, because the CPU drops prefetches that are issued all at once. */
static void prefetch(const um_rx *rx)
{
    if (rx->frames == NULL)
        return;
    bool stays = rx->frames->has_pinned_last && rx->length > HEADERS_BYTES;
    um_prefetch(rx->data, stays ? HEADERS_BYTES : rx->length);
}

static int receive_ring_batch(um_receiving *receiving, int64_t now_ns)
{
    um_rings *rings = receiving->links->rings;
    um_rx *batch = receiving->ring_batch;
    int count = rings->ops->receive(rings, batch, UM_RINGS_BATCH_MAX);
    if (count > 0)
        um_tap_received(&receiving->links->tap, batch, (uint32_t)count);
    uint64_t bytes = 0;
    for (int i = 0; i < count && i < PREFETCHED_AHEAD; i++)
        prefetch(&batch[i]);
    for (int i = 0; i < count; i++) {
        if (i + PREFETCHED_AHEAD < count)
            prefetch(&batch[i + PREFETCHED_AHEAD]);
        um_rx *rx = &batch[i];
        if (rx->frames != NULL)
            rx->frames->has_pinned_last = false;
        if (UM_UNLIKELY(receiving->config.joins_datagrams))
            rx->segment_length = um_lbtrm_run_segment(rx->data, rx->length);
        bytes += rx->length;
        um_node_on_data(&receiving->node, rx, now_ns);
    }
    um_coalescing_on_frames(receiving->coalescing, rings->taken_frames, bytes);
    rings->ops->release(rings); /* also without datagrams, because frames without one were taken too */
    receiving->pass_datagrams += count > 0 ? (uint32_t)count : 0;
    return count > 0 ? count : 0;
}

int um_receiving_receive_rings(um_receiving *receiving, int64_t now_ns)
{
    int handled = 0;
    for (int i = 0; i < RING_RECEIVES_PER_PASS && !um_receiving_review_queues(receiving, now_ns); i++) {
        int count = receive_ring_batch(receiving, now_ns);
        handled += count;
        if (count == 0 || !receiving->links->rings->has_more)
            return handled;
    }
    receiving->node.is_behind = true;
    return handled;
}

void um_receiving_report_recoveries(um_receiving *receiving)
{
    if (!receiving->node.has_begun_otr)
        return;
    receiving->node.has_begun_otr = false;
    if (receiving->recoveries_fd >= 0)
        eventfd_write(receiving->recoveries_fd, 1);
}

static uint32_t take_of_session(um_receiver_session *session, um_begun_recovery *begun, uint32_t max)
{
    uint32_t count = 0;
    for (um_delivery *d = session->controllers; d != NULL && count < max; d = d->next) {
        if (!um_delivery_fetch_is_active(d) || d->fetch.kind != UM_DELIVERY_FETCH_OFF_TRANSPORT || d->fetch.is_taken)
            continue;
        d->fetch.is_taken = true;
        /* A receiver is the first member of its subscription. */
        begun[count++] = (um_begun_recovery){.subscription = d->receiver,
                                             .id = session->config.id,
                                             .topic_index = d->topic_index,
                                             .epoch = d->fetch.epoch,
                                             .request_port = d->request_port,
                                             .next_sqn = d->next_sqn};
    }
    return count;
}

uint32_t um_receiving_take_recoveries(um_receiving *receiving, um_begun_recovery *begun, uint32_t max)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < receiving->node.session_count && count < max; i++)
        count += take_of_session(receiving->node.sessions[i], begun + count, max - count);
    return count;
}

void um_receiving_reap(um_receiving *receiving)
{
    um_receiver_session *finished;
    while ((finished = um_node_finished_session(&receiving->node)) != NULL) {
        uint32_t gave_way = um_resume_points_save(&receiving->node.resume_points, finished);
        UM_COUNT(receiving->node.counters.resume_points_dropped, gave_way);
        note_ended(receiving, finished);
        close_session(receiving, (session_block *)finished);
    }
}
