/* The listening side of an LBT-TCP source session: accepts clients, reads which session each of them requests and its
 * control messages, and closes clients that fail, send garbage or stall. Internal to ffi/io; above the fan-out, beside
 * the control of the datagram transports.
 *
 *     accepted --> greeting --- session id is right --> joined: gets the data sent from now on
 *                     |                                   |
 *                     | wrong id, anything else,          | connection fails, garbage, no progress for the stall
 *                     | no id in time, too many           | timeout (receiver-paced)
 *                     v                                   v
 *                   closed, counted                     closed, counted, reported (UM_SOURCE_CLIENT_DISCONNECTED)
 *
 * With keys each side first sends a greeting (core/wire/stream_record.h), the client before the source; records follow.
 * The client's first record has the session id and proves that the client has the key, so it joins; the source's first
 * record proves the same and is sent at once. A client without the right key receives an answer with the reason and is
 * closed, counted by the reason (dgrams_dropped_tag_*) and reported (UM_SOURCE_CLIENT_REFUSED).
 *
 * A client that was closed because it made no progress may connect again. While its address has a penalty
 * (stall_penalties.h), the session does not wait for any client of that address.
 *
 * A peer that has not greeted takes only a descriptor, for at most GREETING_NS, and a new peer replaces one of
 * GREETINGS_MAX, the oldest of the address that has the most, so that unknown peers cannot keep clients out. If every
 * place is taken, a new peer replaces a client of the address that has the most, first one that does not read, as long
 * as that address keeps at least as many.
 *
 * Connections are reported to the loop by edges (EPOLLET), so that a publisher that fills one needs no system call to
 * have it reported when it is writable again. A report that arrives while another thread runs the sender is remembered
 * (`is_due`) until the loop's next service.
 *
 * Threads: the loop's, under the context lock; each function takes the session's sender lock, or returns
 * UM_STREAM_SERVER_BUSY when another thread has it. um_tcp_server_open and _close: see there.
 */
#ifndef UM_IO_TCP_SERVER_H
#define UM_IO_TCP_SERVER_H

#include "core/source/stall_penalties.h"
#include "io/stream_listener.h"
#include "io/tcp_fan_out.h"

typedef struct um_tcp_source_config {
    uint32_t interface_ip;
    uint8_t traffic_class;
    uint16_t port_low; /* the first free port of the range is listened on */
    uint16_t port_high;
    uint32_t listen_backlog;
    uint32_t send_buffer_bytes; /* of each connection; 0: the system's default, which adapts */
    uint32_t backlog_bytes;     /* transport_session_maximum_buffer */
    bool is_source_paced;
    bool has_filter; /* transport_source_side_filtering_behavior inclusion */
    bool no_delay;
    bool wants_session_id;
    int64_t activity_timeout_ns; /* a peer host that acknowledges nothing for this time is gone; 0: system default */
    int64_t stall_timeout_ns;    /* a client that blocks the session for this time is closed; 0: never */
} um_tcp_source_config;

typedef struct um_tcp_server {
    um_tcp_source_config config;
    um_source_session *session;
    const um_key_set *keys;      /* of the context; NULL: sent data has no tags */
    int64_t reported_refused_ns; /* when a refused client was last reported */
    um_stream_listener listener;
    um_address local;
    um_tcp_fan_out fan_out;
    uint32_t greeting_count;
    um_stall_penalties penalties;
    bool is_due; /* an event was reported while the sender was busy: check every client */
} um_tcp_server;

/* Starts to listen, before the session sends. `keys` belong to the context, which changes them in place; NULL: no tags.
 * 0 or -errno. */
int um_tcp_server_open(um_tcp_server *server, um_reactor *reactor, um_source_session *session, uint32_t index,
                       const um_tcp_source_config *config, const um_key_set *keys);
/* Continues all connections with the changed keys. Under both locks. 0 or -ENOMEM. */
int um_tcp_server_rekey(um_tcp_server *server);
/* Sends from the backlogs of all clients. Under the sender lock. */
void um_tcp_server_flush(um_tcp_server *server, int64_t now_ns);
/* Sends clients the end of the session, and closes everything. Under both locks. */
void um_tcp_server_close(um_tcp_server *server);

/* Handles an event of a connection or of the listening socket (UM_STREAM_LISTENER). Returns how many bytes or clients
 * were handled. */
int um_tcp_server_on_event(um_tcp_server *server, uint32_t client, int64_t now_ns);
/* Checks the listening socket, all clients and timers. Stores when to call again in *due_ns. */
int um_tcp_server_service(um_tcp_server *server, int64_t now_ns, int64_t *due_ns);

#endif
