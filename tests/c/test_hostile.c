/* Forged and absurd datagrams against the receiving half at its default sizes: every call ends soon, the position
 * does not jump, and datagrams that the true source sends afterwards still arrive.
 */
#include <time.h>

#include "core/delivery/delivery_controller.h"
#include "core/receiver/node.h"
#include "core/receiver/receiver_session.h"
#include "support.h"

enum {
    LOSS_CAPACITY = 65536,
    TOPICS = 2000,
    ENTRIES = 262144,
    CELLS = 4096,
    SESSION = 0x5eed0001,
    NAK_PORT = 0x3836,
};

static const um_address source_address = UM_ADDRESS_V4(0x0a090001, 5555);
static const um_address group = UM_ADDRESS_V4(0xe00a0a0a, 14400);

/* A call may take 50 ms; instrumented code is slower and gets this much time of its thread. */
static const int64_t call_max_ns = 300 * (int64_t)NS_PER_MS;

typedef struct receiving {
    um_link link;
    um_node node;
    um_receiver_session session;
    um_receiver receiver;
    um_message_queue queue;
    um_delivery deliveries[TOPICS];
    void *memory[3];
    int64_t now_ns;
    int64_t longest_call_ns;
    uint64_t naks;
    uint64_t losses, bursts, messages, ends;
    uint32_t last_sqn; /* sqn of the last message */
} receiving;

static int count_naks(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    receiving *f = (receiving *)(void *)link;
    (void)to;
    for (uint32_t i = 0; i < count; i++)
        f->naks += um_load_be16(batch[i].parts[0].data + 8);
    return (int)count;
}

static const um_link_ops receiving_ops = {.send = count_naks};

static receiving *receiving_open(uint32_t topics, uint32_t burst_loss_max, um_ordered_delivery mode)
{
    receiving *f = zeroed(sizeof *f);
    um_receiver_session_config config = {
        .id = {{source_address.ip, NAK_PORT}, group, SESSION, UM_TRANSPORT_LBTRM, 0},
        .nak_initial_backoff_ns = 50 * (int64_t)NS_PER_MS,
        .nak_backoff_ns = 200 * (int64_t)NS_PER_MS,
        .nak_suppress_ns = NS_PER_S,
        .nak_generation_ns = 10 * (int64_t)NS_PER_S,
        .activity_timeout_ns = 60 * (int64_t)NS_PER_S,
        .send_naks = true,
        .datagram_max_bytes = 1472,
        .loss_capacity = LOSS_CAPACITY,
        .topic_capacity = 16384,
        .random_seed = 1,
    };
    f->link.ops = &receiving_ops;
    f->now_ns = NS_PER_S;
    um_node_init(&f->node);
    f->memory[0] = zeroed(um_reorder_footprint(CELLS, 1472, ENTRIES));
    um_reorder_init(&f->node.store, f->memory[0], CELLS, 1472, ENTRIES);
    f->memory[1] = zeroed(um_queue_footprint(16, 4096, 1 << 20, 1 << 23));
    um_queue_init(&f->queue, f->memory[1], 16, 4096, 1 << 20, 1 << 23);
    f->memory[2] = zeroed(um_receiver_session_footprint(&config));
    um_receiver_session_init(&f->session, f->memory[2], &config, &f->link, &f->node.store, f->now_ns);
    CHECK(um_node_add_session(&f->node, &f->session));
    f->receiver = (um_receiver){.config = {.ordered_delivery = mode, .burst_loss_max = burst_loss_max},
                                .queue = &f->queue,
                                .store = &f->node.store,
                                .context_counters = &f->node.counters};
    CHECK(um_node_add_queue(&f->node, &f->queue));
    for (uint32_t t = 0; t < topics; t++) {
        um_delivery_init(&f->deliveries[t], &f->receiver, t + 1, t, t, config.nak_generation_ns);
        CHECK(um_receiver_session_map(&f->session, &f->deliveries[t], f->now_ns));
    }
    return f;
}

static void receiving_close(receiving *f)
{
    while (f->session.controllers != NULL)
        um_receiver_session_unmap(&f->session, f->session.controllers);
    CHECK_EQ(f->node.store.cells_used, 0);
    CHECK_EQ(f->node.store.entries_used, 0);
    for (uint32_t i = 0; i < 3; i++)
        free(f->memory[i]);
    free(f);
}

static int64_t thread_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * (int64_t)NS_PER_S + now.tv_nsec;
}

