/* The wake-ups of LBT-IPC by eventfds, between a source's server and a receiver's connection over real sockets
 * (io/ipc_server.h, io/ipc_connection.h). Both ends are in this process, each with an epoll set of its own.
 */
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "core/delivery/delivery_controller.h"
#include "core/wire/lbtrm.h"
#include "io/ipc_connection.h"
#include "io/ipc_server.h"
#include "io/ipc_socket.h"
#include "io/ipc_wakeup.h"
#include "os/clock.h"
#include "support.h"

enum {
    CAPACITY = UM_SHARED_CAPACITY_MIN,
    TRANSPORT = 9,
    BODY = 1000,
    ATTACHMENTS = 1000,
    EVENTS = 8,
    DESCRIPTORS_MAX = 8192
};

typedef struct ends {
    um_reactor source_reactor, receiver_reactor;
    fixture *source;
    um_ipc_server server;
    um_node node;
    um_receiver_session session;
    um_link_counters counters;
    um_ipc_connection connection;
    uint32_t changes;
    int64_t now_ns;
    void *session_memory, *store_memory;
} ends;

static uint32_t session_id(void)
{
    return (uint32_t)getpid();
}

static void open_server(ends *e)
{
    static const um_reactor_loop LOOP = {0};
    um_source_session_config config = default_config();
    config.session_id = session_id();
    e->source = session_open(&config);
    um_ipc_source_config ipc = {.transport_id = TRANSPORT,
                                .capacity_bytes = CAPACITY,
                                .receivers_max = 4,
                                .sm_interval_ns = NS_PER_S,
                                .stall_timeout_ns = 0};
    CHECK_EQ(um_reactor_open(&e->source_reactor, &LOOP), 0);
    CHECK_EQ(um_ipc_server_open(&e->server, &e->source_reactor, e->source->session, session_id(), 0, &ipc), 0);
    e->now_ns = um_clock_ns();
}

static void close_server(ends *e)
{
    um_ipc_server_close(&e->server);
    um_reactor_close(&e->source_reactor);
    um_reactor_free(&e->source_reactor);
    session_close(e->source);
}

static void open_receiver(ends *e)
{
    static const um_reactor_loop LOOP = {0};
    enum { CELLS = 16, CELL_BYTES = 2048, ENTRIES = 64 };
    um_receiver_session_config config = {
        .id = {UM_ADDRESS_V4(0x7f000001, TRANSPORT), (um_address){0}, session_id(), UM_TRANSPORT_LBTIPC, 0},
        .activity_timeout_ns = 10 * (int64_t)NS_PER_S,
        .connection_timeout_ns = 10 * (int64_t)NS_PER_S,
        .datagram_max_bytes = 1472,
        .loss_capacity = 64,
        .topic_capacity = 4,
        .random_seed = 1,
    };
    um_node_init(&e->node);
    e->store_memory = zeroed(um_reorder_footprint(CELLS, CELL_BYTES, ENTRIES));
    um_reorder_init(&e->node.store, e->store_memory, CELLS, CELL_BYTES, ENTRIES);
    e->session_memory = zeroed(um_receiver_session_footprint(&config));
    um_receiver_session_init(&e->session, e->session_memory, &config, NULL, &e->node.store, e->now_ns);
    CHECK(um_node_add_session(&e->node, &e->session));
    CHECK_EQ(um_reactor_open(&e->receiver_reactor, &LOOP), 0);
    CHECK_EQ(um_ipc_connection_open(&e->connection, &e->receiver_reactor, &e->node, &e->session, 0, &e->changes,
                                    &e->counters),
             0);
}

static void close_receiver(ends *e)
{
    um_ipc_connection_close(&e->connection);
    um_reactor_close(&e->receiver_reactor);
    um_reactor_free(&e->receiver_reactor);
    free(e->session_memory);
    free(e->store_memory);
}

/* Has the source handle what its epoll set reports. Returns what the server handled by reports of eventfds alone. */
static int serve(ends *e)
{
    struct epoll_event events[EVENTS];
    int woken = 0, count = epoll_wait(e->source_reactor.epoll_fd, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        uint32_t number = (uint32_t)events[i].data.u64 & 0xffff;
        if (events[i].data.u64 >> 32 != UM_WATCH_STREAM)
            continue;
        int handled = um_ipc_server_on_event(&e->server, number, e->now_ns);
        woken += number != UM_STREAM_LISTENER && number >= UM_IPC_CLIENTS_MAX ? handled : 0;
    }
    return woken;
}

