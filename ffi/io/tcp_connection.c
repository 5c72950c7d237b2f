/* One file, because connecting, keys, filtering and receiving are steps of one connection and share its socket. */
#include "io/tcp_connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include "core/receiver/topic_reports.h"
#include "core/wire/tcp_control.h"
#include "core/wire/topic_report.h"
#include "io/tcp_socket.h"
#include "os/clock.h"
#include "os/memory.h"

enum {
    STREAM_BYTES = 192 * 1024, /* one receive call fills it; holds the longest message */
    OUT_BYTES = 32 * 1024,
    RECEIVES_PER_CALL = 8,
    BACK_OFF_MAX = 8,        /* times the reconnect interval */
    NOT_REQUESTED = 1 << 30, /* in serial order after any request that an answer can be for */
};
static const int64_t GOOD_NS = 1000000000;    /* a connection that lasted this long was good */
static const int64_t ATTEMPT_NS = 2000000000; /* maximum time of an attempt; the system's is minutes */
static const int64_t OUT_RETRY_NS = 10000000;
static const int64_t PROOF_NS = INT64_C(5000000000); /* as long as a source waits for a client's greeting */

int um_tcp_connection_open(um_tcp_connection *connection, um_reactor *reactor, um_node *node,
                           um_receiver_session *session, uint32_t index, const um_socket_config *socket_config,
                           uint32_t *changes, um_link_counters *counters, const um_key_set *keys)
{
    *connection = (um_tcp_connection){.reactor = reactor,
                                      .node = node,
                                      .session = session,
                                      .counters = counters,
                                      .changes = changes,
                                      .keys = keys,
                                      .index = index,
                                      .socket_config = socket_config,
                                      .fd = -1,
                                      .is_reported = true,
                                      .interval_ns = session->config.reconnect_interval_ns,
                                      .lost_since_ns = session->created_ns,
                                      .memory = um_map(STREAM_BYTES + OUT_BYTES)};
    if (connection->memory == NULL)
        return -ENOMEM;
    um_message_stream_init(&connection->stream, connection->memory, STREAM_BYTES, UM_LBMC_MESSAGE_BYTES_MAX);
    connection->out = (um_byte_ring){.memory = (uint8_t *)connection->memory + STREAM_BYTES, .capacity = OUT_BYTES};
    return 0;
}

int um_tcp_connection_rekey(um_tcp_connection *connection)
{
    return connection->tags != NULL ? um_stream_tags_set_keys(connection->tags, connection->keys) : 0;
}

/* Shuts the socket down first, for a thread that waits for the descriptor and would keep the socket open. */
static void close_socket(um_tcp_connection *connection)
{
    um_stream_tags_close(connection->tags);
    connection->tags = NULL;
    connection->stream.verifier = NULL;
    if (connection->fd < 0)
        return;
    shutdown(connection->fd, SHUT_RDWR);
    close(connection->fd);
    connection->fd = -1;
    ++*connection->changes;
}

void um_tcp_connection_close(um_tcp_connection *connection)
{
    close_socket(connection);
    um_unmap(connection->memory, STREAM_BYTES + OUT_BYTES);
    connection->memory = NULL;
    connection->state = UM_TCP_ENDED;
}

void um_tcp_connection_report(um_tcp_connection *connection, bool is_reported)
{
    connection->is_reported = is_reported;
    if (connection->state != UM_TCP_CONNECTED)
        return;
    if (is_reported)
        um_reactor_watch_again(connection->reactor, connection->fd, UM_WATCH_GROUP, connection->index);
    else
        um_reactor_unwatch(connection->reactor, connection->fd, UM_WATCH_GROUP, connection->index);
}

/* ---- the life of a connection ---- */

static void end(um_tcp_connection *connection, int64_t now_ns)
{
    close_socket(connection);
    connection->state = UM_TCP_ENDED;
    connection->has_rest = false;
    um_receiver_session_end(connection->session, now_ns);
    um_reactor_wake_by(connection->reactor, now_ns); /* the loop removes the session */
}

