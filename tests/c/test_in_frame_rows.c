/* Rows whose payloads stay in the frames they were received in. Runs under AddressSanitizer and under ThreadSanitizer.
 */
#include <pthread.h>
#include <sched.h>

#include "core/delivery/message_queue.h"
#include "core/foundation/random.h"
#include "support.h"

#ifdef UM_FEWER_ROUNDS
enum { ROWS = 40000 };
#else
enum { ROWS = 200000 };
#endif
enum {
    BLOCKS = 4,
    ROW_CAPACITY = 64,
    PAYLOAD_CAPACITY = 16384,
    FRAMES = 40,
    FRAME_BYTES = 2048,
    RETURNED = 0xee, /* value of the bytes of a returned frame */
};

/* Frames as a ring set has them; they are overwritten when they are returned. */
typedef struct frame_area {
    um_frames base;
    uint8_t memory[FRAMES][FRAME_BYTES];
    uint32_t free[FRAMES];
    uint32_t free_count;
    uint32_t row_of[FRAMES];   /* number of the row last pinned in each frame */
    uint32_t returned[FRAMES]; /* rows returned since the last check, in order */
    uint32_t returned_count;
} frame_area;

typedef struct pinned_fixture {
    um_message_queue queue;
    void *memory;
    frame_area area;
} pinned_fixture;

static void unpin(um_frames *frames, const uint8_t *const *data, uint32_t count)
{
    frame_area *area = (frame_area *)frames;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t frame = (uint32_t)(data[i] - area->memory[0]) / FRAME_BYTES;
        memset(area->memory[frame], RETURNED, FRAME_BYTES);
        CHECK(area->free_count < FRAMES);
        area->free[area->free_count++] = frame;
        area->returned[area->returned_count++ % FRAMES] = area->row_of[frame];
    }
}

static pinned_fixture *pinned_open(void)
{
    pinned_fixture *f = zeroed(sizeof *f);
    f->memory = zeroed(um_queue_footprint(BLOCKS, ROW_CAPACITY, PAYLOAD_CAPACITY, UM_QUEUE_MESSAGE_BYTES_MIN));
    um_queue_init(&f->queue, f->memory, BLOCKS, ROW_CAPACITY, PAYLOAD_CAPACITY, UM_QUEUE_MESSAGE_BYTES_MIN);
    f->area.base.unpin = unpin;
    for (uint32_t i = 0; i < FRAMES; i++)
        f->area.free[f->area.free_count++] = i;
    return f;
}

static void pinned_close(pinned_fixture *f)
{
    free(f->memory);
    free(f);
}

/* Row n: every third is short and never pinned. */
static uint32_t length_of(uint32_t n)
{
    uint32_t spread = (n * 2654435761u >> 21) % 900;
    return n % 3 == 0 ? spread / 60 : UM_QUEUE_PINNED_BYTES_MIN + spread;
}

static uint8_t content(uint32_t n, uint32_t at)
{
    return (uint8_t)(n * 31 + at * 7) & 0x7f;
}

static void write_payload(uint8_t *payload, uint32_t n)
{
    for (uint32_t at = 0; at < length_of(n); at++)
        payload[at] = content(n, at);
}

static void check_payload(const uint8_t *payload, uint32_t n, uint32_t length)
{
    for (uint32_t at = 0; at < length; at++)
        CHECK_EQ(payload[at], at < length_of(n) ? content(n, at) : 0);
}

/* Pins the payload if it is long enough and a frame is free. Returns false if the queue is full. */
static bool append(pinned_fixture *f, uint32_t n)
{
    uint32_t length = length_of(n);
    um_row row = {.sequence_number = n};
    uint8_t *space = um_queue_reserve(&f->queue, length);
    if (space == NULL)
        return false;
    if (length < UM_QUEUE_PINNED_BYTES_MIN || f->area.free_count == 0) {
        write_payload(space, n);
        um_queue_append(&f->queue, &row, length);
        return true;
    }
    uint32_t frame = f->area.free[--f->area.free_count];
    uint8_t *payload = f->area.memory[frame] + n % 200;
    f->area.row_of[frame] = n;
    write_payload(payload, n);
    um_queue_append_pinned(&f->queue, &row, payload, length, &f->area.base);
    return true;
}

static void check_heads(const um_rows *rows, uint32_t n, uint32_t bytes)
{
    uint8_t heads[ROW_CAPACITY * 64];
    memset(heads, 0xff, sizeof heads);
    um_block_heads(rows->block, rows->first, rows->count, bytes, heads);
    for (uint32_t i = 0; i < rows->count; i++)
        check_payload(heads + (size_t)i * bytes, n + i, bytes);
}

