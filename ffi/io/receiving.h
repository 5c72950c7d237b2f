/* The receiving half of a context: joined groups, receiving sessions, and the datagrams that the loop delivers to them.
 * Internal to ffi/io; subscription.h is what applications open.
 *
 * Threads: the context lock, except for um_receiving_open and _close. Memory: a session is mapped when the first of its
 * topics is mapped, and unmapped with the last receiver, or when it has ended. Errors: negative errno.
 */
#ifndef UM_IO_RECEIVING_H
#define UM_IO_RECEIVING_H

#include "core/foundation/receive_coalescing.h"
#include "core/receiver/node.h"
#include "io/control_sender.h"
#include "io/ipc_connection.h"
#include "io/links.h"
#include "io/reactor.h"
#include "io/tcp_connection.h"

enum {
    UM_RECEIVING_ENDED_MAX = 1024, /* ended and evicted sessions kept until they are read */
    UM_RECEIVING_GROUPS_MAX = 256, /* joined (group, UDP port) pairs, and ports of LBT-RU sessions */
    UM_RECEIVING_DIRECT_MAX = 4,   /* up to this number of groups, all are read without a call to epoll */
};

/* A joined group, or the descriptor of a single session: the port of LBT-RU, the connection of TCP or LBT-IPC. */
typedef struct um_group {
    um_socket_link link;
    um_tcp_connection *connection; /* of a session over TCP */
    um_ipc_connection *ipc;        /* of a session over LBT-IPC; both NULL: it is read by the link */
    uint32_t session_count;
    bool is_used;
    bool is_unwatched; /* a reader waits for it instead of the loop */
    bool is_reported;  /* to the loop, when it is readable */
    bool is_held;      /* full queues hold all of its sessions back: it is neither read nor reported */
} um_group;

static inline bool um_group_is_connection(const um_group *group)
{
    return group->connection != NULL || group->ipc != NULL;
}

/* Returns the descriptor that reports data; -1: the connection is not made yet. */
static inline int um_group_descriptor(const um_group *group)
{
    if (group->connection != NULL)
        return group->connection->state == UM_TCP_CONNECTED ? group->connection->fd : -1;
    if (group->ipc != NULL)
        return group->ipc->state == UM_IPC_ATTACHED ? um_ipc_connection_descriptor(group->ipc) : -1;
    return group->link.fd;
}

/* Reports the topic of a new controller to the source, or one that has no controller any more, if the group is a
 * connection. Sessions over datagrams report topics with status messages. */
static inline void um_group_report_topic(um_group *group, um_delivery *delivery)
{
    if (group->connection != NULL)
        um_tcp_connection_request_topic(group->connection, delivery);
    else if (group->ipc != NULL)
        um_ipc_connection_report_topic(group->ipc, delivery);
}

/* Reports to the source of a connection that the longest message of the topic has changed. */
static inline void um_group_report_limit(um_group *group, um_delivery *first)
{
    if (group->connection != NULL)
        um_tcp_connection_report_limit(group->connection, first);
    else if (group->ipc != NULL)
        um_ipc_connection_report_topic(group->ipc, first);
}

static inline void um_group_cancel_topic(um_group *group, uint32_t topic_index)
{
    if (group->connection != NULL)
        um_tcp_connection_cancel_topic(group->connection, topic_index);
    else if (group->ipc != NULL)
        um_ipc_connection_cancel_topic(group->ipc, topic_index);
}

/* True unless the group is a connection whose source does not send it its messages yet. */
static inline bool um_group_is_joined(const um_group *group, int64_t now_ns)
{
    if (group->connection != NULL)
        return um_tcp_connection_is_joined(group->connection, now_ns);
    return group->ipc == NULL || group->ipc->state == UM_IPC_ATTACHED;
}

/* An off-transport recovery that has started and waits for um_subscription_fetch. */
typedef struct um_begun_recovery {
    void *subscription; /* a um_subscription */
    um_session_id id;
    uint32_t topic_index;
    uint32_t epoch;
    um_address request_port;
    uint32_t next_sqn;
} um_begun_recovery;

typedef struct um_receiving_config {
    uint32_t batch; /* datagrams per receive call */
    uint32_t hold_datagrams;
    uint32_t hold_messages;
    uint32_t datagram_max_bytes;
    bool joins_datagrams; /* frames of the rings may hold several datagrams that GSO or GRO joined */
} um_receiving_config;

