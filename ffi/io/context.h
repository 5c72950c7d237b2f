/* The context: what everything of one application is opened in, and the loop that drives it (UM-13..UM-15; W8).
 *
 *   embedded    um_context_start makes one thread that runs the loop
 *   sequential  the application calls um_context_process and donates its thread
 *
 * Threads: every function here may be called from any thread. The context lock guards the receiving side and the
 * lists; each source session has its sender lock; publishing takes neither. Closing waits for the
 * calls that are under way on the object, and ends their waiting; a call that comes later finds it closed (UM_CLOSED).
 *
 * Memory: everything is mapped when its object is created; pages are backed when first touched. Pointers returned
 * are handles the caller gives back to the matching close, which ends the object, and then, when no thread can use
 * the handle any more, to the matching free, which unmaps it. Objects of a context need its memory: free it last.
 *
 * Errors: 0 or a negative errno. um_context_error_step names what failed.
 */
#ifndef UM_IO_CONTEXT_H
#define UM_IO_CONTEXT_H

#include "authentication/mac.h"
#include "capture/writing/tap.h"
#include "core/receiver/receiver_session.h"
#include "core/source/source_session.h"
#include "io/event_queue.h"
#include "io/publication_session.h"
#include "io/receiving.h"
#include "io/rings.h"
#include "io/tcp_server.h"

/* What LBT-RU has apart from LBT-RM. */
typedef struct um_lbtru_config {
    uint64_t data_rate_bps; /* of new data, each client's copy */
    uint64_t retransmit_rate_bps;
    int64_t rate_interval_ns;
    uint32_t source_buffer_bytes;
    uint32_t receiver_buffer_bytes;
} um_lbtru_config;

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
    uint32_t busy_poll_us;    /* how long a sleep polls the driver first (um_reactor_prefer_busy_poll); 0: not */
    int64_t spin_ns;          /* how long to go on polling after the last event before sleeping */
    int64_t adaptive_spin_ns; /* of a call that waits, while events come that soon (core/foundation/adaptive_spin.h) */
    int64_t coalesce_ns;      /* under load, how long to let datagrams gather before the next receive; 0, and with
                                 busy_wait: never */
    int64_t coalesce_max_ns;  /* its bound with a ring set, where it adapts; both below a second */
    uint64_t data_rate_bps;
    uint64_t retransmit_rate_bps;
    int64_t rate_interval_ns;
    um_lbtru_config lbtru;
    uint32_t hold_datagrams;
    uint32_t hold_messages;      /* power of two */
    uint32_t datagram_max_bytes; /* largest UDP payload ever sent or held */
    uint64_t random_seed;
    int32_t authentication_scope; /* um_authentication_scope */
    int64_t authentication_tolerance_ns;
    um_rings *rings; /* the ring set that data travels on, open as long as the context; NULL: kernel sockets */
} um_context_config;

typedef struct um_context um_context;

int um_context_create(const um_context_config *config, um_context **context);
/* Ends the threads and everything still open in it. Once. */
void um_context_close(um_context *context);
/* Unmaps a closed context. */
void um_context_free(um_context *context);

/* Which step the last failed call failed at, for its error text. */
const char *um_context_failed_step(const um_context *context);
/* LBT-RU sessions that receive at a port of the system's choice, ever. */
uint64_t um_context_ephemeral_ports(um_context *context);
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

/* Embedded mode: waits until a descriptor is readable, such as an epoll set of queues' descriptors, and receives
 * meanwhile as a reader that waits does (loop_leader.h). Negative: without a timeout. False when a signal ended it.
 * Must have returned before the context is closed. */
bool um_context_wait(um_context *context, int fd, int64_t timeout_ns);

/* The groups joined now, at most `max` of them. Returns how many. */
uint32_t um_context_groups(um_context *context, um_address *groups, uint32_t max);

/* The interface takes datagrams of this many payload bytes from now on (W4). */
void um_context_set_datagram_max(um_context *context, uint32_t bytes);

/* What the context sends and receives from now on goes to a file as well: see tap.h. One tap at a time: -EBUSY. */
int um_context_tap_start(um_context *context, const um_tap_config *config);
int um_context_tap_stop(um_context *context, um_tap_counters *counters);
void um_context_tap_read(const um_context *context, um_tap_counters *counters);
bool um_context_tap_is_running(const um_context *context);
/* Shows the tap a datagram that did not pass a link of the context: topic resolution. */
void um_context_tap_datagram(um_context *context, bool sent, um_address from, um_address to, const char *data,
                             uint32_t length);

/* Sets or replaces a key set, `key_set` from 1 to UM_KEY_SETS_MAX: what is sent next has the tags of its first key, and
 * all its keys are accepted. Sessions of the key set go on with it. -ENOMEM leaves some of them with the old keys: call
 * again. */
int um_context_set_keys(um_context *context, uint32_t key_set, const um_key_set *keys);

/* No receiver of the context NAKs, or they do again (UX-21; core/receiver/nak_cutoff.h). */
void um_context_set_nak_cutoff(um_context *context, bool is_cut_off);

/* Opens a source session; its NAK port is the first free of the range. config's nak_port is filled in. */
int um_publication_session_open(um_context *context, um_source_session_config *config, uint16_t port_low,
                                uint16_t port_high, um_publication_session **session);

/* The same over TCP: it listens on the first free port of the range in `tcp`, which is filled in as nak_port. Topics
 * with keys cannot be sent over it (-EOPNOTSUPP). */
int um_publication_session_open_tcp(um_context *context, um_source_session_config *config,
                                    const um_tcp_source_config *tcp, um_publication_session **session);

int um_event_queue_open(um_context *context, const um_event_queue_config *config, um_event_queue **queue);

/* Off-transport recoveries that have begun since the last call; the rest at the next when there are more than `max`. */
uint32_t um_context_take_recoveries(um_context *context, um_begun_recovery *begun, uint32_t max);
/* The eventfd that is written to when one has begun; -1: none. */
void um_context_watch_recoveries(um_context *context, int event_fd);

/* The configuration of a receiving session, as its first receiver gave it; false when there is no such session. */
bool um_context_session_config(um_context *context, const um_session_id *id, um_receiver_session_config *config);
/* 1 and the next receiving session that has ended, or made space, since it was asked for before; 0 when there is none;
 * -EOVERFLOW when more have than are remembered, all of which are forgotten by that. */
int um_context_take_ended(um_context *context, um_session_id *id);

#endif
