/* One file, because accepting, greeting, filtering and closing are steps of the same clients under one lock. */
#include "io/tcp_server.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/source/flow_reports.h"
#include "core/wire/tcp_control.h"
#include "io/tcp_socket.h"
#include "os/clock.h"
#include "os/lock.h"

enum {
    GREETINGS_MAX = 64,
    ACCEPTS_PER_EVENT = 64,
    READS_PER_EVENT = 4, /* of UM_TCP_CONTROL_MAX bytes; a client that sends more is reported again */
};
static const int64_t GREETING_NS = INT64_C(5000000000);
static const int64_t REPORT_REFUSED_INTERVAL_NS = 1000000000;

/* ---- opening ---- */

/* Returns the listening socket or -errno. */
static int listen_at(um_tcp_server *server, uint16_t port)
{
    const um_tcp_source_config *config = &server->config;
    um_tcp_socket_config socket_config = {.traffic_class = config->traffic_class,
                                          .send_buffer_bytes = config->send_buffer_bytes};
    server->local = um_address_of_v4(config->interface_ip, port);
    return um_tcp_listen(&server->local, &socket_config, (int)config->listen_backlog);
}

static int listen_in_range(um_tcp_server *server)
{
    int result = -EADDRINUSE;
    for (uint32_t port = server->config.port_low; port <= server->config.port_high && result == -EADDRINUSE; port++)
        result = listen_at(server, (uint16_t)port);
    return result;
}

int um_tcp_server_open(um_tcp_server *server, um_reactor *reactor, um_source_session *session, uint32_t index,
                       const um_tcp_source_config *config, const um_key_set *keys)
{
    *server = (um_tcp_server){
        .config = *config, .session = session, .keys = keys, .reported_refused_ns = INT64_MIN, .listener.fd = -1};
    reactor->error_step = "memory";
    int result =
        um_tcp_fan_out_open(&server->fan_out, session, config->is_source_paced, keys != NULL, config->backlog_bytes);
    if (result == 0) {
        reactor->error_step = "listening";
        result = um_stream_listener_open(&server->listener, reactor, index, listen_in_range(server));
    }
    if (result != 0)
        um_tcp_fan_out_close(&server->fan_out);
    return result;
}

int um_tcp_server_rekey(um_tcp_server *server)
{
    int result = 0;
    for (uint32_t i = 0; i < server->fan_out.client_limit; i++) {
        um_tcp_client *client = &server->fan_out.clients[i];
        if (client->state != UM_TCP_CLIENT_NONE && client->tags != NULL && !client->has_failed &&
            um_stream_tags_set_keys(client->tags, server->keys) != 0) {
            client->has_failed = true; /* it reconnects */
            result = -ENOMEM;
        }
    }
    return result;
}

/* ---- accepting and closing clients ---- */

static uint32_t number_of(const um_tcp_server *server, const um_tcp_client *client)
{
    return (uint32_t)(client - server->fan_out.clients);
}

/* Closes a client, and reports it if it had joined. */
static void drop(um_tcp_server *server, um_tcp_client *client)
{
    um_source_session *session = server->session;
    bool had_joined = client->state == UM_TCP_CLIENT_JOINED;
    um_address address = client->address;
    server->greeting_count -= !had_joined;
    um_tcp_fan_out_leave(&server->fan_out, client);
    if (!had_joined)
        return;
    um_source_session_on_client_report(session, address, NULL, um_clock_coarse_ns());
    UM_COUNT(session->counters.clients_disconnected, 1);
    um_source_events_add(&session->events, UM_SOURCE_CLIENT_DISCONNECTED, address, server->fan_out.joined_count);
}

static um_tcp_client *free_place(um_tcp_server *server)
{
    um_tcp_fan_out *fan_out = &server->fan_out;
    for (uint32_t i = 0; i < UM_TCP_CLIENTS_MAX; i++) {
        if (fan_out->clients[i].state != UM_TCP_CLIENT_NONE)
            continue;
        if (i >= fan_out->client_limit)
            fan_out->client_limit = i + 1;
        return &fan_out->clients[i];
    }
    return NULL;
}

