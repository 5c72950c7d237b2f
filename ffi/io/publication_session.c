/* One file, because opening, closing and servicing a session is the same for every transport but for its sockets. */
#include <unistd.h>

#include "core/source/flow_reports.h"
#include "io/publication_session_private.h"
#include "os/clock.h"
#include "os/lock.h"
#include "os/memory.h"

enum { DRAIN_STEP_NS = 2000000 };              /* interval between checks of a closing session */
static const int64_t DRAIN_NS = 1000000000;    /* how long a closing session waits for its clients to read sent data */
static const int64_t STREAM_RETRY_NS = 100000; /* interval between checks of connections while the sender is busy */

/* ---- opening and closing ---- */

static um_publication_session *free_entry(um_publication_sessions *sessions)
{
    for (uint32_t i = 0; i < UM_PUBLICATION_SESSIONS_MAX; i++) {
        if (sessions->table[i].is_used)
            continue;
        if (i >= sessions->limit)
            sessions->limit = i + 1;
        return &sessions->table[i];
    }
    return NULL;
}

static int open_sockets(um_publication_session *session, const um_source_session_config *config, uint16_t port_low,
                        uint16_t port_high)
{
    um_publication_sessions *sessions = session->sessions;
    um_links *links = sessions->links;
    bool is_lbtru = config->transport == UM_TRANSPORT_LBTRU;
    const um_socket_config *sockets =
        is_lbtru ? &links->lbtru_socket_config : um_links_config_for(links, config->group);
    uint32_t index = (uint32_t)(session - sessions->table);
    session->control.nak_link.fd = session->data_link.fd = -1;
    sessions->reactor->error_step = UM_LINKS_NO_IPV6;
    if (sockets == NULL)
        return -EADDRNOTAVAIL;
    int result = um_control_open(&session->control, sessions->reactor, links, &session->core, index, sockets, port_low,
                                 port_high);
    if (result != 0 || is_lbtru)
        return result;
    result = um_socket_open_unicast(&session->data_link, sockets, 0);
    sessions->reactor->error_step = session->data_link.failed_step;
    if (result != 0)
        um_socket_close(&session->control.nak_link);
    return result;
}

/* Opens the link to the context's ring set, which sends data from the address and UDP port of the NAK socket. LBT-RU
 * sends by the kernel, which knows the route to each client. */
static int open_ring_link(um_publication_session *session, enum um_transport transport)
{
    um_links *links = session->sessions->links;
    if (links->rings == NULL || transport == UM_TRANSPORT_LBTRU)
        return 0;
    um_rings_sender sender = {.from = session->control.nak_link.local,
                              .ttl = links->socket_config.ttl,
                              .traffic_class = links->socket_config.traffic_class,
                              .otherwise = &session->data_link.base};
    session->sessions->reactor->error_step = "a link on the ring set";
    return links->rings->ops->open_link(links->rings, &sender, &session->ring_link);
}

static void close_ring_link(um_publication_session *session)
{
    um_rings *rings = session->sessions->links->rings;
    if (session->ring_link != NULL && rings != NULL)
        rings->ops->close_link(rings, session->ring_link);
    session->ring_link = NULL;
}

static int open_sender(um_publication_session *session, enum um_transport transport)
{
    um_publication_sessions *sessions = session->sessions;
    int result = um_sender_open(&session->sender, sessions->reactor, sessions->links, &session->core);
    if (result == 0)
        result = open_ring_link(session, transport);
    session->sender.mtu_fd = session->control.nak_link.fd;
    session->sender.uses_rings = session->ring_link != NULL;
    if (result != 0) {
        um_sender_close(&session->sender);
        um_socket_close(&session->control.nak_link);
        um_socket_close(&session->data_link);
    }
    return result;
}

/* ---- keys ---- */

static um_mac_session mac_session(const um_publication_session *session, const um_source_session_config *config)
{
    return (um_mac_session){session->control.nak_link.local, config->group, config->session_id, config->transport};
}

