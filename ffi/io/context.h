/* The context: contains all objects of one application, and the loop that drives them (UM-13..UM-15; W8).
 *
 *   embedded    um_context_start creates one thread that runs the loop
 *   sequential  the application calls um_context_process and donates its thread
 *
 * Threads: every function here may be called from any thread. The context lock guards the receiving side and the lists;
 * each source session has its sender lock; publishing takes neither. Closing an object waits for the calls under way on
 * it, and ends their waiting; a later call finds it closed (UM_CLOSED).
 *
 * Memory: everything is mapped when its object is created; pages are backed when first touched. Returned pointers are
 * handles. The caller passes each to the matching close, which ends the object, and, once no thread can use the handle
 * any more, to the matching free, which unmaps it. Objects of a context need its memory: free it last.
 *
 * Errors: 0 or a negative errno. um_context_failed_step names what failed.
 */
#ifndef UM_IO_CONTEXT_H
#define UM_IO_CONTEXT_H

#include "authentication/mac.h"
#include "capture/writing/tap.h"
#include "core/receiver/receiver_session.h"
#include "core/source/source_session.h"
#include "io/event_queue.h"
#include "io/ipc_server.h"
#include "io/publication_session.h"
#include "io/receiving.h"
#include "io/rings.h"
#include "io/tcp_server.h"

/* Options of LBT-RU that are separate from those of LBT-RM. */
typedef struct um_lbtru_config {
    uint64_t data_rate_bps; /* of new data; each client's copy counts */
    uint64_t retransmit_rate_bps;
    int64_t rate_interval_ns;
    uint32_t source_buffer_bytes;
    uint32_t receiver_buffer_bytes;
} um_lbtru_config;

typedef struct um_context_config {
    char interface[16];
    um_ip interface_ip;   /* of IPv4 */
    um_ip interface_ipv6; /* for IPv6 groups; none: they are refused */
    uint32_t ttl;
    uint8_t traffic_class; /* of IPv4 and IPv6 headers: DSCP and two zero bits */
    uint32_t source_buffer_bytes;
    uint32_t receiver_buffer_bytes;
    uint32_t receive_batch; /* datagrams per receive call */
    bool gso;
    bool gro;
    bool timestamps;
    bool is_source_specific; /* groups are joined for the sources of sessions only */
    bool fragments;          /* IP may fragment sent datagrams */
    bool busy_wait;
    bool ipc_busy_wait;       /* the same while sessions over LBT-IPC are received */
    uint32_t busy_poll_us;    /* how long a sleep polls the driver first (um_reactor_prefer_busy_poll); 0: not */
    int64_t spin_ns;          /* how long to poll after the last event before sleeping */
    int64_t adaptive_spin_ns; /* the same for a waiting call, if events arrive that soon (adaptive_spin.h) */
    int64_t coalesce_ns;     /* under load, how long to let datagrams gather before the next receive call; 0: never, nor
                                with busy_wait */
    int64_t coalesce_max_ns; /* maximum with a ring set, where it adapts; both are below a second */
    uint64_t data_rate_bps;
    uint64_t retransmit_rate_bps;
    int64_t rate_interval_ns;
    um_lbtru_config lbtru;
    uint32_t hold_datagrams;
    uint32_t hold_messages;      /* power of two */
    uint32_t datagram_max_bytes; /* largest UDP payload ever sent or stored */
    uint64_t random_seed;
    int32_t authentication_scope; /* um_authentication_scope */
    int64_t authentication_tolerance_ns;
    um_rings *rings;      /* the ring set for data, open as long as the context; NULL: kernel sockets */
    bool joins_datagrams; /* frames of the rings may hold several datagrams that GSO or GRO joined */
} um_context_config;

typedef struct um_context um_context;

int um_context_create(const um_context_config *config, um_context **context);
/* Ends the threads and closes every open object of the context. Call it once. */
void um_context_close(um_context *context);
/* Unmaps a closed context. */
void um_context_free(um_context *context);

/* Names the step at which the last failed call failed, for its error text. */
const char *um_context_failed_step(const um_context *context);
/* Number of LBT-RU sessions, ever, that received at a port chosen by the system. */
uint64_t um_context_ephemeral_ports(um_context *context);
/* The smallest receive buffer that the kernel granted to a group's socket, joined or left; 0 before the first. */
uint32_t um_context_receive_buffer(um_context *context);