static void note_time(receiving *f, int64_t started_ns)
{
    int64_t took_ns = thread_time_ns() - started_ns;
    f->longest_call_ns = took_ns > f->longest_call_ns ? took_ns : f->longest_call_ns;
    if (took_ns > call_max_ns)
        printf("    a call took %" PRId64 " ms\n", took_ns / NS_PER_MS);
    CHECK(took_ns < call_max_ns);
}

static void read_all(receiving *f)
{
    um_rows rows;
    while ((rows = um_queue_take(&f->queue, UINT32_MAX)).count > 0) {
        for (uint32_t i = rows.first; i < rows.first + rows.count; i++) {
            uint32_t kind = um_row_kind_of(rows.block->flags[i]);
            f->messages += kind == UM_ROW_MESSAGE;
            f->losses += kind == UM_ROW_UNRECOVERABLE_LOSS;
            f->bursts += kind == UM_ROW_BURST_LOSS;
            f->ends += kind == UM_ROW_END_OF_SESSION;
            f->last_sqn = kind == UM_ROW_MESSAGE ? rows.block->sequence_numbers[i] : f->last_sqn;
        }
        um_queue_release(rows.block, rows.count);
    }
}

static void receive(receiving *f, const uint8_t *data, uint32_t length)
{
    um_rx rx = {.data = data, .length = length, .from = source_address, .to = group, .received_ns = f->now_ns};
    int64_t started_ns = thread_time_ns();
    um_node_on_data(&f->node, &rx, f->now_ns);
    note_time(f, started_ns);
    read_all(f);
}

static void tick(receiving *f, int64_t later_ns)
{
    f->now_ns += later_ns;
    um_node_wake(&f->node, f->now_ns);
    um_node_review_queues(&f->node, f->now_ns);
    int64_t started_ns = thread_time_ns();
    um_node_tick(&f->node, f->now_ns);
    note_time(f, started_ns);
    read_all(f);
}

static uint32_t data_header(uint8_t *out, uint32_t sqn, uint32_t trail)
{
    um_lbtrm_write_data(out, SESSION, NAK_PORT, sqn, trail, false);
    return UM_LBTRM_DATA_BYTES;
}

/* A datagram with one small message. */
static void receive_message(receiving *f, uint32_t sqn, uint32_t topic, uint32_t topic_sqn)
{
    uint8_t out[64];
    uint32_t at = data_header(out, sqn, sqn - 40);
    um_lbmc_layout layout = {.topic_index = topic, .sqn = topic_sqn, .payload_length = 1};
    uint8_t *payload = um_lbmc_write_message(out + at, &layout);
    payload[0] = 1;
    receive(f, out, (uint32_t)(payload + 1 - out));
}

static void receive_fragment(receiving *f, uint32_t sqn, um_lbmc_layout layout)
{
    uint8_t out[1472];
    uint32_t at = data_header(out, sqn, sqn - 40);
    layout.flags = UM_MESSAGE_FRAGMENT;
    uint8_t *payload = um_lbmc_write_message(out + at, &layout);
    memset(payload, 1, layout.payload_length);
    receive(f, out, (uint32_t)(payload - out) + layout.payload_length);
}

static void receive_sm(receiving *f, uint32_t sm_sqn, uint32_t lead, uint32_t trail)
{
    uint8_t out[UM_LBTRM_SM_BYTES];
    receive(f, out, um_lbtrm_write_sm(out, SESSION, NAK_PORT, sm_sqn, lead, trail));
}

/* Receives a stream of one topic: transport sqns 100 .. 149, topic sqns 0 .. 49. */
static receiving *streaming(uint32_t burst_loss_max, um_ordered_delivery mode)
{
    receiving *f = receiving_open(1, burst_loss_max, mode);
    for (uint32_t i = 0; i < 50; i++)
        receive_message(f, 100 + i, 0, i);
    CHECK_EQ(f->messages, 50);
    return f;
}

/* The stream continues undisturbed. */
static void check_goes_on(receiving *f)
{
    uint64_t before = f->messages;
    for (uint32_t i = 50; i < 100; i++)
        receive_message(f, 100 + i, 0, i);
    CHECK_EQ(f->messages, before + 50);
    CHECK_EQ(f->last_sqn, 99);
    CHECK_EQ(f->losses + f->bursts + f->ends, 0);
}

