/* The queue from the context to one reader, with rows of one or several receivers: blocks of columns, so that a batch
 * becomes Python views and Arrow buffers without another copy of a payload (W9).
 *
 *   block: offsets[n+1] | sequence numbers | ... | payload bytes, contiguous
 *
 * A block is filled in order, closed when full, and free again when the reader has released all of its rows.
 * Events (beginning and end of session, loss) are rows too, so they stay in order with messages.
 *
 * A large payload can stay in the frame it was received in, which is pinned (um_frames, core/foundation/link.h). Its
 * space in the block is reserved, too: a reader that needs contiguous payloads materializes them there; other readers
 * use the frame, so that a payload without a reader is never moved from the cache of the receiving processor. A frame
 * is unpinned once its row is materialized, or all rows of its block have been released.
 *
 * Properties of messages are stored at the other end of the payload memory and grow towards the payloads.
 *
 * Threads: one producer (the holder of the context lock), one consumer at a time. The producer publishes a row count
 * with release, the consumer reads it with acquire; the consumer releases rows with a release addition that the
 * producer acquires before it reuses the block. Any thread may release rows. Reading payloads takes the block's
 * pinned_lock, so that a queue can materialize its remaining rows before frames disappear.
 */
#ifndef UM_CORE_MESSAGE_QUEUE_H
#define UM_CORE_MESSAGE_QUEUE_H

#include "core/foundation/link.h"
#include "core/wire/lbmc.h"

enum {
    UM_QUEUE_BLOCKS_MAX = 64,
    UM_QUEUE_PINNED_BYTES_MIN = 512,    /* shorter payloads are copied, which costs less than holding a frame */
    UM_QUEUE_MESSAGE_BYTES_MIN = 65536, /* the message of any single datagram fits */
};

enum um_row_kind {
    UM_ROW_MESSAGE = 0,
    UM_ROW_BEGINNING_OF_SESSION = 1,
    UM_ROW_END_OF_SESSION = 2,
    UM_ROW_UNRECOVERABLE_LOSS = 3, /* sequence_number is lost */
    UM_ROW_BURST_LOSS = 4,         /* first_sequence_number .. sequence_number are lost */
    UM_ROW_SOURCE_CREATED = 5,     /* the source has a delivery controller; precedes every other row of the source */
    UM_ROW_SOURCE_DELETED = 6,     /* the controller has ended; the last row of the source */
    UM_ROW_NO_SOURCE = 7,          /* sequence_number queries were not answered */
    UM_ROW_HF_RESET = 8,           /* hot failover: the next number is first_sequence_number << 32 | sequence_number */
    UM_ROW_NAK_CUTOFF = 9,         /* the source's session has stopped its own NAKs */
    UM_ROW_CUT_LOOSE = 10,         /* the queue was full too long: first_sequence_number .. sequence_number dropped */
    UM_ROW_STALE_TAGS = 11,        /* datagrams with right tags were dropped, because the clocks of the hosts differ */
    UM_ROW_INTERFACE_CHANGED =
        12,                  /* the source names an interface; sequence_number: the owner's number of the change */
    UM_ROW_DRIVER_LOST = 13, /* the connection to the driver ended; no source is received through it any more */
};

/* Returns the um_row_kind of a row with these flags: the low four bits of the high byte. */
static inline uint32_t um_row_kind_of(uint16_t flags)
{
    return flags >> 8 & 0xf;
}

/* A row whose payload is in a frame. */
typedef struct um_pinned_row {
    const uint8_t *payload;
    um_frames *frames;
    uint32_t row;
    _Atomic uint32_t materialized; /* the payload was copied into the block; the frame is no longer read */
} um_pinned_row;

/* The position of a row's properties in the payload memory of its block. */
typedef struct um_properties_place {
    uint32_t offset;
    uint32_t bytes;
} um_properties_place;

/* One block. The columns have row_capacity entries (offsets one more). */
typedef struct um_block {
    _Atomic uint32_t published_count;
    _Atomic uint32_t released_count;
    bool is_in_use;   /* producer only */
    uint64_t ordinal; /* producer only: number of this block among all blocks opened */
    uint32_t payload_bytes;
    uint32_t payload_limit;    /* the block is closed once its payloads exceed it; properties reduce it */
    uint32_t properties_begin; /* the lowest offset of properties in the payload memory */
    um_lock pinned_lock;
    _Atomic uint32_t pinned_count;
    uint32_t pinned_returned; /* producer only: how many of pinned_count have been unpinned */
    um_pinned_row *pinned;    /* ascending by row */
    int32_t *offsets;
    uint32_t *sequence_numbers;
    uint32_t *first_sequence_numbers;
    uint32_t *fragment_offsets; /* ordered_delivery 0: payload bytes before this fragment */
    uint32_t *message_lengths;  /* ordered_delivery 0: payload bytes of the whole message */
    uint32_t *sources;          /* the owner's number of the source */
    int64_t *received_ns;
    int64_t *enqueued_ns; /* written when the queue has a clock */
    int64_t *sent_ns;     /* by the publisher's wall clock; 0: the message carries no send time */
    uint16_t *flags;      /* um_row_kind << 8 | UM_MESSAGE_* */
    um_request *requests; /* written for rows with UM_MESSAGE_REQUEST only, so that unused memory is not touched */
    um_properties_place *properties; /* written for rows with UM_MESSAGE_PROPERTIES only */
    uint8_t *payload;
} um_block;

