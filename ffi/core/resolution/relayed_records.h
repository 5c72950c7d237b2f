/* Records that a resolution daemon has relayed recently: a daemon that cannot keep up leaves out repetitions. It
 * compares records, not datagrams, because contexts pack repeated records into different datagrams each time.
 *
 * No information is lost: all clients have received the same record shortly before, and it is relayed again if it is
 * repeated later. If two records share a place in the table, the earlier one counts as new again.
 *
 * Threads: one at a time. Memory: one block of footprint bytes, the owner's. Complexity: linear in the datagram.
 */
#ifndef UM_CORE_RELAYED_RECORDS_H
#define UM_CORE_RELAYED_RECORDS_H

#include "core/foundation/siphash.h"
#include "core/resolution/lbmr.h"

typedef struct um_relayed_records um_relayed_records;

/* The places of the records of a datagram that must be relayed: queries, without their NUL, come first. */
typedef struct um_relayed_part {
    uint32_t query_count;
    uint32_t record_count;
    uint32_t left_out_count; /* records that were relayed recently */
    bool has_packet_options;
    um_lbmr_place records[UM_LBMR_RECORDS_MAX];
} um_relayed_part;

size_t um_relayed_records_footprint(void);
/* memory: zeroed. `key`: secret and random, so that no client can make the daemon leave out records of others. */
um_relayed_records *um_relayed_records_init(void *memory, um_siphash_key key);

/* Makes every record new again, because there is a new client. */
void um_relayed_records_forget(um_relayed_records *records);

/* Notes the records of a datagram of queries and advertisements as relayed for `client`, a number for the address that
 * sent them, and stores those that were not relayed within the last `repeat_ns`. Returns false if the datagram is
 * malformed or of another type. */
bool um_relayed_records_take(um_relayed_records *records, const uint8_t *data, uint32_t bytes, uint64_t client,
                             int64_t now_ns, int64_t repeat_ns, um_relayed_part *part);

#endif