/* Handles a lost or failed connection: the next attempt follows, unless it is too late for one. Its time is random, so
 * that the receivers of a source do not reconnect all at once. */
static void lose(um_tcp_connection *connection, bool was_good, int64_t now_ns)
{
    const um_receiver_session_config *config = &connection->session->config;
    close_socket(connection);
    um_message_stream_restart(&connection->stream);
    um_byte_ring_drop(&connection->out, connection->out.used);
    connection->has_rest = connection->needs_announcement = false;
    connection->is_joined = connection->is_filtered = connection->is_answered = false;
    connection->request_count = 0;
    for (um_delivery *d = connection->session->controllers; d != NULL; d = d->next)
        d->is_awaiting_interest = d->is_topic_reported = false; /* data in transit is lost with the connection */
    if (was_good) {
        connection->lost_since_ns = now_ns;
        connection->interval_ns = config->reconnect_interval_ns;
    }
    if (now_ns - connection->lost_since_ns >= config->reconnect_timeout_ns) {
        end(connection, now_ns);
        return;
    }
    connection->state = UM_TCP_WAITING;
    connection->due_ns = now_ns + um_random_backoff_ns(&connection->session->random, connection->interval_ns);
    if (connection->interval_ns < BACK_OFF_MAX * config->reconnect_interval_ns)
        connection->interval_ns *= 2;
    um_reactor_wake_by(connection->reactor, connection->due_ns); /* in case a leading reader found the loss */
}

static void on_connection_lost(um_tcp_connection *connection, int64_t now_ns)
{
    bool has_lasted = connection->keys == NULL && now_ns - connection->connected_ns >= GOOD_NS;
    bool was_good = connection->has_proved || has_lasted;
    UM_COUNT(connection->session->counters.disconnects, 1);
    lose(connection, was_good, now_ns);
}

static void begin_to_connect(um_tcp_connection *connection, int64_t now_ns)
{
    const um_receiver_session_config *config = &connection->session->config;
    um_tcp_socket_config socket_config = {.no_delay = true,
                                          .traffic_class = connection->socket_config->traffic_class,
                                          .receive_buffer_bytes = config->receive_buffer_bytes,
                                          .activity_timeout_ns = config->connection_timeout_ns};
    int fd = um_tcp_connect(config->id.source, connection->socket_config->interface_ip, &socket_config);
    if (fd < 0) {
        lose(connection, false, now_ns);
        return;
    }
    connection->fd = fd;
    connection->state = UM_TCP_CONNECTING;
    connection->due_ns = now_ns + ATTEMPT_NS;
    connection->has_greeted = connection->has_proved = false;
    if (um_reactor_watch_connecting(connection->reactor, fd, connection->index) != 0)
        lose(connection, false, now_ns);
}

/* ---- messages to the source ---- */

