/* The receiving side of one LBT-RM or LBT-RU transport session: sequence tracking, the loss map and its NAK timers,
 * NCFs, the activity timeout, de-multiplexing to delivery controllers, and status messages for flow control (UM-3,
 * UM-7, UM-8, UM-76, UM-81, UM-85..UM-87, UM-92..UM-97, UM-104, UM-105, UM-112..UM-134, UX-9; AE-15..AE-18). It does
 * not order. This header is the session's state and its entry points; receiver_session.c is its life and what datagrams
 * do to it. Around it: nak_timers.c (lost datagrams and NAKs), session_claims.c (what session messages tell),
 * status_reports.c, start_gate.c (where a controller begins), topic_table.h (topic index to controllers) and, of LBT-RU
 * alone, connection.c and interest.c.
 *
 * Threads: the context lock. Memory: one block of footprint bytes, the creator's.
 */
#ifndef UM_CORE_RECEIVER_SESSION_H
#define UM_CORE_RECEIVER_SESSION_H

#include "core/foundation/link.h"
#include "core/foundation/random.h"
#include "core/foundation/time_histogram.h"
#include "core/receiver/connection.h"
#include "core/receiver/interest.h"
#include "core/receiver/loss_map.h"
#include "core/receiver/nak_budget.h"
#include "core/receiver/recovery_timing.h"
#include "core/receiver/topic_table.h"
#include "core/wire/authentication.h"
#include "core/wire/status_message.h"

enum { UM_NAK_LIST_MAX = 365 }; /* fills a datagram at MTU 1500 */

/* The newest lost datagram among [from, before): what the last search of the loss map found. */
typedef struct um_blocker_search {
    uint32_t from;
    uint32_t before;
    uint64_t change_count; /* of the loss map then */
    bool found;
    bool found_later; /* one that is lost at or after before */
    uint32_t sqn;
} um_blocker_search;

/* What session messages alone tell of a session (session_claims.h). */
typedef struct um_receiver_session_claims {
    bool has_any;     /* numbers of [next_sqn, end) may be in the loss map */
    bool has_lead;    /* lead: of the last session message */
    bool has_claimed; /* claimed_lead: the lead that was claimed last */
    bool is_pending;  /* lead is to be claimed as soon as no data has come for a while */
    bool has_far;     /* far_sqn was claimed alone */
    bool has_failed;  /* failed_end: what was claimed up to before it was given up, and no data has come since */
    uint32_t end;
    uint32_t lead;
    uint32_t claimed_lead;
    uint32_t far_sqn;
    uint32_t failed_end;
    int64_t last_data_ns;
} um_receiver_session_claims;

typedef struct um_receiver_session_config {
    um_session_id id;
    int64_t nak_initial_backoff_ns; /* 0: NAK at once */
    int64_t nak_backoff_ns;
    int64_t nak_suppress_ns;
    uint32_t adaptive_timers; /* um_adaptive_timer: which of the three above are ceilings of what is measured */
    int64_t nak_generation_ns;
    int64_t activity_timeout_ns;
    int64_t preactivity_timeout_ns; /* 0: as activity_timeout_ns */
    bool send_naks;
    uint32_t nak_rate_limit;        /* sequence numbers NAKed a second; 0: no limit */
    int64_t nak_cutoff_interval_ns; /* at that limit for so long, it stops its NAKs (nak_cutoff.h); 0: never */
    uint32_t datagram_max_bytes;    /* bounds a NAK's length */
    uint32_t receive_max_bytes;     /* longer data is dropped (UX-26); 0: no bound */
    uint32_t loss_capacity;         /* power of two */
    uint32_t topic_capacity;        /* power of two: most topics, and most queues, of the delivery controllers */
    uint32_t window_bytes;          /* flow control window offered at most */
    int64_t status_interval_ns;
    uint64_t receiver_id;
    uint32_t group_tag;
    uint64_t random_seed;
    uint32_t key_set; /* of the context's authentication; 0: datagrams carry no tags */
    /* LBT-RU */
    int64_t connect_interval_ns;
    uint32_t maximum_connect_attempts;
    int64_t acknowledgement_interval_ns;
    uint16_t port_low; /* the owner's: UDP ports that the session may receive at; 0: any */
    uint16_t port_high;
    /* TCP */
    int64_t reconnect_interval_ns; /* between attempts to connect, at first */
    int64_t reconnect_timeout_ns;  /* without a connection for so long, the session has ended */
    int64_t connection_timeout_ns; /* a source's host that acknowledges nothing for so long is gone; 0: the system's */
    uint32_t receive_buffer_bytes; /* of the connection; 0: the system's, which adapts */
} um_receiver_session_config;

/* Why a session that may NAK does not (nak_cutoff.h), as bits. */
enum um_nak_cutoff {
    UM_NAK_CUTOFF_CONTEXT = 1,   /* a call for the context */
    UM_NAK_CUTOFF_RECEIVERS = 2, /* a call for every receiver that it has */
    UM_NAK_CUTOFF_SESSION = 4,   /* nak_cutoff_interval_ns */
};

/* A queue that controllers of the session deliver into. */
typedef struct um_receiver_session_queue {
    um_message_queue *queue;
    uint32_t controller_count;
} um_receiver_session_queue;

