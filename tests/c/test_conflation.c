/* A queue of which the reader gets the newest message per key only. */
#include "core/delivery/conflation.h"
#include "core/foundation/random.h"
#include "support.h"

enum {
    BLOCKS = 4,
    ROWS = 64,
    BLOCK_BYTES = 4096,
    MESSAGE_MAX = UM_QUEUE_MESSAGE_BYTES_MIN,
    KEY_BYTES = 4,
    KEYS_MAX = 512,
};

typedef struct conflated {
    um_message_queue input; /* first, as in an event queue */
    um_conflation conflation;
    void *memory[2];
    uint32_t sqn;
    bool needs_review;
} conflated;

static void absorb(um_message_queue *input)
{
    um_conflation_absorb(&((conflated *)input)->conflation);
}

static conflated *open_queue_of(uint32_t blocks, uint32_t rows, uint32_t block_bytes, uint32_t message_max,
                                uint32_t key_bytes)
{
    conflated *f = zeroed(sizeof *f);
    f->memory[0] = zeroed(um_queue_footprint(blocks, rows, block_bytes, message_max));
    um_queue_init(&f->input, f->memory[0], blocks, rows, block_bytes, message_max);
    f->input.needs_review = &f->needs_review;
    f->memory[1] = zeroed(um_conflation_footprint(&f->input));
    um_conflation_init(&f->conflation, f->memory[1], &f->input, key_bytes);
    f->input.absorb = absorb;
    return f;
}

static conflated *open_queue(uint32_t key_bytes)
{
    return open_queue_of(BLOCKS, ROWS, BLOCK_BYTES, MESSAGE_MAX, key_bytes);
}

static void close_queue(conflated *f)
{
    free(f->memory[0]);
    free(f->memory[1]);
    free(f);
}

static uint8_t filler(uint32_t key, uint32_t sqn)
{
    return (uint8_t)(key * 31 + sqn);
}

/* Appends a message: the key in KEY_BYTES, then bytes that depend on key and sqn. With properties: as many bytes. */
static bool bring(conflated *f, uint32_t source, uint32_t key, uint32_t length, bool has_properties)
{
    uint32_t properties = has_properties ? length : 0, sqn = f->sqn;
    uint8_t *space = um_queue_reserve(&f->input, length + properties);
    if (space == NULL)
        return false;
    memset(space, filler(key, sqn), length + properties);
    um_store_be32(space, key);
    um_row row = {.flags = has_properties ? UM_MESSAGE_PROPERTIES : 0,
                  .sequence_number = f->sqn++,
                  .source = source,
                  .received_ns = sqn + 1,
                  .sent_ns = sqn + 2};
    if (has_properties)
        um_queue_append_with_properties(&f->input, &row, length, properties);
    else
        um_queue_append(&f->input, &row, length);
    return true;
}

static bool bring_bytes(conflated *f, const uint8_t *payload, uint32_t length)
{
    uint8_t *space = um_queue_reserve(&f->input, length);
    if (space == NULL)
        return false;
    memcpy(space, payload, length);
    um_queue_append(&f->input, &(um_row){.sequence_number = f->sqn++, .source = 1}, length);
    return true;
}

static bool bring_event(conflated *f, uint32_t source, enum um_row_kind kind, uint32_t sqn)
{
    if (um_queue_reserve(&f->input, 0) == NULL)
        return false;
    um_row row = {.flags = (uint16_t)((unsigned)kind << 8), .sequence_number = sqn, .source = source};
    um_queue_append(&f->input, &row, 0);
    return true;
}

typedef struct taken {
    uint32_t kind;
    uint32_t source;
    uint32_t sqn;
    uint32_t key;
    uint32_t length;
} taken;

