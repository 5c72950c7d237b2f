#include "store/runs.h"

#include <stdlib.h>

struct um_store_runs {
    uint32_t count;
    uint32_t broken_at; /* runs before this one are not continued */
    um_store_run runs[UM_STORE_RUNS_MAX];
    uint32_t earlier[UM_STORE_RUNS_MAX];   /* the source's run before this one */
    uint32_t newest[UM_STORE_SOURCES_MAX]; /* run of each source */
};

um_store_runs *um_store_runs_create(void)
{
    um_store_runs *runs = malloc(sizeof *runs);
    if (runs)
        um_store_runs_clear(runs);
    return runs;
}

void um_store_runs_free(um_store_runs *runs)
{
    free(runs);
}

void um_store_runs_clear(um_store_runs *runs)
{
    runs->count = 0;
    runs->broken_at = 0;
    memset(runs->newest, 0xff, sizeof runs->newest);
}

void um_store_runs_add(um_store_runs *runs, uint32_t source, uint64_t sqn, uint64_t sqn_count, uint32_t offset,
                       uint32_t bytes)
{
    uint32_t newest = runs->newest[source];
    if (newest != UM_STORE_NO_RUN && newest >= runs->broken_at) {
        um_store_run *run = &runs->runs[newest];
        if (run->first_sqn + run->count == sqn && offset - run->offset < UM_STORE_RUN_BYTES &&
            run->count + sqn_count <= UINT32_MAX) {
            run->count += (uint32_t)sqn_count;
            run->units += bytes / UM_STORE_RECORD_ALIGNMENT;
            return;
        }
    }
    um_debug_assert(runs->count < UM_STORE_RUNS_MAX);
    runs->runs[runs->count] = (um_store_run){.first_sqn = sqn,
                                             .source = source,
                                             .count = (uint32_t)sqn_count,
                                             .offset = offset,
                                             .units = bytes / UM_STORE_RECORD_ALIGNMENT};
    runs->earlier[runs->count] = newest;
    runs->newest[source] = runs->count++;
}

uint32_t um_store_runs_break(um_store_runs *runs)
{
    runs->broken_at = runs->count;
    return runs->count;
}

void um_store_runs_cut(um_store_runs *runs, uint32_t count)
{
    runs->count = count;
}

uint32_t um_store_runs_count(const um_store_runs *runs)
{
    return runs->count;
}

static bool covers(const um_store_run *run, uint64_t sqn)
{
    return sqn >= run->first_sqn && sqn - run->first_sqn < run->count;
}

bool um_store_runs_find(const um_store_runs *runs, uint32_t source, uint64_t sqn, um_store_run *found)
{
    for (uint32_t i = runs->newest[source]; i != UM_STORE_NO_RUN; i = runs->earlier[i])
        if (covers(&runs->runs[i], sqn)) {
            *found = runs->runs[i];
            return true;
        }
    return false;
}

static int order(const void *left, const void *right)
{
    const um_store_run *a = left, *b = right;
    if (a->source != b->source)
        return a->source < b->source ? -1 : 1;
    if (a->first_sqn != b->first_sqn)
        return a->first_sqn < b->first_sqn ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

void um_store_runs_sorted(const um_store_runs *runs, um_store_run *sorted)
{
    memcpy(sorted, runs->runs, runs->count * sizeof *sorted);
    qsort(sorted, runs->count, sizeof *sorted, order);
}

uint32_t um_store_runs_spans(const um_store_run *sorted, uint32_t run_count, um_store_span *spans)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < run_count; i++) {
        const um_store_run *run = &sorted[i];
        uint64_t last_sqn = run->first_sqn + run->count - 1;
        um_store_span *span = count ? &spans[count - 1] : NULL;
        if (span && span->source == run->source && run->first_sqn <= span->last_sqn + 1) {
            span->last_sqn = last_sqn > span->last_sqn ? last_sqn : span->last_sqn;
            span->run_count++;
            span->units += run->units;
        } else {
            spans[count++] = (um_store_span){run->first_sqn, last_sqn, run->source, i, 1, run->units};
        }
    }
    return count;
}

const um_store_run *um_store_sorted_find(const um_store_run *sorted, uint32_t run_count, uint64_t sqn)
{
    uint32_t low = 0, high = run_count; /* the first run that begins after the sqn */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (sorted[middle].first_sqn <= sqn)
            low = middle + 1;
        else
            high = middle;
    }
    /* Runs overlap only if a message was stored twice. */
    while (low--)
        if (covers(&sorted[low], sqn))
            return &sorted[low];
    return NULL;
}
