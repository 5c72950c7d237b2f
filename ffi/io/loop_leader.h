/* Leader and followers: a waiting reader receives on its own thread. Handing each message from the context's thread to
 * a reader costs a second wake-up, more than the rest of a round trip. Therefore a reader in embedded mode that finds
 * its queue empty becomes the leader, if there is none: the groups' sockets are reported to it instead of the context's
 * thread, and it receives for all readers, under the context lock. The other readers follow: they wait for their
 * queues' descriptors, and check periodically whether they may lead.
 *
 *                        queue empty, nobody leads, no load
 *      context's thread ------------------------------------> a reader leads --+ datagrams: receive, deliver, wake
 *      receives         <------------------------------------                  | the followers that got rows
 *                        rows for it, timeout, signal,         ^---------------+
 *                        unblocked, closed; or load
 *
 * The context's thread never leaves its epoll set. Only the reports of the groups move (EPOLL_CTL_MOD), so the change
 * of leader wakes no thread, and a datagram that arrives between two waits is reported to the context's thread at once.
 * Timers, NAKs and status messages of sources, and requests of publishers always stay with the context's thread. If a
 * datagram of the leader brings a timer forward, the leader requests that run from the context's thread.
 *
 * Load (receive coalescing would start, or a queue is full) suspends leading: then one thread that coalesces datagrams
 * is better. No reader leads over a ring set, with busy_wait, or with more than UM_RECEIVING_DIRECT_MAX groups.
 *
 * The leader polls briefly before it sleeps, as long as datagrams arrive within that time
 * (core/foundation/adaptive_spin.h), as a thread does that donates itself.
 *
 * Threads: any reader; one leads at a time (`is_led`), and owns `load` and `spin` meanwhile. Locks: the context lock,
 * never while it sleeps. Internal to ffi/io; below the loop, which reports load.
 */
#ifndef UM_IO_LOOP_LEADER_H
#define UM_IO_LOOP_LEADER_H

#include "core/foundation/adaptive_spin.h"
#include "core/foundation/receive_coalescing.h"
#include "io/event_queue_private.h"
#include "io/receiving.h"

enum { UM_LEADER_PRESSURED_NS = 1000000 }; /* how long readers only follow after a queue was full */

typedef struct um_loop_leader_config {
    bool is_disabled;         /* readers only follow */
    int64_t spin_ns;          /* how long to poll after the last event before sleeping */
    int64_t adaptive_spin_ns; /* the same, only while events arrive within that time */
    int64_t coalesce_ns;      /* the loop's coalescing interval; 0: load never ends leading */
} um_loop_leader_config;

typedef struct um_loop_leader {
    um_loop_leader_config config;
    um_links *links;
    um_receiving *receiving;
    um_event_queues *queues;
    atomic_bool is_led;
    _Atomic int64_t loaded_until_ns;
    um_receive_coalescing load; /* detects load from the datagrams that the leader received */
    um_adaptive_spin spin;
    int64_t spin_until_ns;
    uint32_t group_changes; /* the receiving half's, when leading started */
    bool has_ipc;           /* sessions over LBT-IPC are received, when leading started */
} um_loop_leader;

void um_loop_leader_init(um_loop_leader *leader, const um_loop_leader_config *config, um_links *links,
                         um_receiving *receiving, um_event_queues *queues);

/* Waits, leading or following, until the queue may have rows, end_ns, a signal, or a change of role. Inside the queue's
 * gate. Returns false if a signal ended it. */
bool um_loop_leader_wait_queue(um_loop_leader *leader, um_event_queue *queue, int64_t end_ns);
/* The same for any descriptor, such as one that stands for several queues. */
bool um_loop_leader_wait_descriptor(um_loop_leader *leader, int fd, int64_t end_ns);

/* Polls for rows, for the time that the adaptive spin allows and without sleeping, before a reader waits by other
 * means. has_rows: rows are already there, and only the time is recorded. Inside the queue's gate. */
void um_loop_leader_look(um_loop_leader *leader, um_event_queue *queue, bool has_rows);

/* Called by the loop: it coalesces datagrams until until_ns. */
static inline void um_loop_leader_note_load(um_loop_leader *leader, int64_t until_ns)
{
    if (until_ns > atomic_load_explicit(&leader->loaded_until_ns, memory_order_relaxed))
        atomic_store_explicit(&leader->loaded_until_ns, until_ns, memory_order_relaxed);
}

#endif
