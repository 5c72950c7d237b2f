/* Message properties: their options on the wire, valid blocks, how a source sends them, and how a
 * receiving session delivers them. */
#include "core/delivery/hot_failover.h"
#include "core/foundation/random.h"
#include "core/wire/message_properties.h"
#include "recovering.h"

/* {"a": int 7, "region": "eu"} in either byte order. */
static const char little[] = "badaacab 0200 00 00  28000000 2a000000 00000000 04000000  2e000000 35000000 00000000 "
                             "08000000  6100 07000000 726567696f6e00 657500";
static const char big[] = "abacdaba 0002 00 00  00000028 0000002a 00000000 00000004  0000002e 00000035 00000000 "
                          "00000008  6100 00000007 726567696f6e00 657500";
enum { BLOCK_BYTES = 56, FIRST_PROPERTY = UM_PROPERTIES_HEAD_BYTES, VALUE_OFFSET = 4, TYPE = 12 };

/* ---- the options ---- */

TEST("W1", "the properties' length is an element of the chain option, before that of a hot failover number")
{
    static const um_request request = {0x01020304, 0x0a090001, 14391};
    static const um_lbmc_hot_failover number = {.sqn = 0x0102030405060708, .is_64_bits = true};
    static const struct {
        um_lbmc_extras extras;
        const char *golden;
    } cases[] = {
        {{.properties_bytes = 56}, "00070051 000003ea 00000007 000c8006 ff080000 00000038"},
        {{.properties_bytes = 56, .hot_failover = &number},
         "0007005d 000003ea 00000007 00188006 02080000 00000038 ff0c0000 01020304 05060708"},
        {{.properties_bytes = 56, .request = &request},
         "00040061 000003ea 00000007 07108000 01020304 38370000 0a090001 000c8006 ff080000 00000038"},
        {{.properties_bytes = 56, .request = &request, .hot_failover = &number},
         "0004006d 000003ea 00000007 07108000 01020304 38370000 0a090001 00188006 02080000 00000038 ff0c0000 01020304 "
         "05060708"},
        {{.hot_failover = &number}, "00070055 000003ea 00000007 00108002 ff0c0000 01020304 05060708"},
        {{0}, "00000045 000003ea 00000007"},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t out[160] = {0}, golden[160];
        um_lbmc_layout layout = {.topic_index = 0x3ea, .sqn = 7, .payload_length = 57};
        um_lbmc_first_options options;
        um_lbmc_make_first_options(&options, &cases[i].extras);
        uint8_t *payload = um_lbmc_write_with_options(out, &layout, &options);
        CHECK_EQ(payload - out, from_hex(cases[i].golden, golden));
        CHECK_BYTES(out, golden, payload - out);
        um_lbmc_message message;
        um_lbmc_hot_failover read;
        uint32_t length;
        CHECK_EQ(um_lbmc_decode(out, sizeof out, &message, &length), UM_DGRAM_OK);
        CHECK_EQ(message.payload - out, payload - out);
        CHECK_EQ(message.flags, (cases[i].extras.properties_bytes ? UM_MESSAGE_PROPERTIES : 0) |
                                    (cases[i].extras.request ? UM_MESSAGE_REQUEST : 0) |
                                    (cases[i].extras.hot_failover ? UM_MESSAGE_HOT_FAILOVER : 0));
        if (cases[i].extras.properties_bytes)
            CHECK_EQ(message.properties_bytes, 56);
        if (cases[i].extras.request)
            CHECK_EQ(um_lbmc_read_request(message.request).index, request.index);
        if (!cases[i].extras.hot_failover)
            continue;
        uint32_t left = length - (uint32_t)(message.hot_failover - out);
        CHECK_EQ(um_lbmc_read_hot_failover(message.hot_failover, left, &read), message.payload - message.hot_failover);
        CHECK_EQ(read.sqn, number.sqn);
    }
}

