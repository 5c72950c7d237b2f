/* A receiving session between an honest source and an attacker. The source sends one topic in order and serves NAKs
 * from a window; the network loses, duplicates and delays its datagrams; the attacker sends anything that a host on the
 * segment can forge under the source's name. The input chooses the order of operations. Its first byte decides what the
 * attacker may send:
 *
 *   everything but messages of the topic  session messages, NCFs, NAKs, data with any number and trail and without
 *                                         messages of the topic, replays, mangled bytes. Then no message may be lost
 *                                         without a report: between the start and the end of a session each number is
 *                                         delivered with the source's payload or declared lost, once and in order. This
 *                                         also holds across sessions joined again after an end, unless a resume point
 *                                         was dropped, which is counted. When the attacker stops, the stream continues
 *                                         to its last message.
 *   everything                            messages of the topic too, which cannot be distinguished from the source's.
 *                                         Rows are still in order.
 *
 * Always: loss map, reorder buffer and queue stay within their bounds, each operation is short, timers run no more
 * often than they should, NAKs for a lost datagram keep their distance, and at the end no frame or message is held.
 */
#include "fuzz.h"

#include "core/delivery/delivery_controller.h"
#include "core/receiver/node.h"
#include "core/receiver/receiver_session.h"

enum {
    CELLS = 64,
    CELL_BYTES = 256,
    ENTRIES = 256,
    BLOCKS = 4,
    ROWS = 64,
    QUEUE_BYTES = 8192,
    WINDOW = 128,     /* datagrams that the source can send again */
    QUEUED_MAX = 256, /* retransmissions that wait to be sent */
    OPERATIONS_MAX = 400,
    RESUME_POINTS = 2,
    SESSIONS_MAX = 1024, /* per input */
    HONEST_AT_END = 200, /* more than three times the number of successive strays that ends a session (64) */
    PAYLOAD_BYTES = 8,
    SESSION = 0x5eed0001,
    NAK_PORT = 14391,
    GROUP_IP = 0xe00a0a0a,
    GROUP_PORT = 14400,
    SOURCE_IP = 0x0a090001,
    NS_PER_MS = 1000000,
    BACKOFF_NS = 2 * NS_PER_MS,
    GENERATION_NS = 50 * NS_PER_MS,
    ACTIVITY_NS = 400 * NS_PER_MS,
};

typedef struct sent {
    uint32_t first; /* number of its first message */
    uint32_t count;
} sent;

typedef struct source {
    uint32_t next_sqn, base_sqn, next_message, sm_sqn;
    sent window[WINDOW]; /* by number */
    uint32_t queued[QUEUED_MAX], queued_count;
} source;

typedef struct world {
    um_link link;
    um_node node;
    um_receiver_session session;
    um_receiver_session_config config;
    um_delivery delivery;
    um_receiver receiver;
    um_message_queue queue;
    uint8_t *memory, *session_memory;
    source source;
    uint32_t delivery_id;
    int64_t now_ns;
    bool joined;
    bool forges_messages;
    uint64_t nak_numbers;
    um_resume_point resume_points[RESUME_POINTS];
    bool is_fresh[SESSIONS_MAX]; /* the session started without the resume point of the previous one */
    uint32_t row_session;        /* session of the last row */
    bool began, has_row;
    uint32_t expected; /* the number that the next row must start with */
} world;

static world w;

/* ---- the source ---- */

static bool in_window(uint32_t sqn)
{
    uint32_t back = w.source.next_sqn - 1 - sqn, sent_count = w.source.next_sqn - w.source.base_sqn;
    return back < WINDOW && back < sent_count;
}

static uint32_t trail(void)
{
    uint32_t count = w.source.next_sqn - w.source.base_sqn;
    return w.source.next_sqn - (count < WINDOW ? count : WINDOW);
}

static void fill(uint8_t *payload, uint32_t sqn)
{
    um_store_be32(payload, sqn * 0x9e3779b1u);
    um_store_be32(payload + 4, ~sqn);
}

