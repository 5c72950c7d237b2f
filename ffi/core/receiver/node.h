/* A node: the receiving sessions of one context, found by the datagrams that belong to them, and the receivers
 * whose queues hold them back. Sans-I/O: ffi/io/context.c drives it from sockets, ffi/sim from a simulated network.
 *
 * Threads: the context lock. Sessions and queues stay their creators'; the node only refers to them.
 */
#ifndef UM_CORE_NODE_H
#define UM_CORE_NODE_H

#include "core/receiver/resume_points.h"

enum {
    UM_NODE_SESSIONS_MAX = 512,
    UM_NODE_QUEUES_MAX = 16384,
    UM_NODE_IDLE_PER_SOURCE_MAX = 64, /* sessions of one source address that have received nothing */
};

typedef struct um_node {
    um_receiver_session *table[2 * UM_NODE_SESSIONS_MAX]; /* open addressing by session identity */
    um_receiver_session *sessions[UM_NODE_SESSIONS_MAX];  /* dense */
    int64_t due_ns[UM_NODE_SESSIONS_MAX];                 /* when the tick of each is due */
    uint32_t session_count;
    um_receiver_session *last_session;
    um_message_queue *queues[UM_NODE_QUEUES_MAX]; /* each once, however many receivers it has */
    uint32_t queue_count;
    int64_t now_ns; /* of what is being done, for queues that note when rows came */
    bool has_full_queue;
    bool has_begun_otr; /* off-transport recovery of some controller: the owner clears it */
    bool is_behind;     /* the owner's word before a tick: datagrams that have arrived are yet to be read */
    bool is_cut_off;    /* no session NAKs (nak_cutoff.h) */
    um_reorder_buffer store;
    um_resume_points resume_points; /* none unless the owner gives memory */
    um_context_counters counters;
} um_node;

/* The reorder buffer's memory is the caller's. */
void um_node_init(um_node *node);

bool um_node_add_session(um_node *node, um_receiver_session *session);
void um_node_remove_session(um_node *node, um_receiver_session *session);
um_receiver_session *um_node_find_session(um_node *node, const um_session_id *id);

/* The session to evict for a new one of this source address, or NULL: of those that have received nothing yet, the
 * oldest of the same source when that has UM_NODE_IDLE_PER_SOURCE_MAX of them, else, when `is_needed`, the oldest of
 * all. A session that is receiving is never evicted, so advertisements of sources that do not exist cannot. */
um_receiver_session *um_node_evictable(const um_node *node, uint32_t source_ip, bool is_needed);

/* No session NAKs for a receiver, or with NULL for any, those that come later included; or they do again, which also
 * ends what a session has imposed on itself (UX-21). */
void um_node_set_nak_cutoff(um_node *node, um_receiver *receiver, bool is_cut_off);

/* A queue that receivers of the node deliver into: added before them, removed after them. */
bool um_node_add_queue(um_node *node, um_message_queue *queue);
void um_node_remove_queue(um_node *node, um_message_queue *queue);

/* A receive from the group: one datagram or a coalesced run. */
void um_node_on_data(um_node *node, const um_rx *rx, int64_t now_ns);

/* After the receives of a pass: status messages that became due, one a session at most (AE-16). */
void um_node_after_batch(um_node *node, int64_t now_ns);

/* The smallest window that a session reports to its source. */
uint64_t um_node_window_bytes(const um_node *node);

/* True while some queue is full: the owner leaves datagrams where they are (its reader is slow). Call
 * it before each batch; it retries full queues. */
bool um_node_is_pressured(um_node *node, int64_t now_ns);

/* Runs the timers that are due. Returns when the next one is. */
int64_t um_node_tick(um_node *node, int64_t now_ns);

/* A session that ended and whose controllers have delivered everything, or NULL: the owner may take it down. */
um_receiver_session *um_node_finished_session(um_node *node);

/* Makes every timer be looked at on the next tick, after the owner changed something. */
void um_node_wake(um_node *node, int64_t now_ns);

#endif