TEST("UM-116 UM-128", "a forged datagram far ahead does not move the session")
{
    uint32_t jumps[] = {LOSS_CAPACITY + 2, 1 << 20, 1u << 30, INT32_MAX};
    for (uint32_t i = 0; i < 4; i++) {
        receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
        receive_message(f, 149 + jumps[i], 0, 1000000);
        CHECK_EQ(f->session.losses.count, 0);
        CHECK_EQ(f->session.counters.dgrams_dropped_other, 1);
        receive_message(f, 149 + jumps[i], 0, 1000000); /* duplicated by the network */
        CHECK_EQ(f->session.losses.count, 0);
        check_goes_on(f);
        receiving_close(f);
    }
}

TEST("", "a forged session message far ahead does not move the session, not even if duplicated")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    receive_sm(f, 7, 1u << 30, 1u << 29);
    receive_sm(f, 7, 1u << 30, 1u << 29);
    CHECK_EQ(f->session.losses.count, 0);
    CHECK_EQ(f->naks, 0);
    check_goes_on(f);
    receiving_close(f);
}

TEST("UM-128", "a lead further ahead than any window is refused and counted, and nothing is NAKed for it")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    uint32_t next = f->session.next_sqn;
    tick(f, NS_PER_S);
    receive_sm(f, 7, next + (1u << 30) + 1, 100);
    receive_sm(f, 8, next + INT32_MAX - 100, 100);
    tick(f, NS_PER_S);
    CHECK_EQ(f->session.counters.dgrams_dropped_other, 2);
    CHECK_EQ(f->session.losses.count, 0);
    CHECK_EQ(f->naks, 0);
    receive_sm(f, 9, next + (1u << 30), 100); /* the furthest lead that can be claimed */
    CHECK_EQ(f->session.counters.dgrams_dropped_other, 2);
    CHECK_EQ(f->session.losses.count, 1);
    for (uint32_t s = 0; s < 12; s++)
        tick(f, NS_PER_S);
    check_goes_on(f);
    receiving_close(f);
}

TEST("UM-128", "session messages alone, with forged lead and trail, cause no loss")
{
    uint32_t leads[] = {1000, LOSS_CAPACITY / 16, 60000, LOSS_CAPACITY};
    for (uint32_t l = 0; l < 4; l++) {
        for (uint32_t pause_ns = 0; pause_ns <= 2 * NS_PER_MS; pause_ns += 2 * NS_PER_MS) {
            receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
            for (uint32_t n = 0; n < 30; n++) {
                for (uint32_t m = 0; m < 100; m++)
                    receive_message(f, 150 + 100 * n + m, 0, 50 + 100 * n + m);
                tick(f, pause_ns);
                receive_sm(f, 7 + n, 149 + 100 * n + leads[l], 149 + 100 * n + leads[l]);
            }
            CHECK_EQ(f->messages, 3050);
            CHECK_EQ(f->losses + f->bursts, 0);
            CHECK(!f->session.has_ended);
            CHECK(!um_serial_before(f->session.next_sqn, f->session.trail_sqn));
            receiving_close(f);
        }
    }
}

TEST("UM-123",
     "sqns claimed only by forged session messages are bounded and given up, and their data is still accepted")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    tick(f, NS_PER_S);
    for (uint32_t lead = 1; lead <= 60000; lead++)
        receive_sm(f, lead, 149 + lead, 100);
    CHECK(f->session.losses.count <= 256 + 1);
    for (uint32_t s = 0; s < 120; s++)
        tick(f, 100 * NS_PER_MS);
    CHECK_EQ(f->session.losses.count, 0);
    CHECK_EQ(f->session.next_sqn, 150);
    CHECK_EQ(f->session.counters.unrecovered_tmo + f->session.counters.unrecovered_txw, 0);
    CHECK_EQ(f->session.counters.claims_given_up, f->session.counters.lost);
    CHECK(f->naks <= 256 * 8 + 2 * 100);
    receive_sm(f, 7, 149 + 100, 100);
    for (uint32_t s = 0; s < 12; s++)
        tick(f, NS_PER_S);
    uint64_t naks = f->naks;
    receive_sm(f, 8, 149 + 100, 100); /* no new lead: not claimed again */
    for (uint32_t s = 0; s < 12; s++)
        tick(f, NS_PER_S);
    CHECK_EQ(f->naks, naks);
    for (uint32_t n = 0; n < 2000; n++)
        receive_message(f, 150 + n, 0, 50 + n);
    CHECK_EQ(f->messages, 2050);
    CHECK_EQ(f->losses + f->bursts, 0);
    receiving_close(f);
}

