/* Flow control of a source session (AE-9, AE-16..AE-23, AE-44): from the receivers' status messages to the
 * sender limit. Policies: none (UM's source-paced way: no limit but the rate), min (the slowest receiver), max
 * (the fastest), tagged (the slowest of those that carry the group's tag). The table of receivers is bounded;
 * a receiver that has been idle for the timeout stops counting. Conductor thread only.
 */
#ifndef UM_CORE_FLOW_CONTROL_H
#define UM_CORE_FLOW_CONTROL_H

#include "core/foundation/base.h"

enum um_flow_control_policy { UM_FLOW_NONE = 0, UM_FLOW_MIN = 1, UM_FLOW_MAX = 2, UM_FLOW_TAGGED = 3 };

enum { UM_FLOW_RECEIVERS_MAX = 256, UM_FLOW_NETWORKS_MAX = 16 };

/* An IPv4 network, in host byte order. */
typedef struct um_network {
    uint32_t ip;
    uint32_t mask;
} um_network;

/* Returns true if a receiver at this address may count (flow_control_receivers_allowed): one of the networks contains
 * it, or there are no networks. */
bool um_flow_is_allowed(const um_network *networks, uint32_t count, uint32_t ip);

/* What a status message says of its sender beside the limit. */
typedef struct um_flow_report {
    um_address address;
    uint32_t sqn;
    uint32_t window_bytes;
    bool is_in_window; /* what it lacks can still be retransmitted */
} um_flow_report;

typedef struct um_flow_receiver {
    uint64_t id;
    int64_t limit;    /* position + window */
    int64_t position; /* everything before it has been received */
    int64_t last_seen_ns;
    uint32_t group_tag;
    um_address address;
    uint32_t sqn;          /* as it reports */
    uint32_t widest_bytes; /* widest window reported at that sqn */
    int64_t held_since_ns; /* it holds the sender and does not advance; INT64_MIN: it does not */
    bool is_stalled;       /* it does not count until it advances inside the transmission window */
} um_flow_receiver;

typedef struct um_flow_control {
    enum um_flow_control_policy policy;
    uint32_t group_tag;
    uint32_t group_minimum_size; /* tagged: receivers needed to be connected */
    int64_t receiver_timeout_ns;
    int64_t stall_timeout_ns; /* 0: a receiver may hold the sender without a bound */
    uint32_t receiver_count;
    um_flow_receiver receivers[UM_FLOW_RECEIVERS_MAX];
    uint64_t refused_count; /* status messages of receivers the full table could not take */
} um_flow_control;

void um_flow_init(um_flow_control *flow, enum um_flow_control_policy policy, uint32_t group_tag,
                  uint32_t group_minimum_size, int64_t receiver_timeout_ns);

void um_flow_on_status(um_flow_control *flow, uint64_t receiver_id, uint32_t group_tag, int64_t limit, int64_t now_ns);
void um_flow_on_leave(um_flow_control *flow, uint64_t receiver_id);

/* Notes how far a known receiver has come; kept apart from the limit, which includes its window. */
void um_flow_note_position(um_flow_control *flow, uint64_t receiver_id, int64_t position);
/* Notes what else it said. A receiver advances when its sqn does, or when its window is wider than any it reported at
 * that sqn. A new receiver of an address that has a stalled one is stalled, too. True when a stalled one has returned.
 */
bool um_flow_note_report(um_flow_control *flow, uint64_t receiver_id, const um_flow_report *report);

/* The next receiver that has held a sender at `sender_limit` for the stall timeout: it does not count any more. NULL:
 * none. `is_held`: the sender has data and stands at the limit. */
const um_flow_receiver *um_flow_next_stalled(um_flow_control *flow, int64_t sender_limit, bool is_held, int64_t now_ns);

/* The position every counted receiver has reached; INT64_MAX when there is none. */
int64_t um_flow_reached(const um_flow_control *flow);

/* Removes receivers that have timed out. Returns the earliest time at which that can happen next. */
int64_t um_flow_expire(um_flow_control *flow, int64_t now_ns);

/* Receivers known and not stalled. */
uint32_t um_flow_counted(const um_flow_control *flow);

bool um_flow_is_connected(const um_flow_control *flow);

/* The sender limit of the policy now; only meaningful when connected. */
int64_t um_flow_limit(const um_flow_control *flow);

#endif
