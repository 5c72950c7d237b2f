/* Receivers that share a queue: it counts once in the window, and holds all of them back when full. */
#include "core/delivery/delivery_controller.h"
#include "core/receiver/node.h"
#include "core/receiver/receiver_session.h"
#include "support.h"

enum {
    QUEUES = 2,
    RECEIVERS = 6,
    BLOCKS = 4,
    ROWS = 64,
    BLOCK_BYTES = 4096,
    WINDOW = 1 << 20,
    ENTRIES = 1024,
    CELLS = 64,
    SESSION = 77,
    NAK_PORT = 30000,
};

static const um_address source_address = UM_ADDRESS_V4(0x0a090001, 5555);
static const um_address group = UM_ADDRESS_V4(0xe00a0a0a, 14400);

typedef struct sharing {
    um_link link;
    um_node node;
    um_receiver_session session;
    um_message_queue queues[QUEUES];
    um_receiver receivers[RECEIVERS];
    um_delivery deliveries[RECEIVERS];
    void *memory[2 + QUEUES];
    uint32_t next_sqn;
} sharing;

static int send_nothing(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    (void)link, (void)to, (void)batch;
    return (int)count;
}

static const um_link_ops sharing_ops = {.send = send_nothing};

/* Receiver r has topic r and queue r % queues, so that the controllers of a queue are not adjacent. */
static sharing *sharing_open(uint32_t queues)
{
    sharing *f = zeroed(sizeof *f);
    um_receiver_session_config config = {
        .id = {{source_address.ip, NAK_PORT}, group, SESSION, UM_TRANSPORT_LBTRM, 0},
        .nak_generation_ns = 10 * (int64_t)NS_PER_S,
        .activity_timeout_ns = 60 * (int64_t)NS_PER_S,
        .datagram_max_bytes = 1472,
        .loss_capacity = 1024,
        .topic_capacity = 8,
        .window_bytes = WINDOW,
        .status_interval_ns = NS_PER_S,
        .random_seed = 1,
    };
    f->link.ops = &sharing_ops;
    um_node_init(&f->node);
    f->memory[0] = zeroed(um_reorder_footprint(CELLS, 1472, ENTRIES));
    um_reorder_init(&f->node.store, f->memory[0], CELLS, 1472, ENTRIES);
    f->memory[1] = zeroed(um_receiver_session_footprint(&config));
    um_receiver_session_init(&f->session, f->memory[1], &config, &f->link, &f->node.store, NS_PER_S);
    CHECK(um_node_add_session(&f->node, &f->session));
    for (uint32_t q = 0; q < queues; q++) {
        f->memory[2 + q] = zeroed(um_queue_footprint(BLOCKS, ROWS, BLOCK_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN));
        um_queue_init(&f->queues[q], f->memory[2 + q], BLOCKS, ROWS, BLOCK_BYTES, UM_QUEUE_MESSAGE_BYTES_MIN);
        CHECK(um_node_add_queue(&f->node, &f->queues[q]));
    }
    for (uint32_t r = 0; r < RECEIVERS; r++) {
        f->receivers[r] = (um_receiver){.config = {.ordered_delivery = UM_ORDERED_SEQUENCE, .burst_loss_max = 8},
                                        .queue = &f->queues[r % queues],
                                        .store = &f->node.store,
                                        .context_counters = &f->node.counters};
        um_delivery_init(&f->deliveries[r], &f->receivers[r], r + 1, r, r, config.nak_generation_ns);
        CHECK(um_receiver_session_map(&f->session, &f->deliveries[r], NS_PER_S));
    }
    return f;
}

static void sharing_close(sharing *f)
{
    while (f->session.controllers != NULL)
        um_receiver_session_unmap(&f->session, f->session.controllers);
    CHECK_EQ(f->session.queue_count, 0);
    for (uint32_t i = 0; i < 2 + QUEUES; i++)
        free(f->memory[i]);
    free(f);
}

/* Receives one message of the topic in a datagram. */
static void receive_message(sharing *f, uint32_t topic, uint32_t topic_sqn, uint32_t payload_bytes)
{
    uint8_t out[1472] = {0};
    um_lbtrm_write_data(out, SESSION, NAK_PORT, f->next_sqn, f->next_sqn, false);
    f->next_sqn++;
    um_lbmc_layout layout = {.topic_index = topic, .sqn = topic_sqn, .payload_length = payload_bytes};
    uint8_t *payload = um_lbmc_write_message(out + UM_LBTRM_DATA_BYTES, &layout);
    um_rx rx = {.data = out,
                .length = (uint32_t)(payload + payload_bytes - out),
                .from = source_address,
                .to = group,
                .received_ns = NS_PER_S};
    um_node_on_data(&f->node, &rx, NS_PER_S);
}

