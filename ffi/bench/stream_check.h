/* Checks that the rows of a batch are the next messages of their streams, which carry the counters 0, 1, 2, ... in
 * little endian. One pass in C, so that a thousand streams cost as much as one: the stack is measured, not the check.
 *
 * The streams belong to their caller, one thread at a time uses them.
 */
#ifndef UM_BENCH_STREAM_CHECK_H
#define UM_BENCH_STREAM_CHECK_H

#include "core/delivery/message_queue.h"

typedef struct um_stream {
    uint64_t next; /* the next counter */
    uint64_t sqn_fault_count;
    uint32_t next_sqn;
    bool has_sqn; /* next_sqn is known */
} um_stream;

/* Takes rows up to one that is an event or has another length or counter, and returns their number. stream_of: the
 * stream of each source number below source_count. Counts topic sqns that do not follow their predecessor. */
uint32_t um_stream_take(um_stream *streams, const uint32_t *stream_of, uint32_t source_count, const um_rows *rows,
                        uint32_t message_bytes);

#endif