/* Checks that the row's columns, payload and properties belong to its sqn. */
static taken read_row(const um_block *b, uint32_t i)
{
    taken t = {um_row_kind_of(b->flags[i]), b->sources[i], b->sequence_numbers[i], 0,
               (uint32_t)(b->offsets[i + 1] - b->offsets[i])};
    if (t.kind != UM_ROW_MESSAGE)
        return t;
    const uint8_t *payload = b->payload + b->offsets[i];
    CHECK_EQ(b->received_ns[i], t.sqn + 1);
    CHECK_EQ(b->sent_ns[i], t.sqn + 2);
    t.key = um_load_be32(payload);
    for (uint32_t at = KEY_BYTES; at < t.length; at++)
        CHECK_EQ(payload[at], filler(t.key, t.sqn));
    if (b->flags[i] & UM_MESSAGE_PROPERTIES) {
        CHECK_EQ(b->properties[i].bytes, t.length);
        for (uint32_t at = 0; at < t.length; at++)
            CHECK_EQ(b->payload[b->properties[i].offset + at], filler(t.key, t.sqn));
    }
    return t;
}

static uint32_t take(conflated *f, taken *out, uint32_t max)
{
    uint32_t count = 0;
    um_rows rows;
    while (count < max && (rows = um_conflation_take(&f->conflation, max - count)).count > 0) {
        for (uint32_t i = rows.first; i < rows.first + rows.count; i++)
            out[count++] = read_row(rows.block, i);
        um_queue_release(rows.block, rows.count);
    }
    return count;
}

TEST("W8", "a read returns the newest message of each source, in the order in which the sources came")
{
    conflated *f = open_queue(0);
    taken out[8];
    CHECK(!um_conflation_is_ready(&f->conflation));
    for (uint32_t i = 0; i < 10; i++)
        CHECK(bring(f, i % 3, i, 20 + i, i == 8));
    CHECK(um_conflation_is_ready(&f->conflation));
    CHECK_EQ(take(f, out, 8), 3);
    CHECK_EQ(out[0].sqn, 9);
    CHECK_EQ(out[1].sqn, 7);
    CHECK_EQ(out[2].sqn, 8);
    CHECK_EQ(f->conflation.conflated_count, 7);
    CHECK(!um_conflation_is_ready(&f->conflation));
    CHECK_EQ(take(f, out, 8), 0);
    CHECK(bring(f, 1, 0, 10, false));
    CHECK_EQ(take(f, out, 8), 1);
    CHECK_EQ(out[0].sqn, 10);
    close_queue(f);
}

TEST("W8", "a reader that never reads never fills the queue, and finds the newest of each key")
{
    conflated *f = open_queue(KEY_BYTES);
    taken out[8];
    for (uint32_t i = 0; i < 100000; i++)
        CHECK(bring(f, 1, i % 7, 100 + i % 50, i % 5 == 0));
    CHECK_EQ(f->input.state, UM_QUEUE_OPEN);
    CHECK_EQ(take(f, out, 8), 7);
    for (uint32_t i = 0; i < 7; i++) {
        CHECK_EQ(out[i].key, i);
        CHECK(out[i].sqn >= 100000 - 7);
    }
    CHECK_EQ(f->conflation.conflated_count, 100000 - 7);
    close_queue(f);
}

TEST("W8", "a key that changes with every read does not wait behind others")
{
    conflated *f = open_queue(KEY_BYTES);
    taken out;
    bool has_come = false;
    for (uint32_t key = 0; key < 8; key++)
        CHECK(bring(f, 1, key, 40, false));
    for (uint32_t read = 0; read < 8; read++) {
        CHECK(bring(f, 1, 3, 40, false));
        CHECK_EQ(take(f, &out, 1), 1);
        has_come |= out.key == 3;
    }
    CHECK(has_come);
    close_queue(f);
}

