/* The delivery controller: the receiving topic layer, one per (receiver x source) (UM-7..UM-12, UM-53..UM-61,
 * UM-95..UM-101, UX-6..UX-8). It drops duplicates, orders (mode 1) or delivers as messages come (-1, and 0 without
 * reassembly), and declares loss: a gap is given up when the session's NAK generation interval has passed since
 * its detection and something of the topic arrives (UM-100), or at a loss check.
 *
 * Here: arrivals, the beginning and the end. order_map.h holds what waits, reassembly.h puts fragments together,
 * loss_declaration.h delivers from the head of the map and gives gaps up, delivery_rows.h appends rows.
 *
 * Rows go into the receiver's queue. When that is full the controller keeps what it holds and goes on at the next
 * um_delivery_drain; the owner stops taking datagrams in the meantime.
 *
 * Threads: the context lock.
 */
#ifndef UM_CORE_DELIVERY_CONTROLLER_H
#define UM_CORE_DELIVERY_CONTROLLER_H

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
    bool is_cut_off; /* it wants no NAKs (nak_cutoff.h) */
    bool *otr_begun; /* the owner's: some controller has begun off-transport recovery; NULL: nobody looks */
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

/* What a controller fetches from its source: the past (late_join.h), or what the transport lost (off_transport.h). */
typedef struct um_late_join {
    bool is_active;
    bool awaits_range;
    bool is_holding; /* nothing is delivered meanwhile */
    bool seen_live;
    bool has_target;
    bool is_otr;            /* off-transport recovery: the transport may recover the same gaps */
    bool is_taken;          /* off-transport recovery: the owner of the connection knows of it */
    bool is_resumed;        /* goes on at resume_sqn, where the source's last session ended */
    bool is_transport_done; /* the transport has given up what lacks next, too */
    bool is_given_up;       /* nothing is fetched any more; what lacks runs out of time */
    bool has_lost;
    bool has_shown;
    bool has_promised; /* promised_end: what a range said there is, given up, and nothing has shown it yet */
    uint32_t epoch;    /* differs from that of the fetch before */
    uint32_t resume_sqn;
    uint32_t target;            /* what is lacking before it is fetched */
    uint32_t lost_to;           /* what is lacking before it is not to be had */
    uint32_t requested;         /* the next to be requested */
    uint32_t caching_proximity; /* of off-transport recovery: order map entries */
    uint32_t shown_end;         /* what lies before it exists: it came, from either side, or a TSNI named it */
    uint32_t promised_end;
    int64_t promised_until_ns; /* then it is lost, shown or not */
    uint32_t given_up_sqn;     /* transport sqn from which on what comes was sent since it was given up */
    uint32_t passed_to;        /* everything before it was passed without a look: the peer said so */
    uint32_t taken_since;      /* messages fetched since something was given up last */
    int64_t received_ns;       /* wall clock of what is received now */
} um_late_join;

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
    bool starved;
    bool is_begun;             /* the beginning of the session was announced, or is due */
    uint8_t announcements_due; /* um_announcement */
    bool has_eos;              /* the end of the session is in the queue */
    bool is_deregistered;      /* so is the end of the source */
    bool awaits_interest;      /* the source has yet to say since when it sends the topic (interest.h) */
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
    um_late_join late_join;
} um_delivery;

void um_delivery_init(um_delivery *delivery, um_receiver *receiver, uint32_t id, uint32_t source, uint32_t topic_index,
                      int64_t give_up_ns);

/* What the transport knows of what it delivers. */
typedef struct um_arrival {
    int64_t now_ns;
    int64_t received_ns;
    uint32_t transport_sqn;
    uint32_t datagram_bytes;
    um_frames *frames; /* whose frame the datagram lies in, or NULL */
    bool earlier_lost; /* datagrams since the controller was mapped are lost */
    bool is_stream;    /* it came in order over a connection: what lacks was never sent, however much that is */
} um_arrival;

void um_delivery_on_message(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival);
void um_delivery_on_tsni(um_delivery *delivery, uint32_t sqn, const um_arrival *arrival);

/* Takes a message that late join has fetched into the order map; false when there is no space. */
bool um_delivery_hold_recovered(um_delivery *delivery, const um_lbmc_message *message, const um_arrival *arrival);

/* Whether a sqn that lacks is not to be had by fetching. */
static inline bool um_delivery_is_past_lost(const um_delivery *delivery, uint32_t sqn)
{
    const um_late_join *join = &delivery->late_join;
    return join->is_active && join->has_lost && um_serial_before(sqn, join->lost_to);
}

/* Whether what comes next is being fetched, whatever it is. */
static inline bool um_delivery_awaits_past(const um_delivery *delivery)
{
    const um_late_join *join = &delivery->late_join;
    return join->is_active && (join->is_holding || um_serial_before(delivery->next_sqn, join->target)) &&
           !um_delivery_is_past_lost(delivery, delivery->next_sqn);
}

/* Tells the receiver of its new source, where it wants that; before the session's beginning. */
void um_delivery_register(um_delivery *delivery);

/* Beginning and end of the transport session (UM-76, UM-81, UM-105). It begins once, with the first datagram of any
 * kind or with what is fetched, whichever comes first. */
void um_delivery_begin(um_delivery *delivery);
void um_delivery_end(um_delivery *delivery, int64_t now_ns);

/* Datagrams before the first one seen are no longer lost: delivery may start, at the lowest sqn held, or before it
 * where what lies between is to come. */
void um_delivery_start(um_delivery *delivery, uint32_t next_sqn, int64_t now_ns);

/* Goes on after a full queue, and checks for loss when that is due. Returns when the next call is due. */
int64_t um_delivery_tick(um_delivery *delivery, int64_t now_ns);

/* Removes everything held. */
void um_delivery_fini(um_delivery *delivery);

#endif
