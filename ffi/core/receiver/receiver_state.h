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
#include "core/receiver/first_contact.h"
#include "core/receiver/loss_map.h"
#include "core/receiver/nak_budget.h"
#include "core/receiver/recovery_timing.h"
#include "core/receiver/topic_table.h"
#include "core/wire/authentication.h"
#include "core/wire/repair_evidence.h"
#include "core/wire/status_message.h"

/* States of a connection to an LBT-RU source; connection.h draws them. */
enum um_connection_state {
    UM_CONNECTION_NONE = 0, /* LBT-RM has no connections */
    UM_CONNECTION_CONNECTING = 1,
    UM_CONNECTION_ESTABLISHED = 2,
};

typedef struct um_connection {
    enum um_connection_state state;
    bool has_client_id;   /* the source has answered a request */
    uint32_t client_id;   /* assigned by the source */
    uint32_t proposed_id; /* sent in requests; an authentic answer repeats it */
    uint32_t attempts;    /* requests since the last datagram from the source */
    int64_t requested_ns;
    int64_t first_requested_ns; /* the first of these attempts */
    int64_t established_ns;     /* when the last request was answered */
} um_connection;

/* The topics that the session requests from a filtering source; interest.h draws the states. */
typedef struct um_interest {
    bool is_offered; /* the source filters by topic */
    bool was_sent;   /* an interest was sent on this connection */
    bool is_changed; /* topics were added or removed since `version` was sent */
    bool is_in_force;
    bool has_been_in_force; /* a version of this session was in force on this connection: skip reports concern it */
    uint32_t version;       /* last version sent; 0: none */
    uint32_t first_version; /* first version sent by this session */
    uint32_t attempts;      /* sends since the last change */
    int64_t sent_ns;
} um_interest;

enum { UM_NAK_LIST_MAX = 365 }; /* fills a datagram at MTU 1500 */

/* A cached search of the loss map: the newest lost datagram in [from, before). */
typedef struct um_blocker_search {
    uint32_t from;
    uint32_t before;
    uint64_t change_count; /* of the loss map at the time of the search */
    bool has_found;
    bool has_found_later; /* a datagram at or after `before` is lost */
    uint32_t sqn;
} um_blocker_search;

/* Sequence numbers known from session messages only (session_claims.h). */
typedef struct um_receiver_session_claims {
    bool has_any;     /* numbers of [next_sqn, end) may be in the loss map */
    bool has_lead;    /* lead is valid: that of the last session message */
    bool has_claimed; /* claimed_lead is valid: the lead claimed last */
    bool is_pending;  /* lead will be claimed once no data has arrived for a while */
    bool has_far;     /* far_sqn is valid: a single number claimed beyond the reach */
    bool has_failed;  /* claims before failed_end were given up, and no data has arrived since */
    uint32_t end;
    uint32_t lead;
    uint32_t claimed_lead;
    uint32_t far_sqn;
    uint32_t failed_end;
    int64_t last_data_ns;
} um_receiver_session_claims;

typedef struct um_receiver_session_config {
    um_session_id id;
    um_ip advertiser;               /* who named the source (first_contact.h); unset: unknown */
    int64_t nak_initial_backoff_ns; /* 0: NAK at once */
    int64_t nak_backoff_ns;
    int64_t nak_suppress_ns;
    uint32_t adaptive_timers; /* bits of um_adaptive_timer: the values above that are ceilings of measured timers */
    int64_t nak_generation_ns;
    int64_t activity_timeout_ns;
    int64_t preactivity_timeout_ns; /* 0: activity_timeout_ns applies */
    bool send_naks;
    uint32_t nak_rate_limit;        /* sequence numbers NAKed per second; 0: no limit */
    int64_t nak_cutoff_interval_ns; /* at that limit for this long, the session stops NAKs (nak_cutoff.h); 0: never */
    uint32_t datagram_max_bytes;    /* limits the length of a NAK datagram */
    uint32_t receive_max_bytes;     /* longer data is dropped (UX-26); 0: no limit */
    uint32_t loss_capacity;         /* entries of the loss map; a power of two */
    uint32_t topic_capacity;        /* maximum number of topics, and of queues; a power of two */
    uint32_t window_bytes;          /* largest flow control window that is offered */
    int64_t status_interval_ns;     /* between status messages while data arrives */
    int64_t status_maximum_interval_ns; /* of an idle session; below status_interval_ns: intervals do not grow */
    uint64_t receiver_id;
    uint32_t group_tag;
    uint64_t random_seed;
    uint32_t key_set; /* of the context's authentication; 0: datagrams carry no tags */
    /* LBT-RU */
    int64_t connect_interval_ns; /* initial interval between connection requests */
    uint32_t maximum_connect_attempts;
    int64_t acknowledgement_interval_ns;
    uint16_t port_low; /* used by the owner: range of UDP ports to receive at; 0: any */
    uint16_t port_high;
    /* TCP */
    int64_t reconnect_interval_ns; /* initial interval between attempts to connect */
    int64_t reconnect_timeout_ns;  /* the session ends after this long without a connection */
    int64_t connection_timeout_ns; /* a peer that acknowledges nothing for this long is dead; 0: system default */
    uint32_t receive_buffer_bytes; /* of the socket; 0: system default, which adapts */
} um_receiver_session_config;

