#include "io/ipc_connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include "core/receiver/topic_reports.h"
#include "io/ipc_socket.h"
#include "io/ipc_wakeup.h"
#include "os/clock.h"
#include "os/memory.h"

enum {
    STREAM_BYTES = 192 * 1024, /* holds a record behind an incomplete message of the longest length */
    FILLS_PER_CALL = 16,
    CONTROLS_PER_CHECK = 4,
    BACK_OFF_MAX = 8, /* times the first interval between attempts */
    LIFE_CHECKS = 4,  /* per activity timeout */
};
_Static_assert((uint32_t)STREAM_BYTES >= (uint32_t)UM_LBMC_MESSAGE_BYTES_MAX + UM_SHARED_RECORD_BYTES_MAX,
               "a record always fits behind an incomplete message");
static const int64_t INTERVAL_NS = 100000000;
static const int64_t GREETING_NS = INT64_C(5000000000);
static const int64_t TOPICS_RETRY_NS = 10000000;
static const int64_t CHECK_NS = 10000000; /* how often a thread that polls reads the socket */

int um_ipc_connection_open(um_ipc_connection *connection, um_reactor *reactor, um_node *node,
                           um_receiver_session *session, uint32_t index, uint32_t *changes, um_link_counters *counters)
{
    *connection = (um_ipc_connection){.reactor = reactor,
                                      .node = node,
                                      .session = session,
                                      .counters = counters,
                                      .changes = changes,
                                      .index = index,
                                      .fd = -1,
                                      .wake_fd = -1,
                                      .source_wake_fd = -1,
                                      .is_reported = true,
                                      .interval_ns = INTERVAL_NS,
                                      .alive_ns = session->created_ns,
                                      .log = {.fd = -1},
                                      .page = {.fd = -1},
                                      .memory = um_map(STREAM_BYTES)};
    if (connection->memory == NULL)
        return -ENOMEM;
    um_message_stream_init(&connection->stream, connection->memory, STREAM_BYTES, UM_LBMC_MESSAGE_BYTES_MAX);
    return 0;
}

/* The source holds the eventfds as well, so closing ours neither ends their reports nor wakes a thread that waits. */
static void close_wakeups(um_ipc_connection *connection)
{
    if (connection->wake_fd < 0)
        return;
    um_reactor_forget(connection->reactor, connection->wake_fd);
    um_ipc_wakeup_send(connection->wake_fd);
    close(connection->wake_fd);
    close(connection->source_wake_fd);
    connection->wake_fd = connection->source_wake_fd = -1;
}

/* Closes the socket and the eventfds. Shuts the socket down first, for a thread that waits for the descriptor and would
 * keep the socket open. */
static void close_descriptors(um_ipc_connection *connection)
{
    assert(connection->fd >= 0 || connection->wake_fd < 0);
    assert((connection->wake_fd < 0) == (connection->source_wake_fd < 0));
    if (connection->fd < 0)
        return;
    close_wakeups(connection);
    shutdown(connection->fd, SHUT_RDWR);
    close(connection->fd);
    connection->fd = -1;
    connection->is_armed = false;
    ++*connection->changes;
}

static void detach(um_ipc_connection *connection)
{
    close_descriptors(connection);
    um_segment_close(&connection->log);
    um_segment_close(&connection->page);
    um_message_stream_restart(&connection->stream);
}

void um_ipc_connection_close(um_ipc_connection *connection)
{
    detach(connection);
    um_unmap(connection->memory, STREAM_BYTES);
    connection->memory = NULL;
    connection->state = UM_IPC_ENDED;
}

static void watch(um_ipc_connection *connection)
{
    int fd = um_ipc_connection_descriptor(connection);
    if (connection->is_reported)
        um_reactor_watch_again(connection->reactor, fd, UM_WATCH_GROUP, connection->index);
    else
        um_reactor_unwatch(connection->reactor, fd, UM_WATCH_GROUP, connection->index);
}

void um_ipc_connection_report(um_ipc_connection *connection, bool is_reported)
{
    connection->is_reported = is_reported;
    if (connection->fd >= 0)
        watch(connection);
}

