#include "core/source/flow_control.h"

bool um_flow_is_allowed(const um_network *networks, uint32_t count, um_ip ip)
{
    for (uint32_t i = 0; i < count; i++)
        if (um_ip_is_in(ip, networks[i].ip, networks[i].mask))
            return true;
    return count == 0;
}

void um_flow_init(um_flow_control *flow, enum um_flow_control_policy policy, uint32_t group_tag,
                  uint32_t group_minimum_size, int64_t receiver_timeout_ns)
{
    memset(flow, 0, sizeof *flow);
    flow->policy = policy;
    flow->group_tag = group_tag;
    flow->group_minimum_size = group_minimum_size ? group_minimum_size : 1;
    flow->receiver_timeout_ns = receiver_timeout_ns;
}

static um_flow_receiver *find(um_flow_control *flow, uint64_t id)
{
    for (uint32_t i = 0; i < flow->receiver_count; i++)
        if (flow->receivers[i].id == id)
            return &flow->receivers[i];
    return NULL;
}

bool um_flow_is_known(um_flow_control *flow, uint64_t receiver_id)
{
    return find(flow, receiver_id) != NULL;
}

static void remove_receiver(um_flow_control *flow, um_flow_receiver *receiver)
{
    *receiver = flow->receivers[--flow->receiver_count];
}

void um_flow_on_status(um_flow_control *flow, uint64_t receiver_id, uint32_t group_tag, int64_t limit, int64_t now_ns)
{
    um_flow_receiver *receiver = find(flow, receiver_id);
    if (receiver == NULL) {
        if (flow->receiver_count == UM_FLOW_RECEIVERS_MAX) {
            UM_COUNT(flow->refused_count, 1);
            return;
        }
        receiver = &flow->receivers[flow->receiver_count++];
        *receiver = (um_flow_receiver){.id = receiver_id, .limit = limit, .held_since_ns = INT64_MIN};
    }
    receiver->group_tag = group_tag;
    receiver->last_seen_ns = now_ns;
    receiver->owes_since_ns = UM_NEVER_NS;
    /* A late or reordered status message must not revoke what was granted (AE-19). */
    if (limit > receiver->limit)
        receiver->limit = limit;
}

void um_flow_on_leave(um_flow_control *flow, uint64_t receiver_id)
{
    um_flow_receiver *receiver = find(flow, receiver_id);
    if (receiver != NULL)
        remove_receiver(flow, receiver);
}

void um_flow_note_position(um_flow_control *flow, uint64_t receiver_id, int64_t position)
{
    um_flow_receiver *receiver = find(flow, receiver_id);
    if (receiver != NULL && position > receiver->position)
        receiver->position = position;
}

void um_flow_note_interval(um_flow_control *flow, uint64_t receiver_id, int64_t interval_ns)
{
    um_flow_receiver *receiver = find(flow, receiver_id);
    if (receiver != NULL)
        receiver->interval_ns = interval_ns;
}

bool um_flow_note_sent(um_flow_control *flow, int64_t position, int64_t now_ns)
{
    bool has_interval = false;
    for (uint32_t i = 0; i < flow->receiver_count; i++) {
        um_flow_receiver *receiver = &flow->receivers[i];
        has_interval |= receiver->interval_ns > 0;
        if (receiver->position < position && receiver->owes_since_ns == UM_NEVER_NS)
            receiver->owes_since_ns = now_ns;
    }
    return has_interval;
}

int64_t um_flow_expires_ns(const um_flow_control *flow, const um_flow_receiver *receiver)
{
    int64_t quiet_until_ns = receiver->last_seen_ns + receiver->interval_ns;
    return um_earliest_ns(quiet_until_ns, receiver->owes_since_ns) + flow->receiver_timeout_ns;
}

static bool has_stalled(const um_flow_control *flow, um_ip ip)
{
    for (uint32_t i = 0; i < flow->receiver_count; i++)
        if (flow->receivers[i].is_stalled && um_ip_equal(flow->receivers[i].address.ip, ip))
            return true;
    return false;
}