TEST("W1", "an element of another length, or of no bytes, and an incomplete chain are no properties")
{
    static const struct {
        const char *message;
        uint16_t flags;
    } cases[] = {
        {"00070018 000003ea 00000007 000c8006 ff080000 00000038", UM_MESSAGE_PROPERTIES},
        {"00070018 000003ea 00000007 000c8006 ff080000 00000000", 0},
        {"00070018 000003ea 00000007 000c8006 ff070000 00000038", 0},
        {"00070018 000003ea 00000007 000c8006 ff0c0000 00000038", 0},
        {"0007001c 000003ea 00000007 00108006 ff0c0000 00000038 00000000", 0},
        {"00070018 000003ea 00000007 000c8001 06040000 00000038", 0}, /* cut short */
        {"0007001c 000003ea 00000007 00108001 06040000 ff080000 00000038", UM_MESSAGE_PROPERTIES},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t data[64];
        um_lbmc_message message;
        uint32_t length, bytes = from_hex(cases[i].message, data);
        CHECK_EQ(um_lbmc_decode(data, bytes, &message, &length), UM_DGRAM_OK);
        CHECK_EQ(message.flags, cases[i].flags);
    }
}

/* ---- blocks ---- */

/* The block in memory of the exact size, so that AddressSanitizer detects a read beyond it. */
static bool is_sound(const uint8_t *block, uint32_t bytes)
{
    uint8_t *copy = malloc(bytes + 1);
    memcpy(copy + 1, block, bytes);
    bool is = um_message_properties_is_sound(copy + 1, bytes);
    free(copy);
    return is;
}

TEST("W1", "a block is read in either byte order, and no part of a block is valid")
{
    const char *blocks[] = {little, big};
    for (uint32_t k = 0; k < 2; k++) {
        uint8_t block[128];
        CHECK_EQ(from_hex(blocks[k], block), BLOCK_BYTES);
        CHECK(is_sound(block, BLOCK_BYTES));
        for (uint32_t bytes = 0; bytes < BLOCK_BYTES; bytes++)
            CHECK(!is_sound(block, bytes));
    }
}

TEST("W1", "a block with invalid fields is refused, and values of unknown types are not checked")
{
    static const struct {
        uint32_t at;
        uint32_t value; /* little-endian */
        bool is_sound;
    } changes[] = {
        {0, 0xabacdabb, false},               /* wrong magic */
        {0, 0xbadaacab, false},               /* magic of the other byte order, counts of this one */
        {FIRST_PROPERTY, BLOCK_BYTES, false}, /* a name beyond the block */
        {FIRST_PROPERTY, UINT32_MAX, false},
        {FIRST_PROPERTY, 0x29, false},             /* a name of 0 bytes */
        {FIRST_PROPERTY, BLOCK_BYTES - 1, false},  /* the same at the end */
        {FIRST_PROPERTY, BLOCK_BYTES - 2, true},   /* a name inside another string */
        {FIRST_PROPERTY + VALUE_OFFSET, 52, true}, /* a value that ends where the block does */
        {FIRST_PROPERTY + VALUE_OFFSET, 53, false},
        {FIRST_PROPERTY + VALUE_OFFSET, BLOCK_BYTES, false},
        {FIRST_PROPERTY + VALUE_OFFSET, UINT32_MAX - 1, false},
        {FIRST_PROPERTY + TYPE, UM_PROPERTY_LONG, false}, /* its eight bytes overlap the next name */
        {FIRST_PROPERTY + TYPE, 0, true},
        {FIRST_PROPERTY + TYPE, 9, true},
        {FIRST_PROPERTY + TYPE, UINT32_MAX, true},
        {FIRST_PROPERTY + UM_PROPERTY_BYTES + VALUE_OFFSET, BLOCK_BYTES, false},    /* a string beyond the block */
        {FIRST_PROPERTY + UM_PROPERTY_BYTES + VALUE_OFFSET, BLOCK_BYTES - 1, true}, /* an empty string */
        {BLOCK_BYTES - 4, 0x41414141, false},                                       /* a string without a NUL */
        {4, 3, false}, /* more properties than the block can hold */
        {4, 1, true},
        {4, 0, true},
    };
    for (uint32_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        uint8_t block[128];
        from_hex(little, block);
        um_store_be32(block + changes[i].at, __builtin_bswap32(changes[i].value));
        CHECK_EQ(is_sound(block, BLOCK_BYTES), changes[i].is_sound);
    }
}