/* ---- the life of a connection ---- */

static void end(um_ipc_connection *connection, int64_t now_ns)
{
    detach(connection);
    connection->state = UM_IPC_ENDED;
    um_receiver_session_end(connection->session, now_ns);
    um_reactor_wake_by(connection->reactor, now_ns); /* the loop removes the session */
}

/* Returns false if the socket is full, or closed. */
static bool send_topic(const um_ipc_connection *connection, uint32_t topic_index, bool is_wanted)
{
    um_ipc_control topic = um_ipc_control_make(UM_IPC_TOPIC, connection->session->config.id.session_id);
    topic.topic_index = topic_index;
    topic.is_wanted = is_wanted;
    topic.message_max_bytes =
        um_topic_reports_message_max(um_topic_table_slot(&connection->session->topics, topic_index)->first);
    UM_COUNT(connection->counters->syscalls, 1);
    return um_ipc_send(connection->fd, &topic, NULL, 0) == 0;
}

void um_ipc_connection_report_topic(um_ipc_connection *connection, um_delivery *delivery)
{
    if (connection->state != UM_IPC_ATTACHED || !connection->takes_topics || connection->needs_announcement)
        return;
    delivery->is_topic_reported = send_topic(connection, delivery->topic_index, true);
    connection->needs_announcement = !delivery->is_topic_reported;
}

/* Reports the topics that were not reported on this socket, until it is full: the tick continues. */
static void report_topics(um_ipc_connection *connection)
{
    connection->needs_announcement = false;
    for (um_delivery *d = connection->session->controllers; d != NULL; d = d->next)
        if (!d->is_topic_reported)
            um_ipc_connection_report_topic(connection, d);
}

void um_ipc_connection_cancel_topic(um_ipc_connection *connection, uint32_t topic_index)
{
    if (connection->state == UM_IPC_ATTACHED && connection->takes_topics)
        send_topic(connection, topic_index, false);
}

/* Handles a lost or failed attachment: the next attempt follows, unless it is too late for one. */
static void lose(um_ipc_connection *connection, int64_t now_ns)
{
    detach(connection);
    if (now_ns - connection->alive_ns >= connection->session->config.connection_timeout_ns) {
        end(connection, now_ns);
        return;
    }
    connection->state = UM_IPC_WAITING;
    connection->due_ns = now_ns + um_random_backoff_ns(&connection->session->random, connection->interval_ns);
    if (connection->interval_ns < BACK_OFF_MAX * INTERVAL_NS)
        connection->interval_ns *= 2;
    um_reactor_wake_by(connection->reactor, connection->due_ns); /* in case a leading reader found the loss */
}

static void on_broken(um_ipc_connection *connection, enum um_dgram_status reason, int64_t now_ns)
{
    um_receiver_session_drop(connection->session, reason);
    UM_COUNT(connection->session->counters.disconnects, 1);
    lose(connection, now_ns);
}

static void attach(um_ipc_connection *connection, int64_t now_ns)
{
    const um_session_id *id = &connection->session->config.id;
    int fd = um_ipc_connect(id->session_id, id->source.port);
    if (fd == -ECONNREFUSED) { /* the source ended or died: its socket exists as long as it does */
        end(connection, now_ns);
        return;
    }
    um_ipc_peer source = {0};
    if (fd >= 0)
        source = um_ipc_peer_of(fd);
    connection->can_share = um_ipc_can_share(&source, geteuid()) && um_ipc_wakeup_can_check();
    um_ipc_control hello = um_ipc_control_make(UM_IPC_HELLO, id->session_id);
    hello.version_high = um_ipc_highest_version(connection->can_share);
    hello.key = id->log_key;
    connection->fd = fd >= 0 ? fd : -1;
    if (fd < 0 || um_ipc_send(fd, &hello, NULL, 0) != 0 ||
        um_reactor_watch(connection->reactor, fd, UM_WATCH_GROUP, connection->index) != 0) {
        lose(connection, now_ns);
        return;
    }
    watch(connection);
    connection->state = UM_IPC_GREETING;
    connection->due_ns = now_ns + GREETING_NS;
}