bool um_flow_note_report(um_flow_control *flow, uint64_t receiver_id, const um_flow_report *report)
{
    um_flow_receiver *receiver = find(flow, receiver_id);
    if (receiver == NULL)
        return false;
    bool is_new = !um_ip_is_set(receiver->address.ip);
    if (is_new) {
        receiver->is_stalled = has_stalled(flow, report->address.ip);
        receiver->sqn = report->sqn;
        receiver->widest_bytes = report->window_bytes;
    }
    receiver->address = report->address;
    bool has_moved = um_serial_before(receiver->sqn, report->sqn);
    if (has_moved || report->window_bytes > receiver->widest_bytes) {
        receiver->held_since_ns = INT64_MIN;
        receiver->widest_bytes = report->window_bytes;
    }
    receiver->sqn = has_moved ? report->sqn : receiver->sqn;
    bool has_returned = receiver->is_stalled && has_moved && report->is_in_window;
    receiver->is_stalled &= !has_returned;
    return has_returned;
}

int64_t um_flow_expire(um_flow_control *flow, int64_t now_ns)
{
    int64_t next_ns = UM_NEVER_NS;
    for (uint32_t i = flow->receiver_count; i-- > 0;) {
        int64_t due_ns = um_flow_expires_ns(flow, &flow->receivers[i]);
        if (due_ns <= now_ns)
            remove_receiver(flow, &flow->receivers[i]);
        else if (due_ns < next_ns)
            next_ns = due_ns;
    }
    return next_ns;
}

static bool is_counted(const um_flow_control *flow, const um_flow_receiver *receiver)
{
    return !receiver->is_stalled && (flow->policy != UM_FLOW_TAGGED || receiver->group_tag == flow->group_tag);
}

const um_flow_receiver *um_flow_next_stalled(um_flow_control *flow, int64_t sender_limit, bool is_held, int64_t now_ns)
{
    for (uint32_t i = 0; i < flow->receiver_count && flow->stall_timeout_ns != 0; i++) {
        um_flow_receiver *receiver = &flow->receivers[i];
        if (!is_held || !is_counted(flow, receiver) || receiver->limit > sender_limit) {
            receiver->held_since_ns = INT64_MIN;
        } else if (receiver->held_since_ns == INT64_MIN) {
            receiver->held_since_ns = now_ns;
        } else if (now_ns - receiver->held_since_ns >= flow->stall_timeout_ns) {
            receiver->is_stalled = true;
            return receiver;
        }
    }
    return NULL;
}

uint32_t um_flow_counted(const um_flow_control *flow)
{
    uint32_t counted = 0;
    for (uint32_t i = 0; i < flow->receiver_count; i++)
        counted += !flow->receivers[i].is_stalled;
    return counted;
}

static uint32_t count_members(const um_flow_control *flow)
{
    uint32_t members = 0;
    for (uint32_t i = 0; i < flow->receiver_count; i++)
        members += is_counted(flow, &flow->receivers[i]);
    return members;
}

bool um_flow_is_open(const um_flow_control *flow)
{
    bool has_local = flow->local_receivers > 0 && flow->policy != UM_FLOW_TAGGED;
    return flow->policy != UM_FLOW_NONE && (flow->publishes_without_receivers || has_local) && count_members(flow) == 0;
}

bool um_flow_is_connected(const um_flow_control *flow)
{
    return flow->policy == UM_FLOW_NONE || count_members(flow) >= flow->group_minimum_size || um_flow_is_open(flow);
}

int64_t um_flow_limit(const um_flow_control *flow)
{
    if (flow->policy == UM_FLOW_NONE)
        return INT64_MAX;
    int64_t limit = flow->policy == UM_FLOW_MAX ? INT64_MIN : INT64_MAX;
    for (uint32_t i = 0; i < flow->receiver_count; i++) {
        const um_flow_receiver *receiver = &flow->receivers[i];
        if (!is_counted(flow, receiver))
            continue;
        bool is_new_limit = flow->policy == UM_FLOW_MAX ? receiver->limit > limit : receiver->limit < limit;
        limit = is_new_limit ? receiver->limit : limit;
    }
    return limit;
}

int64_t um_flow_reached(const um_flow_control *flow)
{
    int64_t reached = INT64_MAX;
    for (uint32_t i = 0; i < flow->receiver_count; i++)
        if (is_counted(flow, &flow->receivers[i]) && flow->receivers[i].position < reached)
            reached = flow->receivers[i].position;
    return reached;
}