typedef struct um_receiver_session {
    um_receiver_session_config config;
    um_link *link;         /* for NAKs and status messages */
    um_verifier *verifier; /* the owner sets it after init; NULL: datagrams carry no tags */
    um_reorder_buffer *store;
    um_random random;
    um_loss_map losses;
    um_recovery_timing timing;
    um_connection connection; /* LBT-RU */
    um_interest interest;     /* LBT-RU */
    um_address local;         /* LBT-RU: where its datagrams go to; the owner sets it after init */
    uint32_t told_sqn;        /* of the newest group report */
    bool was_told;
    um_topic_table topics;
    um_delivery *controllers;
    uint32_t controller_count;
    um_receiver_session_queue *queues; /* dense: each queue once, so that the window counts it once */
    uint32_t queue_count;
    uint32_t starting_count; /* controllers in state STARTING */
    uint64_t gaps_found;
    um_blocker_search search;
    bool jump_seen; /* the last datagram but for repairs was too far ahead to be believed: jump_sqn */
    uint32_t jump_sqn;
    uint32_t stray_count; /* datagrams in a row from before the source's window */

    bool active; /* a datagram has been seen: BOS is out */
    bool ended;
    bool has_base; /* next_sqn is known */
    bool has_data; /* from a datagram with data, not only from a session message */
    bool resumes;  /* next_sqn is that of an earlier session of this identity */
    uint32_t resume_rounds;
    uint32_t next_sqn; /* 1 + the highest number received as data */
    uint32_t trail_sqn;
    uint32_t mappings_sqn; /* next_sqn when the controllers' mapped_sqn were last looked at */
    um_receiver_session_claims claims;
    bool behind; /* datagrams that have arrived are yet to be read; the owner says so before a tick */
    int64_t created_ns;
    int64_t last_activity_ns;
    int64_t tick_controllers_ns;

    int64_t status_due_ns;
    uint64_t bytes_since_status;
    uint32_t status_window_bytes; /* in the last status message */
    uint32_t status_sqn;          /* in the last status message: the oldest lost, or the next */
    uint64_t recovered_count;
    int64_t nak_not_before_ns;
    um_nak_budget nak_budget;
    uint32_t nak_cutoff;                            /* um_nak_cutoff */
    uint64_t recovery_buckets[UM_RECOVERY_BUCKETS]; /* datagrams by the time it took to have them */
    uint64_t latency_buckets[UM_LATENCY_BUCKETS];   /* messages by the time from their sending to their arrival */
    uint64_t latency_count;                         /* in them */
    um_receiver_transport_counters counters;
} um_receiver_session;

static inline bool um_receiver_session_sends_naks(const um_receiver_session *session)
{
    return session->config.send_naks && session->nak_cutoff == 0;
}

size_t um_receiver_session_footprint(const um_receiver_session_config *config);
void um_receiver_session_init(um_receiver_session *session, void *memory, const um_receiver_session_config *config,
                              um_link *link, um_reorder_buffer *store, int64_t now_ns);

/* Maps a controller to its topic index; delivers BOS at once on an active session (UM-81). False when there are too
 * many topics or queues. The delivery stays the caller's. */
bool um_receiver_session_map(um_receiver_session *session, um_delivery *delivery, int64_t now_ns);
/* The receiver's controller of a topic; NULL when there is none. */
um_delivery *um_receiver_session_find(um_receiver_session *session, const um_receiver *receiver, uint32_t topic_index);
void um_receiver_session_unmap(um_receiver_session *session, um_delivery *delivery);

/* Continues at the place where an earlier session of the same identity ended, unless the place is known already.
 * rounds: see um_resume_point. */
void um_receiver_session_resume(um_receiver_session *session, uint32_t next_sqn, uint32_t rounds);

/* A decoded datagram of this session: `length` bytes of what was received. */
void um_receiver_session_on_packet(um_receiver_session *session, const um_packet *packet, const um_rx *rx,
                                   const uint8_t *data, uint32_t length, int64_t now_ns);

/* A datagram of this session that could not be decoded: counted by reason. */
void um_receiver_session_drop(um_receiver_session *session, enum um_dgram_status status);

/* A datagram of this session that was not authentic: counted by reason. */
void um_receiver_session_drop_unverified(um_receiver_session *session, enum um_tag_status status);

/* The session is over (UM-105): what is held goes out, then the end. */
void um_receiver_session_end(um_receiver_session *session, int64_t now_ns);

/* Timers. Returns when the next call is due. Sets `ended` when the activity timeout passed (UM-104). */
int64_t um_receiver_session_tick(um_receiver_session *session, int64_t now_ns);

/* Refreshes the snapshot counters of the timers. */
void um_receiver_session_snapshot(um_receiver_session *session);

/* Sends a status message that is due after a batch of datagrams. */
void um_receiver_session_after_batch(um_receiver_session *session, int64_t now_ns);

/* Sends the source the end of this receiver's status messages, which ends its connection, too. */
void um_receiver_session_leave(um_receiver_session *session);

/* Sends a NAK or status message to the source. One that the link does not take is not repeated here. */
static inline void um_receiver_session_send_control(um_receiver_session *session, const uint8_t *datagram,
                                                    uint32_t length)
{
    um_part part = {datagram, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length};
    session->link->ops->send(session->link, session->config.id.source, &tx, 1);
}

#endif