/* Writes the datagram of a sent number, with the current trail. */
static uint32_t write_honest(uint8_t *out, uint32_t sqn, bool retransmission)
{
    const sent *sent = &w.source.window[sqn % WINDOW];
    um_lbtrm_write_data(out, SESSION, NAK_PORT, sqn, trail(), retransmission);
    uint32_t at = UM_LBTRM_DATA_BYTES;
    for (uint32_t i = 0; i < sent->count; i++) {
        um_lbmc_layout layout = {.topic_index = 0, .sqn = sent->first + i, .payload_length = PAYLOAD_BYTES};
        uint8_t *payload = um_lbmc_write_message(out + at, &layout);
        fill(payload, layout.sqn);
        at = (uint32_t)(payload - out) + PAYLOAD_BYTES;
    }
    return at;
}

static uint32_t send_honest(uint8_t *out, uint32_t count)
{
    uint32_t sqn = w.source.next_sqn++;
    w.source.window[sqn % WINDOW] = (sent){w.source.next_message, count};
    w.source.next_message += count;
    return write_honest(out, sqn, false);
}

static void on_nak(const um_packet *packet)
{
    w.nak_numbers += packet->list_count;
    for (uint32_t i = 0; i < packet->list_count; i++) {
        uint32_t sqn = um_load_be32(packet->list + 4 * i);
        if (in_window(sqn) && w.source.queued_count < QUEUED_MAX)
            w.source.queued[w.source.queued_count++] = sqn;
    }
}

static int link_send(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    (void)link;
    REQUIRE(um_ip_v4(to.ip) == SOURCE_IP && to.port == NAK_PORT);
    for (uint32_t i = 0; i < count; i++) {
        um_packet packet;
        REQUIRE(batch[i].part_count == 1 && batch[i].length <= 1472);
        REQUIRE(um_lbtrm_decode(batch[i].parts[0].data, batch[i].length, &packet) == UM_DGRAM_OK);
        if (packet.type == UM_LBTRM_NAK)
            on_nak(&packet);
    }
    return (int)count;
}

static const um_link_ops ops = {.send = link_send};

/* ---- the receiver ---- */

/* Joins the session, as resolution does for an advertised source; again after a session has ended. */
static void join(void)
{
    memset(w.session_memory, 0, um_receiver_session_footprint(&w.config));
    um_receiver_session_init(&w.session, w.session_memory, &w.config, &w.link, &w.node.store, w.now_ns);
    REQUIRE(um_node_add_session(&w.node, &w.session));
    REQUIRE(++w.delivery_id < SESSIONS_MAX);
    um_delivery_init(&w.delivery, &w.receiver, w.delivery_id, w.delivery_id, 0, w.config.nak_generation_ns);
    REQUIRE(um_receiver_session_map(&w.session, &w.delivery, w.now_ns));
    um_resume_points_apply(&w.node.resume_points, &w.session, &w.delivery);
    w.joined = true;
}