static int receive(um_tcp_server *server, um_tcp_client *client, int64_t now_ns);

/* Returns the peer without a greeting that has waited longest, of those whose address has the most such peers: one host
 * displaces its own connections. */
static um_tcp_client *greeting_to_displace(um_tcp_server *server)
{
    um_tcp_client *greeting[GREETINGS_MAX], *chosen = NULL;
    uint32_t count = 0, most = 0;
    for (uint32_t i = 0; i < server->fan_out.client_limit && count < GREETINGS_MAX; i++)
        if (server->fan_out.clients[i].state == UM_TCP_CLIENT_GREETING)
            greeting[count++] = &server->fan_out.clients[i];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t of_address = 0;
        for (uint32_t k = 0; k < count; k++)
            of_address += um_ip_equal(greeting[k]->address.ip, greeting[i]->address.ip);
        if (of_address > most || (of_address == most && greeting[i]->since_ns < chosen->since_ns)) {
            chosen = greeting[i];
            most = of_address;
        }
    }
    return chosen;
}

/* Closes a peer without a greeting, unless its greeting has arrived meanwhile: if many peers are accepted at once, none
 * of them has been read yet. */
static void displace_greeting(um_tcp_server *server, int64_t now_ns)
{
    um_tcp_client *peer = greeting_to_displace(server);
    receive(server, peer, now_ns);
    if (peer->state != UM_TCP_CLIENT_GREETING)
        return;
    UM_COUNT(server->session->counters.connections_refused, 1);
    drop(server, peer);
}

static int by_address(const void *left, const void *right)
{
    um_ip a = (*(um_tcp_client *const *)left)->address.ip, b = (*(um_tcp_client *const *)right)->address.ip;
    return a.high != b.high ? (a.high < b.high ? -1 : 1) : (a.low > b.low) - (a.low < b.low);
}

/* True if `one` is to be displaced rather than `other`: it has data that it does not read, or has joined earlier. */
static bool goes_before(const um_tcp_client *one, const um_tcp_client *other)
{
    bool is_behind = one->backlog.used > 0, is_other_behind = other->backlog.used > 0;
    return is_behind != is_other_behind ? is_behind : one->since_ns < other->since_ns;
}

/* Returns the client to displace for a new one of this address, or NULL: one of the address that has the most, if those
 * stay at least as many. Precondition: every place is taken. */
static um_tcp_client *client_to_displace(um_tcp_server *server, um_ip newcomer)
{
    um_tcp_client *sorted[UM_TCP_CLIENTS_MAX];
    uint32_t of_newcomer = 0, most = 0, most_begin = 0;
    for (uint32_t i = 0; i < UM_TCP_CLIENTS_MAX; i++) {
        sorted[i] = &server->fan_out.clients[i];
        of_newcomer += um_ip_equal(sorted[i]->address.ip, newcomer);
    }
    if (of_newcomer >= UM_TCP_CLIENTS_MAX / 2)
        return NULL;
    qsort(sorted, UM_TCP_CLIENTS_MAX, sizeof(um_tcp_client *), by_address);
    for (uint32_t begin = 0, end; begin < UM_TCP_CLIENTS_MAX; begin = end) {
        for (end = begin + 1; end < UM_TCP_CLIENTS_MAX && by_address(&sorted[begin], &sorted[end]) == 0; end++)
            ;
        if (end - begin > most) {
            most = end - begin;
            most_begin = begin;
        }
    }
    if (most <= of_newcomer + 1)
        return NULL;
    um_tcp_client *chosen = sorted[most_begin];
    for (uint32_t i = most_begin + 1; i < most_begin + most; i++)
        if (goes_before(sorted[i], chosen))
            chosen = sorted[i];
    return chosen;
}

/* Returns a free place, after displacing a client if all are taken, or NULL. */
static um_tcp_client *place_for(um_tcp_server *server, um_ip newcomer)
{
    um_tcp_client *place = free_place(server);
    if (place != NULL)
        return place;
    place = client_to_displace(server, newcomer);
    if (place != NULL)
        drop(server, place);
    return place;
}

