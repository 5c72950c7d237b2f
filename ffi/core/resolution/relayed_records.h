/* What a resolution daemon has relayed lately, so that one that cannot keep up leaves out what it has just said:
 * records, because contexts pack what they repeat into other datagrams each time.
 *
 * Nothing is lost by it: of a record that is left out everybody has had the same one shortly before, and it is relayed
 * when it comes again later. A place that two records share makes the earlier one new again.
 *
 * Threads: one at a time. Memory: one block of footprint bytes, the owner's. Complexity: linear in the datagram.
 */
#ifndef UM_CORE_RELAYED_RECORDS_H
#define UM_CORE_RELAYED_RECORDS_H

#include "core/foundation/siphash.h"
#include "core/resolution/lbmr.h"

typedef struct um_relayed_records um_relayed_records;

/* The records of a datagram that are to be relayed: which bytes of it, queries without their NUL first. */
typedef struct um_relayed_part {
    uint32_t query_count;
    uint32_t record_count;
    uint32_t left_out_count; /* records that were relayed lately */
    bool has_packet_options;
    um_lbmr_place records[UM_LBMR_RECORDS_MAX];
} um_relayed_part;

size_t um_relayed_records_footprint(void);
/* Zeroed memory. `key` is secret and random: with it nobody has the records of others left out. */
um_relayed_records *um_relayed_records_init(void *memory, um_siphash_key key);

/* Every record is new once more: there is somebody who has not had it. */
void um_relayed_records_forget(um_relayed_records *records);

/* Notes the records of a datagram of queries and advertisements as relayed for `client`, a number of the address that
 * sent them, and finds those that were not within the last `repeat_ns`. False: it is malformed, or another datagram. */
bool um_relayed_records_take(um_relayed_records *records, const uint8_t *data, uint32_t bytes, uint64_t client,
                             int64_t now_ns, int64_t repeat_ns, um_relayed_part *part);

#endif
