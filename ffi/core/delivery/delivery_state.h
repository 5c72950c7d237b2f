/* The state of a delivery controller and of the receiver it delivers to: the structs that every file of this folder
 * works on. delivery_controller.h has the entry points.
 *
 * Threads: the context lock. Memory: the owner's. A controller allocates nothing; it holds messages in the context's
 * reorder buffer.
 */
#ifndef UM_CORE_DELIVERY_STATE_H
#define UM_CORE_DELIVERY_STATE_H

#include "core/delivery/message_queue.h"
#include "core/delivery/reorder_buffer.h"
#include "core/foundation/counters.h"
#include "core/wire/lbmc.h"
#include "core/wire/session_id.h"

enum { UM_DELIVERY_GAPS_MAX = 32 };

typedef enum um_ordered_delivery {
    UM_ORDERED_FRAGMENTS = 0, /* arrival order, fragments as they are */
    UM_ORDERED_SEQUENCE = 1,  /* sequence order, reassembled */
    UM_ORDERED_ARRIVAL = -1,  /* arrival order, reassembled */
} um_ordered_delivery;

typedef struct um_receiver_config {
    um_ordered_delivery ordered_delivery;
    uint32_t map_entries_max;       /* order map bound of one controller; 0: the store's */
    uint32_t burst_loss_max;        /* longer gaps are one burst event */
    int64_t loss_check_interval_ns; /* 0: off */
    bool use_otr;                   /* recover off the transport, from sources that offer it (off_transport.h) */
    bool source_notification;       /* append a row when a source appears and when it is deleted */
    bool is_hot_failover;           /* rows start with the hot failover option of their message; none stay in frames */
    bool keeps_properties;          /* the properties of a message stay at the end of its payload, also in fragments;
                                       um_properties_place has their length, unchecked; with UM_ORDERED_FRAGMENTS only */
    int64_t otr_initial_delay_ns;   /* off-transport recovery starts for gaps older than this */
    uint32_t otr_caching_threshold; /* order map entries above which off-transport recovery starts */
} um_receiver_config;

/* A subscription: the state that its controllers share. Owned by the context. Several receivers may share a queue,
 * which takes their rows in arrival order; rows carry the controller's source number. */
typedef struct um_receiver {
    um_receiver_config config;
    um_message_queue *queue;
    um_receiver_counters counters;
    um_reorder_buffer *store;
    um_context_counters *context_counters;
    bool is_cut_off;     /* the application has stopped NAKs for this receiver (nak_cutoff.h) */
    bool *has_begun_otr; /* the owner's, set when a controller starts off-transport recovery; may be NULL */
    uint32_t controller_count;
    struct um_delivery *controllers; /* those that are mapped, of all sessions */
} um_receiver;

/* A range of lost topic sqns, with the time of detection and the transport sqn of the datagram that revealed it. */
typedef struct um_gap {
    uint32_t first;
    uint32_t last;
    int64_t detected_ns;
    uint32_t transport_sqn;
} um_gap;

enum um_delivery_state {
    UM_DELIVERY_WAITING = 0,  /* no message or TSNI of the topic has arrived */
    UM_DELIVERY_STARTING = 1, /* messages are held: lost datagrams before the first one may still be recovered */
    UM_DELIVERY_RUNNING = 2,
    UM_DELIVERY_ENDING = 3, /* the session has ended: held messages are delivered, then the end of session */
    UM_DELIVERY_ENDED = 4,
};

/* The two uses of a fetch, and a late join of a source that was left before. */
enum um_delivery_fetch_kind {
    UM_DELIVERY_FETCH_LATE_JOIN = 0, /* the past of a topic before its present */
    UM_DELIVERY_FETCH_RESUMED = 1, /* a late join that continues at resume_sqn, where the source's last session ended */
    UM_DELIVERY_FETCH_OFF_TRANSPORT = 2, /* gaps that the transport may still recover, too (off_transport.h) */
};

