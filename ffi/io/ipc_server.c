#include "io/ipc_server.h"

#include <unistd.h>

#include "io/ipc_socket.h"
#include "os/clock.h"
#include "os/lock.h"

enum {
    GREETINGS_MAX = 64,
    USER_GREETINGS_MAX = 16, /* of another user */
    ACCEPTS_PER_EVENT = 64,
    READS_PER_EVENT = 4,
    WAKEUP_BIT = 1 << 15, /* in the number of a client: the report is of its eventfd */
};
_Static_assert((uint32_t)UM_IPC_CLIENTS_MAX <= (uint32_t)WAKEUP_BIT, "the bit is in no number");
static const int64_t GREETING_NS = INT64_C(5000000000);
static const int64_t WAITED_CHECK_NS = 50000000; /* how often the position of a receiver that blocks is read */

/* ---- opening ---- */

int um_ipc_server_open(um_ipc_server *server, um_reactor *reactor, um_source_session *session, uint32_t session_id,
                       uint32_t index, const um_ipc_source_config *config)
{
    *server = (um_ipc_server){
        .config = *config, .session = session, .session_id = session_id, .listener.fd = -1, .user_id = geteuid()};
    reactor->error_step = "shared memory";
    int result = um_ipc_fan_out_open(&server->fan_out, session, config->is_source_paced, config->capacity_bytes);
    if (result != 0)
        return result;
    reactor->error_step = "listening";
    result =
        um_stream_listener_open(&server->listener, reactor, index, um_ipc_listen(session_id, config->transport_id));
    if (result != 0)
        um_ipc_fan_out_close(&server->fan_out);
    return result;
}

/* ---- accepting and closing clients ---- */

static uint32_t number_of(const um_ipc_server *server, const um_ipc_client *client)
{
    return (uint32_t)(client - server->fan_out.clients);
}

/* The receiver holds the eventfd as well, so that closing it would not end its reports. */
static void forget_wakeups(um_ipc_server *server, const um_ipc_client *client)
{
    if (client->source_wake_fd >= 0)
        um_reactor_forget(server->listener.reactor, client->source_wake_fd);
}

/* Closes a client, and reports it if it had joined. */
static void drop(um_ipc_server *server, um_ipc_client *client)
{
    um_source_session *session = server->session;
    bool had_joined = client->state == UM_IPC_CLIENT_JOINED;
    um_address address = client->address;
    UM_COUNT(session->counters.connections_refused, !had_joined || client->has_failed);
    server->greeting_count -= !had_joined;
    forget_wakeups(server, client);
    um_ipc_fan_out_leave(&server->fan_out, client);
    if (!had_joined)
        return;
    um_source_session_on_client_report(session, address, NULL, um_clock_coarse_ns());
    UM_COUNT(session->counters.clients_disconnected, 1);
    um_source_events_add(&session->events, UM_SOURCE_CLIENT_DISCONNECTED, address, server->fan_out.joined_count);
}

static um_ipc_client *free_place(um_ipc_server *server)
{
    um_ipc_fan_out *fan_out = &server->fan_out;
    for (uint32_t i = 0; i < UM_IPC_CLIENTS_MAX; i++) {
        if (fan_out->clients[i].state != UM_IPC_CLIENT_NONE)
            continue;
        if (i >= fan_out->client_limit)
            fan_out->client_limit = i + 1;
        return &fan_out->clients[i];
    }
    return NULL;
}

/* ---- limits of users ---- */

static bool is_limited(const um_ipc_server *server, uint32_t user_id)
{
    return user_id != 0 && user_id != server->user_id;
}

/* Returns how many clients of the user are in the state. */
static uint32_t count_of(const um_ipc_server *server, enum um_ipc_client_state state, uint32_t user_id)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < server->fan_out.client_limit; i++) {
        const um_ipc_client *client = &server->fan_out.clients[i];
        count += client->state == state && client->user_id == user_id;
    }
    return count;
}

/* Returns true if a receiver of this user may not join, because its user has three quarters of the places. */
static bool is_over_share(const um_ipc_server *server, uint32_t user_id)
{
    uint32_t places = server->config.receivers_max, share = places - places / 4;
    return server->config.key == 0 && is_limited(server, user_id) &&
           count_of(server, UM_IPC_CLIENT_JOINED, user_id) >= share;
}

