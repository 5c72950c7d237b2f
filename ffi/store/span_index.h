/* The index of a whole repository: for each source its spans, 32 bytes per segment and gapless range, however many
 * messages they hold. A span names the segment and its part of the footer; of the open segment, the runs in memory.
 *
 * Threads: one at a time. Memory: grows with the spans; allocated by um_span_index_create, freed by _free.
 * Errors: 0 or a negative errno.
 */
#ifndef UM_STORE_SPAN_INDEX_H
#define UM_STORE_SPAN_INDEX_H

#include "store/staging.h"

typedef struct um_held_span {
    uint64_t first_sqn;
    uint64_t last_sqn;
    uint32_t segment; /* the number of the segment in this process */
    uint32_t run_index;
    uint32_t run_count;
    uint32_t units; /* of the records, in 8 bytes; after a part was dropped, estimated by the share of sqns left */
} um_held_span;

typedef struct um_sqn_range {
    uint64_t first_sqn;
    uint64_t last_sqn;
} um_sqn_range;

typedef struct um_span_index um_span_index;

um_span_index *um_span_index_create(void);
void um_span_index_free(um_span_index *index);
/* The ranges of a commit to the open segment are readable. -ENOMEM */
int um_span_index_add(um_span_index *index, uint32_t segment, const um_store_range *ranges, uint32_t count);
/* The segment has a footer with these spans: they replace the segment's. -ENOMEM */
int um_span_index_seal(um_span_index *index, uint32_t segment, const um_store_span *spans, uint32_t count);
/* Finds the newest span that holds the sqn. */
bool um_span_index_find(const um_span_index *index, uint32_t source, uint64_t sqn, um_held_span *found);
/* Finds the lowest sqn held at or after this one. */
bool um_span_index_next(const um_span_index *index, uint32_t source, uint64_t sqn, uint64_t *next_sqn);
/* Writes the ranges of sqns held, merged, in order. Returns their number, also if it is more than capacity, or a
 * negative errno. */
int64_t um_span_index_ranges(const um_span_index *index, uint32_t source, um_sqn_range *ranges, uint32_t capacity);
/* Returns how many spans a source has, and stores the bytes of its records. */
uint32_t um_span_index_size(const um_span_index *index, uint32_t source, uint64_t *bytes);
/* Returns the lowest sqn to keep so that the source's newest records have at most max_bytes; 0: all of them. */
uint64_t um_span_index_low_within(const um_span_index *index, uint32_t source, uint64_t max_bytes);
/* Drops the sqns below this one. */
void um_span_index_drop_below(um_span_index *index, uint32_t source, uint64_t low_sqn);
/* Drops all spans of a source. */
void um_span_index_drop_source(um_span_index *index, uint32_t source);
/* Adds up the bytes still held in each of `count` segments from first_segment on. */
void um_span_index_live(const um_span_index *index, uint32_t first_segment, uint32_t count, uint64_t *bytes);
/* Returns the memory of the index. */
uint64_t um_span_index_memory_bytes(const um_span_index *index);

#endif
