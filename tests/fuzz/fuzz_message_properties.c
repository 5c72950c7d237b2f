/* Message properties: the check of a block against a reader that trusts it, and messages that end with any bytes as
 * their properties, whole or in fragments, through the delivery controller in each of its orders. Checked: a block
 * that is accepted can be read to its end, payloads are the sent ones, properties are delivered whole or not at all,
 * and every message delivered without its properties is counted.
 */
#include "fuzz.h"

#include "core/delivery/delivery_controller.h"
#include "core/wire/message_properties.h"

enum {
    CELLS = 128,
    CELL_BYTES = 2048,
    ENTRIES = 128,
    BLOCKS = 4,
    ROWS = 64,
    QUEUE_BYTES = 4096,
    MESSAGES_MAX = 12,
    CONTENT_MAX = 300,
    FRAGMENTS_MAX = 8,
    TOPIC = 9,
};

typedef struct sent_message {
    uint8_t content[CONTENT_MAX];
    uint32_t length; /* including the properties, if it has that many bytes */
    uint32_t said_bytes;
    uint32_t first_sqn;
    uint32_t count;
    uint32_t chunk;
    uint32_t payload_seen;
    bool has_properties;
} sent_message;

typedef struct world {
    um_message_queue queue;
    um_reorder_buffer store;
    um_receiver receiver;
    um_delivery delivery;
    um_context_counters counters;
    bool any_full;
    uint8_t *queue_memory;
    uint8_t *store_memory;
    sent_message messages[MESSAGES_MAX];
    uint32_t message_count;
    uint32_t sqn_count;
} world;

static world w;

/* ---- blocks ---- */

static uint32_t load(const uint8_t *at, uint32_t bytes, bool is_little)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < bytes; i++)
        value = value << 8 | at[is_little ? bytes - 1 - i : i];
    return value;
}

/* Reads a block without checks; AddressSanitizer detects reads outside it. */
static void read_block(const uint8_t *block)
{
    static const uint32_t sizes[] = {0, 1, 1, 2, 4, 8, 4, 8};
    bool is_little = block[0] == 0xba;
    uint32_t sum = 0;
    REQUIRE(load(block, 4, is_little) == UM_PROPERTIES_MAGIC);
    for (uint32_t i = 0, count = load(block + 4, 2, is_little); i < count; i++) {
        const uint8_t *property = block + 8 + 16 * (size_t)i;
        uint32_t type = load(property + 12, 4, is_little);
        const char *name = (const char *)block + load(property, 4, is_little);
        const uint8_t *value = block + load(property + 4, 4, is_little);
        REQUIRE(name[0] != 0 && strlen(name) <= UM_PROPERTY_NAME_BYTES_MAX);
        if (type == UM_PROPERTY_STRING)
            sum += (uint32_t)strlen((const char *)value);
        for (uint32_t b = 0; type < UM_PROPERTY_STRING && b < sizes[type]; b++)
            sum += value[b];
    }
    REQUIRE(sum < UINT32_MAX); /* so that the reads are not optimized away */
}

/* In memory of the exact size. */
static bool check_block(const uint8_t *block, uint32_t bytes)
{
    uint8_t *copy = malloc(bytes + 1);
    REQUIRE(copy != NULL);
    if (bytes > 0)
        memcpy(copy, block, bytes);
    uint8_t *exact = realloc(copy, bytes > 0 ? bytes : 1);
    bool is_sound;
    BOUNDED(is_sound = um_message_properties_is_sound(exact, bytes));
    if (is_sound)
        read_block(exact);
    free(exact);
    return is_sound;
}

/* A valid block, or one with one or two changed bytes. */
static uint32_t make_block(fuzz_input *input, uint8_t *out)
{
    uint32_t count = take_u8(input) % 4, at = 8 + 16 * count;
    bool is_little = take_u8(input) % 2;
    uint32_t magic = is_little ? __builtin_bswap32(UM_PROPERTIES_MAGIC) : UM_PROPERTIES_MAGIC;
    memset(out, 0, CONTENT_MAX);
    um_store_be32(out, magic);
    out[is_little ? 4 : 5] = (uint8_t)count;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *property = out + 8 + 16 * i;
        property[is_little ? 0 : 3] = (uint8_t)at;
        property[is_little ? 4 : 7] = (uint8_t)(at + 2);
        property[is_little ? 12 : 15] = take_u8(input) % 10;
        out[at] = (uint8_t)('a' + i);
        out[at + 2] = take_u8(input);
        at += 2 + 8;
    }
    for (uint32_t changes = take_u8(input) % 3; changes > 0; changes--) {
        uint8_t choice = take_u8(input), which = choice / 4 % (count > 0 ? count : 1);
        uint8_t *offset = out + 8 + 16 * which + (choice % 2 ? 4 : 0); /* offset of a value or a name */
        if (choice % 4 >= 2 && count > 0)
            offset[is_little ? 0 : 3] = (uint8_t)(at - take_u8(input) % 12);
        else
            out[take_u8(input) % at] = take_u8(input);
    }
    return at;
}