TEST("W1", "a name has 250 bytes at most, and a block 65535")
{
    for (uint32_t over = 0; over < 2; over++) {
        uint8_t *block = zeroed(UM_PROPERTIES_BYTES_MAX + 2);
        from_hex("badaacab 0100 00 00  18000000 13010000 00000000 08000000", block);
        memset(block + 24, 'n', UM_PROPERTY_NAME_BYTES_MAX + over);
        CHECK_EQ(um_message_properties_is_sound(block, 24 + UM_PROPERTY_NAME_BYTES_MAX + 2), !over);
        memset(block + 24, 0, 2 + UM_PROPERTY_NAME_BYTES_MAX);
        block[24] = 'n';
        memset(block + 26, 'v', UM_PROPERTIES_BYTES_MAX - 27 + over);
        CHECK_EQ(um_message_properties_is_sound(block, UM_PROPERTIES_BYTES_MAX + over), !over);
        free(block);
    }
}

/* ---- sending ---- */

TEST("UX-25 UM-48", "a message with properties of any length: whole if it fits, full fragments if not")
{
    um_random random = {check_seed()};
    for (uint32_t i = 0; i < 200; i++) {
        um_source_session_config config = default_config();
        config.term_length = 1 << 19;
        config.datagram_max_bytes = 500 + (uint32_t)um_random_below(&random, i % 4 == 0 ? 30000 : 2000);
        fixture *f = session_open(&config);
        um_source *source = source_open(f, 9, 0xfffffffe);
        bool has_number = i % 3 == 2;
        um_lbmc_hot_failover number = {.sqn = i};
        um_lbmc_extras extras = {.hot_failover = has_number ? &number : NULL};
        uint32_t body_max = config.datagram_max_bytes - UM_LBTRM_DATA_BYTES, offset = 0;
        uint32_t fits = body_max - um_lbmc_overhead(false, false, false) - (has_number ? 20 : 12);
        uint32_t length = i < 3   ? fits
                          : i < 6 ? fits + 1
                                  : 1 + (uint32_t)um_random_below(&random, um_source_message_max(source));
        extras.properties_bytes = 1 + (uint32_t)um_random_below(&random, length);
        uint8_t *data = zeroed(length);
        for (uint32_t b = 0; b < length; b++)
            data[b] = (uint8_t)um_random_next(&random);
        int64_t last = um_source_send_with(source, data, length, &extras, UM_SEND_FLUSH, f->now_ns, &f->actions);
        run_sender(f);
        CHECK_EQ(f->link.count == 1, length <= fits);
        CHECK_EQ((uint32_t)last, 0xfffffffe + f->link.count - 1);
        for (uint32_t k = 0; k < f->link.count; k++) {
            um_lbmc_message m;
            CHECK(f->link.datagrams[k].length <= config.datagram_max_bytes);
            CHECK_EQ(messages_at(f, k, &m, 1), 1);
            CHECK_EQ(m.flags, UM_MESSAGE_PROPERTIES | (has_number ? UM_MESSAGE_HOT_FAILOVER : 0) |
                                  (f->link.count > 1 ? UM_MESSAGE_FRAGMENT : 0));
            CHECK_EQ(m.properties_bytes, extras.properties_bytes);
            CHECK(f->link.count == 1 || (m.offset == offset && m.total == length));
            CHECK_BYTES(m.payload, data + offset, m.payload_length);
            offset += m.payload_length;
        }
        CHECK_EQ(offset, length);
        CHECK_EQ(messages_sent(source), 1);
        CHECK_EQ(source->counters.bytes_sent, length - extras.properties_bytes);
        free(data);
        session_close(f);
    }
}

