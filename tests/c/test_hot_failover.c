/* Hot failover: merging the rows of several sources (lines) by the numbers that they carry. */
#include "core/delivery/hot_failover.h"
#include "core/foundation/random.h"
#include "support.h"

enum {
    CAPACITY = 256, /* more than twice the rows taken from an input at once */
    BLOCKS = 4,
    ROWS = 256,
    BLOCK_BYTES = 1 << 16,
    DELAY_NS = 400, /* in the time of the random streams: half of the slots fill meanwhile */
    LINES = 2,
    STREAM_MAX = 4096,
};

typedef struct lines {
    um_hot_failover hf;
    void *slots;
    um_message_queue inputs[LINES];
    void *memory[LINES + 1];
    uint32_t topic_sqn[LINES];
    uint32_t source[LINES]; /* numbers of the sources that send now */
    int64_t now_ns;
} lines;

static lines *open_lines(const um_hot_failover_config *config)
{
    lines *f = zeroed(sizeof *f);
    size_t bytes = um_queue_footprint(BLOCKS, ROWS, BLOCK_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    f->slots = zeroed(um_hot_failover_footprint(config));
    um_hot_failover_init(&f->hf, f->slots, config);
    for (uint32_t i = 0; i <= LINES; i++)
        f->memory[i] = zeroed(bytes);
    um_queue_init(&f->hf.out, f->memory[LINES], BLOCKS, ROWS, BLOCK_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    for (uint32_t i = 0; i < LINES; i++) {
        um_queue_init(&f->inputs[i], f->memory[i], BLOCKS, ROWS, BLOCK_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
        f->hf.inputs[f->hf.input_count++] = &f->inputs[i];
        f->source[i] = i;
    }
    return f;
}

static lines *open_plain(void)
{
    return open_lines(&(um_hot_failover_config){CAPACITY, DELAY_NS, true, false});
}

static void close_lines(lines *f)
{
    for (uint32_t i = 0; i <= LINES; i++)
        free(f->memory[i]);
    free(f->slots);
    free(f);
}

/* Appends a message of a line as its delivery controller does: the options, then the number in decimal as payload;
 * every third message has properties. Returns false if the line's queue is full. */
static bool bring_with(lines *f, uint32_t line, const um_lbmc_hot_failover *number)
{
    uint8_t out[256];
    char text[32];
    uint32_t length = (uint32_t)snprintf(text, sizeof text, "%llu", (unsigned long long)number->sqn);
    uint32_t properties = number->sqn % 3 == 0 ? 5 : 0;
    um_lbmc_layout layout = {.payload_length = length + properties};
    um_lbmc_first_options options;
    um_lbmc_make_first_options(&options, &(um_lbmc_extras){.hot_failover = number, .properties_bytes = properties});
    uint8_t *payload = um_lbmc_write_with_options(out, &layout, &options);
    memcpy(payload, text, length);
    memset(payload + length, (int)number->sqn, properties);
    uint32_t before = (uint32_t)(payload - out) - UM_LBMC_HEADER_BYTES;
    uint8_t *space = um_queue_reserve(&f->inputs[line], before + length + properties);
    if (space == NULL)
        return false;
    memcpy(space, out + UM_LBMC_HEADER_BYTES, before + length + properties);
    uint32_t sqn = f->topic_sqn[line]++;
    um_row row = {.flags = UM_MESSAGE_HOT_FAILOVER | (properties > 0 ? UM_MESSAGE_PROPERTIES : 0),
                  .sequence_number = sqn,
                  .first_sequence_number = sqn,
                  .source = f->source[line]};
    if (properties > 0)
        um_queue_append_with_properties(&f->inputs[line], &row, before + length, properties);
    else
        um_queue_append(&f->inputs[line], &row, before + length);
    return true;
}

static bool bring(lines *f, uint32_t line, uint64_t sqn)
{
    return bring_with(f, line, &(um_lbmc_hot_failover){.sqn = sqn, .is_64_bits = sqn > UINT32_MAX || sqn % 2});
}

/* Appends a row other than a message. */
static void append_event(lines *f, uint32_t line, enum um_row_kind kind, uint32_t first, uint32_t last)
{
    CHECK(um_queue_reserve(&f->inputs[line], 0) != NULL);
    um_row row = {.flags = (uint16_t)(kind << 8),
                  .sequence_number = last,
                  .first_sequence_number = first,
                  .source = f->source[line]};
    um_queue_append(&f->inputs[line], &row, 0);
}

typedef struct taken {
    uint32_t kind;
    uint64_t sqn;
    uint16_t flags;
    bool is_whole; /* payload and properties are those of the number */
} taken;

static uint32_t take(lines *f, taken *out, uint32_t most)
{
    uint32_t count = 0;
    um_rows rows;
    while (count < most && (rows = um_hot_failover_take(&f->hf, most - count, f->now_ns)).count > 0) {
        for (uint32_t i = rows.first; i < rows.first + rows.count; i++) {
            const um_block *b = rows.block;
            taken *t = &out[count++];
            *t = (taken){um_row_kind_of(b->flags[i]),
                         (uint64_t)b->first_sequence_numbers[i] << 32 | b->sequence_numbers[i], b->flags[i], true};
            if (t->kind != UM_ROW_MESSAGE)
                continue;
            char text[32] = {0};
            uint32_t length = (uint32_t)(b->offsets[i + 1] - b->offsets[i]);
            CHECK(length < sizeof text);
            memcpy(text, b->payload + b->offsets[i], length);
            t->is_whole = strtoull(text, NULL, 10) == t->sqn;
            t->is_whole &= (t->sqn % 3 == 0) == ((b->flags[i] & UM_MESSAGE_PROPERTIES) != 0);
            for (uint32_t k = 0; t->sqn % 3 == 0 && k < 5; k++)
                t->is_whole &=
                    b->properties[i].bytes == 5 && b->payload[b->properties[i].offset + k] == (uint8_t)t->sqn;
        }
        um_queue_release(rows.block, rows.count);
    }
    return count;
}

static void expect(lines *f, const uint64_t *numbers, uint32_t count)
{
    taken rows[64];
    CHECK_EQ(take(f, rows, 64), count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ(rows[i].kind, UM_ROW_MESSAGE);
        CHECK_EQ(rows[i].sqn, numbers[i]);
        CHECK(rows[i].is_whole);
    }
}

TEST("W1", "the first copy of a number is delivered, in number order, with its properties")
{
    lines *f = open_plain();
    for (uint64_t sqn = 5; sqn < 10; sqn++) {
        bring(f, 0, sqn);
        bring(f, 1, sqn);
    }
    static const uint64_t first[] = {5, 6, 7, 8, 9};
    expect(f, first, 5);
    CHECK_EQ(f->hf.counters.hf_duplicates, 5);
    CHECK_EQ(f->hf.counters.hf_delivered, 5);
    f->topic_sqn[0]++; /* this line has lost 10, the other one delivers it */
    bring(f, 0, 11);
    append_event(f, 0, UM_ROW_UNRECOVERABLE_LOSS, 5, 5);
    expect(f, NULL, 0);
    CHECK_EQ(um_hot_failover_deadline_ns(&f->hf), f->now_ns + DELAY_NS);
    bring(f, 1, 10);
    static const uint64_t second[] = {10, 11};
    expect(f, second, 2);
    CHECK_EQ(f->hf.counters.hf_line_losses, 1);
    CHECK_EQ(um_hot_failover_deadline_ns(&f->hf), UM_NEVER_NS);
    close_lines(f);
}

TEST("W1", "a number that no line delivers is lost after its timeout; a skipped number is passed at once")
{
    lines *f = open_plain();
    taken rows[8];
    bring(f, 0, 1);
    f->topic_sqn[0]++; /* the line loses a message behind it */
    bring(f, 0, 4);
    CHECK_EQ(take(f, rows, 8), 1);
    f->now_ns += DELAY_NS - 1;
    CHECK_EQ(take(f, rows, 8), 0);
    CHECK(!um_hot_failover_is_ready(&f->hf, f->now_ns));
    f->now_ns++;
    CHECK(um_hot_failover_is_ready(&f->hf, f->now_ns));
    CHECK_EQ(take(f, rows, 8), 3);
    CHECK(rows[0].kind == UM_ROW_UNRECOVERABLE_LOSS && rows[0].sqn == 2);
    CHECK(rows[1].kind == UM_ROW_UNRECOVERABLE_LOSS && rows[1].sqn == 3);
    CHECK(rows[2].kind == UM_ROW_MESSAGE && rows[2].sqn == 4);
    CHECK_EQ(f->hf.counters.hf_lost, 2);
    bring(f, 0, 9);
    CHECK_EQ(take(f, rows, 8), 1);
    CHECK_EQ(rows[0].sqn, 9);
    CHECK_EQ(f->hf.counters.hf_left_out, 4);
    close_lines(f);
}

TEST("W1", "a number that waits in a line's queue is not given up, however late the reader takes it")
{
    lines *f = open_plain();
    taken rows[8];
    bring(f, 0, 66);
    f->topic_sqn[0]++;
    bring(f, 0, 68);
    for (uint64_t sqn = 1; sqn <= 68; sqn++)
        bring(f, 1, sqn);
    CHECK_EQ(take(f, rows, 1), 1); /* 68 waits for 67, which is in the other line's queue, not yet examined */
    CHECK_EQ(rows[0].sqn, 66);
    f->now_ns += 10 * DELAY_NS;
    CHECK_EQ(take(f, rows, 8), 2);
    CHECK(rows[0].kind == UM_ROW_MESSAGE && rows[0].sqn == 67);
    CHECK(rows[1].kind == UM_ROW_MESSAGE && rows[1].sqn == 68);
    CHECK_EQ(f->hf.counters.hf_lost, 0);
    close_lines(f);
}

TEST("W1", "32-bit numbers wrap, and are extended to the value nearest to the expected one")
{
    lines *f = open_plain();
    uint64_t sqn = 0x1fffffffdull, numbers[6];
    um_lbmc_hot_failover first = {.sqn = sqn, .is_64_bits = true};
    for (uint32_t i = 0; i < 6; i++)
        numbers[i] = sqn + i;
    CHECK(bring_with(f, 0, &first));
    taken rows[8];
    CHECK_EQ(take(f, rows, 8), 1);
    for (uint32_t i = 1; i < 6; i++) /* the payload has the low half, so only the number is compared */
        CHECK(bring_with(f, 1, &(um_lbmc_hot_failover){.sqn = (uint32_t)numbers[i]}));
    CHECK_EQ(take(f, rows, 8), 5);
    for (uint32_t i = 1; i < 6; i++)
        CHECK_EQ(rows[i - 1].sqn, numbers[i]);
    close_lines(f);
}

TEST("W1", "a reset delivers waiting messages, then an event; a line's messages before its own reset are dropped")
{
    lines *f = open_plain();
    taken rows[16];
    bring(f, 0, 100);
    bring(f, 1, 100);
    CHECK_EQ(take(f, rows, 16), 1);
    f->topic_sqn[0]++;
    bring(f, 0, 103);
    CHECK(bring_with(f, 0, &(um_lbmc_hot_failover){.sqn = 7, .is_reset = true}));
    bring(f, 0, 7);
    bring(f, 1, 101);
    CHECK(bring_with(f, 1, &(um_lbmc_hot_failover){.sqn = 7, .is_reset = true}));
    bring(f, 1, 7);
    bring(f, 1, 8);
    uint32_t count = take(f, rows, 16);
    CHECK_EQ(count, 6);
    static const uint32_t kinds[] = {UM_ROW_UNRECOVERABLE_LOSS,
                                     UM_ROW_UNRECOVERABLE_LOSS,
                                     UM_ROW_MESSAGE,
                                     UM_ROW_HF_RESET,
                                     UM_ROW_MESSAGE,
                                     UM_ROW_MESSAGE};
    static const uint64_t numbers[] = {101, 102, 103, 7, 7, 8};
    for (uint32_t i = 0; i < count; i++)
        CHECK(rows[i].kind == kinds[i] && rows[i].sqn == numbers[i]);
    CHECK_EQ(f->hf.counters.hf_resets, 1);
    CHECK_EQ(f->hf.counters.hf_duplicates, 3);
    close_lines(f);
}

TEST("W1", "a reset reports no number that its line left out")
{
    lines *f = open_plain();
    taken rows[8];
    bring(f, 0, 100);
    f->topic_sqn[0]++;
    bring(f, 0, 103);
    bring(f, 0, 106);
    CHECK(bring_with(f, 0, &(um_lbmc_hot_failover){.sqn = 7, .is_reset = true}));
    CHECK_EQ(take(f, rows, 8), 6);
    static const uint64_t numbers[] = {100, 101, 102, 103, 106, 7};
    for (uint32_t i = 0; i < 6; i++)
        CHECK_EQ(rows[i].sqn, numbers[i]);
    CHECK_EQ(f->hf.counters.hf_lost, 2);
    CHECK_EQ(f->hf.counters.hf_left_out, 2);
    close_lines(f);
}

TEST("W1", "a million restarts of publishers: each number once, skipped ones passed, each reset delivered once")
{
    enum { RESTARTS = 1000000, RESET_EVERY = 1000 };
    lines *f = open_plain();
    taken rows[8];
    uint64_t sqn = 1;
    for (uint32_t restart = 0; restart < RESTARTS; restart++) {
        uint32_t line = restart % LINES;
        f->source[line] = LINES + restart; /* the other line's source lives on */
        f->topic_sqn[line] = restart * 7919u;
        for (uint32_t i = 0; i < LINES; i++) {
            bring(f, i, sqn);
            bring(f, i, sqn + 3);
        }
        CHECK_EQ(take(f, rows, 8), 2);
        CHECK(rows[0].kind == UM_ROW_MESSAGE && rows[0].sqn == sqn && rows[0].is_whole);
        CHECK(rows[1].kind == UM_ROW_MESSAGE && rows[1].sqn == sqn + 3 && rows[1].is_whole);
        bool is_reset = restart % RESET_EVERY == 0;
        for (uint32_t i = 0; i < LINES && is_reset; i++)
            CHECK(bring_with(f, i, &(um_lbmc_hot_failover){.sqn = sqn + 4, .is_reset = true}));
        CHECK_EQ(take(f, rows, 8), is_reset);
        CHECK(!is_reset || (rows[0].kind == UM_ROW_HF_RESET && rows[0].sqn == sqn + 4));
        sqn += 4;
    }
    CHECK_EQ(f->hf.counters.hf_lost, 0);
    CHECK_EQ(f->hf.counters.hf_left_out, 2 * (uint64_t)RESTARTS);
    CHECK_EQ(f->hf.counters.hf_resets, RESTARTS / RESET_EVERY);
    CHECK_EQ(f->hf.counters.hf_duplicates, 2 * (uint64_t)RESTARTS);
    close_lines(f);
}

TEST("W1", "a jump beyond the slots is accepted when another message confirms it")
{
    lines *f = open_plain();
    taken rows[8];
    bring(f, 0, 1);
    CHECK_EQ(take(f, rows, 8), 1);
    f->topic_sqn[0] += 5;
    bring(f, 0, 1u << 20); /* forged or damaged */
    f->topic_sqn[0] += 5;
    bring(f, 0, 2);
    CHECK_EQ(take(f, rows, 8), 1);
    CHECK_EQ(rows[0].sqn, 2);
    CHECK_EQ(f->hf.counters.hf_out_of_range, 1);
    f->topic_sqn[0] += 5;
    bring(f, 0, 1u << 21);
    f->topic_sqn[0] += 5;
    bring(f, 0, (1u << 21) + 1);
    f->topic_sqn[0] += 5;
    bring(f, 0, (UINT64_C(1) << 40));
    CHECK(take(f, rows, 8) >= 1);
    CHECK_EQ(rows[0].kind, UM_ROW_BURST_LOSS);
    CHECK_EQ(f->hf.counters.hf_out_of_range, 3);
    close_lines(f);
}

TEST("W1", "a jump is not confirmed by the same number again, or by one further behind than 1024 numbers")
{
    enum { JUMP = 1 << 20, CONFIRMED_WITHIN = 1024 };
    lines *f = open_plain();
    taken rows[8];
    bring(f, 0, 1);
    CHECK_EQ(take(f, rows, 8), 1);
    const uint64_t unconfirmed[] = {JUMP, JUMP, JUMP + CONFIRMED_WITHIN + 1, JUMP};
    for (uint32_t i = 0; i < sizeof unconfirmed / sizeof unconfirmed[0]; i++) {
        f->topic_sqn[i % LINES] += 5;
        bring(f, i % LINES, unconfirmed[i]);
        CHECK_EQ(take(f, rows, 8), 0);
        CHECK_EQ(f->hf.counters.hf_out_of_range, i + 1);
    }
    f->topic_sqn[0] += 5;
    bring(f, 0, JUMP + CONFIRMED_WITHIN);
    CHECK(take(f, rows, 8) >= 1);
    CHECK_EQ(rows[0].kind, UM_ROW_BURST_LOSS);
    close_lines(f);
}

TEST("W1", "a line that lost its reset with a loss is not held behind the reset of the other line")
{
    lines *f = open_plain();
    taken rows[8];
    bring(f, 0, 100);
    bring(f, 1, 100);
    CHECK_EQ(take(f, rows, 8), 1);
    CHECK(bring_with(f, 0, &(um_lbmc_hot_failover){.sqn = 7, .is_reset = true}));
    CHECK_EQ(take(f, rows, 8), 1);
    CHECK_EQ(rows[0].kind, UM_ROW_HF_RESET);
    append_event(f, 1, UM_ROW_UNRECOVERABLE_LOSS, f->topic_sqn[1], f->topic_sqn[1]);
    f->topic_sqn[1]++;
    bring(f, 1, 7);
    CHECK_EQ(take(f, rows, 8), 1);
    CHECK(rows[0].kind == UM_ROW_MESSAGE && rows[0].sqn == 7);
    close_lines(f);
}

TEST("W1", "behind a gap longer than the slots, successive numbers of a line are no jump")
{
    lines *f = open_plain();
    taken rows[64];
    uint32_t delivered = 0, lost = 0;
    bring(f, 0, 1);
    f->topic_sqn[0]++;
    for (uint64_t sqn = 3; sqn < 3 + 2 * CAPACITY; sqn++) {
        CHECK(bring(f, 0, sqn));
        for (uint32_t i = 0, count = take(f, rows, 64); i < count; i++) {
            delivered += rows[i].kind == UM_ROW_MESSAGE;
            lost += rows[i].kind == UM_ROW_UNRECOVERABLE_LOSS;
        }
    }
    CHECK_EQ(delivered, 1 + 2 * CAPACITY);
    CHECK_EQ(lost, 1);
    CHECK_EQ(f->hf.counters.hf_out_of_range, 0);
    close_lines(f);
}

TEST("W1", "optional messages and further copies are delivered if configured")
{
    taken rows[8];
    for (uint32_t wanted = 0; wanted < 2; wanted++) {
        lines *f = open_lines(&(um_hot_failover_config){CAPACITY, DELAY_NS, wanted, wanted});
        for (uint32_t line = 0; line < LINES; line++)
            for (uint64_t sqn = 1; sqn <= 3; sqn++)
                bring_with(f, line, &(um_lbmc_hot_failover){.sqn = sqn, .is_optional = sqn == 2});
        CHECK_EQ(take(f, rows, 8), wanted ? 6 : 2);
        uint32_t copies = 0;
        for (uint32_t i = 0; i < (wanted ? 6 : 2); i++)
            copies += (rows[i].flags & UM_MESSAGE_HF_DUPLICATE) != 0;
        CHECK_EQ(copies, wanted ? 3 : 0);
        CHECK_EQ(f->hf.counters.hf_optional_dropped, wanted ? 0 : 1);
        close_lines(f);
    }
}

TEST("W1", "two lines with loss, delay and reordering make one stream: each number once, in order, or reported lost")
{
    um_random random = {check_seed()};
    for (uint32_t round = 0; round < 40; round++) {
        lines *f = open_plain();
        uint64_t base = round % 4 == 0 ? UINT32_MAX - 50 : um_random_below(&random, 1000), next[LINES] = {0};
        uint64_t expected = base, delivered = 0, lost = 0;
        bool has_both_lost[STREAM_MAX] = {false}, is_lost[LINES][STREAM_MAX] = {{false}};
        uint32_t count = 500 + (uint32_t)um_random_below(&random, 1000);
        for (uint32_t i = 1; i < count; i++) {
            for (uint32_t line = 0; line < LINES; line++)
                is_lost[line][i] = i + 1 < count && um_random_below(&random, 20) == 0;
            has_both_lost[i] = is_lost[0][i] && is_lost[1][i];
        }
        while (next[0] < count || next[1] < count || delivered + lost < count) {
            uint32_t line = (uint32_t)um_random_below(&random, LINES);
            uint64_t ahead = next[line] - (next[1 - line] < next[line] ? next[1 - line] : next[line]);
            if (next[line] < count && ahead < 30) { /* no line is further ahead than the slots allow */
                if (is_lost[line][next[line]])
                    f->topic_sqn[line]++;
                else if (!bring(f, line, base + next[line]))
                    continue;
                next[line]++;
            }
            bool is_over = next[0] == count && next[1] == count;
            f->now_ns += is_over ? DELAY_NS : (int64_t)um_random_below(&random, 4);
            taken rows[16];
            uint32_t got = take(f, rows, 1 + (uint32_t)um_random_below(&random, 16));
            for (uint32_t i = 0; i < got; i++, expected++) {
                CHECK_EQ(rows[i].sqn, expected);
                bool is_message = rows[i].kind == UM_ROW_MESSAGE;
                CHECK(is_message ? rows[i].is_whole : rows[i].kind == UM_ROW_UNRECOVERABLE_LOSS);
                CHECK(is_message || has_both_lost[expected - base]);
                delivered += is_message;
                lost += !is_message;
            }
        }
        CHECK_EQ(f->hf.counters.hf_delivered, delivered);
        CHECK_EQ(f->hf.counters.hf_lost, lost);
        CHECK_EQ(f->hf.held_count, 0);
        close_lines(f);
    }
}

CHECK_MAIN
