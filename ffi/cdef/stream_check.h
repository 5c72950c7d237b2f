/* Looking at every message of a measurement. Contract: ffi/bench/stream_check.h. */
#include "bench/stream_check.h"

typedef struct um_stream {
    uint64_t next;
    uint64_t sqn_fault_count;
    uint32_t next_sqn;
    bool has_sqn;
    ...;
} um_stream;

uint32_t um_stream_take(um_stream *streams, const uint32_t *stream_of, uint32_t source_count, const um_rows *rows,
                        uint32_t message_bytes);
