/* The queue to one receiver's reader. Runs under AddressSanitizer and under ThreadSanitizer. */
#include <pthread.h>
#include <sched.h>

#include "core/delivery/message_queue.h"
#include "core/foundation/random.h"
#include "support.h"

#ifdef UM_FEWER_ROUNDS
enum { ROWS = 100000 };
#else
enum { ROWS = 400000 };
#endif
enum { BLOCKS = 4, ROW_CAPACITY = 64, PAYLOAD_CAPACITY = 4096, MESSAGE_MAX = UM_QUEUE_MESSAGE_BYTES_MIN };

typedef struct queue_fixture {
    um_message_queue queue;
    void *memory;
} queue_fixture;

static queue_fixture *queue_open(void)
{
    queue_fixture *f = zeroed(sizeof *f);
    f->memory = zeroed(um_queue_footprint(BLOCKS, ROW_CAPACITY, PAYLOAD_CAPACITY, MESSAGE_MAX));
    um_queue_init(&f->queue, f->memory, BLOCKS, ROW_CAPACITY, PAYLOAD_CAPACITY, MESSAGE_MAX);
    return f;
}

static void queue_close(queue_fixture *f)
{
    free(f->memory);
    free(f);
}

/* Row n: every column is a different function of n, so that a row mixed from two is detected. */
static uint32_t length_of(uint32_t n)
{
    return n % 7 == 0 ? 0 : (n * 2654435761u >> 22) % 300;
}

static bool append(um_message_queue *queue, uint32_t n)
{
    uint32_t length = length_of(n);
    uint8_t *payload = um_queue_reserve(queue, length);
    if (payload == NULL)
        return false;
    memset(payload, (int)(n & 0xff), length);
    um_row row = {.flags = (uint16_t)n,
                  .sequence_number = n,
                  .first_sequence_number = n + 1,
                  .fragment_offset = n + 2,
                  .message_length = n + 3,
                  .source = n + 4,
                  .received_ns = (int64_t)n << 20};
    um_queue_append(queue, &row, length);
    return true;
}

static void check_row(const um_block *block, uint32_t i, uint32_t n)
{
    CHECK_EQ(block->flags[i], (uint16_t)n);
    CHECK_EQ(block->sequence_numbers[i], n);
    CHECK_EQ(block->first_sequence_numbers[i], n + 1);
    CHECK_EQ(block->fragment_offsets[i], n + 2);
    CHECK_EQ(block->message_lengths[i], n + 3);
    CHECK_EQ(block->sources[i], n + 4);
    CHECK_EQ(block->received_ns[i], (int64_t)n << 20);
    CHECK_EQ(block->offsets[i + 1] - block->offsets[i], length_of(n));
    for (int32_t at = block->offsets[i]; at < block->offsets[i + 1]; at++)
        CHECK_EQ(block->payload[at], n & 0xff);
}

TEST("W9", "an impossible configuration is refused")
{
    CHECK(um_queue_footprint(BLOCKS, ROW_CAPACITY, PAYLOAD_CAPACITY, MESSAGE_MAX) > 0);
    CHECK_EQ(um_queue_footprint(3, ROW_CAPACITY, PAYLOAD_CAPACITY, MESSAGE_MAX), 0);
    CHECK_EQ(um_queue_footprint(UM_QUEUE_BLOCKS_MAX + 1, ROW_CAPACITY, PAYLOAD_CAPACITY, MESSAGE_MAX), 0);
    CHECK_EQ(um_queue_footprint(BLOCKS, 63, PAYLOAD_CAPACITY, MESSAGE_MAX), 0);
    CHECK_EQ(um_queue_footprint(BLOCKS, ROW_CAPACITY, 4095, MESSAGE_MAX), 0);
    CHECK_EQ(um_queue_footprint(BLOCKS, ROW_CAPACITY, PAYLOAD_CAPACITY, MESSAGE_MAX - 1), 0);
    CHECK_EQ(um_queue_footprint(BLOCKS, ROW_CAPACITY, INT32_MAX, MESSAGE_MAX), 0);
}

TEST("", "rows are taken in order, from one block at a time")
{
    queue_fixture *f = queue_open();
    CHECK(!um_queue_is_ready(&f->queue));
    CHECK_EQ(um_queue_take(&f->queue, 10).count, 0);
    for (uint32_t n = 0; n < 100; n++)
        CHECK(append(&f->queue, n));
    CHECK(um_queue_is_ready(&f->queue));
    uint32_t next = 0;
    for (um_rows rows; (rows = um_queue_take(&f->queue, 7)).count > 0;) {
        CHECK(rows.count <= 7);
        for (uint32_t i = 0; i < rows.count; i++)
            check_row(rows.block, rows.first + i, next++);
    }
    CHECK_EQ(next, 100);
    CHECK(!um_queue_is_ready(&f->queue));
    queue_close(f);
}

/* Fills the queue from row n on; returns the first row that found no space. */
static uint32_t fill(um_message_queue *queue, uint32_t n)
{
    while (append(queue, n))
        n++;
    return n;
}

TEST("W9", "a full queue refuses rows, and accepts them again when a block is released")
{
    queue_fixture *f = queue_open();
    uint32_t rows_in = fill(&f->queue, 0);
    CHECK(rows_in >= BLOCKS * 10 && rows_in <= BLOCKS * ROW_CAPACITY);
    CHECK_EQ(um_queue_free_bytes(&f->queue), 0);
    CHECK(!um_queue_has_free_blocks(&f->queue, 1));

    um_rows first = um_queue_take(&f->queue, UINT32_MAX);
    um_queue_release(first.block, first.count);
    CHECK(!append(&f->queue, rows_in)); /* the reader still uses that block */
    um_rows second = um_queue_take(&f->queue, 1);
    CHECK(second.block != first.block);
    CHECK(um_queue_has_free_blocks(&f->queue, 1));
    CHECK(!um_queue_has_free_blocks(&f->queue, 2));
    CHECK_EQ(um_queue_free_bytes(&f->queue), PAYLOAD_CAPACITY);
    CHECK(append(&f->queue, rows_in));
    CHECK(fill(&f->queue, rows_in + 1) > rows_in + 10);
    queue_close(f);
}

