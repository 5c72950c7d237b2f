/* Datagrams that publishers have laid out themselves: large messages, each of which makes up a datagram. The log only
 * keeps them; it is written past the caches, and reading them back from there to send them would mean waiting for
 * memory. A ring of bytes, small enough to stay in the caches, and a ring of entries; a datagram lies in one piece,
 * most often behind the last.
 *
 * Under the session's sender lock. What is not sent soon stays; when the ring is full, publishers write as usual.
 */
#ifndef UM_CORE_FRESH_DATAGRAMS_H
#define UM_CORE_FRESH_DATAGRAMS_H

#include "core/base.h"

enum {
    UM_FRESH_BYTES = 192 * 1024,
    UM_FRESH_MAX = 256,
};

typedef struct um_fresh_datagram {
    int64_t position; /* of its frame in the log */
    uint32_t offset;
    uint32_t bytes;
} um_fresh_datagram;

typedef struct um_fresh_datagrams {
    uint8_t *memory; /* um_fresh_footprint */
    uint32_t first;  /* the oldest entry */
    uint32_t count;
    uint32_t next; /* counted from the oldest: those before it have been looked for */
    uint32_t end;  /* where the next datagram goes */
    um_fresh_datagram entries[UM_FRESH_MAX];
} um_fresh_datagrams;

/* A cache line more than is used: who copies whole lines may read beyond a datagram. */
static inline size_t um_fresh_footprint(void)
{
    return UM_FRESH_BYTES + UM_CACHE_LINE_BYTES;
}

static inline um_fresh_datagram *um_fresh_entry(um_fresh_datagrams *fresh, uint32_t i)
{
    return &fresh->entries[(fresh->first + i) % UM_FRESH_MAX];
}

/* Forgets what lies before `position`: it has been sent. */
static inline void um_fresh_forget(um_fresh_datagrams *fresh, int64_t position)
{
    if (fresh->count > 0 && um_fresh_entry(fresh, fresh->count - 1)->position < position)
        fresh->count = 0;
    while (fresh->count > 0 && um_fresh_entry(fresh, 0)->position < position) {
        fresh->first = (fresh->first + 1) % UM_FRESH_MAX;
        fresh->count--;
    }
    fresh->next = 0;
    if (fresh->count == 0)
        fresh->end = 0;
}

/* Bytes in one piece where the next datagrams go, which is the start of the memory where that is more. */
static inline uint32_t um_fresh_room(um_fresh_datagrams *fresh)
{
    if (fresh->count == 0 || fresh->count == UM_FRESH_MAX)
        return fresh->count == 0 ? UM_FRESH_BYTES : 0;
    uint32_t oldest = um_fresh_entry(fresh, 0)->offset;
    if (fresh->end <= oldest)
        return oldest - fresh->end;
    if (UM_FRESH_BYTES - fresh->end >= oldest)
        return UM_FRESH_BYTES - fresh->end;
    fresh->end = 0;
    return oldest;
}

/* Where to lay out a datagram for which there is room. Positions ascend. */
static inline uint8_t *um_fresh_add(um_fresh_datagrams *fresh, int64_t position, uint32_t bytes)
{
    um_debug_assert(fresh->count < UM_FRESH_MAX && fresh->end + bytes <= UM_FRESH_BYTES);
    *um_fresh_entry(fresh, fresh->count++) = (um_fresh_datagram){position, fresh->end, bytes};
    fresh->end += bytes;
    return fresh->memory + fresh->end - bytes;
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
static inline uint8_t *um_fresh_find(um_fresh_datagrams *fresh, int64_t position, uint32_t bytes)
{
    const um_fresh_datagram *found = um_fresh_at(fresh, position);
    return found != NULL && found->bytes == bytes ? fresh->memory + found->offset : NULL;
}

#endif
