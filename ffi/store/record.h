/* The records of the Store's log, as they are in a segment file (docs/store.md): little-endian, 8-byte aligned, a
 * header of 32 bytes followed by the message as it was received. The checksum of a record starts from the Store's salt
 * and the record's position in the log, so that bytes of another place or another Store are never taken for a record.
 *
 * Any thread. Memory: the caller's. No system call.
 */
#ifndef UM_STORE_RECORD_H
#define UM_STORE_RECORD_H

#include "core/foundation/base.h"

#define UM_STORE_FORMAT_VERSION 1
#define UM_STORE_RECORD_HEADER_BYTES 32
/* Longest message of one record. */
#define UM_STORE_MESSAGE_BYTES_MAX 131072
#define UM_STORE_RECORD_ALIGNMENT 8
/* Sources of one Store: their numbers are below this. */
#define UM_STORE_SOURCES_MAX 65536

enum um_store_record_flags {
    UM_STORE_RECORD_ENDS_COMMIT = 1, /* the last record of its commit */
    UM_STORE_RECORD_LOST = 2,        /* a loss marker: the message is the number of lost messages, 8 bytes */
};

typedef struct um_store_record {
    uint32_t checksum;
    uint32_t length_and_flags; /* message bytes, 24 bits; flags in the upper 8 */
    uint32_t source;
    uint32_t commit; /* lower half of the commit's number */
    uint64_t sqn;
    int64_t received_ns;
} um_store_record;

_Static_assert(sizeof(um_store_record) == UM_STORE_RECORD_HEADER_BYTES, "the format is the layout");

static inline uint32_t um_store_record_message_bytes(const um_store_record *record)
{
    return record->length_and_flags & 0xffffff;
}

static inline uint8_t um_store_record_flags(const um_store_record *record)
{
    return (uint8_t)(record->length_and_flags >> 24);
}

/* Bytes of a record in the log for a message of this length. */
static inline uint32_t um_store_record_bytes(uint32_t message_bytes)
{
    return (uint32_t)um_align_up(UM_STORE_RECORD_HEADER_BYTES + message_bytes, UM_STORE_RECORD_ALIGNMENT);
}

/* Returns the salt of a Store's checksums. */
uint32_t um_store_salt(uint64_t store_id);
/* Returns the checksum of a whole record in memory at this position of the log. */
uint32_t um_store_record_checksum(const um_store_record *record, uint32_t salt, uint64_t position);
/* Returns how many sqns the record covers: 1, or the number that a loss marker names (0: it is malformed). */
uint64_t um_store_record_sqn_count(const um_store_record *record);
/* Returns true if a whole and valid record begins here. */
bool um_store_record_is_valid(const uint8_t *data, uint64_t bytes, uint32_t salt, uint64_t position);

#endif