static void check_copies(const um_rows *rows, uint32_t n)
{
    uint8_t out[FRAME_BYTES];
    for (uint32_t i = 0; i < rows->count; i++) {
        memset(out, 0xff, sizeof out);
        CHECK_EQ(um_block_copy(rows->block, rows->first + i, out, 700), length_of(n + i));
        check_payload(out, n + i, length_of(n + i) < 700 ? length_of(n + i) : 700);
        CHECK_EQ(out[700], 0xff);
    }
}

static void check_materialized(const um_rows *rows, uint32_t n)
{
    const um_block *block = rows->block;
    for (uint32_t i = rows->first; i < rows->first + rows->count; i++, n++) {
        CHECK_EQ(block->sequence_numbers[i], n);
        CHECK_EQ(block->offsets[i + 1] - block->offsets[i], length_of(n));
        check_payload(block->payload + block->offsets[i], n, length_of(n));
    }
}

TEST("W5 W9", "an in-frame payload reads like any other: its first bytes, all of it, and materialized")
{
    pinned_fixture *f = pinned_open();
    for (uint32_t n = 0; n < 15; n++)
        CHECK(append(f, n));
    CHECK_EQ(f->queue.pinned_count, 10);
    um_rows rows = um_queue_take(&f->queue, ROW_CAPACITY);
    CHECK_EQ(rows.count, 15);
    um_rows middle = {rows.block, 4, 6};
    for (uint32_t bytes = 0; bytes <= 64; bytes += 16) {
        check_heads(&rows, 0, bytes);
        check_heads(&middle, 4, bytes);
    }
    check_copies(&rows, 0);
    CHECK_EQ(rows.block->payload[rows.block->offsets[4]], 0); /* nothing has been copied there yet */
    um_block_materialize(rows.block, middle.first, middle.count);
    check_materialized(&middle, 4);
    check_heads(&rows, 0, 32);
    check_copies(&rows, 0);
    um_block_materialize(rows.block, rows.first, rows.count);
    check_materialized(&rows, 0);
    pinned_close(f);
}

TEST("W5 W9", "a frame is unpinned once its row is materialized or all taken rows of its block are released")
{
    pinned_fixture *f = pinned_open();
    for (uint32_t n = 0; n < 15; n++)
        CHECK(append(f, n));
    CHECK_EQ(f->area.free_count, FRAMES - 10);
    um_queue_return_frames(&f->queue);
    CHECK_EQ(f->area.free_count, FRAMES - 10);
    um_rows first = um_queue_take(&f->queue, 6), rest = um_queue_take(&f->queue, ROW_CAPACITY);
    um_block_materialize(first.block, first.first, first.count);
    um_queue_return_frames(&f->queue);
    CHECK_EQ(f->area.free_count, FRAMES - 6);
    check_materialized(&first, 0); /* the frame is no longer read */
    check_copies(&first, 0);
    um_queue_release(first.block, first.count);
    um_queue_return_frames(&f->queue);
    CHECK_EQ(f->area.free_count, FRAMES - 6);
    check_copies(&rest, 6);
    um_queue_release(rest.block, rest.count);
    um_queue_return_frames(&f->queue);
    CHECK_EQ(f->area.free_count, FRAMES);
    CHECK_EQ(f->queue.pinned_count, 0);
    CHECK(append(f, 15) && append(f, 16)); /* in the same block */
    um_rows more = um_queue_take(&f->queue, ROW_CAPACITY);
    CHECK(more.block == first.block);
    check_copies(&more, 15);
    pinned_close(f);
}

TEST("W5 W9", "a reused block has unpinned its frames, and the queue's bounds are unchanged")
{
    pinned_fixture *f = pinned_open();
    uint32_t in = 0;
    while (append(f, in))
        in++;
    CHECK_EQ(f->area.free_count, 0); /* the rest was copied */
    for (uint32_t out = 0; out < in;) {
        um_rows rows = um_queue_take(&f->queue, 7);
        check_copies(&rows, out);
        out += rows.count;
        um_queue_release(rows.block, rows.count);
    }
    CHECK(append(f, in)); /* the reader's block is full: this opens another */
    CHECK(f->area.free_count > 0);
    um_queue_return_frames(&f->queue);
    CHECK_EQ(f->queue.pinned_count, FRAMES - f->area.free_count);
    CHECK_EQ(f->queue.pinned_count, length_of(in) >= UM_QUEUE_PINNED_BYTES_MIN);
    pinned_close(f);
}

