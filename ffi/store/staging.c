#include "store/staging.h"

#include "os/memory.h"

/* The source number of a filler: the rest of the ring is unused. */
#define FILLER UINT32_MAX

struct um_staging {
    uint8_t *ring;
    uint64_t capacity;
    UM_CACHE_ALIGNED _Atomic uint64_t tail; /* bytes ever appended */
    UM_CACHE_ALIGNED _Atomic uint64_t head; /* bytes ever released */
    /* Used by the sealing thread only. */
    um_store_range ranges[UM_STORE_COMMIT_RANGES_MAX];
    uint32_t range_of[UM_STORE_SOURCES_MAX]; /* newest range of each source; checked against the range before use */
};

um_staging *um_staging_create(uint64_t bytes)
{
    um_staging *staging = um_map(sizeof *staging);
    if (!staging)
        return NULL;
    staging->capacity = bytes;
    staging->ring = um_map(bytes);
    if (!staging->ring) {
        um_unmap(staging, sizeof *staging);
        return NULL;
    }
    return staging;
}

void um_staging_free(um_staging *staging)
{
    if (!staging)
        return;
    um_unmap(staging->ring, staging->capacity);
    um_unmap(staging, sizeof *staging);
}

/* Finds space for a record behind the last one, with a filler where the ring ends before it. Returns where it begins,
 * and the tail behind it; NULL: no space now. */
static um_store_record *space_for(um_staging *staging, uint32_t bytes, uint64_t *new_tail)
{
    uint64_t tail = atomic_load_explicit(&staging->tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&staging->head, memory_order_acquire);
    uint64_t to_end = staging->capacity - tail % staging->capacity;
    uint64_t filler_bytes = to_end < bytes ? to_end : 0;
    if (tail + filler_bytes + bytes - head > staging->capacity)
        return NULL;
    if (filler_bytes >= UM_STORE_RECORD_HEADER_BYTES)
        ((um_store_record *)(void *)(staging->ring + tail % staging->capacity))->source = FILLER;
    tail += filler_bytes;
    *new_tail = tail + bytes;
    um_store_record *record = (void *)(staging->ring + tail % staging->capacity);
    memset((uint8_t *)record + bytes - UM_STORE_RECORD_ALIGNMENT, 0, UM_STORE_RECORD_ALIGNMENT);
    return record;
}

int um_staging_append(um_staging *staging, uint32_t source, uint64_t sqn, int64_t received_ns, uint8_t flags,
                      const uint8_t *message, uint32_t message_bytes)
{
    if (message_bytes > UM_STORE_MESSAGE_BYTES_MAX)
        return -EMSGSIZE;
    if (source >= UM_STORE_SOURCES_MAX || flags & ~UM_STORE_RECORD_LOST)
        return -EINVAL;
    uint64_t tail;
    um_store_record *record = space_for(staging, um_store_record_bytes(message_bytes), &tail);
    if (!record)
        return -ENOBUFS;
    *record = (um_store_record){
        .length_and_flags = message_bytes | (uint32_t)flags << 24,
        .source = source,
        .sqn = sqn,
        .received_ns = received_ns,
    };
    memcpy(record + 1, message, message_bytes);
    if (um_store_record_sqn_count(record) == 0)
        return -EINVAL;
    atomic_store_explicit(&staging->tail, tail, memory_order_release);
    return 0;
}

int64_t um_staging_append_many(um_staging *staging, uint32_t source, uint64_t first_sqn, int64_t received_ns,
                               const uint8_t *data, const uint32_t *message_bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        int error = um_staging_append(staging, source, first_sqn + i, received_ns, 0, data, message_bytes[i]);
        if (error)
            return error == -ENOBUFS || i ? (int64_t)i : error;
        data += message_bytes[i];
    }
    return count;
}

uint32_t um_received_rows_encode(const um_received_rows *rows, uint32_t at, uint32_t topic_index, uint8_t *out)
{
    uint16_t flags = rows->flags[at];
    um_lbmc_layout layout = {.topic_index = topic_index,
                             .sqn = rows->sqns[at],
                             .flags = flags & UM_MESSAGE_FRAGMENT,
                             .first_sqn = rows->first_sqns[at],
                             .offset = rows->fragment_offsets[at],
                             .total = rows->message_lengths[at],
                             .payload_length = (uint32_t)(rows->offsets[at + 1] - rows->offsets[at])};
    um_lbmc_first_options options = {0};
    if (flags & UM_MESSAGE_PROPERTIES)
        um_lbmc_make_first_options(&options, &(um_lbmc_extras){.properties_bytes = rows->properties[at].bytes});
    uint32_t overhead = um_lbmc_overhead(layout.flags, false, false) + options.length;
    if (out) {
        uint8_t *payload = um_lbmc_write_with_options(out, &layout, &options);
        memcpy(payload, rows->payload + rows->offsets[at], layout.payload_length);
    }
    return overhead + layout.payload_length;
}