/* Makes space for a peer of this user: gives up the one that has not said HELLO for longest, of its user or of all. */
static void displace_greeting(um_ipc_server *server, uint32_t user_id)
{
    um_ipc_client *oldest = NULL;
    bool is_of_user =
        is_limited(server, user_id) && count_of(server, UM_IPC_CLIENT_GREETING, user_id) >= USER_GREETINGS_MAX;
    if (!is_of_user && server->greeting_count < GREETINGS_MAX)
        return;
    for (uint32_t i = 0; i < server->fan_out.client_limit; i++) {
        um_ipc_client *client = &server->fan_out.clients[i];
        if (client->state == UM_IPC_CLIENT_GREETING && (!is_of_user || client->user_id == user_id) &&
            (oldest == NULL || client->since_ns < oldest->since_ns))
            oldest = client;
    }
    if (oldest != NULL)
        drop(server, oldest);
}

static int service_client(um_ipc_server *server, um_ipc_client *client, int64_t now_ns);

/* Takes a connection; its HELLO, if it is there already, is answered at once. */
static void accept_one(um_ipc_server *server, int fd, um_ipc_peer peer, int64_t now_ns)
{
    displace_greeting(server, peer.user_id);
    um_ipc_client *client = free_place(server);
    if (client == NULL) {
        UM_COUNT(server->session->counters.connections_refused, 1);
        close(fd);
        return;
    }
    *client = (um_ipc_client){.state = UM_IPC_CLIENT_GREETING,
                              .fd = fd,
                              .wake_fd = -1,
                              .source_wake_fd = -1,
                              .can_share = um_ipc_can_share(&peer, server->user_id),
                              .address = um_address_of_v4(peer.process_id, server->accepted_count++),
                              .user_id = peer.user_id,
                              .since_ns = um_stream_listener_stamp(&server->listener, now_ns),
                              .page = {.fd = -1}};
    server->greeting_count++;
    if (um_stream_listener_watch(&server->listener, fd, number_of(server, client)) != 0)
        drop(server, client);
    else
        service_client(server, client, now_ns);
}

static int accept_clients(um_ipc_server *server, int64_t now_ns)
{
    int accepted = 0;
    for (; accepted < ACCEPTS_PER_EVENT && um_stream_listener_accepts(&server->listener, now_ns); accepted++) {
        um_ipc_peer peer;
        int fd = um_ipc_accept(server->listener.fd, &peer);
        if (um_stream_listener_pause(&server->listener, fd, now_ns))
            UM_COUNT(server->session->counters.connections_refused, 1);
        if (fd < 0)
            break;
        accept_one(server, fd, peer, now_ns);
    }
    return accepted;
}

/* ---- messages from clients ---- */

static void refuse(um_ipc_server *server, um_ipc_client *client, enum um_ipc_reason reason)
{
    um_ipc_control refused = um_ipc_control_make(UM_IPC_REFUSED, server->session_id);
    refused.reason = (uint16_t)reason;
    um_ipc_send(client->fd, &refused, NULL, 0);
    drop(server, client);
}

/* Sends the WELCOME, and starts to wait for the receiver's wake-ups. Returns false if either fails. */
static bool welcome(um_ipc_server *server, um_ipc_client *client, uint16_t version)
{
    const um_ipc_fan_out *fan_out = &server->fan_out;
    um_ipc_control message = um_ipc_control_make(UM_IPC_WELCOME, server->session_id);
    message.version_low = message.version_high = version;
    message.capacity_bytes = fan_out->writer.capacity_bytes;
    message.is_source_paced = fan_out->is_source_paced;
    message.position = fan_out->writer.position;
    const int fds[UM_IPC_DESCRIPTORS] = {
        [UM_IPC_LOG] = fan_out->log.fd,
        [UM_IPC_PAGE] = client->page.fd,
        [UM_IPC_WAKES_RECEIVER] = client->wake_fd,
        [UM_IPC_WAKES_SOURCE] = client->source_wake_fd,
    };
    bool has_wakeups = version >= UM_IPC_VERSION_EVENTS;
    assert(has_wakeups == (client->wake_fd >= 0) && has_wakeups == (client->source_wake_fd >= 0));
    if (has_wakeups && um_stream_listener_watch(&server->listener, client->source_wake_fd,
                                                number_of(server, client) | (uint32_t)WAKEUP_BIT) != 0)
        return false;
    return um_ipc_send(client->fd, &message, fds, has_wakeups ? UM_IPC_DESCRIPTORS : UM_IPC_WAKES_RECEIVER) == 0;
}

