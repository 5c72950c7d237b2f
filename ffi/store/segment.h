/* The parts of a segment file besides its records: the header at its start, and the trailer, the last bytes of a
 * sealed file, behind the footer (docs/store.md).
 *
 *     header 64 | records ... | spans, 32 each | runs, 24 each | trailer 64
 *
 * Any thread. Memory: the caller's. No system call.
 */
#ifndef UM_STORE_SEGMENT_H
#define UM_STORE_SEGMENT_H

#include "core/foundation/base.h"

#define UM_STORE_SEGMENT_HEADER_BYTES 64
#define UM_STORE_TRAILER_BYTES 64

typedef struct um_store_segment_header {
    uint8_t magic[8];
    uint32_t version;
    uint32_t durability; /* 0 disk, 1 written, 2 memory: which records a crash may have lost */
    uint64_t store_id;
    uint64_t position; /* of the header's first byte in the log */
    uint64_t first_commit;
    int64_t created_ns; /* wall clock */
    uint8_t reserved[12];
    uint32_t checksum; /* of the bytes before it */
} um_store_segment_header;

typedef struct um_store_trailer {
    uint8_t magic[8];
    uint64_t position;    /* of the segment, as in its header */
    uint64_t records_end; /* offset behind the last record, where the spans begin */
    uint64_t last_commit; /* highest commit of the segment */
    uint32_t span_count;
    uint32_t run_count;
    uint32_t spans_checksum;
    uint32_t runs_checksum;
    uint64_t bad_bytes; /* between records_start and records_end, not covered by records */
    uint32_t reserved;
    uint32_t checksum; /* of the bytes before it */
} um_store_trailer;

_Static_assert(sizeof(um_store_segment_header) == UM_STORE_SEGMENT_HEADER_BYTES, "the format is the layout");
_Static_assert(sizeof(um_store_trailer) == UM_STORE_TRAILER_BYTES, "the format is the layout");

/* Fill in magic, version and checksum. */
void um_store_segment_header_finish(um_store_segment_header *header);
void um_store_trailer_finish(um_store_trailer *trailer);
/* Return 0, -EBADMSG (not ours, or damaged) or -EPROTONOSUPPORT (another version). */
int um_store_segment_header_check(const um_store_segment_header *header);
int um_store_trailer_check(const um_store_trailer *trailer);

#endif