int64_t um_staging_append_rows(um_staging *staging, const um_received_rows *rows, uint32_t first, uint32_t source,
                               uint64_t sqn, uint32_t topic_index, uint64_t *appended_bytes)
{
    if (source >= UM_STORE_SOURCES_MAX)
        return -EINVAL;
    uint32_t at = first;
    *appended_bytes = 0;
    for (; at < rows->count; at++, sqn++) {
        if (um_row_kind_of(rows->flags[at]) != UM_ROW_MESSAGE || rows->sources[at] != rows->sources[first] ||
            rows->sqns[at] != (uint32_t)sqn)
            break;
        uint32_t message_bytes = um_received_rows_encode(rows, at, topic_index, NULL);
        if (message_bytes > UM_LBMC_MESSAGE_BYTES_MAX) {
            if (at == first)
                return -EMSGSIZE;
            break;
        }
        uint64_t tail;
        um_store_record *record = space_for(staging, um_store_record_bytes(message_bytes), &tail);
        if (!record)
            break;
        *record = (um_store_record){
            .length_and_flags = message_bytes,
            .source = source,
            .sqn = sqn,
            .received_ns = rows->received_ns[at],
        };
        um_received_rows_encode(rows, at, topic_index, (uint8_t *)(record + 1));
        *appended_bytes += message_bytes;
        atomic_store_explicit(&staging->tail, tail, memory_order_release);
    }
    return at - first;
}

uint64_t um_staging_used_bytes(const um_staging *staging)
{
    uint64_t head = atomic_load_explicit(&staging->head, memory_order_acquire);
    return atomic_load_explicit(&staging->tail, memory_order_acquire) - head;
}

/* Skips the filler at the end of the ring. Returns the oldest record, or NULL. */
static um_store_record *oldest(um_staging *staging, uint64_t *staged_bytes)
{
    uint64_t tail = atomic_load_explicit(&staging->tail, memory_order_acquire);
    uint64_t head = atomic_load_explicit(&staging->head, memory_order_relaxed);
    if (head == tail)
        return NULL;
    uint64_t to_end = staging->capacity - head % staging->capacity;
    um_store_record *record = (void *)(staging->ring + head % staging->capacity);
    if (to_end < UM_STORE_RECORD_HEADER_BYTES || record->source == FILLER) {
        head += to_end;
        atomic_store_explicit(&staging->head, head, memory_order_release);
        to_end = staging->capacity;
        record = (void *)staging->ring;
    }
    *staged_bytes = tail - head < to_end ? tail - head : to_end;
    return record;
}

uint32_t um_staging_first_bytes(um_staging *staging)
{
    uint64_t staged_bytes;
    const um_store_record *record = oldest(staging, &staged_bytes);
    return record ? um_store_record_bytes(um_store_record_message_bytes(record)) : 0;
}

/* Notes the record in the ranges of the commit. Returns false if there is no space for a new range. */
static bool note_range(um_staging *staging, um_store_batch *batch, const um_store_record *record, uint32_t bytes)
{
    uint64_t last_sqn = record->sqn + um_store_record_sqn_count(record) - 1;
    uint32_t units = bytes / UM_STORE_RECORD_ALIGNMENT;
    uint32_t newest = staging->range_of[record->source];
    if (newest < batch->range_count) {
        um_store_range *range = &staging->ranges[newest];
        if (range->source == record->source && range->last_sqn + 1 == record->sqn) {
            range->last_sqn = last_sqn;
            range->units += units;
            return true;
        }
    }
    if (batch->range_count == UM_STORE_COMMIT_RANGES_MAX)
        return false;
    staging->ranges[batch->range_count] = (um_store_range){record->sqn, last_sqn, record->source, units};
    staging->range_of[record->source] = batch->range_count++;
    return true;
}

void um_staging_seal(um_staging *staging, um_store_runs *runs, uint32_t salt, uint64_t position, uint32_t offset,
                     uint32_t commit, uint32_t max_bytes, um_store_batch *batch)
{
    *batch = (um_store_batch){.ranges = staging->ranges};
    uint64_t staged_bytes = 0;
    um_store_record *first = oldest(staging, &staged_bytes), *last = NULL;
    if (!first)
        return;
    batch->data = (const uint8_t *)first;
    while (batch->bytes < staged_bytes) {
        uint64_t left_bytes = staged_bytes - batch->bytes;
        um_store_record *record = (void *)((uint8_t *)first + batch->bytes);
        if (left_bytes < UM_STORE_RECORD_HEADER_BYTES || record->source == FILLER)
            break;
        uint32_t bytes = um_store_record_bytes(um_store_record_message_bytes(record));
        if (bytes > max_bytes - batch->bytes || um_store_runs_count(runs) == UM_STORE_RUNS_MAX ||
            !note_range(staging, batch, record, bytes))
            break;
        um_store_runs_add(runs, record->source, record->sqn, um_store_record_sqn_count(record), offset + batch->bytes,
                          bytes);
        record->commit = commit;
        if (last)
            last->checksum = um_store_record_checksum(last, salt, position + (uint64_t)((uint8_t *)last - batch->data));
        last = record;
        batch->bytes += bytes;
        batch->record_count++;
    }
    if (last) {
        last->length_and_flags |= (uint32_t)UM_STORE_RECORD_ENDS_COMMIT << 24;
        last->checksum = um_store_record_checksum(last, salt, position + (uint64_t)((uint8_t *)last - batch->data));
    }
}

void um_staging_release(um_staging *staging, uint32_t bytes)
{
    uint64_t head = atomic_load_explicit(&staging->head, memory_order_relaxed);
    atomic_store_explicit(&staging->head, head + bytes, memory_order_release);
}
