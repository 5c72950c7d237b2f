/* The reactor of a context: its lock, the epoll set its loop sleeps on, and the wake-up of that sleep. Internal to
 * ffi/io; above the links, below everything that waits or is woken.
 *
 * A request to wake carries a time, so that a thread which needs the loop later than it wakes anyway costs no system
 * call. Request and sleep are ordered by a fence on each side: either the loop sees the request before it sleeps, or
 * the requester sees it asleep and writes to wake_fd.
 *
 *   requester: requested_ns = t; fence; read sleeping_until_ns
 *   loop:      sleeping_until_ns = u; fence; read requested_ns; epoll_wait; sleeping_until_ns = 0
 *
 * In sequential mode several threads may sleep at once: sleeping_until_ns is then the latest of their times until the
 * last of them has woken, so that whatever one of them would miss is written to wake_fd.
 *
 * Threads: any, except where a function's comment restricts it. Errors: negative errno; `error_step` names what failed.
 */
#ifndef UM_IO_REACTOR_H
#define UM_IO_REACTOR_H

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>

#include "core/foundation/base.h"
#include "io/rings.h"

typedef struct um_reactor um_reactor;
struct um_event_queue;

/* The loop above, as the layers below call it. */
typedef struct um_reactor_loop {
    /* Sequential mode: one pass of the loop; wait_until_ns 0: do not sleep. Returns datagrams handled. */
    int64_t (*pass)(um_reactor *reactor, int64_t wait_until_ns);
    /* Embedded mode: um_loop_leader_wait_queue and um_loop_leader_look. */
    bool (*wait)(um_reactor *reactor, struct um_event_queue *queue, int64_t end_ns);
    void (*look)(um_reactor *reactor, struct um_event_queue *queue, bool has_rows);
} um_reactor_loop;

struct um_reactor {
    pthread_mutex_t lock;
    _Atomic uint32_t lock_waiters; /* control calls that wait for the lock: the loop releases it */
    int epoll_fd;
    int wake_fd;
    _Atomic int64_t sleeping_until_ns; /* 0: awake; written under the lock */
    uint32_t sleepers;                 /* threads between um_reactor_begin_sleep and _end_sleep; of the lock */
    _Atomic int64_t requested_ns;      /* the loop is needed at this time */
    int64_t request_due_ns;            /* of the lock: the earliest request that the loop has taken */
    bool rings_are_watched;            /* of the lock */
    atomic_bool is_threaded;           /* embedded mode: a thread of the context's own runs the loop */
    _Atomic uint32_t unblock_count;    /* calls of um_context_unblock */
    const um_reactor_loop *loop;
    const char *error_step;
};

/* CONNECTING: a connection of a group that is being made. TCP: one of a source session, or where it listens. */
enum um_watch_kind {
    UM_WATCH_WAKE,
    UM_WATCH_GROUP,
    UM_WATCH_SESSION,
    UM_WATCH_RINGS,
    UM_WATCH_CONNECTING,
    UM_WATCH_TCP,
};

int um_reactor_open(um_reactor *reactor, const um_reactor_loop *loop);
/* Has sleeps poll the driver of the NIC queue that datagrams come from for up to usecs before they sleep (preferred
 * busy polling of epoll, Linux 6.9; -ENOTTY before). While datagrams come, the kernel then leaves the interrupts of a
 * queue with irq-suspend-timeout off (Linux 6.13). Before the loop runs. */
int um_reactor_prefer_busy_poll(um_reactor *reactor, uint32_t usecs);
void um_reactor_close(um_reactor *reactor);
/* Once no thread can use the lock. */
void um_reactor_free(um_reactor *reactor);

/* The context lock. The loop takes it directly; other threads announce themselves, for a mutex does not queue fairly.
 */
void um_reactor_lock(um_reactor *reactor);
void um_reactor_unlock(um_reactor *reactor);
/* The loop's, before it takes the lock: lets waiting control calls have it first. */
void um_reactor_step_aside(um_reactor *reactor);

/* A session's socket is reported once, and then not until it is watched again; a group's socket is not, either, after
 * it was unwatched. */
int um_reactor_watch(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index);
void um_reactor_watch_again(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index);
void um_reactor_unwatch(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index);
/* A connection is reported once when it becomes readable or writable (EPOLLET): what was reported has to be used up, or
 * is reported once more after it was watched again. */
int um_reactor_watch_stream(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index);
void um_reactor_watch_stream_again(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index);
/* A connection that is being made is reported when that has succeeded or failed. It is then watched as a group is, by
 * um_reactor_watch_again. */
int um_reactor_watch_connecting(um_reactor *reactor, int fd, uint32_t index);
/* Puts the descriptors of a ring set (NULL: none) into the epoll set, or takes them out. A ring set that only sends is
 * not watched: the kernel would look for waiting threads each time something sent through it is freed. Nor is it while
 * the loop does not sleep: a watched ring costs the kernel a call for every datagram that comes. Context lock. */
int um_reactor_watch_rings(um_reactor *reactor, um_rings *rings, bool is_watched);

/* The loop must run its timers at this time at the latest. */
void um_reactor_wake_by(um_reactor *reactor, int64_t time_ns);
/* A thread leaves the loop for a reason that all threads in it have: the next one that sleeps is woken, for a wake-up
 * may reach one thread only. */
static inline void um_reactor_pass_on_wake(um_reactor *reactor)
{
    um_reactor_wake_by(reactor, 0);
}
/* Whether the loop sleeps and will look by then anyway, at what was written before this call as well. */
bool um_reactor_wakes_by(um_reactor *reactor, int64_t time_ns);
/* The loop's, under the lock: true when a requested time has come. */
bool um_reactor_take_request(um_reactor *reactor, int64_t now_ns);
/* The loop's, under the lock, around a sleep until then; 0: it only looks. */
void um_reactor_begin_sleep(um_reactor *reactor, int64_t until_ns);
void um_reactor_end_sleep(um_reactor *reactor, int64_t until_ns);
/* The loop's, without the lock: waits for events until then, or until woken. Returns how many, or -1. */
int um_reactor_sleep(um_reactor *reactor, struct epoll_event *events, int max, int64_t until_ns, int64_t now_ns);
/* ppoll for so long; UM_NEVER_NS: without a timeout. Returns how many are readable, -1 after a signal. Any thread. */
int um_poll_descriptors(struct pollfd *descriptors, uint32_t count, int64_t wait_ns);
/* The loop's, after wake_fd was reported. */
void um_reactor_on_wake(um_reactor *reactor);

static inline bool um_reactor_is_threaded(um_reactor *reactor)
{
    return atomic_load_explicit(&reactor->is_threaded, memory_order_relaxed);
}

#endif
