/* The source's end of an LBT-IPC session: listens on the session's control socket, gives each receiver that may attach
 * the log and a page of its own, and frees what a receiver had when it leaves, dies or breaks the rules. Internal to
 * ffi/io; above the fan-out, beside the server of LBT-TCP.
 *
 *     accepted --> greeting --- HELLO: version, session, space --> joined: WELCOME with descriptors; reads the log
 *                     |                                              |
 *                     | refused with the reason, anything else,      | closed by the receiver or by the kernel when it
 *                     | nothing within GREETING_NS, too many         | died; rules broken; no space released for the
 *                     v                                              v stall timeout (receiver-paced)
 *                   closed, counted (connections_refused)          closed, reported (UM_SOURCE_CLIENT_DISCONNECTED)
 *
 * A process that dies, at whichever instruction, leaves only its page: the kernel closes its socket, and the page is
 * unmapped here. It held no lock and no claim on the log, whose only writer is the source.
 *
 * A user other than the source's and root is limited: at most 16 of its peers may be greeting (its oldest gives way to
 * its next), and unless the log has a key, its receivers take at most three quarters of the places. So no other user
 * keeps everybody out.
 *
 * Control sockets, and the eventfds by which receivers wake a source that waits for space, are reported to the loop by
 * edges (EPOLLET), so an eventfd is never read. A report that arrives while another thread runs the sender is
 * remembered (`is_due`) until the loop's next service.
 *
 * An idle source increments the heartbeat of the log's header each sm_interval_ns: LBT-IPC's session message (UM-67).
 *
 * Threads: the loop's, under the context lock; each function takes the session's sender lock, or returns
 * UM_STREAM_SERVER_BUSY when another thread has it. um_ipc_server_open and _close: see there.
 */
#ifndef UM_IO_IPC_SERVER_H
#define UM_IO_IPC_SERVER_H

#include "io/ipc_fan_out.h"
#include "io/stream_listener.h"

typedef struct um_ipc_source_config {
    uint16_t transport_id;
    uint32_t capacity_bytes; /* transport_lbtipc_transmission_window_size */
    uint32_t receivers_max;
    bool is_source_paced;
    uint64_t key;             /* of the log: only receivers that have it are admitted; 0: none, any receiver is */
    int64_t sm_interval_ns;   /* how often an idle source shows that it lives (UM-68) */
    int64_t stall_timeout_ns; /* receiver-paced: a receiver that blocks the session for this time is closed; 0: never */
} um_ipc_source_config;

typedef struct um_ipc_server {
    um_ipc_source_config config;
    um_source_session *session;
    uint32_t session_id;
    um_stream_listener listener;
    um_ipc_fan_out fan_out;
    uint32_t greeting_count;
    uint32_t user_id; /* of this process */
    int64_t beat_due_ns;
    int64_t beat_position;   /* end of the log at the last session message, or when data made one unnecessary (UM-70) */
    uint16_t accepted_count; /* numbers connections in events, modulo 2^16 */
    bool is_due;             /* an event was reported while the sender was busy: check every client */
} um_ipc_server;

/* Starts to listen, before the session sends. 0 or -errno. */
int um_ipc_server_open(um_ipc_server *server, um_reactor *reactor, um_source_session *session, uint32_t session_id,
                       uint32_t index, const um_ipc_source_config *config);
/* Ends the log and closes everything. Under both locks. */
void um_ipc_server_close(um_ipc_server *server);

/* Handles an event of a client's socket or eventfd, or of the listening socket (UM_STREAM_LISTENER). Returns how many
 * messages or clients were handled. */
int um_ipc_server_on_event(um_ipc_server *server, uint32_t client, int64_t now_ns);
/* Checks everything that is due. Stores when to call again in *due_ns. */
int um_ipc_server_service(um_ipc_server *server, int64_t now_ns, int64_t *due_ns);

#endif
