/* The publication log: the send side of a transport session (W3; AE-1..AE-6, AE-22..AE-37, AE-45..AE-49).
 *
 *   three terms of term_length bytes each, used in rotation; a position counts bytes from 0 forever
 *
 *   |--- dirty ---|------- transmission window -------|-- to be sent --|-- claimed --|---- zeroed ----|
 *             clean_position                   sender's position     tail            writable end
 *
 * A frame holds one LBMC message, padded to whole cache lines, behind space for the header that LBT-RM puts in front of
 * a datagram's messages: a frame that makes up a datagram on its own is sent in place. A table beside the terms has one
 * word for each line; the word of a frame's first line holds the kind of the frame and its length, which is negative
 * from the claim until the commit (AE-27) and zero where nothing was written. Both change in one store, so unblocking
 * and a late commit cannot each get half of it. Only a frame of positive length may be read (AE-28). Because the words
 * are apart, only they must be zeroed before space is used again (AE-45): no bytes in the terms can be mistaken for a
 * length, and a publisher of large messages writes each line of memory once, with non-temporal stores, instead of
 * twice.
 *
 * Threads: any number of publishers claim, commit and abort without a lock. One thread at a time is the conductor (the
 * holder of the session's sender lock): it reads frames, moves the limit, cleans and unblocks.
 *
 * Memory order: a claim is an acquire-release compare-and-set of the tail, so at most one claim straddles the
 * publication limit. A commit is a release store of the frame's word, paired with the reader's acquire load, so a
 * committed frame is read whole. The writable end is stored with release after the cleaning that it announces, and
 * loaded with acquire by publishers.
 */
#ifndef UM_CORE_PUBLICATION_LOG_H
#define UM_CORE_PUBLICATION_LOG_H

#include "core/foundation/base.h"

enum {
    UM_LOG_TERM_COUNT = 3,
    UM_FRAME_HEADER_BYTES = 20, /* space for the transport header */
    UM_FRAME_ALIGNMENT = UM_CACHE_LINE_BYTES,
    UM_FRAME_LENGTH_MAX = (1 << 29) - UM_FRAME_ALIGNMENT, /* limit for padding; other frames are far shorter */
    UM_LOG_TERM_BYTES_MIN = 64 * 1024,
    UM_LOG_TERM_BYTES_MAX = 1 << 30,
    UM_LOG_CLEAN_AHEAD_BYTES = 128 * 1024, /* cleaned ahead of publishers: still in the caches when they write */
};

enum um_frame_kind {
    UM_FRAME_DATA = 0,
    UM_FRAME_PAD = 1,
    UM_FRAME_BORROWED = 2, /* claimed by the application, which may never return it */
};

/* The low two bits are a um_frame_kind, the rest the length with its header, before alignment; negative: not committed.
 */
typedef _Atomic uint32_t um_frame_state;

static inline uint32_t um_frame_word(int32_t length, enum um_frame_kind kind)
{
    return (uint32_t)length << 2 | kind;
}

static inline int32_t um_frame_length_of(uint32_t word)
{
    return (int32_t)word >> 2;
}

static inline enum um_frame_kind um_frame_kind_of(uint32_t word)
{
    return (enum um_frame_kind)(word & 3);
}