TEST("UM-116", "lost data in a range claimed by a forged session message is NAKed")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    tick(f, NS_PER_S);
    receive_sm(f, 7, 149 + 100, 100);
    for (uint32_t s = 0; s < 12; s++)
        tick(f, NS_PER_S);
    CHECK_EQ(f->session.losses.count, 0);
    receive_message(f, 153, 0, 53);
    CHECK_EQ(f->session.losses.count, 3);
    uint64_t naks = f->naks;
    tick(f, NS_PER_S);
    CHECK_EQ(f->naks, naks + 3);
    for (uint32_t n = 0; n < 3; n++)
        receive_message(f, 150 + n, 0, 50 + n);
    CHECK_EQ(f->messages, 54);
    CHECK_EQ(f->losses + f->bursts, 0);
    receiving_close(f);
}

TEST("UM-76", "a session that starts with a forged session message starts at its data")
{
    uint32_t leads[] = {50000, 1u << 20, 1u << 30, 3u << 30, 2}; /* data starts at 100 */
    for (uint32_t l = 0; l < 5; l++) {
        receiving *f = receiving_open(1, 1024, UM_ORDERED_SEQUENCE);
        receive_sm(f, 7, leads[l], leads[l]);
        for (uint32_t n = 0; n < 200; n++)
            receive_message(f, 100 + n, 0, n);
        for (uint32_t s = 0; s < 12; s++)
            tick(f, NS_PER_S);
        CHECK_EQ(f->messages, 200);
        CHECK(!f->session.has_ended);
        receiving_close(f);
    }
}

TEST("UM-116", "a claim and a confirmed jump far beyond it are bounded")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    tick(f, NS_PER_S);
    receive_sm(f, 7, 149 + 1000000, 100);
    receive_sm(f, 8, 149 + 100, 100);
    uint32_t far = 150 + (1u << 30);
    receive_message(f, far, 0, 1000000);
    receive_message(f, far + 1, 0, 1000001);
    CHECK_EQ(f->session.next_sqn, far + 2);
    CHECK(f->session.losses.count <= LOSS_CAPACITY);
    for (uint32_t s = 0; s < 12; s++)
        tick(f, NS_PER_S);
    CHECK_EQ(f->session.losses.count, 0);
    receiving_close(f);
}

TEST("", "forged session messages from before the stream do not end an idle session")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    for (uint32_t n = 0; n < 200; n++)
        receive_sm(f, 7 + n, 20, 10);
    check_goes_on(f);
    receiving_close(f);
}

TEST("UM-110 UM-116 UX-7", "after a long outage the stream continues, and the gap is reported as lost")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    for (uint32_t i = 0; i < 50; i++)
        receive_message(f, 10000000 + i, 0, 9000000 + i);
    CHECK_EQ(f->messages, 50 + 49); /* the first counts as forged until the second confirms it */
    CHECK_EQ(f->bursts, 1);
    CHECK(f->session.losses.count <= LOSS_CAPACITY);
    CHECK_EQ(f->session.next_sqn, 10000050);
    receiving_close(f);
}

TEST("UM-87 UM-116", "after a long outage that only session messages reveal, the tail is NAKed")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    tick(f, NS_PER_S);
    receive_sm(f, 7, 10000000, 9999991);
    CHECK_EQ(f->session.losses.count, 1); /* the last one, whose retransmission proves that it exists */
    tick(f, NS_PER_S);
    CHECK(f->naks >= 1);
    uint8_t out[64];
    um_lbtrm_write_data(out, SESSION, NAK_PORT, 10000000, 9999991, true);
    receive(f, out, UM_LBTRM_DATA_BYTES);
    CHECK_EQ(f->session.next_sqn, 10000001);
    CHECK_EQ(f->session.losses.count, 9);
    uint64_t naks = f->naks;
    tick(f, NS_PER_S);
    CHECK_EQ(f->naks, naks + 9);
    receiving_close(f);
}

TEST("UM-119", "NAKs over the NAK budget are delayed, counted once, and sent later")
{
    receiving *f = streaming(1000000000, UM_ORDERED_SEQUENCE);
    um_nak_budget_init(&f->session.nak_budget, 10000, f->now_ns);
    uint8_t out[64];
    receive(f, out, data_header(out, 150 + 60000, 100));
    tick(f, 100 * NS_PER_MS);
    CHECK_EQ(f->naks, 2500); /* the budget of a quarter of a second */
    CHECK_EQ(f->session.counters.naks_rate_limited, 0);
    for (uint32_t i = 0; i < 50; i++)
        tick(f, 10 * NS_PER_MS);
    CHECK(f->naks <= 2500 + 5000 && f->naks > 2500 + 4800);
    CHECK_EQ(f->session.counters.naks_rate_limited, f->naks - 2500);
    for (uint32_t i = 0; i < 1200; i++)
        tick(f, 10 * NS_PER_MS);
    CHECK_EQ(f->session.losses.count, 0);
    CHECK(f->naks <= 2500 + 10 * 10000);
    receiving_close(f);
}