static void join(um_ipc_server *server, um_ipc_client *client, const um_ipc_control *hello)
{
    um_ipc_fan_out *fan_out = &server->fan_out;
    uint16_t version = um_ipc_common_version(hello, client->can_share);
    enum um_ipc_reason reason = um_ipc_judge_hello(hello, version, server->session_id, server->config.key,
                                                   fan_out->joined_count, server->config.receivers_max);
    if (reason == UM_IPC_REASON_NONE && is_over_share(server, client->user_id))
        reason = UM_IPC_REASON_FULL;
    if (reason == UM_IPC_REASON_NONE && um_ipc_fan_out_join(fan_out, client, version >= UM_IPC_VERSION_EVENTS) != 0)
        reason = UM_IPC_REASON_MEMORY;
    if (reason != UM_IPC_REASON_NONE) {
        refuse(server, client, reason);
        return;
    }
    server->greeting_count--;
    client->has_every_topic = version < UM_IPC_VERSION_TOPICS;
    client->has_failed = !welcome(server, client, version);
    um_segment_close_descriptor(&client->page);
    UM_COUNT(server->session->counters.clients_connected, 1);
    um_source_events_add(&server->session->events, UM_SOURCE_CLIENT_CONNECTED, client->address, fan_out->joined_count);
    if (client->has_failed)
        drop(server, client);
}

/* Returns true if the message was one that the client may send now. */
static bool on_message(um_ipc_server *server, um_ipc_client *client, const um_ipc_control *message, int64_t now_ns)
{
    if (client->state == UM_IPC_CLIENT_GREETING && message->kind == UM_IPC_HELLO) {
        join(server, client, message);
        return true;
    }
    if (client->state != UM_IPC_CLIENT_JOINED)
        return false;
    if (message->kind != UM_IPC_TOPIC)
        return message->kind == UM_IPC_WAKE && client->wake_fd < 0;
    if (message->is_wanted)
        client->has_every_topic |= !um_topic_filter_add(&client->topics, message->topic_index);
    else
        um_topic_filter_remove(&client->topics, message->topic_index);
    um_topic_report report = {.count = 1, .topics = {{message->topic_index, message->message_max_bytes}}};
    um_source_session_on_client_report(server->session, client->address, &report, now_ns);
    return true;
}

/* Reads the client's position. Returns 1 if it ended a wait, else 0; closes a client that breaks the rules. */
static int service_position(um_ipc_server *server, um_ipc_client *client, int64_t now_ns)
{
    if (client->state == UM_IPC_CLIENT_JOINED)
        um_ipc_fan_out_update(&server->fan_out, client, now_ns);
    int handled = um_ipc_fan_out_take_space(client);
    if (client->has_failed)
        drop(server, client);
    return handled;
}

/* Reads the client's messages and its position. Returns how many messages; closes a client that has ended or failed. */
static int service_client(um_ipc_server *server, um_ipc_client *client, int64_t now_ns)
{
    int handled = 0;
    for (; handled < READS_PER_EVENT && client->state != UM_IPC_CLIENT_NONE && !client->has_failed; handled++) {
        um_ipc_control message;
        int got = um_ipc_receive(client->fd, &message, NULL);
        if (got == -EAGAIN)
            break;
        if (got == 1 && on_message(server, client, &message, now_ns))
            continue;
        if (got != 0) /* it broke the rules; else it has closed its socket, or died */
            client->has_failed = true;
        drop(server, client);
        return handled + 1;
    }
    if (client->state == UM_IPC_CLIENT_NONE)
        return handled;
    if (handled == READS_PER_EVENT)
        um_stream_listener_watch_again(&server->listener, client->fd, number_of(server, client));
    return handled + service_position(server, client, now_ns);
}

/* ---- called by the loop ---- */

