/* The send time in messages: on the wire, with every way of publishing, and in a receiving session.
 */
#include "core/delivery/delivery_controller.h"
#include "core/foundation/random.h"
#include "core/receiver/node.h"
#include "core/receiver/receiver_session.h"
#include "core/source/source.h"
#include "core/source/source_session.h"
#include "os/clock.h"
#include "support.h"

enum { TOPIC = 7, AHEAD_NS = 1000, SESSION = 77, NAK_PORT = 30000 };

/* ---- the option ---- */

TEST("W1", "the send time is an extended option after the others")
{
    uint8_t out[64] = {0};
    um_lbmc_layout layout = {.topic_index = 0x3ea, .sqn = 7, .payload_length = 2, .sent_ns = 0x17979cfe362a0000};
    uint8_t *payload = um_lbmc_write_message(out, &layout);
    uint8_t golden[64];
    CHECK_EQ(payload - out, from_hex("00fe001e 000003ea 00000007 0010c055 00040000 17979cfe362a0000", golden));
    CHECK_EQ(payload - out, um_lbmc_overhead(false, false, true));
    CHECK_BYTES(out, golden, payload - out);
    um_lbmc_message message;
    uint32_t length;
    CHECK_EQ(um_lbmc_decode(out, sizeof out, &message, &length), UM_DGRAM_OK);
    CHECK_EQ(message.sent_ns, layout.sent_ns);
    CHECK_EQ(message.payload_length, 2);

    layout.flags = UM_MESSAGE_FRAGMENT | UM_MESSAGE_BATCH_END;
    layout.first_sqn = 7;
    layout.total = 100;
    payload = um_lbmc_write_message(out, &layout);
    CHECK_EQ(payload - out, um_lbmc_overhead(true, true, true));
    CHECK_EQ(um_lbmc_decode(out, sizeof out, &message, &length), UM_DGRAM_OK);
    CHECK_EQ(message.sent_ns, layout.sent_ns);
    CHECK_EQ(message.flags, layout.flags);
    CHECK_EQ(message.total, 100);
}

TEST("W1", "another owner, subtype or length, or an impossible time, is no send time")
{
    static const struct {
        const char *message;
        int64_t sent_ns;
    } cases[] = {{"00fe001c 000003ea 00000007 0010c055 00040000 0000000000000005", 5},
                 {"00fe001c 000003ea 00000007 0010c055 00040000 7fffffffffffffff", INT64_MAX},
                 {"00fe001c 000003ea 00000007 0010c055 00040000 8000000000000000", 0},
                 {"00fe001c 000003ea 00000007 0010c055 00040000 ffffffffffffffff", 0},
                 {"00fe001c 000003ea 00000007 0010c055 00040000 0000000000000000", 0},
                 {"00fe001c 000003ea 00000007 0010c009 00040000 0000000000000005", 0},
                 {"00fe001c 000003ea 00000007 0010c055 00030000 0000000000000005", 0},
                 {"00fe001d 000003ea 00000007 0011c055 00040000 0000000000000005 00", 0}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t data[64];
        um_lbmc_message message = {.sent_ns = -1};
        uint32_t length;
        CHECK_EQ(um_lbmc_decode(data, from_hex(cases[i].message, data), &message, &length), UM_DGRAM_OK);
        CHECK_EQ(message.sent_ns, cases[i].sent_ns);
        CHECK_EQ(message.payload_length, 0);
    }
}

/* ---- publishing ---- */

static um_source *timed_source(fixture *f)
{
    um_source_config config = {.topic_index = TOPIC, .explicit_capacity = 65536, .has_send_time = true};
    um_source *source = zeroed(sizeof *source);
    um_source_init(source, zeroed(um_source_footprint(&config)), &config, f->session);
    atomic_store(&source->wall_offset_ns, AHEAD_NS);
    return source;
}

