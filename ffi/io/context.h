/* The context: sockets, timers and the loop that drives a node (UM-13..UM-15; design W8).
 *
 *   embedded    um_context_start makes one thread that runs the loop
 *   sequential  the application calls um_context_process and donates its thread
 *
 * Threads: every function here may be called from any thread. The context lock guards the receiving side and the
 * lists; each source session has its sender lock; publishing takes neither (publishing.c). Closing waits for the
 * calls that are under way on the object, and ends their waiting; a call that comes later finds it closed (gate.h).
 *
 * Memory: everything is mapped when its object is created; pages are backed when first touched. Pointers returned
 * are handles the caller gives back to the matching close, which ends the object, and then, when no thread can use
 * the handle any more, to the matching free, which unmaps it. Objects of a context need its memory: free it last.
 *
 * Errors: 0 or a negative errno. um_context_error_step names what failed.
 */
#ifndef UM_IO_CONTEXT_H
#define UM_IO_CONTEXT_H

#include <pthread.h>

#include "capture/writing/tap.h"
#include "core/linger.h"
#include "core/node.h"
#include "core/source.h"
#include "io/gate.h"
#include "io/link_socket.h"
#include "io/port.h"

enum {
    UM_CONTEXT_ENDED_MAX = 64,     /* ended sessions remembered until they are asked for */
    UM_CONTEXT_SESSIONS_MAX = 256, /* source sessions */
    UM_CONTEXT_GROUPS_MAX = 256,   /* joined (group, port) pairs */
};

typedef struct um_context_config {
    char interface[16];
    uint32_t interface_ip;
    uint32_t ttl;
    uint32_t source_buffer_bytes;
    uint32_t receiver_buffer_bytes;
    uint32_t receive_batch; /* datagrams of one receive call */
    bool gso;
    bool gro;
    bool timestamps;
    bool busy_wait;
    int64_t linger_ns;          /* how long to go on polling after the last event before sleeping */
    int64_t adaptive_linger_ns; /* the same while events come that soon, for who has no thread here (core/linger.h) */
    int64_t coalesce_ns;        /* under load, how long to let datagrams gather before the next receive; 0, and with
                                   busy_wait: never */
    int64_t coalesce_max_ns;    /* the same with a port, where it begins with the above; below a second, both */
    uint64_t data_rate_bps;
    uint64_t retransmit_rate_bps;
    int64_t rate_interval_ns;
    uint32_t hold_datagrams;
    uint32_t hold_messages;      /* power of two */
    uint32_t datagram_max_bytes; /* largest UDP payload ever sent or held */
    uint64_t random_seed;
    um_port *port; /* the rings its data travels on, open as long as the context; NULL: kernel sockets */
} um_context_config;

struct um_context;

/* A source session with its sockets. One sends to the group, the other receives NAKs: the loop waits for that one, and
 * the kernel would look for who waits each time something sent through it is freed. */
typedef struct um_publication_session {
    um_source_session core;
    um_socket_link data_link;
    um_socket_link nak_link;
    um_link *port_link; /* where data goes when the context has a port, else NULL */
    um_tap_link tapped; /* that link, or data_link, as the session sees it */
    struct um_context *context;
    void *memory;
    size_t memory_bytes;
    int64_t due_ns;
    int64_t rest_ns;             /* while publishers stream, the loop leaves it alone so long */
    _Atomic int64_t timers_ns;   /* the session's timers are to be run by then */
    _Atomic int64_t asked_ns;    /* or by then, says a publisher */
    atomic_bool timers_wanted;   /* from who runs the sender: the loop found it busy */
    atomic_bool left;            /* a publisher left datagrams to the loop's next turn */
    _Atomic int64_t last_run_ns; /* when the sender last ran */
    _Atomic int64_t heard_ns;    /* when a publisher last looked for status messages */
    _Atomic int64_t heard_at;    /* up to where was flushed then */
    atomic_bool hurried;         /* a thread that met a busy sender wants all of it sent: nothing is to be left */
    atomic_bool unwatched;       /* the loop met a busy sender: who runs it reads the NAK socket meanwhile */
    int wakeup_fd;               /* readable once a send may succeed again after one was refused (UX-2) */
    _Atomic uint32_t wakeup_wanted;
    uint32_t publication_count;
    bool in_use;
} um_publication_session;