static void join(um_tcp_server *server, um_tcp_client *client, int64_t now_ns)
{
    um_source_session *session = server->session;
    const um_tcp_source_config *config = &server->config;
    server->greeting_count--;
    if (um_tcp_fan_out_join(&server->fan_out, client, config->has_filter, now_ns) != 0) {
        server->greeting_count++;
        UM_COUNT(session->counters.connections_refused, 1);
        drop(server, client);
        return;
    }
    client->waited_from_ns = um_stall_penalties_until_ns(&server->penalties, client->address.ip, now_ns);
    UM_COUNT(session->counters.clients_connected, 1);
    um_source_events_add(&session->events, UM_SOURCE_CLIENT_CONNECTED, client->address, server->fan_out.joined_count);
    uint8_t init[UM_TCP_SSF_INIT_BYTES];
    uint32_t length = um_tcp_write_ssf_init(init, session->config.session_id, number_of(server, client), server->local,
                                            config->has_filter);
    um_tcp_fan_out_send_control(&server->fan_out, client, init, length);
}

static void accept_one(um_tcp_server *server, int fd, um_address from, int64_t now_ns)
{
    const um_source_session_config *of = &server->session->config;
    bool is_allowed = um_flow_is_allowed(of->flow_networks, of->flow_network_count, from.ip);
    if (is_allowed && server->greeting_count == GREETINGS_MAX)
        displace_greeting(server, now_ns);
    um_tcp_client *client = is_allowed ? place_for(server, from.ip) : NULL;
    if (client == NULL) {
        UM_COUNT(server->session->counters.connections_refused, 1);
        close(fd);
        return;
    }
    um_tcp_socket_config config = {.no_delay = server->config.no_delay,
                                   .activity_timeout_ns = server->config.activity_timeout_ns};
    um_tcp_set(fd, &config);
    *client = (um_tcp_client){.state = UM_TCP_CLIENT_GREETING,
                              .fd = fd,
                              .address = from,
                              .since_ns = um_stream_listener_stamp(&server->listener, now_ns)};
    um_message_stream_init(&client->control, client->control_memory, UM_TCP_CONTROL_MAX, UM_TCP_CONTROL_MAX);
    server->greeting_count++;
    if (!server->config.wants_session_id && server->keys == NULL)
        join(server, client, now_ns);
    if (client->state != UM_TCP_CLIENT_NONE &&
        um_stream_listener_watch(&server->listener, fd, number_of(server, client)) != 0) {
        UM_COUNT(server->session->counters.connections_refused, 1);
        drop(server, client);
    }
}

static int accept_clients(um_tcp_server *server, int64_t now_ns)
{
    int accepted = 0;
    for (; accepted < ACCEPTS_PER_EVENT && um_stream_listener_accepts(&server->listener, now_ns); accepted++) {
        um_address from;
        int fd = um_tcp_accept(server->listener.fd, &from);
        if (um_stream_listener_pause(&server->listener, fd, now_ns))
            UM_COUNT(server->session->counters.connections_refused, 1);
        if (fd < 0)
            break;
        accept_one(server, fd, from, now_ns);
    }
    return accepted;
}

/* ---- keys ---- */

static bool send_whole(const um_tcp_client *client, const uint8_t *data, uint32_t length)
{
    return send(client->fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)length;
}

static void note_refused(um_tcp_server *server, const um_tcp_client *client, enum um_tag_status reason, int64_t now_ns)
{
    um_source_session *session = server->session;
    um_count_unverified(&session->counters.dgrams_dropped_tag_missing, reason);
    if (server->reported_refused_ns != INT64_MIN && now_ns - server->reported_refused_ns < REPORT_REFUSED_INTERVAL_NS)
        return;
    server->reported_refused_ns = now_ns;
    um_source_events_add(&session->events, UM_SOURCE_CLIENT_REFUSED, client->address, (uint64_t)reason);
}