TEST("W8", "events stay, the newest of each kind and source")
{
    conflated *f = open_queue(0);
    taken out[8];
    CHECK(bring_event(f, 1, UM_ROW_BEGINNING_OF_SESSION, 0));
    CHECK(bring(f, 1, 0, 10, false));
    CHECK(bring_event(f, 1, UM_ROW_UNRECOVERABLE_LOSS, 4));
    CHECK(bring_event(f, 1, UM_ROW_UNRECOVERABLE_LOSS, 6));
    CHECK(bring_event(f, 2, UM_ROW_BEGINNING_OF_SESSION, 0));
    CHECK(bring(f, 1, 0, 10, false));
    CHECK(bring_event(f, 1, UM_ROW_END_OF_SESSION, 0));
    static const uint32_t kinds[] = {UM_ROW_BEGINNING_OF_SESSION, UM_ROW_MESSAGE, UM_ROW_UNRECOVERABLE_LOSS,
                                     UM_ROW_BEGINNING_OF_SESSION, UM_ROW_END_OF_SESSION};
    CHECK_EQ(take(f, out, 8), 5);
    for (uint32_t i = 0; i < 5; i++)
        CHECK_EQ(out[i].kind, kinds[i]);
    CHECK_EQ(out[1].sqn, 1);
    CHECK_EQ(out[2].sqn, 6);
    CHECK_EQ(f->conflation.conflated_count, 1);
    close_queue(f);
}

TEST("W8", "a row is replaced until a read returns it, even if the reader keeps rows of earlier reads")
{
    conflated *f = open_queue(0);
    um_rows kept[BLOCKS * ROWS];
    uint32_t reads = 0;
    for (; reads < BLOCKS * ROWS + 10; reads++) {
        CHECK(bring(f, 1, 0, 100, false));
        if (!um_conflation_is_ready(&f->conflation))
            break;
        kept[reads] = um_conflation_take(&f->conflation, 1);
        CHECK_EQ(kept[reads].count, 1);
    }
    CHECK(reads >= ROWS && reads <= BLOCKS * ROWS);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK(bring(f, 1, 0, 100, false));
    CHECK_EQ(um_conflation_take(&f->conflation, 1).count, 0);
    for (uint32_t i = 0; i < reads; i++)
        um_queue_release(kept[i].block, 1);
    taken out;
    CHECK_EQ(take(f, &out, 1), 1);
    CHECK_EQ(out.sqn, f->sqn - 1);
    close_queue(f);
}

TEST("W8", "with more keys than memory the queue refuses rows, and what it accepted is read")
{
    conflated *f = open_queue(KEY_BYTES);
    static taken out[BLOCKS * ROWS * 4];
    uint32_t accepted = 0;
    while (bring(f, 1, accepted, 40, false))
        accepted++;
    CHECK(accepted > BLOCKS * ROWS);
    CHECK_EQ(take(f, out, BLOCKS * ROWS * 4), accepted);
    for (uint32_t i = 0; i < accepted; i++)
        CHECK_EQ(out[i].key, i);
    CHECK(bring(f, 1, 0, 40, false));
    close_queue(f);
}

static uint32_t draw(um_random *random, uint32_t bound)
{
    return (uint32_t)um_random_below(random, bound);
}

TEST("W8", "random keys, lengths and reads: each read continues with the newest of a key, and none is missing")
{
    conflated *f = open_queue(KEY_BYTES);
    um_random random = {7};
    static taken out[KEYS_MAX];
    uint32_t newest[KEYS_MAX] = {0}, read[KEYS_MAX] = {0}, taken_count = 0;
    f->sqn = 1;
    for (uint32_t round = 0; round < 20000; round++) {
        for (uint32_t i = draw(&random, 40); i > 0; i--) {
            uint32_t key = draw(&random, 150);
            newest[key] = f->sqn;
            CHECK(bring(f, key % 3, key, KEY_BYTES + draw(&random, 60), draw(&random, 8) == 0));
        }
        uint32_t count = take(f, out, draw(&random, 16));
        taken_count += count;
        for (uint32_t i = 0; i < count; i++) {
            CHECK_EQ(out[i].sqn, newest[out[i].key]);
            CHECK(read[out[i].key] != out[i].sqn);
            read[out[i].key] = out[i].sqn;
        }
    }
    uint32_t count = take(f, out, KEYS_MAX);
    for (uint32_t i = 0; i < count; i++)
        read[out[i].key] = out[i].sqn;
    for (uint32_t key = 0; key < KEYS_MAX; key++)
        CHECK_EQ(read[key], newest[key]);
    taken_count += count;
    CHECK_EQ(taken_count + f->conflation.conflated_count, f->sqn - 1);
    close_queue(f);
}