typedef struct um_receiving {
    um_reactor *reactor;
    um_links *links;
    um_receiving_config config;
    um_node node;
    um_control_sender control;
    um_control_sender ipv6_control; /* opened for the first session of an IPv6 group */
    void *reorder_memory;
    size_t reorder_bytes;
    void *resume_memory;
    um_group *groups;          /* UM_RECEIVING_GROUPS_MAX, mapped */
    uint32_t group_limit;      /* groups beyond it were never used */
    uint32_t group_changes;    /* groups joined and left, and connections made and lost, ever */
    uint32_t connection_count; /* over TCP and LBT-IPC */
    uint32_t ipc_count;        /* of these, over LBT-IPC */
    /* Smallest buffer that the kernel granted to a group's socket; 0: no socket yet. Changed under the lock. */
    _Atomic uint32_t least_buffer_bytes;
    bool is_reading_rings; /* a group is joined, so the loop waits for the rings */
    uint64_t hold_changes; /* those of the node when the groups' is_held were updated */
    um_rx ring_batch[UM_RINGS_BATCH_MAX];
    uint32_t pass_datagrams;               /* in this pass of the loop; coalesced datagrams are counted singly */
    um_receive_coalescing *coalescing;     /* counts datagrams received from rings */
    struct um_subscription *subscriptions; /* the list of subscription.c */
    void (*on_unmapped)(const um_delivery *delivery); /* of subscription.c: a controller has ended */
    uint32_t next_delivery_id;
    int recoveries_fd; /* eventfd of the thread that takes off-transport recoveries; -1: none */
    um_session_id ended[UM_RECEIVING_ENDED_MAX]; /* ring of sessions that timed out */
    uint32_t ended_count;
    uint32_t ended_taken;
} um_receiving;

/* Opens the control socket and maps the memory; um_receiving_close ends what was opened, after a failure too. */
int um_receiving_open(um_receiving *receiving, um_reactor *reactor, um_links *links, um_receive_coalescing *coalescing,
                      const um_receiving_config *config);
/* Called when receiving has stopped. Groups stay readable until um_receiving_free. */
void um_receiving_close(um_receiving *receiving);
void um_receiving_free(um_receiving *receiving);

/* Unmaps a controller, whose rows stay in the queue; closes its session with the last one. */
void um_receiving_unmap(um_receiving *receiving, um_delivery *delivery);

/* Maps a topic of a session to the receiver: joins the group and creates the session if needed. -EEXIST if it is mapped
 * already, -EAGAIN while the session ends, -EKEYREJECTED if the session has another key set or log key. */
int um_receiving_map(um_receiving *receiving, um_receiver *receiver, const um_receiver_session_config *session,
                     uint32_t topic_index, uint32_t source);
/* Returns how many sources are mapped to the receiver whose messages from now on it receives, or reports as lost. */
uint32_t um_receiving_connected(const um_receiver *receiver, int64_t now_ns);
/* Unmaps every topic of the receiver, and ends the sessions without another receiver. */
void um_receiving_drop(um_receiving *receiving, um_receiver *receiver);

/* Joins every group again that the kernel may have left, all if the interface `has_returned`, and sends control
 * messages from the address of the interface as it is now. Returns 0, or -EADDRNOTAVAIL if sockets of LBT-RU or links
 * with keys stay at the former address, or another -errno. */
int um_receiving_follow_interface(um_receiving *receiving, bool has_returned);

/* um_node_set_nak_cutoff; takes the context lock. */
void um_receiving_set_nak_cutoff(um_receiving *receiving, um_receiver *receiver, bool is_cut_off);

/* ---- called by the loop ---- */

/* Receives from one group's socket until it is empty or its share of the pass is used up. Returns datagrams. */
int um_receiving_receive_group(um_receiving *receiving, uint32_t index, int64_t now_ns);
/* The same for all groups. */
int um_receiving_receive_groups(um_receiving *receiving, int64_t now_ns);
/* Stops reporting groups to the loop until um_receiving_watch_groups: the caller waits for their descriptors. Returns
 * their number; 0, and they stay watched, if there are more than UM_RECEIVING_DIRECT_MAX. A group joined meanwhile is
 * watched; one that is left becomes readable first. Both change `group_changes`. */
uint32_t um_receiving_unwatch_groups(um_receiving *receiving, int fds[UM_RECEIVING_DIRECT_MAX]);
void um_receiving_watch_groups(um_receiving *receiving);
/* Reviews the queues, and stops reports of groups that full queues hold back: the loop would find them readable in
 * every pass and not read them. Returns true if every session is held. */
bool um_receiving_review_queues(um_receiving *receiving, int64_t now_ns);
/* Receives from the ring set in the same way. */
int um_receiving_receive_rings(um_receiving *receiving, int64_t now_ns);
/* Continues the sessions of a changed key set with the new keys. */
int um_receiving_rekey(um_receiving *receiving, uint32_t key_set);
/* Wakes the thread that takes off-transport recoveries if any have started. */
void um_receiving_report_recoveries(um_receiving *receiving);
/* Takes at most `max` recoveries that have started and were not taken yet. Returns how many. */
uint32_t um_receiving_take_recoveries(um_receiving *receiving, um_begun_recovery *begun, uint32_t max);
/* Closes the sessions that have ended. */
void um_receiving_reap(um_receiving *receiving);

#endif
