#include "io/reactor.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    LOCK_YIELDS_MAX = 1000,
    BUSY_POLL_BUDGET = 64, /* datagrams per poll of the driver; more requires CAP_NET_ADMIN */
};

/* ---- the lock ---- */

void um_reactor_lock(um_reactor *reactor)
{
    atomic_fetch_add(&reactor->lock_waiters, 1);
    pthread_mutex_lock(&reactor->lock);
    atomic_fetch_sub(&reactor->lock_waiters, 1);
}

void um_reactor_unlock(um_reactor *reactor)
{
    pthread_mutex_unlock(&reactor->lock);
}

void um_reactor_yield_lock(um_reactor *reactor)
{
    for (int i = 0; i < LOCK_YIELDS_MAX && atomic_load_explicit(&reactor->lock_waiters, memory_order_relaxed); i++)
        sched_yield();
}

/* ---- the epoll set ---- */

static int watch_events(um_reactor *reactor, int operation, int fd, uint32_t events, enum um_watch_kind kind,
                        uint32_t index)
{
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)kind << 32 | index};
    return epoll_ctl(reactor->epoll_fd, operation, fd, &event) != 0 ? -errno : 0;
}

static int watch(um_reactor *reactor, int operation, int fd, enum um_watch_kind kind, uint32_t index)
{
    uint32_t once = kind == UM_WATCH_SESSION ? (uint32_t)EPOLLONESHOT : 0;
    return watch_events(reactor, operation, fd, EPOLLIN | once, kind, index);
}

int um_reactor_watch(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index)
{
    return watch(reactor, EPOLL_CTL_ADD, fd, kind, index);
}

void um_reactor_watch_again(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index)
{
    watch(reactor, EPOLL_CTL_MOD, fd, kind, index);
}

void um_reactor_unwatch(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index)
{
    struct epoll_event event = {.data.u64 = (uint64_t)kind << 32 | index};
    epoll_ctl(reactor->epoll_fd, EPOLL_CTL_MOD, fd, &event);
}