/* The states of a queue whose reader is slow:
 *
 *        no block is free           a row was refused            hold_ns after the queue left OPEN,
 *   OPEN ----------------> CLOSED -----------------> HOLDING     or the reorder buffer runs short
 *    ^ ^                   |    |                    |     |  -----------------------------------> CUT_LOOSE
 *    | |  a block is free  |    +---- the same ------+-----+                                           |
 *    | +-------------------+-------------------------+                                                 |
 *    +-------------------------------------------------------------------------------------------------+
 *                                       half of the blocks are free
 *
 * CLOSED: the queue has space in its last block only, so the windows of its sessions are nearly closed. HOLDING:
 * controllers hold their messages in the reorder buffer; nothing of a session is read if it feeds only queues
 * in this state. CUT_LOOSE: the queue counts for no window, controllers
 * drop its messages and remember which. When it is open again, each controller appends UM_ROW_CUT_LOOSE and then
 * fetches the dropped messages or declares them lost.
 */
enum um_queue_state { UM_QUEUE_OPEN = 0, UM_QUEUE_CLOSED = 1, UM_QUEUE_HOLDING = 2, UM_QUEUE_CUT_LOOSE = 3 };

typedef struct um_message_queue {
    uint32_t block_count;
    uint32_t row_capacity;
    uint32_t payload_capacity; /* soft: a block is closed beyond it, properties included */
    uint32_t message_max_bytes;
    um_block blocks[UM_QUEUE_BLOCKS_MAX];
    uint32_t sequence[UM_QUEUE_BLOCKS_MAX]; /* index of the block with ordinal k, at k modulo block_count */

    UM_CACHE_ALIGNED _Atomic uint64_t opened_count; /* blocks opened so far */
    um_block *current;
    uint32_t current_row;
    _Atomic uint64_t appended_count; /* rows appended so far */
    const int64_t *clock_ns;         /* source of each row's enqueued_ns; NULL: enqueued_ns is not written */
    uint32_t pinned_count;           /* frames that are still pinned */
    enum um_queue_state state;       /* leaves OPEN by um_queue_close and _hold, then changed by the owner */
    int64_t hold_ns;                 /* maximum time in HOLDING; 0: the queue never holds its sessions back */
    int64_t full_since_ns;           /* when the queue left OPEN; 0: since the owner's last review */
    bool *needs_review;              /* the owner's: true if a queue has changed its state since the owner looked */
    /* Moves all rows elsewhere; called when a block is full. No payload is left in its frame then. NULL: none. */
    void (*absorb)(struct um_message_queue *);

    UM_CACHE_ALIGNED _Atomic uint64_t read_block; /* consumer: ordinal of its current block, which is not reused */
    uint32_t read_row;
    _Atomic uint64_t taken_count; /* rows taken so far */
} um_message_queue;

/* Returns the bytes of memory needed, or 0 for an impossible configuration. payload_capacity and message_max_bytes are
 * in bytes. */
size_t um_queue_footprint(uint32_t block_count, uint32_t row_capacity, uint32_t payload_capacity,
                          uint32_t message_max_bytes);
/* memory: zeroed, owned by the creator; unused parts need not be backed by pages. The queue holds its sessions back
 * without a time limit until the creator sets hold_ns. */
void um_queue_init(um_message_queue *queue, void *memory, uint32_t block_count, uint32_t row_capacity,
                   uint32_t payload_capacity, uint32_t message_max_bytes);

/* ---- producer ---- */

/* Returns the payload bytes that can be appended whatever the sizes of the messages. */
uint64_t um_queue_free_bytes(const um_message_queue *queue);

/* True if at least `blocks` blocks are free besides the current one. */
bool um_queue_has_free_blocks(const um_message_queue *queue, uint32_t blocks);