typedef struct um_publication_log {
    uint8_t *terms;         /* UM_LOG_TERM_COUNT * term_length bytes */
    um_frame_state *states; /* one for each UM_FRAME_ALIGNMENT bytes of the terms */
    uint32_t term_length;
    uint32_t term_bits;
    uint32_t window_bytes; /* how far publishers may be ahead of the sender; default: half a term */
    uint32_t initial_term_id;

    /* Written by publishers. Each tail is term id << 32 | term offset (AE-4). */
    UM_CACHE_ALIGNED _Atomic uint64_t tails[UM_LOG_TERM_COUNT];
    _Atomic uint32_t active_term_count;

    /* Written by the conductor, read by publishers. */
    UM_CACHE_ALIGNED _Atomic int64_t publication_limit;
    _Atomic int64_t writable_end; /* the log is clean up to this position */
    atomic_bool is_connected;     /* flow control has receivers (AE-12) */
    atomic_bool is_closed;
    _Atomic uint32_t claim_span; /* largest claim refused at the writable end: this much more is kept clean */

    /* Conductor only. */
    UM_CACHE_ALIGNED int64_t clean_position;
    int64_t blocked_position;
    int64_t blocked_for_ns;  /* time observed, not elapsed: a stopped process must not lose a claim */
    int64_t blocked_look_ns; /* time of the last observation */
    int64_t unblock_timeout_ns;
    uint64_t unblocked_count; /* claims turned into padding (AE-35) */
} um_publication_log;

/* Reserved space of `length` bytes for whole frames from `frames` on, not visible to readers yet. */
typedef struct um_claim {
    uint8_t *frames;
    int64_t position; /* position of the first byte */
    uint32_t length;
} um_claim;

/* Returns 0 if term_length is not a power of two in the allowed range. */
size_t um_log_footprint(uint32_t term_length);

/* memory: footprint bytes, zeroed, owned by the caller until the log is no longer used. */
void um_log_init(um_publication_log *log, void *memory, uint32_t term_length, uint32_t initial_term_id,
                 int64_t unblock_timeout_ns);

/* Log bytes of a frame with a message of `message_length` bytes. */
static inline uint32_t um_frame_span(uint32_t message_length)
{
    return (uint32_t)um_align_up(UM_FRAME_HEADER_BYTES + message_length, UM_FRAME_ALIGNMENT);
}

/* Largest claim: an eighth of a term. */
static inline uint32_t um_log_claim_max(const um_publication_log *log)
{
    return log->term_length / 8;
}

/* Reserves `length` bytes, a sum of frame spans (AE-25, AE-26). Any thread. Returns 0 or a um_publish_result;
 * UM_ADMIN_ACTION: retry at once. A refused claim takes no space (UX-23). */
int um_log_claim(um_publication_log *log, uint32_t length, um_claim *claim);

static inline um_frame_state *um_frame_state_of(const um_publication_log *log, const uint8_t *frame)
{
    return log->states + (size_t)(frame - log->terms) / UM_FRAME_ALIGNMENT;
}

/* Marks a frame, or the rest of a claim, as being written by the stack itself, which always finishes: it is not
 * unblocked. A publisher marks the next frame of its claim before it publishes the previous one. */
static inline void um_frame_begin(const um_publication_log *log, const uint8_t *frame, uint32_t message_length)
{
    int32_t length = -(int32_t)(UM_FRAME_HEADER_BYTES + message_length);
    atomic_store_explicit(um_frame_state_of(log, frame), um_frame_word(length, UM_FRAME_DATA), memory_order_relaxed);
}

/* Makes a frame marked by um_frame_begin visible. */
static inline void um_frame_publish(const um_publication_log *log, const uint8_t *frame, uint32_t message_length)
{
    int32_t length = (int32_t)(UM_FRAME_HEADER_BYTES + message_length);
    atomic_store_explicit(um_frame_state_of(log, frame), um_frame_word(length, UM_FRAME_DATA), memory_order_release);
}

/* Marks a frame as claimed by the application: unblocking may turn it into padding of this length. */
static inline void um_frame_borrow(const um_publication_log *log, const uint8_t *frame, uint32_t message_length)
{
    int32_t length = -(int32_t)(UM_FRAME_HEADER_BYTES + message_length);
    atomic_store_explicit(um_frame_state_of(log, frame), um_frame_word(length, UM_FRAME_BORROWED),
                          memory_order_relaxed);
}