TEST("W4 UX-25", "a message with a send time is whole if it fits, full fragments if not, and each carries the time")
{
    um_random random = {check_seed()};
    for (uint32_t i = 0; i < 400; i++) {
        um_source_session_config config = default_config();
        config.batch_minimum_bytes = 0;
        fixture *f = session_open(&config);
        um_source *source = timed_source(f);
        uint32_t body_max = 1472 - UM_LBTRM_DATA_BYTES, offset = 0;
        uint32_t fits = body_max - um_lbmc_overhead(false, false, true);
        uint32_t length = i == 0   ? fits
                          : i == 1 ? fits + 1
                                   : (uint32_t)um_random_below(&random, 1 + um_source_message_max(source));
        CHECK(send_bytes(f, source, length, 0, UM_SEND_FLUSH) >= 0);
        run_sender(f);
        CHECK_EQ(f->link.count == 1, length <= fits);
        for (uint32_t k = 0; k < f->link.count; k++) {
            um_lbmc_message m;
            CHECK(f->link.datagrams[k].length <= 1472);
            CHECK_EQ(messages_at(f, k, &m, 1), 1);
            CHECK_EQ(m.sent_ns, f->now_ns + AHEAD_NS);
            CHECK(k + 1 == f->link.count || m.payload_length == body_max - um_lbmc_overhead(true, false, true));
            for (uint32_t b = 0; b < m.payload_length; b++)
                CHECK_EQ(m.payload[b], (uint8_t)(offset + b));
            offset += m.payload_length;
        }
        CHECK_EQ(offset, length);
        session_close(f);
    }
}

TEST("", "batches and staged datagrams carry the send time, and nothing else changes")
{
    um_random random = {check_seed()};
    for (uint32_t round = 0; round < 2; round++) {
        um_source_session_config config = default_config();
        config.term_length = 8 << 20;
        config.window_bytes = 1 << 20;
        fixture *f = session_open(&config);
        um_source *source = timed_source(f);
        enum { COUNT = 60 };
        static uint8_t data[COUNT * 1440];
        uint32_t lengths[COUNT], total = 0, seen = 0;
        for (uint32_t i = 0; i < COUNT; i++) {
            lengths[i] =
                round == 0 ? (uint32_t)um_random_below(&random, 300) : 800 + (uint32_t)um_random_below(&random, 625);
            total += lengths[i];
        }
        for (uint32_t i = 0; i < total; i++)
            data[i] = (uint8_t)um_random_next(&random);
        um_messages messages = {.data = data, .lengths = lengths, .count = COUNT};
        uint64_t done_bytes;
        messages.staged = round == 1 ? &f->session->staged : NULL;
        CHECK_EQ(um_source_send_many(source, &messages, UM_SEND_FLUSH, f->now_ns, &f->actions, &done_bytes), COUNT);
        CHECK(round == 0 || f->session->staged.count > COUNT / 2);
        run_sender(f);
        const uint8_t *from = data;
        for (uint32_t i = 0; i < f->link.count; i++) {
            um_lbmc_message m[COUNT];
            uint32_t count = messages_at(f, i, m, COUNT);
            CHECK(f->link.datagrams[i].length <= 1472);
            for (uint32_t k = 0; k < count; k++) {
                CHECK_EQ(m[k].sent_ns, f->now_ns + AHEAD_NS);
                CHECK_EQ(m[k].payload_length, lengths[seen]);
                CHECK_BYTES(m[k].payload, from, lengths[seen]);
                from += lengths[seen++];
            }
        }
        CHECK_EQ(seen, COUNT);
        session_close(f);
    }
}

TEST("AE-32", "a claim carries the time of its commit, a message of an explicit batch that of its send")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = timed_source(f);
    um_source_claim claim;
    uint32_t fits = 1472 - UM_LBTRM_DATA_BYTES - um_lbmc_overhead(false, false, true);
    CHECK_EQ(um_source_claim_begin(source, fits + 1, &claim), -EMSGSIZE);
    CHECK_EQ(um_source_claim_begin(source, 4, &claim), 0);
    memcpy(claim.payload, "data", 4);
    f->now_ns += 50;
    int64_t committed_ns = f->now_ns;
    CHECK_EQ(um_source_claim_commit(source, &claim, UM_SEND_FLUSH, f->now_ns, &f->actions), 0);
    int64_t first_ns = f->now_ns += 10;
    CHECK_EQ(send_text(f, source, "first", UM_SEND_START_BATCH), 1);
    int64_t second_ns = f->now_ns += 10;
    CHECK_EQ(send_text(f, source, "second", UM_SEND_END_BATCH | UM_SEND_FLUSH), 2);
    run_sender(f);
    um_lbmc_message m[3];
    CHECK_EQ(messages_at(f, 0, m, 3), 3);
    CHECK_BYTES(m[0].payload, (const uint8_t *)"data", 4);
    CHECK_EQ(m[0].sent_ns, committed_ns + AHEAD_NS);
    CHECK_EQ(m[1].sent_ns, first_ns + AHEAD_NS);
    CHECK_EQ(m[2].sent_ns, second_ns + AHEAD_NS);
    session_close(f);
}