static uint64_t reported_window(sharing *f)
{
    f->session.due_ns[UM_TIMER_STATUS] = 0;
    um_receiver_session_tick(&f->session, NS_PER_S);
    return f->session.counters.rcv_window;
}

TEST("AE-17", "the window is the free space of the fullest queue, each counted once")
{
    sharing *f = sharing_open(QUEUES);
    CHECK_EQ(f->session.queue_count, QUEUES);
    uint64_t empty = reported_window(f);
    CHECK_EQ(empty, BLOCKS * BLOCK_BYTES);
    receive_message(f, 1, 0, 1000);
    receive_message(f, 3, 0, 1000);
    CHECK_EQ(reported_window(f), empty - 2000);
    /* A queue counts until the last of its receivers is unmapped. */
    um_receiver_session_unmap(&f->session, &f->deliveries[1]);
    um_receiver_session_unmap(&f->session, &f->deliveries[5]);
    CHECK_EQ(f->session.queue_count, QUEUES);
    CHECK_EQ(reported_window(f), empty - 2000);
    um_receiver_session_unmap(&f->session, &f->deliveries[3]);
    CHECK_EQ(f->session.queue_count, 1);
    CHECK_EQ(reported_window(f), empty);
    sharing_close(f);
}

TEST("UM-7 UM-8", "topics of one queue are delivered in arrival order, each with its source's number")
{
    sharing *f = sharing_open(1);
    um_rows rows = {0};
    for (uint32_t n = 0; n < 30; n++)
        receive_message(f, n * 5 % RECEIVERS, n / RECEIVERS, n);
    for (uint32_t n = 0, begun = 0; n < 30;) {
        rows = um_queue_take(&f->queues[0], 1);
        CHECK_EQ(rows.count, 1);
        if (um_row_kind_of(rows.block->flags[rows.first]) == UM_ROW_BEGINNING_OF_SESSION) {
            begun++;
        } else {
            CHECK_EQ(begun, RECEIVERS);
            CHECK_EQ(rows.block->sources[rows.first], n * 5 % RECEIVERS);
            CHECK_EQ(rows.block->offsets[rows.first + 1] - rows.block->offsets[rows.first], n);
            n++;
        }
        um_queue_release(rows.block, rows.count);
    }
    sharing_close(f);
}

TEST("W9", "a full shared queue is one pause, and all of its topics continue when there is space")
{
    sharing *f = sharing_open(1);
    um_rows rows;
    uint32_t sent[RECEIVERS] = {0}, seen[RECEIVERS] = {0};
    for (uint32_t n = 0; !um_node_review_queues(&f->node, NS_PER_S); n++) {
        CHECK(n < 1000);
        for (uint32_t topic = 0; topic < RECEIVERS; topic++)
            receive_message(f, topic, sent[topic]++, 100);
    }
    uint64_t pauses = 0;
    for (uint32_t r = 0; r < RECEIVERS; r++)
        pauses += f->receivers[r].counters.queue_full_pauses;
    CHECK_EQ(pauses, 1);
    for (uint32_t turn = 0; turn < 20; turn++) {
        while ((rows = um_queue_take(&f->queues[0], UINT32_MAX)).count > 0) {
            for (uint32_t i = rows.first; i < rows.first + rows.count; i++)
                if (um_row_kind_of(rows.block->flags[i]) == UM_ROW_MESSAGE)
                    CHECK_EQ(rows.block->sequence_numbers[i], seen[rows.block->sources[i]]++);
            um_queue_release(rows.block, rows.count);
        }
        um_node_review_queues(&f->node, NS_PER_S);
        um_node_tick(&f->node, NS_PER_S);
    }
    for (uint32_t r = 0; r < RECEIVERS; r++)
        CHECK_EQ(seen[r], sent[r]);
    sharing_close(f);
}

TEST("", "a mapped receiver is found by its topic, an unmapped one is not")
{
    sharing *f = sharing_open(1);
    CHECK(um_receiver_session_find(&f->session, &f->receivers[2], 2) != NULL);
    CHECK(um_receiver_session_find(&f->session, &f->receivers[2], 3) == NULL);
    um_receiver_session_unmap(&f->session, &f->deliveries[2]);
    CHECK(um_receiver_session_find(&f->session, &f->receivers[2], 2) == NULL);
    sharing_close(f);
}

CHECK_MAIN