/* Opens the links that tag the session's datagrams, and the verifier of the receivers' datagrams. */
static int open_authentication(um_publication_session *session, um_source_session_config *config)
{
    const um_authentication *authentication = &session->sessions->links->authentication;
    const um_key_set *keys = um_authentication_keys(authentication, config->key_set);
    config->data_trailer_bytes = keys != NULL && authentication->scope == UM_AUTHENTICATE_ALL ? UM_TRAILER_BYTES : 0;
    config->control_trailer_bytes = keys != NULL ? UM_TRAILER_BYTES : 0;
    if (keys == NULL)
        return 0;
    um_mac_session identity = mac_session(session, config);
    session->sessions->reactor->error_step = "authentication";
    int result = um_tagging_link_open(&session->tagging, &session->tapped.base, &keys->keys[0], UM_MAC_SESSION,
                                      authentication->scope, &identity, identity.source, config->datagram_max_bytes,
                                      config->initial_term_id);
    if (result != 0)
        return result;
    result = um_senders_verifier_open(&session->verifier, keys, UM_MAC_CONTROL, authentication->tolerance_ns);
    if (result != 0)
        um_tagging_link_close(&session->tagging);
    else
        session->control.verifier = &session->verifier.base;
    return result;
}

static void close_authentication(um_publication_session *session)
{
    if (session->control.verifier == NULL)
        return;
    session->control.verifier = NULL;
    um_tagging_link_close(&session->tagging);
    um_senders_verifier_close(&session->verifier);
}

int um_publication_sessions_rekey(um_publication_sessions *sessions, uint32_t key_set)
{
    const um_key_set *keys = um_authentication_keys(&sessions->links->authentication, key_set);
    int result = 0;
    for (uint32_t i = 0; i < sessions->limit && result == 0; i++) {
        um_publication_session *session = &sessions->table[i];
        if (!session->is_used || session->core.config.key_set != key_set || keys == NULL || session->ipc != NULL)
            continue;
        um_mac_session identity = mac_session(session, &session->core.config);
        um_lock_acquire(&session->core.sender_lock);
        if (session->tcp != NULL) {
            result = um_tcp_server_rekey(session->tcp);
            um_lock_release(&session->core.sender_lock);
            continue;
        }
        result = um_tagging_link_set_key(&session->tagging, &keys->keys[0], &identity);
        if (result == 0)
            result = um_senders_verifier_set_keys(&session->verifier, keys);
        um_lock_release(&session->core.sender_lock);
    }
    return result;
}

static int follow_clock(um_publication_session *session, uint32_t session_id)
{
    const um_authentication *authentication = &session->sessions->links->authentication;
    int64_t ahead_ns = um_stamp_ahead_ns(session->tagging.stamp, um_clock_wall_ns());
    um_source_session_config *config = &session->core.config;
    if (ahead_ns <= authentication->tolerance_ns / 2)
        return 0;
    um_mac_session identity = mac_session(session, config);
    identity.session_id = session_id;
    const um_key_set *keys = um_authentication_keys(authentication, config->key_set);
    int result = um_tagging_link_begin_session(&session->tagging, &keys->keys[0], &identity);
    if (result != 0)
        return result;
    config->session_id = session_id;
    um_source_events_add(&session->core.events, UM_SOURCE_CLOCK_SET_BACK, (um_address){0}, (uint64_t)ahead_ns);
    return 1;
}

int um_publication_session_follow_clock(um_publication_session *session, uint32_t session_id)
{
    um_reactor *reactor = session->sessions->reactor;
    um_reactor_lock(reactor);
    um_lock_acquire(&session->core.sender_lock);
    int result = session->control.verifier != NULL ? follow_clock(session, session_id) : 0;
    um_lock_release(&session->core.sender_lock);
    um_reactor_unlock(reactor);
    return result;
}

/* ---- opening ---- */

static void close_sender(um_publication_session *session)
{
    close_ring_link(session);
    um_sender_close(&session->sender);
    um_socket_close(&session->control.nak_link);
    um_socket_close(&session->data_link);
}

/* The sockets of a session to open: the port range of its NAK socket, or how it listens for clients. */
typedef struct session_sockets {
    uint16_t port_low;
    uint16_t port_high;
    const um_tcp_source_config *tcp;
    const um_ipc_source_config *ipc;
} session_sockets;

static void open_tapped(um_publication_session *session, uint32_t transport)
{
    um_tap *tap = &session->sessions->links->tap;
    if (transport == UM_TRANSPORT_LBTRU)
        um_tap_link_init(&session->tapped, &session->control.nak_link.base, tap, session->control.nak_link.local);
    else if (session->ring_link != NULL)
        um_tap_link_init(&session->tapped, session->ring_link, tap, session->control.nak_link.local);
    else
        um_tap_link_init(&session->tapped, &session->data_link.base, tap, session->data_link.local);
}