TEST("W2", "a slow reading does not change the wall clock's offset, unless the clock was set")
{
    const int64_t offset_ns = 5000000;
    const um_wall_reading quick = {1000, 1000 + 5000007 + 50, 1100};
    CHECK_EQ(um_wall_offset_after(&quick, offset_ns), 5000007);
    const um_wall_reading interrupted = {1000, 1000 + 5000000 + 80000, 101000}; /* before or after the pause */
    CHECK_EQ(um_wall_offset_after(&interrupted, offset_ns), offset_ns);
    const um_wall_reading set = {1000, 1000 + 9000000, 101000};
    CHECK_EQ(um_wall_offset_after(&set, offset_ns), 9000000 - 50000);
    const um_wall_reading set_back = {1000, 1000 - 7000000, 101000};
    CHECK_EQ(um_wall_offset_after(&set_back, offset_ns), -7000000 - 50000);
}

/* ---- receiving ---- */

static const um_address source_address = UM_ADDRESS_V4(0x0a090001, 5555);
static const um_address group = UM_ADDRESS_V4(0xe00a0a0a, 14400);

static int send_nothing(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    (void)link, (void)to, (void)batch;
    return (int)count;
}

typedef struct receiving {
    um_link link;
    um_node node;
    um_receiver_session session;
    um_message_queue queue;
    um_receiver receiver;
    um_delivery delivery;
    void *memory[3];
    uint32_t next_sqn;
} receiving;

static receiving *receiving_open(um_ordered_delivery mode)
{
    static const um_link_ops ops = {.send = send_nothing};
    receiving *r = zeroed(sizeof *r);
    um_receiver_session_config config = {.id = {{source_address.ip, NAK_PORT}, group, SESSION, UM_TRANSPORT_LBTRM, 0},
                                         .nak_generation_ns = 10 * (int64_t)NS_PER_S,
                                         .activity_timeout_ns = 60 * (int64_t)NS_PER_S,
                                         .datagram_max_bytes = 1472,
                                         .loss_capacity = 1024,
                                         .topic_capacity = 8,
                                         .random_seed = 1};
    r->link.ops = &ops;
    um_node_init(&r->node);
    r->memory[0] = zeroed(um_reorder_footprint(64, 1472, 1024));
    um_reorder_init(&r->node.store, r->memory[0], 64, 1472, 1024);
    r->memory[1] = zeroed(um_receiver_session_footprint(&config));
    um_receiver_session_init(&r->session, r->memory[1], &config, &r->link, &r->node.store, NS_PER_S);
    CHECK(um_node_add_session(&r->node, &r->session));
    r->memory[2] = zeroed(um_queue_footprint(4, 64, 4096, UM_QUEUE_MESSAGE_BYTES_MIN));
    um_queue_init(&r->queue, r->memory[2], 4, 64, 4096, UM_QUEUE_MESSAGE_BYTES_MIN);
    CHECK(um_node_add_queue(&r->node, &r->queue));
    r->receiver = (um_receiver){.config = {.ordered_delivery = mode, .burst_loss_max = 8},
                                .queue = &r->queue,
                                .store = &r->node.store,
                                .context_counters = &r->node.counters};
    um_delivery_init(&r->delivery, &r->receiver, 1, 0, TOPIC, config.nak_generation_ns);
    CHECK(um_receiver_session_map(&r->session, &r->delivery, NS_PER_S));
    return r;
}

static void receiving_close(receiving *r)
{
    um_receiver_session_unmap(&r->session, &r->delivery);
    for (uint32_t i = 0; i < 3; i++)
        free(r->memory[i]);
    free(r);
}

