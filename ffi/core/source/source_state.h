/* The state of the source side: the transport session, its topics, and their constants. The other files of this folder
 * include it; source_session.h and source.h declare the entry points.
 */
#ifndef UM_CORE_SOURCE_STATE_H
#define UM_CORE_SOURCE_STATE_H

#include "core/foundation/counters.h"
#include "core/foundation/link.h"
#include "core/source/fan_out.h"
#include "core/source/flow_control.h"
#include "core/source/path_mtu.h"
#include "core/source/publication_log.h"
#include "core/source/rate_limits.h"
#include "core/source/repair_budget.h"
#include "core/source/source_events.h"
#include "core/source/source_timing.h"
#include "core/source/staged_datagrams.h"
#include "core/wire/authentication.h"
#include "core/wire/datagram_size.h"
#include "core/wire/framing.h"
#include "core/wire/lbmc.h"
#include "core/wire/repair_report.h"
#include "core/wire/session_id.h"

enum {
    UM_SEND_BATCH_BYTES_MAX = 65507, /* UDP payload that the kernel accepts as one segmented send */
    UM_DATAGRAM_PARTS_MAX = 16,      /* the header, and frames referenced in the log */
    UM_RETRANSMIT_QUEUE_MAX = 1024,  /* datagrams; beyond it NAKs are shed (UM-132) */
    UM_NCF_LIST_MAX = 256,           /* sqns in one NCF */
};

typedef struct um_source_session_config {
    enum um_transport transport;
    uint32_t session_id;
    uint16_t nak_port;
    um_address group;
    uint32_t initial_sqn;
    uint32_t initial_term_id;
    uint32_t term_length;
    uint32_t window_bytes;             /* LBMC bytes that can be retransmitted */
    uint32_t publication_window_bytes; /* how far publishers may be ahead of the sender; 0: half a term */
    uint32_t datagram_max_bytes;
    uint32_t path_floor_bytes;   /* LBT-RM: path MTU discovery never goes below this size; 0: no discovery */
    uint32_t coalesce_threshold; /* maximum frames that a datagram references; one with more is copied */
    uint32_t batch_minimum_bytes;
    int64_t batch_interval_ns;
    int64_t ignore_interval_ns;
    int64_t sm_minimum_interval_ns;
    int64_t sm_maximum_interval_ns;
    int64_t sm_floor_ns;      /* minimum of a measured first interval */
    uint32_t adaptive_timers; /* um_adaptive_source_timer: measured, with the values above as their maxima */
    int64_t unblock_timeout_ns;
    enum um_flow_control_policy flow_policy;
    uint32_t flow_group_tag;
    uint32_t flow_group_minimum_size;
    int64_t flow_receiver_timeout_ns;
    int64_t flow_stall_timeout_ns; /* a receiver that holds the sender back this long stops counting; 0: never */
    bool flow_publishes_without_receivers;
    uint64_t flow_cookie;        /* random number that receivers repeat to count; 0: all count */
    uint32_t flow_network_count; /* 0: no restriction; receivers at every address count */
    um_network flow_networks[UM_FLOW_NETWORKS_MAX];
    uint64_t repair_budget_bps;     /* see repair_budget.h; 0: none */
    int64_t nak_cutoff_interval_ns; /* a receiver over its share this long is cut off; 0: never */
    uint32_t key_set;               /* number of its key set in the context; 0: datagrams carry no tags */
    uint32_t data_trailer_bytes;    /* bytes that the link appends to each DATA datagram */
    uint32_t control_trailer_bytes; /* bytes that the link appends to every other datagram */
    uint32_t client_capacity;       /* LBT-RU: maximum number of clients; 0 for other transports */
    uint32_t client_buckets;        /* LBT-RU: buckets of the hash table of clients */
    int64_t client_timeout_ns;      /* LBT-RU: a client that acknowledges nothing this long is dropped */
    um_siphash_key client_key;      /* LBT-RU: random key from which client ids are made */
    bool has_filter;                /* LBT-RU: clients are sent only datagrams with topics they need */
} um_source_session_config;

/* One entry of the transmission window: the range of the log sent under a transport sqn, and its retransmission state.
 */
