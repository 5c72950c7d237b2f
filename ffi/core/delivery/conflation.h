/* Conflation: a queue of which the reader gets the newest message per key only. A key is the source of a message and
 * the first key_bytes of its payload; an event's key is its source and kind. Older messages of a key are dropped and
 * counted.
 *
 *   input queue: every row -> rows held, one per key, in the order in which the keys came -> output queue: what a read
 *   takes
 *
 * Rows leave the input when the reader takes rows, and whenever a block of the input is full. Therefore the input never
 * fills, whatever the reader does, unless more than three quarters of the memory hold rows of different keys. A row
 * replaces the held row of its key in place, so a key that changes often does not wait behind others.
 *
 * Threads: the caller excludes concurrent calls, of the producer and of the reader. Memory: one block of footprint
 * bytes, the creator's; the input must outlive it. Errors: none. Complexity: constant per row, besides copying held
 * rows to make space, which takes constant time per row on average.
 */
#ifndef UM_CORE_CONFLATION_H
#define UM_CORE_CONFLATION_H

#include "core/delivery/message_queue.h"

enum { UM_CONFLATION_KEY_BYTES_MAX = 64 };

/* A held row. Its properties follow its payload. */
typedef struct um_conflated_row {
    um_row row;
    um_request request;
    int64_t enqueued_ns;
    size_t offset; /* of the payload in um_conflation.payloads */
    uint32_t payload_bytes;
    uint32_t properties_bytes;
    uint32_t space_bytes; /* reserved at offset: at least the sum of both */
    uint32_t hash;
} um_conflated_row;

typedef struct um_conflation {
    um_message_queue *input;
    um_rows unread; /* taken from the input and not held yet, because there is no space */
    um_message_queue out;
    uint32_t key_bytes;
    um_conflated_row *rows; /* [first, end) are held */
    uint32_t row_capacity;
    uint32_t first;
    uint32_t end;
    uint32_t *table; /* by hash: index of a row + 1, which may have left; 0: unused */
    uint32_t table_mask;
    uint32_t table_used;
    uint8_t *payloads;
    uint8_t *spare; /* as large as payloads: the two change places when rows move */
    size_t payload_capacity;
    size_t payload_end;
    size_t held_bytes;
    int64_t enqueued_ns; /* of the row being appended to the output */
    uint64_t conflated_count;
} um_conflation;

/* Returns the bytes of memory needed for an input of this size. */
size_t um_conflation_footprint(const um_message_queue *input);
/* memory: zeroed; unused parts need not be backed by pages. key_bytes: at most UM_CONFLATION_KEY_BYTES_MAX; 0: the
 * newest message per source. The input has no rows yet. */
void um_conflation_init(um_conflation *conflation, void *memory, um_message_queue *input, uint32_t key_bytes);

/* Moves the input's rows to the held ones. */
void um_conflation_absorb(um_conflation *conflation);
/* Returns at most `max` rows: the newest of their keys. */
um_rows um_conflation_take(um_conflation *conflation, uint32_t max);
/* Returns the number of rows that have left the input and were not taken. */
uint32_t um_conflation_held(const um_conflation *conflation);
/* True if a take would return rows. */
bool um_conflation_is_ready(um_conflation *conflation);

#endif