static void open_world(fuzz_input *input)
{
    uint8_t *memory = w.memory, *session_memory = w.session_memory;
    uint8_t choice = take_u8(input);
    um_receiver_session_config config = {
        .id = {um_address_of_v4(SOURCE_IP, NAK_PORT), um_address_of_v4(GROUP_IP, GROUP_PORT), SESSION,
               UM_TRANSPORT_LBTRM, 0},
        .nak_initial_backoff_ns = choice & 1 ? BACKOFF_NS / 4 : 0,
        .nak_backoff_ns = BACKOFF_NS,
        .nak_suppress_ns = 4 * NS_PER_MS,
        .nak_generation_ns = GENERATION_NS,
        .activity_timeout_ns = ACTIVITY_NS,
        .send_naks = true,
        .datagram_max_bytes = 1472,
        .loss_capacity = choice & 2 ? 16 : 64,
        .topic_capacity = 4,
        .window_bytes = choice & 4 ? 4096 : 0,
        .status_interval_ns = NS_PER_MS,
        .receiver_id = 1,
        .random_seed = choice,
    };
    memset(&w, 0, sizeof w);
    size_t queue_bytes = um_queue_footprint(BLOCKS, ROWS, QUEUE_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    size_t store_bytes = um_align_up(um_reorder_footprint(CELLS, CELL_BYTES, ENTRIES), UM_CACHE_LINE_BYTES);
    size_t session_bytes = um_receiver_session_footprint(&config);
    w.memory = memory ? memory : fuzz_zeroed(store_bytes + queue_bytes);
    w.session_memory = session_memory ? session_memory : fuzz_zeroed(2 * session_bytes + 65536);
    memset(w.memory, 0, store_bytes);
    w.config = config;
    w.forges_messages = choice & 8;
    w.link.ops = &ops;
    w.now_ns = NS_PER_MS;
    um_node_init(&w.node);
    um_resume_points_init(&w.node.resume_points, w.resume_points, RESUME_POINTS);
    um_reorder_init(&w.node.store, w.memory, CELLS, CELL_BYTES, ENTRIES);
    um_queue_init(&w.queue, w.memory + store_bytes, BLOCKS, ROWS, QUEUE_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
    w.receiver = (um_receiver){
        .config = {.ordered_delivery = UM_ORDERED_SEQUENCE,
                   .map_entries_max = choice & 16 ? 20 : 0,
                   .burst_loss_max = choice & 32 ? 8 : 1024,
                   .loss_check_interval_ns = choice & 64 ? 3 * NS_PER_MS : 0},
        .queue = &w.queue,
        .store = &w.node.store,
        .context_counters = &w.node.counters,
    };
    REQUIRE(um_node_add_queue(&w.node, &w.queue));
    w.source.next_sqn = w.source.base_sqn = choice & 128 ? UINT32_MAX - 40 : 1000;
    w.source.next_message = take_u8(input) & 1 ? UINT32_MAX - 60 : 0;
    join();
}

static void check_bounds(void)
{
    REQUIRE(w.node.store.cells_used <= CELLS && w.node.store.entries_used <= ENTRIES);
    REQUIRE(w.session.losses.count <= w.session.losses.capacity);
    REQUIRE(w.session.starting_count <= w.session.controller_count);
}

static void receive(const uint8_t *data, uint32_t length)
{
    um_rx rx = {.data = data,
                .length = length,
                .from = um_address_of_v4(SOURCE_IP, 5555),
                .to = um_address_of_v4(GROUP_IP, GROUP_PORT),
                .received_ns = w.now_ns};
    if (um_node_review_queues(&w.node, w.now_ns))
        return; /* lost: the loop leaves it in the socket, which is full */
    um_node_on_data(&w.node, &rx, w.now_ns);
    um_node_after_batch(&w.node, w.now_ns);
    check_bounds();
}

static void check_span(uint32_t first, uint32_t last)
{
    REQUIRE(!um_serial_before(last, first));
    REQUIRE(!w.has_row || !um_serial_before(first, w.expected));
    REQUIRE(!w.has_row || w.forges_messages || first == w.expected);
    w.has_row = true;
    w.expected = last + 1;
}

static void check_row(const um_block *block, uint32_t row)
{
    uint32_t kind = um_row_kind_of(block->flags[row]), sqn = block->sequence_numbers[row];
    uint8_t expected[PAYLOAD_BYTES], payload[PAYLOAD_BYTES];
    for (; w.row_session != block->sources[row]; w.row_session++)
        w.has_row &= !w.is_fresh[w.row_session + 1] && !w.forges_messages;
    switch (kind) {
    case UM_ROW_BEGINNING_OF_SESSION:
        REQUIRE(!w.began);
        w.began = true;
        return;
    case UM_ROW_END_OF_SESSION:
        w.began = false;
        return;
    case UM_ROW_MESSAGE:
        REQUIRE(w.began);
        if (!w.forges_messages) {
            REQUIRE(um_block_copy((um_block *)block, row, payload, sizeof payload) == PAYLOAD_BYTES);
            fill(expected, sqn);
            REQUIRE(memcmp(payload, expected, sizeof payload) == 0);
        }
        check_span(block->first_sequence_numbers[row], sqn);
        return;
    case UM_ROW_CUT_LOOSE: /* a loss event for the same range follows */
        REQUIRE(w.began && !um_serial_before(sqn, block->first_sequence_numbers[row]));
        return;
    default:
        REQUIRE(w.began && kind <= UM_ROW_BURST_LOSS);
        check_span(block->first_sequence_numbers[row], sqn);
    }
}

static bool read_rows(uint32_t most)
{
    um_rows rows = um_queue_take(&w.queue, most);
    for (uint32_t i = 0; i < rows.count; i++)
        check_row(rows.block, rows.first + i);
    if (rows.count > 0)
        um_queue_release(rows.block, rows.count);
    return rows.count > 0;
}

static void reap(bool rejoins)
{
    if (!w.joined || um_node_finished_session(&w.node) == NULL)
        return;
    w.is_fresh[w.delivery_id + 1] = um_resume_points_save(&w.node.resume_points, &w.session) > 0;
    um_node_remove_session(&w.node, &w.session);
    um_receiver_session_unmap(&w.session, &w.delivery);
    REQUIRE(w.session.controller_count == 0 && w.node.store.entries_used == 0 && w.node.store.cells_used == 0);
    w.joined = false;
    if (rejoins)
        join();
}

/* Advances time: timers run when they are due, and no more often than the finest of them. */
static void pass_time(int64_t ns, bool rejoins)
{
    int64_t end_ns = w.now_ns + ns, due_ns = w.now_ns;
    uint64_t naks_before = w.nak_numbers, ticks = 0;
    um_node_review_queues(&w.node, w.now_ns);
    while (due_ns <= end_ns) {
        w.now_ns = due_ns > w.now_ns ? due_ns : w.now_ns;
        due_ns = um_node_tick(&w.node, w.now_ns);
        check_bounds();
        reap(rejoins);
        /* If a timer is due at once, the loop's next pass runs it, and a pass takes time. */
        due_ns = due_ns > w.now_ns ? due_ns : w.now_ns + 1000;
        REQUIRE(++ticks <= 64 + 4 * (uint64_t)w.session.losses.capacity + (uint64_t)(ns / 20000));
    }
    w.now_ns = end_ns;
    /* A lost number is NAKed when it is detected, and again at the earliest after half of the back-off. */
    uint64_t times = 2 + (uint64_t)(2 * ns / BACKOFF_NS);
    REQUIRE(w.nak_numbers - naks_before <= times * w.session.losses.capacity);
}

/* ---- the attacker ---- */

static uint32_t near(fuzz_input *input, uint32_t sqn)
{
    uint8_t choice = take_u8(input);
    return choice & 1 ? sqn + take_distance(input) : sqn - take_distance(input);
}

static uint32_t forge_message(uint8_t *out, fuzz_input *input)
{
    uint8_t choice = take_u8(input);
    um_lbmc_layout layout = {.topic_index = w.forges_messages ? choice % 2 : 1,
                             .sqn = near(input, w.source.next_message),
                             .payload_length = choice >> 4};
    if (choice & 4) {
        layout.flags = UM_MESSAGE_FRAGMENT;
        layout.first_sqn = layout.sqn - (take_distance(input));
        layout.offset = take_distance(input);
        layout.total = layout.offset + layout.payload_length + take_distance(input);
    }
    memset(um_lbmc_write_message(out, &layout), 0xa5, layout.payload_length);
    return um_lbmc_overhead(layout.flags & UM_MESSAGE_FRAGMENT, false, false) + layout.payload_length;
}

static uint32_t forge_data(uint8_t *out, fuzz_input *input)
{
    uint8_t choice = take_u8(input);
    uint32_t sqn = near(input, w.source.next_sqn);
    um_lbtrm_write_data(out, SESSION, NAK_PORT, sqn, near(input, sqn), choice & 1);
    uint32_t length = UM_LBTRM_DATA_BYTES;
    if (choice & 2)
        length += forge_message(out + length, input);
    if (choice & 4 && w.forges_messages) {
        uint32_t topic = 0, last = near(input, w.source.next_message);
        length += um_lbmc_write_tsni(out + length, &topic, &last, 1);
    }
    return length;
}

static uint32_t forge_list(uint8_t *out, fuzz_input *input)
{
    uint32_t sqns[64], count = take_u8(input) % 64, first = near(input, w.source.next_sqn);
    uint8_t choice = take_u8(input);
    for (uint32_t i = 0; i < count; i++)
        sqns[i] = first + i;
    if (choice & 1)
        return um_lbtrm_write_nak(out, SESSION, NAK_PORT, sqns, count);
    return um_lbtrm_write_ncf(out, SESSION, NAK_PORT, near(input, first), choice >> 1 & 7, sqns, count);
}

/* The source's lead and trail, or others. */
static uint32_t forge_sm(uint8_t *out, fuzz_input *input)
{
    uint32_t lead = near(input, w.source.next_sqn - 1);
    return um_lbtrm_write_sm(out, SESSION, NAK_PORT, w.source.sm_sqn + take_u8(input), lead, near(input, lead));
}

/* Replays a datagram of the source with any trail. */
static uint32_t replay(uint8_t *out, fuzz_input *input)
{
    uint32_t sqn = w.source.next_sqn - 1 - take_u8(input) % WINDOW;
    return in_window(sqn) ? write_honest(out, sqn, take_u8(input) & 1) : 0;
}

/* Mangles a datagram of the attacker's: changed bytes in messages of the topic would be forged messages. */
static uint32_t mangle(uint8_t *out, fuzz_input *input)
{
    uint32_t length = forge_data(out, input);
    for (uint32_t i = take_u8(input) % 4; i > 0; i--)
        out[take_u8(input) % UM_LBTRM_DATA_BYTES] ^= (uint8_t)(1 << take_u8(input) % 8);
    return length - (take_u8(input) & 1 ? take_u8(input) % length : 0);
}

static uint32_t forge_raw(uint8_t *out, fuzz_input *input)
{
    fuzz_input raw = take_bytes(input, take_u8(input) % 64);
    memcpy(out, raw.at, raw.left);
    return w.forges_messages ? (uint32_t)raw.left : 0;
}

static void attack(fuzz_input *input)
{
    static uint32_t (*const forge[])(uint8_t *, fuzz_input *) = {forge_data, forge_data, forge_sm, forge_sm,
                                                                 forge_list, replay,     mangle,   forge_raw};
    uint8_t choice = take_u8(input), out[1472];
    uint32_t length = forge[choice % 8](out, input);
    if (length == 0)
        return;
    for (uint32_t times = 1 + (choice & 128 ? take_u8(input) % 70 : 0); times > 0; times--)
        receive(out, length);
}

/* ---- operations ---- */

static void send_and_carry(uint8_t choice)
{
    uint8_t out[1472];
    uint32_t length = send_honest(out, 1 + (choice >> 2 & 1));
    if (choice & 1) /* otherwise it is lost */
        receive(out, length);
    if ((choice & 3) == 3)
        receive(out, length);
}

static bool retransmit(bool arrives)
{
    uint8_t out[1472];
    if (w.source.queued_count == 0)
        return false;
    uint32_t sqn = w.source.queued[--w.source.queued_count];
    if (arrives && in_window(sqn))
        receive(out, write_honest(out, sqn, true));
    return true;
}

static void send_sm(bool arrives)
{
    uint8_t out[UM_LBTRM_SM_BYTES];
    uint32_t length = um_lbtrm_write_sm(out, SESSION, NAK_PORT, w.source.sm_sqn++, w.source.next_sqn - 1, trail());
    if (arrives)
        receive(out, length);
}

static void operate(fuzz_input *input)
{
    uint8_t operation = take_u8(input);
    switch (operation % 8) {
    case 0:
    case 1:
        send_and_carry(operation >> 3);
        break;
    case 2:
        retransmit(operation & 8);
        break;
    case 3:
        send_sm(operation & 8);
        break;
    case 4:
    case 5:
        attack(input);
        break;
    case 6:
        read_rows(1 + take_u8(input));
        break;
    default:
        pass_time((int64_t)take_u8(input) * (operation & 64 ? NS_PER_MS : 20000), true);
    }
}

/* The attacker stops and the network loses nothing: the stream continues to its last message, then it ends. */
static void finish(void)
{
    while (read_rows(UINT32_MAX))
        ;
    uint32_t in_step = 0; /* consecutive datagrams that were delivered as they arrived */
    for (uint32_t i = 0; i < HONEST_AT_END && in_step < 3 && !(w.forges_messages && i == 20); i++) {
        send_and_carry(1);
        while (retransmit(true))
            ;
        while (read_rows(UINT32_MAX))
            ;
        in_step = w.has_row && w.expected == w.source.next_message ? in_step + 1 : 0;
        pass_time(i % 32 == 31 ? 2 * GENERATION_NS : 10000, true);
    }
    REQUIRE(w.forges_messages || in_step == 3);
    pass_time(ACTIVITY_NS + NS_PER_MS, false);
    for (uint32_t turn = 0; w.joined; turn++) {
        while (read_rows(UINT32_MAX))
            ;
        pass_time(NS_PER_MS, false);
        /* With forged messages, a gap of a million numbers takes as many rows. */
        if (w.forges_messages && turn > 100)
            return;
        REQUIRE(turn < 20 || w.forges_messages);
    }
    while (read_rows(UINT32_MAX))
        ;
    REQUIRE(!w.began && w.node.store.cells_used == 0 && w.node.store.entries_used == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    open_world(&input);
    for (uint32_t i = 0; i < OPERATIONS_MAX && input.left > 0; i++)
        BOUNDED(operate(&input));
    finish();
    return 0;
}