typedef struct um_sent {
    int64_t position;
    int64_t answered_ns;  /* last retransmission or shed NCF; INT64_MIN: never */
    uint32_t span;        /* log bytes */
    uint16_t length;      /* LBMC bytes */
    uint8_t is_queued;    /* waits in the retransmit queue */
    uint8_t is_confirmed; /* an NCF was sent in this ignore interval (UM-130) */
} um_sent;

/* Retransmissions that no report has named yet (repair_reports.h), in the order of their NAKs. */
typedef struct um_pending_reports {
    int64_t due_ns; /* the next report is not sent before; valid if count is not 0 */
    uint32_t count;
    uint32_t sqns[UM_REPAIR_REPORT_ENTRIES_MAX];
} um_pending_reports;

/* A datagram of which the link has accepted only some pieces (oversize.h). */
typedef struct um_cut_datagram {
    uint32_t sqn;
    uint8_t count; /* number of pieces; 0: there is none */
    uint8_t next;  /* the first piece that was not accepted */
} um_cut_datagram;

struct um_source;
struct um_retention;

enum { UM_RETENTION_BUCKET_BITS = 12, UM_RETENTION_BUCKETS = 1 << UM_RETENTION_BUCKET_BITS };

typedef struct um_source_session {
    um_publication_log log;
    um_source_session_config config;
    um_link *link;
    um_rate_limits *limits;

    /* Batching state, shared by the publishers (batcher.h). */
    UM_CACHE_ALIGNED _Atomic uint64_t batch; /* LBMC bytes of the open datagram << 32 | deferred user bytes */
    _Atomic int64_t batch_started_ns;
    _Atomic int64_t flush_limit;     /* the sender may send up to this position (W3) */
    _Atomic uint32_t body_max_bytes; /* maximum LBMC bytes per datagram now */

    UM_CACHE_ALIGNED um_lock sender_lock;
    _Atomic int64_t sender_position;
    atomic_bool is_sender_blocked; /* a limit stopped the sender, not lack of data */
    atomic_bool is_sender_waiting; /* stopped at an uncommitted frame; cleared by the publisher that commits one */
    int64_t sender_limit;
    uint32_t next_sqn;
    uint32_t trail_sqn;
    uint64_t window_used_bytes;
    bool has_sent;         /* a session that never sent data sends no session messages (UM-74) */
    bool has_no_limit;     /* no receiver counts and it publishes anyway: sender_limit follows the sender's position */
    bool is_at_limit;      /* the sender is at its limit: the episode is counted (AE-10) */
    bool is_window_capped; /* a receiver's window is larger than the retransmittable bytes */
    int64_t solicited_position; /* sender position when it last solicited status messages */
    int64_t link_retry_ns;      /* delay before the link is tried again; 0: it accepted everything */
    int link_error;             /* last negative errno of the link; the owner clears it */
    uint32_t sm_sqn;
    int64_t sm_interval_ns;
    int64_t last_sent_ns;
    int64_t last_sm_ns;
    int64_t
        answer_due_ns; /* a receiver waits for a session message, sent then at the latest; UM_NEVER_NS: none waits */
    int64_t flow_expiry_ns;
    int64_t control_start; /* log positions of the control messages published last, with nothing between them */
    int64_t control_end;
    int64_t report_waits_ns; /* since when a group report waits for a held batch; UM_NEVER_NS: none waits */
    int64_t tsni_waits_ns;   /* the same for TSNIs */
    int64_t tsni_due_ns;
    int64_t tsni_interval_ns; /* shortest of the sources' intervals */
    um_flow_control flow;
    um_sent *sent; /* ring indexed by sqn & sent_mask */
    uint32_t sent_mask;
    uint32_t retransmit_count;
    uint32_t retransmit_queue[UM_RETRANSMIT_QUEUE_MAX]; /* binary heap, oldest sqn first (UM-133) */
    um_pending_reports pending_reports;
    uint8_t *staging;           /* UM_SEND_BATCH_MAX datagrams end to end */
    uint32_t staged_bytes;      /* used in `staging` by the batch being built */
    uint8_t *headers;           /* UM_SEND_BATCH_MAX data headers */
    um_part *parts;             /* UM_SEND_BATCH_MAX * UM_DATAGRAM_PARTS_MAX */
    um_staged_datagrams staged; /* built by publishers, not sent yet */
    struct um_source *sources;
    um_source_timing timing;
    um_path_mtu path;
    um_cut_datagram cut[2]; /* new data, and a retransmission */
    um_receiver_accounting accounting;
    um_repair_budget repair_budget;
    int64_t nonmembers_noisy_ns; /* last event about NAKs over the share from any non-member: addresses may be forged */
    int64_t nonmembers_lose_ns;  /* last event about late NAKs from any non-member */
    um_source_events events;
    um_client_map clients; /* LBT-RU; empty for other transports */
    um_fan_out fan_out;    /* LBT-RU: `link` points to it */
    uint32_t copies;       /* copies per datagram that the rate limits count: at least 1 */
    uint32_t answer_count; /* responses to addresses that are not clients', since answers_since_ns */
    int64_t answers_since_ns;
    int64_t clients_due_ns;           /* next check of client timeouts */
    int64_t passed_due_ns;            /* next filter reports to clients */
    uint32_t stream_client_count;     /* LBT-TCP, LBT-IPC: maintained by the owner */
    struct um_retention **retentions; /* UM_RETENTION_BUCKETS lists of the sources that offer late join (retention.h) */
    uint32_t retention_count;
    int64_t retained_position; /* log frames from here on are retained in place */
    int64_t indexed_position;  /* log frames before it are in the indices of the retentions */
    um_source_transport_counters counters;
} um_source_session;