static void receive_at(receiving *r, uint32_t sqn, um_lbmc_layout layout, int64_t received_ns)
{
    uint8_t out[1472] = {0};
    um_lbtrm_write_data(out, SESSION, NAK_PORT, sqn, 0, false);
    layout.topic_index = TOPIC;
    uint8_t *payload = um_lbmc_write_message(out + UM_LBTRM_DATA_BYTES, &layout);
    um_rx rx = {.data = out,
                .length = (uint32_t)(payload - out) + layout.payload_length,
                .from = source_address,
                .to = group,
                .received_ns = received_ns};
    um_node_on_data(&r->node, &rx, NS_PER_S);
}

TEST("", "latency is counted; negative latencies and messages without a time are counted separately")
{
    receiving *r = receiving_open(UM_ORDERED_SEQUENCE);
    const um_receiver_transport_counters *counters = &r->session.counters;
    CHECK_EQ(counters->latency_min, UINT64_MAX);
    receive_at(r, 0, (um_lbmc_layout){.sqn = 0, .payload_length = 1}, 5000);
    CHECK_EQ(r->session.latency_count, 0);
    receive_at(r, 1, (um_lbmc_layout){.sqn = 1, .payload_length = 1, .sent_ns = 1000000}, 1003000);
    receive_at(r, 2, (um_lbmc_layout){.sqn = 2, .payload_length = 1, .sent_ns = 1000000}, 1001500);
    CHECK_EQ(counters->latency_min, 1500);
    CHECK_EQ(counters->latency_max, 3000);
    CHECK_EQ(counters->latency_mean, 3000 - 1500 / 8);
    CHECK_EQ(r->session.latency_count, 2);
    CHECK_EQ(r->session.latency_buckets[1], 1); /* 1280 to 1536 ns */
    CHECK_EQ(r->session.latency_buckets[5], 1); /* 2560 to 3072 ns */
    receive_at(r, 3, (um_lbmc_layout){.sqn = 3, .payload_length = 1, .sent_ns = 1000000}, 999999);
    CHECK_EQ(counters->latency_negative, 1);
    CHECK_EQ(r->session.latency_count, 2);
    receive_at(r, 4, (um_lbmc_layout){.sqn = 4, .payload_length = 1, .sent_ns = INT64_MAX}, 0);
    receive_at(r, 5, (um_lbmc_layout){.sqn = 5, .payload_length = 1, .sent_ns = 1}, INT64_MAX);
    CHECK_EQ(counters->latency_negative, 2);
    CHECK_EQ(r->session.latency_buckets[UM_LATENCY_BUCKETS - 1], 1);
    receiving_close(r);
}

/* The rows of messages, in order. */
static uint32_t take_times(receiving *r, int64_t *times, uint32_t most)
{
    uint32_t count = 0;
    um_rows rows;
    while ((rows = um_queue_take(&r->queue, UINT32_MAX)).count > 0) {
        for (uint32_t i = rows.first; i < rows.first + rows.count; i++)
            if (um_row_kind_of(rows.block->flags[i]) == UM_ROW_MESSAGE && count < most)
                times[count++] = rows.block->sent_ns[i];
        um_queue_release(rows.block, rows.count);
    }
    return count;
}

TEST("UM-53", "a row has the send time of its message: delivered at once, held, or reassembled")
{
    int64_t times[8];
    receiving *r = receiving_open(UM_ORDERED_SEQUENCE);
    receive_at(r, 0, (um_lbmc_layout){.sqn = 0, .payload_length = 1, .sent_ns = 100}, 5000);
    receive_at(r, 2, (um_lbmc_layout){.sqn = 2, .payload_length = 1, .sent_ns = 300}, 5000);
    receive_at(r, 3, (um_lbmc_layout){.sqn = 3, .payload_length = 1}, 5000);
    receive_at(r, 1, (um_lbmc_layout){.sqn = 1, .payload_length = 1, .sent_ns = 200}, 5000);
    for (uint32_t i = 0; i < 2; i++)
        receive_at(r, 4 + i,
                   (um_lbmc_layout){.sqn = 4 + i,
                                    .flags = UM_MESSAGE_FRAGMENT,
                                    .first_sqn = 4,
                                    .offset = i * 10,
                                    .total = 20,
                                    .payload_length = 10,
                                    .sent_ns = 400 + i},
                   5000);
    CHECK_EQ(take_times(r, times, 8), 5);
    static const int64_t expected[] = {100, 200, 300, 0, 400};
    for (uint32_t i = 0; i < 5; i++)
        CHECK_EQ(times[i], expected[i]);
    receiving_close(r);
}

CHECK_MAIN
