#include "core/receiver/loss_map.h"

static void carve(um_loss_map *map, um_arena *arena, uint32_t capacity)
{
    um_loss_map ignored;
    um_loss_map *m = map ? map : &ignored;
    m->entries = um_arena_take(arena, capacity * sizeof *m->entries);
    m->heap = um_arena_take(arena, capacity * sizeof *m->heap);
    m->table = um_arena_take(arena, 2 * (size_t)capacity * sizeof *m->table);
}

size_t um_loss_map_footprint(uint32_t capacity)
{
    um_arena arena = {NULL, 0};
    carve(NULL, &arena, capacity);
    return um_is_power_of_two(capacity) ? arena.used_bytes : 0;
}

void um_loss_map_init(um_loss_map *map, void *memory, uint32_t capacity)
{
    assert(um_is_power_of_two(capacity));
    um_arena arena = {memory, 0};
    map->capacity = capacity;
    map->count = 0;
    map->change_count = 0;
    map->oldest_naked = map->newest_naked = 0;
    map->table_mask = 2 * capacity - 1;
    carve(map, &arena, capacity);
}

/* ---- hash table: linear probing, deletion shifts back, so there are no tombstones ---- */

static uint32_t bucket_of(const um_loss_map *map, uint32_t sqn)
{
    return (uint32_t)(((uint64_t)(sqn * 2654435761u) * ((uint64_t)map->table_mask + 1)) >> 32);
}

static uint32_t table_find(const um_loss_map *map, uint32_t sqn)
{
    uint32_t at = bucket_of(map, sqn);
    while (map->table[at] != 0 && map->entries[map->table[at] - 1].sqn != sqn)
        at = (at + 1) & map->table_mask;
    return at;
}

static void table_delete(um_loss_map *map, uint32_t hole)
{
    for (uint32_t at = (hole + 1) & map->table_mask; map->table[at] != 0; at = (at + 1) & map->table_mask) {
        uint32_t home = bucket_of(map, map->entries[map->table[at] - 1].sqn);
        if (((at - home) & map->table_mask) >= ((at - hole) & map->table_mask)) {
            map->table[hole] = map->table[at];
            hole = at;
        }
    }
    map->table[hole] = 0;
}

/* ---- heap ---- */

static int64_t deadline_at(const um_loss_map *map, uint32_t at)
{
    return map->entries[map->heap[at]].deadline_ns;
}

static void place(um_loss_map *map, uint32_t at, uint32_t entry)
{
    map->heap[at] = entry;
    map->entries[entry].heap_at = at;
}

static void swap(um_loss_map *map, uint32_t a, uint32_t b)
{
    uint32_t entry = map->heap[a];
    place(map, a, map->heap[b]);
    place(map, b, entry);
}

static void sift(um_loss_map *map, uint32_t at)
{
    for (; at > 0 && deadline_at(map, at) < deadline_at(map, (at - 1) / 2); at = (at - 1) / 2)
        swap(map, at, (at - 1) / 2);
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= map->count)
            return;
        if (child + 1 < map->count && deadline_at(map, child + 1) < deadline_at(map, child))
            child++;
        if (deadline_at(map, at) <= deadline_at(map, child))
            return;
        swap(map, at, child);
        at = child;
    }
}

/* ---- the list of NAKed losses ---- */

static bool is_listed(const um_loss_map *map, const um_loss *loss)
{
    return loss->older != 0 || map->oldest_naked == (uint32_t)(loss - map->entries) + 1;
}

/* Lets the neighbors of a listed loss, or the ends of the list, refer to these two instead. */
static void relink(um_loss_map *map, const um_loss *loss, uint32_t for_older, uint32_t for_newer)
{
    *(loss->older ? &map->entries[loss->older - 1].newer : &map->oldest_naked) = for_older;
    *(loss->newer ? &map->entries[loss->newer - 1].older : &map->newest_naked) = for_newer;
}

void um_loss_map_unlist(um_loss_map *map, um_loss *loss)
{
    if (!is_listed(map, loss))
        return;
    relink(map, loss, loss->newer, loss->older);
    loss->older = loss->newer = 0;
}

void um_loss_map_list(um_loss_map *map, um_loss *loss)
{
    um_loss_map_unlist(map, loss);
    uint32_t reference = (uint32_t)(loss - map->entries) + 1;
    loss->older = map->newest_naked;
    relink(map, loss, reference, reference);
}

/* ---- */

bool um_loss_map_add(um_loss_map *map, uint32_t sqn, int64_t now_ns, int64_t deadline_ns)
{
    if (map->count == map->capacity)
        return false;
    uint32_t bucket = table_find(map, sqn);
    um_debug_assert(map->table[bucket] == 0);
    uint32_t entry = map->count++;
    map->change_count++;
    map->entries[entry] = (um_loss){.sqn = sqn, .detected_ns = now_ns, .deadline_ns = deadline_ns};
    map->table[bucket] = entry + 1;
    place(map, entry, entry);
    sift(map, entry);
    return true;
}

um_loss *um_loss_map_find(um_loss_map *map, uint32_t sqn)
{
    if (map->count == 0)
        return NULL;
    uint32_t found = map->table[table_find(map, sqn)];
    return found ? &map->entries[found - 1] : NULL;
}

void um_loss_map_remove(um_loss_map *map, um_loss *loss)
{
    uint32_t entry = (uint32_t)(loss - map->entries);
    uint32_t hole = loss->heap_at;
    uint32_t last = map->count - 1;
    um_loss_map_unlist(map, loss);
    table_delete(map, table_find(map, loss->sqn));
    map->count = last;
    map->change_count++;
    if (hole != last) {
        place(map, hole, map->heap[last]);
        sift(map, hole);
    }
    if (entry != last) { /* keep the entries dense */
        map->table[table_find(map, map->entries[last].sqn)] = entry + 1;
        if (is_listed(map, &map->entries[last]))
            relink(map, &map->entries[last], entry + 1, entry + 1);
        map->entries[entry] = map->entries[last];
        map->heap[map->entries[entry].heap_at] = entry;
    }
}

void um_loss_map_reschedule(um_loss_map *map, um_loss *loss, int64_t deadline_ns)
{
    loss->deadline_ns = deadline_ns;
    sift(map, loss->heap_at);
}

um_loss *um_loss_map_first(um_loss_map *map)
{
    return map->count ? &map->entries[map->heap[0]] : NULL;
}

uint32_t um_loss_map_lowest(const um_loss_map *map)
{
    uint32_t lowest = map->entries[0].sqn;
    for (uint32_t i = 1; i < map->count; i++)
        lowest = um_serial_before(map->entries[i].sqn, lowest) ? map->entries[i].sqn : lowest;
    return lowest;
}