void um_reactor_forget(um_reactor *reactor, int fd)
{
    epoll_ctl(reactor->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

enum { STREAM_EVENTS = EPOLLIN | EPOLLOUT | EPOLLRDHUP };

int um_reactor_watch_stream(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index)
{
    return watch_events(reactor, EPOLL_CTL_ADD, fd, STREAM_EVENTS | (uint32_t)EPOLLET, kind, index);
}

void um_reactor_watch_stream_again(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index)
{
    watch_events(reactor, EPOLL_CTL_MOD, fd, STREAM_EVENTS | (uint32_t)EPOLLET, kind, index);
}

int um_reactor_watch_connecting(um_reactor *reactor, int fd, uint32_t index)
{
    return watch_events(reactor, EPOLL_CTL_ADD, fd, EPOLLOUT | (uint32_t)EPOLLONESHOT, UM_WATCH_CONNECTING, index);
}

int um_reactor_watch_rings(um_reactor *reactor, um_rings *rings, bool is_watched)
{
    int fds[UM_RINGS_DESCRIPTORS_MAX];
    if (rings == NULL || reactor->is_watching_rings == is_watched)
        return 0;
    reactor->error_step = "watching the rings";
    uint32_t count = rings->ops->descriptors(rings, fds, UM_RINGS_DESCRIPTORS_MAX);
    int result = count > UM_RINGS_DESCRIPTORS_MAX ? -E2BIG : 0;
    for (uint32_t i = 0; i < count && result == 0; i++)
        if (!is_watched)
            epoll_ctl(reactor->epoll_fd, EPOLL_CTL_DEL, fds[i], NULL);
        else
            result = um_reactor_watch(reactor, fds[i], UM_WATCH_RINGS, i);
    reactor->is_watching_rings = is_watched;
    return result;
}

int um_reactor_open(um_reactor *reactor, const um_reactor_loop *loop)
{
    reactor->epoll_fd = reactor->wake_fd = -1;
    reactor->loop = loop;
    reactor->request_due_ns = UM_NEVER_NS;
    atomic_init(&reactor->requested_ns, UM_NEVER_NS);
    pthread_mutex_init(&reactor->lock, NULL);
    reactor->error_step = "epoll_create";
    reactor->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (reactor->epoll_fd < 0)
        return -errno;
    reactor->error_step = "eventfd";
    reactor->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (reactor->wake_fd < 0)
        return -errno;
    return um_reactor_watch(reactor, reactor->wake_fd, UM_WATCH_WAKE, 0);
}

/* struct epoll_params and EPIOCSPARAMS of Linux 6.9, missing in the headers of the oldest supported system. */
struct busy_poll_params {
    uint32_t usecs;
    uint16_t budget;
    uint8_t prefer;
    uint8_t must_be_zero;
};
#define SET_BUSY_POLL_PARAMS _IOW(0x8A, 0x01, struct busy_poll_params)

int um_reactor_prefer_busy_poll(um_reactor *reactor, uint32_t usecs)
{
    struct busy_poll_params params = {.usecs = usecs, .budget = BUSY_POLL_BUDGET, .prefer = 1};
    reactor->error_step = "busy polling of epoll, which Linux has from 6.9 on (EPIOCSPARAMS)";
    return ioctl(reactor->epoll_fd, SET_BUSY_POLL_PARAMS, &params) != 0 ? -errno : 0;
}

void um_reactor_close(um_reactor *reactor)
{
    if (reactor->epoll_fd >= 0)
        close(reactor->epoll_fd);
    if (reactor->wake_fd >= 0)
        close(reactor->wake_fd);
    reactor->epoll_fd = reactor->wake_fd = -1;
}

void um_reactor_free(um_reactor *reactor)
{
    pthread_mutex_destroy(&reactor->lock);
}

/* ---- sleeping and waking ---- */

void um_reactor_wake_by(um_reactor *reactor, int64_t time_ns)
{
    int64_t requested = atomic_load_explicit(&reactor->requested_ns, memory_order_relaxed);
    while (time_ns < requested && !atomic_compare_exchange_weak(&reactor->requested_ns, &requested, time_ns))
        ;
    /* Pairs with the fences around the sleep: either the loop sees the request or this thread sees it asleep. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&reactor->sleeping_until_ns, memory_order_relaxed) > time_ns) {
        uint64_t one = 1;
        ssize_t ignored = write(reactor->wake_fd, &one, sizeof one); /* full means a wake-up is pending */
        (void)ignored;
    }
}

bool um_reactor_wakes_by(um_reactor *reactor, int64_t time_ns)
{
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the one after the sleep */
    int64_t until_ns = atomic_load_explicit(&reactor->sleeping_until_ns, memory_order_relaxed);
    return until_ns != 0 && until_ns <= time_ns;
}

bool um_reactor_take_request(um_reactor *reactor, int64_t now_ns)
{
    int64_t requested_ns = atomic_load_explicit(&reactor->requested_ns, memory_order_relaxed);
    if (requested_ns != UM_NEVER_NS)
        requested_ns = atomic_exchange(&reactor->requested_ns, UM_NEVER_NS);
    if (requested_ns < reactor->request_due_ns)
        reactor->request_due_ns = requested_ns;
    bool due = reactor->request_due_ns <= now_ns;
    if (due)
        reactor->request_due_ns = UM_NEVER_NS;
    return due;
}

/* epoll_pwait2 takes nanoseconds; before Linux 5.11 waits are rounded up to milliseconds. */
static int wait_events(um_reactor *reactor, struct epoll_event *events, int max, int64_t wait_ns)
{
    struct timespec timeout = {wait_ns / 1000000000, wait_ns % 1000000000};
#ifdef SYS_epoll_pwait2
    int count = (int)syscall(SYS_epoll_pwait2, reactor->epoll_fd, events, max, &timeout, NULL, 0);
    if (count >= 0 || errno != ENOSYS)
        return count;
#endif
    return epoll_wait(reactor->epoll_fd, events, max, (int)((wait_ns + 999999) / 1000000));
}

void um_reactor_begin_sleep(um_reactor *reactor, int64_t until_ns)
{
    if (until_ns == 0)
        return;
    reactor->sleepers++;
    if (until_ns > atomic_load_explicit(&reactor->sleeping_until_ns, memory_order_relaxed))
        atomic_store_explicit(&reactor->sleeping_until_ns, until_ns, memory_order_relaxed);
}

void um_reactor_end_sleep(um_reactor *reactor, int64_t until_ns)
{
    if (until_ns == 0 || --reactor->sleepers > 0)
        return;
    atomic_store_explicit(&reactor->sleeping_until_ns, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

int um_reactor_sleep(um_reactor *reactor, struct epoll_event *events, int max, int64_t until_ns, int64_t now_ns)
{
    atomic_thread_fence(memory_order_seq_cst);
    int64_t requested_ns = atomic_load_explicit(&reactor->requested_ns, memory_order_relaxed);
    until_ns = um_earliest_ns(requested_ns, until_ns);
    int64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    int64_t day_ns = 86400 * (int64_t)1000000000;
    return wait_events(reactor, events, max, um_earliest_ns(wait_ns, day_ns));
}

int um_poll_descriptors(struct pollfd *descriptors, uint32_t count, int64_t wait_ns)
{
    int64_t positive_ns = wait_ns > 0 ? wait_ns : 0;
    struct timespec timeout = {positive_ns / 1000000000, positive_ns % 1000000000};
    return ppoll(descriptors, count, wait_ns == UM_NEVER_NS ? NULL : &timeout, NULL);
}

void um_reactor_on_wake(um_reactor *reactor)
{
    uint64_t ignored;
    ssize_t drained = read(reactor->wake_fd, &ignored, sizeof ignored);
    (void)drained;
}