static int open_datagram_links(um_publication_session *session, um_source_session_config *config,
                               const session_sockets *sockets)
{
    int result = open_sockets(session, config, sockets->port_low, sockets->port_high);
    if (result == 0)
        result = open_sender(session, config->transport);
    if (result != 0)
        return result;
    config->nak_port = session->control.nak_link.local.port;
    open_tapped(session, config->transport);
    result = open_authentication(session, config);
    if (result != 0)
        close_sender(session);
    return result;
}

/* Moves a session to the address of the interface as it is now, with its port if that is free. Frames that publishers
 * have borrowed belong to the link to the rings, so a session with one stays. */
static int move_session(um_publication_session *session)
{
    um_links *links = session->sessions->links;
    um_source_session_config *config = &session->core.config;
    if (config->transport != UM_TRANSPORT_LBTRM || session->ring_link != NULL)
        return -EADDRNOTAVAIL;
    um_links_close_socket(links, &session->control.nak_link);
    um_links_close_socket(links, &session->data_link);
    int result = open_sockets(session, config, config->nak_port, config->nak_port);
    if (result == -EADDRINUSE)
        result = open_sockets(session, config, 0, 0);
    if (result != 0)
        return result;
    session->sender.mtu_fd = session->control.nak_link.fd;
    config->nak_port = session->control.nak_link.local.port;
    open_tapped(session, config->transport);
    if (session->control.verifier != NULL) {
        um_mac_session identity = mac_session(session, config);
        const um_key_set *keys = um_authentication_keys(&links->authentication, config->key_set);
        result = um_tagging_link_set_key(&session->tagging, &keys->keys[0], &identity);
    }
    atomic_store_explicit(&session->control.is_unwatched, false, memory_order_relaxed);
    return result == 0 ? um_control_watch(&session->control) : result;
}

int um_publication_sessions_follow_interface(um_publication_sessions *sessions)
{
    int result = 0;
    for (uint32_t i = 0; i < sessions->limit; i++) {
        um_publication_session *session = &sessions->table[i];
        if (!session->is_used || session->ipc != NULL)
            continue;
        const um_socket_config *config = um_links_config_for(sessions->links, session->core.config.group);
        um_lock_acquire(&session->core.sender_lock);
        int followed = 0;
        if (config == NULL)
            followed = -EADDRNOTAVAIL;
        else if (!um_ip_equal(um_publication_session_local(session).ip, config->interface_ip))
            followed = move_session(session);
        else if (session->data_link.fd >= 0)
            followed = um_socket_set_interface(&session->data_link, config);
        um_lock_release(&session->core.sender_lock);
        result = followed != 0 ? followed : result;
    }
    return result;
}

um_address um_publication_session_local(const um_publication_session *session)
{
    return session->tcp != NULL ? session->tcp->local : session->control.nak_link.local;
}

static int open_tcp(um_publication_session *session, um_source_session_config *config, const session_sockets *sockets)
{
    um_publication_sessions *sessions = session->sessions;
    uint32_t index = (uint32_t)(session - sessions->table);
    session->control.core = &session->core;
    session->control.nak_link.fd = session->data_link.fd = session->sender.mtu_fd = -1;
    sessions->reactor->error_step = "memory";
    session->tcp = um_map(sizeof *session->tcp);
    if (session->tcp == NULL)
        return -ENOMEM;
    int result = um_sender_open(&session->sender, sessions->reactor, sessions->links, &session->core);
    if (result == 0)
        result = um_tcp_server_open(session->tcp, sessions->reactor, &session->core, index, sockets->tcp,
                                    um_authentication_keys(&sessions->links->authentication, config->key_set));
    if (result != 0) {
        um_sender_close(&session->sender);
        um_unmap(session->tcp, sizeof *session->tcp);
        session->tcp = NULL;
        return result;
    }
    config->nak_port = session->tcp->local.port;
    return 0;
}

