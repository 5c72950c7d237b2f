/* The source sessions of a context: connects the sender and the control of each, which are independent. */
#ifndef UM_IO_PUBLICATION_SESSION_PRIVATE_H
#define UM_IO_PUBLICATION_SESSION_PRIVATE_H

#include "authentication/tagging_link.h"
#include "authentication/verifiers.h"
#include "io/control.h"
#include "io/ipc_server.h"
#include "io/publication_session.h"
#include "io/sender.h"
#include "io/tcp_server.h"

enum { UM_PUBLICATION_SESSIONS_MAX = 256 };

struct um_publication_sessions;

struct um_publication_session {
    um_source_session core;
    um_sender sender;
    um_control control;
    um_socket_link data_link;     /* sends to the group; LBT-RU sends by the socket that receives control messages */
    um_link *ring_link;           /* sends the data if the context has a ring set, else NULL */
    um_tap_link tapped;           /* ring_link or data_link, seen by the tap */
    um_tcp_server *tcp;           /* for a session over TCP, which has none of the sockets above; else NULL */
    um_ipc_server *ipc;           /* the same over LBT-IPC */
    um_tagging_link tagging;      /* with keys: in front of `tapped`; without: its `next` is NULL */
    um_senders_verifier verifier; /* with keys: for the receivers' control messages */
    struct um_publication_sessions *sessions;
    void *memory;
    size_t memory_bytes;
    uint32_t publication_count;
    bool is_used;
};

/* The table and `limit` are guarded by the context lock. */
typedef struct um_publication_sessions {
    um_reactor *reactor;
    um_links *links;
    um_rate_limits limits; /* of LBT-RM */
    um_rate_limits lbtru_limits;
    um_rate_limits unlimited;      /* of TCP and LBT-IPC, whose receivers limit the rate */
    um_context_counters *counters; /* of blocked sends, and of ended sessions */
    um_publication_session *table; /* UM_PUBLICATION_SESSIONS_MAX, mapped */
    uint32_t limit;                /* entries from this index were never used */
} um_publication_sessions;

/* See um_publication_session_open (context.h). */
int um_publication_sessions_open(um_publication_sessions *sessions, um_source_session_config *config, uint16_t port_low,
                                 uint16_t port_high, um_publication_session **opened);
/* See um_publication_session_open_tcp (context.h). */
int um_publication_sessions_open_tcp(um_publication_sessions *sessions, um_source_session_config *config,
                                     const um_tcp_source_config *tcp, um_publication_session **opened);
/* See um_publication_session_open_ipc (context.h). */
int um_publication_sessions_open_ipc(um_publication_sessions *sessions, um_source_session_config *config,
                                     const um_ipc_source_config *ipc, um_publication_session **opened);
/* Returns true if the session has connections of its own instead of the sockets for datagrams. */
static inline bool um_publication_session_is_stream(const um_publication_session *session)
{
    return session->tcp != NULL || session->ipc != NULL;
}
/* Continues the sessions of a changed key set with the new keys. */
int um_publication_sessions_rekey(um_publication_sessions *sessions, uint32_t key_set);

/* Sends by the interface as it is now, from its address. Returns 0, -EADDRNOTAVAIL if a session stays at the former
 * address (LBT-RU, TCP, rings), or another -errno. */
int um_publication_sessions_follow_interface(um_publication_sessions *sessions);

/* Adds a session's part of the counters that span sessions (AE-10, AE-35). Under the sender lock. */
void um_publication_session_add_counts(const um_publication_session *session, um_context_counters *sum);

/* ---- called by publishers ---- */

/* After a publication: polls control if that is due, and bounds how far the publisher is ahead of the sender. */
void um_publication_session_after(um_publication_session *session, const um_sender_outcome *outcome);
/* Polls control and sends the data that it allows, down to tail_bytes. */
void um_publication_session_poll_control(um_publication_session *session, int64_t tail_bytes, int64_t now_ns);

/* ---- called by the loop, under the context lock ---- */

/* Handles a report of the NAK socket. Returns datagrams handled. */
int um_publication_session_receive(um_publication_session *session, int64_t now_ns);
/* Handles a report of a connection of a session over TCP or LBT-IPC, or of its listening socket (tcp_server.h,
 * ipc_server.h). Returns how much was handled. */
int um_publication_session_on_stream(um_publication_session *session, uint32_t client, int64_t now_ns);
/* Runs the session's timers, unless its publishers drive it. Returns when to call again. */
int64_t um_publication_session_service(um_publication_session *session, int64_t now_ns);

#endif
