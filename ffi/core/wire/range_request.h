/* How far back a receiver wants to go, on the wire: a control message with option 78, and an extended option behind it
 * for the bounds that the format lacks (UM-140; docs/wire.md).
 *
 * Threads: none. Memory: the caller's. Errors: false for what is not well-formed.
 */
#ifndef UM_CORE_RANGE_REQUEST_H
#define UM_CORE_RANGE_REQUEST_H

#include "core/source/retention.h"

enum { UM_RANGE_REQUEST_BYTES_MAX = 64 };

typedef struct um_range_request {
    uint32_t topic_index;
    uint32_t request_index; /* the range that answers it carries it, too */
    uint32_t outstanding_max;
    um_retained_wish wish;
} um_range_request;

/* Writes it; returns its length, at most UM_RANGE_REQUEST_BYTES_MAX. */
uint32_t um_range_request_write(uint8_t *out, const um_range_request *request);

/* Reads one whole control message. */
bool um_range_request_read(const uint8_t *message, uint32_t length, um_range_request *request);

#endif
