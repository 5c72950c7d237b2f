/* The authentication trailer of a datagram, what a receiver requires of it, and the window against replays
 * (docs/authentication.md). The tag itself is computed by ffi/authentication; the core only refers to a verifier.
 *
 * The trailer is the last 28 bytes of a datagram. They are an LBMC control message with an HMAC option, so that they
 * decode behind the messages of a DATA datagram; behind SM, NAK, NCF and topic resolution dissectors pass over them.
 *
 *     0   4  LBMC header: control, next header HMAC, length 28
 *     4   4  option header: no further header, length 24, flags "may be ignored", 0
 *     8   1  key identifier
 *     9   7  stamp: 34 bits of quarter seconds since 1970, 22 bits of count
 *    16  12  tag over everything before it
 *
 * A sender's stamps ascend strictly. The count goes on from datagram to datagram, so that a window of counts tells
 * datagrams that overtook one another from replayed ones; the time bounds how old a replayed datagram can be.
 *
 * Threads: any; an object has one user at a time. Memory: the caller's. Complexity: constant. Errors: um_tag_status.
 */
#ifndef UM_CORE_AUTHENTICATION_H
#define UM_CORE_AUTHENTICATION_H

#include "core/foundation/base.h"

enum {
    UM_TRAILER_BYTES = 28,
    UM_TRAILER_COVERED_BYTES = 16, /* of them the tag covers */
    UM_TAG_BYTES = 12,
    UM_STAMP_COUNT_BITS = 22,
    UM_STAMP_QUARTER_NS = 250000000,
};

enum um_authentication_scope {
    UM_AUTHENTICATE_NONE = 0,
    UM_AUTHENTICATE_CONTROL = 1, /* everything but DATA of a source */
    UM_AUTHENTICATE_ALL = 2,
};

enum um_tag_status {
    UM_TAG_OK = 0,
    UM_TAG_MISSING,     /* no trailer where one is required */
    UM_TAG_KEY_UNKNOWN, /* of a key that is not in use here */
    UM_TAG_WRONG,       /* changed on the way, or made without the key */
    UM_TAG_STALE,       /* its time is further from the receiver's clock than tolerated */
    UM_TAG_REPLAYED,    /* received before */
    UM_TAG_STATUS_COUNT,
};

typedef struct um_trailer {
    uint8_t key_id;
    uint64_t stamp;
    const uint8_t *tag;
} um_trailer;

/* Writes what precedes the tag: UM_TRAILER_COVERED_BYTES. */
void um_trailer_write(uint8_t *out, uint8_t key_id, uint64_t stamp);
/* The trailer of a datagram; false where it has none. */
bool um_trailer_read(const uint8_t *data, uint32_t length, um_trailer *trailer);

/* The stamp after `last`, at this time of the wall clock. It never descends, whatever the clock does. */
uint64_t um_stamp_next(uint64_t last, int64_t wall_ns);
/* Whether a stamp is no further from the wall clock than `tolerance_ns`, and the quarter second it is counted in. */
bool um_stamp_is_fresh(uint64_t stamp, int64_t wall_ns, int64_t tolerance_ns);

/* The newest stamp of each count modulo the window's size. A stamp is taken once: when it is newer than what its place
 * has. One that comes so late that its place has been taken by a later one counts as replayed. */
bool um_replay_window_take(uint64_t *places, uint32_t place_count_log2, uint64_t stamp);

/* What checks the datagrams of one origin. First member of every implementation. */
typedef struct um_verifier um_verifier;
struct um_verifier {
    /* Checks a datagram that came from `from`; on UM_TAG_OK *length is what precedes the trailer. */
    enum um_tag_status (*verify)(um_verifier *verifier, um_address from, const uint8_t *data, uint32_t *length,
                                 int64_t wall_ns);
};

/* Counts a datagram that was dropped; `missing`: the counter dgrams_dropped_tag_missing, which the others follow in the
 * order of um_tag_status. */
static inline void um_count_unverified(uint64_t *missing, enum um_tag_status status)
{
    UM_COUNT(missing[status - UM_TAG_MISSING], 1);
}

#define UM_TAG_COUNTERS_CHECK(counters)                                                                                \
    _Static_assert(offsetof(counters, dgrams_dropped_tag_replayed) - offsetof(counters, dgrams_dropped_tag_missing) == \
                       (UM_TAG_REPLAYED - UM_TAG_MISSING) * sizeof(uint64_t),                                          \
                   "one counter a reason, in the order of um_tag_status")

#endif