static int open_ipc(um_publication_session *session, um_source_session_config *config, const session_sockets *sockets)
{
    um_publication_sessions *sessions = session->sessions;
    uint32_t index = (uint32_t)(session - sessions->table);
    session->control.core = &session->core;
    session->control.nak_link.fd = session->data_link.fd = session->sender.mtu_fd = -1;
    sessions->reactor->error_step = "memory";
    session->ipc = um_map(sizeof *session->ipc);
    if (session->ipc == NULL)
        return -ENOMEM;
    int result = um_sender_open(&session->sender, sessions->reactor, sessions->links, &session->core);
    if (result == 0)
        result = um_ipc_server_open(session->ipc, sessions->reactor, &session->core, config->session_id, index,
                                    sockets->ipc);
    if (result != 0) {
        um_sender_close(&session->sender);
        um_unmap(session->ipc, sizeof *session->ipc);
        session->ipc = NULL;
        return result;
    }
    config->nak_port = sockets->ipc->transport_id;
    return 0;
}

/* Returns the link that the session sends through. */
static um_link *link_of(um_publication_session *session)
{
    if (session->tcp != NULL)
        return &session->tcp->fan_out.base;
    if (session->ipc != NULL)
        return &session->ipc->fan_out.base;
    return session->control.verifier != NULL ? &session->tagging.base : &session->tapped.base;
}

static um_rate_limits *limits_of(um_publication_sessions *sessions, enum um_transport transport)
{
    if (um_transport_is_stream(transport))
        return &sessions->unlimited;
    return transport == UM_TRANSPORT_LBTRU ? &sessions->lbtru_limits : &sessions->limits;
}

static int open_session(um_publication_sessions *sessions, um_source_session_config *config, void *memory,
                        const session_sockets *sockets, um_publication_session **opened)
{
    um_publication_session *session = free_entry(sessions);
    sessions->reactor->error_step = "session table";
    if (session == NULL)
        return -ENOSPC;
    memset(session, 0, sizeof *session);
    session->sessions = sessions;
    int result = sockets->tcp != NULL   ? open_tcp(session, config, sockets)
                 : sockets->ipc != NULL ? open_ipc(session, config, sockets)
                                        : open_datagram_links(session, config, sockets);
    if (result != 0)
        return result;
    session->memory = memory;
    session->memory_bytes = um_source_session_footprint(config);
    um_source_session_init(&session->core, memory, config, link_of(session), limits_of(sessions, config->transport),
                           um_clock_ns());
    session->is_used = true;
    *opened = session;
    return um_publication_session_is_stream(session) ? 0 : um_control_watch(&session->control);
}

static int open_with_memory(um_publication_sessions *sessions, um_source_session_config *config,
                            const session_sockets *sockets, um_publication_session **opened)
{
    sessions->reactor->error_step = "session memory";
    size_t bytes = um_source_session_footprint(config);
    if (bytes == 0)
        return -EINVAL;
    void *memory = um_map(bytes);
    if (memory == NULL)
        return -ENOMEM;
    um_prefer_huge_pages(memory, bytes);
    um_reactor_lock(sessions->reactor);
    int result = open_session(sessions, config, memory, sockets, opened);
    um_reactor_unlock(sessions->reactor);
    um_reactor_wake_by(sessions->reactor, 0);
    if (result != 0)
        um_unmap(memory, bytes);
    return result;
}

int um_publication_sessions_open(um_publication_sessions *sessions, um_source_session_config *config, uint16_t port_low,
                                 uint16_t port_high, um_publication_session **opened)
{
    session_sockets sockets = {.port_low = port_low, .port_high = port_high};
    return open_with_memory(sessions, config, &sockets, opened);
}

int um_publication_sessions_open_tcp(um_publication_sessions *sessions, um_source_session_config *config,
                                     const um_tcp_source_config *tcp, um_publication_session **opened)
{
    session_sockets sockets = {.tcp = tcp};
    return open_with_memory(sessions, config, &sockets, opened);
}

int um_publication_sessions_open_ipc(um_publication_sessions *sessions, um_source_session_config *config,
                                     const um_ipc_source_config *ipc, um_publication_session **opened)
{
    session_sockets sockets = {.ipc = ipc};
    return open_with_memory(sessions, config, &sockets, opened);
}

void um_publication_session_limit_datagram(um_publication_session *session, uint32_t bytes)
{
    um_source_session_set_datagram_max(&session->core, bytes);
}

void um_publication_session_add_local(um_publication_session *session, int32_t change)
{
    um_lock_acquire(&session->core.sender_lock);
    um_flow_reports_add_local(&session->core, change);
    um_lock_release(&session->core.sender_lock);
    atomic_store_explicit(&session->sender.requested_ns, um_clock_ns(), memory_order_relaxed);
    um_reactor_wake_by(session->sessions->reactor, 0);
}

