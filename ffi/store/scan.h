/* Reads records from a part of a segment: to serve a request, to find what a crash left, and to verify.
 *
 * Any thread. Memory: the caller's. No system call.
 */
#ifndef UM_STORE_SCAN_H
#define UM_STORE_SCAN_H

#include "store/runs.h"

enum um_store_scan_stop {
    UM_STORE_SCAN_FULL = 1, /* the rows are full */
    UM_STORE_SCAN_MORE = 2, /* the part ends within a record, or where the next begins */
    UM_STORE_SCAN_BAD = 3,  /* no valid record begins here */
    UM_STORE_SCAN_DONE = 4, /* the last sqn requested was found */
};

/* A record found. */
typedef struct um_store_row {
    uint32_t offset; /* of the message in the part */
    uint32_t length;
    uint32_t source;
    uint32_t commit;
    uint64_t sqn;
    uint64_t sqn_count; /* more than 1 only for a loss marker */
    int64_t received_ns;
    uint32_t flags;
} um_store_row;

/* Part of the log to read. */
typedef struct um_store_part {
    const uint8_t *data;
    uint64_t bytes;
    uint64_t position; /* of its first byte in the log */
    uint32_t salt;
    bool is_last; /* no more of the segment follows: a record cut off by the end is bad */
} um_store_part;

/* Finds the records of a source from first_sqn to last_sqn, in the order of the log. Records of other sources are
 * skipped by their headers, unchecked; stops at a record that is not valid. Stores the bytes that were read. */
uint32_t um_store_scan_source(const um_store_part *part, uint32_t source, uint64_t first_sqn, uint64_t last_sqn,
                              um_store_row *rows, uint32_t capacity, enum um_store_scan_stop *stop,
                              uint64_t *read_bytes);
/* Finds all records, each checked. */
uint32_t um_store_scan_all(const um_store_part *part, um_store_row *rows, uint32_t capacity,
                           enum um_store_scan_stop *stop, uint64_t *read_bytes);
/* Adds records to the runs of a segment. `segment_position`: of the segment's first byte. Returns how many were added
 * before the runs were full. */
uint32_t um_store_rows_index(const um_store_part *part, const um_store_row *rows, uint32_t count,
                             uint64_t segment_position, um_store_runs *runs);
/* Returns the offset of the first valid record at or after from_bytes, or part->bytes if there is none. Stores whether
 * all bytes from there to the record are zero: the segment was never written here. */
uint64_t um_store_find_record(const um_store_part *part, uint64_t from_bytes, bool *is_zero);

#endif
