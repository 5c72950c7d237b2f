/* The states of a queue whose reader is slow, with fabricated times: open, closed, holding, cut loose, open again
 * (core/delivery/message_queue.h), beside a healthy queue of the same session. */
#include "core/delivery/delivery_controller.h"
#include "core/delivery/order_map.h"
#include "core/delivery/slow_reader.h"
#include "core/receiver/node.h"
#include "core/receiver/receiver_session.h"
#include "support.h"

enum {
    SLOW,
    HEALTHY,
    TOPICS,
    BLOCKS = 4,
    ROWS = 64,
    BLOCK_BYTES = 4096,
    MESSAGE_BYTES = 1000,
    WINDOW = 1 << 20,
    ENTRIES = 1024,
    CELLS = 512,
    SESSION = 77,
    NAK_PORT = 30000,
    STATUS_NS = 200 * NS_PER_MS,
    HOLD_NS = NS_PER_S,
    STEPS_MAX = 1000,
};

static const um_address source_address = UM_ADDRESS_V4(0x0a090001, 5555);
static const um_address group = UM_ADDRESS_V4(0xe00a0a0a, 14400);

/* A link that notes the flags of the last status message. */
typedef struct status_link {
    um_link base;
    uint8_t flags;
} status_link;

typedef struct slow_fixture {
    status_link link;
    um_node node;
    um_receiver_session session;
    um_message_queue queues[TOPICS];
    um_receiver receivers[TOPICS];
    um_delivery deliveries[TOPICS];
    void *memory[2 + TOPICS];
    uint32_t next_sqn;
    uint32_t topic_sqns[TOPICS];
    uint32_t read_count[TOPICS];
    uint32_t topics;
    bool retains; /* the source can send all its datagrams again, not only the newest */
    int64_t now_ns;
} slow_fixture;

static int note_status(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    (void)to;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t datagram[2048];
        uint32_t length = 0;
        for (uint32_t part = 0; part < batch[i].part_count; part++) {
            memcpy(datagram + length, batch[i].parts[part].data, batch[i].parts[part].length);
            length += batch[i].parts[part].length;
        }
        um_packet packet;
        um_status_message status;
        if (um_lbtrm_decode(datagram, length, &packet) == UM_DGRAM_OK && um_status_decode(&packet, &status))
            ((status_link *)link)->flags = status.flags;
    }
    return (int)count;
}

static const um_link_ops status_ops = {.send = note_status};