/* Returns the kind that the receiver's epoll set reports first; -1: nothing is reported. */
static int reported(const ends *e)
{
    struct epoll_event event;
    return epoll_wait(e->receiver_reactor.epoll_fd, &event, 1, 0) == 1 ? (int)(event.data.u64 >> 32) : -1;
}

static void receive(ends *e)
{
    bool more;
    um_ipc_connection_receive(&e->connection, e->now_ns, &more);
}

static void attach(ends *e)
{
    e->now_ns += NS_PER_S;
    um_ipc_connection_tick(&e->connection, e->now_ns);
    serve(e);
    receive(e);
    CHECK_EQ(e->connection.state, UM_IPC_ATTACHED);
    CHECK(e->connection.wake_fd >= 0 && e->connection.source_wake_fd >= 0);
}

/* Sends one record, whose content is no message. Returns false without space. */
static bool send_record(ends *e)
{
    static const uint8_t datagram[UM_LBTRM_DATA_BYTES + BODY];
    um_part part = {datagram, sizeof datagram};
    um_tx tx = {.parts = &part, .part_count = 1, .length = part.length};
    um_link *link = &e->server.fan_out.base;
    return link->ops->send(link, (um_address){0}, &tx, 1) == 1;
}

/* Moves the receiver to the end of the log: its records are no messages that it could deliver. */
static void skip(ends *e)
{
    um_shared_reader *reader = &e->connection.reader;
    reader->position = reader->end_position = e->server.fan_out.writer.position;
    reader->offset_bytes = (uint32_t)(reader->position % CAPACITY);
}

