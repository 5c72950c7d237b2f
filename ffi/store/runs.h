/* The index of one segment while it is open: runs of consecutive sqns of one source. A run ends where the next sqn is
 * missing or its records would span more than UM_STORE_RUN_BYTES, so that a lookup walks a bounded part of the log.
 * At the end of the segment the runs are sorted and summed up as spans: maximal ranges of consecutive sqns. Runs and
 * spans are the segment's footer.
 *
 * Threads: one at a time. Memory: allocated by um_store_runs_create, freed by _free. No system call.
 */
#ifndef UM_STORE_RUNS_H
#define UM_STORE_RUNS_H

#include "store/record.h"

#define UM_STORE_RUN_BYTES 1048576
/* A segment with this many runs ends early. */
#define UM_STORE_RUNS_MAX 262144
#define UM_STORE_NO_RUN 0xffffffff

typedef struct um_store_run {
    uint64_t first_sqn;
    uint32_t source;
    uint32_t count;  /* sqns */
    uint32_t offset; /* of the first record in the segment */
    uint32_t units;  /* of its records together, in 8 bytes */
} um_store_run;

_Static_assert(sizeof(um_store_run) == 24, "the format is the layout");

/* Sqns of one source that are held without a gap. */
typedef struct um_store_span {
    uint64_t first_sqn;
    uint64_t last_sqn;
    uint32_t source;
    uint32_t run_index; /* of its first run, in the sorted runs; UM_STORE_NO_RUN: the segment is open */
    uint32_t run_count;
    uint32_t units;
} um_store_span;

_Static_assert(sizeof(um_store_span) == 32, "the format is the layout");

typedef struct um_store_runs um_store_runs;

um_store_runs *um_store_runs_create(void);
void um_store_runs_free(um_store_runs *runs);
void um_store_runs_clear(um_store_runs *runs);
/* Adds the next record of the segment. Precondition: fewer than UM_STORE_RUNS_MAX runs. */
void um_store_runs_add(um_store_runs *runs, uint32_t source, uint64_t sqn, uint64_t sqn_count, uint32_t offset,
                       uint32_t bytes);
/* No run continues across this point of the segment. Returns the number of runs before it. */
uint32_t um_store_runs_break(um_store_runs *runs);
/* Drops the runs added since the break that returned `count`. Nothing may be added after it. */
void um_store_runs_cut(um_store_runs *runs, uint32_t count);
uint32_t um_store_runs_count(const um_store_runs *runs);
/* Finds the newest run that covers the sqn. Returns false if there is none. */
bool um_store_runs_find(const um_store_runs *runs, uint32_t source, uint64_t sqn, um_store_run *found);
/* Copies all runs, sorted by source and sqn. */
void um_store_runs_sorted(const um_store_runs *runs, um_store_run *sorted);
/* Writes the spans of sorted runs, at most one per run, and returns their number. */
uint32_t um_store_runs_spans(const um_store_run *sorted, uint32_t run_count, um_store_span *spans);
/* Finds in a part of the sorted runs, all of one source, the run that covers the sqn; NULL: there is none. */
const um_store_run *um_store_sorted_find(const um_store_run *sorted, uint32_t run_count, uint64_t sqn);

#endif
