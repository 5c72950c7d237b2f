/* Staged datagrams: large messages, each a datagram of its own, that the publisher builds before the sender sends them.
 * Their copy in the log is written with non-temporal stores, and reading it back to send it would wait for memory. A
 * staged datagram lies in a frame borrowed from the link and leaves without being copied; where the link lends none, in
 * a ring of bytes that is small enough to stay in the caches.
 *
 * Threads: the holder of the session's sender lock. Memory: the session's, and frames of the link until they are sent
 * or returned. Complexity: constant. Errors: none; without space publishers write to the log alone.
 */
#ifndef UM_CORE_STAGED_DATAGRAMS_H
#define UM_CORE_STAGED_DATAGRAMS_H

#include "core/foundation/link.h"

enum {
    UM_STAGED_BYTES = 192 * 1024,
    UM_STAGED_MAX = 256,
    UM_STAGED_BORROWED_MAX = 128, /* about as many bytes */
};

#define UM_STAGED_IS_BORROWED UINT32_MAX

typedef struct um_staged_datagram {
    int64_t position; /* of its frame in the log */
    uint32_t offset;  /* in the ring of bytes; UM_STAGED_IS_BORROWED: it lies in a borrowed frame */
    uint32_t bytes;
} um_staged_datagram;

typedef struct um_staged_datagrams {
    um_link *link;
    uint8_t *memory; /* um_staged_footprint */
    uint32_t first;  /* the oldest entry */
    uint32_t count;
    uint32_t next;           /* counted from the oldest: those before it have been looked for */
    uint32_t end;            /* where the next datagram goes in the ring of bytes */
    uint32_t borrowed_count; /* entries whose datagrams lie in borrowed frames */
    uint32_t piece_count;
    uint8_t *pieces[UM_STAGED_BORROWED_MAX]; /* borrowed, for the next datagrams */
    um_staged_datagram entries[UM_STAGED_MAX];
    um_borrowed_frame borrowed[UM_STAGED_MAX]; /* of the entries */
} um_staged_datagrams;

typedef struct um_staged_space {
    uint32_t datagrams;
    uint32_t bytes;
} um_staged_space;

/* A cache line more than is used: a reader that copies whole lines may read beyond a datagram. */
static inline size_t um_staged_footprint(void)
{
    return UM_STAGED_BYTES + UM_CACHE_LINE_BYTES;
}

static inline um_staged_datagram *um_staged_entry(um_staged_datagrams *staged, uint32_t i)
{
    return &staged->entries[(staged->first + i) % UM_STAGED_MAX];
}

/* The borrowed frame of an entry; NULL: none. */
static inline um_borrowed_frame *um_staged_borrowed(um_staged_datagrams *staged, const um_staged_datagram *entry)
{
    return entry->offset == UM_STAGED_IS_BORROWED ? &staged->borrowed[entry - staged->entries] : NULL;
}

static inline uint8_t *um_staged_data(um_staged_datagrams *staged, const um_staged_datagram *entry)
{
    um_borrowed_frame *borrowed = um_staged_borrowed(staged, entry);
    return borrowed != NULL ? borrowed->data : staged->memory + entry->offset;
}

static inline void um_staged_drop_oldest(um_staged_datagrams *staged)
{
    um_borrowed_frame *borrowed = um_staged_borrowed(staged, um_staged_entry(staged, 0));
    if (borrowed != NULL && borrowed->data != NULL)
        staged->link->ops->return_frames(staged->link, &borrowed->data, 1);
    staged->borrowed_count -= borrowed != NULL;
    staged->first = (staged->first + 1) % UM_STAGED_MAX;
    staged->count--;
}

/* Drops what lies before `position`, which has been sent. Borrowed frames that the link did not take are returned.
 */
static inline void um_staged_drop_sent(um_staged_datagrams *staged, int64_t position)
{
    if (staged->count > 0 && staged->borrowed_count == 0 &&
        um_staged_entry(staged, staged->count - 1)->position < position)
        staged->count = 0;
    while (staged->count > 0 && um_staged_entry(staged, 0)->position < position)
        um_staged_drop_oldest(staged);
    staged->next = 0;
    if (staged->count == 0)
        staged->end = 0;
}

