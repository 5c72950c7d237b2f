#include "store/span_index.h"

#include <stdlib.h>

typedef struct span_list {
    um_held_span *spans; /* oldest first */
    uint32_t count;
    uint32_t capacity;
} span_list;

struct um_span_index {
    span_list lists[UM_STORE_SOURCES_MAX];
    uint32_t source_count; /* above the highest source that ever had a span */
};

um_span_index *um_span_index_create(void)
{
    return calloc(1, sizeof(um_span_index));
}

void um_span_index_free(um_span_index *index)
{
    if (!index)
        return;
    for (uint32_t source = 0; source < index->source_count; source++)
        free(index->lists[source].spans);
    free(index);
}

static int append(um_span_index *index, uint32_t source, um_held_span span)
{
    span_list *list = &index->lists[source];
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity + list->capacity / 2 + 4;
        um_held_span *spans = realloc(list->spans, capacity * sizeof *spans);
        if (!spans)
            return -ENOMEM;
        list->spans = spans;
        list->capacity = capacity;
    }
    list->spans[list->count++] = span;
    if (source >= index->source_count)
        index->source_count = source + 1;
    return 0;
}

int um_span_index_add(um_span_index *index, uint32_t segment, const um_store_range *ranges, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        span_list *list = &index->lists[ranges[i].source];
        um_held_span *newest = list->count ? &list->spans[list->count - 1] : NULL;
        if (newest && newest->segment == segment && newest->run_index == UM_STORE_NO_RUN &&
            newest->last_sqn + 1 == ranges[i].first_sqn) {
            newest->last_sqn = ranges[i].last_sqn;
            newest->units += ranges[i].units;
            continue;
        }
        um_held_span span = {.first_sqn = ranges[i].first_sqn,
                             .last_sqn = ranges[i].last_sqn,
                             .segment = segment,
                             .run_index = UM_STORE_NO_RUN,
                             .units = ranges[i].units};
        if (append(index, ranges[i].source, span))
            return -ENOMEM;
    }
    return 0;
}

/* The span without the sqns below low_sqn. Returns false if nothing is left. */
static bool trim(um_held_span *span, uint64_t low_sqn)
{
    if (span->last_sqn < low_sqn)
        return false;
    if (span->first_sqn < low_sqn) {
        double share = (double)(span->last_sqn - low_sqn + 1) / (double)(span->last_sqn - span->first_sqn + 1);
        span->units = (uint32_t)(span->units * share);
        span->first_sqn = low_sqn;
    }
    return true;
}

int um_span_index_seal(um_span_index *index, uint32_t segment, const um_store_span *spans, uint32_t count)
{
    uint64_t low_sqn = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t source = spans[i].source;
        span_list *list = &index->lists[source];
        if (i == 0 || spans[i - 1].source != source) {
            /* The open segment's spans are the newest. Sqns dropped while it was open stay dropped. */
            low_sqn = 0;
            for (; list->count && list->spans[list->count - 1].segment == segment; list->count--) {
                uint64_t first_sqn = list->spans[list->count - 1].first_sqn;
                low_sqn = low_sqn == 0 || first_sqn < low_sqn ? first_sqn : low_sqn;
            }
        }
        um_held_span span = {spans[i].first_sqn, spans[i].last_sqn,  segment,
                             spans[i].run_index, spans[i].run_count, spans[i].units};
        if (trim(&span, low_sqn) && append(index, source, span))
            return -ENOMEM;
    }
    return 0;
}

bool um_span_index_find(const um_span_index *index, uint32_t source, uint64_t sqn, um_held_span *found)
{
    const span_list *list = &index->lists[source];
    for (uint32_t i = list->count; i--;)
        if (sqn >= list->spans[i].first_sqn && sqn <= list->spans[i].last_sqn) {
            *found = list->spans[i];
            return true;
        }
    return false;
}

bool um_span_index_next(const um_span_index *index, uint32_t source, uint64_t sqn, uint64_t *next_sqn)
{
    const span_list *list = &index->lists[source];
    bool is_found = false;
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->spans[i].last_sqn < sqn)
            continue;
        uint64_t candidate = list->spans[i].first_sqn > sqn ? list->spans[i].first_sqn : sqn;
        *next_sqn = !is_found || candidate < *next_sqn ? candidate : *next_sqn;
        is_found = true;
    }
    return is_found;
}

