/* Datagrams that publishers have laid out themselves: large messages, each of which makes up a datagram. The log only
 * keeps them; it is written past the caches, and reading them back from there to send them would mean waiting for
 * memory. They lie in pieces that the link lends, and go out from there without being copied; where it lends none, in a
 * ring of bytes, small enough to stay in the caches, each in one piece and most often behind the last.
 *
 * Under the session's sender lock. What is not sent soon stays; when there is no more room, publishers write as usual.
 */
#ifndef UM_CORE_FRESH_DATAGRAMS_H
#define UM_CORE_FRESH_DATAGRAMS_H

#include "core/link.h"

enum {
    UM_FRESH_BYTES = 192 * 1024,
    UM_FRESH_MAX = 256,
    UM_FRESH_LENT_MAX = 128, /* about as many bytes */
};

#define UM_FRESH_IS_LENT UINT32_MAX

typedef struct um_fresh_datagram {
    int64_t position; /* of its frame in the log */
    uint32_t offset;  /* in the ring of bytes; UM_FRESH_IS_LENT: it lies in what the link has lent */
    uint32_t bytes;
} um_fresh_datagram;

typedef struct um_fresh_datagrams {
    um_link *link;
    uint8_t *memory; /* um_fresh_footprint */
    uint32_t first;  /* the oldest entry */
    uint32_t count;
    uint32_t next;       /* counted from the oldest: those before it have been looked for */
    uint32_t end;        /* where the next datagram goes in the ring of bytes */
    uint32_t lent_count; /* entries whose datagrams lie in what was lent */
    uint32_t piece_count;
    uint8_t *pieces[UM_FRESH_LENT_MAX]; /* lent, for the next datagrams */
    um_fresh_datagram entries[UM_FRESH_MAX];
    um_lent lent[UM_FRESH_MAX]; /* of the entries */
} um_fresh_datagrams;

typedef struct um_fresh_room {
    uint32_t datagrams;
    uint32_t bytes;
} um_fresh_room;

/* A cache line more than is used: who copies whole lines may read beyond a datagram. */
static inline size_t um_fresh_footprint(void)
{
    return UM_FRESH_BYTES + UM_CACHE_LINE_BYTES;
}

static inline um_fresh_datagram *um_fresh_entry(um_fresh_datagrams *fresh, uint32_t i)
{
    return &fresh->entries[(fresh->first + i) % UM_FRESH_MAX];
}

/* What the link has lent for an entry; NULL: nothing. */
static inline um_lent *um_fresh_lent(um_fresh_datagrams *fresh, const um_fresh_datagram *entry)
{
    return entry->offset == UM_FRESH_IS_LENT ? &fresh->lent[entry - fresh->entries] : NULL;
}

static inline uint8_t *um_fresh_data(um_fresh_datagrams *fresh, const um_fresh_datagram *entry)
{
    um_lent *lent = um_fresh_lent(fresh, entry);
    return lent != NULL ? lent->data : fresh->memory + entry->offset;
}

static inline void um_fresh_forget_oldest(um_fresh_datagrams *fresh)
{
    um_lent *lent = um_fresh_lent(fresh, um_fresh_entry(fresh, 0));
    if (lent != NULL && lent->data != NULL)
        fresh->link->ops->take_back(fresh->link, &lent->data, 1);
    fresh->lent_count -= lent != NULL;
    fresh->first = (fresh->first + 1) % UM_FRESH_MAX;
    fresh->count--;
}

/* Forgets what lies before `position`: it has been sent. What the link has lent for it and did not take, it gets back.
 */
static inline void um_fresh_forget(um_fresh_datagrams *fresh, int64_t position)
{
    if (fresh->count > 0 && fresh->lent_count == 0 && um_fresh_entry(fresh, fresh->count - 1)->position < position)
        fresh->count = 0;
    while (fresh->count > 0 && um_fresh_entry(fresh, 0)->position < position)
        um_fresh_forget_oldest(fresh);
    fresh->next = 0;
    if (fresh->count == 0)
        fresh->end = 0;
}

