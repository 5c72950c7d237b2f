/* The listening side of an LBT-TCP source session: accepts clients, has each say which session it means, reads what
 * they ask for, and closes those that fail, lie or stall. Internal to ffi/io; above the fan-out, beside the control of
 * the datagram transports.
 *
 *     accepted --> greeting --- session id is right --> joined: gets what is sent from now on
 *                     |                                   |
 *                     | wrong id, anything else,          | connection fails, garbage, no progress for the stall
 *                     | no id in time, too many           | timeout (receiver-paced)
 *                     v                                   v
 *                   closed, counted                     closed, counted, told (UM_SOURCE_CLIENT_DISCONNECTED)
 *
 * With keys each side greets before it says anything else (core/wire/stream_record.h), the client first, and what
 * follows are records: the client's first has the session id and proves that it has the key, so it joins; the source's
 * first proves the same to it, and is there at once. A client without the right key is closed, counted by the reason
 * (dgrams_dropped_tag_*) and told (UM_SOURCE_CLIENT_REFUSED), and first gets an answer by which it knows why.
 *
 * A client that was closed because it made no progress may connect again, but is not waited for as long as its address
 * has a penalty (stall_penalties.h); neither are other clients of that address.
 *
 * A peer that has not greeted takes a descriptor and nothing else, for GREETING_NS at most, and the oldest of
 * GREETINGS_MAX gives way to a new one, so that clients find a place whatever strangers do.
 *
 * The loop is told of connections by edges (EPOLLET), so that a publisher that fills one needs no system call to be
 * told when it is writable again. While another thread runs the sender, what was reported is remembered (`is_due`) and
 * looked at by the loop's next service.
 *
 * Threads: the loop's, under the context lock; each function takes the session's sender lock, or returns
 * UM_TCP_SERVER_BUSY when another thread has it. um_tcp_server_open and _close: see there.
 */
#ifndef UM_IO_TCP_SERVER_H
#define UM_IO_TCP_SERVER_H

#include "core/source/stall_penalties.h"
#include "io/reactor.h"
#include "io/tcp_fan_out.h"

typedef struct um_tcp_source_config {
    uint32_t interface_ip;
    uint16_t port_low; /* the first free port of the range is listened on */
    uint16_t port_high;
    uint32_t listen_backlog;
    uint32_t send_buffer_bytes; /* of each connection; 0: the system's default, which adapts */
    uint32_t backlog_bytes;     /* transport_session_maximum_buffer */
    bool is_source_paced;
    bool has_filter; /* transport_source_side_filtering_behavior inclusion */
    bool no_delay;
    bool wants_session_id;
    int64_t activity_timeout_ns; /* a peer host that acknowledges nothing for so long is gone; 0: the system decides */
    int64_t stall_timeout_ns;    /* a client that holds the session for so long is closed; 0: never */
} um_tcp_source_config;

typedef struct um_tcp_server {
    um_tcp_source_config config;
    um_reactor *reactor;
    um_source_session *session;
    uint32_t index;         /* of the session, for the epoll set */
    const um_key_set *keys; /* of the context; NULL: what is sent has no tags */
    int64_t told_refused_ns;
    int listen_fd;
    um_address local;
    um_tcp_fan_out fan_out;
    uint32_t greeting_count;
    um_stall_penalties penalties;
    int64_t accept_again_ns; /* the process has no descriptor left: not before then; 0: it has */
    bool is_due;             /* something was reported while the sender was busy: every client is looked at */
} um_tcp_server;

/* A place in the epoll set: the session's index and the client's, which for the listening socket is beyond them. */
static inline uint32_t um_tcp_watch_index(uint32_t session, uint32_t client)
{
    return session << 16 | client;
}
enum { UM_TCP_LISTENER = 0xffff };

/* Listens; before the session sends. `keys` are the context's, which changes them in place; NULL: without tags. 0 or
 * -errno. */
int um_tcp_server_open(um_tcp_server *server, um_reactor *reactor, um_source_session *session, uint32_t index,
                       const um_tcp_source_config *config, const um_key_set *keys);
/* The keys have changed: connections go on with the new ones. Under both locks. 0 or -ENOMEM. */
int um_tcp_server_rekey(um_tcp_server *server);
/* Gives clients a moment to take what is left of the session; under no lock, before um_tcp_server_close. */
void um_tcp_server_drain(um_tcp_server *server, int64_t at_most_ns);
/* Tells clients that the session has ended, and closes everything. Under both locks. */
void um_tcp_server_close(um_tcp_server *server);

enum { UM_TCP_SERVER_BUSY = -1 };
/* A connection, or the listening socket, was reported. Returns how many bytes or clients were handled. */
int um_tcp_server_on_event(um_tcp_server *server, uint32_t client, int64_t now_ns);
/* Looks at everything: in place of the loop's reports, and for timers. Stores when to call again in *due_ns. */
int um_tcp_server_service(um_tcp_server *server, int64_t now_ns, int64_t *due_ns);

#endif
