#include "core/wire/range_request.h"

enum {
    OPTION_RANGE_REQUEST = 78,
    OPTION_EXTENDED = 254,
    EXTENDED_ID = 85,
    EXTENDED_SUBTYPE = 2,
    EXTENDED_FLAGS = 0xc0,
    REQUEST_BYTES = 36,
    EXTENDED_BYTES = 24,
    HAS_LOW = 1,
    HAS_COUNT = 2,
    HAS_OUTSTANDING = 4,
    NS_PER_MS = 1000000,
};

_Static_assert((int)UM_RANGE_REQUEST_BYTES_MAX >= (int)UM_LBMC_CONTROL_BYTES + REQUEST_BYTES + EXTENDED_BYTES, "both");

/* A longer age counts as no bound. */
static const uint64_t AGE_MS_MAX = (uint64_t)INT64_MAX / 2 / NS_PER_MS;

static void write_extended(uint8_t *option, const um_range_bounds *bounds)
{
    int64_t age_ms = bounds->age_ns / NS_PER_MS;
    memset(option, 0, EXTENDED_BYTES);
    option[0] = UM_LBMC_OPTION_NONE;
    option[1] = EXTENDED_BYTES;
    option[2] = EXTENDED_FLAGS;
    option[3] = EXTENDED_ID;
    um_store_be16(option + 4, EXTENDED_SUBTYPE);
    um_store_be64(option + 8, bounds->has_bytes ? bounds->bytes : 0);
    um_store_be64(option + 16, !bounds->has_age ? 0 : age_ms < 1 ? 1 : (uint64_t)age_ms);
}

uint32_t um_range_request_write(uint8_t *out, const um_range_request *request)
{
    const um_range_bounds *bounds = &request->bounds;
    bool is_extended = bounds->has_bytes || bounds->has_age;
    uint32_t length = UM_LBMC_CONTROL_BYTES + REQUEST_BYTES + (is_extended ? EXTENDED_BYTES : 0);
    uint8_t *option = out + UM_LBMC_CONTROL_BYTES;
    memset(out, 0, length);
    out[0] = UM_LBMC_CONTROL;
    out[1] = OPTION_RANGE_REQUEST;
    um_store_be16(out + 2, (uint16_t)length);
    option[0] = is_extended ? OPTION_EXTENDED : UM_LBMC_OPTION_NONE;
    option[1] = REQUEST_BYTES;
    um_store_be16(option + 2, (uint16_t)(HAS_OUTSTANDING | (bounds->has_low_sqn ? HAS_LOW : 0) |
                                         (bounds->has_count ? HAS_COUNT : 0)));
    um_store_be32(option + 4, request->request_index);
    um_store_be32(option + 12, request->topic_index);
    um_store_be32(option + 24, bounds->has_low_sqn ? bounds->low_sqn : 0);
    um_store_be32(option + 28, bounds->has_count ? bounds->count : 0);
    um_store_be32(option + 32, request->outstanding_max);
    if (is_extended)
        write_extended(option + REQUEST_BYTES, bounds);
    return length;
}

/* Ignores extended options with another subtype. */
static void read_extended(const uint8_t *option, um_range_bounds *bounds)
{
    if (um_load_be16(option + 4) != EXTENDED_SUBTYPE)
        return;
    uint64_t age_ms = um_load_be64(option + 16);
    bounds->bytes = um_load_be64(option + 8);
    bounds->has_bytes = bounds->bytes != 0;
    bounds->has_age = age_ms != 0 && age_ms <= AGE_MS_MAX;
    bounds->age_ns = bounds->has_age ? (int64_t)age_ms * NS_PER_MS : 0;
}

bool um_range_request_read(const uint8_t *message, uint32_t length, um_range_request *request)
{
    uint32_t end = UM_LBMC_CONTROL_BYTES + REQUEST_BYTES;
    const uint8_t *option = message + UM_LBMC_CONTROL_BYTES;
    if (length < end || message[0] != UM_LBMC_CONTROL || message[1] != OPTION_RANGE_REQUEST ||
        um_load_be16(message + 2) != length || option[1] != REQUEST_BYTES)
        return false;
    bool is_extended = option[0] == OPTION_EXTENDED && length == end + EXTENDED_BYTES;
    if (!is_extended && (option[0] != UM_LBMC_OPTION_NONE || length != end))
        return false;
    uint16_t flags = um_load_be16(option + 2);
    *request = (um_range_request){.topic_index = um_load_be32(option + 12),
                                  .request_index = um_load_be32(option + 4),
                                  .outstanding_max = um_load_be32(option + 32),
                                  .bounds = {.has_low_sqn = flags & HAS_LOW,
                                             .has_count = flags & HAS_COUNT,
                                             .low_sqn = um_load_be32(option + 24),
                                             .count = um_load_be32(option + 28)}};
    if (is_extended)
        read_extended(message + end, &request->bounds);
    return true;
}

uint32_t um_recovery_write_range(uint8_t *out, uint32_t low, uint32_t high, uint32_t request_index)
{
    out[0] = UM_LBMC_CONTROL;
    out[1] = UM_LBMC_OPTION_RANGE;
    um_store_be16(out + 2, UM_RECOVERY_RANGE_BYTES);
    out[4] = UM_LBMC_OPTION_NONE;
    out[5] = UM_RECOVERY_RANGE_BYTES - UM_LBMC_CONTROL_BYTES;
    um_store_be16(out + 6, 0);
    um_store_be32(out + 8, low);
    um_store_be32(out + 12, high);
    um_store_be32(out + 16, request_index);
    return UM_RECOVERY_RANGE_BYTES;
}
