#include "core/delivery/reorder_buffer.h"

#include "core/wire/lbmc.h"

enum { SMALL_PER_LARGE = 16 };

static uint32_t large_cells(uint32_t cells)
{
    return (cells + SMALL_PER_LARGE - 1) / SMALL_PER_LARGE;
}

static void carve(um_reorder_buffer *store, um_arena *arena, uint32_t cells, uint32_t cell_bytes, uint32_t entries)
{
    um_reorder_buffer ignored;
    um_reorder_buffer *s = store ? store : &ignored;
    s->entries = um_arena_take(arena, entries * sizeof *s->entries);
    s->table = um_arena_take(arena, 2 * (size_t)entries * sizeof *s->table);
    uint32_t all = cells + large_cells(cells);
    s->cell_references = um_arena_take(arena, all * sizeof *s->cell_references);
    s->cell_next = um_arena_take(arena, all * sizeof *s->cell_next);
    s->small.memory = um_arena_take(arena, (size_t)cells * cell_bytes);
    s->large.memory = um_arena_take(arena, (size_t)large_cells(cells) * UM_LBMC_MESSAGE_BYTES_MAX);
    s->assembly.memory = um_arena_take(arena, UM_DATAGRAM_ASSEMBLY_BYTES);
}

size_t um_reorder_footprint(uint32_t cell_count, uint32_t cell_bytes, uint32_t entry_capacity)
{
    if (!um_is_power_of_two(entry_capacity) || cell_count == 0 || cell_bytes == 0 || cell_bytes > UINT16_MAX)
        return 0;
    um_arena arena = {NULL, 0};
    carve(NULL, &arena, cell_count, cell_bytes, entry_capacity);
    return arena.used_bytes;
}

void um_reorder_init(um_reorder_buffer *store, void *memory, uint32_t cell_count, uint32_t cell_bytes,
                     uint32_t entry_capacity)
{
    memset(store, 0, sizeof *store);
    um_arena arena = {memory, 0};
    store->small = (um_reorder_cells){.bytes = cell_bytes, .count = cell_count};
    store->large =
        (um_reorder_cells){.bytes = UM_LBMC_MESSAGE_BYTES_MAX, .first = cell_count, .count = large_cells(cell_count)};
    store->entry_capacity = entry_capacity;
    store->table_mask = 2 * entry_capacity - 1;
    carve(store, &arena, cell_count, cell_bytes, entry_capacity);
}

/* ---- cells ---- */

void um_reorder_begin_datagram(um_reorder_buffer *store, const uint8_t *data, uint32_t length)
{
    store->datagram = data;
    store->datagram_length = length;
    store->datagram_cell = 0;
}

void um_reorder_end_datagram(um_reorder_buffer *store)
{
    store->datagram = NULL;
}

static um_reorder_cells *cells_of(um_reorder_buffer *store, uint32_t cell)
{
    return cell < store->large.first ? &store->small : &store->large;
}

/* Returns 1 + the number of a free cell of at least this size, or 0. */
static uint32_t take_cell(um_reorder_buffer *store, uint32_t bytes)
{
    um_reorder_cells *cells = bytes <= store->small.bytes ? &store->small : &store->large;
    if (bytes > cells->bytes)
        return 0;
    if (cells->free != 0) {
        uint32_t cell = cells->free - 1;
        cells->free = store->cell_next[cell];
        return cell + 1;
    }
    return cells->begun < cells->count ? cells->first + ++cells->begun : 0;
}

bool um_reorder_attach(um_reorder_buffer *store, um_reorder_entry *hold, const uint8_t *payload, uint32_t length)
{
    assert(store->datagram != NULL && payload >= store->datagram &&
           payload + length <= store->datagram + store->datagram_length);
    if (store->datagram_cell == 0) {
        uint32_t cell = take_cell(store, store->datagram_length);
        if (cell == 0)
            return false;
        memcpy(um_reorder_cell(store, cell - 1), store->datagram, store->datagram_length);
        store->cell_references[cell - 1] = 0;
        store->datagram_cell = cell;
        cells_of(store, cell - 1)->used++;
        store->cells_used++;
    }
    hold->cell = store->datagram_cell - 1;
    hold->offset = (uint16_t)(payload - store->datagram);
    hold->length = (uint16_t)length;
    hold->state = UM_REORDER_PAYLOAD;
    store->cell_references[hold->cell]++;
    return true;
}