TEST("W9", "a block is reused only when all of its rows are released, in any order")
{
    queue_fixture *f = queue_open();
    uint32_t rows_in = fill(&f->queue, 0);
    um_rows taken[BLOCKS][2];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        taken[i][0] = um_queue_take(&f->queue, 5);
        taken[i][1] = um_queue_take(&f->queue, UINT32_MAX);
        CHECK(taken[i][0].block == taken[i][1].block);
    }
    um_queue_release(taken[2][1].block, taken[2][1].count);
    um_queue_release(taken[0][0].block, taken[0][0].count);
    CHECK(!append(&f->queue, rows_in));
    um_queue_release(taken[2][0].block, taken[2][0].count);
    CHECK(append(&f->queue, rows_in));
    CHECK(taken[2][0].block->sequence_numbers[0] == rows_in);
    uint32_t next = 0;
    for (uint32_t i = 0; i < 2; i++) /* rows not yet released are unchanged */
        for (uint32_t part = 0; part < 2; part++)
            for (uint32_t row = 0; row < taken[i][part].count; row++)
                check_row(taken[i][part].block, taken[i][part].first + row, next++);
    queue_close(f);
}

TEST("", "the longest message fits at the end of a block")
{
    queue_fixture *f = queue_open();
    um_row row = {.flags = 0};
    uint8_t *small = um_queue_reserve(&f->queue, PAYLOAD_CAPACITY - 1);
    memset(small, 1, PAYLOAD_CAPACITY - 1);
    um_queue_append(&f->queue, &row, PAYLOAD_CAPACITY - 1);
    uint8_t *large = um_queue_reserve(&f->queue, MESSAGE_MAX);
    CHECK(large == small + PAYLOAD_CAPACITY - 1);
    memset(large, 2, MESSAGE_MAX);
    um_queue_append(&f->queue, &row, MESSAGE_MAX);
    CHECK(um_queue_reserve(&f->queue, 0) != large + MESSAGE_MAX);
    um_rows rows = um_queue_take(&f->queue, 10);
    CHECK_EQ(rows.count, 2);
    CHECK_EQ(rows.block->offsets[2] - rows.block->offsets[1], MESSAGE_MAX);
    queue_close(f);
}

/* ---- producer, reader and a third thread that releases rows late and out of order ---- */

enum { OUT_MAX = 16 };

typedef struct exchange {
    um_message_queue *queue;
    pthread_mutex_t lock;
    um_rows out[OUT_MAX];
    uint32_t out_first[OUT_MAX]; /* number of the first row of each run */
    uint32_t out_count;
    bool done;
} exchange;

static void *read_rows(void *argument)
{
    exchange *x = argument;
    um_random random = {1};
    for (uint32_t next = 0; next < ROWS;) {
        um_rows rows = um_queue_take(x->queue, 1 + (uint32_t)um_random_below(&random, 40));
        if (rows.count == 0) {
            sched_yield();
            continue;
        }
        uint32_t first = next;
        for (uint32_t i = 0; i < rows.count; i++)
            check_row(rows.block, rows.first + i, next++);
        for (bool given = false; !given;) {
            pthread_mutex_lock(&x->lock);
            given = x->out_count < OUT_MAX;
            if (given) {
                x->out_first[x->out_count] = first;
                x->out[x->out_count++] = rows;
            }
            x->done = next == ROWS;
            pthread_mutex_unlock(&x->lock);
            if (!given)
                sched_yield();
        }
    }
    return NULL;
}

static void *release_rows(void *argument)
{
    exchange *x = argument;
    um_random random = {2};
    for (bool done = false; !done;) {
        pthread_mutex_lock(&x->lock);
        um_rows rows = {0};
        uint32_t first = 0;
        if (x->out_count > 0) {
            uint32_t i = (uint32_t)um_random_below(&random, x->out_count);
            rows = x->out[i];
            first = x->out_first[i];
            x->out[i] = x->out[--x->out_count];
            x->out_first[i] = x->out_first[x->out_count];
        }
        done = x->done && x->out_count == 0;
        pthread_mutex_unlock(&x->lock);
        for (uint32_t i = 0; i < rows.count; i++) /* unchanged until they are released */
            check_row(rows.block, rows.first + i, first + i);
        if (rows.count > 0)
            um_queue_release(rows.block, rows.count);
        else
            sched_yield();
    }
    return NULL;
}

TEST("W8 W9", "one producer and one reader, with rows released out of order on a third thread")
{
    queue_fixture *f = queue_open();
    exchange x = {.queue = &f->queue, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t reader, releaser;
    pthread_create(&reader, NULL, read_rows, &x);
    pthread_create(&releaser, NULL, release_rows, &x);
    uint32_t refused = 0;
    for (uint32_t n = 0; n < ROWS;) {
        if (append(&f->queue, n)) {
            n++;
        } else {
            refused++;
            sched_yield();
        }
    }
    pthread_join(reader, NULL);
    pthread_join(releaser, NULL);
    CHECK(refused > 0);
    CHECK(um_queue_has_free_blocks(&f->queue, BLOCKS - 1));
    queue_close(f);
}

CHECK_MAIN
