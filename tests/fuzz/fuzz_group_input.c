/* Datagrams from the group, into a node with two sessions and receivers in every delivery mode: raw bytes, and packets
 * built from the input with numbers around the expected ones, sometimes far away, whole or in pieces; path probes.
 * Sequence numbers start near the wrap;
 * queues, stores and maps are small. Each call is bounded; rows are consistent; a session that ends delivers its end
 * and leaves nothing behind.
 */
#include "fuzz.h"

#include "core/delivery/delivery_controller.h"
#include "core/receiver/node.h"
#include "core/receiver/receiver_session.h"
#include "core/wire/path_probe.h"

enum {
    SESSIONS = 2,
    RECEIVERS = 3,
    TOPICS = 2,
    CELLS = 16,
    CELL_BYTES = 2048,
    ENTRIES = 64,
    BLOCKS = 4,
    ROWS = 64,
    QUEUE_BYTES = 8192,
    OPERATIONS_MAX = 300,
    GROUP_IP = 0xe00a0a0a,
    GROUP_PORT = 14400,
    SOURCE_IP = 0x0a090001,
};

typedef struct topic_state {
    uint32_t sqn;                      /* the next one that a well-behaved source would send */
    uint32_t first_sqn, offset, total; /* of the incomplete message; total 0: none */
} topic_state;

typedef struct peer {
    uint32_t sqn;
    topic_state topics[TOPICS + 1]; /* the last one has no subscription */
} peer;

typedef struct reader {
    um_receiver receiver;
    um_message_queue queue;
    um_rows taken;
} reader;

/* The rows of one controller, as far as a reader may rely on their order. */
typedef struct controller_view {
    bool began, ended, has_last;
    uint32_t last_sqn;
} controller_view;

typedef struct world {
    um_link link;
    um_node node;
    um_receiver_session sessions[SESSIONS];
    bool joined[SESSIONS];
    um_delivery deliveries[SESSIONS][RECEIVERS][TOPICS];
    controller_view views[SESSIONS * RECEIVERS * TOPICS];
    reader readers[RECEIVERS];
    peer peers[SESSIONS];
    uint8_t *memory; /* of all objects, end to end */
    int64_t now_ns;
    uint64_t naks_sent;
} world;

static world w;

static int link_send(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    (void)link;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t data[2048];
        um_packet packet;
        um_status_message status;
        REQUIRE(batch[i].part_count == 1 && batch[i].length <= 1472);
        memcpy(data, batch[i].parts[0].data, batch[i].length);
        REQUIRE(um_lbtrm_decode(data, batch[i].length, &packet) == UM_DGRAM_OK);
        REQUIRE(packet.type == UM_LBTRM_NAK || um_status_decode(&packet, &status));
        REQUIRE(um_ip_v4(to.ip) == SOURCE_IP && to.port == packet.nak_port);
        w.naks_sent += packet.type == UM_LBTRM_NAK ? packet.list_count : 0;
    }
    return (int)count;
}

static const um_link_ops ops = {.send = link_send};

/* ---- set-up ---- */

static um_receiver_session_config session_config(uint32_t number, fuzz_input *input)
{
    uint8_t choice = take_u8(input);
    return (um_receiver_session_config){
        .id = {um_address_of_v4(SOURCE_IP, (uint16_t)(20000 + number)), um_address_of_v4(GROUP_IP, GROUP_PORT),
               0x5eed0000 + number, UM_TRANSPORT_LBTRM, 0},
        .nak_initial_backoff_ns = choice & 1 ? 50000 : 0,
        .nak_backoff_ns = choice & 2 ? 200000 : 0,
        .nak_suppress_ns = 1000000,
        .adaptive_timers = choice >> 2 & 7,
        .nak_generation_ns = 10000000,
        .activity_timeout_ns = 60000000,
        .preactivity_timeout_ns = choice & 4 ? 100000000 : 0,
        .send_naks = !(choice & 8),
        .nak_rate_limit = choice & 64 ? 1000 : 0,
        .datagram_max_bytes = 1472,
        .loss_capacity = choice & 16 ? 16 : 512,
        .topic_capacity = 4,
        .window_bytes = choice & 32 ? 4096 : 0,
        .status_interval_ns = 200000,
        .receiver_id = 1,
        .random_seed = choice,
    };
}