TEST("UX-23", "a message that is too long with its properties, or meets an open explicit batch, is refused")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, 9, 0);
    um_lbmc_extras extras = {.properties_bytes = BLOCK_BYTES};
    uint32_t most = um_source_message_max(source);
    uint8_t *data = zeroed(most + 1);
    CHECK_EQ(um_source_send_with(source, data, most + 1, &extras, 0, f->now_ns, &f->actions), -EMSGSIZE);
    CHECK_EQ(send_text(f, source, "first", UM_SEND_START_BATCH), 0);
    CHECK_EQ(um_source_send_with(source, data, BLOCK_BYTES, &extras, 0, f->now_ns, &f->actions), -EBUSY);
    CHECK_EQ(send_text(f, source, "last", UM_SEND_END_BATCH), 1);
    CHECK_EQ(um_source_send_with(source, data, BLOCK_BYTES, &extras, 0, f->now_ns, &f->actions), 2);
    free(data);
    session_close(f);
}

/* ---- receiving ---- */

typedef struct delivered {
    uint32_t sqn;
    uint32_t payload_bytes;
    uint32_t message_length;
    uint32_t properties_bytes;
    bool is_as_sent; /* the payload's bytes are the sqn of the first fragment, the properties are `block` */
} delivered;

static uint32_t take_delivered(recovering *f, const uint8_t *block, delivered *out, uint32_t most)
{
    uint32_t count = 0;
    um_rows rows;
    while ((rows = um_queue_take(&f->queue, UINT32_MAX)).count > 0) {
        for (uint32_t i = rows.first; i < rows.first + rows.count; i++) {
            const um_block *b = rows.block;
            if (um_row_kind_of(b->flags[i]) != UM_ROW_MESSAGE)
                continue;
            CHECK(count < most);
            delivered *d = &out[count++];
            bool has = b->flags[i] & UM_MESSAGE_PROPERTIES;
            *d = (delivered){b->sequence_numbers[i], (uint32_t)(b->offsets[i + 1] - b->offsets[i]),
                             b->message_lengths[i], has ? b->properties[i].bytes : 0, true};
            for (uint32_t k = 0; k < d->payload_bytes; k++)
                d->is_as_sent &= b->payload[b->offsets[i] + (int32_t)k] == (uint8_t)b->first_sequence_numbers[i];
            if (has)
                d->is_as_sent &= memcmp(b->payload + b->properties[i].offset, block, d->properties_bytes) == 0;
        }
        um_queue_release(rows.block, rows.count);
    }
    return count;
}

/* A datagram with `bytes` of a message from `offset` on: `payload_bytes` of payload, then the block. */
static void arrive_with(recovering *f, uint32_t transport_sqn, um_lbmc_layout layout, uint32_t payload_bytes,
                        const uint8_t *block, uint32_t block_bytes, uint32_t said_bytes)
{
    uint8_t out[1472] = {0}, whole[1400];
    memset(whole, (int)(layout.flags & UM_MESSAGE_FRAGMENT ? layout.first_sqn : layout.sqn), payload_bytes);
    if (block_bytes > 0)
        memcpy(whole + payload_bytes, block, block_bytes);
    layout.topic_index = TOPIC;
    layout.total = payload_bytes + block_bytes;
    if (!(layout.flags & UM_MESSAGE_FRAGMENT))
        layout.payload_length = layout.total;
    um_lbmc_first_options options;
    um_lbmc_make_first_options(&options, &(um_lbmc_extras){.properties_bytes = said_bytes});
    um_lbtrm_write_data(out, SESSION, NAK_PORT, transport_sqn, 0, false);
    uint8_t *payload = um_lbmc_write_with_options(out + UM_LBTRM_DATA_BYTES, &layout, &options);
    memcpy(payload, whole + layout.offset, layout.payload_length);
    um_rx rx = {
        .data = out, .length = (uint32_t)(payload - out) + layout.payload_length, .from = source_address, .to = group};
    um_node_on_data(&f->node, &rx, f->now_ns);
}

static void arrive_whole(recovering *f, uint32_t sqn, uint32_t payload_bytes, const uint8_t *block, uint32_t said_bytes)
{
    arrive_with(f, sqn, (um_lbmc_layout){.sqn = sqn}, payload_bytes, block, block == NULL ? 0 : BLOCK_BYTES,
                said_bytes);
}