/* Under both locks. */
static void close_tcp(um_publication_session *session)
{
    um_tcp_server_close(session->tcp);
    um_link_counters_add(&session->sessions->links->closed, &session->tcp->fan_out.counters);
    um_unmap(session->tcp, sizeof *session->tcp);
    session->tcp = NULL;
}

static void close_ipc(um_publication_session *session)
{
    um_ipc_server_close(session->ipc);
    um_link_counters_add(&session->sessions->links->closed, &session->ipc->fan_out.counters);
    um_unmap(session->ipc, sizeof *session->ipc);
    session->ipc = NULL;
}

void um_publication_session_add_counts(const um_publication_session *session, um_context_counters *sum)
{
    UM_COUNT(sum->sender_flow_control_limits, session->core.counters.snd_bpe);
    UM_COUNT(sum->unblocked_publications, session->core.counters.unblocked_publications);
}

/* Waits at most DRAIN_NS until the connections have taken the rest of a session over TCP, or the log the rest of one
 * over LBT-IPC; receivers read it after the end, too. */
static void drain(um_publication_session *session)
{
    um_source_session *core = &session->core;
    int64_t end_ns = um_clock_ns() + DRAIN_NS;
    for (int64_t now_ns = um_clock_ns(); now_ns < end_ns; now_ns = um_clock_ns()) {
        um_lock_acquire(&core->sender_lock);
        if (session->tcp != NULL)
            um_tcp_server_flush(session->tcp, now_ns);
        um_source_session_send(core, now_ns, UM_SEND_BATCH_MAX);
        bool is_empty = (session->tcp == NULL || um_tcp_fan_out_backlog_bytes(&session->tcp->fan_out) == 0) &&
                        atomic_load(&core->sender_position) >= atomic_load(&core->flush_limit);
        um_lock_release(&core->sender_lock);
        if (is_empty)
            return;
        struct timespec step = {0, DRAIN_STEP_NS};
        nanosleep(&step, NULL);
    }
}

void um_publication_session_shut(um_publication_session *session)
{
    um_publication_sessions *sessions = session->sessions;
    um_source_session_close(&session->core);
    if (um_publication_session_is_stream(session))
        drain(session);
    um_reactor_lock(sessions->reactor);
    um_lock_acquire(&session->core.sender_lock);
    session->is_used = false;
    um_publication_session_add_counts(session, sessions->counters);
    um_staged_drop_sent(&session->core.staged, INT64_MAX); /* returns the frames borrowed from the link */
    close_authentication(session);
    if (session->tcp != NULL)
        close_tcp(session);
    if (session->ipc != NULL)
        close_ipc(session);
    um_lock_release(&session->core.sender_lock);
    close_ring_link(session);
    um_links_close_socket(sessions->links, &session->data_link);
    um_links_close_socket(sessions->links, &session->control.nak_link);
    um_sender_close(&session->sender);
    um_reactor_unlock(sessions->reactor);
}

void *um_publication_session_memory(const um_publication_session *session, size_t *bytes)
{
    *bytes = session->memory_bytes;
    return session->memory;
}

/* ---- receivers ---- */

uint32_t um_publication_session_events(um_publication_session *session, uint64_t read_count, um_source_event *out,
                                       uint64_t *count)
{
    um_source_events *events = &session->core.events;
    uint32_t taken = 0;
    um_lock_acquire(&session->core.sender_lock);
    *count = events->count;
    uint64_t oldest = events->count > UM_SOURCE_EVENTS_MAX ? events->count - UM_SOURCE_EVENTS_MAX : 0;
    for (uint64_t at = read_count > oldest ? read_count : oldest; at < events->count; at++)
        out[taken++] = events->ring[at % UM_SOURCE_EVENTS_MAX];
    um_lock_release(&session->core.sender_lock);
    return taken;
}

void um_publication_session_note_interface(um_publication_session *session, const char *interface, uint64_t change)
{
    um_source_events *events = &session->core.events;
    um_lock_acquire(&session->core.sender_lock);
    um_source_event *event = &events->ring[events->count % UM_SOURCE_EVENTS_MAX];
    um_source_events_add(events, UM_SOURCE_INTERFACE_CHANGED, (um_address){0}, change);
    memcpy(event->interface, interface, strnlen(interface, sizeof event->interface - 1));
    um_lock_release(&session->core.sender_lock);
}

