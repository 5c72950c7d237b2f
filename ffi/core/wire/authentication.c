#include "core/wire/authentication.h"

#include "core/wire/lbmc.h"

enum {
    CONTROL_BYTES = 4,
    OPTION_BYTES = UM_TRAILER_BYTES - CONTROL_BYTES,
    IGNORE_FLAG = 0x80,
    HEAD_BYTES = 7,
    ENCRYPTED_AT = HEAD_BYTES,
    WORD_AT = 8,
};

static const uint8_t HEAD[HEAD_BYTES] = {UM_LBMC_CONTROL,     UM_LBMC_OPTION_HMAC, 0,          UM_TRAILER_BYTES,
                                         UM_LBMC_OPTION_NONE, OPTION_BYTES,        IGNORE_FLAG};

#define STAMP_MASK (((uint64_t)1 << 56) - 1)
#define COUNT_MASK (((uint64_t)1 << UM_STAMP_COUNT_BITS) - 1)

void um_trailer_write(uint8_t *out, uint8_t key_id, uint64_t stamp)
{
    memcpy(out, HEAD, HEAD_BYTES);
    out[ENCRYPTED_AT] = 0;
    um_store_be64(out + WORD_AT, (uint64_t)key_id << 56 | (stamp & STAMP_MASK));
}

void um_trailer_mark_encrypted(uint8_t *trailer)
{
    trailer[ENCRYPTED_AT] = 1;
}

bool um_trailer_read(const uint8_t *data, uint32_t length, um_trailer *trailer)
{
    if (length < UM_TRAILER_BYTES)
        return false;
    const uint8_t *at = data + length - UM_TRAILER_BYTES;
    if (memcmp(at, HEAD, HEAD_BYTES) != 0 || at[ENCRYPTED_AT] > 1)
        return false;
    uint64_t word = um_load_be64(at + WORD_AT);
    *trailer =
        (um_trailer){(uint8_t)(word >> 56), word & STAMP_MASK, at[ENCRYPTED_AT] == 1, at + UM_TRAILER_COVERED_BYTES};
    return true;
}

static uint64_t quarter_of(int64_t wall_ns)
{
    return (uint64_t)(wall_ns > 0 ? wall_ns : 0) / UM_STAMP_QUARTER_NS;
}

/* If the count wraps within a quarter second, the carry advances the time. */
uint64_t um_stamp_next(uint64_t last, int64_t wall_ns)
{
    uint64_t next = last + 1, quarter = quarter_of(wall_ns);
    return next >> UM_STAMP_COUNT_BITS < quarter ? quarter << UM_STAMP_COUNT_BITS | (next & COUNT_MASK) : next;
}

uint64_t um_stamp_follow(uint64_t last, int64_t wall_ns)
{
    return (quarter_of(wall_ns) << UM_STAMP_COUNT_BITS | ((last + 1) & COUNT_MASK)) & STAMP_MASK;
}

int64_t um_stamp_ahead_ns(uint64_t stamp, int64_t wall_ns)
{
    uint64_t then = stamp >> UM_STAMP_COUNT_BITS, now = quarter_of(wall_ns);
    return then > now ? (int64_t)(then - now) * UM_STAMP_QUARTER_NS : 0;
}

bool um_stamp_is_fresh(uint64_t stamp, int64_t wall_ns, int64_t tolerance_ns)
{
    uint64_t then = stamp >> UM_STAMP_COUNT_BITS, now = quarter_of(wall_ns);
    uint64_t apart = then > now ? then - now : now - then;
    return apart <= (uint64_t)tolerance_ns / UM_STAMP_QUARTER_NS;
}

bool um_replay_window_take(uint64_t *places, uint32_t place_count_log2, uint64_t stamp)
{
    uint64_t *place = &places[stamp & (((uint64_t)1 << place_count_log2) - 1)];
    if (stamp <= *place)
        return false;
    *place = stamp;
    return true;
}

bool um_sender_window_take(um_sender_window *window, uint64_t stamp)
{
    uint64_t ahead = (stamp - window->last) & COUNT_MASK, behind = (window->last - stamp) & COUNT_MASK;
    bool is_restart = stamp > window->newest;
    if (window->newest != 0 && behind < UM_SENDER_WINDOW_COUNTS) {
        if ((window->seen >> behind & 1) != 0 || stamp <= window->floor)
            return false;
        window->seen |= (uint64_t)1 << behind;
    } else if (window->newest != 0 && ahead - 1 < UM_SENDER_LEAD_MAX) {
        window->seen = ahead < UM_SENDER_WINDOW_COUNTS ? window->seen << ahead | 1 : 1;
        window->last = stamp;
    } else if (is_restart) {
        window->floor = window->newest > window->floor ? window->newest : window->floor;
        window->seen = 1;
        window->last = stamp;
    } else {
        return false;
    }
    window->newest = is_restart ? stamp : window->newest;
    return true;
}