static void arrive_part(recovering *f, uint32_t sqn, uint32_t first, uint32_t offset, uint32_t bytes,
                        uint32_t payload_bytes, const uint8_t *block)
{
    um_lbmc_layout layout = {
        .sqn = sqn, .flags = UM_MESSAGE_FRAGMENT, .first_sqn = first, .offset = offset, .payload_length = bytes};
    arrive_with(f, sqn, layout, payload_bytes, block, BLOCK_BYTES, BLOCK_BYTES);
}

TEST("UM-53 UM-56", "properties are delivered with their message: at once, held, or reassembled")
{
    static const um_ordered_delivery modes[] = {UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL};
    uint8_t block[128];
    from_hex(little, block);
    for (uint32_t k = 0; k < 2; k++) {
        recovering *f = recovering_open(modes[k], 0, false);
        delivered rows[8] = {0};
        arrive_whole(f, 0, 3, block, BLOCK_BYTES);
        arrive_whole(f, 1, 5, NULL, 0);
        arrive_whole(f, 2, 0, block, BLOCK_BYTES); /* no payload */
        arrive_part(f, 5, 3, 140, 16, 100, block); /* a divided block */
        arrive_part(f, 4, 3, 70, 70, 100, block);
        arrive_whole(f, 6, 9, block, BLOCK_BYTES);
        CHECK_EQ(take_delivered(f, block, rows, 8), modes[k] == UM_ORDERED_SEQUENCE ? 3 : 4);
        CHECK(rows[0].sqn == 0 && rows[0].payload_bytes == 3 && rows[0].properties_bytes == BLOCK_BYTES);
        CHECK(rows[1].sqn == 1 && rows[1].payload_bytes == 5 && rows[1].properties_bytes == 0);
        CHECK(rows[2].sqn == 2 && rows[2].payload_bytes == 0 && rows[2].properties_bytes == BLOCK_BYTES);
        CHECK_EQ(rows[0].message_length, 3);
        arrive_part(f, 3, 3, 0, 70, 100, block);
        CHECK_EQ(take_delivered(f, block, rows + 4, 4), modes[k] == UM_ORDERED_SEQUENCE ? 2 : 1);
        CHECK(rows[4].sqn == 5 && rows[4].payload_bytes == 100 && rows[4].properties_bytes == BLOCK_BYTES);
        CHECK_EQ(rows[4].message_length, 100);
        for (uint32_t i = 0; i < 5; i++)
            CHECK((i == 3 && modes[k] == UM_ORDERED_SEQUENCE) || rows[i].is_as_sent);
        CHECK_EQ(f->receiver.counters.properties_dropped, 0);
        CHECK_EQ(f->receiver.counters.bytes_delivered, 3 + 5 + 0 + 100 + 9);
        recovering_close(f);
    }
}

TEST("UM-58", "with ordered_delivery 0 properties are delivered with the fragment that contains all of them, else not")
{
    uint8_t block[128];
    from_hex(little, block);
    recovering *f = recovering_open(UM_ORDERED_FRAGMENTS, 0, false);
    delivered rows[8];
    arrive_part(f, 0, 0, 0, 70, 100, block);
    arrive_part(f, 1, 0, 70, 86, 100, block);
    arrive_part(f, 2, 2, 0, 120, 100, block);
    arrive_part(f, 3, 2, 120, 36, 100, block);
    arrive_whole(f, 4, 7, block, BLOCK_BYTES);
    arrive_part(f, 5, 5, 0, 100, 100, block);
    arrive_part(f, 6, 5, 100, 56, 100, block);
    CHECK_EQ(take_delivered(f, block, rows, 8), 7);
    static const uint32_t payloads[] = {70, 30, 100, 0, 7, 100, 0};
    static const uint32_t properties[] = {0, BLOCK_BYTES, 0, 0, BLOCK_BYTES, 0, BLOCK_BYTES};
    for (uint32_t i = 0; i < 7; i++) {
        CHECK_EQ(rows[i].payload_bytes, payloads[i]);
        CHECK_EQ(rows[i].properties_bytes, properties[i]);
        CHECK_EQ(rows[i].message_length, i == 4 ? 7 : 100);
        CHECK(rows[i].is_as_sent);
    }
    CHECK_EQ(f->receiver.counters.properties_dropped, 1);
    recovering_close(f);
}