/* The states of a fetch; delivery_fetch.h draws them. */
enum um_delivery_fetch_state {
    UM_DELIVERY_FETCH_IDLE = 0,         /* nothing is fetched */
    UM_DELIVERY_FETCH_AWAITS_RANGE = 1, /* the source has not reported yet which messages it retains */
    UM_DELIVERY_FETCH_STARTING = 2, /* the range has arrived; nothing is delivered while delivery is set up for it */
    UM_DELIVERY_FETCH_RUNNING = 3,  /* missing messages of [next_sqn, target) are requested */
    UM_DELIVERY_FETCH_GIVEN_UP = 4, /* fetching has stopped; missing messages will time out */
};

/* A fetch of one controller: missing messages that its source retains, over TCP. */
typedef struct um_delivery_fetch {
    enum um_delivery_fetch_state state;
    enum um_delivery_fetch_kind kind;
    bool has_seen_live;         /* the transport has delivered a live message */
    bool is_taken;              /* off transport: the owner of the connection serves the fetch */
    bool is_transport_done;     /* off transport: the transport has given up the next missing message as well */
    bool has_target;            /* target is valid */
    bool has_lost;              /* lost_to is valid */
    bool has_shown;             /* shown_end is valid */
    bool has_reported;          /* reported_end and reported_until_ns are valid */
    uint32_t epoch;             /* number of this fetch; differs from that of the previous one */
    uint32_t resume_sqn;        /* for UM_DELIVERY_FETCH_RESUMED: the first sqn to fetch */
    uint32_t target;            /* missing messages before it are fetched */
    uint32_t lost_to;           /* missing messages before it cannot be fetched */
    uint32_t requested;         /* the next sqn to request */
    uint32_t caching_proximity; /* live messages fewer sqns ahead are kept; off transport: limit of order map entries */
    uint32_t shown_end;         /* everything before it exists, as a message or a TSNI has shown */
    uint32_t reported_end;      /* end of a given-up range that the source reported and the transport has not shown */
    int64_t reported_until_ns;  /* when the messages before reported_end are declared lost */
    uint32_t given_up_sqn;      /* datagrams from this transport sqn on were sent after the fetch was given up */
    uint32_t passed_to;   /* sqns before it were passed because the source reported that it does not retain them */
    uint32_t taken_since; /* messages fetched since the last one was given up */
    int64_t received_ns;  /* wall clock at which the current bytes were received */
} um_delivery_fetch;

/* Bits of rows that must precede the next message and wait for space in the queue, in this order. */
enum um_announcement {
    UM_ANNOUNCE_SOURCE = 1,
    UM_ANNOUNCE_BEGINNING = 2,
    UM_ANNOUNCE_NAK_CUTOFF = 4,
    UM_ANNOUNCE_STALE_TAGS = 8,
};

