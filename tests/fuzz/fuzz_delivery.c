/* The delivery controller: fragments of a known stream in any order, duplicated or missing, in datagrams of several,
 * topic sequence number information, timers, a slow reader; and, if the input selects it, fragments with invented
 * fields. Datagrams may be in frames, where large payloads stay until they are read. Checked: nothing is delivered
 * twice or differently from the stream, in mode 1 messages are delivered in order, every message is delivered or has a
 * loss row, and nothing stays in the reorder buffer.
 */
#include "fuzz.h"

#include "core/delivery/delivery_controller.h"

enum {
    SQNS_MAX = 512,
    PAYLOAD_MAX = 40,
    CELLS = 24,
    CELL_BYTES = 4096,
    FRAMES = 6,
    RETURNED = 0xee, /* value of the bytes of a returned frame */
    ENTRIES = 64,
    BLOCKS = 4,
    ROWS = 64,
    QUEUE_BYTES = 4096,
    OPERATIONS_MAX = 600,
    GIVE_UP_NS = 1000,
    TOPIC = 9,
};

/* One topic sqn of the stream: a fragment, or a message in one piece. */
typedef struct piece {
    uint32_t first; /* index of the message's first piece */
    uint32_t count; /* pieces of the message */
    uint32_t offset;
    uint32_t total;
    uint32_t length;
    bool known; /* the receiver can know of it, because it or a later one was received or announced */
    bool delivered;
    bool lost;
} piece;

typedef struct world {
    um_message_queue queue;
    um_reorder_buffer store;
    um_receiver receiver;
    um_delivery delivery;
    um_context_counters counters;
    bool any_full;
    bool made_up; /* hostile pieces are among the input: accounting is off */
    uint8_t *queue_memory;
    uint8_t *store_memory;
    um_rows taken; /* not yet released */
    piece pieces[SQNS_MAX];
    uint32_t piece_count;
    uint32_t base;
    uint32_t cursor;
    uint32_t start; /* index of the first piece that must be accounted for; SQNS_MAX: not started */
    bool has_last;
    uint32_t last_row_sqn;
    bool began, ended;
    int64_t now_ns;
    uint32_t transport_sqn;
    bool has_frames;
    um_frames frames;
    bool frame_pinned[FRAMES];
} world;

static world w;
static uint8_t frame_memory[FRAMES][CELL_BYTES];

/* ---- frames ---- */

static uint32_t frame_of(const uint8_t *data)
{
    uint32_t frame = (uint32_t)(data - frame_memory[0]) / CELL_BYTES;
    REQUIRE(frame < FRAMES);
    return frame;
}

static bool pin(um_frames *frames, const uint8_t *data)
{
    bool pinned = w.frame_pinned[frame_of(data)];
    w.frame_pinned[frame_of(data)] = true;
    frames->has_pinned_last |= !pinned;
    return !pinned;
}

static void unpin(um_frames *frames, const uint8_t *const *data, uint32_t count)
{
    (void)frames;
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE(w.frame_pinned[frame_of(data[i])]);
        w.frame_pinned[frame_of(data[i])] = false;
        memset(frame_memory[frame_of(data[i])], RETURNED, CELL_BYTES);
    }
}

/* Returns a free frame, or NULL. */
static uint8_t *free_frame(void)
{
    for (uint32_t i = 0; i < FRAMES && w.has_frames; i++)
        if (!w.frame_pinned[i])
            return frame_memory[i];
    return NULL;
}

static uint8_t content(uint32_t index, uint32_t at)
{
    return (uint8_t)(index * 37 + at + 1);
}

static void make_stream(fuzz_input *input)
{
    w.base = take_u8(input) % 2 ? UINT32_MAX - take_u8(input) : take_u32(input);
    while (w.piece_count + 8 < SQNS_MAX) {
        uint8_t choice = take_u8(input);
        uint32_t first = w.piece_count, count = choice < 128 ? 1 : 1 + choice % 8, total = 0;
        for (uint32_t i = 0; i < count; i++) {
            bool is_large = w.has_frames && count == 1 && choice % 4 == 3;
            uint32_t length = is_large     ? UM_QUEUE_PINNED_BYTES_MIN + choice
                              : count == 1 ? choice % PAYLOAD_MAX
                                           : 1 + (choice + 7 * i) % (PAYLOAD_MAX - 1);
            w.pieces[w.piece_count++] = (piece){first, count, total, 0, length, false, false, false};
            total += length;
        }
        for (uint32_t i = 0; i < count; i++)
            w.pieces[first + i].total = total;
        if (input->left == 0 && w.piece_count > 64)
            break;
    }
}

