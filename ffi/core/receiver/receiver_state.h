/* The state of a receiving transport session: the structs that every file of this folder works on. receiver_session.h
 * has the entry points.
 *
 * Threads: the context lock. Memory: one block of um_receiver_session_footprint() bytes, the creator's.
 */
#ifndef UM_CORE_RECEIVER_STATE_H
#define UM_CORE_RECEIVER_STATE_H

#include "core/delivery/delivery_state.h"
#include "core/foundation/link.h"
#include "core/foundation/random.h"
#include "core/foundation/time_histogram.h"
#include "core/receiver/loss_map.h"
#include "core/receiver/nak_budget.h"
#include "core/receiver/recovery_timing.h"
#include "core/receiver/topic_table.h"
#include "core/wire/authentication.h"
#include "core/wire/status_message.h"

enum um_connection_state {
    UM_CONNECTION_NONE = 0, /* LBT-RM */
    UM_CONNECTION_CONNECTING = 1,
    UM_CONNECTION_ESTABLISHED = 2,
};

typedef struct um_connection {
    enum um_connection_state state;
    bool has_client_id;   /* the source has answered once */
    uint32_t client_id;   /* as the source gave it */
    uint32_t proposed_id; /* in requests; a true answer repeats it */
    uint32_t attempts;    /* connection requests in a row after which nothing came from the source */
    int64_t requested_ns;
} um_connection;

typedef struct um_interest {
    bool is_offered; /* the source filters */
    bool was_sent;   /* an interest was sent since it connected */
    bool is_changed; /* topics have come or gone since `version` was sent */
    bool is_in_force;
    bool has_been_in_force; /* a version of its own, since it connected: what is passed over is for it */
    uint32_t version;       /* sent last; 0: nothing was sent */
    uint32_t first_version; /* of its own */
    uint32_t attempts;      /* since something changed */
    int64_t sent_ns;
} um_interest;

enum { UM_NAK_LIST_MAX = 365 }; /* fills a datagram at MTU 1500 */

/* The newest lost datagram among [from, before): what the last search of the loss map found. */
typedef struct um_blocker_search {
    uint32_t from;
    uint32_t before;
    uint64_t change_count; /* of the loss map then */
    bool has_found;
    bool has_found_later; /* one that is lost at or after before */
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

/* The timers of a session, each a deadline in due_ns. Two more deadlines move with every datagram and are computed:
 * that of the activity timeout (last_activity_ns), and that of pending claims (last_data_ns). Those of the lost
 * datagrams are in the loss map. */
enum um_receiver_timer {
    UM_TIMER_STATUS,      /* the next status message; INT64_MIN: at once */
    UM_TIMER_CONTROLLERS, /* the earliest deadline of the delivery controllers */
    UM_TIMER_NAKS,        /* no NAK datagram is sent earlier, so that losses share datagrams and budgets hold */
    UM_TIMER_CONNECT,     /* LBT-RU, connecting: the next connection request */
    UM_TIMER_ACKNOWLEDGE, /* LBT-RU, with a client id: the next acknowledgement */
    UM_TIMER_INTEREST,    /* LBT-RU: the next interest */
    UM_RECEIVER_TIMERS,
};

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
    um_connection connection;  /* LBT-RU */
    um_interest interest;      /* LBT-RU */
    um_address local;          /* LBT-RU: where its datagrams go to; the owner sets it after init */
    uint32_t group_report_sqn; /* of the newest group report */
    bool has_group_report;
    um_topic_table topics;
    um_delivery *controllers;
    uint32_t controller_count;
    um_receiver_session_queue *queues; /* dense: each queue once, so that the window counts it once */
    uint32_t queue_count;
    uint32_t starting_count; /* controllers in state STARTING */
    uint64_t gaps_found;
    um_blocker_search search;
    bool has_jumped; /* the last datagram but for repairs was too far ahead to be believed: jump_sqn */
    uint32_t jump_sqn;
    uint32_t stray_count; /* datagrams in a row from before the source's window */

    bool is_active; /* a datagram has been seen: BOS is out */
    bool has_ended;
    bool has_base;   /* next_sqn is known */
    bool has_data;   /* from a datagram with data, not only from a session message */
    bool is_resumed; /* next_sqn is that of an earlier session of this identity */
    uint32_t resume_rounds;
    uint32_t next_sqn; /* 1 + the highest number received as data */
    uint32_t trail_sqn;
    uint32_t mappings_sqn; /* next_sqn when the controllers' mapped_sqn were last looked at */
    um_receiver_session_claims claims;
    bool is_behind; /* datagrams that have arrived are yet to be read; the owner says so before a tick */
    int64_t created_ns;
    int64_t last_activity_ns;

    int64_t due_ns[UM_RECEIVER_TIMERS]; /* by um_receiver_timer */
    uint64_t bytes_since_status;
    uint32_t status_window_bytes; /* in the last status message */
    uint32_t status_sqn;          /* in the last status message: the oldest lost, or the next */
    uint64_t recovered_count;
    um_nak_budget nak_budget;
    uint32_t nak_cutoff;                            /* um_nak_cutoff */
    uint64_t recovery_buckets[UM_RECOVERY_BUCKETS]; /* datagrams by the time it took to have them */
    uint64_t latency_buckets[UM_LATENCY_BUCKETS];   /* messages by the time from their sending to their arrival */
    uint64_t latency_count;                         /* in them */
    um_receiver_transport_counters counters;
} um_receiver_session;

/* True if the session sends NAKs now. */
static inline bool um_receiver_session_can_nak(const um_receiver_session *session)
{
    return session->config.send_naks && session->nak_cutoff == 0;
}

/* Sends a NAK or status message to the source. One that the link does not take is not repeated here. */
static inline void um_receiver_session_send_control(um_receiver_session *session, const uint8_t *datagram,
                                                    uint32_t length)
{
    um_part part = {datagram, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length};
    session->link->ops->send(session->link, session->config.id.source, &tx, 1);
}

#endif
