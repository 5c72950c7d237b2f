/* The reorder buffer: the memory of every order map of a context, for messages and fragments that wait for a lost one
 * (UM-9, UM-10). A datagram is copied once into a cell, however many of its messages wait. Entries point into cells and
 * are looked up by delivery controller and topic sqn. Both are bounded; functions return a full buffer as a result, not
 * an error.
 *
 * TCP has no datagrams, so a message may be longer than those of multicast (UM-46). One cell in 16 holds the longest
 * LBMC message. All cells are backed by pages when first used.
 *
 * Threads: the context lock. Memory: one block, the creator's. Complexity: expected constant.
 */
#ifndef UM_CORE_REORDER_BUFFER_H
#define UM_CORE_REORDER_BUFFER_H

#include "core/wire/datagram_piece.h"

enum um_reorder_state {
    UM_REORDER_EXPECTED = 0, /* not received; counts the bytes of the message that starts here */
    UM_REORDER_PAYLOAD = 1,  /* waits for delivery */
    UM_REORDER_SEEN = 2,     /* delivered out of order; kept to detect duplicates (UM-56) */
    UM_REORDER_REFUSED = 3,  /* of a message longer than the receiver accepts; declared lost in its turn */
};

typedef struct um_reorder_entry {
    uint32_t owner; /* 0: free */
    uint32_t sqn;
    uint32_t cell;
    uint16_t offset; /* of the payload in its cell */
    uint16_t length;
    uint16_t flags; /* UM_MESSAGE_* */
    uint8_t state;
    uint8_t request_before; /* of a request: distance in bytes from its option to the payload */
    uint32_t first_sqn;
    uint32_t fragment_offset;
    uint32_t total;
    uint32_t assembled_bytes;  /* of the message that starts here, over all its fragments received */
    uint32_t properties_bytes; /* length of the properties at the end of the whole message; 0: none */
    int64_t received_ns;
    int64_t sent_ns;
    int64_t held_ns; /* when the entry was made, on the clock of the gaps */
} um_reorder_entry;

/* All cells of one size. */
typedef struct um_reorder_cells {
    uint8_t *memory;
    uint32_t bytes; /* size of each cell */
    uint32_t first; /* number of the first cell */
    uint32_t count;
    uint32_t begun; /* cells from here on were never used */
    uint32_t free;  /* head of the free list: cell number + 1 */
    uint32_t used;
} um_reorder_cells;

typedef struct um_reorder_buffer {
    um_reorder_cells small; /* each holds a datagram; numbers start at 0 */
    um_reorder_cells large; /* each holds the longest message; numbers follow the small ones */
    uint32_t entry_capacity;
    uint32_t table_mask;
    uint32_t entries_used;
    uint32_t cells_used;
    uint32_t entries_begun; /* entries from here on were never used */
    uint32_t entry_free;    /* head of the free list: index + 1 */
    um_reorder_entry *entries;
    uint32_t *table;
    uint32_t *cell_references;
    uint32_t *cell_next;

    um_datagram_assembly assembly; /* of a datagram that arrives in pieces */
    const uint8_t *datagram;       /* the datagram that is being delivered, or NULL */
    uint32_t datagram_length;
    uint32_t datagram_cell; /* its cell + 1; 0: not copied yet */
} um_reorder_buffer;

/* entry_capacity: a power of two. cell_bytes: the largest datagram. */
size_t um_reorder_footprint(uint32_t cell_count, uint32_t cell_bytes, uint32_t entry_capacity);
void um_reorder_init(um_reorder_buffer *store, void *memory, uint32_t cell_count, uint32_t cell_bytes,
                     uint32_t entry_capacity);

/* Bracket the delivery of one datagram. Payloads attached in between point into its copy. */
void um_reorder_begin_datagram(um_reorder_buffer *store, const uint8_t *data, uint32_t length);
void um_reorder_end_datagram(um_reorder_buffer *store);

um_reorder_entry *um_reorder_find(um_reorder_buffer *store, uint32_t owner, uint32_t sqn);
/* Adds an entry in state EXPECTED; NULL if the buffer is full. (owner, sqn) must not be present. */
um_reorder_entry *um_reorder_add(um_reorder_buffer *store, uint32_t owner, uint32_t sqn);
/* Attaches a payload within the current datagram. Returns false if no cell is free. */
bool um_reorder_attach(um_reorder_buffer *store, um_reorder_entry *hold, const uint8_t *payload, uint32_t length);
/* Releases the payload's memory; the entry stays. */
void um_reorder_detach(um_reorder_buffer *store, um_reorder_entry *hold);
void um_reorder_remove(um_reorder_buffer *store, um_reorder_entry *hold);

/* True while at least a quarter of everything is free. The last quarter is for fetched messages: if it were full of
 * live messages behind a gap, the fragments that close the gap would find no space. */
static inline bool um_reorder_has_quarter_free(const um_reorder_buffer *store)
{
    return store->small.used < store->small.count - store->small.count / 4 &&
           store->large.used < store->large.count - store->large.count / 4 &&
           store->entries_used < store->entry_capacity - store->entry_capacity / 4;
}

static inline uint8_t *um_reorder_cell(const um_reorder_buffer *store, uint32_t cell)
{
    const um_reorder_cells *cells = cell < store->large.first ? &store->small : &store->large;
    return cells->memory + (size_t)(cell - cells->first) * cells->bytes;
}

static inline const uint8_t *um_reorder_payload(const um_reorder_buffer *store, const um_reorder_entry *hold)
{
    return um_reorder_cell(store, hold->cell) + hold->offset;
}

#endif