static void open_world(fuzz_input *input)
{
    uint8_t *queue_memory = w.queue_memory, *store_memory = w.store_memory;
    size_t queue_bytes = um_queue_footprint(BLOCKS, ROWS, QUEUE_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    size_t store_bytes = um_reorder_footprint(CELLS, CELL_BYTES, ENTRIES);
    static const uint32_t bursts[] = {4, 50, 1024, 1000000000};
    static const um_ordered_delivery modes[] = {UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL, UM_ORDERED_FRAGMENTS,
                                                UM_ORDERED_SEQUENCE};
    memset(&w, 0, sizeof w);
    w.queue_memory = queue_memory ? queue_memory : fuzz_zeroed(queue_bytes);
    w.store_memory = store_memory ? store_memory : fuzz_zeroed(store_bytes);
    memset(w.store_memory, 0, store_bytes);
    um_queue_init(&w.queue, w.queue_memory, BLOCKS, ROWS, QUEUE_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    um_reorder_init(&w.store, w.store_memory, CELLS, CELL_BYTES, ENTRIES);
    uint8_t choice = take_u8(input);
    w.receiver.config = (um_receiver_config){.ordered_delivery = modes[choice & 3],
                                             .map_entries_max = choice & 4 ? 10 : 0,
                                             .burst_loss_max = bursts[choice >> 3 & 3],
                                             .loss_check_interval_ns = choice & 32 ? 200 : 0};
    w.made_up = choice & 64;
    w.receiver.queue = &w.queue;
    w.receiver.store = &w.store;
    w.receiver.context_counters = &w.counters;
    w.queue.needs_review = &w.any_full;
    um_delivery_init(&w.delivery, &w.receiver, 1, 77, TOPIC, GIVE_UP_NS);
    w.transport_sqn = choice & 128 ? UINT32_MAX - 20 : 1000;
    w.delivery.mapped_sqn = w.transport_sqn - 10;
    w.start = SQNS_MAX;
    w.has_frames = take_u8(input) % 2;
    w.frames = (um_frames){.pin = pin, .unpin = unpin};
    make_stream(input);
    um_delivery_begin(&w.delivery);
}

/* ---- rows ---- */

static uint32_t index_of(uint32_t sqn)
{
    uint32_t index = sqn - w.base;
    REQUIRE(index < w.piece_count);
    return index;
}

static void check_payload(const um_block *block, uint32_t row, uint32_t first, uint32_t count)
{
    uint8_t payload[CELL_BYTES];
    uint32_t at = 0;
    REQUIRE(um_block_copy(block, row, payload, sizeof payload) <= sizeof payload);
    for (uint32_t i = first; i < first + count; i++) {
        REQUIRE(!w.pieces[i].delivered && !w.pieces[i].lost && w.pieces[i].known);
        w.pieces[i].delivered = true;
        for (uint32_t b = 0; b < w.pieces[i].length; b++)
            REQUIRE(payload[at++] == content(i, b));
    }
    REQUIRE((uint32_t)(block->offsets[row + 1] - block->offsets[row]) == at);
}

static void check_message(const um_block *block, uint32_t row)
{
    uint32_t last = index_of(block->sequence_numbers[row]);
    const piece *p = &w.pieces[last];
    REQUIRE(((block->flags[row] & UM_MESSAGE_FRAGMENT) != 0) == (p->count > 1));
    REQUIRE(block->first_sequence_numbers[row] == w.base + p->first);
    if (w.receiver.config.ordered_delivery == UM_ORDERED_FRAGMENTS) {
        REQUIRE(block->fragment_offsets[row] == p->offset && block->message_lengths[row] == p->total);
        check_payload(block, row, last, 1);
    } else {
        REQUIRE(last == p->first + p->count - 1); /* UM-57 */
        check_payload(block, row, p->first, p->count);
    }
}

static void check_loss(uint32_t first, uint32_t last, bool burst)
{
    for (uint32_t sqn = first; sqn != last + 1; sqn++) {
        piece *p = &w.pieces[index_of(sqn)];
        REQUIRE(p->known && !p->lost && (burst || !p->delivered));
        p->lost = !p->delivered;
    }
}

static void check_row(const um_block *block, uint32_t row)
{
    uint32_t kind = um_row_kind_of(block->flags[row]), sqn = block->sequence_numbers[row];
    REQUIRE(block->sources[row] == 77);
    REQUIRE(w.began == (kind != UM_ROW_BEGINNING_OF_SESSION) && !w.ended);
    w.began = true;
    w.ended = kind == UM_ROW_END_OF_SESSION;
    if (kind == UM_ROW_BEGINNING_OF_SESSION || kind == UM_ROW_END_OF_SESSION)
        return;
    if (kind == UM_ROW_CUT_LOOSE) { /* the loss event that follows has the same range */
        REQUIRE(!um_serial_before(sqn, block->first_sequence_numbers[row]));
        return;
    }
    if (w.receiver.config.ordered_delivery == UM_ORDERED_SEQUENCE) {
        REQUIRE(!w.has_last || um_serial_before(w.last_row_sqn, sqn));
        w.last_row_sqn = sqn;
        w.has_last = true;
    }
    if (w.made_up)
        return;
    if (kind == UM_ROW_MESSAGE)
        check_message(block, row);
    else
        check_loss(kind == UM_ROW_BURST_LOSS ? block->first_sequence_numbers[row] : sqn, sqn,
                   kind == UM_ROW_BURST_LOSS);
}

static void release_taken(void)
{
    if (w.taken.count > 0)
        um_queue_release(w.taken.block, w.taken.count);
    w.taken.count = 0;
}

static bool read_rows(uint32_t most)
{
    release_taken();
    w.taken = um_queue_take(&w.queue, most);
    if (w.transport_sqn % 3 == 0)
        um_block_materialize(w.taken.block, w.taken.first, w.taken.count);
    for (uint32_t i = 0; i < w.taken.count; i++)
        check_row(w.taken.block, w.taken.first + i);
    return w.taken.count > 0;
}

/* Does what the node does before it takes more datagrams. */
static void look_at_pressure(void)
{
    if (w.queue.state != UM_QUEUE_OPEN)
        w.queue.state = um_queue_has_free_blocks(&w.queue, 1) ? UM_QUEUE_OPEN : UM_QUEUE_HOLDING;
    w.any_full = w.queue.state != UM_QUEUE_OPEN;
}

/* ---- arrivals ---- */

/* A controller whose queue is full cannot report a burst, and takes the messages behind it later, or never: a TSNI that
 * reveals a burst while the queue is full is dropped, and the next one reveals it again. */
static void note_known(uint32_t index)
{
    if (!w.made_up && (w.delivery.is_starved || w.queue.state != UM_QUEUE_OPEN) &&
        um_serial_before(w.delivery.highest_sqn, w.base + index))
        return;
    for (uint32_t i = index + 1; i-- > 0 && !w.pieces[i].known;)
        w.pieces[i].known = true;
}

/* Called after a call that may have started delivery, at this index. */
static void note_start(uint32_t index)
{
    if (w.start == SQNS_MAX && w.delivery.state >= UM_DELIVERY_RUNNING && !w.made_up)
        w.start = index;
}

static uint32_t write_piece(uint8_t *out, uint32_t index)
{
    const piece *p = &w.pieces[index];
    um_lbmc_layout layout = {.topic_index = TOPIC,
                             .sqn = w.base + index,
                             .flags = p->count > 1 ? UM_MESSAGE_FRAGMENT : 0,
                             .first_sqn = w.base + p->first,
                             .offset = p->offset,
                             .total = p->total,
                             .payload_length = p->length};
    uint8_t *payload = um_lbmc_write_message(out, &layout);
    for (uint32_t b = 0; b < p->length; b++)
        payload[b] = content(index, b);
    return (uint32_t)(payload - out) + p->length;
}

static uint32_t write_made_up(uint8_t *out, fuzz_input *input)
{
    um_lbmc_layout layout = {.topic_index = TOPIC,
                             .sqn = w.base + w.cursor + take_distance(input) - 4,
                             .flags = take_u8(input) & 7,
                             .payload_length = take_u8(input) % PAYLOAD_MAX};
    layout.first_sqn = layout.sqn - take_distance(input);
    layout.offset = take_distance(input) * (layout.sqn - layout.first_sqn);
    layout.total = layout.offset + layout.payload_length + take_distance(input);
    memset(um_lbmc_write_message(out, &layout), 0xcc, layout.payload_length);
    return um_lbmc_overhead(layout.flags & UM_MESSAGE_FRAGMENT, (layout.flags & 3) != 0, false) + layout.payload_length;
}

/* Delivers a datagram of up to four pieces around the cursor. */
static void deliver(fuzz_input *input, bool earlier_lost)
{
    uint8_t memory[CELL_BYTES];
    um_queue_return_frames(&w.queue);
    uint8_t *frame = free_frame(), *datagram = frame != NULL ? frame : memory;
    uint32_t length = 0, count = 1 + take_u8(input) % 4;
    if (w.queue.state != UM_QUEUE_OPEN)
        return;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t choice = take_u8(input);
        if (w.made_up && choice >= 200) {
            length += write_made_up(datagram + length, input);
            continue;
        }
        uint32_t index = w.cursor + choice % 16;
        index = index < 8 ? 0 : index - 8;
        if (choice % 16 == 8)
            w.cursor++;
        if (index >= w.piece_count)
            index = w.piece_count - 1;
        length += write_piece(datagram + length, index);
    }
    um_arrival arrival = {.now_ns = w.now_ns,
                          .received_ns = w.now_ns,
                          .transport_sqn = w.transport_sqn++,
                          .datagram_bytes = length,
                          .frames = frame != NULL ? &w.frames : NULL,
                          .has_earlier_losses = earlier_lost};
    um_lbmc_message message;
    uint32_t message_length;
    um_reorder_begin_datagram(&w.store, datagram, length);
    for (uint32_t at = 0; at < length; at += message_length) {
        if (um_lbmc_decode(datagram + at, length - at, &message, &message_length) != UM_DGRAM_OK)
            break;
        BOUNDED(um_delivery_on_message(&w.delivery, &message, &arrival));
        note_start(message.sqn - w.base);
        if (message.sqn - w.base < w.piece_count)
            note_known(message.sqn - w.base);
    }
    um_reorder_end_datagram(&w.store);
}

static void announce(fuzz_input *input)
{
    um_arrival arrival = {.now_ns = w.now_ns, .received_ns = w.now_ns, .transport_sqn = w.transport_sqn++};
    if (w.queue.state != UM_QUEUE_OPEN)
        return;
    uint32_t index = w.cursor + take_u8(input) % 8;
    index = index < w.piece_count ? index : w.piece_count - 1;
    uint32_t sqn = w.base + index;
    if (w.made_up && take_u8(input) % 4 == 0)
        sqn = take_u32(input);
    BOUNDED(um_delivery_on_tsni(&w.delivery, sqn, &arrival));
    note_start(sqn + 1 - w.base);
    note_known(index);
}

static void operate(fuzz_input *input)
{
    uint8_t operation = take_u8(input);
    switch (operation % 8) {
    case 0:
    case 1:
    case 2:
        deliver(input, operation & 0x80);
        break;
    case 3:
        w.cursor += operation / 8 % 8;
        break;
    case 4:
        announce(input);
        break;
    case 5:
        w.now_ns += take_u8(input) * 8;
        look_at_pressure();
        BOUNDED(um_delivery_tick(&w.delivery, w.now_ns));
        break;
    case 6:
        read_rows(1 + take_u8(input));
        break;
    default:
        if (w.delivery.state != UM_DELIVERY_STARTING)
            break;
        uint32_t lowest = w.delivery.lowest_held - w.base;
        BOUNDED(um_delivery_start(&w.delivery, w.delivery.lowest_held, w.now_ns));
        note_start(lowest);
    }
    w.cursor = w.cursor < w.piece_count ? w.cursor : w.piece_count - 1;
    REQUIRE(w.delivery.held_count == w.store.entries_used);
}

/* ---- the end ---- */

/* Every message that starts after the start, and whose pieces can all be known, is delivered, or reported lost at least
 * in part, or counted as lost before the first message (UM-135). */
static void check_accounts(void)
{
    uint32_t i = w.start;
    uint32_t leading = (uint32_t)w.receiver.counters.leading_losses, leading_end = w.delivery.leading_sqn - w.base;
    while (i < w.piece_count && w.pieces[i].first != i)
        i++;
    for (; i < w.piece_count && w.pieces[i + w.pieces[i].count - 1].known; i += w.pieces[i].count) {
        bool delivered = true, lost = false;
        for (uint32_t j = i; j < i + w.pieces[i].count; j++) {
            delivered &= w.pieces[j].delivered;
            lost |= w.pieces[j].lost || (j < leading_end && j + leading >= leading_end);
        }
        REQUIRE(delivered || lost);
    }
}

static void finish(void)
{
    uint32_t turns = 0, lowest = w.delivery.lowest_held - w.base;
    bool starting = w.delivery.state == UM_DELIVERY_STARTING;
    um_delivery_end(&w.delivery, w.now_ns);
    if (starting)
        note_start(lowest);
    while (w.delivery.state != UM_DELIVERY_ENDED || um_queue_is_ready(&w.queue)) {
        bool more = read_rows(UINT32_MAX);
        release_taken();
        look_at_pressure();
        um_delivery_tick(&w.delivery, w.now_ns);
        REQUIRE(more || turns++ < 10);
        if (w.made_up && turns++ > 200) /* invented gaps can have any length */
            break;
    }
    if (!w.made_up && w.start < w.piece_count)
        check_accounts();
    um_delivery_fini(&w.delivery);
    um_queue_return_frames(&w.queue);
    REQUIRE(w.made_up || w.queue.pinned_count == 0);
    REQUIRE(w.store.entries_used == 0 && w.store.cells_used == 0);
    REQUIRE(w.receiver.controller_count == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    open_world(&input);
    for (uint32_t i = 0; i < OPERATIONS_MAX && input.left > 0; i++)
        operate(&input);
    finish();
    return 0;
}