TEST("UM-116 UM-123", "a gap as long as the loss map is bounded, NAKed and given up")
{
    receiving *f = streaming(1000000000, UM_ORDERED_SEQUENCE);
    uint8_t out[64];
    uint32_t at = data_header(out, 150 + LOSS_CAPACITY, 100); /* all of it is still in the window */
    receive(f, out, at);
    CHECK_EQ(f->session.losses.count, LOSS_CAPACITY);
    for (uint32_t i = 0; i < 12; i++)
        tick(f, NS_PER_S);
    CHECK(f->naks >= LOSS_CAPACITY);
    CHECK_EQ(f->session.losses.count, 0);
    CHECK_EQ(f->session.counters.unrecovered_tmo, LOSS_CAPACITY);
    receiving_close(f);
}

TEST("UM-116", "if the loss map is full, the newest sqns are NAKed and the oldest given up")
{
    receiving *f = streaming(1000000000, UM_ORDERED_SEQUENCE);
    uint8_t out[64];
    receive(f, out, data_header(out, 150 + 60000, 100));
    receive(f, out, data_header(out, 150 + 60000 + 10001, 100));
    CHECK_EQ(f->session.losses.count, LOSS_CAPACITY);
    CHECK_EQ(f->session.counters.loss_map_overflows, 70000 - LOSS_CAPACITY);
    CHECK(um_loss_map_find(&f->session.losses, 150 + 60000 + 10000) != NULL);
    receiving_close(f);
}

TEST("UM-104", "if the first datagram was forged, the session ends and can be joined again")
{
    receiving *f = receiving_open(1, 1024, UM_ORDERED_SEQUENCE);
    receive_message(f, 1u << 30, 0, 1u << 30);
    for (uint32_t i = 0; i < 100; i++)
        receive_message(f, 100 + i, 0, i);
    CHECK(f->session.has_ended);
    CHECK_EQ(f->ends, 1);
    CHECK(um_node_finished_session(&f->node) == &f->session);
    receiving_close(f);
}

TEST("UM-76 UM-128", "if the first datagram was forged half the sqn space behind, the true data is delivered")
{
    receiving *f = receiving_open(1, 1024, UM_ORDERED_SEQUENCE);
    uint8_t out[64];
    receive(f, out, data_header(out, 100u + (1u << 31), 100u + (1u << 31)));
    for (uint32_t i = 0; i < 100; i++)
        receive_message(f, 99 + i, 0, i);
    for (uint32_t second = 0; second < 12; second++)
        tick(f, NS_PER_S);     /* until the apparent losses before them are given up */
    CHECK_EQ(f->messages, 99); /* the first counts as forged until the second confirms it */
    CHECK_EQ(f->last_sqn, 99);
    receiving_close(f);
}

/* The datagrams in between are not sent; the session is set to the state after them. */
TEST("UX-22", "a topic that starts after more datagrams than half the sqn space is delivered")
{
    receiving *f = receiving_open(2, 1024, UM_ORDERED_SEQUENCE);
    uint32_t sqn = 100;
    receive_message(f, sqn, 0, 0);
    for (uint32_t step = 0; step < 24; step++) {
        sqn += 1u << 27;
        f->session.next_sqn = sqn;
        tick(f, NS_PER_S);
    }
    receive_message(f, sqn, 1, 0);
    CHECK_EQ(f->messages, 2);
    receiving_close(f);
}

TEST("UM-104", "a forged first datagram whose window includes the true sqns ends the session, too")
{
    for (uint32_t as_session_message = 0; as_session_message < 2; as_session_message++) {
        receiving *f = receiving_open(1, 1024, UM_ORDERED_SEQUENCE);
        uint8_t out[64];
        if (as_session_message)
            receive_sm(f, 7, 1u << 30, 50);
        else
            receive(f, out, data_header(out, 1u << 30, 50));
        for (uint32_t i = 0; i < 100; i++)
            receive_message(f, 100 + i, 0, i);
        /* Forged data moves the session, so it must end; a session message alone is superseded by the first data. */
        CHECK_EQ(f->session.has_ended, !as_session_message);
        CHECK_EQ(f->ends, !as_session_message);
        CHECK_EQ(f->messages, as_session_message ? 100 : f->messages);
        receiving_close(f);
    }
}

