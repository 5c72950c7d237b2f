#include "store/scan.h"

static um_store_row row_of(const um_store_record *record, uint64_t offset)
{
    return (um_store_row){
        .offset = (uint32_t)(offset + UM_STORE_RECORD_HEADER_BYTES),
        .length = um_store_record_message_bytes(record),
        .source = record->source,
        .commit = record->commit,
        .sqn = record->sqn,
        .sqn_count = um_store_record_sqn_count(record),
        .received_ns = record->received_ns,
        .flags = um_store_record_flags(record),
    };
}

/* Returns the record at this offset if its header is plausible, and its length. NULL with *stop set otherwise. */
static const um_store_record *record_at(const um_store_part *part, uint64_t at, uint32_t *bytes,
                                        enum um_store_scan_stop *stop)
{
    uint64_t left_bytes = part->bytes - at;
    *stop = part->is_last && left_bytes ? UM_STORE_SCAN_BAD : UM_STORE_SCAN_MORE;
    if (left_bytes < UM_STORE_RECORD_HEADER_BYTES)
        return NULL;
    const um_store_record *record = (const void *)(part->data + at);
    uint32_t message_bytes = um_store_record_message_bytes(record);
    *bytes = um_store_record_bytes(message_bytes);
    if (message_bytes > UM_STORE_MESSAGE_BYTES_MAX || record->source >= UM_STORE_SOURCES_MAX || record->checksum == 0) {
        /* A checksum of 0 is possible, once in 2^32 records; the full check decides. */
        if (!um_store_record_is_valid(part->data + at, left_bytes, part->salt, part->position + at)) {
            *stop = UM_STORE_SCAN_BAD;
            return NULL;
        }
    }
    return *bytes <= left_bytes ? record : NULL;
}

uint32_t um_store_scan_source(const um_store_part *part, uint32_t source, uint64_t first_sqn, uint64_t last_sqn,
                              um_store_row *rows, uint32_t capacity, enum um_store_scan_stop *stop,
                              uint64_t *read_bytes)
{
    uint32_t count = 0, bytes = 0;
    uint64_t at = 0;
    const um_store_record *record;
    while ((record = record_at(part, at, &bytes, stop))) {
        uint64_t last_covered = record->sqn + um_store_record_sqn_count(record) - 1;
        if (record->source == source && record->sqn <= last_sqn && last_covered >= first_sqn) {
            if (count == capacity) {
                *stop = UM_STORE_SCAN_FULL;
                break;
            }
            if (!um_store_record_is_valid(part->data + at, part->bytes - at, part->salt, part->position + at)) {
                *stop = UM_STORE_SCAN_BAD;
                break;
            }
            rows[count++] = row_of(record, at);
            if (last_covered >= last_sqn) {
                at += bytes;
                *stop = UM_STORE_SCAN_DONE;
                break;
            }
        }
        at += bytes;
    }
    *read_bytes = at;
    return count;
}

uint32_t um_store_scan_all(const um_store_part *part, um_store_row *rows, uint32_t capacity,
                           enum um_store_scan_stop *stop, uint64_t *read_bytes)
{
    uint32_t count = 0, bytes = 0;
    uint64_t at = 0;
    const um_store_record *record;
    while ((record = record_at(part, at, &bytes, stop))) {
        if (!um_store_record_is_valid(part->data + at, part->bytes - at, part->salt, part->position + at)) {
            *stop = UM_STORE_SCAN_BAD;
            break;
        }
        if (count == capacity) {
            *stop = UM_STORE_SCAN_FULL;
            break;
        }
        rows[count++] = row_of(record, at);
        at += bytes;
    }
    *read_bytes = at;
    return count;
}

uint32_t um_store_rows_index(const um_store_part *part, const um_store_row *rows, uint32_t count,
                             uint64_t segment_position, um_store_runs *runs)
{
    for (uint32_t i = 0; i < count; i++) {
        if (um_store_runs_count(runs) == UM_STORE_RUNS_MAX)
            return i;
        uint64_t position = part->position + rows[i].offset - UM_STORE_RECORD_HEADER_BYTES;
        um_store_runs_add(runs, rows[i].source, rows[i].sqn, rows[i].sqn_count, (uint32_t)(position - segment_position),
                          um_store_record_bytes(rows[i].length));
    }
    return count;
}

uint64_t um_store_find_record(const um_store_part *part, uint64_t from_bytes, bool *is_zero)
{
    uint64_t at = from_bytes;
    *is_zero = true;
    for (; at < part->bytes; at += UM_STORE_RECORD_ALIGNMENT) {
        uint64_t word = 0;
        uint64_t left_bytes = part->bytes - at;
        memcpy(&word, part->data + at, left_bytes < sizeof word ? left_bytes : sizeof word);
        if (word == 0 && at + 2 * sizeof word <= part->bytes && memcmp(part->data + at + 8, "\0\0\0\0\0\0\0", 8) == 0)
            continue; /* no record: its checksum and length would be 0, and its source and commit */
        if (um_store_record_is_valid(part->data + at, left_bytes, part->salt, part->position + at))
            return at;
        *is_zero &= word == 0;
    }
    return part->bytes;
}