void um_reorder_detach(um_reorder_buffer *store, um_reorder_entry *hold)
{
    if (hold->state != UM_REORDER_PAYLOAD)
        return;
    hold->state = UM_REORDER_EXPECTED;
    if (--store->cell_references[hold->cell] > 0)
        return;
    if (store->datagram != NULL && store->datagram_cell == hold->cell + 1)
        store->datagram_cell = 0; /* later messages of this datagram need another copy */
    um_reorder_cells *cells = cells_of(store, hold->cell);
    store->cell_next[hold->cell] = cells->free;
    cells->free = hold->cell + 1;
    cells->used--;
    store->cells_used--;
}

/* ---- entries: linear probing by (owner, sqn), deletion shifts back ---- */

/* Sixteen consecutive sqns share a cache line of the table, because held messages usually form runs. Their order is
 * reversed, so that removing the oldest, which is first to go, shifts nothing. */
static uint32_t bucket_of(const um_reorder_buffer *store, uint32_t owner, uint32_t sqn)
{
    uint64_t key = ((uint64_t)owner << 32 | sqn >> 4) * 0x9e3779b97f4a7c15u;
    return ((uint32_t)(key >> 32) << 4 | (~sqn & 15)) & store->table_mask;
}

static uint32_t table_find(const um_reorder_buffer *store, uint32_t owner, uint32_t sqn)
{
    uint32_t at = bucket_of(store, owner, sqn);
    for (; store->table[at] != 0; at = (at + 1) & store->table_mask) {
        const um_reorder_entry *hold = &store->entries[store->table[at] - 1];
        if (hold->sqn == sqn && hold->owner == owner)
            break;
    }
    return at;
}

um_reorder_entry *um_reorder_find(um_reorder_buffer *store, uint32_t owner, uint32_t sqn)
{
    uint32_t entry = store->table[table_find(store, owner, sqn)];
    return entry ? &store->entries[entry - 1] : NULL;
}

um_reorder_entry *um_reorder_add(um_reorder_buffer *store, uint32_t owner, uint32_t sqn)
{
    uint32_t entry = store->entry_free;
    if (entry != 0)
        store->entry_free = store->entries[entry - 1].cell;
    else if (store->entries_begun < store->entry_capacity)
        entry = ++store->entries_begun;
    else
        return NULL;
    uint32_t bucket = table_find(store, owner, sqn);
    um_debug_assert(store->table[bucket] == 0);
    store->table[bucket] = entry;
    um_reorder_entry *hold = &store->entries[entry - 1];
    *hold = (um_reorder_entry){.owner = owner, .sqn = sqn, .state = UM_REORDER_EXPECTED};
    store->entries_used++;
    return hold;
}

void um_reorder_remove(um_reorder_buffer *store, um_reorder_entry *hold)
{
    um_reorder_detach(store, hold);
    uint32_t hole = table_find(store, hold->owner, hold->sqn);
    for (uint32_t at = (hole + 1) & store->table_mask; store->table[at] != 0; at = (at + 1) & store->table_mask) {
        const um_reorder_entry *other = &store->entries[store->table[at] - 1];
        uint32_t home = bucket_of(store, other->owner, other->sqn);
        if (((at - home) & store->table_mask) >= ((at - hole) & store->table_mask)) {
            store->table[hole] = store->table[at];
            hole = at;
        }
    }
    store->table[hole] = 0;
    hold->owner = 0;
    hold->cell = store->entry_free;
    store->entry_free = (uint32_t)(hold - store->entries) + 1;
    store->entries_used--;
}
