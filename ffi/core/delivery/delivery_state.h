/* The state of a delivery controller and of the receiver it delivers to: the structs that every file of this folder
 * works on. delivery_controller.h has the entry points.
 *
 * Threads: the context lock. Memory: the owner's; a controller has no memory of its own beside the context's reorder
 * buffer.
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
    bool use_otr;                   /* off-transport recovery, of sources that offer it (off_transport.h) */
    bool source_notification;       /* a row for each source that comes and goes */
    bool is_hot_failover; /* rows of messages with hot failover's option begin with it, and none stay in frames */
    int64_t otr_initial_delay_ns;
    uint32_t otr_caching_threshold; /* order map entries */
} um_receiver_config;

/* One subscription: what its controllers share. Owned by the context. Several receivers may have the same queue: it
 * takes their rows as they come, and the controller's source number distinguishes them. */
typedef struct um_receiver {
    um_receiver_config config;
    um_message_queue *queue;
    um_receiver_counters counters;
    um_reorder_buffer *store;
    um_context_counters *context_counters;
    bool is_cut_off;     /* it wants no NAKs (nak_cutoff.h) */
    bool *has_begun_otr; /* the owner's: some controller has begun off-transport recovery; NULL: nobody looks */
    uint32_t controller_count;
} um_receiver;

/* A range of lost topic sqns, when it was found, and by the datagram of which transport sqn. */
typedef struct um_gap {
    uint32_t first;
    uint32_t last;
    int64_t detected_ns;
    uint32_t transport_sqn;
} um_gap;

enum um_delivery_state {
    UM_DELIVERY_WAITING = 0,  /* nothing of the topic has been seen */
    UM_DELIVERY_STARTING = 1, /* datagrams from before the first one seen may still be recovered: hold */
    UM_DELIVERY_RUNNING = 2,
    UM_DELIVERY_ENDING = 3, /* the session is over: what is held goes out, then the end */
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
    bool has_seen_live;     /* a message of the present has arrived from the transport */
    bool is_taken;          /* off transport: the owner of the connection has started to serve the fetch */
    bool is_transport_done; /* off transport: the transport has given up the next missing message as well */
    bool has_target;
    bool has_lost;
    bool has_shown;
    bool has_reported;
    uint32_t epoch;             /* number of this fetch; it differs from that of the previous one */
    uint32_t resume_sqn;        /* of UM_DELIVERY_FETCH_RESUMED */
    uint32_t target;            /* missing messages before it are fetched */
    uint32_t lost_to;           /* missing messages before it cannot be fetched */
    uint32_t requested;         /* the next sqn to request */
    uint32_t caching_proximity; /* sqns ahead of delivery within which live messages are kept; off transport: entries */
    uint32_t shown_end;         /* everything before it exists: a message or a TSNI has shown it */
    uint32_t reported_end; /* end of a range that the source reported, that was given up and that nothing has shown */
    int64_t reported_until_ns; /* when the promised messages are declared lost, shown or not */
    uint32_t given_up_sqn;     /* datagrams from this transport sqn on were sent after the fetch was given up */
    uint32_t passed_to;        /* everything before it was passed because the source reported that it has no more */
    uint32_t taken_since;      /* messages fetched since something was given up */
    int64_t received_ns;       /* wall clock of the bytes that are being received */
} um_delivery_fetch;

/* Rows that come before what is delivered next and found no space yet, in their order. */
enum um_announcement { UM_ANNOUNCE_SOURCE = 1, UM_ANNOUNCE_BEGINNING = 2, UM_ANNOUNCE_NAK_CUTOFF = 4 };

/* What each message touches comes first: with many topics it is the caches that count. */
typedef struct um_delivery {
    um_receiver *receiver;
    struct um_delivery *next_of_topic; /* same topic index, another receiver */
    enum um_delivery_state state;
    uint32_t next_sqn;              /* everything before it is delivered or given up */
    uint32_t highest_sqn;           /* highest topic sqn known to exist */
    uint32_t highest_transport_sqn; /* of the datagram that showed it */
    uint32_t held_count;
    uint32_t gap_count;
    uint32_t source; /* the owner's number of the source, stored in rows */
    bool is_starved;
    bool is_begun;             /* the beginning of the session was announced, or is due */
    uint8_t announcements_due; /* um_announcement */
    bool has_eos;              /* the end of the session is in the queue */
    bool is_deregistered;      /* so is the end of the source */
    bool is_awaiting_interest; /* the source has yet to say since when it sends the topic (interest.h) */
    bool has_blocker;
    bool
        is_nak_free; /* of a session without NAKs: gaps are given up when their time is up, whether something arrives */
    bool is_leading; /* nothing was delivered: what is lost at leading_sqn is before the first message (UM-135) */
    bool has_resume; /* resume_sqn: where an earlier session was, or this one was when it ended */

    uint32_t id; /* owner of its holds, never 0, never reused within a context */
    uint32_t topic_index;
    uint32_t request_count; /* over TCP: of the connection, with the one for the topic, while it awaits the answer */
    uint32_t mapped_sqn;    /* transport sqn from which on the topic may be in datagrams that are lost */
    uint32_t start_sqn;     /* transport sqn of the first datagram seen with the topic */
    int64_t give_up_ns;     /* NAK generation interval of the session (C16) */
    uint32_t lowest_held;   /* while starting */
    uint32_t resume_sqn;
    uint32_t blocker_sqn; /* the session's: a lost datagram that may carry the topic */
    int64_t loss_check_ns;
    uint64_t gaps_examined;   /* gaps of the session that had been found when there was none */
    struct um_delivery *next; /* the session's list */
    uint32_t gap_first;
    um_gap gaps[UM_DELIVERY_GAPS_MAX]; /* ring, oldest first */
    uint32_t leading_sqn;
    um_address request_port; /* where the source takes requests; ip 0: it does not */
    um_delivery_fetch fetch;
} um_delivery;

/* The transport's facts about a datagram whose messages it delivers. */
typedef struct um_arrival {
    int64_t now_ns;
    int64_t received_ns;
    uint32_t transport_sqn;
    uint32_t datagram_bytes;
    um_frames *frames;       /* whose frame the datagram lies in, or NULL */
    bool has_earlier_losses; /* datagrams since the controller was mapped are lost */
    bool is_stream;          /* it came in order over a connection: what lacks was never sent, however much that is */
} um_arrival;

/* True while anything is fetched, or a fetch that was given up has missing messages. */
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
