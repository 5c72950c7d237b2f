/* The loss map: the lost transport sqns of a receiver session, each with its NAK timer (UM-116..UM-123). A hash table
 * by sqn over a binary heap by deadline, both of fixed capacity.
 *
 * Threads: the session's. Memory: one block of footprint bytes, the creator's. Complexity: logarithmic to add, remove
 * or reschedule, expected constant to find.
 */
#ifndef UM_CORE_LOSS_MAP_H
#define UM_CORE_LOSS_MAP_H

#include "core/foundation/base.h"

/* lost_repairs.h draws the states. */
enum um_loss_state {
    UM_LOSS_NOT_NAKED,
    UM_LOSS_NAKED,
    UM_LOSS_DOUBTED,
    UM_LOSS_REPAIR_LOST,
};

typedef struct um_loss {
    uint32_t sqn;
    uint32_t naks_sent;
    int64_t detected_ns;
    int64_t deadline_ns; /* when the session checks it next: a NAK, or giving up */
    uint32_t heap_at;
    uint32_t ncfs_seen;
    int64_t nak_ns;   /* time of the first NAK, or of the last one with evidence; valid if naks_sent is not 0 */
    int64_t floor_ns; /* evidence brings the next NAK forward to this time at most; valid if naks_sent is not 0 */
    enum um_loss_state state;
    uint32_t naks_since;   /* NAKs since nak_ns, that one included */
    uint32_t later_seen;   /* retransmissions NAKed later that arrived since the last NAK */
    uint32_t reports_seen; /* repair reports that have brought a NAK forward */
    uint32_t nak_number;   /* NAKs are numbered in the order in which they are sent */
    uint32_t older, newer; /* neighbors in the list of NAKed losses: index + 1; 0: none */
} um_loss;

typedef struct um_loss_map {
    uint32_t capacity;
    uint32_t count;
    uint32_t table_mask;
    uint64_t change_count; /* adds and removes so far */
    uint32_t oldest_naked; /* ends of the list of NAKed losses, in the order of their NAKs: index + 1; 0: empty */
    uint32_t newest_naked;
    um_loss *entries; /* dense: [0, count) */
    uint32_t *heap;   /* entry indices, earliest deadline first */
    uint32_t *table;  /* entry index + 1, open addressing; 0: empty */
} um_loss_map;

/* capacity: a power of two. */
size_t um_loss_map_footprint(uint32_t capacity);
void um_loss_map_init(um_loss_map *map, void *memory, uint32_t capacity);

/* Adds a sqn that is not in the map. Returns false if the map is full. */
bool um_loss_map_add(um_loss_map *map, uint32_t sqn, int64_t now_ns, int64_t deadline_ns);
/* Returns NULL if the sqn is not lost. The result is valid until the next add or remove. */
um_loss *um_loss_map_find(um_loss_map *map, uint32_t sqn);
void um_loss_map_remove(um_loss_map *map, um_loss *loss);
void um_loss_map_reschedule(um_loss_map *map, um_loss *loss, int64_t deadline_ns);
/* Returns the entry with the earliest deadline, or NULL. */
um_loss *um_loss_map_first(um_loss_map *map);
/* Moves a loss to the end of the list of NAKed losses, or removes it from the list. */
void um_loss_map_list(um_loss_map *map, um_loss *loss);
void um_loss_map_unlist(um_loss_map *map, um_loss *loss);
/* Returns the oldest lost sqn. The map must not be empty. Linear in the count. */
uint32_t um_loss_map_lowest(const um_loss_map *map);

#endif
