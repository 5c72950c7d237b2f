/* The reactor of a context: its lock, the epoll set its loop sleeps on, and the wake-up of that sleep. Internal to
 * ffi/io; above the links, below everything that waits or is woken.
 *
 * A wake-up request carries a time, so that it costs no system call if the loop wakes earlier anyway. Request and sleep
 * are ordered by a fence on each side: either the loop sees the request before it sleeps, or the requester sees it
 * asleep and writes to wake_fd.
 *
 *   requester: requested_ns = t; fence; read sleeping_until_ns
 *   loop:      sleeping_until_ns = u; fence; read requested_ns; epoll_wait; sleeping_until_ns = 0
 *
 * In sequential mode several threads may sleep at once: sleeping_until_ns is then the latest of their times until the
 * last of them has woken, so that every event that one of them would miss is written to wake_fd.
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

/* The loop, as the layers below it call it. */
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
    uint32_t sleepers;                 /* threads between um_reactor_begin_sleep and _end_sleep; under the lock */
    _Atomic int64_t requested_ns;      /* when the loop is needed */
    int64_t request_due_ns;            /* the earliest request that the loop has taken; under the lock */
    bool is_watching_rings;            /* under the lock */
    bool is_outside_ready;             /* an OUTSIDE descriptor was reported; written under the lock */
    atomic_bool is_threaded;           /* embedded mode: the context has a thread that runs the loop */
    _Atomic uint32_t unblock_count;    /* calls of um_context_unblock */
    const um_reactor_loop *loop;
    const char *error_step;
};

/* CONNECTING: a receiving connection being made. CONTROL: the control socket of an attached LBT-IPC connection, whose
 * eventfd is the GROUP. STREAM: a connection of a source session over TCP or LBT-IPC, or its listening socket. OUTSIDE:
 * a descriptor of the thread that runs the loop. */
enum um_watch_kind {
    UM_WATCH_WAKE,
    UM_WATCH_GROUP,
    UM_WATCH_SESSION,
    UM_WATCH_RINGS,
    UM_WATCH_CONNECTING,
    UM_WATCH_CONTROL,
    UM_WATCH_STREAM,
    UM_WATCH_OUTSIDE,
};

int um_reactor_open(um_reactor *reactor, const um_reactor_loop *loop);
/* Makes each sleep poll the driver of the NIC queue that datagrams arrive on for up to `usecs` first (preferred busy
 * polling of epoll, Linux 6.9; -ENOTTY before). While datagrams arrive, the kernel then keeps the interrupts of a queue
 * with irq-suspend-timeout off (Linux 6.13). Call it before the loop runs. */
int um_reactor_prefer_busy_poll(um_reactor *reactor, uint32_t usecs);
void um_reactor_close(um_reactor *reactor);
/* Call it once no thread can use the lock. */
void um_reactor_free(um_reactor *reactor);

/* The context lock. The loop takes it directly; other threads announce themselves, because a mutex is not fair. */
void um_reactor_lock(um_reactor *reactor);
void um_reactor_unlock(um_reactor *reactor);
/* Called by the loop before it takes the lock: lets waiting control calls take it first. */
void um_reactor_yield_lock(um_reactor *reactor);

/* A session's socket is reported once, and not again until it is rearmed by _watch_again. A group's socket is not
 * reported between _unwatch and _watch_again. */
int um_reactor_watch(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index);
void um_reactor_watch_again(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index);
void um_reactor_unwatch(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index);
/* Ends the reports of a descriptor that another process holds as well: closing it would not. */
void um_reactor_forget(um_reactor *reactor, int fd);
/* A connection is reported once when it becomes readable or writable (EPOLLET): the caller reads or writes until it
 * would block, or rearms it by _watch_stream_again. */
int um_reactor_watch_stream(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index);
void um_reactor_watch_stream_again(um_reactor *reactor, int fd, enum um_watch_kind kind, uint32_t index);
/* A connection being made is reported when that has succeeded or failed. It is then watched as a group is, by
 * um_reactor_watch_again. */
int um_reactor_watch_connecting(um_reactor *reactor, int fd, uint32_t index);
/* Adds the descriptors of a ring set (NULL: none) to the epoll set, or removes them. A ring set that only sends is not
 * watched, because the kernel would search for waiting threads each time it frees a sent packet. Nor is it watched
 * while the loop is awake, because a watched ring costs the kernel a call per received datagram. Context lock. */
int um_reactor_watch_rings(um_reactor *reactor, um_rings *rings, bool is_watched);

/* Requests that the loop runs its timers at this time at the latest. */
void um_reactor_wake_by(um_reactor *reactor, int64_t time_ns);
/* Called by a thread that leaves the loop for a reason that applies to all threads in it: wakes the next one that
 * sleeps, because a wake-up may reach only one thread. */
static inline void um_reactor_pass_on_wake(um_reactor *reactor)
{
    um_reactor_wake_by(reactor, 0);
}
/* Returns true if the loop sleeps and will wake by then anyway, and will see everything written before this call. */
bool um_reactor_wakes_by(um_reactor *reactor, int64_t time_ns);
/* Called by the loop, under the lock: returns true if a requested time has come. */
bool um_reactor_take_request(um_reactor *reactor, int64_t now_ns);
/* Called by the loop, under the lock, around a sleep until then; 0: it only checks for events. */
void um_reactor_begin_sleep(um_reactor *reactor, int64_t until_ns);
void um_reactor_end_sleep(um_reactor *reactor, int64_t until_ns);
/* Called by the loop, without the lock: waits for events until then, or until woken. Returns their number, or -1. */
int um_reactor_sleep(um_reactor *reactor, struct epoll_event *events, int max, int64_t until_ns, int64_t now_ns);
/* ppoll with this timeout; UM_NEVER_NS: without. Returns how many are readable, -1 after a signal. Any thread. */
int um_poll_descriptors(struct pollfd *descriptors, uint32_t count, int64_t wait_ns);
/* Called by the loop after wake_fd was reported. */
void um_reactor_on_wake(um_reactor *reactor);

static inline bool um_reactor_is_threaded(um_reactor *reactor)
{
    return atomic_load_explicit(&reactor->is_threaded, memory_order_relaxed);
}

#endif