/* ---- messages ---- */

static void make_message(fuzz_input *input)
{
    uint8_t block[CONTENT_MAX];
    sent_message *m = &w.messages[w.message_count++];
    uint32_t payload_bytes = take_u8(input) % 80, block_bytes = 0;
    uint8_t choice = take_u8(input);
    memset(m, 0, sizeof *m);
    if (choice % 4 == 0) {
        fuzz_input raw = take_bytes(input, take_u8(input) % 64);
        block_bytes = (uint32_t)raw.left;
        if (block_bytes > 0)
            memcpy(block, raw.at, block_bytes);
    } else if (choice % 4 != 1) {
        block_bytes = make_block(input, block);
    }
    memset(m->content, 'p', payload_bytes);
    memcpy(m->content + payload_bytes, block, block_bytes);
    m->length = payload_bytes + block_bytes;
    m->said_bytes = choice & 0x40 ? take_distance(input) : block_bytes;
    uint32_t parts = m->length > 1 && choice & 0x10 ? 2 + take_u8(input) % (FRAGMENTS_MAX - 1) : 1;
    m->chunk = parts == 1 ? m->length : (m->length + parts - 1) / parts;
    m->count = m->length == 0 ? 1 : (m->length + m->chunk - 1) / m->chunk;
    m->first_sqn = w.sqn_count;
    w.sqn_count += m->count;
}

static const sent_message *message_of(uint32_t sqn)
{
    for (uint32_t i = 0; i < w.message_count; i++)
        if (sqn - w.messages[i].first_sqn < w.messages[i].count)
            return &w.messages[i];
    return NULL;
}

static void arrive(uint32_t sqn)
{
    uint8_t out[CELL_BYTES];
    const sent_message *m = message_of(sqn);
    uint32_t part = sqn - m->first_sqn, offset = part * m->chunk;
    um_lbmc_layout layout = {.topic_index = TOPIC,
                             .sqn = sqn,
                             .flags = m->count > 1 ? UM_MESSAGE_FRAGMENT : 0,
                             .first_sqn = m->first_sqn,
                             .offset = offset,
                             .total = m->length,
                             .payload_length = part + 1 < m->count ? m->chunk : m->length - offset};
    um_lbmc_first_options options;
    um_lbmc_make_first_options(&options, &(um_lbmc_extras){.properties_bytes = m->said_bytes});
    uint8_t *payload = um_lbmc_write_with_options(out, &layout, &options);
    memcpy(payload, m->content + offset, layout.payload_length);
    uint32_t length = (uint32_t)(payload - out) + layout.payload_length, decoded;
    um_arrival arrival = {.now_ns = 1, .received_ns = 1, .transport_sqn = sqn, .datagram_bytes = length};
    um_lbmc_message message;
    um_reorder_begin_datagram(&w.store, out, length);
    REQUIRE(um_lbmc_decode(out, length, &message, &decoded) == UM_DGRAM_OK);
    BOUNDED(um_delivery_on_message(&w.delivery, &message, &arrival));
    um_reorder_end_datagram(&w.store);
}

/* ---- rows ---- */

