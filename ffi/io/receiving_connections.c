#include "io/receiving_connections.h"

void um_receiving_on_connected(um_receiving *receiving, uint32_t index, int64_t now_ns)
{
    um_group *group = &receiving->groups[index];
    if (group->is_used && group->connection != NULL)
        um_tcp_connection_on_connected(group->connection, now_ns);
}

void um_receiving_on_control(um_receiving *receiving, uint32_t index, int64_t now_ns)
{
    um_group *group = &receiving->groups[index];
    if (group->is_used && group->ipc != NULL)
        um_ipc_connection_on_control(group->ipc, now_ns);
}

int64_t um_receiving_tick_connections(um_receiving *receiving, int64_t now_ns)
{
    int64_t next_ns = UM_NEVER_NS;
    for (uint32_t i = 0; i < receiving->group_limit && receiving->connection_count > 0; i++) {
        um_group *group = &receiving->groups[i];
        if (group->is_used && um_group_is_connection(group))
            next_ns = um_earliest_ns(next_ns, group->ipc ? um_ipc_connection_tick(group->ipc, now_ns)
                                                         : um_tcp_connection_tick(group->connection, now_ns));
    }
    return next_ns;
}

int um_receiving_resume_connections(um_receiving *receiving, int64_t now_ns)
{
    int handled = 0;
    for (uint32_t i = 0; i < receiving->group_limit && receiving->connection_count > 0; i++) {
        um_group *group = &receiving->groups[i];
        bool has_rest = group->connection != NULL && group->connection->has_rest;
        if (group->is_used && (has_rest || group->ipc != NULL))
            handled += um_receiving_receive_group(receiving, i, now_ns);
    }
    return handled;
}

bool um_receiving_arm(um_receiving *receiving)
{
    bool can_sleep = true;
    for (uint32_t i = 0; i < receiving->group_limit && receiving->ipc_count > 0; i++) {
        um_group *group = &receiving->groups[i];
        if (group->is_used && group->ipc != NULL)
            can_sleep &= um_ipc_connection_arm(group->ipc);
    }
    return can_sleep;
}