TEST("UP-9", "a Store keeps properties at the end of the payload, also those of which a fragment has a part only")
{
    uint8_t block[128];
    from_hex(little, block);
    recovering *f = recovering_open(UM_ORDERED_FRAGMENTS, 0, false);
    f->receiver.config.keeps_properties = true;
    arrive_part(f, 0, 0, 0, 70, 100, block);
    arrive_part(f, 1, 0, 70, 86, 100, block);
    arrive_part(f, 2, 2, 0, 120, 100, block); /* a divided block */
    arrive_part(f, 3, 2, 120, 36, 100, block);
    arrive_whole(f, 4, 7, block, BLOCK_BYTES);
    arrive_whole(f, 5, 3, block, UINT32_MAX); /* unchecked */
    arrive_whole(f, 6, 3, NULL, 0);
    um_rows rows = um_queue_take(&f->queue, UINT32_MAX);
    static const uint32_t payloads[] = {70, 86, 120, 36, 7 + BLOCK_BYTES, 3 + BLOCK_BYTES, 3};
    static const uint32_t block_at[] = {70, 30, 100, 0, 7, 3, 3};
    CHECK_EQ(rows.count, 8); /* the first is an event */
    for (uint32_t i = 0; i < 7; i++) {
        const um_block *b = rows.block;
        uint32_t at = i + 1, bytes = (uint32_t)(b->offsets[at + 1] - b->offsets[at]);
        CHECK_EQ(b->sequence_numbers[at], i);
        CHECK_EQ(bytes, payloads[i]);
        CHECK_EQ((b->flags[at] & UM_MESSAGE_PROPERTIES) != 0, i < 6);
        CHECK(i == 6 || b->properties[at].bytes == (i == 5 ? UINT32_MAX : BLOCK_BYTES));
        CHECK(i > 3 || b->message_lengths[at] == 100 + BLOCK_BYTES);
        const uint8_t *kept = b->payload + b->offsets[at] + block_at[i], *sent = i == 3 ? block + 20 : block;
        CHECK(memcmp(kept, sent, bytes - block_at[i]) == 0);
    }
    CHECK_EQ(f->receiver.counters.properties_dropped, 0);
    um_queue_release(rows.block, rows.count);
    recovering_close(f);
}

TEST("W1", "an invalid block is left out, a length beyond the payload is ignored; both are counted")
{
    static const um_ordered_delivery modes[] = {UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL, UM_ORDERED_FRAGMENTS};
    for (uint32_t k = 0; k < 3; k++) {
        uint8_t block[128];
        from_hex(little, block);
        recovering *f = recovering_open(modes[k], 0, false);
        delivered rows[8] = {0};
        block[0] ^= 1;
        arrive_whole(f, 0, 3, block, BLOCK_BYTES);
        memset(block, 1, BLOCK_BYTES);
        arrive_whole(f, 1, 3, block, BLOCK_BYTES + 4);
        arrive_whole(f, 2, 3, block, UINT32_MAX);
        CHECK_EQ(take_delivered(f, block, rows, 8), 3);
        CHECK(rows[0].payload_bytes == 3 && rows[0].properties_bytes == 0 && rows[0].message_length == 3);
        CHECK(rows[1].payload_bytes == 3 + BLOCK_BYTES && rows[1].properties_bytes == 0 && rows[1].is_as_sent);
        CHECK(rows[2].payload_bytes == 3 + BLOCK_BYTES && rows[2].message_length == 3 + BLOCK_BYTES);
        CHECK_EQ(f->receiver.counters.properties_dropped, 3);
        recovering_close(f);
    }
}

/* ---- the queue ---- */