/* Bytes in one piece where the next datagrams go, which is the start of the memory where that is more. */
static inline uint32_t um_fresh_ring_room(um_fresh_datagrams *fresh)
{
    if (fresh->count == 0)
        return UM_FRESH_BYTES;
    uint32_t oldest = um_fresh_entry(fresh, 0)->offset;
    if (oldest == UM_FRESH_IS_LENT) /* the path takes more than what was lent for holds: from the next time on */
        return 0;
    if (fresh->end <= oldest)
        return oldest - fresh->end;
    if (UM_FRESH_BYTES - fresh->end >= oldest)
        return UM_FRESH_BYTES - fresh->end;
    fresh->end = 0;
    return oldest;
}

/* Gives back what was borrowed and has not been used. */
static inline void um_fresh_give_back(um_fresh_datagrams *fresh)
{
    if (fresh->piece_count > 0)
        fresh->link->ops->take_back(fresh->link, fresh->pieces, fresh->piece_count);
    fresh->piece_count = 0;
}

/* What can be laid out now: so many datagrams, of so many bytes together and at most `datagram_max_bytes` each. No more
 * than `wanted` are borrowed for. */
static inline um_fresh_room um_fresh_make_room(um_fresh_datagrams *fresh, uint32_t wanted, uint32_t datagram_max_bytes)
{
    if (fresh->link->lent_bytes < datagram_max_bytes) {
        um_fresh_give_back(fresh);
        return (um_fresh_room){UM_FRESH_MAX - fresh->count, um_fresh_ring_room(fresh)};
    }
    uint32_t most = fresh->count < UM_FRESH_LENT_MAX ? UM_FRESH_LENT_MAX - fresh->count : 0;
    wanted = wanted < most ? wanted : most;
    if (wanted > fresh->piece_count)
        fresh->piece_count +=
            fresh->link->ops->lend(fresh->link, fresh->pieces + fresh->piece_count, wanted - fresh->piece_count);
    return (um_fresh_room){fresh->piece_count, UINT32_MAX};
}

/* Where to lay out a datagram for which there is room. Positions ascend. */
static inline const um_fresh_datagram *um_fresh_add(um_fresh_datagrams *fresh, int64_t position, uint32_t bytes)
{
    um_fresh_datagram *added = um_fresh_entry(fresh, fresh->count++);
    um_debug_assert(fresh->count <= UM_FRESH_MAX);
    if (fresh->piece_count > 0) {
        um_debug_assert(bytes <= fresh->link->lent_bytes);
        *added = (um_fresh_datagram){position, UM_FRESH_IS_LENT, bytes};
        um_fresh_lent(fresh, added)->data = fresh->pieces[--fresh->piece_count];
        fresh->lent_count++;
        return added;
    }
    um_debug_assert(fresh->end + bytes <= UM_FRESH_BYTES);
    *added = (um_fresh_datagram){position, fresh->end, bytes};
    fresh->end += bytes;
    return added;
}

/* The entry of the frame at `position`, or NULL; `next` is its number then. Who looks for one after the other finds
 * each at once. */
static inline const um_fresh_datagram *um_fresh_at(um_fresh_datagrams *fresh, int64_t position)
{
    if (fresh->count == 0 || position < um_fresh_entry(fresh, 0)->position)
        return NULL;
    if (fresh->next == fresh->count || um_fresh_entry(fresh, fresh->next)->position > position)
        fresh->next = 0;
    while (fresh->next < fresh->count && um_fresh_entry(fresh, fresh->next)->position < position)
        fresh->next++;
    const um_fresh_datagram *found = um_fresh_entry(fresh, fresh->next);
    return fresh->next < fresh->count && found->position == position ? found : NULL;
}

/* The datagram of that frame where it has so many bytes, or NULL. */
static inline const um_fresh_datagram *um_fresh_find(um_fresh_datagrams *fresh, int64_t position, uint32_t bytes)
{
    const um_fresh_datagram *found = um_fresh_at(fresh, position);
    return found != NULL && found->bytes == bytes ? found : NULL;
}

#endif
