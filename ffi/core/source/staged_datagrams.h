/* Staged datagrams: large messages that the publisher builds as datagrams, one message each, before the sender sends
 * them. Their copy in the log is written with non-temporal stores, so reading it back to send it would wait for memory.
 * A staged datagram is built in a frame borrowed from the link and sent without a copy; if the link lends no frames, in
 * a ring buffer that is small enough to stay in the caches.
 *
 * Threads: the holder of the session's sender lock. Memory: the session's, and frames of the link until they are sent
 * or returned. Complexity: constant. Errors: none; without space publishers write only to the log.
 */
#ifndef UM_CORE_STAGED_DATAGRAMS_H
#define UM_CORE_STAGED_DATAGRAMS_H

#include "core/foundation/link.h"

enum {
    UM_STAGED_BYTES = 192 * 1024,
    UM_STAGED_MAX = 256,
    UM_STAGED_BORROWED_MAX = 128, /* frames; about as many bytes as the ring buffer */
};

#define UM_STAGED_IS_BORROWED UINT32_MAX

typedef struct um_staged_datagram {
    int64_t position; /* position of its frame in the log */
    uint32_t offset;  /* offset in the ring buffer, or UM_STAGED_IS_BORROWED */
    uint32_t bytes;
} um_staged_datagram;

typedef struct um_staged_datagrams {
    um_link *link;
    uint8_t *memory; /* ring buffer, um_staged_footprint bytes */
    uint32_t first;  /* index of the oldest entry */
    uint32_t count;
    uint32_t next;           /* entry at which the next search starts, counted from the oldest */
    uint32_t end;            /* offset of the next datagram in the ring buffer */
    uint32_t borrowed_count; /* entries in borrowed frames */
    uint32_t piece_count;
    uint8_t *pieces[UM_STAGED_BORROWED_MAX]; /* borrowed and not used yet */
    um_staged_datagram entries[UM_STAGED_MAX];
    um_borrowed_frame borrowed[UM_STAGED_MAX]; /* one per entry */
} um_staged_datagrams;

typedef struct um_staged_space {
    uint32_t datagrams;
    uint32_t bytes;
} um_staged_space;

/* One more cache line than the ring buffer: a reader that copies whole lines may read beyond a datagram. */
static inline size_t um_staged_footprint(void)
{
    return UM_STAGED_BYTES + UM_CACHE_LINE_BYTES;
}

static inline um_staged_datagram *um_staged_entry(um_staged_datagrams *staged, uint32_t i)
{
    return &staged->entries[(staged->first + i) % UM_STAGED_MAX];
}

/* The borrowed frame of an entry, or NULL. */
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

/* Drops the datagrams before `position`, which have been sent. Returns borrowed frames that the link did not accept. */
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

/* Contiguous free bytes for the next datagrams; restarts at the beginning of the buffer if more is free there. */
static inline uint32_t um_staged_ring_space(um_staged_datagrams *staged)
{
    if (staged->count == 0)
        return UM_STAGED_BYTES;
    uint32_t oldest = um_staged_entry(staged, 0)->offset;
    if (oldest == UM_STAGED_IS_BORROWED) /* datagrams have outgrown borrowed frames: use the ring once these are sent */
        return 0;
    if (staged->end <= oldest)
        return oldest - staged->end;
    if (UM_STAGED_BYTES - staged->end >= oldest)
        return UM_STAGED_BYTES - staged->end;
    staged->end = 0;
    return oldest;
}

/* Returns borrowed frames that are not used. */
static inline void um_staged_return_unused(um_staged_datagrams *staged)
{
    if (staged->piece_count > 0)
        staged->link->ops->return_frames(staged->link, staged->pieces, staged->piece_count);
    staged->piece_count = 0;
}

/* Returns the number of datagrams and the total bytes that can be staged now, with at most `datagram_max_bytes` per
 * datagram. Borrows frames for at most `wanted` datagrams. */
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

/* Returns the entry of the frame at `position`, or NULL; sets `next` to its index. Searches for ascending positions
 * take constant time. */
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

/* The same, but NULL unless the datagram has `bytes` bytes. */
static inline const um_staged_datagram *um_staged_find(um_staged_datagrams *staged, int64_t position, uint32_t bytes)
{
    const um_staged_datagram *found = um_staged_at(staged, position);
    return found != NULL && found->bytes == bytes ? found : NULL;
}

#endif
