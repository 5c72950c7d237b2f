#include "core/receiver/fetch_runs.h"

#include "core/wire/lbmc.h"
#include "core/wire/range_request.h"

enum { RANGE_INDEX_AT = 16 };

/* Stores the topic's key. Returns false if it is not an answer. */
static bool read_key(const uint8_t *message, uint32_t length, uint32_t *topic_key)
{
    if (message[0] == UM_LBMC_RECOVERED && length >= UM_LBMC_HEADER_BYTES)
        *topic_key = um_fetch_topic_key(um_load_be32(message + 4));
    else if (message[0] == UM_LBMC_CONTROL && message[1] == UM_LBMC_OPTION_RANGE && length >= UM_RECOVERY_RANGE_BYTES)
        *topic_key = um_load_be32(message + RANGE_INDEX_AT) >> 1;
    else
        return false;
    return true;
}

int64_t um_fetch_next_run(const uint8_t *data, uint32_t length, bool all, uint32_t *topic_key)
{
    uint32_t at = 0;
    while (length - at >= UM_LBMC_CONTROL_BYTES) {
        uint32_t message_length = um_load_be16(data + at + 2), key;
        if (message_length > length - at)
            break;
        if (!read_key(data + at, message_length, &key))
            return at > 0 ? (int64_t)at : -EBADMSG;
        if (at == 0)
            *topic_key = key;
        else if (!all && key != *topic_key)
            break;
        at += message_length;
    }
    return at;
}