/* Embedded mode. */
int um_context_start(um_context *context);
void um_context_stop(um_context *context);

/* Sequential mode: runs the loop for timeout_ns; 0: one pass that does not sleep; negative: until unblocked (UM-14).
 * Returns datagrams handled. */
int64_t um_context_process(um_context *context, int64_t timeout_ns);
/* Makes every um_context_process and um_event_queue_poll under way return. */
void um_context_unblock(um_context *context);

/* Embedded mode: waits until a descriptor is readable, such as an epoll set of queues' descriptors, and receives
 * meanwhile as a waiting reader does (loop_leader.h). Negative: without a timeout. Returns false if a signal ended it.
 * The call must return before the context is closed. */
bool um_context_wait(um_context *context, int fd, int64_t timeout_ns);

/* Stores the joined groups and the ports of sessions over LBT-RU, at most `max`. Returns how many. */
uint32_t um_context_groups(um_context *context, um_address *groups, uint32_t max);

/* Follows an interface that was made again, renamed, or got another address, or `has_returned` from another network
 * namespace: joins the groups again and sends by it.
 * Returns 0, -EADDRNOTAVAIL if something stays at the former address, or another -errno. */
int um_context_follow_interface(um_context *context, const char *name, um_ip ip, um_ip ipv6, bool has_returned);

/* Sets the largest UDP payload that the interface takes from now on (W4); `ipv6_bytes` over IPv6. */
void um_context_set_datagram_max(um_context *context, uint32_t bytes, uint32_t ipv6_bytes);

/* Writes the datagrams that the context sends and receives from now on to a file: see tap.h. One tap at a time: -EBUSY.
 */
int um_context_tap_start(um_context *context, const um_tap_config *config);
int um_context_tap_stop(um_context *context, um_tap_counters *counters);
void um_context_tap_read(const um_context *context, um_tap_counters *counters);
bool um_context_tap_is_running(const um_context *context);
/* Shows the tap a datagram that did not pass a link of the context: topic resolution. */
void um_context_tap_datagram(um_context *context, bool sent, um_address from, um_address to, const char *data,
                             uint32_t length);

/* Sets or replaces a key set, `key_set` from 1 to UM_KEY_SETS_MAX: later datagrams have tags of its first key, and all
 * its keys are accepted. Sessions of the key set continue with it. After -ENOMEM some of them still have the old keys:
 * call again. */
int um_context_set_keys(um_context *context, uint32_t key_set, const um_key_set *keys);

/* Stops or resumes NAKs of all receivers of the context (UX-21; core/receiver/nak_cutoff.h). */
void um_context_set_nak_cutoff(um_context *context, bool is_cut_off);

/* Opens a source session, whose NAK port is the first free one of the range; stores it in config->nak_port. */
int um_publication_session_open(um_context *context, um_source_session_config *config, uint16_t port_low,
                                uint16_t port_high, um_publication_session **session);

/* The same over TCP: listens on the first free port of the range in `tcp`, and stores it in config->nak_port. */
int um_publication_session_open_tcp(um_context *context, um_source_session_config *config,
                                    const um_tcp_source_config *tcp, um_publication_session **session);
/* The same over LBT-IPC: stores the transport id in config->nak_port. */
int um_publication_session_open_ipc(um_context *context, um_source_session_config *config,
                                    const um_ipc_source_config *ipc, um_publication_session **session);

int um_event_queue_open(um_context *context, const um_event_queue_config *config, um_event_queue **queue);

/* Returns off-transport recoveries that have started since the last call, at most `max`; the next call returns the
 * rest.
 */
uint32_t um_context_take_recoveries(um_context *context, um_begun_recovery *begun, uint32_t max);
/* Sets the eventfd that is written to when one has started; -1: none. */
void um_context_watch_recoveries(um_context *context, int event_fd);

/* Stores the configuration of a receiving session, as set by its first receiver; false if there is no such session. */
bool um_context_session_config(um_context *context, const um_session_id *id, um_receiver_session_config *config);
/* Returns 1 and the next receiving session that has ended or was evicted; 0 if there is none; -EOVERFLOW if there were
 * more than are stored, all of which are then dropped. */
int um_context_take_ended(um_context *context, um_session_id *id);

#endif
