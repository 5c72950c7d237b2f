/* Event queues: what receivers deliver rows into and one reader reads; the queue of one receiver, or of as many as
 * share it (core/delivery/message_queue.h has the rows themselves).
 *
 * Threads: any, but one thread at a time reads a queue. Closing waits for the calls that are under way and ends their
 * waiting; a later call finds the queue closed. Memory: um_event_queue_open (context.h) makes it, um_event_queue_free
 * unmaps it. Errors: negative errno, and none from what only reads.
 */
#ifndef UM_IO_EVENT_QUEUE_H
#define UM_IO_EVENT_QUEUE_H

#include "core/delivery/hot_failover.h"

typedef struct um_event_queue um_event_queue;

typedef struct um_event_queue_config {
    uint32_t block_count;
    uint32_t block_rows;
    uint32_t block_bytes;
    uint32_t message_max_bytes; /* of its receivers together */
    bool notes_age;             /* how long rows waited is counted */
    uint64_t size_warning;      /* rows waiting at a read that are too many; 0: none are (UX-20) */
    int64_t delay_warning_ns;   /* and how old the oldest may be; 0: as old as it likes */
} um_event_queue_config;

/* Ends reading; no subscription can be opened on it any more, and those it has are closed before it. Rows not yet
 * released stay readable until um_event_queue_free. */
void um_event_queue_close(um_event_queue *queue);
/* Not before every subscription of it has been freed. */
void um_event_queue_free(um_event_queue *queue);

/* Appends an event that no session brings; false when the queue is full or closed. Any thread but the context's. */
bool um_event_queue_append_event(um_event_queue *queue, uint32_t kind, uint32_t sequence_number, uint32_t source);

/* The queue's rows are one stream of hot failover numbers from now on, before anything delivers into it. -EINVAL for a
 * capacity that is no power of two, -ENOMEM. */
int um_event_queue_hot_failover(um_event_queue *queue, const um_hot_failover_config *config);
/* What another queue gets is of that stream, too; it may be another context's. It is not read, and it is freed after
 * `queue`. -ENOSPC when there are UM_HF_INPUTS_MAX. */
int um_event_queue_join(um_event_queue *queue, um_event_queue *other);
/* The counters of its hot failover; 0 fields when it has none. */
uint32_t um_event_queue_hot_failover_counters(um_event_queue *queue, uint64_t *out);

/* Takes rows, waiting up to timeout_ns for the first (0: not, negative: without a timeout). In sequential mode the
 * caller's thread runs the loop meanwhile. Returns rows->count; 0 after the timeout, or earlier when unblocked, closed
 * or interrupted by a signal. */
uint32_t um_event_queue_poll(um_event_queue *queue, uint32_t max, int64_t timeout_ns, um_rows *rows);
/* Takes rows for a thread that is going to wait for the descriptor: embedded mode. It receives for a moment when there
 * are none, as long as rows come within that time (core/foundation/adaptive_spin.h); never sleeps. */
uint32_t um_event_queue_look(um_event_queue *queue, uint32_t max, um_rows *rows);
/* Takes rows that are there; never runs the loop. */
uint32_t um_event_queue_take(um_event_queue *queue, uint32_t max, um_rows *rows);

/* One row, its payload copied into out (at most capacity bytes) and its columns into row. Waits as _poll does.
 * Returns the payload's length, or one of these. */
enum { UM_RECEIVED_NOTHING = -1, UM_RECEIVED_EVENT = -2 };
int64_t um_event_queue_receive(um_event_queue *queue, uint8_t *out, uint32_t capacity, int64_t timeout_ns, um_row *row);

/* Facts of rows that a reader needs at once. */
typedef struct um_rows_summary {
    uint32_t event_count;   /* rows that are events */
    int32_t payload_length; /* of every payload; -1: they differ */
    int64_t source;         /* of every row; -1: they differ */
    uint32_t sent_count;    /* rows that say when they were sent */
    bool plain;             /* only whole messages without flags */
    bool has_requests;
    bool has_properties; /* some row has */
} um_rows_summary;
/* offsets: count + 1 payload offsets, relative to the first. */
void um_rows_summarize(const um_rows *rows, int32_t *offsets, um_rows_summary *summary);

/* Copies payloads that are still in frames, so that those of the rows lie end to end in their block. Any thread, for
 * rows that have not been released; so are the next two. */
void um_rows_materialize(um_block *block, uint32_t first, uint32_t count);
/* The first `bytes` of each row's payload, with zeros behind a shorter one: count * bytes. */
void um_rows_heads(um_block *block, uint32_t first, uint32_t count, uint32_t bytes, uint8_t *out);
/* The first `capacity` bytes of one row's payload, or all of it. Returns the length of all of it. */
uint32_t um_rows_copy(um_block *block, uint32_t row, uint8_t *out, uint32_t capacity);

/* The reader's callback took so long for one row. */
void um_event_queue_note_service(um_event_queue *queue, int64_t service_ns);

/* The descriptor that becomes readable when rows wait and the reader had armed it. It stays the queue's. */
int um_event_queue_descriptor(const um_event_queue *queue);
/* Arms the descriptor: true when rows wait already, or never will (then it is not armed). */
bool um_event_queue_arm(um_event_queue *queue);

#endif
