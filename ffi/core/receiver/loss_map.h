/* The loss map: the transport sqns a receiver session misses, each with its NAK timer (UM-116..UM-123). A hash
 * table by sqn over a binary heap by deadline, both of fixed capacity. Owner: one receiver session, its thread.
 */
#ifndef UM_CORE_LOSS_MAP_H
#define UM_CORE_LOSS_MAP_H

#include "core/foundation/base.h"

typedef struct um_loss {
    uint32_t sqn;
    uint32_t naks_sent;
    int64_t detected_ns;
    int64_t deadline_ns; /* when the session checks it next */
    uint32_t heap_at;
    uint32_t ncfs_seen;
    int64_t nak_ns; /* of the first NAK, once naks_sent is not 0 */
} um_loss;

typedef struct um_loss_map {
    uint32_t capacity;
    uint32_t count;
    uint32_t table_mask;
    uint64_t change_count; /* adds and removes, ever */
    um_loss *entries;      /* dense: [0, count) */
    uint32_t *heap;        /* entry indices, earliest deadline first */
    uint32_t *table;       /* entry index + 1, open addressing; 0: empty */
} um_loss_map;

/* capacity: a power of two. */
size_t um_loss_map_footprint(uint32_t capacity);
void um_loss_map_init(um_loss_map *map, void *memory, uint32_t capacity);

/* False when the map is full. The sqn must not be in it. */
bool um_loss_map_add(um_loss_map *map, uint32_t sqn, int64_t now_ns, int64_t deadline_ns);
/* NULL when the sqn is not lost. Valid until the next add or remove. */
um_loss *um_loss_map_find(um_loss_map *map, uint32_t sqn);
void um_loss_map_remove(um_loss_map *map, um_loss *loss);
void um_loss_map_reschedule(um_loss_map *map, um_loss *loss, int64_t deadline_ns);
/* The entry with the earliest deadline, or NULL. */
um_loss *um_loss_map_first(um_loss_map *map);
/* Oldest lost sqn; the map must not be empty. Linear in the count. */
uint32_t um_loss_map_lowest(const um_loss_map *map);

#endif
