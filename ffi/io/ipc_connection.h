/* The receiving end of an LBT-IPC session: attaches to the source's shared log, copies records out of it, and passes
 * the messages to the receiver session as the next datagrams in order, so that the layers above work as with datagrams.
 * Internal to ffi/io; below the receiving half.
 *
 *                  time to attach             WELCOME
 *     waiting ------------------> greeting ------------> attached --+ records
 *       ^ ^                          |                    |    ^    |
 *       | +-- refused, too slow -----+                    |    +----+
 *       |                                                 | socket closed: the source has died, or ended, or cut us off
 *       |   the log is read to its end, without an end    v
 *       +-------------------------------------------- draining ---- the log has ended ----> ended
 *
 *     ended: the source ended the log, no process listens any more (the source died), it refused us for the activity
 *     timeout, or showed no sign of life for it
 *
 * The log stays readable after the source has died: every record that it committed is delivered. A receiver that was
 * cut off attaches again; what it missed is a gap of the topics, which the delivery controllers declare lost at once,
 * or recover off the transport (C16). A source-paced log may overtake the reader: the same.
 *
 * Sleep: before a thread sleeps it arms the connection (um_ipc_connection_arm); only then does the source write to the
 * eventfd that the thread waits for. A thread that polls costs neither side a system call. With a source of another
 * user, or of an earlier build, the wake-up is a message on the control socket (core/ipc/ipc_control.h).
 *
 *     descriptor       reported as   to the loop                         to a leading reader
 *     eventfd          GROUP         unless a reader leads or is held    yes
 *     control socket   CONTROL       always: the source has died         no
 *     control socket   GROUP         while there is no eventfd: as the eventfd
 *
 * A full queue stops reading. A receiver-paced source then waits; a source-paced one overtakes in the end.
 *
 * Threads: the context lock. Memory: mapped by open, unmapped by close, the log while attached. System calls: those of
 * the control socket and of the eventfds.
 */
#ifndef UM_IO_IPC_CONNECTION_H
#define UM_IO_IPC_CONNECTION_H

#include "core/foundation/counters.h"
#include "core/ipc/shared_log.h"
#include "core/receiver/node.h"
#include "core/wire/message_stream.h"
#include "io/reactor.h"
#include "os/segment.h"

enum um_ipc_state { UM_IPC_WAITING, UM_IPC_GREETING, UM_IPC_ATTACHED, UM_IPC_DRAINING, UM_IPC_ENDED };

typedef struct um_ipc_connection {
    um_reactor *reactor;
    um_node *node;
    um_receiver_session *session;
    um_link_counters *counters;
    uint32_t *changes; /* incremented when the descriptor is replaced */
    uint32_t index;    /* in the epoll set, as a group */
    enum um_ipc_state state;
    int fd;                  /* the control socket; -1: none */
    int wake_fd;             /* attached: eventfd that wakes this receiver; -1: none, the control socket does */
    int source_wake_fd;      /* attached: eventfd that wakes the source; -1: the same */
    bool is_reported;        /* the descriptor, to the loop, when it is readable */
    bool is_armed;           /* the source wakes us */
    bool can_share;          /* eventfds, with the process at the other end of the socket */
    bool takes_topics;       /* attached: the source counts the receivers of each topic */
    bool needs_announcement; /* topics are not reported yet, because the socket was full */
    int64_t due_ns;      /* waiting: the next attempt; greeting: when it is given up; attached: next check for life */
    int64_t checked_ns;  /* when the socket was last read */
    int64_t alive_ns;    /* when the source last showed that it lives */
    int64_t interval_ns; /* until the next attempt, on average; doubles with each until a record is read */
    int64_t seen_end;    /* attached: end of the log at the last check for life */
    uint32_t seen_heartbeat; /* the same of the heartbeat */
    um_segment log;
    um_segment page;
    um_shared_reader reader;
    um_message_stream stream; /* records copied out, until their messages are delivered */
    void *memory;
} um_ipc_connection;

/* Attaches as soon as the tick is called. `changes` and `counters` are the owner's and outlive it. 0 or -ENOMEM. */
int um_ipc_connection_open(um_ipc_connection *connection, um_reactor *reactor, um_node *node,
                           um_receiver_session *session, uint32_t index, uint32_t *changes, um_link_counters *counters);
void um_ipc_connection_close(um_ipc_connection *connection);

/* Reports the topic of a new controller, or one that has no controller any more. */
void um_ipc_connection_report_topic(um_ipc_connection *connection, um_delivery *delivery);
void um_ipc_connection_cancel_topic(um_ipc_connection *connection, uint32_t topic_index);

/* Returns the descriptor that reports wake-ups. */
static inline int um_ipc_connection_descriptor(const um_ipc_connection *connection)
{
    return connection->wake_fd >= 0 ? connection->wake_fd : connection->fd;
}
/* Starts or stops reporting to the loop that the descriptor is readable; stopped while another thread waits for it. */
void um_ipc_connection_report(um_ipc_connection *connection, bool is_reported);
/* Reads the control socket, which was reported. */
void um_ipc_connection_on_control(um_ipc_connection *connection, int64_t now_ns);
/* Called before a thread sleeps: from now on the source wakes it. Returns false if there is something to read. */
bool um_ipc_connection_arm(um_ipc_connection *connection);
/* Receives and delivers until the log is empty, a queue is full, or its share is used up (*more). Returns runs
 * delivered. */
int um_ipc_connection_receive(um_ipc_connection *connection, int64_t now_ns, bool *more);
/* Attaches if that is due, and checks that the source lives. Returns when to call again. */
int64_t um_ipc_connection_tick(um_ipc_connection *connection, int64_t now_ns);

#endif