/* A session with the slow topic, and the healthy one if `topics` is TOPICS. */
static slow_fixture *open_session(uint32_t topics, int64_t hold_ns)
{
    slow_fixture *f = zeroed(sizeof *f);
    f->topics = topics;
    f->now_ns = NS_PER_S;
    um_receiver_session_config config = {
        .id = {{source_address.ip, NAK_PORT}, group, SESSION, UM_TRANSPORT_LBTRM, 0},
        .nak_generation_ns = 10 * (int64_t)NS_PER_S,
        .activity_timeout_ns = 60 * (int64_t)NS_PER_S,
        .datagram_max_bytes = 1472,
        .loss_capacity = 1024,
        .topic_capacity = 8,
        .window_bytes = WINDOW,
        .status_interval_ns = STATUS_NS,
        .random_seed = 1,
    };
    f->link.base.ops = &status_ops;
    um_node_init(&f->node);
    f->memory[0] = zeroed(um_reorder_footprint(CELLS, 1472, ENTRIES));
    um_reorder_init(&f->node.store, f->memory[0], CELLS, 1472, ENTRIES);
    f->memory[1] = zeroed(um_receiver_session_footprint(&config));
    um_receiver_session_init(&f->session, f->memory[1], &config, &f->link.base, &f->node.store, f->now_ns);
    CHECK(um_node_add_session(&f->node, &f->session));
    for (uint32_t t = 0; t < topics; t++) {
        f->memory[2 + t] = zeroed(um_queue_footprint(BLOCKS, ROWS, BLOCK_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN));
        um_queue_init(&f->queues[t], f->memory[2 + t], BLOCKS, ROWS, BLOCK_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
        f->queues[t].hold_ns = hold_ns;
        CHECK(um_node_add_queue(&f->node, &f->queues[t]));
        f->receivers[t] = (um_receiver){.config = {.ordered_delivery = UM_ORDERED_SEQUENCE, .burst_loss_max = 1 << 20},
                                        .queue = &f->queues[t],
                                        .store = &f->node.store,
                                        .context_counters = &f->node.counters};
        um_delivery_init(&f->deliveries[t], &f->receivers[t], t + 1, t, t, config.nak_generation_ns);
        CHECK(um_receiver_session_map(&f->session, &f->deliveries[t], f->now_ns));
    }
    return f;
}

static void close_session(slow_fixture *f)
{
    while (f->session.controllers != NULL)
        um_receiver_session_unmap(&f->session, f->session.controllers);
    for (uint32_t i = 0; i < 2 + TOPICS; i++)
        free(f->memory[i]);
    free(f);
}

static void receive_message(slow_fixture *f, uint32_t topic)
{
    uint8_t out[1472] = {0};
    um_lbtrm_write_data(out, SESSION, NAK_PORT, f->next_sqn, f->retains ? 0 : f->next_sqn, false);
    f->next_sqn++;
    um_lbmc_layout layout = {.topic_index = topic, .sqn = f->topic_sqns[topic]++, .payload_length = MESSAGE_BYTES};
    uint8_t *payload = um_lbmc_write_message(out + UM_LBTRM_DATA_BYTES, &layout);
    um_rx rx = {.data = out,
                .length = (uint32_t)(payload + MESSAGE_BYTES - out),
                .from = source_address,
                .to = group,
                .received_ns = f->now_ns};
    um_node_on_data(&f->node, &rx, f->now_ns);
}

static void receive_tsni(slow_fixture *f, uint32_t topic, uint32_t sqn)
{
    uint8_t out[128] = {0};
    um_lbtrm_write_data(out, SESSION, NAK_PORT, f->next_sqn, f->next_sqn, false);
    f->next_sqn++;
    um_rx rx = {.data = out,
                .length = UM_LBTRM_DATA_BYTES + um_lbmc_write_tsni(out + UM_LBTRM_DATA_BYTES, &topic, &sqn, 1),
                .from = source_address,
                .to = group,
                .received_ns = f->now_ns};
    um_node_on_data(&f->node, &rx, f->now_ns);
}

/* Reads up to max rows of one kind; other rows are not accepted. Returns the last sqn read. */
static uint32_t read_rows(slow_fixture *f, uint32_t topic, enum um_row_kind kind, uint32_t max)
{
    uint32_t sqn = 0;
    for (um_rows rows; max > 0 && (rows = um_queue_take(&f->queues[topic], 1)).count > 0; max--) {
        CHECK_EQ(um_row_kind_of(rows.block->flags[rows.first]), kind);
        sqn = rows.block->sequence_numbers[rows.first];
        f->read_count[topic]++;
        um_queue_release(rows.block, 1);
    }
    return sqn;
}

/* One millisecond: a message of the slow topic if `sends`, one of the healthy topic, which is read at once. */
static void step(slow_fixture *f, bool sends)
{
    f->now_ns += NS_PER_MS;
    um_node_review_queues(&f->node, f->now_ns);
    if (sends && !f->session.is_held)
        receive_message(f, SLOW);
    if (f->topics == TOPICS) {
        receive_message(f, HEALTHY);
        uint32_t kind = f->topic_sqns[HEALTHY] == 1 ? UM_ROW_BEGINNING_OF_SESSION : UM_ROW_MESSAGE;
        if (kind == UM_ROW_BEGINNING_OF_SESSION)
            read_rows(f, HEALTHY, kind, 1);
        CHECK_EQ(read_rows(f, HEALTHY, UM_ROW_MESSAGE, 2), f->topic_sqns[HEALTHY] - 1);
        CHECK_EQ(f->queues[HEALTHY].state, UM_QUEUE_OPEN);
    }
    um_node_tick(&f->node, f->now_ns);
}

static void step_until(slow_fixture *f, enum um_queue_state state, bool sends)
{
    uint32_t steps = 0;
    for (; f->queues[SLOW].state != state && steps < 2 * STEPS_MAX; steps++)
        step(f, sends);
    CHECK(steps < 2 * STEPS_MAX);
}

TEST("W8 AE-18", "open, closed, holding, cut loose, open again: the range is reported, and the other topic never waits")
{
    slow_fixture *f = open_session(TOPICS, HOLD_NS);
    um_message_queue *queue = &f->queues[SLOW];
    step_until(f, UM_QUEUE_HOLDING, true);
    int64_t full_ns = f->now_ns;
    CHECK(!f->session.is_held);
    CHECK_EQ(f->receivers[SLOW].counters.queue_full_pauses, 1);
    CHECK_EQ(f->link.flags, 0);
    while (f->now_ns < full_ns + STATUS_NS + 2 * NS_PER_MS)
        step(f, false);
    CHECK_EQ(f->link.flags, UM_STATUS_SLOW);
    step_until(f, UM_QUEUE_CUT_LOOSE, false);
    CHECK(f->now_ns - full_ns <= HOLD_NS + NS_PER_MS);
    CHECK(f->now_ns - full_ns >= HOLD_NS - STATUS_NS); /* it began with CLOSED, before HOLDING */
    step(f, true);
    CHECK_EQ(f->link.flags, UM_STATUS_CUT_LOOSE);
    CHECK_EQ(f->receivers[SLOW].counters.cut_loose, 1);
    CHECK(f->session.counters.rcv_window >= (BLOCKS - 1) * BLOCK_BYTES); /* that of the healthy queue */
    for (uint32_t i = 0; i < 100; i++)
        step(f, true);
    read_rows(f, SLOW, UM_ROW_BEGINNING_OF_SESSION, 1);
    uint32_t before = read_rows(f, SLOW, UM_ROW_MESSAGE, UINT32_MAX), last = f->topic_sqns[SLOW] - 1;
    step_until(f, UM_QUEUE_OPEN, false);
    um_rows rows = um_queue_take(queue, 1);
    CHECK_EQ(um_row_kind_of(rows.block->flags[rows.first]), UM_ROW_CUT_LOOSE);
    CHECK_EQ(rows.block->first_sequence_numbers[rows.first], before + 1);
    CHECK_EQ(rows.block->sequence_numbers[rows.first], last);
    um_queue_release(rows.block, 1);
    CHECK_EQ(read_rows(f, SLOW, UM_ROW_BURST_LOSS, 1), last);
    CHECK_EQ(f->receivers[SLOW].counters.cut_loose_messages, last - before);
    step(f, true);
    CHECK_EQ(read_rows(f, SLOW, UM_ROW_MESSAGE, 2), last + 1);
    CHECK_EQ(f->link.flags, 0);
    close_session(f);
}

TEST("W8 UM-118", "a TSNI that arrives first at the open queue ends the cut, and its gap is listed once")
{
    slow_fixture *f = open_session(1, HOLD_NS);
    step_until(f, UM_QUEUE_CUT_LOOSE, true);
    for (uint32_t i = 0; i < 10; i++)
        step(f, true);
    read_rows(f, SLOW, UM_ROW_BEGINNING_OF_SESSION, 1);
    read_rows(f, SLOW, UM_ROW_MESSAGE, UINT32_MAX);
    uint32_t last = f->topic_sqns[SLOW] - 1, shown = last + 5;
    for (uint32_t steps = 0; f->queues[SLOW].state != UM_QUEUE_OPEN && steps < STEPS_MAX; steps++) {
        f->now_ns += NS_PER_MS;
        um_node_review_queues(&f->node, f->now_ns);
    }
    CHECK_EQ(f->queues[SLOW].state, UM_QUEUE_OPEN);
    receive_tsni(f, SLOW, shown);
    um_delivery *slow = &f->deliveries[SLOW];
    CHECK_EQ(read_rows(f, SLOW, UM_ROW_CUT_LOOSE, 1), last);
    CHECK_EQ(read_rows(f, SLOW, UM_ROW_BURST_LOSS, 1), last);
    CHECK_EQ(slow->gap_count, 1);
    CHECK_EQ(slow->gaps[slow->gap_first].first, last + 1);
    CHECK_EQ(slow->gaps[slow->gap_first].last, shown);
    CHECK_EQ(slow->next_sqn, last + 1);
    close_session(f);
}

TEST("W8", "the review that opens a queue makes the tick due, which delivers the held messages")
{
    slow_fixture *f = open_session(1, HOLD_NS);
    step_until(f, UM_QUEUE_HOLDING, true);
    read_rows(f, SLOW, UM_ROW_BEGINNING_OF_SESSION, 1);
    uint32_t last = f->topic_sqns[SLOW] - 1;
    CHECK(read_rows(f, SLOW, UM_ROW_MESSAGE, UINT32_MAX) < last);
    CHECK(um_node_review_by_ns(&f->node, f->now_ns) > f->now_ns);
    um_node_review_queues(&f->node, f->now_ns);
    CHECK_EQ(f->queues[SLOW].state, UM_QUEUE_OPEN);
    CHECK_EQ(um_node_review_by_ns(&f->node, f->now_ns), f->now_ns);
    um_node_tick(&f->node, f->now_ns);
    CHECK_EQ(read_rows(f, SLOW, UM_ROW_MESSAGE, UINT32_MAX), last);
    CHECK(um_node_review_by_ns(&f->node, f->now_ns) > f->now_ns);
    close_session(f);
}

TEST("W8", "a queue that is read while it holds loses nothing, and the hold time begins again")
{
    slow_fixture *f = open_session(TOPICS, HOLD_NS);
    for (uint32_t round = 0; round < 5; round++) {
        step_until(f, UM_QUEUE_HOLDING, true);
        int64_t full_ns = f->now_ns;
        while (f->now_ns < full_ns + HOLD_NS / 2)
            step(f, false);
        CHECK_EQ(f->queues[SLOW].state, UM_QUEUE_HOLDING);
        if (round == 0)
            read_rows(f, SLOW, UM_ROW_BEGINNING_OF_SESSION, 1);
        CHECK_EQ(read_rows(f, SLOW, UM_ROW_MESSAGE, UINT32_MAX), f->read_count[SLOW] - 2);
        step(f, false);
        CHECK_EQ(f->queues[SLOW].state, UM_QUEUE_OPEN);
        CHECK_EQ(read_rows(f, SLOW, UM_ROW_MESSAGE, UINT32_MAX), f->topic_sqns[SLOW] - 1);
    }
    CHECK_EQ(f->receivers[SLOW].counters.cut_loose, 0);
    CHECK_EQ(f->receivers[SLOW].counters.messages_delivered, f->topic_sqns[SLOW]);
    close_session(f);
}

TEST("W8 AE-18", "a queue smaller than the window is reported as read at once, not an interval later")
{
    slow_fixture *f = open_session(1, HOLD_NS);
    uint32_t steps = 0;
    do {
        step(f, true);
        um_node_after_batch(&f->node, f->now_ns);
    } while (f->session.counters.rcv_window >= BLOCKS * BLOCK_BYTES / 2 && ++steps < STEPS_MAX);
    CHECK(steps < STEPS_MAX);
    CHECK_EQ(f->queues[SLOW].state, UM_QUEUE_OPEN);
    read_rows(f, SLOW, UM_ROW_BEGINNING_OF_SESSION, 1);
    CHECK_EQ(read_rows(f, SLOW, UM_ROW_MESSAGE, UINT32_MAX), f->topic_sqns[SLOW] - 1);
    step(f, false);
    CHECK(f->session.counters.rcv_window >= (BLOCKS - 1) * BLOCK_BYTES);
    close_session(f);
}

TEST("W8 AE-18", "a repaired gap is reported at once if it took a quarter of the queue, not of the window")
{
    enum { BEHIND = BLOCKS * BLOCK_BYTES / 2 / MESSAGE_BYTES };
    slow_fixture *f = open_session(1, HOLD_NS);
    f->retains = true;
    step(f, true);
    step(f, true);
    uint32_t gap = f->next_sqn++, topic_gap = f->topic_sqns[SLOW]++;
    for (uint32_t i = 0; i < BEHIND; i++) {
        receive_message(f, SLOW);
        um_node_after_batch(&f->node, f->now_ns);
    }
    CHECK_EQ(f->session.counters.rcv_pos, gap);
    uint32_t end = f->next_sqn;
    f->next_sqn = gap;
    f->topic_sqns[SLOW] = topic_gap;
    receive_message(f, SLOW);
    um_node_after_batch(&f->node, f->now_ns);
    CHECK_EQ(f->session.counters.rcv_pos, end);
    close_session(f);
}

TEST("W8", "a session that feeds only a holding queue is held, until the queue is cut loose")
{
    slow_fixture *f = open_session(1, HOLD_NS);
    step_until(f, UM_QUEUE_HOLDING, true);
    step(f, true);
    CHECK(f->session.is_held && f->node.is_held);
    uint32_t sent = f->topic_sqns[SLOW];
    step_until(f, UM_QUEUE_CUT_LOOSE, true);
    CHECK_EQ(f->topic_sqns[SLOW], sent + 1); /* the step of the cut */
    CHECK(!f->session.is_held && !f->node.is_held);
    close_session(f);
}

TEST("W8", "lose: the queue never counts for the window, and is cut loose at once")
{
    slow_fixture *f = open_session(TOPICS, 0);
    uint32_t steps = 0;
    for (; f->queues[SLOW].state == UM_QUEUE_OPEN && steps < STEPS_MAX; steps++) {
        step(f, true);
        uint64_t window = f->session.counters.rcv_window; /* 0: before the first status message */
        CHECK(window == 0 || window == WINDOW);
    }
    CHECK(steps < STEPS_MAX);
    step(f, true);
    CHECK_EQ(f->queues[SLOW].state, UM_QUEUE_CUT_LOOSE);
    CHECK_EQ(f->link.flags, UM_STATUS_CUT_LOOSE);
    close_session(f);
}

TEST("W8", "a cut returns the reorder buffer's memory of messages behind a gap")
{
    slow_fixture *f = open_session(TOPICS, HOLD_NS);
    step_until(f, UM_QUEUE_HOLDING, true);
    f->topic_sqns[SLOW]++; /* lost */
    for (uint32_t i = 0; i < 5; i++)
        step(f, true);
    CHECK(f->node.store.entries_used > 0);
    step_until(f, UM_QUEUE_CUT_LOOSE, false);
    step(f, true);
    CHECK_EQ(f->receivers[SLOW].counters.cut_loose, 1);
    CHECK_EQ(f->node.store.entries_used, 0);
    close_session(f);
}

/* Asks whether the messages of the slow topic cut its queue loose, which must then change nothing. */
static void check_fills_nothing(slow_fixture *f)
{
    enum um_queue_state before = f->queues[SLOW].state;
    CHECK(!um_slow_reader_fills_the_buffer(&f->deliveries[SLOW]));
    CHECK_EQ(f->queues[SLOW].state, before);
}

TEST("W8", "a reorder buffer that runs short cuts a holding queue loose, but only if messages wait for the queue")
{
    slow_fixture *f = open_session(TOPICS, HOLD_NS);
    um_delivery *slow = &f->deliveries[SLOW];
    um_message_queue *queue = &f->queues[SLOW];
    step_until(f, UM_QUEUE_HOLDING, true);
    f->topic_sqns[SLOW]++; /* lost */
    check_fills_nothing(f);
    for (uint32_t i = 0; i < ENTRIES && um_reorder_has_quarter_free(&f->node.store); i++)
        receive_message(f, SLOW);
    CHECK(!um_reorder_has_quarter_free(&f->node.store));
    CHECK_EQ(queue->state, UM_QUEUE_HOLDING);
    queue->state = UM_QUEUE_CLOSED;
    check_fills_nothing(f);
    queue->state = UM_QUEUE_HOLDING;
    slow->is_starved = false; /* its messages wait for a missing one */
    check_fills_nothing(f);
    slow->is_starved = true;
    enum um_delivery_state running = slow->state;
    slow->state = UM_DELIVERY_ENDING;
    check_fills_nothing(f);
    slow->state = running;
    receive_message(f, SLOW);
    CHECK_EQ(queue->state, UM_QUEUE_CUT_LOOSE);
    CHECK_EQ(f->node.store.entries_used, 0);
    close_session(f);
}

TEST("W8", "a cut that dropped nothing ends without a row")
{
    slow_fixture *f = open_session(TOPICS, HOLD_NS);
    step(f, true);
    um_delivery *healthy = &f->deliveries[HEALTHY];
    um_slow_reader_cut(healthy);
    CHECK_EQ(um_slow_reader_resume(healthy, f->now_ns), UM_SLOW_READER_RESUMES);
    CHECK(!healthy->is_cut_loose);
    CHECK_EQ(um_queue_take(&f->queues[HEALTHY], 1).count, 0);
    CHECK_EQ(f->receivers[HEALTHY].counters.cut_loose_messages, 0);
    close_session(f);
}

TEST("W8", "what a cut dropped is a gap as old as one that was given up, if it can be fetched")
{
    slow_fixture *f = open_session(1, HOLD_NS);
    um_delivery *slow = &f->deliveries[SLOW];
    receive_message(f, SLOW);
    f->receivers[SLOW].config.use_otr = true;
    slow->request_port = source_address;
    um_slow_reader_cut(slow);
    slow->highest_sqn = slow->next_sqn + 2;
    CHECK_EQ(um_slow_reader_resume(slow, f->now_ns), UM_SLOW_READER_RESUMES);
    CHECK_EQ(slow->gap_count, 1);
    const um_gap *gap = um_order_map_oldest_gap(slow);
    CHECK(gap->first == slow->next_sqn && gap->last == slow->highest_sqn);
    CHECK_EQ(gap->detected_ns, f->now_ns - slow->give_up_ns);
    close_session(f);
}

TEST("W8", "a cut lasts until a whole block is free, so that its row and the loss behind it fit")
{
    slow_fixture *f = open_session(1, HOLD_NS);
    um_delivery *slow = &f->deliveries[SLOW];
    for (uint32_t i = 0; i < ENTRIES && um_queue_has_free_blocks(&f->queues[SLOW], 1); i++)
        receive_message(f, SLOW);
    CHECK(!slow->is_starved); /* the last block has space for more rows */
    f->topic_sqns[SLOW]++;    /* lost */
    receive_message(f, SLOW);
    um_slow_reader_cut(slow);
    CHECK_EQ(um_slow_reader_resume(slow, f->now_ns), UM_SLOW_READER_WAITS);
    CHECK(slow->is_cut_loose && slow->is_starved);
    CHECK_EQ(f->receivers[SLOW].counters.cut_loose_messages, 0);
    close_session(f);
}

CHECK_MAIN