/* Handles a client's first message in a session with keys: its greeting, which is answered with a greeting. Any other
 * message is answered too, so that the client learns why it is refused. Returns false if it is refused. */
static bool greet(um_tcp_server *server, um_tcp_client *client, const uint8_t *data, uint32_t length, int64_t now_ns)
{
    um_stream_greeting said;
    uint8_t ours[UM_RECORD_HEADER_BYTES];
    bool has_greeted =
        length == UM_RECORD_HEADER_BYTES && um_stream_greeting_read(data, &said) && said.kind == UM_STREAM_SESSION;
    const um_key *key = has_greeted ? um_key_set_find(server->keys, said.key_id) : NULL;
    um_stream_greeting answer = {UM_STREAM_SESSION, server->session->config.session_id,
                                 key != NULL ? key->id : server->keys->keys[0].id, server->keys->keys[0].encrypts};
    if (um_stream_greeting_write(ours, &answer) != 0 || !send_whole(client, ours, sizeof ours))
        return false;
    if (key == NULL) {
        note_refused(server, client, has_greeted ? UM_TAG_KEY_UNKNOWN : UM_TAG_MISSING, now_ns);
        return false;
    }
    if (said.is_encrypted != key->encrypts) {
        note_refused(server, client, UM_TAG_ENCRYPTION, now_ns);
        return false;
    }
    client->tags = um_stream_tags_open_session(key, true, data, ours, server->local);
    if (client->tags == NULL)
        return false;
    um_message_stream_verify(&client->control, um_stream_tags_verifier(client->tags));
    return um_stream_tags_set_keys(client->tags, server->keys) == 0;
}

/* Refuses a client that has a key while the session has none, with an answer. */
static void refuse_keyed(um_tcp_server *server, um_tcp_client *client, int64_t now_ns)
{
    uint8_t nothing[UM_LBMC_CONTROL_BYTES];
    send_whole(client, nothing, um_tcp_write_nothing(nothing));
    note_refused(server, client, UM_TAG_KEY_UNKNOWN, now_ns);
}

/* ---- messages from clients ---- */

/* Handles one option of a control message. Returns false if the peer is not a valid client. */
static bool on_control(um_tcp_server *server, um_tcp_client *client, const um_tcp_control *control, int64_t now_ns)
{
    bool is_ours = control->session_id == server->session->config.session_id;
    if (control->kind == UM_TCP_SESSION_ID) {
        if (is_ours && client->state == UM_TCP_CLIENT_GREETING)
            join(server, client, now_ns);
        return is_ours;
    }
    if (control->kind == UM_TCP_OTHER)
        return client->state == UM_TCP_CLIENT_JOINED;
    if (client->state != UM_TCP_CLIENT_JOINED || !is_ours || control->kind == UM_TCP_SSF_INIT)
        return false;
    client->request = *control;
    client->request_count++;
    client->needs_answer = true;
    if (control->kind == UM_TCP_SSF_EXCLUDE)
        um_topic_filter_remove(&client->filter, control->topic_index);
    if (control->kind == UM_TCP_SSF_EXCLUDE || um_topic_filter_add(&client->filter, control->topic_index))
        return true;
    client->has_every_topic = !client->is_filtered;
    return client->has_every_topic;
}

/* Handles the options of one control message. Returns false if the peer is not a valid client. */
static bool on_message(um_tcp_server *server, um_tcp_client *client, const uint8_t *data, uint32_t length,
                       int64_t now_ns)
{
    um_tcp_control_reader reader = um_tcp_control_read(data, length);
    um_tcp_control control;
    um_packet packet = {.body = data, .body_length = length};
    um_topic_report report;
    if (client->state == UM_TCP_CLIENT_GREETING && client->tags != NULL && !server->config.wants_session_id)
        join(server, client, now_ns);
    if (client->state == UM_TCP_CLIENT_JOINED && um_topic_report_decode(&packet, &report))
        um_source_session_on_client_report(server->session, client->address, &report, now_ns);
    while (client->state != UM_TCP_CLIENT_NONE && (control = um_tcp_control_next(&reader)).kind != UM_TCP_NOTHING)
        if (!on_control(server, client, &control, now_ns))
            return false;
    return true;
}