TEST("UM-61", "old duplicates are only counted")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    for (uint32_t round = 0; round < 10; round++) {
        for (uint32_t i = 0; i < 30; i++)
            receive_message(f, 100 + i, 0, i);
        receive_message(f, 150 + round, 0, 50 + round);
    }
    CHECK(!f->session.has_ended);
    CHECK_EQ(f->session.counters.duplicate_data, 300);
    CHECK_EQ(f->messages, 60);
    receiving_close(f);
}

/* ---- topics ---- */

TEST("", "a topic sqn too far ahead of the transport is ignored")
{
    uint32_t jumps[] = {2 * UM_LBMC_PER_DATAGRAM_MAX + 1, 1 << 20, INT32_MAX, 1u << 31};
    for (uint32_t burst = 0; burst < 2; burst++) {
        for (uint32_t i = 0; i < 4; i++) {
            receiving *f = streaming(burst ? 1024 : 1000000000, UM_ORDERED_SEQUENCE);
            receive_message(f, 150, 0, 49 + jumps[i]);
            CHECK_EQ(f->receiver.counters.malformed_fragments, 1);
            for (uint32_t n = 50; n < 100; n++)
                receive_message(f, 101 + n, 0, n);
            CHECK_EQ(f->messages, 100);
            CHECK_EQ(f->losses + f->bursts, 0);
            receiving_close(f);
        }
    }
}

TEST("", "a topic sqn too far ahead in a TSNI is ignored")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    uint8_t out[64];
    uint32_t at = data_header(out, 150, 110);
    receive(f, out, at + um_lbmc_write_tsni(out + at, (const uint32_t[]){0}, (const uint32_t[]){1u << 30}, 1));
    for (uint32_t n = 50; n < 100; n++)
        receive_message(f, 101 + n, 0, n);
    CHECK_EQ(f->messages, 100);
    CHECK_EQ(f->losses + f->bursts, 0);
    receiving_close(f);
}

TEST("UM-101", "a gap of a million topic sqns without burst loss: one row each, per call as many as the queue holds")
{
    receiving *f = streaming(1000000000, UM_ORDERED_SEQUENCE);
    uint8_t out[64];
    receive(f, out, data_header(out, 150 + 1000, 100));
    receive_message(f, 1151, 0, 1000049);
    tick(f, 11 * (int64_t)NS_PER_S);
    receive_message(f, 1152, 0, 1000050);
    for (uint32_t i = 0; i < 100 && f->losses < 999999; i++)
        tick(f, NS_PER_MS);
    CHECK_EQ(f->losses, 999999);
    CHECK_EQ(f->messages, 52);
    receiving_close(f);
}

TEST("UM-9", "messages far apart are delivered after delivery waited for earlier datagrams")
{
    receiving *f = receiving_open(1, 1000000000, UM_ORDERED_SEQUENCE);
    uint8_t out[64];
    receive(f, out, data_header(out, 100, 90));
    receive_message(f, 102, 0, 0); /* 101 is lost */
    CHECK_EQ(f->deliveries[0].state, UM_DELIVERY_STARTING);
    receive_message(f, 103, 0, INT32_MAX);
    receive_message(f, 104, 0, UINT32_MAX - 5);
    receive_message(f, 105, 0, 1u << 31);
    receive_message(f, 106, 0, 1);
    CHECK_EQ(f->deliveries[0].state, UM_DELIVERY_RUNNING);
    CHECK_EQ(f->session.starting_count, 0);
    CHECK_EQ(f->messages, 2);
    CHECK_EQ(f->last_sqn, 1);
    receiving_close(f);
}

TEST("UM-9", "a TSNI half the sqn space away while delivery waits does not stop held messages")
{
    for (uint32_t off = 0; off < 3; off++) { /* before, at and after half the sqn space */
        receiving *f = receiving_open(1, 1000000000, UM_ORDERED_SEQUENCE);
        uint8_t out[64];
        receive(f, out, data_header(out, 100, 90));
        for (uint32_t n = 0; n < 3; n++)
            receive_message(f, 102 + n, 0, 1000 + n); /* 101 is lost */
        CHECK_EQ(f->deliveries[0].state, UM_DELIVERY_STARTING);
        uint32_t at = data_header(out, 105, 90);
        receive(
            f, out,
            at + um_lbmc_write_tsni(out + at, (const uint32_t[]){0}, (const uint32_t[]){1001 + off + (1u << 31)}, 1));
        receive_message(f, 106, 0, 1003);
        tick(f, 11 * (int64_t)NS_PER_S);
        CHECK_EQ(f->deliveries[0].state, UM_DELIVERY_RUNNING);
        CHECK_EQ(f->messages, 4);
        CHECK_EQ(f->last_sqn, 1003);
        receiving_close(f); /* checks that no entry is left */
    }
}