/* Returns false if the connection is dead. */
static bool flush_out(um_tcp_connection *connection)
{
    while (connection->out.used > 0) {
        uint32_t length;
        const uint8_t *data = um_byte_ring_oldest(&connection->out, &length);
        ssize_t sent = send(connection->fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
        UM_COUNT(connection->counters->syscalls, 1);
        if (sent < 0)
            return errno == EAGAIN || errno == EINTR;
        um_byte_ring_drop(&connection->out, (uint32_t)sent);
        UM_COUNT(connection->counters->bytes_sent, sent);
    }
    return true;
}

/* Writes control messages; with tags, as one record. Returns false if there is no space. */
static bool put(um_tcp_connection *connection, uint8_t *message, uint32_t length)
{
    uint8_t header[UM_RECORD_HEADER_BYTES];
    uint32_t header_bytes = connection->tags != NULL ? sizeof header : 0;
    if (header_bytes + length > um_byte_ring_space(&connection->out))
        return false;
    if (header_bytes > 0 && um_stream_tags_head(connection->tags, header, message, length) != 0)
        return false; /* libcrypto has failed: nothing more can be sent */
    um_byte_ring_append(&connection->out, header, header_bytes);
    um_byte_ring_append(&connection->out, message, length);
    return true;
}

/* With the longest message of the topic, if the source is one of ours. */
static bool put_request(um_tcp_connection *connection, uint32_t topic_index, bool is_wanted)
{
    um_receiver_session *session = connection->session;
    uint8_t request[UM_TCP_SSF_REQUEST_BYTES + UM_TOPIC_REPORT_LBMC_BYTES_MAX];
    uint32_t length = um_tcp_write_ssf_request(request, is_wanted, session->config.id.session_id,
                                               connection->client_index, topic_index);
    if (connection->is_answered) {
        uint32_t most_bytes = um_topic_reports_message_max(um_topic_table_slot(&session->topics, topic_index)->first);
        um_topic_report report = {.count = 1, .topics = {{topic_index, most_bytes}}};
        length += um_topic_report_write(request + length, &report);
    }
    bool is_put = put(connection, request, length);
    connection->request_count += is_put;
    return is_put;
}

/* Writes the first message to the source: the session id. A source that advertises none gets none; with tags it still
 * gets an empty message, because a record proves who sent it. */
static void put_session_id(um_tcp_connection *connection)
{
    uint8_t message[UM_TCP_SESSION_ID_BYTES];
    uint32_t session_id = connection->session->config.id.session_id;
    if (session_id != 0)
        put(connection, message, um_tcp_write_session_id(message, session_id));
    else if (connection->tags != NULL)
        put(connection, message, um_tcp_write_nothing(message));
}

/* Returns false if there is no randomness. */
static bool put_greeting(um_tcp_connection *connection)
{
    um_stream_greeting said = {UM_STREAM_SESSION, connection->session->config.id.session_id,
                               connection->keys->keys[0].id, connection->keys->keys[0].encrypts};
    if (um_stream_greeting_write(connection->greeting, &said) != 0)
        return false;
    um_byte_ring_append(&connection->out, connection->greeting, UM_RECORD_HEADER_BYTES);
    return true;
}

/* Requests a controller's topic, maybe again. Without space the tick does so. */
static void announce_topic(um_tcp_connection *connection, um_delivery *delivery)
{
    delivery->is_topic_reported = put_request(connection, delivery->topic_index, true) ||
                                  (flush_out(connection) && put_request(connection, delivery->topic_index, true));
    if (delivery->is_topic_reported && um_serial_before(connection->request_count, delivery->request_count))
        delivery->request_count = connection->request_count;
    connection->needs_announcement |= !delivery->is_topic_reported;
}

/* Requests the topics that were not requested on this connection, until there is no space. */
static void announce_topics(um_tcp_connection *connection)
{
    connection->needs_announcement = false;
    for (um_delivery *d = connection->session->controllers; d != NULL && !connection->needs_announcement; d = d->next)
        if (!d->is_topic_reported)
            announce_topic(connection, d);
    flush_out(connection);
}

void um_tcp_connection_report_limit(um_tcp_connection *connection, um_delivery *first)
{
    if (connection->state != UM_TCP_CONNECTED || !connection->is_answered)
        return;
    announce_topic(connection, first);
    flush_out(connection);
}

/* A topic that already has a controller is already requested. */
void um_tcp_connection_request_topic(um_tcp_connection *connection, um_delivery *delivery)
{
    const um_delivery *other = delivery->next_of_topic;
    if (connection->state != UM_TCP_CONNECTED || !connection->is_joined)
        return;
    if (other != NULL) {
        delivery->is_awaiting_interest = other->is_awaiting_interest;
        delivery->request_count = other->request_count;
        delivery->is_topic_reported = other->is_topic_reported;
        if (um_topic_reports_message_max(delivery) != um_topic_reports_message_max(other))
            um_tcp_connection_report_limit(connection, delivery);
        return;
    }
    delivery->is_awaiting_interest = connection->is_answered && connection->is_filtered;
    delivery->request_count = connection->request_count + NOT_REQUESTED;
    if (!connection->needs_announcement)
        announce_topic(connection, delivery);
    flush_out(connection); /* the next receive call detects a dead connection */
}

bool um_tcp_connection_is_joined(const um_tcp_connection *connection, int64_t now_ns)
{
    bool has_lasted = connection->keys == NULL && now_ns - connection->connected_ns >= UM_JOIN_UNANSWERED_NS;
    return connection->state == UM_TCP_CONNECTED && (connection->is_joined || connection->has_proved || has_lasted);
}

void um_tcp_connection_cancel_topic(um_tcp_connection *connection, uint32_t topic_index)
{
    if (connection->state != UM_TCP_CONNECTED || !connection->is_joined)
        return;
    put_request(connection, topic_index, false);
    flush_out(connection);
}

void um_tcp_connection_on_connected(um_tcp_connection *connection, int64_t now_ns)
{
    if (connection->state != UM_TCP_CONNECTING)
        return;
    if (um_tcp_connect_result(connection->fd) != 0) {
        lose(connection, false, now_ns);
        return;
    }
    um_receiver_session *session = connection->session;
    if (connection->connected_ns == 0 && !session->is_active)
        um_first_contact_accepted(session->contacts, session->config.id.source.ip, session->config.advertiser);
    if (connection->keys == NULL)
        put_session_id(connection);
    bool has_greeted = connection->keys == NULL || put_greeting(connection);
    connection->state = UM_TCP_CONNECTED;
    connection->connected_ns = now_ns;
    connection->due_ns = now_ns + PROOF_NS;
    ++*connection->changes;
    UM_COUNT(connection->session->counters.connects, 1);
    um_tcp_connection_report(connection, connection->is_reported);
    if (!has_greeted || !flush_out(connection))
        on_connection_lost(connection, now_ns);
    else if (connection->keys != NULL)
        um_reactor_wake_by(connection->reactor, connection->due_ns);
}

/* ---- keys ---- */

/* Ends the connection, because the peer is not the source, has another key, or only one side has keys. */
static void refuse(um_tcp_connection *connection, enum um_tag_status reason, int64_t now_ns)
{
    um_count_unverified(&connection->session->counters.dgrams_dropped_tag_missing, reason);
    UM_COUNT(connection->session->counters.disconnects, 1);
    lose(connection, connection->has_proved, now_ns);
}

/* Handles the source's first message, its greeting; later messages have tags. Returns the reason for a refusal. */
static enum um_tag_status on_greeting(um_tcp_connection *connection, const uint8_t *data, uint32_t length)
{
    um_stream_greeting ours, theirs;
    if (length != UM_RECORD_HEADER_BYTES || !um_stream_greeting_read(data, &theirs))
        return UM_TAG_MISSING;
    um_stream_greeting_read(connection->greeting, &ours);
    const um_key *key = um_key_set_find(connection->keys, ours.key_id);
    if (theirs.kind != ours.kind || theirs.key_id != ours.key_id || key == NULL)
        return UM_TAG_KEY_UNKNOWN;
    if (theirs.is_encrypted != key->encrypts)
        return UM_TAG_ENCRYPTION;
    connection->tags =
        um_stream_tags_open_session(key, false, connection->greeting, data, connection->session->config.id.source);
    if (connection->tags == NULL || um_stream_tags_set_keys(connection->tags, connection->keys) != 0)
        return UM_TAG_WRONG;
    um_message_stream_verify(&connection->stream, um_stream_tags_verifier(connection->tags));
    put_session_id(connection);
    return UM_TAG_OK;
}

/* Takes the greeting if it has arrived. Returns false if there is nothing more to take: it has not arrived, or the
 * connection is closed. */
static bool take_greeting(um_tcp_connection *connection, int64_t now_ns)
{
    const uint8_t *data = NULL;
    uint32_t length;
    enum um_stream_part part = um_message_stream_next(&connection->stream, UM_RECORD_HEADER_BYTES, &data, &length);
    if (part == UM_STREAM_MORE)
        return false;
    enum um_tag_status reason = part == UM_STREAM_CONTROL ? on_greeting(connection, data, length) : UM_TAG_MISSING;
    if (reason != UM_TAG_OK) {
        refuse(connection, reason, now_ns);
        return false;
    }
    if (!flush_out(connection)) {
        on_connection_lost(connection, now_ns);
        return false;
    }
    return true;
}

/* Returns true if the source of a session without keys sends a greeting: it has keys. */
static bool is_greeting(const um_tcp_connection *connection, const uint8_t *data, uint32_t length)
{
    um_stream_greeting said;
    return connection->keys == NULL && !connection->has_proved && length == UM_RECORD_HEADER_BYTES &&
           um_stream_greeting_read(data, &said);
}

/* ---- receiving ---- */

static void on_answer(um_tcp_connection *connection, uint32_t request_count)
{
    um_receiver_session *session = connection->session;
    for (um_delivery *d = session->controllers; d != NULL; d = d->next) {
        if (!d->is_awaiting_interest || um_serial_before(request_count, d->request_count))
            continue;
        d->is_awaiting_interest = false;
        d->mapped_sqn = session->next_sqn;
    }
}

/* Handles a control message about filtering; returns true if it was one. */
static bool take_filter_control(um_tcp_connection *connection, const uint8_t *data, uint32_t length)
{
    um_tcp_control_reader reader = um_tcp_control_read(data, length);
    um_tcp_control control;
    while ((control = um_tcp_control_next(&reader)).kind != UM_TCP_NOTHING) {
        if (control.kind == UM_TCP_SSF_INIT) {
            connection->client_index = control.client_index;
            connection->is_answered = control.is_answering;
            connection->is_filtered = control.is_filtering;
            connection->is_joined = true;
            connection->has_proved |= connection->tags != NULL;
            announce_topics(connection);
            return true;
        }
        if (control.kind == UM_TCP_SSF_INCLUDE || control.kind == UM_TCP_SSF_EXCLUDE) {
            on_answer(connection, control.client_index);
            return true;
        }
    }
    return false;
}

/* Notes that the peer is a source: other sessions of its address are connected without delay. */
static void note_answer(um_tcp_connection *connection, int64_t now_ns)
{
    um_receiver_session *session = connection->session;
    if (!session->is_active)
        um_first_contact_answered(session->contacts, session->config.id.source.ip, now_ns);
}

/* Delivers whole messages. Returns false if reading must stop: a queue is full, or the connection is closed. */
static bool deliver_stream(um_tcp_connection *connection, int64_t received_ns, int64_t now_ns, int *delivered)
{
    uint32_t run_max = connection->session->store->small.bytes, length;
    const uint8_t *data;
    if (connection->keys != NULL && connection->tags == NULL && !take_greeting(connection, now_ns))
        return connection->state == UM_TCP_CONNECTED;
    while (!um_message_stream_is_empty(&connection->stream)) {
        um_node_review_queues(connection->node, now_ns);
        connection->has_rest = connection->session->is_held;
        if (connection->has_rest)
            return false;
        switch (um_message_stream_next(&connection->stream, run_max, &data, &length)) {
        case UM_STREAM_MORE:
            return true;
        case UM_STREAM_CONTROL:
            note_answer(connection, now_ns);
            if (take_filter_control(connection, data, length))
                continue;
            if (is_greeting(connection, data, length)) {
                refuse(connection, UM_TAG_KEY_UNKNOWN, now_ns);
                return false;
            }
            if (length == UM_LBMC_CONTROL_BYTES) { /* empty: the source only proves that it has the key */
                connection->has_proved = true;
                continue;
            }
            break;
        case UM_STREAM_MESSAGES:
            break;
        case UM_STREAM_END:
            end(connection, now_ns);
            return false;
        case UM_STREAM_BROKEN:
            if (connection->stream.refused_by != UM_TAG_OK) {
                refuse(connection, connection->stream.refused_by, now_ns);
                return false;
            }
            um_receiver_session_drop(connection->session, connection->stream.broken_by);
            UM_COUNT(connection->session->counters.disconnects, 1);
            lose(connection, false, now_ns);
            return false;
        }
        connection->has_proved = true;
        UM_COUNT(connection->counters->datagrams_received, 1);
        um_receiver_session_on_messages(connection->session, data, length, received_ns, now_ns);
        ++*delivered;
        if (connection->session->has_ended)
            return false;
    }
    return true;
}

int um_tcp_connection_receive(um_tcp_connection *connection, int64_t now_ns, bool *more)
{
    int delivered = 0;
    *more = false;
    if (connection->state != UM_TCP_CONNECTED || !deliver_stream(connection, um_clock_wall_ns(), now_ns, &delivered))
        return delivered;
    for (int i = 0; i < RECEIVES_PER_CALL; i++) {
        uint32_t space;
        uint8_t *into = um_message_stream_space(&connection->stream, &space);
        ssize_t got = recv(connection->fd, into, space, MSG_DONTWAIT);
        UM_COUNT(connection->counters->syscalls, 1);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return delivered;
        if (got <= 0) {
            on_connection_lost(connection, now_ns);
            return delivered;
        }
        UM_COUNT(connection->counters->bytes_received, got);
        um_message_stream_add(&connection->stream, (uint32_t)got);
        if (!deliver_stream(connection, um_clock_wall_ns(), now_ns, &delivered))
            return delivered;
        if ((uint32_t)got < space) /* data that has arrived since is reported */
            return delivered;
    }
    *more = true;
    return delivered;
}

/* ---- timers ---- */

/* Connects, or postpones it if the source never answered. */
static void try_to_connect(um_tcp_connection *connection, int64_t now_ns)
{
    int64_t wait_ns = um_receiver_session_contact_wait_ns(connection->session, now_ns);
    if (wait_ns != 0)
        connection->due_ns = now_ns + wait_ns;
    else
        begin_to_connect(connection, now_ns);
}

static int64_t tick_connected(um_tcp_connection *connection, int64_t now_ns)
{
    int64_t proof_ns = connection->keys != NULL && !connection->has_proved ? connection->due_ns : UM_NEVER_NS;
    if (now_ns >= proof_ns) { /* the listener is not the source, or sends nothing */
        on_connection_lost(connection, now_ns);
        return connection->state == UM_TCP_ENDED ? UM_NEVER_NS : connection->due_ns;
    }
    if (connection->needs_announcement)
        announce_topics(connection);
    else if (connection->out.used > 0)
        flush_out(connection);
    return connection->needs_announcement || connection->out.used > 0 ? now_ns + OUT_RETRY_NS : proof_ns;
}

int64_t um_tcp_connection_tick(um_tcp_connection *connection, int64_t now_ns)
{
    switch (connection->state) {
    case UM_TCP_WAITING:
        if (now_ns >= connection->due_ns)
            try_to_connect(connection, now_ns);
        break;
    case UM_TCP_CONNECTING:
        if (now_ns >= connection->due_ns)
            lose(connection, false, now_ns);
        break;
    case UM_TCP_CONNECTED:
        return tick_connected(connection, now_ns);
    case UM_TCP_ENDED:
        return UM_NEVER_NS;
    }
    return connection->state == UM_TCP_ENDED ? UM_NEVER_NS : connection->due_ns;
}