TEST("W5 W9", "frames are returned in arrival order, whatever the blocks of their rows")
{
    pinned_fixture *f = pinned_open();
    um_message_queue *queue = &f->queue;
    uint32_t in = 0;
    while (queue->current != &queue->blocks[2])
        CHECK(append(f, in++));
    um_rows first = um_queue_take(queue, ROW_CAPACITY);
    um_queue_release(first.block, first.count);
    um_queue_return_frames(queue);
    um_rows second = um_queue_take(queue, ROW_CAPACITY); /* the reader has left the first block, which is reused */
    while (queue->current != &queue->blocks[0] || f->area.free_count > 0)
        CHECK(append(f, in++));
    um_rows third = um_queue_take(queue, ROW_CAPACITY), fourth = um_queue_take(queue, ROW_CAPACITY);
    CHECK(fourth.block == first.block);
    um_queue_release(fourth.block, fourth.count);
    um_queue_release(second.block, second.count);
    um_queue_release(third.block, third.count);
    f->area.returned_count = 0;
    um_queue_return_frames(queue);
    CHECK_EQ(f->area.returned_count, FRAMES);
    for (uint32_t i = 1; i < FRAMES; i++)
        CHECK(f->area.returned[i] > f->area.returned[i - 1]);
    pinned_close(f);
}

/* ---- a reader that reads in place, copies, materializes, or does none of these, and releases rows late ---- */

enum { OUT_MAX = 3 };

static void lock_block(um_block *block)
{
    while (!um_lock_try(&block->pinned_lock))
        sched_yield();
}

static void look_at(const um_rows *rows, uint32_t n, uint64_t how)
{
    lock_block(rows->block);
    if (how == 0)
        check_heads(rows, n, 24);
    else if (how == 1)
        check_copies(rows, n);
    else if (how == 2)
        um_block_materialize(rows->block, rows->first, rows->count);
    um_lock_release(&rows->block->pinned_lock);
    if (how == 2)
        check_materialized(rows, n);
}

static void *read_rows(void *argument)
{
    um_message_queue *queue = argument;
    um_random random = {3};
    um_rows out[OUT_MAX];
    uint32_t out_first[OUT_MAX], out_count = 0;
    for (uint32_t next = 0; next < ROWS || out_count > 0;) {
        um_rows rows = {0};
        if (next < ROWS && out_count < OUT_MAX)
            rows = um_queue_take(queue, 1 + (uint32_t)um_random_below(&random, 20));
        if (rows.count > 0) {
            look_at(&rows, next, um_random_below(&random, 4));
            out_first[out_count] = next;
            out[out_count++] = rows;
            next += rows.count;
            continue;
        }
        if (out_count == 0) {
            sched_yield();
            continue;
        }
        uint32_t i = (uint32_t)um_random_below(&random, out_count);
        look_at(&out[i], out_first[i], um_random_below(&random, 4));
        um_queue_release(out[i].block, out[i].count);
        out[i] = out[--out_count];
        out_first[i] = out_first[out_count];
    }
    return NULL;
}

/* Materializes everything without the reader's knowledge, as closing a queue does. */
static void materialize_all(um_message_queue *queue)
{
    for (uint32_t i = 0; i < queue->block_count; i++) {
        if (!queue->blocks[i].is_in_use)
            continue;
        lock_block(&queue->blocks[i]);
        um_block_materialize(&queue->blocks[i], 0, ROW_CAPACITY);
        um_lock_release(&queue->blocks[i].pinned_lock);
    }
}

TEST("W5 W8 W9", "frames are returned and overwritten while rows are read")
{
    pinned_fixture *f = pinned_open();
    um_random random = {4};
    pthread_t reader;
    pthread_create(&reader, NULL, read_rows, &f->queue);
    uint32_t refused = 0, copied = 0;
    for (uint32_t n = 0; n < ROWS;) {
        um_queue_return_frames(&f->queue);
        if (um_random_below(&random, 5000) == 0)
            materialize_all(&f->queue);
        copied += f->area.free_count == 0;
        if (append(f, n)) {
            n++;
        } else {
            refused++;
            sched_yield();
        }
    }
    pthread_join(reader, NULL);
    um_queue_return_frames(&f->queue);
    CHECK_EQ(f->area.free_count, FRAMES);
    CHECK(refused > 0 && copied > 0);
    pinned_close(f);
}

CHECK_MAIN