/* A source. */
typedef struct um_publication {
    um_source core;
    um_publication_session *session;
    size_t memory_bytes; /* of this object and its explicit batch */
    um_gate gate;
} um_publication;

/* What receivers deliver into and one reader reads: the queue of one receiver, or of as many as share it. */
typedef struct um_event_queue {
    um_message_queue core;
    struct um_context *context;
    int event_fd; /* readable when rows wait and the reader had armed it */
    _Atomic uint32_t waiting;
    size_t memory_bytes;
    um_gate gate;
    struct um_event_queue *next;
} um_event_queue;

/* A receiver. */
typedef struct um_subscription {
    um_receiver core;
    struct um_context *context;
    um_event_queue *queue; /* outlives it */
    um_gate gate;
    struct um_subscription *next;
} um_subscription;

/* A joined group. */
typedef struct um_group {
    um_socket_link link;
    uint32_t session_count;
    bool in_use;
} um_group;

typedef struct um_context {
    um_context_config config;
    pthread_mutex_t lock;
    _Atomic uint32_t lock_waiters; /* control calls that want the lock: the loop steps aside */
    um_node node;
    um_rate_limits limits;
    um_socket_link control_link;   /* sends NAKs and status messages */
    um_tap_link tapped_control;    /* as the sessions see it */
    um_link_counters closed_links; /* what links that are gone have counted */
    um_receive_ring ring;
    um_port *port; /* NULL: none, or the context is closed */
    um_rx port_batch[UM_PORT_BATCH_MAX];
    bool port_keeps;              /* frames of the last datagrams have not been given back */
    _Atomic bool port_is_read;    /* a group is joined, so its rings are to be waited for */
    _Atomic bool port_is_watched; /* they are in the epoll set now */
    void *ring_memory;
    void *hold_memory;
    size_t hold_bytes;
    um_publication_session *sessions; /* UM_CONTEXT_SESSIONS_MAX, mapped */
    um_group *groups;                 /* UM_CONTEXT_GROUPS_MAX, mapped */
    _Atomic uint32_t group_limit;     /* groups beyond it were never used; read without the lock too */
    uint32_t session_limit;
    uint32_t least_receive_bytes; /* that the kernel granted to a group's socket; 0: there was none */
    um_event_queue *event_queues;
    um_subscription *subscriptions;
    um_session_id ended[UM_CONTEXT_ENDED_MAX]; /* ring of receiving sessions that timed out */
    uint32_t ended_count;
    uint32_t ended_taken;
    _Atomic uint32_t waiting_count;
    int epoll_fd;
    int wake_fd;
    uint32_t next_delivery_id;
    const char *error_step;

    _Atomic int64_t sleeping_until_ns; /* 0: awake */
    _Atomic int64_t requested_ns;      /* somebody needs the loop at this time */
    int64_t last_poll_ns;
    int64_t next_due_ns;
    int64_t request_due_ns;
    uint32_t last_batch;         /* what the last pass received: while there is something, the next does not wait */
    uint32_t pass_datagrams;     /* datagrams of this pass; coalesced ones count singly */
    uint32_t load_datagrams;     /* and of all passes since then, answers apart */
    _Atomic uint32_t send_count; /* of this context's sessions; approximate where threads send at once */
    uint32_t sends_seen;         /* of them, by the last pass */
    uint32_t answers_due;        /* datagrams that may still come because of them */
    int64_t load_since_ns;
    bool read_directly; /* the groups are read without having been reported ready */
    int64_t hot_until_ns;
    bool napped;              /* before this pass */
    int64_t nap_ns;           /* with a port */
    uint32_t gathered_frames; /* by the port since the last nap */
    uint64_t gathered_bytes;
    int64_t linger_until_ns;
    um_linger linger;

    um_tap tap; /* runs between um_context_tap_start and _stop */
    um_gate gate;
    pthread_t thread;
    bool threaded;
    atomic_bool stop;
    _Atomic uint32_t unblock_count; /* calls of um_context_unblock */
} um_context;