static void check_message_row(const um_block *block, uint32_t row)
{
    sent_message *m = (sent_message *)message_of(block->sequence_numbers[row]);
    REQUIRE(m != NULL);
    bool are_inside = m->said_bytes <= m->length;
    uint32_t expected = are_inside ? m->length - m->said_bytes : m->length;
    uint32_t bytes = (uint32_t)(block->offsets[row + 1] - block->offsets[row]);
    uint32_t offset = w.receiver.config.ordered_delivery == UM_ORDERED_FRAGMENTS ? block->fragment_offsets[row] : 0;
    REQUIRE(block->message_lengths[row] == expected || (!are_inside && m->count > 1));
    REQUIRE(bytes == 0 || memcmp(block->payload + block->offsets[row], m->content + offset, bytes) == 0);
    m->payload_seen += bytes;
    if (block->flags[row] & UM_MESSAGE_PROPERTIES) {
        const um_properties_place *place = &block->properties[row];
        REQUIRE(!m->has_properties && are_inside && place->bytes == m->said_bytes);
        REQUIRE(memcmp(block->payload + place->offset, m->content + expected, place->bytes) == 0);
        REQUIRE(check_block(block->payload + place->offset, place->bytes));
        m->has_properties = true;
    }
}

static void read_rows(void)
{
    um_rows rows;
    while ((rows = um_queue_take(&w.queue, UINT32_MAX)).count > 0) {
        for (uint32_t row = rows.first; row < rows.first + rows.count; row++)
            if (um_row_kind_of(rows.block->flags[row]) == UM_ROW_MESSAGE)
                check_message_row(rows.block, row);
        um_queue_release(rows.block, rows.count);
        w.queue.state = UM_QUEUE_OPEN;
        um_delivery_tick(&w.delivery, 1);
    }
}

static void check_messages(void)
{
    uint64_t lacking = 0;
    for (uint32_t i = 0; i < w.message_count; i++) {
        const sent_message *m = &w.messages[i];
        bool are_inside = m->said_bytes <= m->length;
        REQUIRE(m->payload_seen == (are_inside ? m->length - m->said_bytes : m->length));
        if (m->said_bytes != 0 && are_inside && w.receiver.config.ordered_delivery != UM_ORDERED_FRAGMENTS)
            REQUIRE(m->has_properties == check_block(m->content + m->length - m->said_bytes, m->said_bytes));
        lacking += m->said_bytes != 0 && !m->has_properties;
    }
    REQUIRE(w.receiver.counters.properties_dropped >= lacking);
}

static void open_world(fuzz_input *input)
{
    static const um_ordered_delivery modes[] = {UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL, UM_ORDERED_FRAGMENTS};
    uint8_t *queue_memory = w.queue_memory, *store_memory = w.store_memory;
    size_t queue_bytes = um_queue_footprint(BLOCKS, ROWS, QUEUE_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    size_t store_bytes = um_reorder_footprint(CELLS, CELL_BYTES, ENTRIES);
    memset(&w, 0, sizeof w);
    w.queue_memory = queue_memory ? queue_memory : fuzz_zeroed(queue_bytes);
    w.store_memory = store_memory ? store_memory : fuzz_zeroed(store_bytes);
    memset(w.store_memory, 0, store_bytes);
    um_queue_init(&w.queue, w.queue_memory, BLOCKS, ROWS, QUEUE_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    um_reorder_init(&w.store, w.store_memory, CELLS, CELL_BYTES, ENTRIES);
    w.queue.needs_review = &w.any_full;
    w.receiver = (um_receiver){.queue = &w.queue, .store = &w.store, .context_counters = &w.counters};
    w.receiver.config = (um_receiver_config){.ordered_delivery = modes[take_u8(input) % 3], .burst_loss_max = 1000};
    um_delivery_init(&w.delivery, &w.receiver, 1, 77, TOPIC, 1000);
    um_delivery_begin(&w.delivery);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    uint32_t order[MESSAGES_MAX * FRAGMENTS_MAX];
    check_block(data, (uint32_t)size);
    open_world(&input);
    do
        make_message(&input);
    while (w.message_count < MESSAGES_MAX && input.left > 0);
    for (uint32_t i = 0; i < w.sqn_count; i++)
        order[i] = i;
    for (uint32_t i = w.sqn_count; i-- > 2;) { /* the first one starts the stream */
        uint32_t other = 1 + take_u8(&input) % i, at = order[i];
        order[i] = order[other];
        order[other] = at;
    }
    for (uint32_t i = 0; i < w.sqn_count; i++) {
        arrive(order[i]);
        if (w.queue.state != UM_QUEUE_OPEN || take_u8(&input) % 8 == 0) /* nothing arrives while it is full */
            read_rows();
    }
    um_delivery_end(&w.delivery, 1);
    read_rows();
    check_messages();
    um_delivery_fini(&w.delivery);
    REQUIRE(w.store.entries_used == 0 && w.store.cells_used == 0);
    return 0;
}