TEST("W8", "no key is taken for another, not even by its hash")
{
    enum {
        KEYS = 1 << 18,
        MANY_ROWS = 1 << 13,
        MANY_BLOCKS = KEYS / MANY_ROWS * 2,
        BYTES = 8
    }; /* some 8 pairs collide */
    for (uint32_t by_source = 0; by_source < 2; by_source++) {
        conflated *f = open_queue_of(MANY_BLOCKS, MANY_ROWS, MANY_ROWS * BYTES, MESSAGE_MAX, by_source ? 0 : KEY_BYTES);
        for (uint32_t i = 0; i < KEYS; i++)
            CHECK(bring(f, by_source ? i : 1, i, BYTES, false));
        CHECK_EQ(f->conflation.conflated_count, 0);
        taken *out = zeroed(KEYS * sizeof *out);
        CHECK_EQ(take(f, out, KEYS), KEYS);
        for (uint32_t i = 0; i < KEYS; i++)
            CHECK_EQ(out[i].key, i);
        free(out);
        close_queue(f);
    }
}

TEST("W8", "a payload that is the start of another key is a key of its own")
{
    conflated *f = open_queue(KEY_BYTES);
    taken out[8];
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t length = 1; length <= KEY_BYTES; length++)
            CHECK(bring_bytes(f, (const uint8_t[]){0, 0, 0, 0}, length));
    um_rows rows = um_conflation_take(&f->conflation, 8);
    CHECK_EQ(rows.count, KEY_BYTES);
    um_queue_release(rows.block, rows.count);
    CHECK_EQ(f->conflation.conflated_count, 2 * KEY_BYTES);
    CHECK_EQ(take(f, out, 8), 0);
    close_queue(f);
}

TEST("W8", "the longest message is held, even if it is longer than all blocks together")
{
    enum { LONG = 100000 };
    conflated *f = open_queue_of(BLOCKS, ROWS, BLOCK_BYTES, LONG, KEY_BYTES);
    taken out;
    CHECK(bring(f, 1, 1, LONG, false));
    CHECK(bring(f, 1, 1, LONG, false));
    CHECK_EQ(take(f, &out, 1), 1);
    CHECK(out.sqn == 1 && out.length == LONG);
    close_queue(f);
}

TEST("W8", "keys that come once use up no memory")
{
    conflated *f = open_queue(KEY_BYTES);
    taken out;
    for (uint32_t key = 0; key < 100 * KEYS_MAX; key++) {
        CHECK(bring(f, 1, key, 40, false));
        CHECK_EQ(take(f, &out, 1), 1);
        CHECK_EQ(out.key, key);
    }
    close_queue(f);
}

TEST("W8", "a row keeps the time at which it entered the queue")
{
    conflated *f = open_queue(KEY_BYTES);
    int64_t now_ns = 0;
    f->input.clock_ns = &now_ns;
    for (uint32_t key = 0; key < 3; key++) {
        now_ns = 1000 + key;
        CHECK(bring(f, 1, key, 40, false));
    }
    now_ns = 2000;
    um_rows rows = um_conflation_take(&f->conflation, 3);
    CHECK_EQ(rows.count, 3);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(rows.block->enqueued_ns[rows.first + i], 1000 + i);
    um_queue_release(rows.block, rows.count);
    close_queue(f);
}

CHECK_MAIN