/* Answers the last request, in order with the messages, once the backlog has space. */
static void answer_requests(um_tcp_server *server, um_tcp_client *client)
{
    uint8_t answer[UM_TCP_SSF_REQUEST_BYTES];
    if (!client->needs_answer || client->state != UM_TCP_CLIENT_JOINED)
        return;
    uint32_t length = um_tcp_write_ssf_answer(answer, &client->request, client->request_count);
    client->needs_answer = !um_tcp_fan_out_send_control(&server->fan_out, client, answer, length);
}

/* Handles all complete messages received. Returns false if the peer is not a valid client. */
static bool read_control(um_tcp_server *server, um_tcp_client *client, int64_t now_ns)
{
    const uint8_t *data;
    uint32_t length;
    enum um_stream_part part;
    while ((part = um_message_stream_next(&client->control, UM_TCP_CONTROL_MAX, &data, &length)) == UM_STREAM_CONTROL) {
        um_stream_greeting said;
        if (server->keys != NULL && client->tags == NULL) {
            if (!greet(server, client, data, length, now_ns))
                return false;
            continue;
        }
        if (server->keys == NULL && length == UM_RECORD_HEADER_BYTES && um_stream_greeting_read(data, &said)) {
            refuse_keyed(server, client, now_ns);
            return false;
        }
        if (!on_message(server, client, data, length, now_ns))
            return false;
        if (client->state == UM_TCP_CLIENT_NONE)
            return true;
    }
    answer_requests(server, client);
    if (client->control.refused_by != UM_TAG_OK)
        note_refused(server, client, client->control.refused_by, now_ns);
    return part == UM_STREAM_MORE;
}

