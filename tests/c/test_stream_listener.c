/* A source that runs out of descriptors stops accepting for a while, and continues in any case. */
#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "io/tcp_server.h"
#include "support.h"

enum { SESSION_INDEX = 3, LISTENER = SESSION_INDEX << 16 | UM_STREAM_LISTENER };

static const int64_t PAUSE_NS = 100 * (int64_t)NS_PER_MS;

typedef struct listening {
    um_reactor reactor;
    um_tcp_server server;
    fixture *session;
} listening;

static listening *listening_open(void)
{
    listening *f = zeroed(sizeof *f);
    um_source_session_config config = default_config();
    um_tcp_source_config tcp = {.interface_ip = INADDR_LOOPBACK, .listen_backlog = 8, .backlog_bytes = 1 << 20};
    f->session = session_open(&config);
    CHECK_EQ(um_reactor_open(&f->reactor, NULL), 0);
    CHECK_EQ(um_tcp_server_open(&f->server, &f->reactor, f->session->session, SESSION_INDEX, &tcp, NULL), 0);
    return f;
}

static void listening_close(listening *f)
{
    um_tcp_server_close(&f->server);
    um_reactor_close(&f->reactor);
    um_reactor_free(&f->reactor);
    session_close(f->session);
    free(f);
}

static int connect_to(const listening *f)
{
    struct sockaddr_in name = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(f->server.local.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&name, sizeof name), 0);
    return fd;
}

static bool is_listener_reported(const listening *f)
{
    struct epoll_event events[8];
    int count = epoll_wait(f->reactor.epoll_fd, events, 8, 0);
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 == ((uint64_t)UM_WATCH_STREAM << 32 | LISTENER))
            return true;
    return false;
}

/* Lets the server try to accept a connection for which there is no descriptor. */
static void accept_without_descriptors(listening *f, int64_t now_ns)
{
    struct rlimit before, none;
    int next = dup(f->reactor.wake_fd);
    CHECK(next >= 0 && close(next) == 0);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){(rlim_t)next, before.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK_EQ(um_tcp_server_on_event(&f->server, UM_STREAM_LISTENER, now_ns), 0);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(f->session->session->counters.connections_refused, 1);
}

TEST("", "a server without descriptors pauses, and accepts again afterwards, whatever it was busy with at the time")
{
    for (int is_due = 0; is_due <= 1; is_due++) {
        listening *f = listening_open();
        int64_t now_ns = NS_PER_S, due_ns;
        int first = connect_to(f);
        CHECK(is_listener_reported(f));
        accept_without_descriptors(f, now_ns);
        CHECK(!is_listener_reported(f));
        f->server.is_due = true;
        CHECK_EQ(um_tcp_server_service(&f->server, now_ns, &due_ns), 0);
        CHECK_EQ(due_ns, now_ns + PAUSE_NS);
        now_ns += PAUSE_NS;
        f->server.is_due = is_due;
        um_tcp_server_service(&f->server, now_ns, &due_ns);
        int second = connect_to(f);
        CHECK(is_listener_reported(f));
        CHECK_EQ(um_tcp_server_on_event(&f->server, UM_STREAM_LISTENER, now_ns), is_due ? 1 : 2);
        CHECK(!is_listener_reported(f));
        close(first);
        close(second);
        listening_close(f);
    }
}

CHECK_MAIN