/* Handles a report of the client with this number: of its socket, or of its eventfd. */
static int on_client_event(um_ipc_server *server, uint32_t number, bool is_wakeup, int64_t now_ns)
{
    if (number >= server->fan_out.client_limit || server->fan_out.clients[number].state == UM_IPC_CLIENT_NONE)
        return 0;
    um_ipc_client *client = &server->fan_out.clients[number];
    return is_wakeup ? service_position(server, client, now_ns) : service_client(server, client, now_ns);
}

int um_ipc_server_on_event(um_ipc_server *server, uint32_t client, int64_t now_ns)
{
    if (!um_lock_try(&server->session->sender_lock)) {
        server->is_due = true;
        return UM_STREAM_SERVER_BUSY;
    }
    uint32_t number = client & ~(uint32_t)WAKEUP_BIT;
    int handled = client == UM_STREAM_LISTENER ? accept_clients(server, now_ns)
                                               : on_client_event(server, number, number != client, now_ns);
    um_lock_release(&server->session->sender_lock);
    return handled;
}

/* Closes a receiver that has held the session for the stall timeout, and a peer that never said HELLO. Returns when the
 * client is to be checked again. */
static int64_t check_overdue(um_ipc_server *server, um_ipc_client *client, int64_t now_ns)
{
    um_source_session *session = server->session;
    int64_t stall_ns = server->config.stall_timeout_ns;
    if (client->state == UM_IPC_CLIENT_GREETING) {
        if (now_ns - client->since_ns < GREETING_NS)
            return client->since_ns + GREETING_NS;
        drop(server, client);
        return UM_NEVER_NS;
    }
    if (client->state != UM_IPC_CLIENT_JOINED || !client->is_waited_for)
        return UM_NEVER_NS;
    if (stall_ns == 0 || now_ns - client->since_ns < stall_ns)
        return now_ns + WAITED_CHECK_NS;
    UM_COUNT(session->counters.receivers_stalled, 1);
    um_source_events_add(&session->events, UM_SOURCE_RECEIVER_STALLED, client->address,
                         (uint64_t)(now_ns - client->since_ns));
    drop(server, client);
    return now_ns;
}

/* Sends the session message if that is due. Returns when the next one is. */
static int64_t beat(um_ipc_server *server, int64_t now_ns)
{
    um_shared_writer *writer = &server->fan_out.writer;
    if (now_ns < server->beat_due_ns)
        return server->beat_due_ns;
    if (writer->position == server->beat_position) {
        um_shared_writer_beat(writer);
        UM_COUNT(server->session->counters.session_messages_sent, 1);
    }
    server->beat_position = writer->position;
    server->beat_due_ns = now_ns + server->config.sm_interval_ns;
    return server->beat_due_ns;
}

int um_ipc_server_service(um_ipc_server *server, int64_t now_ns, int64_t *due_ns)
{
    if (!um_lock_try(&server->session->sender_lock)) {
        *due_ns = now_ns;
        return UM_STREAM_SERVER_BUSY;
    }
    bool was_due = server->is_due;
    int handled = was_due ? accept_clients(server, now_ns) : 0;
    server->is_due = false;
    *due_ns = beat(server, now_ns);
    for (uint32_t i = 0; i < server->fan_out.client_limit; i++) {
        um_ipc_client *client = &server->fan_out.clients[i];
        if (client->state != UM_IPC_CLIENT_NONE && (was_due || client->has_failed || client->is_waited_for))
            handled += service_client(server, client, now_ns);
        bool was_joined = client->state == UM_IPC_CLIENT_JOINED;
        *due_ns = um_earliest_ns(*due_ns, check_overdue(server, client, now_ns));
        handled += was_joined && client->state == UM_IPC_CLIENT_NONE;
    }
    *due_ns = um_earliest_ns(*due_ns, um_stream_listener_resume(&server->listener, now_ns));
    um_lock_release(&server->session->sender_lock);
    return handled;
}

void um_ipc_server_close(um_ipc_server *server)
{
    for (uint32_t i = 0; i < server->fan_out.client_limit; i++)
        if (server->fan_out.clients[i].state != UM_IPC_CLIENT_NONE)
            forget_wakeups(server, &server->fan_out.clients[i]);
    um_ipc_fan_out_close(&server->fan_out);
    um_stream_listener_close(&server->listener);
}