static void note_life(um_ipc_connection *connection, int64_t now_ns)
{
    connection->alive_ns = now_ns;
    connection->seen_end = connection->reader.end_position;
    connection->seen_heartbeat = um_shared_reader_heartbeat(&connection->reader);
    connection->due_ns = now_ns + connection->session->config.connection_timeout_ns / LIFE_CHECKS;
}

/* Maps the segments of a WELCOME. Returns false if they differ from what the message announces. */
static bool map_log(um_ipc_connection *connection, const um_ipc_control *welcome, const int *fds)
{
    size_t bytes = um_shared_log_footprint(welcome->capacity_bytes);
    int log = um_segment_attach(&connection->log, fds[UM_IPC_LOG], bytes, false);
    int page = um_segment_attach(&connection->page, fds[UM_IPC_PAGE], UM_SHARED_READER_BYTES, true);
    return log == 0 && page == 0 && bytes != 0 &&
           um_shared_reader_init(&connection->reader, connection->log.memory, connection->page.memory,
                                 welcome->capacity_bytes, welcome->position, welcome->is_source_paced != 0);
}

/* Has the eventfd reported in place of the control socket, which from now on reports only the end of the source. */
static int watch_wakeups(um_ipc_connection *connection)
{
    int result = um_reactor_watch(connection->reactor, connection->wake_fd, UM_WATCH_GROUP, connection->index);
    if (result != 0)
        return result;
    watch(connection);
    um_reactor_watch_again(connection->reactor, connection->fd, UM_WATCH_CONTROL, connection->index);
    return 0;
}