/* Bytes in one piece where the next datagrams go, which is the start of the memory where that is more. */
static inline uint32_t um_staged_ring_space(um_staged_datagrams *staged)
{
    if (staged->count == 0)
        return UM_STAGED_BYTES;
    uint32_t oldest = um_staged_entry(staged, 0)->offset;
    if (oldest == UM_STAGED_IS_BORROWED) /* the path takes more than a borrowed frame holds: from the next time on */
        return 0;
    if (staged->end <= oldest)
        return oldest - staged->end;
    if (UM_STAGED_BYTES - staged->end >= oldest)
        return UM_STAGED_BYTES - staged->end;
    staged->end = 0;
    return oldest;
}

/* Returns borrowed frames that have not been used. */
static inline void um_staged_return_unused(um_staged_datagrams *staged)
{
    if (staged->piece_count > 0)
        staged->link->ops->return_frames(staged->link, staged->pieces, staged->piece_count);
    staged->piece_count = 0;
}

/* What can be staged now: so many datagrams, of so many bytes together and at most `datagram_max_bytes` each. No more
 * than `wanted` are borrowed for. */
static inline um_staged_space um_staged_make_space(um_staged_datagrams *staged, uint32_t wanted,
                                                   uint32_t datagram_max_bytes)
{
    if (staged->link->borrow_bytes < datagram_max_bytes) {
        um_staged_return_unused(staged);
        return (um_staged_space){UM_STAGED_MAX - staged->count, um_staged_ring_space(staged)};
    }
    uint32_t most = staged->count < UM_STAGED_BORROWED_MAX ? UM_STAGED_BORROWED_MAX - staged->count : 0;
    wanted = wanted < most ? wanted : most;
    if (wanted > staged->piece_count)
        staged->piece_count +=
            staged->link->ops->borrow(staged->link, staged->pieces + staged->piece_count, wanted - staged->piece_count);
    return (um_staged_space){staged->piece_count, UINT32_MAX};
}

/* Stages a datagram for which there is space. Positions ascend. */
static inline const um_staged_datagram *um_staged_add(um_staged_datagrams *staged, int64_t position, uint32_t bytes)
{
    um_staged_datagram *added = um_staged_entry(staged, staged->count++);
    um_debug_assert(staged->count <= UM_STAGED_MAX);
    if (staged->piece_count > 0) {
        um_debug_assert(bytes <= staged->link->borrow_bytes);
        *added = (um_staged_datagram){position, UM_STAGED_IS_BORROWED, bytes};
        um_staged_borrowed(staged, added)->data = staged->pieces[--staged->piece_count];
        staged->borrowed_count++;
        return added;
    }
    um_debug_assert(staged->end + bytes <= UM_STAGED_BYTES);
    *added = (um_staged_datagram){position, staged->end, bytes};
    staged->end += bytes;
    return added;
}

/* The entry of the frame at `position`, or NULL; `next` is its number then. A caller that looks for one after the other
 * finds each at once. */
static inline const um_staged_datagram *um_staged_at(um_staged_datagrams *staged, int64_t position)
{
    if (staged->count == 0 || position < um_staged_entry(staged, 0)->position)
        return NULL;
    if (staged->next == staged->count || um_staged_entry(staged, staged->next)->position > position)
        staged->next = 0;
    while (staged->next < staged->count && um_staged_entry(staged, staged->next)->position < position)
        staged->next++;
    const um_staged_datagram *found = um_staged_entry(staged, staged->next);
    return staged->next < staged->count && found->position == position ? found : NULL;
}

/* The datagram of that frame where it has so many bytes, or NULL. */
static inline const um_staged_datagram *um_staged_find(um_staged_datagrams *staged, int64_t position, uint32_t bytes)
{
    const um_staged_datagram *found = um_staged_at(staged, position);
    return found != NULL && found->bytes == bytes ? found : NULL;
}

#endif