/* The timers of a session, each a deadline in due_ns. Two more deadlines move with every datagram and are computed: the
 * activity timeout from last_activity_ns, pending claims from last_data_ns. Those of lost datagrams are in the loss
 * map.
 */
enum um_receiver_timer {
    UM_TIMER_STATUS,      /* the next status message; INT64_MIN: at once */
    UM_TIMER_CONTROLLERS, /* the earliest deadline of the delivery controllers */
    UM_TIMER_NAKS,        /* the earliest next NAK datagram, so that losses share datagrams and the budget holds */
    UM_TIMER_CONNECT,     /* LBT-RU, connecting: the next connection request */
    UM_TIMER_ACKNOWLEDGE, /* LBT-RU, with a client id: the next acknowledgement */
    UM_TIMER_INTEREST,    /* LBT-RU: the next interest */
    UM_RECEIVER_TIMERS,
};

/* Bits: the reasons why a session with send_naks does not send NAKs (nak_cutoff.h). */
enum um_nak_cutoff {
    UM_NAK_CUTOFF_CONTEXT = 1,   /* the application stopped NAKs of the context */
    UM_NAK_CUTOFF_RECEIVERS = 2, /* the application stopped NAKs of all receivers of the session */
    UM_NAK_CUTOFF_SESSION = 4,   /* the session was at nak_rate_limit for nak_cutoff_interval_ns */
};

/* A queue that controllers of the session deliver into. */
typedef struct um_receiver_session_queue {
    um_message_queue *queue;
    uint32_t controller_count;
} um_receiver_session_queue;