int um_context_create(const um_context_config *config, um_context **context);
/* Ends the threads and everything still open in it. Once. */
void um_context_close(um_context *context);
/* Unmaps a closed context. */
void um_context_free(um_context *context);

/* Which step the last failed call failed at, for its error text. */
const char *um_context_failed_step(const um_context *context);
/* The smallest receive buffer the kernel granted to a group's socket, joined still or not; 0 before the first. */
uint32_t um_context_receive_buffer(um_context *context);

/* Embedded mode. */
int um_context_start(um_context *context);
void um_context_stop(um_context *context);

/* Sequential mode: runs the loop for timeout_ns; 0 is one pass that does not sleep, negative is until unblocked
 * (UM-14). Returns datagrams handled. */
int64_t um_context_process(um_context *context, int64_t timeout_ns);
/* Makes every um_context_process and um_event_queue_poll that is under way return. */
void um_context_unblock(um_context *context);

/* The loop must look at its timers at this time at the latest. */
void um_context_wake_by(um_context *context, int64_t time_ns);
/* Whether it sleeps and will look by then anyway, at what was written before this call as well. */
bool um_context_wakes_by(um_context *context, int64_t time_ns);

/* The groups joined now, at most `max` of them. Returns how many. */
uint32_t um_context_groups(um_context *context, um_address *groups, uint32_t max);

/* The interface takes datagrams of this many payload bytes from now on (design W4). */
void um_context_set_datagram_max(um_context *context, uint32_t bytes);

/* What the context sends and receives from now on goes to a file as well: see tap.h. One tap at a time: -EBUSY. */
int um_context_tap_start(um_context *context, const um_tap_config *config);
int um_context_tap_stop(um_context *context, um_tap_counters *counters);
void um_context_tap_read(const um_context *context, um_tap_counters *counters);
bool um_context_tap_is_running(const um_context *context);
/* Shows the tap a datagram that did not pass a link of the context: topic resolution. */
void um_context_tap_datagram(um_context *context, bool sent, um_address from, um_address to, const char *data,
                             uint32_t length);

/* ---- loop internals shared by the files of this folder ---- */

void um_context_lock(um_context *context);
void um_context_unlock(um_context *context);
enum um_watch_kind { UM_WATCH_WAKE, UM_WATCH_GROUP, UM_WATCH_SESSION, UM_WATCH_PORT };
/* A session's socket is reported once, and then not until it is watched again. */
int um_context_watch(um_context *context, int fd, enum um_watch_kind kind, uint32_t index);
void um_context_watch_again(um_context *context, int fd, enum um_watch_kind kind, uint32_t index);
/* While groups are joined the loop waits for the port. A port that only sends is not waited for: the kernel would look
 * for who waits each time something sent through it is freed. Nor is it while the loop does not sleep: a watched ring
 * costs the kernel a call for every datagram that comes. The loop and whoever holds the context lock. */
int um_context_watch_port(um_context *context, bool is_watched);
um_socket_config um_context_socket_config(const um_context *context);
/* Closes a link and keeps its counters. Context lock held. */
void um_context_close_link(um_context *context, um_socket_link *link);
/* One pass: receives, timers, wake-ups. wait_until_ns 0: do not sleep. Returns datagrams handled. */
int64_t um_context_pass(um_context *context, int64_t wait_until_ns);
/* Zeroed pages, for what is large: they are backed when first touched. */
void *um_map(size_t bytes);
/* Backs them now, by huge pages where they can be had: for what is used from end to end, at full speed. */
void um_back(void *memory, size_t bytes);
void um_unmap(void *memory, size_t bytes);
/* Zeroed memory for what is small and many: it lies close together, where objects that each begin a page would compete
 * for the same few lines of the caches. Given back with free. */
void *um_allocate(size_t bytes);

