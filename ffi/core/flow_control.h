/* Flow control of a source session (AE-9, AE-16..AE-23, AE-44): from the receivers' status messages to the
 * sender limit. Policies: none (UM's source-paced way: no limit but the rate), min (the slowest receiver), max
 * (the fastest), tagged (the slowest of those that carry the group's tag). The table of receivers is bounded;
 * a receiver that has been idle for the timeout stops counting. Conductor thread only.
 */
#ifndef UM_CORE_FLOW_CONTROL_H
#define UM_CORE_FLOW_CONTROL_H

#include "core/base.h"

enum um_flow_control_policy { UM_FLOW_NONE = 0, UM_FLOW_MIN = 1, UM_FLOW_MAX = 2, UM_FLOW_TAGGED = 3 };

enum { UM_FLOW_RECEIVERS_MAX = 256 };

typedef struct um_flow_receiver {
    uint64_t id;
    int64_t limit;    /* position + window */
    int64_t position; /* everything before it has been received */
    int64_t last_seen_ns;
    uint32_t group_tag;
} um_flow_receiver;

typedef struct um_flow_control {
    enum um_flow_control_policy policy;
    uint32_t group_tag;
    uint32_t group_minimum_size; /* tagged: receivers needed to be connected */
    int64_t receiver_timeout_ns;
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
/* The position every counted receiver has reached; INT64_MAX when there is none. */
int64_t um_flow_reached(const um_flow_control *flow);

/* Removes receivers that have timed out. Returns the earliest time at which that can happen next. */
int64_t um_flow_expire(um_flow_control *flow, int64_t now_ns);

bool um_flow_connected(const um_flow_control *flow);

/* The sender limit of the policy now; only meaningful when connected. */
int64_t um_flow_limit(const um_flow_control *flow);

#endif
