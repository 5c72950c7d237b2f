/* A node: the receiving sessions of one context, looked up by the datagrams that belong to them, and the queues of
 * receivers. A full queue holds back the sessions that feed nothing else (message_queue.h draws its states). Sans-I/O:
 * ffi/io/context.c drives it from sockets, ffi/sim from a simulated network.
 *
 * Threads: the context lock. Memory: sessions and queues are owned by their creators; the node refers to them.
 */
#ifndef UM_CORE_NODE_H
#define UM_CORE_NODE_H

#include "core/receiver/first_contact.h"
#include "core/receiver/resume_points.h"

enum {
    UM_NODE_SESSIONS_MAX = 512,
    UM_NODE_QUEUES_MAX = 16384,
    UM_NODE_IDLE_PER_SOURCE_MAX = 64, /* sessions per source address that have received no datagram */
};

typedef struct um_node {
    um_receiver_session *table[2 * UM_NODE_SESSIONS_MAX]; /* open addressing by session identity */
    um_receiver_session *sessions[UM_NODE_SESSIONS_MAX];  /* dense */
    int64_t due_ns[UM_NODE_SESSIONS_MAX];                 /* when the tick of each session is due */
    uint32_t session_count;
    um_receiver_session *last_session;
    um_message_queue *queues[UM_NODE_QUEUES_MAX]; /* each once, even if it has several receivers */
    uint32_t queue_count;
    int64_t now_ns;         /* the current time, for queues that record when rows were appended */
    bool needs_review;      /* a queue has left OPEN since the last review */
    bool is_held;           /* every session with receivers is held; it was so at the last review */
    uint32_t holding_count; /* queues in state HOLDING at the last review */
    int64_t review_due_ns;  /* when the queues are reviewed next */
    bool is_tick_due;       /* um_node_wake since the last tick */
    uint64_t hold_changes;  /* reviews that changed which sessions are held */
    bool has_begun_otr;     /* some controller has started off-transport recovery; cleared by the owner */
    bool is_behind;         /* set by the owner before a tick: received datagrams are still unread */
    bool is_cut_off;        /* no session sends NAKs (nak_cutoff.h) */
    um_reorder_buffer store;
    um_resume_points resume_points; /* without capacity unless the owner provides memory */
    um_first_contacts contacts;
    um_context_counters counters;
    uint64_t ended_given_up; /* datagrams that sessions had given up when they ended */
} um_node;

/* The reorder buffer's memory is the caller's. */
void um_node_init(um_node *node);

bool um_node_add_session(um_node *node, um_receiver_session *session);
void um_node_remove_session(um_node *node, um_receiver_session *session);

/* Updates the counters that are computed from the sessions. */
void um_node_snapshot(um_node *node);
um_receiver_session *um_node_find_session(um_node *node, const um_session_id *id);

/* Returns the session to evict for a new one of this source address, or NULL. Only sessions that have received nothing
 * are evicted, so advertisements of nonexistent sources cannot displace active ones: the oldest of the same source if
 * that has UM_NODE_IDLE_PER_SOURCE_MAX of them, otherwise, if is_needed, the oldest of all. */
um_receiver_session *um_node_evictable(const um_node *node, um_ip source_ip, bool is_needed);

/* Stops or resumes NAKs for a receiver, or for all with NULL, including later ones. Resuming also ends the cutoff that
 * a session has imposed on itself (UX-21). */
void um_node_set_nak_cutoff(um_node *node, um_receiver *receiver, bool is_cut_off);

/* Adds a queue of the node's receivers: before the receivers are added, and removed after they are. */
bool um_node_add_queue(um_node *node, um_message_queue *queue);
void um_node_remove_queue(um_node *node, um_message_queue *queue);

/* Handles data received from the group: one datagram or a coalesced run. */
void um_node_on_data(um_node *node, const um_rx *rx, int64_t now_ns);

/* After a batch of receives, sends status messages that became due, at most one per session (AE-16). */
void um_node_after_batch(um_node *node, int64_t now_ns);

/* Returns the smallest window that a session reports to its source. */
uint64_t um_node_window_bytes(const um_node *node);

/* Moves full queues to their next state and updates is_held of the sessions. Call it before each batch; it costs one
 * comparison while all queues are open. Returns is_held: the owner then leaves datagrams of every session unread. */
bool um_node_review_queues(um_node *node, int64_t now_ns);

/* Returns when to review the queues at the latest; UM_NEVER_NS while all are open. After a review that changed a
 * queue's state it is now: controllers deliver what they held, or drop it, in the tick. */
int64_t um_node_review_by_ns(const um_node *node, int64_t now_ns);

/* Runs the timers that are due. Returns when the next call is due. */
int64_t um_node_tick(um_node *node, int64_t now_ns);

/* Returns a session that has ended and delivered everything, so that the owner may remove it, or NULL. */
um_receiver_session *um_node_finished_session(um_node *node);

/* Makes the next tick check every timer, after the owner has changed a session. */
void um_node_wake(um_node *node, int64_t now_ns);

#endif