static int order(const void *left, const void *right)
{
    const um_sqn_range *a = left, *b = right;
    return a->first_sqn < b->first_sqn ? -1 : a->first_sqn > b->first_sqn;
}

int64_t um_span_index_ranges(const um_span_index *index, uint32_t source, um_sqn_range *ranges, uint32_t capacity)
{
    const span_list *list = &index->lists[source];
    if (list->count == 0)
        return 0;
    um_sqn_range *sorted = malloc(list->count * sizeof *sorted);
    if (!sorted)
        return -ENOMEM;
    for (uint32_t i = 0; i < list->count; i++)
        sorted[i] = (um_sqn_range){list->spans[i].first_sqn, list->spans[i].last_sqn};
    qsort(sorted, list->count, sizeof *sorted, order);
    uint32_t last = 0;
    for (uint32_t i = 1; i < list->count; i++) {
        if (sorted[i].first_sqn <= sorted[last].last_sqn + 1)
            sorted[last].last_sqn =
                sorted[i].last_sqn > sorted[last].last_sqn ? sorted[i].last_sqn : sorted[last].last_sqn;
        else
            sorted[++last] = sorted[i];
    }
    memcpy(ranges, sorted, (last + 1 < capacity ? last + 1 : capacity) * sizeof *ranges);
    free(sorted);
    return (int64_t)last + 1;
}

uint32_t um_span_index_size(const um_span_index *index, uint32_t source, uint64_t *bytes)
{
    const span_list *list = &index->lists[source];
    *bytes = 0;
    for (uint32_t i = 0; i < list->count; i++)
        *bytes += (uint64_t)list->spans[i].units * UM_STORE_RECORD_ALIGNMENT;
    return list->count;
}

uint64_t um_span_index_low_within(const um_span_index *index, uint32_t source, uint64_t max_bytes)
{
    const span_list *list = &index->lists[source];
    uint64_t bytes, low_sqn = 0;
    um_span_index_size(index, source, &bytes);
    if (bytes <= max_bytes)
        return 0;
    uint64_t excess_units = (bytes - max_bytes + UM_STORE_RECORD_ALIGNMENT - 1) / UM_STORE_RECORD_ALIGNMENT;
    for (uint32_t i = 0; i < list->count && excess_units; i++) {
        const um_held_span *span = &list->spans[i];
        uint64_t dropped_count = span->last_sqn - span->first_sqn + 1;
        if (span->units > excess_units) {
            double share = (double)excess_units / span->units * (double)dropped_count;
            dropped_count = (uint64_t)share + ((double)(uint64_t)share < share);
            excess_units = 0;
        } else {
            excess_units -= span->units;
        }
        low_sqn = span->first_sqn + dropped_count > low_sqn ? span->first_sqn + dropped_count : low_sqn;
    }
    return low_sqn;
}

void um_span_index_drop_below(um_span_index *index, uint32_t source, uint64_t low_sqn)
{
    span_list *list = &index->lists[source];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->count; i++)
        if (trim(&list->spans[i], low_sqn))
            list->spans[kept++] = list->spans[i];
    list->count = kept;
}

void um_span_index_drop_source(um_span_index *index, uint32_t source)
{
    free(index->lists[source].spans);
    index->lists[source] = (span_list){0};
}

void um_span_index_live(const um_span_index *index, uint32_t first_segment, uint32_t count, uint64_t *bytes)
{
    for (uint32_t source = 0; source < index->source_count; source++) {
        const span_list *list = &index->lists[source];
        for (uint32_t i = 0; i < list->count; i++)
            if (list->spans[i].segment - first_segment < count)
                bytes[list->spans[i].segment - first_segment] +=
                    (uint64_t)list->spans[i].units * UM_STORE_RECORD_ALIGNMENT;
    }
}

uint64_t um_span_index_memory_bytes(const um_span_index *index)
{
    uint64_t bytes = sizeof *index;
    for (uint32_t source = 0; source < index->source_count; source++)
        bytes += index->lists[source].capacity * sizeof(um_held_span);
    return bytes;
}
