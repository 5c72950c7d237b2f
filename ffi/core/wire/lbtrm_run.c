#include "core/wire/lbtrm_run.h"

#include "core/wire/lbmc.h"
#include "core/wire/lbtrm.h"

static bool is_same_header(const uint8_t *data, uint32_t at)
{
    return memcmp(data, data + at, UM_LBTRM_HEADER_BYTES) == 0; /* type, source port and session id */
}

uint32_t um_lbtrm_run_segment(const uint8_t *data, uint32_t captured)
{
    um_packet first;
    if (um_lbtrm_decode(data, captured, &first) != UM_DGRAM_OK || first.type != UM_LBTRM_DATA)
        return 0;
    uint32_t at = UM_LBTRM_DATA_BYTES;
    while (captured - at > UM_LBTRM_DATA_BYTES) {
        um_lbmc_message message;
        uint32_t message_bytes;
        if (at > UM_LBTRM_DATA_BYTES && is_same_header(data, at))
            return at;
        if (um_lbmc_decode(data + at, captured - at, &message, &message_bytes) != UM_DGRAM_OK)
            return 0;
        at += message_bytes;
    }
    return 0;
}