/* Fields that every message touches are first, because cache misses dominate with many topics. */
typedef struct um_delivery {
    um_receiver *receiver;
    struct um_delivery *next_of_topic; /* the controller of another receiver for the same topic index */
    enum um_delivery_state state;
    uint32_t next_sqn;              /* everything before it is delivered or given up */
    uint32_t highest_sqn;           /* highest topic sqn known to exist */
    uint32_t highest_transport_sqn; /* transport sqn of the datagram that revealed highest_sqn */
    uint32_t held_count;            /* entries in the order map */
    uint32_t gap_count;
    uint32_t source;            /* the owner's number of the source, stored in rows */
    bool is_starved;            /* the queue is full; delivery continues at the next tick */
    bool has_refused;           /* refused_first_sqn is set */
    uint32_t refused_first_sqn; /* first sqn of the last message that was too long and has its loss event */
    bool is_cut_loose;          /* the messages of [next_sqn, highest_sqn] were dropped (slow_reader.h) */
    bool is_begun;              /* the beginning of the session is in the queue, or due */
    bool has_rows;              /* an event of it is in the queue, or was */
    uint8_t announcements_due;  /* bits of um_announcement */
    bool has_eos;               /* the end of the session is in the queue */
    bool is_deregistered;       /* the deletion of the source is in the queue */
    bool is_awaiting_interest;  /* the source has not reported since when it sends the topic (interest.h) */
    bool has_blocker;           /* blocker_sqn is valid */
    bool is_nak_free;           /* the session sends no NAKs: gaps time out even if nothing arrives */
    bool is_leading;            /* no message was delivered: losses from leading_sqn on precede the first (UM-135) */
    bool is_topic_reported;     /* streams: its topic was requested on this connection */
    uint8_t topic_round;        /* others: the round in which its topic was last reported (topic_reports.h); 0: never */
    bool has_resume;            /* resume_sqn is valid: the position of an earlier session, or of this one at its end */
    bool has_given_up;          /* in state WAITING: a fetch of this session has given up the sqns before resume_sqn */

    uint32_t id; /* owner of its reorder buffer entries; never 0, never reused within a context */
    uint32_t topic_index;
    uint32_t request_count; /* TCP: the topic's request is the request_count-th of its connection */
    uint32_t mapped_sqn;    /* lost datagrams from this transport sqn on may carry the topic */
    uint32_t start_sqn;     /* transport sqn of the first datagram that carried the topic */
    int64_t give_up_ns;     /* NAK generation interval of the session (C16) */
    uint32_t lowest_held;   /* in state STARTING: the lowest sqn held */
    uint32_t resume_sqn;
    uint32_t blocker_sqn; /* transport sqn of a lost datagram that may carry the topic (start_gate.h) */
    int64_t loss_check_ns;
    uint64_t gaps_examined;    /* um_receiver_session.gaps_found when no lost datagram could carry the topic */
    struct um_delivery *next;  /* next controller of the session */
    struct um_delivery **link; /* the pointer to it in the session's list */
    struct um_delivery *next_of_receiver;
    struct um_delivery **link_of_receiver; /* the pointer to it in the receiver's list */
    struct um_receiver_session *session;
    uint32_t gap_first;
    um_gap gaps[UM_DELIVERY_GAPS_MAX]; /* ring, oldest first */
    uint32_t leading_sqn;
    uint32_t unfetched_count; /* messages that off-transport recovery could not fetch either */
    um_address request_port;  /* where the source takes recovery requests; none: nowhere */
    um_delivery_fetch fetch;
} um_delivery;

/* Properties of the datagram that a message arrived in. */
typedef struct um_arrival {
    int64_t now_ns;
    int64_t received_ns;
    uint32_t transport_sqn;
    uint32_t datagram_bytes;
    um_frames *frames;       /* the frames that hold the datagram; NULL: it is not in a frame */
    bool has_earlier_losses; /* a lost datagram may carry earlier messages of the topic (start_gate.h) */
    bool is_stream;          /* received over TCP, in order: a gap of any size means the data was never sent */
    bool is_repeated;        /* a retransmission: it does not show where the stream is */
} um_arrival;

/* True while messages are fetched, or a fetch that was given up has missing messages. */
static inline bool um_delivery_fetch_is_active(const um_delivery *delivery)
{
    return delivery->fetch.state != UM_DELIVERY_FETCH_IDLE;
}

/* True if this missing sqn cannot be fetched. */
static inline bool um_delivery_is_past_lost(const um_delivery *delivery, uint32_t sqn)
{
    const um_delivery_fetch *fetch = &delivery->fetch;
    return fetch->state != UM_DELIVERY_FETCH_IDLE && fetch->has_lost && um_serial_before(sqn, fetch->lost_to);
}

/* True if the next sqn is being fetched. */
static inline bool um_delivery_is_fetching_next(const um_delivery *delivery)
{
    const um_delivery_fetch *fetch = &delivery->fetch;
    return fetch->state != UM_DELIVERY_FETCH_IDLE &&
           (fetch->state == UM_DELIVERY_FETCH_STARTING || um_serial_before(delivery->next_sqn, fetch->target)) &&
           !um_delivery_is_past_lost(delivery, delivery->next_sqn);
}

#endif
