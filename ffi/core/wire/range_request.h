/* Range requests of late join and recovery: how far back a receiver starts (UM-140; docs/wire.md). A control message
 * with option 78, followed by an extended option for bounds that the format does not have; and the response, the range
 * that is retained.
 *
 * Threads: any. Memory: the caller's. Errors: false for malformed messages.
 */
#ifndef UM_CORE_RANGE_REQUEST_H
#define UM_CORE_RANGE_REQUEST_H

#include "core/wire/lbmc.h"

enum {
    UM_RANGE_REQUEST_BYTES_MAX = 64,
    UM_RECOVERY_REQUEST_BYTES = 28, /* the option that requests one message (option 21) */
    UM_RECOVERY_RANGE_BYTES = 20,   /* a control message with the retained range (option 30) */
};

/* The purpose of a fetch, the lowest bit of its requests' index. */
enum um_request_purpose { UM_PURPOSE_LATE_JOIN, UM_PURPOSE_OFF_TRANSPORT };

/* Returns the index of a topic's requests. The source repeats it in its answers, which identifies the topic of a range
 * on a connection that several topics share. */
static inline uint32_t um_request_index(enum um_request_purpose purpose, uint32_t topic_index)
{
    return topic_index << 1 | (uint32_t)purpose;
}

/* Returns the topic index that a request index names, or the alternative if it names none. */
static inline uint32_t um_request_topic(uint32_t request_index, uint32_t alternative)
{
    return request_index >> 1 != 0 ? request_index >> 1 : alternative;
}

/* How far back to start. Each bound that is present holds. */
typedef struct um_range_bounds {
    bool has_low_sqn, has_count, has_bytes, has_age;
    uint32_t low_sqn;
    uint32_t count;
    uint64_t bytes;
    int64_t age_ns;
} um_range_bounds;

typedef struct um_range_request {
    uint32_t topic_index;
    uint32_t request_index; /* repeated in the response */
    uint32_t outstanding_max;
    um_range_bounds bounds;
} um_range_request;

/* Writes a range request; returns its length, at most UM_RANGE_REQUEST_BYTES_MAX. */
uint32_t um_range_request_write(uint8_t *out, const um_range_request *request);

/* Reads a whole control message. Returns false if it is not a range request. */
bool um_range_request_read(const uint8_t *message, uint32_t length, um_range_request *request);

/* Writes a control message with the retained range [low, high]; returns its length, UM_RECOVERY_RANGE_BYTES. */
uint32_t um_recovery_write_range(uint8_t *out, uint32_t low, uint32_t high, uint32_t request_index);

#endif