TEST("W9", "payloads and properties of a queue's block never overlap, and a lack of space for either closes a block")
{
    enum { BLOCKS = 4, ROWS = 64, CAPACITY = 4096, LONGEST = UM_QUEUE_MESSAGE_BYTES_MIN };
    um_random random = {check_seed()};
    um_message_queue *queue = zeroed(sizeof *queue);
    void *memory = zeroed(um_queue_footprint(BLOCKS, ROWS, CAPACITY, LONGEST));
    um_queue_init(queue, memory, BLOCKS, ROWS, CAPACITY, LONGEST);
    uint32_t appended = 0, read = 0;
    while (read < 20000) {
        for (;;) {
            bool is_long = um_random_below(&random, 50) == 0;
            uint32_t bytes = (uint32_t)um_random_below(&random, is_long ? LONGEST + 1 : 200);
            uint32_t properties = appended % 3 == 0 ? (uint32_t)um_random_below(&random, bytes + 1) : 0;
            uint64_t free_bytes = um_queue_free_bytes(queue);
            uint8_t *space = um_queue_reserve(queue, bytes);
            if (space == NULL)
                break;
            CHECK(free_bytes > 0 || bytes >= 0);
            memset(space, (int)appended & 0xff, bytes - properties);
            memset(space + bytes - properties, ~(int)appended & 0xff, properties);
            um_row row = {.sequence_number = appended,
                          .message_length = bytes,
                          .flags = properties > 0 ? UM_MESSAGE_PROPERTIES : 0};
            if (properties > 0)
                um_queue_append_with_properties(queue, &row, bytes - properties, properties);
            else
                um_queue_append(queue, &row, bytes);
            appended++;
        }
        CHECK(appended > read);
        for (um_rows rows; (rows = um_queue_take(queue, 1 + (uint32_t)um_random_below(&random, 90))).count > 0;) {
            for (uint32_t i = rows.first; i < rows.first + rows.count; i++, read++) {
                const um_block *b = rows.block;
                uint32_t bytes = (uint32_t)(b->offsets[i + 1] - b->offsets[i]), of_properties = 0;
                CHECK_EQ(b->sequence_numbers[i], read);
                for (uint32_t k = 0; k < bytes; k++)
                    CHECK_EQ(b->payload[b->offsets[i] + (int32_t)k], (uint8_t)read);
                if (b->flags[i] & UM_MESSAGE_PROPERTIES)
                    of_properties = b->properties[i].bytes;
                for (uint32_t k = 0; k < of_properties; k++)
                    CHECK_EQ(b->payload[b->properties[i].offset + k], (uint8_t)~read);
                CHECK_EQ(bytes + of_properties, b->message_lengths[i]);
            }
            um_queue_release(rows.block, rows.count);
        }
    }
    free(memory);
    free(queue);
}

CHECK_MAIN

TEST("W1", "names and strings that overlap are refused, at a cost that does not grow with their number")
{
    enum { COUNT = 4000 };
    static uint8_t block[UM_PROPERTIES_BYTES_MAX];
    memset(block, 'x', sizeof block);
    um_store_be32(block, UM_PROPERTIES_MAGIC);
    um_store_be16(block + 4, COUNT);
    um_store_be16(block + 6, 0);
    uint32_t name_at = UM_PROPERTIES_HEAD_BYTES + COUNT * UM_PROPERTY_BYTES, bytes = name_at + 1200;
    block[name_at + 1] = 0; /* one name and one string of 1 KiB, which every property shares */
    block[bytes - 1] = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        uint8_t *property = block + UM_PROPERTIES_HEAD_BYTES + i * UM_PROPERTY_BYTES;
        um_store_be32(property, name_at);
        um_store_be32(property + VALUE_OFFSET, name_at + 2);
        um_store_be32(property + TYPE, UM_PROPERTY_STRING);
    }
    CHECK(!um_message_properties_is_sound(block, bytes));
    um_store_be16(block + 4, 1); /* the others are names and values of the first property's block */
    CHECK(um_message_properties_is_sound(block, bytes));
    um_store_be32(block + UM_PROPERTIES_HEAD_BYTES, UM_PROPERTIES_HEAD_BYTES); /* a name in the table */
    CHECK(!um_message_properties_is_sound(block, bytes));
}