uint32_t um_publication_session_accounts(um_publication_session *session, um_receiver_account *out)
{
    um_lock_acquire(&session->core.sender_lock);
    bool has_naks = !um_transport_is_stream(session->core.config.transport);
    uint32_t count = has_naks ? session->core.accounting.count : 0;
    memcpy(out, session->core.accounting.accounts, count * sizeof *out);
    um_lock_release(&session->core.sender_lock);
    return count;
}

bool um_publication_session_cut_off(um_publication_session *session, um_address receiver, bool is_cut_off)
{
    um_lock_acquire(&session->core.sender_lock);
    bool found = um_source_session_set_nak_cutoff(&session->core, receiver, is_cut_off, um_clock_ns());
    um_lock_release(&session->core.sender_lock);
    return found;
}

/* ---- called by publishers ---- */

void um_publication_session_poll_control(um_publication_session *session, int64_t tail_bytes, int64_t now_ns)
{
    bool retransmits;
    if (um_publication_session_is_stream(session)) /* its connections are reported to the loop */
        return;
    int handled = um_control_poll(&session->control, now_ns, &retransmits);
    if (retransmits)
        um_sender_request_loop(&session->sender, now_ns);
    if (handled > 0 && um_sender_backlog_bytes(&session->sender) >= tail_bytes)
        um_sender_run_to(&session->sender, tail_bytes, now_ns);
}

void um_publication_session_after(um_publication_session *session, const um_sender_outcome *outcome)
{
    if (!outcome->has_run)
        return;
    if (um_control_is_poll_due(&session->control))
        um_publication_session_poll_control(session, outcome->tail_bytes, um_clock_ns());
    um_sender_bound_write_ahead(&session->sender, outcome->now_ns);
}

/* ---- called by the loop ---- */

int um_publication_session_receive(um_publication_session *session, int64_t now_ns)
{
    um_sender *sender = &session->sender;
    int handled = um_control_service(&session->control, now_ns);
    if (handled == UM_CONTROL_BUSY) {
        sender->due_ns = now_ns + sender->skip_ns;
        return 0;
    }
    if (handled > 0) { /* a status message may have opened the window; a retransmission may wait for its limiter */
        sender->due_ns = now_ns;
        atomic_store_explicit(&sender->requested_ns, now_ns, memory_order_relaxed);
    }
    return handled;
}

/* Requests a run of the sender: a connection that took data may have space for more. */
static void want_run(um_publication_session *session, int64_t now_ns)
{
    session->sender.due_ns = now_ns;
    atomic_store_explicit(&session->sender.requested_ns, now_ns, memory_order_relaxed);
}

int um_publication_session_on_stream(um_publication_session *session, uint32_t client, int64_t now_ns)
{
    int handled = session->tcp != NULL   ? um_tcp_server_on_event(session->tcp, client, now_ns)
                  : session->ipc != NULL ? um_ipc_server_on_event(session->ipc, client, now_ns)
                                         : 0;
    if (handled != 0)
        want_run(session, now_ns);
    return handled > 0 ? handled : 0;
}

/* Returns when to check the connections again. */
static int64_t service_stream(um_publication_session *session, int64_t now_ns)
{
    int64_t due_ns = UM_NEVER_NS;
    int handled = session->tcp != NULL   ? um_tcp_server_service(session->tcp, now_ns, &due_ns)
                  : session->ipc != NULL ? um_ipc_server_service(session->ipc, now_ns, &due_ns)
                                         : 0;
    if (handled > 0)
        want_run(session, now_ns);
    return handled == UM_STREAM_SERVER_BUSY ? now_ns + STREAM_RETRY_NS : due_ns;
}

int64_t um_publication_session_service(um_publication_session *session, int64_t now_ns)
{
    um_control *control = &session->control;
    int64_t stream_ns = service_stream(session, now_ns);
    int64_t until_ns = um_sender_skip_until(&session->sender, um_control_polled_ns(control, now_ns), now_ns);
    if (until_ns > now_ns)
        return um_earliest_ns(until_ns, stream_ns);
    if (um_control_is_unwatched(control))
        um_publication_session_receive(session, now_ns);
    bool ran;
    int64_t due_ns = um_earliest_ns(um_sender_service(&session->sender, now_ns, &ran), stream_ns);
    return ran && um_control_is_unwatched(control) ? now_ns : due_ns;
}
