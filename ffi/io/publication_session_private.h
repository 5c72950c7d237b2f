/* The source sessions of a context: sender and control of each, which know nothing of one another, put together. */
#ifndef UM_IO_PUBLICATION_SESSION_PRIVATE_H
#define UM_IO_PUBLICATION_SESSION_PRIVATE_H

#include "authentication/tagging_link.h"
#include "authentication/verifiers.h"
#include "io/control.h"
#include "io/publication_session.h"
#include "io/sender.h"
#include "io/tcp_server.h"

enum { UM_PUBLICATION_SESSIONS_MAX = 256 };

struct um_publication_sessions;

struct um_publication_session {
    um_source_session core;
    um_sender sender;
    um_control control;
    um_socket_link data_link;     /* sends to the group; LBT-RU sends by the socket that control is received at */
    um_link *ring_link;           /* where data goes when the context has a ring set, else NULL */
    um_tap_link tapped;           /* that link, or data_link, as the tap sees it */
    um_tcp_server *tcp;           /* of a session over TCP, which has none of the sockets above; else NULL */
    um_tagging_link tagging;      /* in front of it, with keys: its next is NULL without */
    um_senders_verifier verifier; /* of the receivers' control messages, with keys */
    struct um_publication_sessions *sessions;
    void *memory;
    size_t memory_bytes;
    uint32_t publication_count;
    bool in_use;
};

/* The table and `limit` are guarded by the context lock. */
typedef struct um_publication_sessions {
    um_reactor *reactor;
    um_links *links;
    um_rate_limits limits; /* LBT-RM's */
    um_rate_limits lbtru_limits;
    um_rate_limits unlimited;      /* TCP's, whose connections limit what is sent */
    um_context_counters *counters; /* of blocked sends */
    um_publication_session *table; /* UM_PUBLICATION_SESSIONS_MAX, mapped */
    uint32_t limit;                /* entries beyond it were never used */
} um_publication_sessions;

/* See um_publication_session_open (context.h). */
int um_publication_sessions_open(um_publication_sessions *sessions, um_source_session_config *config, uint16_t port_low,
                                 uint16_t port_high, um_publication_session **opened);
/* See um_publication_session_open_tcp (context.h). */
int um_publication_sessions_open_tcp(um_publication_sessions *sessions, um_source_session_config *config,
                                     const um_tcp_source_config *tcp, um_publication_session **opened);
/* The key set has changed: its sessions go on with the new keys. */
int um_publication_sessions_rekey(um_publication_sessions *sessions, uint32_t key_set);

/* ---- publishers' ---- */

/* After a publication: polls control when that is due, and bounds how far the publisher is ahead. */
void um_publication_session_after(um_publication_session *session, const um_sender_outcome *outcome);
/* Polls control and sends what that allows, down to tail_bytes. */
void um_publication_session_poll_control(um_publication_session *session, int64_t tail_bytes, int64_t now_ns);

/* ---- the loop's, under the context lock ---- */

/* The NAK socket was reported. Returns datagrams handled. */
int um_publication_session_receive(um_publication_session *session, int64_t now_ns);
/* A connection of a session over TCP was reported, or the socket it listens on (tcp_server.h). Returns what was
 * handled. */
int um_publication_session_on_tcp(um_publication_session *session, uint32_t client, int64_t now_ns);
/* Runs the session's timers, unless its publishers drive it. Returns when to call again. */
int64_t um_publication_session_service(um_publication_session *session, int64_t now_ns);

#endif