typedef struct um_receiver_session {
    um_receiver_session_config config;
    um_link *link;               /* for NAKs and status messages */
    um_verifier *verifier;       /* set by the owner after init; NULL: datagrams carry no tags */
    um_first_contacts *contacts; /* of the node; NULL: attempts are not limited */
    um_reorder_buffer *store;
    um_random random;
    um_loss_map losses;
    um_recovery_timing timing;
    um_connection connection;  /* LBT-RU */
    um_interest interest;      /* LBT-RU */
    um_address local;          /* LBT-RU: destination of its datagrams; set by the owner after init */
    uint32_t group_report_sqn; /* transport sqn of the newest group report */
    bool has_group_report;
    bool is_unlimited; /* the source has no flow control (group report) */
    um_topic_table topics;
    um_delivery *controllers;
    uint32_t controller_count;
    um_receiver_session_queue *queues; /* dense, each queue once, so that the window counts it once */
    uint32_t queue_count;
    uint32_t starting_count; /* controllers in state STARTING */
    uint64_t gaps_found;
    um_blocker_search search;
    bool has_jumped; /* jump_sqn is valid: the last data, retransmissions aside, was too far ahead to be accepted */
    uint32_t jump_sqn;
    uint32_t stray_count; /* successive datagrams before the source's window */

    bool is_active; /* a datagram has arrived and BOS was delivered */
    bool is_held;   /* its full queues hold it back: the owner leaves its datagrams unread (node.h) */
    bool has_ended;
    bool has_base;   /* next_sqn is valid */
    bool has_data;   /* next_sqn is known from data, not only from a session message */
    bool is_resumed; /* next_sqn is that of an earlier session of this identity */
    uint32_t resume_rounds;
    uint32_t next_sqn; /* 1 + the highest sqn received as data */
    uint32_t trail_sqn;
    uint32_t mappings_sqn; /* next_sqn when the controllers' mapped_sqn were last checked */
    um_receiver_session_claims claims;
    bool is_behind; /* set by the owner before a tick: received datagrams are still unread */
    int64_t created_ns;
    int64_t last_activity_ns;

    int64_t due_ns[UM_RECEIVER_TIMERS]; /* indexed by um_receiver_timer */
    int64_t elicited_ns;                /* when a session message was requested last; INT64_MIN: none is expected */
    uint16_t probe_round;               /* of the newest path probe; 0: none has arrived */
    uint16_t probe_bytes;               /* largest path probe of that round */
    uint64_t bytes_since_status;
    int64_t status_sent_ns;
    int64_t status_quiet_ns;  /* current interval of an idle session; 0: the next status message is not a repetition */
    bool has_unreported;      /* messages have arrived since the last status message */
    bool has_reported_data;   /* a status message was sent after messages had arrived */
    int64_t reported_trip_ns; /* round trip in the last status message */
    uint32_t status_window_bytes; /* in the last status message */
    uint64_t flow_cookie;         /* of the last session message that had one; 0: none */
    uint8_t status_slow_flags;    /* UM_STATUS_SLOW and UM_STATUS_CUT_LOOSE in it */
    uint8_t topic_round;          /* topic_reports.h: number of the round of topics being reported */
    bool is_topic_round_complete;
    bool is_topic_report_due; /* topics were mapped or unmapped since the last complete round began */
    bool has_reported_topics; /* the next report adds to the earlier ones */
    uint32_t status_sqn;      /* position in the last status message: the oldest lost sqn, or next_sqn */
    uint32_t unfetched_count; /* of controllers that are no longer mapped (um_delivery) */
    uint64_t recovered_count;
    uint32_t nak_number;          /* of the newest NAK, see um_loss */
    bool has_repair;              /* the two fields below are valid */
    um_repair_evidence repair;    /* the retransmission NAKed last of those that have arrived or were reported */
    uint32_t repaired_nak_number; /* and the number of its NAK */
    um_nak_budget nak_budget;
    int64_t stale_tags_due_ns;                      /* no UM_ROW_STALE_TAGS before */
    uint32_t nak_cutoff;                            /* bits of um_nak_cutoff */
    uint64_t recovery_buckets[UM_RECOVERY_BUCKETS]; /* recovered datagrams by the time recovery took */
    uint64_t latency_buckets[UM_LATENCY_BUCKETS];   /* messages by one-way latency */
    uint64_t latency_count;                         /* messages in latency_buckets */
    um_receiver_transport_counters counters;
} um_receiver_session;

/* True if the session sends NAKs now. */
static inline bool um_receiver_session_can_nak(const um_receiver_session *session)
{
    return session->config.send_naks && session->nak_cutoff == 0;
}

/* Returns 0 if a datagram or connection to the source may be made now, else for how long to wait (first_contact.h). */
static inline int64_t um_receiver_session_contact_wait_ns(um_receiver_session *session, int64_t now_ns)
{
    if (UM_LIKELY(session->is_active) || session->contacts == NULL)
        return 0;
    return um_first_contact_wait_ns(session->contacts, session->config.id.source.ip, session->config.advertiser,
                                    now_ns);
}

/* Sends a NAK or status message to the source. It is not repeated if the link does not accept it. */
static inline void um_receiver_session_send_control(um_receiver_session *session, const uint8_t *datagram,
                                                    uint32_t length)
{
    um_part part = {datagram, length};
    um_tx tx = {.parts = &part, .part_count = 1, .length = length};
    session->link->ops->send(session->link, session->config.id.source, &tx, 1);
}

/* Returns a quarter of the window last reported: the next status message must arrive before that window is used up. */
static inline uint64_t um_receiver_session_report_after_bytes(const um_receiver_session *session)
{
    uint32_t window = session->config.window_bytes;
    return (session->status_window_bytes < window ? session->status_window_bytes : window) / 4;
}

#endif