/* Takes a borrowed frame back for the commit. Returns false if unblocking has turned it into padding (AE-35). */
static inline bool um_frame_return(const um_publication_log *log, const uint8_t *frame, uint32_t message_length)
{
    int32_t length = -(int32_t)(UM_FRAME_HEADER_BYTES + message_length);
    uint32_t borrowed = um_frame_word(length, UM_FRAME_BORROWED);
    return atomic_compare_exchange_strong_explicit(um_frame_state_of(log, frame), &borrowed,
                                                   um_frame_word(length, UM_FRAME_DATA), memory_order_acq_rel,
                                                   memory_order_relaxed);
}

/* Turns a borrowed claim of one frame into padding (AE-36). Returns false if unblocking already did. */
bool um_log_abort(const um_publication_log *log, const um_claim *claim);

/* The position up to which space has been claimed: pub-pos (AE-6, AE-22). Any thread. */
int64_t um_log_tail(const um_publication_log *log);

static inline uint8_t *um_log_at(const um_publication_log *log, int64_t position)
{
    uint64_t term = ((uint64_t)position >> log->term_bits) % UM_LOG_TERM_COUNT;
    return log->terms + (term << log->term_bits) + ((uint64_t)position & (log->term_length - 1));
}

static inline um_frame_state *um_log_state_at(const um_publication_log *log, int64_t position)
{
    return um_frame_state_of(log, um_log_at(log, position));
}

/* Conductor: prefetches the words that cleaning will zero for `span` bytes, `ahead` bytes after the clean position.
 * Fetched early and a few at a time they cost nothing; uncached, zeroing costs as much again as the cleaning. */
static inline void um_log_fetch_uncleaned(const um_publication_log *log, int64_t ahead, uint32_t span)
{
    enum { LINE_SPAN = UM_CACHE_LINE_BYTES / sizeof(um_frame_state) * UM_FRAME_ALIGNMENT };
    for (uint32_t at = 0; at < span; at += LINE_SPAN)
        __builtin_prefetch((const void *)um_log_state_at(log, log->clean_position + ahead + at), 1, 3);
}

/* Bytes from `position` to the end of its term. */
static inline uint32_t um_log_to_term_end(const um_publication_log *log, int64_t position)
{
    return log->term_length - (uint32_t)((uint64_t)position & (log->term_length - 1));
}

/* Returns the committed length of the frame at `position`, or <= 0 if it is not ready (AE-29). Conductor. */
static inline int32_t um_log_frame_length(const um_publication_log *log, int64_t position)
{
    return um_frame_length_of(atomic_load_explicit(um_log_state_at(log, position), memory_order_acquire));
}

static inline bool um_log_frame_is_pad(const um_publication_log *log, int64_t position)
{
    return um_frame_kind_of(atomic_load_explicit(um_log_state_at(log, position), memory_order_relaxed)) == UM_FRAME_PAD;
}

/* Conductor: after the sender has reached `sender_position`, cleans space that publishers will soon write, at most
 * `budget_bytes` and only more than a term behind the sender (AE-45..AE-48). Then moves the publication limit: ahead of
 * the sender by window_bytes if connected, else back to the sender (AE-23). */
void um_log_conduct(um_publication_log *log, int64_t sender_position, uint32_t budget_bytes);

/* Conductor: the bytes from clean_position on that um_log_conduct would clean; until then they can be read. */
int64_t um_log_cleaning_due(const um_publication_log *log, int64_t sender_position, uint32_t budget_bytes);

/* Any thread: returns true if publishers will soon lack clean space and the conductor can make some. */
bool um_log_needs_cleaning(const um_publication_log *log, int64_t sender_position);

/* Conductor: turns a frame at sender_position that the application claimed, or a hole that no publisher started to
 * write, into padding once it has blocked the sender for the unblock timeout (AE-35). Returns true if it did. Each
 * interval between two calls counts as at most a quarter of the timeout. */
bool um_log_unblock(um_publication_log *log, int64_t sender_position, int64_t now_ns);

/* When um_log_unblock must be called next. */
int64_t um_log_unblock_due_ns(const um_publication_log *log);

#endif
