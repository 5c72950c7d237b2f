/* Event queues for the other files of ffi/io: the queues of a context, whose readers the loop wakes. */
#ifndef UM_IO_EVENT_QUEUE_PRIVATE_H
#define UM_IO_EVENT_QUEUE_PRIVATE_H

#include "core/delivery/conflation.h"
#include "core/receiver/node.h"
#include "io/event_queue.h"
#include "io/gate.h"
#include "io/reactor.h"

/* The list is guarded by the context lock. */
typedef struct um_event_queues {
    um_reactor *reactor;
    um_node *node;                  /* its receivers deliver into the queues */
    struct um_receiving *receiving; /* the owner of the node, for subscription.c */
    um_event_queue *first;
    _Atomic int64_t wake_at_ns;     /* the earliest of the queues' times; UM_NEVER_NS: none */
    _Atomic uint32_t joined_count;  /* queues whose rows another queue's reader takes */
    _Atomic uint32_t waiting_count; /* at least the number of queues with `waiting` set */
} um_event_queues;

/* Measurements of the reader and its warnings; owned by the reader's thread. */
typedef struct um_queue_watch {
    bool is_on;
    bool notes_age;
    bool is_too_long; /* at the last read; already counted */
    bool is_too_slow;
    uint64_t size_warning;
    int64_t delay_warning_ns;
    um_event_queue_counters counters;
} um_queue_watch;

struct um_event_queue {
    um_message_queue core;
    um_queue_watch watch;
    um_hot_failover *hot_failover; /* merges the rows of this queue and of joined ones into one stream; or NULL */
    size_t hot_failover_bytes;
    um_conflation *conflation; /* keeps the newest rows of this queue only; or NULL */
    size_t conflation_bytes;
    um_lock conflation_lock;
    _Atomic int64_t wake_at_ns;          /* when its reader checks again; UM_NEVER_NS: when it is woken */
    _Atomic(um_event_queue *) joined_to; /* the queue whose reader takes the rows */
    um_event_queues *queues;
    int event_fd;
    _Atomic uint32_t waiting; /* a reader has armed event_fd */
    uint32_t unblocks_seen;   /* reader only: the reactor's unblock_count when its wait began */
    size_t memory_bytes;
    um_gate gate;
    um_event_queue *next;
};

/* Returns true if there are rows to read. Called by the reader. */
bool um_event_queue_is_ready(um_event_queue *queue);
/* Returns how many rows wait to be read. */
uint64_t um_event_queue_waiting(um_event_queue *queue);
/* Returns how many messages were replaced by newer ones. */
uint64_t um_event_queue_conflated(um_event_queue *queue);
int um_event_queues_open(um_event_queues *queues, const um_event_queue_config *config, um_event_queue **queue);
/* Wakes the readers whose queues got rows. Called by the loop, under the context lock. */
void um_event_queues_notify(um_event_queues *queues);
/* Makes event_fd of every queue readable. Takes the context lock. */
void um_event_queues_wake_all(um_event_queues *queues);
/* Sleeps until rows may have arrived, or another of the `count` descriptors is readable; the first is set to the
 * queue's own. UM_NEVER_NS: without a timeout. Returns how many are readable, -1 after a signal. Called by the reader.
 */
int um_event_queue_sleep(um_event_queue *queue, struct pollfd *descriptors, uint32_t count, int64_t wait_ns);
/* Returns frames of released rows to their rings. Context lock. */
void um_event_queues_return_frames(um_event_queues *queues);

#ifdef UM_DEBUG
/* If set, called between a reader's two steps of arming: tests run another thread's steps there. */
extern void (*um_event_queue_arm_hook)(void);
#endif

#endif