/* Bytes of a DATA datagram besides its LBMC messages: the headers, and the trailer that the link appends. */
static inline uint32_t um_source_session_overhead_bytes(const um_source_session *session)
{
    return UM_FRAMING_DATA_BYTES + session->config.data_trailer_bytes;
}

/* The entry of `sqn` in the transmission window. */
static inline um_sent *um_source_session_sent(um_source_session *session, uint32_t sqn)
{
    return &session->sent[sqn & session->sent_mask];
}

enum um_send_flags {
    UM_SEND_START_BATCH = 0x1,
    UM_SEND_END_BATCH = 0x2,
    UM_SEND_FLUSH = 0x4,
};

enum um_send_action {
    UM_ACTION_RUN_SENDER = 0x1,    /* something may be sent: try the sender lock and run um_source_session_send */
    UM_ACTION_BATCH_STARTED = 0x2, /* a batch waits for its interval: the context must wake up in time */
};

typedef struct um_source {
    um_source_session *session;
    uint32_t topic_index;
    /* Sent messages are counted by the sqns they take, because each further locked addition delays a send. */
    _Atomic uint64_t next_sqn;        /* its low half is the sqn on the wire */
    uint64_t initial_sqn;             /* next_sqn less the sqns taken so far */
    _Atomic uint64_t held_fragments;  /* sqns of an explicit batch that are not published yet */
    _Atomic uint64_t extra_fragments; /* fragments after the first of each message */
    _Atomic int64_t last_send_ns;     /* INT64_MIN: never */
    /* With has_send_time, messages carry the wall-clock time of sending: the time passed to the call, plus
     * wall_offset_ns. A publisher that reads both clocks stores the offset before the call, so that a step of the wall
     * clock shows in the next message. */
    bool has_send_time;
    _Atomic int64_t wall_offset_ns;
    _Atomic int64_t claimed_to; /* log position after the newest claim that an application holds */
    atomic_bool is_closed;
    uint32_t fragment_bytes; /* um_source_config */

    /* TSNI state, under the session's sender lock (UM-62..UM-64). */
    int64_t tsni_interval_ns;  /* 0: off */
    int64_t tsni_threshold_ns; /* 0: forever */
    int64_t tsni_sent_ns;
    struct um_source *next;  /* the session's list */
    struct um_source **link; /* the pointer to it in the list; NULL: not in the list */

    /* Explicit batch: records held until its end (UM-35). */
    um_lock explicit_lock;
    uint8_t *explicit_memory; /* explicit_capacity bytes */
    uint32_t explicit_capacity;
    uint32_t explicit_used;
    uint32_t explicit_released;
    atomic_bool is_explicit_open;

    um_source_counters counters;
} um_source;

/* The send time for a message; 0 if messages carry none. */
static inline int64_t um_source_send_time(const um_source *source, int64_t now_ns)
{
    return source->has_send_time ? now_ns + atomic_load_explicit(&source->wall_offset_ns, memory_order_relaxed) : 0;
}

/* Header bytes of an unfragmented message that is in no explicit batch. */
static inline uint32_t um_source_overhead(const um_source *source)
{
    return um_lbmc_overhead(false, false, source->has_send_time);
}

#endif