/* Reads the client's data. Returns bytes; closes a client that has ended or failed. */
static int receive(um_tcp_server *server, um_tcp_client *client, int64_t now_ns)
{
    int handled = 0;
    for (int i = 0; i < READS_PER_EVENT; i++) {
        uint32_t space;
        uint8_t *into = um_message_stream_space(&client->control, &space);
        ssize_t got = recv(client->fd, into, space, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return handled;
        if (got <= 0) { /* the client closed its connection, or the connection failed */
            drop(server, client);
            return handled;
        }
        handled += (int)got;
        um_message_stream_add(&client->control, (uint32_t)got);
        if (!read_control(server, client, now_ns)) {
            UM_COUNT(server->session->counters.connections_refused, 1);
            drop(server, client);
        }
        if (client->state == UM_TCP_CLIENT_NONE)
            return handled;
    }
    um_stream_listener_watch_again(&server->listener, client->fd, number_of(server, client));
    return handled;
}

/* ---- called by the loop ---- */

static int service_client(um_tcp_server *server, um_tcp_client *client, int64_t now_ns)
{
    if (client->state == UM_TCP_CLIENT_NONE)
        return 0;
    uint32_t before = client->backlog.used;
    um_tcp_fan_out_flush(&server->fan_out, client, now_ns);
    int flushed = (int)(before - client->backlog.used);
    if (client->has_failed) {
        drop(server, client);
        return flushed;
    }
    answer_requests(server, client);
    return flushed + receive(server, client, now_ns);
}

int um_tcp_server_on_event(um_tcp_server *server, uint32_t client, int64_t now_ns)
{
    if (!um_lock_try(&server->session->sender_lock)) {
        server->is_due = true;
        return UM_STREAM_SERVER_BUSY;
    }
    int handled = 0;
    if (client == UM_STREAM_LISTENER)
        handled = accept_clients(server, now_ns);
    else if (client < server->fan_out.client_limit)
        handled = service_client(server, &server->fan_out.clients[client], now_ns);
    um_lock_release(&server->session->sender_lock);
    return handled;
}

/* Records that the client held the session for the stall timeout, so that no client of its address does so for a while.
 */
static void note_stalled(um_tcp_server *server, const um_tcp_client *client, int64_t now_ns)
{
    um_source_session *session = server->session;
    um_address address = client->address;
    UM_COUNT(session->counters.receivers_stalled, 1);
    um_source_events_add(&session->events, UM_SOURCE_RECEIVER_STALLED, address, (uint64_t)(now_ns - client->since_ns));
    int64_t until_ns = um_stall_penalties_add(&server->penalties, address.ip, server->config.stall_timeout_ns, now_ns);
    for (uint32_t i = 0; i < server->fan_out.client_limit; i++)
        if (um_ip_equal(server->fan_out.clients[i].address.ip, address.ip))
            server->fan_out.clients[i].waited_from_ns = until_ns;
}

/* Closes peers that have not greeted in time, and clients that hold the session. Returns when the next is overdue. */
static int64_t drop_overdue(um_tcp_server *server, int64_t now_ns)
{
    int64_t stall_ns = server->config.is_source_paced ? 0 : server->config.stall_timeout_ns, next_ns = UM_NEVER_NS;
    for (uint32_t i = 0; i < server->fan_out.client_limit; i++) {
        um_tcp_client *client = &server->fan_out.clients[i];
        bool is_joined = client->state == UM_TCP_CLIENT_JOINED;
        bool is_timed = is_joined ? stall_ns != 0 && client->backlog.used > 0 : client->state != UM_TCP_CLIENT_NONE;
        int64_t due_ns = client->since_ns + (is_joined ? stall_ns : GREETING_NS);
        if (client->has_failed || (is_timed && now_ns >= due_ns)) {
            if (is_joined && !client->has_failed)
                note_stalled(server, client, now_ns);
            UM_COUNT(server->session->counters.connections_refused, !is_joined);
            drop(server, client);
        } else if (is_timed && due_ns < next_ns) {
            next_ns = due_ns;
        }
    }
    return next_ns;
}

int um_tcp_server_service(um_tcp_server *server, int64_t now_ns, int64_t *due_ns)
{
    if (!um_lock_try(&server->session->sender_lock)) {
        *due_ns = now_ns;
        return UM_STREAM_SERVER_BUSY;
    }
    int handled = 0;
    if (server->is_due) {
        server->is_due = false;
        handled = accept_clients(server, now_ns);
        for (uint32_t i = 0; i < server->fan_out.client_limit; i++)
            handled += service_client(server, &server->fan_out.clients[i], now_ns);
    }
    *due_ns = um_earliest_ns(drop_overdue(server, now_ns), um_stream_listener_resume(&server->listener, now_ns));
    um_lock_release(&server->session->sender_lock);
    return handled;
}

/* ---- closing ---- */

void um_tcp_server_flush(um_tcp_server *server, int64_t now_ns)
{
    for (uint32_t i = 0; i < server->fan_out.client_limit; i++)
        if (server->fan_out.clients[i].state == UM_TCP_CLIENT_JOINED)
            um_tcp_fan_out_flush(&server->fan_out, &server->fan_out.clients[i], now_ns);
}

/* Ends a connection. It reads first: if unread bytes remain when the connection is closed, the kernel resets it, and
 * the peer loses data that it has not read yet. */
static void end_client(um_tcp_server *server, um_tcp_client *client)
{
    uint8_t end[UM_TCP_END_BYTES], unread[4096];
    if (client->state == UM_TCP_CLIENT_JOINED && client->backlog.used == 0)
        um_tcp_fan_out_send_control(&server->fan_out, client, end, um_tcp_write_end(end));
    shutdown(client->fd, SHUT_WR);
    for (int i = 0; i < READS_PER_EVENT && recv(client->fd, unread, sizeof unread, MSG_DONTWAIT) > 0; i++)
        ;
}

void um_tcp_server_close(um_tcp_server *server)
{
    for (uint32_t i = 0; i < server->fan_out.client_limit; i++)
        if (server->fan_out.clients[i].state != UM_TCP_CLIENT_NONE)
            end_client(server, &server->fan_out.clients[i]);
    um_tcp_fan_out_close(&server->fan_out);
    um_stream_listener_close(&server->listener);
}
