#include "core/ipc/ipc_control.h"

um_ipc_control um_ipc_control_make(enum um_ipc_kind kind, uint32_t session_id)
{
    return (um_ipc_control){.magic = UM_IPC_MAGIC,
                            .kind = (uint16_t)kind,
                            .version_low = UM_IPC_VERSION_LOW,
                            .version_high = UM_IPC_VERSION_HIGH,
                            .session_id = session_id};
}

bool um_ipc_control_decode(const uint8_t *data, size_t length, um_ipc_control *message)
{
    if (length != sizeof *message)
        return false;
    memcpy(message, data, sizeof *message);
    return message->magic == UM_IPC_MAGIC && message->kind >= UM_IPC_HELLO && message->kind <= UM_IPC_TOPIC &&
           message->version_low != 0 && message->version_low <= message->version_high &&
           message->reason <= UM_IPC_REASON_KEY && message->is_source_paced <= 1 && message->is_wanted <= 1;
}

uint16_t um_ipc_common_version(const um_ipc_control *peer, bool can_share)
{
    uint16_t own = um_ipc_highest_version(can_share), high = peer->version_high < own ? peer->version_high : own;
    return high >= UM_IPC_VERSION_LOW && high >= peer->version_low ? high : 0;
}

/* Compares all bits of the keys at once, so that the time a refusal takes does not depend on how many agree. */
static bool has_key(const um_ipc_control *hello, uint16_t version, uint64_t key)
{
    return version >= UM_IPC_VERSION_KEYS && (hello->key ^ key) == 0;
}

enum um_ipc_reason um_ipc_judge_hello(const um_ipc_control *hello, uint16_t version, uint32_t session_id, uint64_t key,
                                      uint32_t receiver_count, uint32_t receivers_max)
{
    if (version == 0)
        return UM_IPC_REASON_VERSION;
    if (hello->session_id != session_id)
        return UM_IPC_REASON_SESSION;
    if (key != 0 && !has_key(hello, version, key))
        return UM_IPC_REASON_KEY;
    return receiver_count >= receivers_max ? UM_IPC_REASON_FULL : UM_IPC_REASON_NONE;
}