/* ---- NCFs ---- */

TEST("UM-131", "an NCF never brings a NAK forward")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    um_recovery_timing_init(&f->session.timing, 0, 10 * (int64_t)NS_PER_S, NS_PER_MS, 0);
    f->session.config.nak_generation_ns = 60 * (int64_t)NS_PER_S;
    receive_message(f, 151, 0, 51); /* 150 is lost; its first NAK is due after at least half the back-off */
    um_loss *loss = um_loss_map_find(&f->session.losses, 150);
    CHECK(loss != NULL);
    int64_t due_ns = loss->deadline_ns;
    CHECK(due_ns >= f->now_ns + NS_PER_S);
    uint8_t out[64];
    const uint32_t refused[] = {150};
    receive(f, out, um_lbtrm_write_ncf(out, SESSION, NAK_PORT, 100, UM_NCF_IGNORED, refused, 1));
    CHECK_EQ(loss->deadline_ns, due_ns);
    uint64_t before = f->naks;
    tick(f, due_ns - f->now_ns - NS_PER_MS);
    CHECK_EQ(f->naks, before);
    tick(f, 2 * (int64_t)NS_PER_MS);
    CHECK_EQ(f->naks, before + 1);
    receiving_close(f);
}

TEST("UM-128", "sqns that have left the source's window are given up when their timer expires, without a NAK")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    receive_message(f, 151, 0, 51); /* 150 is lost */
    uint8_t out[64];
    receive(f, out, data_header(out, 152, 151)); /* it has left the source's window */
    CHECK_EQ(f->session.losses.count, 1);
    tick(f, NS_PER_S);
    CHECK_EQ(f->session.losses.count, 0);
    CHECK_EQ(f->session.counters.unrecovered_txw, 1);
    CHECK_EQ(f->naks, 0);
    receiving_close(f);
}

TEST("UM-116 UM-128", "a forged duplicate does not move the trail half the sqn space ahead")
{
    for (uint32_t older = 1; older <= 1001; older += 500) {
        receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
        uint32_t trail = f->session.trail_sqn, forged = trail - older;
        uint8_t out[64];
        receive(f, out, data_header(out, forged, forged - INT32_MAX));
        CHECK_EQ(f->session.trail_sqn, trail);
        receive_message(f, 151, 0, 51); /* 150 is lost and still in the source's window */
        CHECK_EQ(f->session.losses.count, 1);
        receive_message(f, 150, 0, 50);
        CHECK_EQ(f->messages, 52);
        CHECK_EQ(f->losses + f->bursts, 0);
        receiving_close(f);
    }
}

/* ---- fragments ---- */

TEST("", "a message of 4 GiB is refused piece by piece, with one loss event, and does not delay others")
{
    um_ordered_delivery modes[] = {UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL};
    for (uint32_t m = 0; m < 2; m++) {
        receiving *f = streaming(1024, modes[m]);
        for (uint32_t i = 0; i < 3000; i++)
            receive_fragment(
                f, 150 + i,
                (um_lbmc_layout){
                    .sqn = 50 + i, .first_sqn = 50, .offset = 1400 * i, .total = UINT32_MAX, .payload_length = 1400});
        CHECK_EQ(f->node.store.cells_used, 0);
        CHECK_EQ(f->receiver.counters.messages_too_long, 1);
        CHECK_EQ(f->losses, 1);
        CHECK_EQ(f->receiver.context_counters->fragments_unrecoverably_lost, 3000);
        receive_message(f, 3150, 0, 3050);
        CHECK_EQ(f->last_sqn, 3050);
        receiving_close(f);
    }
}