/* ---- sources (publishing.c) ---- */

/* Opens a source session; its NAK port is the first free of the range. config's nak_port is filled in. */
int um_session_open(um_context *context, um_session_config *config, uint16_t port_low, uint16_t port_high,
                    um_publication_session **session);
/* Datagrams of this session carry at most so many bytes of UDP payload from now on. */
void um_session_limit_datagram(um_publication_session *session, uint32_t bytes);
/* The session's log and what belongs to it: stays mapped after um_session_shut, since an application may still be
 * writing into a claim. The caller gives it to um_unmap when that cannot be. */
void *um_session_memory(const um_publication_session *session, size_t *bytes);
/* Closes a session without publications: its retransmissions end with it (UM-90). */
void um_session_shut(um_publication_session *session);

int um_publication_open(um_publication_session *session, const um_source_config *config, um_publication **publication);
/* What is published is sent first as far as the limits allow now. Senders that wait return UM_CLOSED soon. Once. */
void um_publication_close(um_publication *publication);
void um_publication_free(um_publication *publication);

/* For the send flags: this call goes on waiting where the one before it left off, so it is not counted again. */
enum { UM_SEND_CONTINUED = 0x100 };

/* Publishing. timeout_ns: how long to wait when held back: 0 not at all, negative for ever. See source.h. */
int64_t um_publication_send(um_publication *publication, const char *data, uint32_t length, uint32_t flags,
                            int64_t timeout_ns);
/* Many messages at once: see um_source_send_many. Lengths or offsets that leave the data, or offsets that run
 * backwards, are refused with -EINVAL. */
int64_t um_publication_send_many(um_publication *publication, const char *data, uint64_t data_bytes,
                                 const uint32_t *lengths, const int32_t *offsets, uint32_t count, uint32_t flags,
                                 int64_t timeout_ns);
int um_publication_claim(um_publication *publication, uint32_t length, um_source_claim *claim, uint32_t flags,
                         int64_t timeout_ns);
int64_t um_publication_commit(um_publication *publication, um_source_claim *claim, uint32_t flags);
void um_publication_abort(um_publication *publication, um_source_claim *claim);
int64_t um_publication_flush(um_publication *publication);

/* UX-2: the descriptor that becomes readable when sending is possible again after a send that did not wait was
 * refused. It stays the session's. um_publication_sendable says whether it is possible now. */
int um_publication_wakeup_fd(const um_publication *publication);
bool um_publication_sendable(const um_publication *publication);

/* True when everything published has been sent and every receiver that flow control knows has it. */
bool um_publication_drained(um_publication *publication);
uint32_t um_publication_message_max(const um_publication *publication);

/* True when flow control knows a receiver (always with policy none). */
bool um_publication_connected(const um_publication *publication);

/* What publishers keep of a session beside its core. */
void um_publishing_init(um_publication_session *session);

/* Waits for the sender lock of a session, giving way to who holds it. */
void um_lock_sender(um_source_session *core);

/* Runs a session's timers: the loop's part. Returns when it wants to run next. */
int64_t um_publishing_tick(um_publication_session *session, int64_t now_ns);

/* The loop's part of a session's NAK socket, once it is reported readable. Returns datagrams handled. */
int um_publishing_receive(um_publication_session *session, int64_t now_ns);

/* ---- event queues (event_queue.c) ---- */

typedef struct um_event_queue_config {
    uint32_t block_count;
    uint32_t block_rows;
    uint32_t block_bytes;
    uint32_t message_max_bytes; /* of its receivers together */
} um_event_queue_config;

int um_event_queue_open(um_context *context, const um_event_queue_config *config, um_event_queue **queue);
/* Ends reading; no subscription can be opened on it any more, and those it has are closed before it. Rows not yet
 * released stay readable until um_event_queue_free. */
void um_event_queue_close(um_event_queue *queue);
/* Not before every subscription of it has been freed. */
void um_event_queue_free(um_event_queue *queue);

