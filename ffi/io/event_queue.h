/* Event queues: receivers deliver rows into them, and one reader reads them. A queue serves one receiver, or several
 * that share it (core/delivery/message_queue.h defines the rows).
 *
 * Threads: any, but only one thread at a time reads a queue. Closing waits for the calls under way and ends their
 * waiting; a later call finds the queue closed. Memory: um_event_queue_open (context.h) creates it, um_event_queue_free
 * unmaps it. Errors: negative errno; functions that only read have none.
 */
#ifndef UM_IO_EVENT_QUEUE_H
#define UM_IO_EVENT_QUEUE_H

#include "core/delivery/hot_failover.h"

typedef struct um_event_queue um_event_queue;

typedef struct um_event_queue_config {
    uint32_t block_count;
    uint32_t block_rows;
    uint32_t block_bytes;
    uint32_t message_max_bytes; /* the largest of its receivers' */
    int64_t hold_ns;            /* how long the full queue may hold sources back; 0: not at all */
    bool conflates;             /* a read returns the newest message per key only (core/delivery/conflation.h) */
    uint32_t key_bytes;         /* at most UM_CONFLATION_KEY_BYTES_MAX */
    bool notes_age;             /* count how long rows waited */
    uint64_t size_warning;      /* rows waiting at a read that count as too many; 0: no limit (UX-20) */
    int64_t delay_warning_ns;   /* age of the oldest row that counts as too old; 0: no limit */
} um_event_queue_config;

/* Ends reading; no subscription can be opened on it any more, and its subscriptions are closed before it. Rows not yet
 * released stay readable until um_event_queue_free. */
void um_event_queue_close(um_event_queue *queue);
/* Call it after all of its subscriptions have been freed. */
void um_event_queue_free(um_event_queue *queue);

/* Appends an event that is not from a session; false if the queue is full or closed. Any thread but the context's. */
bool um_event_queue_append_event(um_event_queue *queue, uint32_t kind, uint32_t sequence_number, uint32_t source);

/* Return how many rows were ever appended, and taken by its reader. Any thread; not of a queue that joined another. */
uint64_t um_event_queue_appended_rows(const um_event_queue *queue);
uint64_t um_event_queue_taken_rows(const um_event_queue *queue);

/* Makes the queue's rows one stream of hot failover numbers; before anything delivers into it. -EINVAL if the capacity
 * is not a power of two, or -ENOMEM. */
int um_event_queue_hot_failover(um_event_queue *queue, const um_hot_failover_config *config);
/* Adds the rows of another queue, possibly of another context, to that stream. `other` is not read, and is freed after
 * `queue`. -ENOSPC if there are already UM_HF_INPUTS_MAX. */
int um_event_queue_join(um_event_queue *queue, um_event_queue *other);
/* Copies the counters of its hot failover; returns 0 if it has none. */
uint32_t um_event_queue_hot_failover_counters(um_event_queue *queue, uint64_t *out);

/* Takes rows, waiting up to timeout_ns for the first (0: do not wait; negative: no timeout). In sequential mode the
 * caller's thread runs the loop meanwhile. Returns rows->count; 0 after the timeout, or earlier if unblocked, closed
 * or interrupted by a signal. */
uint32_t um_event_queue_poll(um_event_queue *queue, uint32_t max, int64_t timeout_ns, um_rows *rows);
/* Takes rows for a thread that is about to wait for the descriptor, in embedded mode. If there are none, it receives
 * for a moment, provided rows have been arriving that soon (core/foundation/adaptive_spin.h); never sleeps. */
uint32_t um_event_queue_look(um_event_queue *queue, uint32_t max, um_rows *rows);
/* Takes available rows; never runs the loop. */
uint32_t um_event_queue_take(um_event_queue *queue, uint32_t max, um_rows *rows);

/* Takes one row: copies its payload to `out` (at most capacity bytes) and its columns to `row`. Waits as _poll does.
 * Returns the payload's length, or one of these. */
enum { UM_RECEIVED_NOTHING = -1, UM_RECEIVED_EVENT = -2 };
int64_t um_event_queue_receive(um_event_queue *queue, uint8_t *out, uint32_t capacity, int64_t timeout_ns, um_row *row);

/* Facts of rows that a reader needs at once. */
typedef struct um_rows_summary {
    uint32_t event_count;   /* rows that are events */
    int32_t payload_length; /* of every payload; -1: they differ */
    int64_t source;         /* of every row; -1: they differ */
    uint32_t sent_count;    /* rows with a send time */
    bool plain;             /* only whole messages without flags */
    bool has_requests;
    bool has_properties; /* at least one row has properties */
} um_rows_summary;
/* offsets: count + 1 payload offsets, relative to the first. */
void um_rows_summarize(const um_rows *rows, int32_t *offsets, um_rows_summary *summary);

/* Copies payloads that are still in frames, so that the rows' payloads are contiguous in their block. For rows that are
 * not released; any thread. The same holds for the next two functions. */
void um_rows_materialize(um_block *block, uint32_t first, uint32_t count);
/* Copies the first `bytes` of each row's payload, padded with zeros: count * bytes. */
void um_rows_heads(um_block *block, uint32_t first, uint32_t count, uint32_t bytes, uint8_t *out);
/* Copies at most `capacity` bytes of one row's payload. Returns the length of the whole payload. */
uint32_t um_rows_copy(um_block *block, uint32_t row, uint8_t *out, uint32_t capacity);

/* Records how long the reader's callback took for one row. */
void um_event_queue_note_service(um_event_queue *queue, int64_t service_ns);

/* The descriptor that becomes readable when rows wait, once the reader has armed it. The queue owns it. */
int um_event_queue_descriptor(const um_event_queue *queue);
/* Arms the descriptor. Returns true, without arming, if rows wait already or never will. */
bool um_event_queue_arm(um_event_queue *queue);

#endif