TEST("UM-5", "a message with missing bytes is given up once the next one is there")
{
    um_ordered_delivery modes[] = {UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL};
    for (uint32_t m = 0; m < 2; m++) {
        receiving *f = streaming(1024, modes[m]);
        receive_fragment(f, 150, (um_lbmc_layout){.sqn = 50, .first_sqn = 50, .total = 5000, .payload_length = 1000});
        receive_fragment(
            f, 151,
            (um_lbmc_layout){.sqn = 51, .first_sqn = 50, .offset = 1000, .total = 5000, .payload_length = 1000});
        CHECK_EQ(f->messages, 50);
        receive_message(f, 152, 0, 52);
        CHECK_EQ(f->messages, 51);
        CHECK_EQ(f->losses, 1);
        CHECK_EQ(f->last_sqn, 52);
        CHECK_EQ(f->node.store.entries_used, 0);
        receiving_close(f);
    }
}

TEST("UM-5", "fragments with all bytes of a message that do not join are no message")
{
    um_ordered_delivery modes[] = {UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL};
    for (uint32_t m = 0; m < 2; m++) {
        receiving *f = streaming(1024, modes[m]);
        receive_fragment(f, 150, (um_lbmc_layout){.sqn = 50, .first_sqn = 50, .total = 2000, .payload_length = 1000});
        receive_fragment(
            f, 151, (um_lbmc_layout){.sqn = 51, .first_sqn = 50, .offset = 500, .total = 2000, .payload_length = 1000});
        receive_message(f, 152, 0, 52);
        tick(f, 11 * (int64_t)NS_PER_S);
        receive_message(f, 153, 0, 53);
        CHECK_EQ(f->messages, 50 + 2);
        CHECK(f->receiver.counters.malformed_fragments > 0);
        CHECK(f->losses > 0);
        CHECK_EQ(f->node.store.entries_used, 0);
        receiving_close(f);
    }
}

TEST("UM-5", "overlapping, inconsistent or repeated fragments after a gap are bounded, and discarded with the gap")
{
    um_ordered_delivery modes[] = {UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL};
    for (uint32_t m = 0; m < 2; m++) {
        receiving *f = streaming(1024, modes[m]);
        for (uint32_t i = 0; i < 4000; i++) { /* 50 is lost; one byte each, more than enough, but they never join */
            uint32_t offset = i < 1000 ? i : (i - 1) % 2000;
            receive_fragment(
                f, 151 + i,
                (um_lbmc_layout){.sqn = 51 + i, .first_sqn = 51, .offset = offset, .total = 2000, .payload_length = 1});
        }
        CHECK(f->receiver.counters.malformed_fragments < 10);
        tick(f, 11 * (int64_t)NS_PER_S);
        receive_message(f, 4151, 0, 4051);
        CHECK_EQ(f->last_sqn, 4051);
        CHECK_EQ(f->node.store.entries_used, 0);
        receiving_close(f);
    }
}

/* ---- many topics, many losses ---- */

TEST("", "a datagram names thousands of waiting topics while the loss map is full")
{
    static uint8_t out[65507];
    receiving *f = receiving_open(TOPICS, 1024, UM_ORDERED_SEQUENCE);
    receive(f, out, data_header(out, 100, 50));
    receive(f, out, data_header(out, 101 + LOSS_CAPACITY, 50));
    CHECK_EQ(f->session.losses.count, LOSS_CAPACITY);
    uint32_t next = 102 + LOSS_CAPACITY;
    for (uint32_t round = 0; round < 3; round++) { /* records for all of them, repeatedly */
        uint32_t at = data_header(out, next++, 50), topics[31], sqns[31];
        while (at + 256 < sizeof out) {
            for (uint32_t i = 0; i < 31; i++) {
                topics[i] = (at + i) % TOPICS;
                sqns[i] = 5;
            }
            at += um_lbmc_write_tsni(out + at, topics, sqns, 31);
        }
        receive(f, out, at);
    }
    for (uint32_t t = 0; t < TOPICS; t++)
        receive_message(f, next++, t, 7);
    CHECK_EQ(f->session.starting_count, TOPICS);
    for (uint32_t i = 0; i < 1000; i++)
        receive_message(f, next++, i, 8);
    CHECK_EQ(f->messages, 0);
    for (uint32_t i = 0; i < 12; i++)
        tick(f, NS_PER_S);
    CHECK_EQ(f->session.starting_count, 0);
    CHECK_EQ(f->messages, TOPICS + 1000);
    receiving_close(f);
}

TEST("UM-119", "a back-off of 0 causes no endless loop")
{
    receiving *f = streaming(1024, UM_ORDERED_SEQUENCE);
    um_recovery_timing_init(&f->session.timing, 0, 0, 0, 0);
    receive_message(f, 160, 0, 60);
    tick(f, 1);
    CHECK_EQ(f->naks, 10);
    receiving_close(f);
}

CHECK_MAIN