static uint8_t *part(size_t *used, size_t bytes)
{
    uint8_t *at = w.memory + *used;
    *used += um_align_up(bytes, UM_CACHE_LINE_BYTES);
    return memset(at, 0, bytes);
}

static void open_receivers(fuzz_input *input, size_t *used)
{
    static const um_ordered_delivery modes[RECEIVERS] = {UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL, UM_ORDERED_FRAGMENTS};
    size_t queue_bytes = um_queue_footprint(BLOCKS, ROWS, QUEUE_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    for (uint32_t r = 0; r < RECEIVERS; r++) {
        reader *reader = &w.readers[r];
        uint8_t *memory = w.memory + *used; /* the queue needs no zeroed payload */
        *used += um_align_up(queue_bytes, UM_CACHE_LINE_BYTES);
        um_queue_init(&reader->queue, memory, BLOCKS, ROWS, QUEUE_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
        uint8_t choice = take_u8(input);
        reader->receiver = (um_receiver){
            .config = {.ordered_delivery = modes[r],
                       .map_entries_max = choice & 1 ? 20 : 0,
                       .burst_loss_max = choice & 2   ? 1000000000
                                         : choice & 4 ? 1024
                                                      : 8,
                       .loss_check_interval_ns = choice & 8 ? 3000000 : 0},
            .queue = &reader->queue,
            .store = &w.node.store,
            .context_counters = &w.node.counters,
        };
        REQUIRE(um_node_add_queue(&w.node, &reader->queue));
    }
}

static void open_sessions(fuzz_input *input, size_t *used)
{
    for (uint32_t s = 0; s < SESSIONS; s++) {
        um_receiver_session_config config = session_config(s, input);
        size_t bytes = um_receiver_session_footprint(&config);
        um_receiver_session_init(&w.sessions[s], part(used, bytes), &config, &w.link, &w.node.store, w.now_ns);
        REQUIRE(um_node_add_session(&w.node, &w.sessions[s]));
        w.joined[s] = true;
        for (uint32_t r = 0; r < RECEIVERS; r++) {
            for (uint32_t t = 0; t < TOPICS; t++) {
                uint32_t id = (s * RECEIVERS + r) * TOPICS + t;
                um_delivery *delivery = &w.deliveries[s][r][t];
                um_delivery_init(delivery, &w.readers[r].receiver, id + 1, id, t, config.nak_generation_ns);
                REQUIRE(um_receiver_session_map(&w.sessions[s], delivery, w.now_ns));
            }
        }
        w.peers[s].sqn = take_u8(input) & 1 ? UINT32_MAX - take_u8(input) : take_u8(input);
        for (uint32_t t = 0; t <= TOPICS; t++)
            w.peers[s].topics[t].sqn = take_u8(input) & 1 ? UINT32_MAX - 20 : 1000;
    }
}

static void open_world(fuzz_input *input)
{
    uint8_t *memory = w.memory;
    size_t used = 0;
    memset(&w, 0, sizeof w);
    w.memory = memory ? memory : fuzz_zeroed(8 << 20);
    w.link.ops = &ops;
    w.now_ns = 1000000;
    um_node_init(&w.node);
    um_reorder_init(&w.node.store, part(&used, um_reorder_footprint(CELLS, CELL_BYTES, ENTRIES)), CELLS, CELL_BYTES,
                    ENTRIES);
    open_receivers(input, &used);
    open_sessions(input, &used);
    REQUIRE(used < 8 << 20);
}

/* ---- reading ---- */

static void check_row(const reader *reader, const um_block *block, uint32_t row)
{
    REQUIRE(block->sources[row] < SESSIONS * RECEIVERS * TOPICS);
    REQUIRE(block->offsets[row] <= block->offsets[row + 1]);
    controller_view *view = &w.views[block->sources[row]];
    uint32_t kind = um_row_kind_of(block->flags[row]), sqn = block->sequence_numbers[row];
    REQUIRE((kind <= UM_ROW_BURST_LOSS || kind == UM_ROW_CUT_LOOSE) && !view->ended);
    REQUIRE(view->began || kind == UM_ROW_BEGINNING_OF_SESSION || kind == UM_ROW_END_OF_SESSION);
    REQUIRE(kind != UM_ROW_BEGINNING_OF_SESSION || !view->began);
    view->began |= kind == UM_ROW_BEGINNING_OF_SESSION;
    view->ended |= kind == UM_ROW_END_OF_SESSION;
    if (kind == UM_ROW_BEGINNING_OF_SESSION || kind == UM_ROW_END_OF_SESSION)
        return;
    if (kind == UM_ROW_CUT_LOOSE) { /* a loss event for the same range follows */
        REQUIRE(!um_serial_before(sqn, block->first_sequence_numbers[row]));
        return;
    }
    if (reader->receiver.config.ordered_delivery == UM_ORDERED_SEQUENCE) {
        REQUIRE(!view->has_last || um_serial_before(view->last_sqn, sqn));
        view->last_sqn = sqn;
        view->has_last = true;
    }
}

static bool read_rows(uint32_t r, uint32_t most)
{
    reader *reader = &w.readers[r];
    if (reader->taken.count > 0)
        um_queue_release(reader->taken.block, reader->taken.count);
    reader->taken = um_queue_take(&reader->queue, most);
    for (uint32_t i = 0; i < reader->taken.count; i++)
        check_row(reader, reader->taken.block, reader->taken.first + i);
    return reader->taken.count > 0;
}

/* ---- building datagrams ---- */

/* Writes a message as the source would send it next, or with fields changed by the input. */
static uint32_t write_message(uint8_t *out, peer *peer, fuzz_input *input)
{
    uint8_t choice = take_u8(input);
    uint32_t t = choice % (TOPICS + 1);
    topic_state *topic = &peer->topics[t];
    um_lbmc_layout layout = {.topic_index = t, .sqn = topic->sqn++, .payload_length = choice >> 2};
    if (choice & 4 && topic->total == 0) { /* starts a message of several fragments */
        topic->first_sqn = layout.sqn;
        topic->offset = 0;
        topic->total = (layout.payload_length + 1) * (2 + choice % 5);
    }
    if (topic->total != 0) {
        uint32_t left = topic->total - topic->offset;
        layout.flags = UM_MESSAGE_FRAGMENT;
        layout.first_sqn = topic->first_sqn;
        layout.offset = topic->offset;
        layout.total = topic->total;
        layout.payload_length = left < 20 ? left : 20;
        topic->offset += layout.payload_length;
        topic->total = topic->offset == topic->total ? 0 : topic->total;
    }
    if ((choice & 0xe0) == 0xe0) {
        uint8_t how = take_u8(input);
        layout.flags = how & 7;
        layout.sqn += how & 8 ? take_distance(input) : 0;
        layout.sqn -= how & 16 ? take_distance(input) : 0;
        layout.first_sqn = layout.sqn - (how & 32 ? take_distance(input) : 0);
        layout.offset = how & 64 ? take_distance(input) : 0;
        layout.total = layout.offset + layout.payload_length + (how & 128 ? take_distance(input) : 0);
    }
    layout.sent_ns = choice & 8 ? (int64_t)1 << (choice >> 2) % 63 : 0; /* in the past, in the future, or none */
    memset(um_lbmc_write_message(out, &layout), (int)choice, layout.payload_length);
    bool is_fragment = layout.flags & UM_MESSAGE_FRAGMENT, is_batch = layout.flags & 3;
    return um_lbmc_overhead(is_fragment, is_batch, layout.sent_ns != 0) + layout.payload_length;
}

static uint32_t write_tsni(uint8_t *out, const peer *peer, fuzz_input *input)
{
    uint32_t topics[4], sqns[4], count = 1 + take_u8(input) % 4;
    for (uint32_t i = 0; i < count; i++) {
        topics[i] = take_u8(input) % (TOPICS + 1);
        sqns[i] = peer->topics[topics[i]].sqn - 1;
        if (take_u8(input) > 200)
            sqns[i] += take_distance(input);
    }
    return um_lbmc_write_tsni(out, topics, sqns, count);
}

/* Writes a control message that receivers of topics ignore. */
static uint32_t write_filler(uint8_t *out)
{
    static const uint8_t filler[] = {0x08, 0xff, 0x00, 0x04};
    memcpy(out, filler, sizeof filler);
    return sizeof filler;
}

static uint32_t write_data(uint8_t *out, uint32_t s, fuzz_input *input)
{
    peer *peer = &w.peers[s];
    uint8_t choice = take_u8(input);
    uint32_t sqn = peer->sqn++;
    if (choice & 1)
        peer->sqn = (sqn += take_distance(input)) + 1; /* datagrams in between are lost */
    if (choice & 2) {
        sqn -= take_distance(input); /* an old one */
        peer->sqn--;
    }
    uint32_t trail = sqn - (choice & 4 ? take_distance(input) & INT32_MAX : 100);
    um_lbtrm_write_data(out, 0x5eed0000 + s, (uint16_t)(20000 + s), sqn, trail, choice & 8);
    uint32_t length = UM_LBTRM_DATA_BYTES;
    for (uint32_t i = choice >> 4; i > 0; i--) {
        if (i % 5 == 4)
            length += write_tsni(out + length, peer, input);
        else
            length += i % 5 == 3 ? write_filler(out + length) : write_message(out + length, peer, input);
    }
    if (choice & 16 && take_u8(input) > 240) /* changes one byte */
        out[take_u8(input) % length] ^= (uint8_t)(1 << take_u8(input) % 8);
    return length;
}

static uint32_t write_probe(uint8_t *out, uint32_t s, fuzz_input *input)
{
    uint8_t choice = take_u8(input);
    uint32_t lead = w.peers[s].sqn - 1;
    uint32_t length = um_lbtrm_write_sm(out, 0x5eed0000 + s, (uint16_t)(20000 + s), choice, lead, lead - 100);
    um_path_probe probe = {.round = 1 + choice % 3, .wants_answer = choice & 128};
    uint32_t padding = 8 * take_u8(input);
    memset(out + length + UM_PATH_PROBE_BYTES, 0, padding);
    probe.bytes = (uint16_t)(length + UM_PATH_PROBE_BYTES + padding);
    if (choice & 64)
        probe.bytes += take_u16(input);
    return length + um_path_probe_encode(out + length, &probe) + padding;
}

static uint32_t write_other(uint8_t *out, uint32_t s, fuzz_input *input)
{
    peer *peer = &w.peers[s];
    uint16_t port = (uint16_t)(20000 + s);
    uint8_t choice = take_u8(input);
    if (choice % 3 == 0) {
        uint32_t lead =
            peer->sqn - 1 + (choice & 64 ? take_distance(input) : 0) - (choice & 128 ? take_distance(input) : 0);
        return um_lbtrm_write_sm(out, 0x5eed0000 + s, port, take_u8(input), lead, lead - take_u8(input));
    }
    uint32_t sqns[64], count = take_u8(input) % 64, first = peer->sqn - take_distance(input);
    for (uint32_t i = 0; i < count; i++)
        sqns[i] = first + i;
    if (choice % 3 == 1)
        return um_lbtrm_write_ncf(out, 0x5eed0000 + s, port, peer->sqn, choice >> 4, sqns, count);
    return um_lbtrm_write_nak(out, 0x5eed0000 + s, port, sqns, count);
}

/* ---- operations ---- */

static void hand_over(const uint8_t *data, uint32_t length, uint32_t segment)
{
    um_rx rx = {.data = data,
                .length = length,
                .segment_length = segment,
                .from = um_address_of_v4(SOURCE_IP, 5555),
                .to = um_address_of_v4(GROUP_IP, GROUP_PORT),
                .received_ns = w.now_ns};
    if (um_node_review_queues(&w.node, w.now_ns))
        return;
    BOUNDED(um_node_on_data(&w.node, &rx, w.now_ns));
    BOUNDED(um_node_after_batch(&w.node, w.now_ns));
}

/* Hands over a datagram in pieces, from any of them on, mostly all; some have another number or length. */
static void hand_over_pieces(const uint8_t *data, uint32_t length, uint32_t s, fuzz_input *input)
{
    uint8_t choice = take_u8(input), first = take_u8(input);
    uint32_t lead = w.peers[s].sqn - 1, count = choice < 200 ? 1 + choice % 7 : choice; /* above the most: refused */
    for (uint32_t i = 0; i < count && i < UM_DATAGRAM_PIECES_MAX; i++) {
        uint8_t out[8192];
        uint8_t how = take_u8(input);
        um_datagram_piece piece = {lead, length, (uint8_t)((first + i) % count), (uint8_t)count, NULL};
        const uint8_t *at = data + um_datagram_piece_offset(&piece);
        uint32_t bytes = um_datagram_piece_offset(&piece) < length ? um_datagram_piece_length(&piece) : 0;
        if (how > 240) {
            piece.sqn += take_distance(input);
            piece.total_bytes += take_u8(input);
            piece.index = (uint8_t)(piece.index + take_u8(input));
        }
        uint32_t head = um_lbtrm_write_sm(out, 0x5eed0000 + s, (uint16_t)(20000 + s), i, lead, lead - 100);
        head += um_datagram_piece_encode(out + head, &piece);
        memcpy(out + head, at, bytes);
        hand_over(out, head + bytes, 0);
    }
}

static void reap(void)
{
    um_receiver_session *session = um_node_finished_session(&w.node);
    if (session == NULL)
        return;
    uint32_t s = (uint32_t)(session - w.sessions);
    um_node_remove_session(&w.node, session);
    for (uint32_t r = 0; r < RECEIVERS; r++)
        for (uint32_t t = 0; t < TOPICS; t++)
            um_receiver_session_unmap(session, &w.deliveries[s][r][t]);
    REQUIRE(session->controller_count == 0 && session->topics.count == 0);
    w.joined[s] = false;
}

static void tick(void)
{
    um_node_review_queues(&w.node, w.now_ns);
    BOUNDED(um_node_tick(&w.node, w.now_ns));
    reap();
}

static void operate(fuzz_input *input)
{
    static uint8_t datagram[8192];
    uint8_t operation = take_u8(input);
    uint32_t s = operation >> 7, length;
    switch (operation % 8) {
    case 0:
    case 1:
        length = write_data(datagram, s, input);
        hand_over(datagram, length, 0);
        break;
    case 2:
        length = write_data(datagram, s, input);
        if (operation & 64)
            hand_over_pieces(datagram, length, s, input);
        else
            hand_over(datagram, length, 0);
        break;
    case 3:
        length = operation & 64 ? write_probe(datagram, s, input) : write_other(datagram, s, input);
        hand_over(datagram, length, 0);
        break;
    case 4: { /* a coalesced run: equal datagrams, the last one cut */
        uint32_t one = write_data(datagram, s, input), runs = 1 + take_u8(input) % 3;
        for (length = one; runs > 0 && length + one <= sizeof datagram; runs--, length += one)
            memcpy(datagram + length, datagram, one);
        hand_over(datagram, length - take_u8(input) % one, one);
        break;
    }
    case 5: {
        fuzz_input raw = take_bytes(input, take_u8(input));
        hand_over(raw.at, (uint32_t)raw.left, operation & 64 ? 1 + operation / 8 % 8 : 0);
        break;
    }
    case 6:
        read_rows(operation / 8 % RECEIVERS, 1 + take_u8(input));
        break;
    default:
        w.now_ns += (int64_t)take_u16(input) * (operation & 64 ? 1000 : 10);
        tick();
    }
    REQUIRE(w.node.store.cells_used <= CELLS && w.node.store.entries_used <= ENTRIES);
    for (s = 0; s < SESSIONS; s++)
        REQUIRE(!w.joined[s] || w.sessions[s].starting_count <= w.sessions[s].controller_count);
}

/* Idle: every session times out, every controller reports its end and is closed. */
static void finish(void)
{
    for (uint32_t turn = 0; w.node.session_count > 0; turn++) {
        bool more = false;
        for (uint32_t r = 0; r < RECEIVERS; r++)
            more |= read_rows(r, UINT32_MAX);
        w.now_ns += 200000000;
        tick();
        /* A gap of a thousand million sqns takes as many rows. */
        if (turn > 300)
            return;
        REQUIRE(more || turn < 20);
    }
    for (uint32_t r = 0; r < RECEIVERS; r++) {
        while (read_rows(r, UINT32_MAX))
            ;
        REQUIRE(w.readers[r].receiver.controller_count == 0);
    }
    for (uint32_t i = 0; i < SESSIONS * RECEIVERS * TOPICS; i++)
        REQUIRE(w.views[i].ended);
    REQUIRE(w.node.store.cells_used == 0 && w.node.store.entries_used == 0);
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
