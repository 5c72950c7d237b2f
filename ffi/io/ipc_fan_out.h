/* The link of an LBT-IPC source session (W6): writes the LBMC messages of each datagram that the session builds,
 * without its transport header, into the session's shared log (core/ipc/shared_log.h), once for all receivers (UM-46).
 *
 *   source-paced     every datagram is accepted; a receiver that is overtaken loses what it has not read
 *   receiver-paced   a datagram is accepted if every receiver has released the space for it
 *
 * Nothing is written while no receiver is attached.
 *
 * Waking a receiver is one write to its eventfd, made only after it has announced that it sleeps. Its wake-up of a
 * source that waits for space comes by another eventfd. With a receiver of another user, or of an earlier build, both
 * are messages on its control socket (core/ipc/ipc_control.h).
 *
 * Threads: the holder of the session's sender lock. Memory: the log segment and one page per receiver, until closed.
 * System calls: write or send, to sleeping receivers. Errors: a receiver whose page or socket breaks the rules is
 * marked as failed, and closed by the owner; the session is not affected.
 */
#ifndef UM_IO_IPC_FAN_OUT_H
#define UM_IO_IPC_FAN_OUT_H

#include "core/foundation/counters.h"
#include "core/ipc/shared_log.h"
#include "core/source/source_session.h"
#include "core/source/topic_filter.h"
#include "os/segment.h"

enum { UM_IPC_CLIENTS_MAX = 1024 }; /* per session, with those that have not said HELLO */

enum um_ipc_client_state {
    UM_IPC_CLIENT_NONE = 0,
    UM_IPC_CLIENT_GREETING, /* connected, but has not requested the session yet */
    UM_IPC_CLIENT_JOINED,
};

typedef struct um_ipc_client {
    enum um_ipc_client_state state;
    int fd;             /* the control socket */
    int wake_fd;        /* joined: eventfd that wakes the receiver; -1: none, the control socket does */
    int source_wake_fd; /* joined: eventfd that wakes this process; -1: the same */
    um_address address; /* the process id, and which of its connections to this session */
    uint32_t user_id;
    bool can_share;   /* eventfds, with the receiver's process */
    int64_t since_ns; /* greeting: when it connected; joined and waited for: when it last released space */
    um_segment page;
    um_shared_peer peer;
    int64_t wanted_position; /* waited for: the session continues once the receiver has read everything before */
    bool is_waited_for;      /* receiver-paced: the session waits for its space */
    bool has_failed;         /* the owner closes it in its next pass */
    bool has_every_topic;    /* it does not report its topics, or has more than `topics` holds */
    um_topic_filter topics;
    void *topic_memory;
} um_ipc_client;

typedef struct um_ipc_fan_out {
    um_link base;
    um_source_session *session; /* its events and counters are updated here */
    um_ipc_client *clients;     /* UM_IPC_CLIENTS_MAX */
    uint32_t client_limit;      /* clients from this index were never used */
    uint32_t joined_count;
    bool is_source_paced;
    uint32_t space_bytes; /* receiver-paced: free space that every receiver is known to have released */
    um_segment log;
    um_shared_writer writer;
    um_link_counters counters;
} um_ipc_fan_out;

/* The owner initializes the session before it sends. 0 or -errno. */
int um_ipc_fan_out_open(um_ipc_fan_out *fan_out, um_source_session *session, bool is_source_paced,
                        uint32_t capacity_bytes);
/* Marks the end of the log, and closes every connection. */
void um_ipc_fan_out_close(um_ipc_fan_out *fan_out);

/* Gives the client a page, and eventfds if it is to have some; it gets all data from now on. 0 or -errno. */
int um_ipc_fan_out_join(um_ipc_fan_out *fan_out, um_ipc_client *client, bool has_wakeups);
/* Returns how many clients receive the topic. */
uint32_t um_ipc_fan_out_receivers(const um_ipc_fan_out *fan_out, uint32_t topic_index);
/* Closes the client's connection and frees its place. */
void um_ipc_fan_out_leave(um_ipc_fan_out *fan_out, um_ipc_client *client);

/* Reads the client's position; marks it as failed if that is impossible. */
void um_ipc_fan_out_update(um_ipc_fan_out *fan_out, um_ipc_client *client, int64_t now_ns);
/* Returns true, once per wait, if the client has released the space that the session waits for. Any caller of update
 * may have read the position that ended the wait. */
bool um_ipc_fan_out_take_space(um_ipc_client *client);
/* Returns true if all clients have read everything. */
bool um_ipc_fan_out_is_drained(um_ipc_fan_out *fan_out);

#endif
