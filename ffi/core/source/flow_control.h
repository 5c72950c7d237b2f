/* Flow control of a source session (AE-9, AE-16..AE-23, AE-44): computes the sender limit from the receivers' status
 * messages. Policies: none (source-paced: no limit but the rate), min (the slowest receiver), max (the fastest), tagged
 * (the slowest of those that carry the group's tag). The table of receivers is bounded; a receiver that has been idle
 * for the timeout stops counting.
 *
 * Threads: the holder of the sender lock. Memory: the session's. Complexity: linear in the receivers. Errors: status
 * messages of receivers that the full table cannot take are counted.
 */
#ifndef UM_CORE_FLOW_CONTROL_H
#define UM_CORE_FLOW_CONTROL_H

#include "core/foundation/address.h"

enum um_flow_control_policy { UM_FLOW_NONE = 0, UM_FLOW_MIN = 1, UM_FLOW_MAX = 2, UM_FLOW_TAGGED = 3 };

enum { UM_FLOW_RECEIVERS_MAX = 256, UM_FLOW_NETWORKS_MAX = 16 };

/* A network of either family (core/foundation/address.h). */
typedef struct um_network {
    um_ip ip;
    um_ip mask;
} um_network;

/* Returns true if a receiver at this address may count (flow_control_receivers_allowed): one of the networks contains
 * it, or there are no networks. */
bool um_flow_is_allowed(const um_network *networks, uint32_t count, um_ip ip);

/* The fields of a status message besides the limit. */
typedef struct um_flow_report {
    um_address address;
    uint32_t sqn;
    uint32_t window_bytes;
    bool is_in_window; /* the datagrams it is missing can still be retransmitted */
} um_flow_report;

typedef struct um_flow_receiver {
    uint64_t id;
    int64_t limit;    /* position + window */
    int64_t position; /* everything before it has been received */
    int64_t last_seen_ns;
    int64_t interval_ns;   /* announced time to its next report while the session is idle; 0: unspecified */
    int64_t owes_since_ns; /* data is unreported since then; UM_NEVER_NS: it has reported all data */
    uint32_t group_tag;
    um_address address;
    uint32_t sqn;          /* next sqn it reported */
    uint32_t widest_bytes; /* widest window reported at that sqn */
    int64_t held_since_ns; /* since when it has held back the sender without advancing; INT64_MIN: it does not */
    bool is_stalled;       /* does not count until it advances inside the transmission window */
} um_flow_receiver;

typedef struct um_flow_control {
    enum um_flow_control_policy policy;
    uint32_t group_tag;
    uint32_t group_minimum_size; /* receivers needed to be connected */
    int64_t receiver_timeout_ns;
    int64_t stall_timeout_ns;         /* 0: a receiver can hold the sender without a bound */
    bool publishes_without_receivers; /* while no receiver counts, nothing holds the sender */
    uint32_t local_receivers;         /* receivers that get the messages another way and have no limit */
    uint32_t receiver_count;
    um_flow_receiver receivers[UM_FLOW_RECEIVERS_MAX];
    uint64_t refused_count; /* status messages of receivers that the full table could not take */
} um_flow_control;

void um_flow_init(um_flow_control *flow, enum um_flow_control_policy policy, uint32_t group_tag,
                  uint32_t group_minimum_size, int64_t receiver_timeout_ns);

void um_flow_on_status(um_flow_control *flow, uint64_t receiver_id, uint32_t group_tag, int64_t limit, int64_t now_ns);
/* Returns true if a receiver is in the table. */
bool um_flow_is_known(um_flow_control *flow, uint64_t receiver_id);

void um_flow_on_leave(um_flow_control *flow, uint64_t receiver_id);

/* Notes the position of a known receiver, apart from its limit, which includes the window. */
void um_flow_note_position(um_flow_control *flow, uint64_t receiver_id, int64_t position);
/* Notes the announced time to a known receiver's next report, during which it may be quiet while the session is idle.
 */
void um_flow_note_interval(um_flow_control *flow, uint64_t receiver_id, int64_t interval_ns);
/* Notes that the session has sent data up to `position`; receivers that have not reported it owe a report within the
 * timeout. Returns true if a receiver announced an interval: the caller repeats this then. */
bool um_flow_note_sent(um_flow_control *flow, int64_t position, int64_t now_ns);
/* Notes the other fields of a report. A receiver advances when its sqn does, or when its window is wider than any it
 * reported at that sqn. A new receiver is stalled if its address has a stalled one. Returns true if a stalled receiver
 * has returned.
 */
bool um_flow_note_report(um_flow_control *flow, uint64_t receiver_id, const um_flow_report *report);

/* Returns the next receiver that has held a sender at `sender_limit` for the stall timeout, and stops counting it; NULL
 * if there is none. `is_held`: the sender has data and is at the limit. */
const um_flow_receiver *um_flow_next_stalled(um_flow_control *flow, int64_t sender_limit, bool is_held, int64_t now_ns);

/* The position that every counted receiver has reached; INT64_MAX without receivers. */
int64_t um_flow_reached(const um_flow_control *flow);

/* When a receiver times out unless it reports: the timeout after its announced interval, or after it owes a report. */
int64_t um_flow_expires_ns(const um_flow_control *flow, const um_flow_receiver *receiver);

/* Removes receivers that have timed out. Returns the earliest time at which the next one can time out. */
int64_t um_flow_expire(um_flow_control *flow, int64_t now_ns);

/* Number of known receivers that are not stalled. */
uint32_t um_flow_counted(const um_flow_control *flow);

/* Returns true if no receiver counts and the source publishes anyway, by its option or, unless tagged, for its local
 * receivers: the policy has no limit. */
bool um_flow_is_open(const um_flow_control *flow);

/* Returns true if enough receivers count for the policy, or it is open. */
bool um_flow_is_connected(const um_flow_control *flow);

/* The policy's current sender limit; meaningful only if connected and not open. */
int64_t um_flow_limit(const um_flow_control *flow);

#endif
