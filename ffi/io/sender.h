/* The sender of a source session: decides on which thread and when um_source_session_send runs. Internal to ffi/io.
 *
 * A publisher that has published runs the sender on its own thread unless another thread is running it (W8).
 * The sender lock (um_source_session.sender_lock) is its state; a thread that cannot have it sets a flag and continues:
 *
 *              publisher or loop takes the lock
 *     idle ------------------------------------> running --+ duty cycle: at most UM_SEND_BATCH_MAX datagrams
 *      ^  ^                                        |   ^   |
 *      |  +--- nothing is pending -----------------+   +---+ more is pending, or a flush was requested meanwhile
 *      |                                           |
 *      |                     less than a GSO run is pending, no flush requested
 *      |                                           v
 *      +--- next publisher, or the loop ------- deferred tail
 *
 *   a thread without the lock     sets                  which is read by
 *   that requests a flush         is_flush_requested    the holder, after each duty cycle
 *   the loop, with timers due     needs_timers          the holder, in its next duty cycle
 *
 * The thread that releases the lock checks again (um_source_session_has_pending; its fence pairs with the one in
 * request_flush), so no flushed data stays unsent. The loop is woken (um_reactor_wake_by) only for deadlines of a
 * timer or a rate limiter.
 *
 * Three times limit the loop: timers_ns and requested_ns, when the session's timers must run at
 * the latest; due_ns, when the loop services the session again. While publishers stream they run the sender and poll
 * control themselves, and the loop skips the session for 1, 2, then 4 ms (skip_ns).
 *
 * Threads: um_sender_service, um_sender_skip_until and due_ns are the loop's; the rest is any thread's, under no lock.
 */
#ifndef UM_IO_SENDER_H
#define UM_IO_SENDER_H

#include "core/source/source.h"
#include "core/source/source_session.h"
#include "io/links.h"
#include "io/reactor.h"

typedef struct um_sender {
    um_source_session *core;
    um_reactor *reactor;
    um_links *links;
    bool uses_rings; /* data is sent through the context's ring set */
    int mtu_fd;      /* any socket of the session */
    int wakeup_fd;   /* readable once a send may succeed again after one was refused (UX-2) */
    _Atomic uint32_t is_wakeup_requested;
    int64_t due_ns;                 /* the loop services the session then */
    int64_t skip_ns;                /* how long the loop skips a streaming session */
    _Atomic int64_t timers_ns;      /* latest time at which the session's timers must run */
    _Atomic int64_t requested_ns;   /* the same, as requested by a publisher */
    _Atomic int64_t last_run_ns;    /* when the sender last sent */
    atomic_bool needs_timers;       /* the loop found the sender busy: its holder runs the timers */
    atomic_bool has_deferred_tail;  /* a publisher left datagrams to the loop's next pass */
    atomic_bool is_flush_requested; /* set by a thread that found the sender lock taken */
} um_sender;

/* 0 or -errno. */
int um_sender_open(um_sender *sender, um_reactor *reactor, um_links *links, um_source_session *core);
void um_sender_close(um_sender *sender);

/* Sends pending data, unless another thread is running the sender and then sends it. */
void um_sender_run(um_sender *sender, int64_t now_ns);
/* The same, but may leave `tail_bytes` unsent. */
void um_sender_run_to(um_sender *sender, int64_t tail_bytes, int64_t now_ns);
/* Cleans the log for a publisher that found no clean space; returns false if there is nothing to clean. */
bool um_sender_make_space(um_sender *sender, int64_t now_ns);
/* Yields to another thread that sends, while this publisher is further ahead of it than the caches hold. */
void um_sender_bound_write_ahead(um_sender *sender, int64_t now_ns);

/* The outcome of a publication. */
typedef struct um_sender_outcome {
    int64_t now_ns;
    int64_t tail_bytes; /* bytes that may be deferred */
    bool has_run;
} um_sender_outcome;

/* After a publication: performs its actions (source.h). `flush`: nothing is deferred. */
um_sender_outcome um_sender_on_published(um_sender *sender, uint32_t actions, bool flush);

/* A batch of messages, one per datagram, published as staged datagrams (core/source/staged_datagrams.h) under the
 * sender lock, and sent. */
typedef struct um_staged_batch {
    um_source *source;
    um_messages messages;
    uint32_t flags;
    bool needs_flush; /* nothing may be deferred */
    int64_t now_ns;
    int64_t result; /* of um_source_send_many, as is done_bytes */
    uint64_t done_bytes;
} um_staged_batch;
/* Returns false if another thread runs the sender: nothing was published. */
bool um_sender_publish_staged(um_sender *sender, um_staged_batch *batch, um_sender_outcome *outcome);

/* Returns the bytes that are flushed and not sent yet. */
static inline int64_t um_sender_backlog_bytes(const um_sender *sender)
{
    return atomic_load_explicit(&sender->core->flush_limit, memory_order_relaxed) -
           atomic_load_explicit(&sender->core->sender_position, memory_order_relaxed);
}

/* Maximum bytes deferred to fill the next GSO run. */
enum { UM_SENDER_TAIL_BYTES_MAX = 60 * 1024 };

/* Returns true if a send would succeed now. */
bool um_sender_is_sendable(const um_sender *sender);
/* Requests a wake-up by wakeup_fd after a non-blocking send was refused. */
void um_sender_request_wakeup(um_sender *sender);
/* Makes wakeup_fd readable. */
void um_sender_wake_publishers(um_sender *sender);

/* Requests that the loop runs the session's timers at time_ns, even while publishers stream. */
void um_sender_request_loop(um_sender *sender, int64_t time_ns);

/* Returns until when the loop skips the session because its publishers drive it; a past time: it is not skipped.
 * control_polled_ns: time of the last control poll. */
int64_t um_sender_skip_until(um_sender *sender, int64_t control_polled_ns, int64_t now_ns);
/* Runs the session's timers and returns when to do so next. *ran is false if another thread runs the sender, which then
 * runs them. */
int64_t um_sender_service(um_sender *sender, int64_t now_ns, bool *ran);

#endif