/* Takes rows, waiting up to timeout_ns for the first (0: not, negative: for ever). In sequential mode the caller's
 * thread runs the loop meanwhile. Returns rows->count; 0 after the timeout, or earlier when unblocked, closed or
 * interrupted by a signal. One thread at a time reads a queue. */
uint32_t um_event_queue_poll(um_event_queue *queue, uint32_t max, int64_t timeout_ns, um_rows *rows);
/* Takes rows that are there; never runs the loop. */
uint32_t um_event_queue_take(um_event_queue *queue, uint32_t max, um_rows *rows);

/* One row, its payload copied into out (at most capacity bytes) and its columns into row. Waits as _poll does.
 * Returns the payload's length, or one of these. */
enum { UM_RECEIVED_NOTHING = -1, UM_RECEIVED_EVENT = -2 };
int64_t um_event_queue_receive(um_event_queue *queue, uint8_t *out, uint32_t capacity, int64_t timeout_ns, um_row *row);

/* What a reader needs to know of rows at once: relative payload offsets (count + 1 of them), how many rows are
 * events, the length all payloads share (-1: they differ), the source all rows share (-1 likewise). */
typedef struct um_rows_summary {
    uint32_t event_count;
    int32_t payload_length;
    int64_t source;
    bool plain; /* only whole messages without flags */
} um_rows_summary;
void um_rows_summarize(const um_rows *rows, int32_t *offsets, um_rows_summary *summary);

/* Copies payloads that are still in frames, so that those of the rows lie end to end in their block. Any thread, for
 * rows that have not been released; so is the next. */
void um_rows_gather(um_block *block, uint32_t first, uint32_t count);
/* The first `bytes` of each row's payload, with zeros behind a shorter one: count * bytes. */
void um_rows_heads(um_block *block, uint32_t first, uint32_t count, uint32_t bytes, uint8_t *out);
/* The first `capacity` bytes of one row's payload, or all of it. Returns the length of all of it. */
uint32_t um_rows_copy(um_block *block, uint32_t row, uint8_t *out, uint32_t capacity);

/* Arms event_fd: true when rows wait already, or never will (then it is not armed). */
bool um_event_queue_arm(um_event_queue *queue);
/* Makes event_fd readable. The caller holds the context lock or knows that the queue is not closed. */
void um_event_queue_wake(um_event_queue *queue);
/* Wakes the readers whose queues got rows: the loop's part. */
void um_event_queue_notify(um_context *context);

/* ---- receivers (receiving.c) ---- */

/* Delivers into the queue, its own or one it shares. UM_CLOSED when that is closed. */
int um_subscription_open(um_event_queue *queue, const um_receiver_config *config, um_subscription **subscription);
/* What it has delivered stays in the queue and is read. */
void um_subscription_close(um_subscription *subscription);
void um_subscription_free(um_subscription *subscription);

/* Maps a topic of a session to the subscription: joins the group and creates the receiving session where needed.
 * -EEXIST when it is mapped already. */
int um_subscription_map(um_subscription *subscription, const um_receiver_session_config *session, uint32_t topic_index,
                        uint32_t source);

/* The next receiving session that has ended since the last call; false when there is none. */
bool um_context_take_ended(um_context *context, um_session_id *id);

/* Receives from a group's socket. Returns datagrams, or -errno. */
int um_receiving_receive(um_context *context, um_group *group, int64_t now_ns);
/* Receives a batch from the port and hands it to the sessions. Returns how many datagrams. A loop that polls keeps the
 * frames of a few until it looks again: giving them back means writing to lines that the kernel's processor has, and
 * the next fence would wait for that, with whoever waits for the datagram. After a pass that received something comes
 * one that does not sleep, so nobody waits for a ring that seems to have something in it. */
int um_receiving_receive_port(um_context *context, bool polls, int64_t now_ns);
/* Gives back the frames of the last batch. */
void um_receiving_give_back(um_context *context);
/* Takes back frames that rows were kept in, once those have been read. */
void um_receiving_take_back(um_context *context);
/* Takes down what has ended. */
void um_receiving_reap(um_context *context);

#endif
