/* What the other files of ffi/io know of event queues: the queues of a context, which the loop wakes readers of. */
#ifndef UM_IO_EVENT_QUEUE_PRIVATE_H
#define UM_IO_EVENT_QUEUE_PRIVATE_H

#include "core/receiver/node.h"
#include "io/event_queue.h"
#include "io/gate.h"
#include "io/reactor.h"

/* The list is guarded by the context lock. */
typedef struct um_event_queues {
    um_reactor *reactor;
    um_node *node;                  /* whose receivers deliver into them */
    struct um_receiving *receiving; /* the owner of that node, for subscription.c */
    um_event_queue *first;
    _Atomic int64_t wake_at_ns;     /* the earliest of its queues; UM_NEVER_NS: none */
    _Atomic uint32_t joined_count;  /* queues whose rows the reader of another takes */
    _Atomic uint32_t waiting_count; /* at least as many as have `waiting` set */
} um_event_queues;

/* What the reader measures and is warned of; its thread's. */
typedef struct um_queue_watch {
    bool is_on;
    bool notes_age;
    bool is_too_long; /* it was at the last read, and that was counted */
    bool is_too_slow;
    uint64_t size_warning;
    int64_t delay_warning_ns;
    um_event_queue_counters counters;
} um_queue_watch;

struct um_event_queue {
    um_message_queue core;
    um_queue_watch watch;
    um_hot_failover *hot_failover; /* what makes one stream of what this queue and others get; or NULL */
    size_t hot_failover_bytes;
    _Atomic int64_t wake_at_ns;          /* when its reader is to look again; UM_NEVER_NS: when it is woken */
    _Atomic(um_event_queue *) joined_to; /* whose reader takes the rows */
    um_event_queues *queues;
    int event_fd;
    _Atomic uint32_t waiting; /* a reader has armed event_fd */
    size_t memory_bytes;
    um_gate gate;
    um_event_queue *next;
};

/* Anything to read? Its reader's. */
bool um_event_queue_is_ready(um_event_queue *queue);
int um_event_queues_open(um_event_queues *queues, const um_event_queue_config *config, um_event_queue **queue);
/* Wakes the readers whose queues got rows: the loop's, under the context lock. */
void um_event_queues_notify(um_event_queues *queues);
/* Makes event_fd of every queue readable. Takes the context lock. */
void um_event_queues_wake_all(um_event_queues *queues);
/* Sleeps until rows may have come, or another of the `count` descriptors is readable, of which the first is set to the
 * queue's own. UM_NEVER_NS: without a timeout. Returns how many are readable, -1 after a signal. Its reader's. */
int um_event_queue_sleep(um_event_queue *queue, struct pollfd *descriptors, uint32_t count, int64_t wait_ns);
/* Takes frames of released rows back to their rings. Context lock. */
void um_event_queues_return_frames(um_event_queues *queues);

#ifdef UM_DEBUG
/* Called between a reader's two steps of arming, if set: tests put another thread's steps there. */
extern void (*um_event_queue_arm_hook)(void);
#endif

#endif
