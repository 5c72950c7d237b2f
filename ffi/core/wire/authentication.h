/* The authentication trailer of a datagram, the checks of its stamp, and the replay window (docs/authentication.md).
 * ffi/authentication computes the tag; the core only refers to a verifier.
 *
 * The trailer is the last 28 bytes of a datagram: an LBMC control message with an HMAC option. In a DATA datagram it
 * decodes as the last message; after SM, NAK, NCF and topic resolution dissectors ignore it.
 *
 *     0   4  LBMC header: control, next header HMAC, length 28
 *     4   3  option header: no further header, length 24, flags "may be ignored"
 *     7   1  1: payloads are encrypted, 0: not
 *     8   1  key identifier
 *     9   7  stamp: 34 bits of quarter seconds since 1970, 22 bits of count
 *    16  12  tag over everything before it
 *
 * The count increases with each datagram, so a window of counts distinguishes reordered datagrams from replayed ones;
 * the time bounds how old a replayed datagram can be. A session's stamps ascend strictly, because they are nonces: a
 * session whose clock was set back begins another one. Other senders' stamps follow their clock in both directions.
 *
 * Threads: any; an object has one user at a time. Memory: the caller's. Complexity: constant. Errors: um_tag_status.
 */
#ifndef UM_CORE_AUTHENTICATION_H
#define UM_CORE_AUTHENTICATION_H

#include "core/foundation/address.h"

enum {
    UM_TRAILER_BYTES = 28,
    UM_TRAILER_COVERED_BYTES = 16, /* bytes of the trailer that the tag covers */
    UM_TAG_BYTES = 12,
    UM_STAMP_COUNT_BITS = 22,
    UM_STAMP_QUARTER_NS = 250000000,
};

enum um_authentication_scope {
    UM_AUTHENTICATE_NONE = 0,
    UM_AUTHENTICATE_CONTROL = 1, /* all datagrams except a source's DATA */
    UM_AUTHENTICATE_ALL = 2,
};

enum um_tag_status {
    UM_TAG_OK = 0,
    UM_TAG_MISSING,     /* no trailer where one is required */
    UM_TAG_KEY_UNKNOWN, /* made with a key that is not in use here */
    UM_TAG_WRONG,       /* the datagram was changed in transit, or the tag was made without the key */
    UM_TAG_STALE,       /* its time differs from the receiver's clock by more than the tolerance */
    UM_TAG_REPLAYED,    /* received before */
    UM_TAG_ENCRYPTION,  /* encrypted where this host does not encrypt, or the other way round */
    UM_TAG_STATUS_COUNT,
};

typedef struct um_trailer {
    uint8_t key_id;
    uint64_t stamp;
    bool is_encrypted; /* the payloads of the datagram are */
    const uint8_t *tag;
} um_trailer;

/* Writes the bytes before the tag: UM_TRAILER_COVERED_BYTES. */
void um_trailer_write(uint8_t *out, uint8_t key_id, uint64_t stamp);
/* Marks a written trailer as that of a datagram with encrypted payloads. */
void um_trailer_mark_encrypted(uint8_t *trailer);
/* Reads the trailer of a datagram. Returns false if it has none. */
bool um_trailer_read(const uint8_t *data, uint32_t length, um_trailer *trailer);

/* Returns a session's stamp after `last` at this wall-clock time. Stamps ascend even if the clock is set back. */
uint64_t um_stamp_next(uint64_t last, int64_t wall_ns);
/* Returns any other sender's stamp after `last`: only its count ascends, and its time is the clock's. */
uint64_t um_stamp_follow(uint64_t last, int64_t wall_ns);
/* Returns how far a stamp is ahead of the wall clock, at least 0. */
int64_t um_stamp_ahead_ns(uint64_t stamp, int64_t wall_ns);
/* Returns true if a stamp differs from the wall clock by at most `tolerance_ns`, rounded to quarter seconds. */
bool um_stamp_is_fresh(uint64_t stamp, int64_t wall_ns, int64_t tolerance_ns);

/* Accepts each stamp once. The window holds the newest stamp of each count modulo its size; a stamp is accepted if it
 * is newer than the one in its place. A stamp so late that a newer one has its place counts as replayed. */
bool um_replay_window_take(uint64_t *places, uint32_t place_count_log2, uint64_t stamp);

/* The stamps accepted from a sender whose clock may be set back: the window is one of counts. */
typedef struct um_sender_window {
    uint64_t newest; /* the newest stamp by time; 0: none */
    uint64_t last;   /* the stamp whose count is furthest */
    uint64_t seen;   /* bit n: the count n before that of `last` was accepted */
    uint64_t floor;  /* stamps up to this one may have been accepted before the last restart */
} um_sender_window;

enum {
    UM_SENDER_WINDOW_COUNTS = 64,
    UM_SENDER_LEAD_MAX = 256, /* datagrams lost in a row while the clock was set back */
};

/* Accepts each stamp once: if its count continues the sender's, whatever its time, or, after a restart of the sender,
 * if it is newer than every stamp before. */
bool um_sender_window_take(um_sender_window *window, uint64_t stamp);

/* Checks the datagrams of one sender. First member of every implementation. */
typedef struct um_verifier um_verifier;
struct um_verifier {
    /* Checks a datagram from `from`; on UM_TAG_OK *length is set to the bytes before the trailer. Encrypted payloads
     * are decrypted in place: links receive into memory of their own, whatever the pointer's type. */
    enum um_tag_status (*verify)(um_verifier *verifier, um_address from, const uint8_t *data, uint32_t *length,
                                 int64_t wall_ns);
};

/* Counts a dropped datagram. `missing`: the counter dgrams_dropped_tag_missing, which the others follow in the order of
 * um_tag_status. */
static inline void um_count_unverified(uint64_t *missing, enum um_tag_status status)
{
    UM_COUNT(missing[status - UM_TAG_MISSING], 1);
}

#define UM_TAG_COUNTERS_CHECK(counters)                                                                                \
    _Static_assert(offsetof(counters, dgrams_dropped_tag_encryption) -                                                 \
                           offsetof(counters, dgrams_dropped_tag_missing) ==                                           \
                       (UM_TAG_ENCRYPTION - UM_TAG_MISSING) * sizeof(uint64_t),                                        \
                   "one counter per reason, in the order of um_tag_status")

#endif