/* Returns for how long the queue has been full; 0 while it is open. */
static inline int64_t um_queue_full_ns(const um_message_queue *queue, int64_t now_ns)
{
    return queue->state == UM_QUEUE_OPEN || queue->full_since_ns == 0 ? 0 : now_ns - queue->full_since_ns;
}

/* Begins CLOSED: no block is free. */
static inline void um_queue_close(um_message_queue *queue)
{
    if (queue->state != UM_QUEUE_OPEN)
        return;
    queue->state = UM_QUEUE_CLOSED;
    queue->full_since_ns = 0;
    *queue->needs_review = true;
}

/* Begins HOLDING: a row was refused. Returns true if the queue did not hold before. */
static inline bool um_queue_hold(um_message_queue *queue)
{
    if (queue->state >= UM_QUEUE_HOLDING)
        return false;
    um_queue_close(queue);
    queue->state = UM_QUEUE_HOLDING;
    *queue->needs_review = true;
    return true;
}

/* Moves a queue that is not open to its next state, if that is due. Returns true if the state has changed. */
bool um_queue_review(um_message_queue *queue, int64_t now_ns);

typedef struct um_row {
    uint16_t flags; /* kind << 8 | message flags */
    uint32_t sequence_number;
    uint32_t first_sequence_number;
    uint32_t fragment_offset;
    uint32_t message_length;
    uint32_t source;
    int64_t received_ns;
    int64_t sent_ns;
} um_row;

/* Reserves space for the payload of one row; NULL if the queue is full. um_queue_append makes the row visible. */
uint8_t *um_queue_reserve(um_message_queue *queue, uint32_t payload_bytes);
void um_queue_append(um_message_queue *queue, const um_row *row, uint32_t payload_bytes);
/* As um_queue_append, for a row with UM_MESSAGE_PROPERTIES. The properties follow the payload and are moved away. */
void um_queue_append_with_properties(um_message_queue *queue, const um_row *row, uint32_t payload_bytes,
                                     uint32_t properties_bytes);
/* Stores where responses to a row with UM_MESSAGE_REQUEST go; call it between reserve and append. */
static inline void um_queue_note_request(um_message_queue *queue, const um_request *request)
{
    queue->current->requests[queue->current_row] = *request;
}
/* Stores the length of the properties of a row that keeps them in its payload; call it between reserve and append. */
static inline void um_queue_note_properties(um_message_queue *queue, uint32_t properties_bytes)
{
    queue->current->properties[queue->current_row] = (um_properties_place){0, properties_bytes};
}
/* As um_queue_append, for a payload of at least UM_QUEUE_PINNED_BYTES_MIN bytes that stays in a pinned frame. */
void um_queue_append_pinned(um_message_queue *queue, const um_row *row, const uint8_t *payload, uint32_t payload_bytes,
                            um_frames *frames);
/* Unpins the frames whose rows have been read. */
void um_queue_return_frames(um_message_queue *queue);

/* True if there are rows that the consumer has not taken, as the producer sees it. */
static inline bool um_queue_has_rows(const um_message_queue *queue)
{
    return atomic_load_explicit(&queue->appended_count, memory_order_relaxed) !=
           atomic_load_explicit(&queue->taken_count, memory_order_acquire);
}

/* ---- consumer ---- */

/* A run of rows of one block. */
typedef struct um_rows {
    um_block *block;
    uint32_t first;
    uint32_t count;
} um_rows;

/* Takes up to max rows. count is 0 if there are none. */
um_rows um_queue_take(um_message_queue *queue, uint32_t max);
/* True if there are rows to take. For the consumer. */
bool um_queue_is_ready(um_message_queue *queue);

/* The following functions read payloads of rows that have not been released. The caller holds pinned_lock, unless the
 * block has no in-frame payload. */
/* Copies in-frame payloads into the block, so that the payloads of the rows are contiguous. */
void um_block_materialize(um_block *block, uint32_t first, uint32_t count);
/* Writes the first `bytes` of each row's payload, padded with zeros; count * bytes in total. */
void um_block_heads(const um_block *block, uint32_t first, uint32_t count, uint32_t bytes, uint8_t *out);
/* Copies at most `capacity` bytes of one row's payload. Returns the length of the payload. */
uint32_t um_block_copy(const um_block *block, uint32_t row, uint8_t *out, uint32_t capacity);
/* True if the block has in-frame payloads. The producer publishes such a payload before its row. */
static inline bool um_block_has_pinned(const um_block *block)
{
    return atomic_load_explicit(&block->pinned_count, memory_order_relaxed) != 0;
}

/* Releases rows that were taken. Any thread. */
static inline void um_queue_release(um_block *block, uint32_t count)
{
    atomic_fetch_add_explicit(&block->released_count, count, memory_order_release);
}

#endif