/* Takes the eventfds of a WELCOME. Returns false if they are not those that its version has. */
static bool take_wakeups(um_ipc_connection *connection, uint16_t version, const int *fds)
{
    int wake_fd = fds[UM_IPC_WAKES_RECEIVER], source_wake_fd = fds[UM_IPC_WAKES_SOURCE];
    if (version < UM_IPC_VERSION_EVENTS && wake_fd < 0)
        return true;
    if (version >= UM_IPC_VERSION_EVENTS && um_ipc_wakeup_check(wake_fd) && um_ipc_wakeup_check(source_wake_fd)) {
        connection->wake_fd = wake_fd;
        connection->source_wake_fd = source_wake_fd;
        return watch_wakeups(connection) == 0;
    }
    for (int i = UM_IPC_WAKES_RECEIVER; i < UM_IPC_DESCRIPTORS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return false;
}

static void on_welcome(um_ipc_connection *connection, const um_ipc_control *welcome, const int *fds, int64_t now_ns)
{
    uint16_t version = um_ipc_common_version(welcome, connection->can_share);
    bool is_mapped = map_log(connection, welcome, fds);
    bool has_wakeups = take_wakeups(connection, version, fds);
    if (!is_mapped || !has_wakeups || version == 0 ||
        welcome->session_id != connection->session->config.id.session_id) {
        on_broken(connection, UM_DGRAM_VERSION, now_ns);
        return;
    }
    connection->state = UM_IPC_ATTACHED;
    connection->is_armed = false;
    connection->takes_topics = version >= UM_IPC_VERSION_TOPICS;
    for (um_delivery *d = connection->session->controllers; d != NULL; d = d->next)
        d->is_topic_reported = false;
    report_topics(connection);
    UM_COUNT(connection->session->counters.connects, 1);
    um_receiver_session_note_activity(connection->session, now_ns);
    note_life(connection, now_ns);
    um_reactor_wake_by(connection->reactor, connection->due_ns);
    ++*connection->changes;
}

static void on_refused(um_ipc_connection *connection, const um_ipc_control *refused, int64_t now_ns)
{
    UM_COUNT(connection->session->counters.attachments_refused, 1);
    if (refused->reason == UM_IPC_REASON_SESSION || refused->reason == UM_IPC_REASON_KEY)
        end(connection, now_ns);
    else
        lose(connection, now_ns);
}

static void close_received(const int *fds)
{
    for (int i = 0; i < UM_IPC_DESCRIPTORS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Reads the control socket. */
static void read_control(um_ipc_connection *connection, int64_t now_ns)
{
    connection->checked_ns = now_ns;
    for (int i = 0; i < CONTROLS_PER_CHECK && connection->fd >= 0; i++) {
        um_ipc_control message;
        int fds[UM_IPC_DESCRIPTORS];
        bool is_greeting = connection->state == UM_IPC_GREETING;
        int got = um_ipc_receive(connection->fd, &message, is_greeting ? fds : NULL);
        UM_COUNT(connection->counters->syscalls, 1);
        if (got == -EAGAIN)
            return;
        if (got == 1 && is_greeting && message.kind == UM_IPC_WELCOME) {
            on_welcome(connection, &message, fds, now_ns);
            continue;
        }
        if (is_greeting)
            close_received(fds);
        if (got == 1 && is_greeting && message.kind == UM_IPC_REFUSED)
            on_refused(connection, &message, now_ns);
        else if (is_greeting)
            lose(connection, now_ns);
        else if (got != 1 || message.kind != UM_IPC_WAKE || connection->wake_fd >= 0) {
            close_descriptors(connection);
            connection->state = UM_IPC_DRAINING;
        }
    }
}

void um_ipc_connection_on_control(um_ipc_connection *connection, int64_t now_ns)
{
    if (connection->fd >= 0)
        read_control(connection, now_ns);
}

/* The log of a source that closed its socket has been read to its end. */
static void on_drained(um_ipc_connection *connection, int64_t now_ns)
{
    if (um_shared_reader_has_ended(&connection->reader)) {
        end(connection, now_ns);
        return;
    }
    UM_COUNT(connection->session->counters.disconnects, 1);
    bool has_failed = connection->interval_ns != INTERVAL_NS; /* since a record was read */
    lose(connection, now_ns);
    if (connection->state == UM_IPC_WAITING && !has_failed)
        attach(connection, now_ns); /* refused if the source has died: its session ends now */
}

/* ---- receiving ---- */

/* Wakes the source, which waits for the space that this receiver has released. */
static void wake_source(um_ipc_connection *connection)
{
    um_ipc_control wake = um_ipc_control_make(UM_IPC_WAKE, connection->session->config.id.session_id);
    if (connection->source_wake_fd >= 0)
        um_ipc_wakeup_send(connection->source_wake_fd);
    else
        um_ipc_send(connection->fd, &wake, NULL, 0); /* a source that cannot take it polls our position */
    UM_COUNT(connection->counters->syscalls, 1);
}

/* Copies records into the stream's memory until it is full or the log is empty. Returns false if the log is broken. */
static bool fill(um_ipc_connection *connection)
{
    uint32_t space, length, bytes = 0;
    uint8_t *into = um_message_stream_space(&connection->stream, &space);
    enum um_shared_read read = UM_SHARED_RECORD;
    while (space - bytes >= UM_SHARED_RECORD_BYTES_MAX && read != UM_SHARED_EMPTY) {
        read = um_shared_reader_next(&connection->reader, into + bytes, &length);
        if (read == UM_SHARED_RECORD)
            bytes += length;
        else if (read == UM_SHARED_BROKEN)
            break;
        UM_COUNT(connection->session->counters.log_overruns, read == UM_SHARED_OVERRUN);
    }
    um_message_stream_add(&connection->stream, bytes);
    if (bytes > 0)
        connection->interval_ns = INTERVAL_NS;
    UM_COUNT(connection->counters->bytes_received, bytes);
    if (um_shared_reader_release(&connection->reader) && connection->fd >= 0)
        wake_source(connection);
    return read != UM_SHARED_BROKEN;
}

/* Delivers whole messages. Returns false if reading must stop: a queue is full, or the connection has ended. */
static bool deliver_stream(um_ipc_connection *connection, int64_t received_ns, int64_t now_ns, int *delivered)
{
    uint32_t run_max = connection->session->store->small.bytes, length;
    const uint8_t *data;
    while (!um_message_stream_is_empty(&connection->stream)) {
        um_node_review_queues(connection->node, now_ns);
        if (connection->session->is_held)
            return false;
        switch (um_message_stream_next(&connection->stream, run_max, &data, &length)) {
        case UM_STREAM_CONTROL: /* a TSNI shows messages that are missing at the end */
        case UM_STREAM_MESSAGES:
            UM_COUNT(connection->counters->datagrams_received, 1);
            um_receiver_session_on_messages(connection->session, data, length, received_ns, now_ns);
            ++*delivered;
            break;
        case UM_STREAM_END:
            end(connection, now_ns);
            return false;
        case UM_STREAM_MORE: /* a record consists of whole messages */
        case UM_STREAM_BROKEN:
            on_broken(connection, connection->stream.broken_by, now_ns);
            return false;
        }
        if (connection->session->has_ended)
            return false;
    }
    return true;
}

static bool is_reading(const um_ipc_connection *connection)
{
    return connection->state == UM_IPC_ATTACHED || connection->state == UM_IPC_DRAINING;
}

/* Ends the announcement of a sleep, and takes the wake-up. One that the source writes later ends the next sleep, and is
 * taken then. */
static void disarm(um_ipc_connection *connection)
{
    um_shared_reader_end_sleep(&connection->reader);
    connection->is_armed = false;
    if (connection->wake_fd < 0)
        return;
    um_ipc_wakeup_take(connection->wake_fd);
    UM_COUNT(connection->counters->syscalls, 1);
}

int um_ipc_connection_receive(um_ipc_connection *connection, int64_t now_ns, bool *more)
{
    int delivered = 0;
    bool is_by_socket = connection->wake_fd < 0 && (connection->is_armed || connection->state == UM_IPC_GREETING);
    *more = false;
    if (connection->is_armed)
        disarm(connection);
    if (connection->fd >= 0 && (is_by_socket || now_ns - connection->checked_ns >= CHECK_NS))
        read_control(connection, now_ns);
    for (int i = 0; i < FILLS_PER_CALL && is_reading(connection); i++) {
        if (!deliver_stream(connection, um_clock_wall_ns(), now_ns, &delivered))
            return delivered;
        if (!um_shared_reader_has_more(&connection->reader)) {
            if (connection->state == UM_IPC_DRAINING)
                on_drained(connection, now_ns);
            return delivered;
        }
        if (!fill(connection)) {
            on_broken(connection, UM_DGRAM_SIZE, now_ns);
            return delivered;
        }
    }
    *more = is_reading(connection);
    return delivered;
}

bool um_ipc_connection_arm(um_ipc_connection *connection)
{
    if (!is_reading(connection) || connection->session->is_held)
        return true;
    if (connection->state == UM_IPC_DRAINING || !um_message_stream_is_empty(&connection->stream))
        return false;
    connection->is_armed = um_shared_reader_begin_sleep(&connection->reader);
    return connection->is_armed;
}

/* ---- timers ---- */

static void check_life(um_ipc_connection *connection, int64_t now_ns)
{
    bool has_moved = um_shared_reader_has_more(&connection->reader) ||
                     connection->reader.end_position != connection->seen_end ||
                     um_shared_reader_heartbeat(&connection->reader) != connection->seen_heartbeat;
    int64_t timeout_ns = connection->session->config.connection_timeout_ns;
    if (has_moved)
        note_life(connection, now_ns);
    else if (now_ns - connection->alive_ns >= timeout_ns)
        end(connection, now_ns);
    else
        connection->due_ns = now_ns + timeout_ns / LIFE_CHECKS;
}

int64_t um_ipc_connection_tick(um_ipc_connection *connection, int64_t now_ns)
{
    if (now_ns >= connection->due_ns) {
        if (connection->state == UM_IPC_WAITING)
            attach(connection, now_ns);
        else if (connection->state == UM_IPC_GREETING)
            lose(connection, now_ns);
        else if (connection->state == UM_IPC_ATTACHED)
            check_life(connection, now_ns);
    }
    if (connection->state == UM_IPC_ENDED)
        return UM_NEVER_NS;
    if (connection->needs_announcement)
        report_topics(connection);
    if (connection->needs_announcement)
        return um_earliest_ns(connection->due_ns, now_ns + TOPICS_RETRY_NS);
    return connection->due_ns;
}