/* Returns how many descriptors this process has open. */
static uint32_t open_descriptors(void)
{
    uint32_t count = 0;
    for (int fd = 0; fd < DESCRIPTORS_MAX; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

TEST("UX-12", "an eventfd wakes a receiver once per sleep, and only then")
{
    ends *e = zeroed(sizeof *e);
    open_server(e);
    open_receiver(e);
    attach(e);
    CHECK(send_record(e));
    CHECK_EQ(reported(e), -1); /* it is awake */
    skip(e);
    for (int i = 0; i < 3; i++) {
        CHECK(um_ipc_connection_arm(&e->connection));
        CHECK_EQ(reported(e), -1);
        uint64_t calls = e->server.fan_out.counters.syscalls;
        CHECK(send_record(e) && send_record(e));
        CHECK_EQ(e->server.fan_out.counters.syscalls - calls, 1); /* the second finds it awake */
        CHECK_EQ(reported(e), UM_WATCH_GROUP);
        char byte;
        CHECK(recv(e->connection.fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN); /* not by the socket */
        skip(e);
        receive(e);
        CHECK_EQ(reported(e), -1); /* the wake-up was taken */
    }
    close_receiver(e);
    close_server(e);
    free(e);
}

TEST("UX-12", "an eventfd wakes a source that waits for space, each time")
{
    ends *e = zeroed(sizeof *e);
    open_server(e);
    open_receiver(e);
    attach(e);
    serve(e);
    for (int i = 0; i < 5; i++) {
        while (send_record(e))
            ;
        CHECK(e->server.fan_out.clients[0].is_waited_for);
        CHECK_EQ(serve(e), 0);
        skip(e);
        CHECK(um_shared_reader_release(&e->connection.reader));
        um_ipc_wakeup_send(e->connection.source_wake_fd);
        CHECK_EQ(serve(e), 1);
        CHECK(!e->server.fan_out.clients[0].is_waited_for);
        CHECK_EQ(serve(e), 0);
    }
    close_receiver(e);
    close_server(e);
    free(e);
}

TEST("UX-12", "the end of the source is reported by the control socket, and the connection leaves no report behind")
{
    ends *e = zeroed(sizeof *e);
    open_server(e);
    open_receiver(e);
    attach(e);
    int kept = dup(e->connection.wake_fd); /* as the source's process may keep it */
    CHECK(um_ipc_connection_arm(&e->connection));
    um_ipc_server_close(&e->server);
    CHECK_EQ(reported(e), UM_WATCH_CONTROL);
    um_ipc_connection_on_control(&e->connection, e->now_ns);
    CHECK_EQ(e->connection.state, UM_IPC_DRAINING);
    struct pollfd leading = {.fd = kept, .events = POLLIN};
    CHECK_EQ(poll(&leading, 1, 0), 1); /* a reader that waits for the eventfd was woken */
    receive(e);
    CHECK_EQ(e->connection.state, UM_IPC_ENDED);
    um_reactor_on_wake(&e->receiver_reactor);
    um_ipc_wakeup_send(kept);
    CHECK_EQ(reported(e), -1);
    close(kept);
    close_receiver(e);
    um_reactor_close(&e->source_reactor);
    um_reactor_free(&e->source_reactor);
    session_close(e->source);
    free(e);
}

TEST("UX-12", "a receiver that left, and kept its eventfds, wakes the source no more")
{
    ends *e = zeroed(sizeof *e);
    open_server(e);
    open_receiver(e);
    attach(e);
    int kept = dup(e->connection.source_wake_fd);
    close_receiver(e);
    serve(e);
    CHECK_EQ(e->server.fan_out.joined_count, 0);
    serve(e);
    um_ipc_wakeup_send(kept);
    struct epoll_event event;
    CHECK_EQ(epoll_wait(e->source_reactor.epoll_fd, &event, 1, 0), 0);
    close(kept);
    close_server(e);
    free(e);
}

TEST("UX-12", "a full eventfd, and one that nobody reads, stop neither side")
{
    ends *e = zeroed(sizeof *e);
    open_server(e);
    open_receiver(e);
    attach(e);
    uint64_t full = UINT64_MAX - 1;
    CHECK_EQ(write(e->connection.wake_fd, &full, sizeof full), (ssize_t)sizeof full);
    CHECK_EQ(write(e->connection.source_wake_fd, &full, sizeof full), (ssize_t)sizeof full);
    for (int i = 0; i < 100; i++) {
        atomic_store(&e->connection.reader.page->is_sleeping, 1);
        CHECK(send_record(e));
    }
    um_ipc_wakeup_send(e->connection.source_wake_fd);
    serve(e);
    CHECK(!e->server.fan_out.clients[0].has_failed);
    CHECK_EQ(e->server.fan_out.joined_count, 1);
    CHECK_EQ(fcntl(e->connection.wake_fd, F_SETFL, 0), 0); /* blocking, as only the other side could make it */
    um_ipc_wakeup_take(e->connection.wake_fd);
    um_ipc_wakeup_take(e->connection.wake_fd); /* empty, and yet this returns */
    close_receiver(e);
    close_server(e);
    free(e);
}

TEST("UX-12", "a thousand receivers that attach and leave, leave no descriptor on either side")
{
    ends *e = zeroed(sizeof *e);
    open_server(e);
    uint32_t before = open_descriptors();
    for (int i = 0; i < ATTACHMENTS; i++) {
        open_receiver(e);
        attach(e);
        close_receiver(e);
        serve(e);
        CHECK_EQ(e->server.fan_out.joined_count, 0);
    }
    CHECK_EQ(open_descriptors(), before);
    close_server(e);
    free(e);
}

TEST("UX-12", "only an eventfd that does not block is one")
{
    int ends[2], event = um_ipc_wakeup_create(), blocking = eventfd(0, 0), epoll = epoll_create1(0);
    CHECK(um_ipc_wakeup_can_check() && event >= 0 && pipe2(ends, O_NONBLOCK) == 0);
    CHECK(fcntl(epoll, F_SETFL, O_NONBLOCK) == 0);
    CHECK(um_ipc_wakeup_check(event));
    CHECK(!um_ipc_wakeup_check(blocking) && !um_ipc_wakeup_check(epoll) && !um_ipc_wakeup_check(-1));
    CHECK(!um_ipc_wakeup_check(ends[0]) && !um_ipc_wakeup_check(ends[1]));
    for (int *fd = (int[]){event, blocking, epoll, ends[0], ends[1], -1}; *fd >= 0; fd++)
        close(*fd);
}

CHECK_MAIN
