/* Late join and off-transport recovery of a delivery controller: when it begins, what it fetches, what it gives up, and
 * that every message is delivered once, in order, or reported lost, whatever the transport and the peer do.
 */
#include "core/late_join.h"
#include "core/node.h"
#include "core/off_transport.h"
#include "core/retention.h"
#include "support.h"

enum {
    TOPIC = 5,
    SESSION = 77,
    NAK_PORT = 30000,
    PROXIMITY = 50,
    THRESHOLD = 40,
    DELAY_MS = 100,
    GENERATION_MS = 500,
    CELLS = 256,
    ENTRIES = 1024,
    BLOCKS = 16,
    ROWS = 1024,
    STREAM_MAX = 6000,
    TO_PEER_BYTES = 1 << 16,
    FROM_PEER_BYTES = 1 << 20,
};

static const um_address source_address = {0x0a090001, 5555};
static const um_address group = {0xe00a0a0a, 14400};
static const um_address request_port = {0x0a090001, 14391};

enum fate { UNKNOWN, DELIVERED, LOST };

typedef struct recovering {
    um_link link;
    um_node node;
    um_receiver_session *session;
    um_message_queue queue;
    um_receiver receiver;
    um_delivery *delivery;
    void *store_memory, *queue_memory, *session_memory;
    bool otr_begun;
    int64_t now_ns;
    /* the source */
    uint32_t base;                 /* the first topic sqn */
    uint32_t starts[STREAM_MAX];   /* where the message of each sqn begins */
    uint32_t fragments[STREAM_MAX]; /* and how many it has */
    uint32_t retained_from;        /* index */
    uint32_t sent;                 /* index */
    /* what came of each sqn, by index */
    enum fate fates[STREAM_MAX];
    bool otr[STREAM_MAX];
    bool late[STREAM_MAX];
    uint32_t next;
    uint32_t delivered, lost, bursts, begun, ended;
    bool is_honest; /* the peer answers what it can, so that exactly the rest is lost */
    uint8_t *to_peer, *from_peer;
    uint32_t from_peer_bytes;
} recovering;

static int send_nothing(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    (void)link, (void)to, (void)batch;
    return (int)count;
}

static const um_link_ops recovering_ops = {.send = send_nothing};

static um_receiver_session_config session_config(void)
{
    return (um_receiver_session_config){
        .id = {{source_address.ip, NAK_PORT}, group, SESSION},
        .nak_initial_backoff_ns = 10 * NS_PER_MS,
        .nak_backoff_ns = 20 * NS_PER_MS,
        .nak_generation_ns = GENERATION_MS * (int64_t)NS_PER_MS,
        .activity_timeout_ns = 60 * (int64_t)NS_PER_S,
        .datagram_max_bytes = 1472,
        .loss_capacity = 1024,
        .topic_capacity = 8,
        .window_bytes = 1 << 20,
        .status_interval_ns = NS_PER_S,
        .random_seed = 1,
    };
}

/* The controller, mapped to a session that is new; `offers` is whether the source retains. */
static void map(recovering *f, bool offers)
{
    um_receiver_session_config config = session_config();
    free(f->session_memory);
    f->session_memory = zeroed(um_receiver_session_footprint(&config));
    um_receiver_session_init(f->session, f->session_memory, &config, &f->link, &f->node.store, f->now_ns);
    CHECK(um_node_add_session(&f->node, f->session));
    um_delivery_init(f->delivery, &f->receiver, f->receiver.controller_count + 1, 0, TOPIC, config.nak_generation_ns);
    CHECK(um_receiver_session_map(f->session, f->delivery, f->now_ns));
    f->delivery->request_port = offers ? request_port : (um_address){0, 0};
    um_node_wake(&f->node, f->now_ns);
}

static recovering *recovering_open(um_ordered_delivery mode, uint32_t base, bool offers)
{
    recovering *f = zeroed(sizeof *f);
    f->base = base;
    f->link.ops = &recovering_ops;
    f->now_ns = NS_PER_S;
    um_node_init(&f->node);
    f->store_memory = zeroed(um_reorder_footprint(CELLS, 1472, ENTRIES));
    um_reorder_init(&f->node.store, f->store_memory, CELLS, 1472, ENTRIES);
    f->queue_memory = zeroed(um_queue_footprint(BLOCKS, ROWS, 1 << 16, UM_QUEUE_MESSAGE_BYTES_MIN));
    um_queue_init(&f->queue, f->queue_memory, BLOCKS, ROWS, 1 << 16, UM_QUEUE_MESSAGE_BYTES_MIN);
    CHECK(um_node_add_queue(&f->node, &f->queue));
    f->receiver = (um_receiver){.config = {.ordered_delivery = mode,
                                           .burst_loss_max = 1000000000,
                                           .loss_check_interval_ns = 50 * NS_PER_MS,
                                           .use_otr = true,
                                           .otr_initial_delay_ns = DELAY_MS * (int64_t)NS_PER_MS,
                                           .otr_caching_threshold = THRESHOLD},
                                .queue = &f->queue,
                                .store = &f->node.store,
                                .context_counters = &f->node.counters,
                                .otr_begun = &f->otr_begun};
    f->session = zeroed(sizeof *f->session);
    f->delivery = zeroed(sizeof *f->delivery);
    f->to_peer = zeroed(TO_PEER_BYTES);
    f->from_peer = zeroed(FROM_PEER_BYTES);
    for (uint32_t i = 0; i < STREAM_MAX; i++)
        f->starts[i] = i, f->fragments[i] = 1;
    map(f, offers);
    return f;
}

static void unmap(recovering *f)
{
    um_receiver_session_unmap(f->session, f->delivery);
    um_node_remove_session(&f->node, f->session);
}

static void recovering_close(recovering *f)
{
    if (f->session->controllers != NULL)
        unmap(f);
    CHECK_EQ(f->node.store.cells_used, 0);
    CHECK_EQ(f->node.store.entries_used, 0);
    free(f->session), free(f->delivery), free(f->to_peer), free(f->from_peer);
    free(f->store_memory), free(f->queue_memory), free(f->session_memory);
    free(f);
}

/* ---- what is delivered ---- */

static uint32_t index_of(const recovering *f, uint32_t sqn)
{
    CHECK(sqn - f->base < f->sent);
    return sqn - f->base;
}

static void note(recovering *f, uint32_t first, uint32_t last, enum fate fate, uint16_t flags)
{
    for (uint32_t i = index_of(f, first); i <= index_of(f, last); i++) {
        CHECK_EQ(f->fates[i], UNKNOWN);
        if (f->receiver.config.ordered_delivery == UM_ORDERED_SEQUENCE)
            CHECK(i >= f->next);
        CHECK(fate != LOST || !f->is_honest || i < f->retained_from); /* what is retained is never lost */
        f->fates[i] = fate;
        f->otr[i] = flags & UM_MESSAGE_OTR;
        f->late[i] = flags & UM_MESSAGE_RETRANSMIT;
        f->next = i + 1;
        f->delivered += fate == DELIVERED;
        f->lost += fate == LOST;
    }
}

static void check_payload(const um_block *block, uint32_t row)
{
    uint8_t payload[64];
    uint32_t count = block->sequence_numbers[row] - block->first_sequence_numbers[row] + 1;
    CHECK_EQ(um_block_copy(block, row, payload, sizeof payload), 4 * count);
    for (uint32_t i = 0; i < count; i++)
        CHECK_EQ(um_load_be32(payload + 4 * i), block->first_sequence_numbers[row] + i);
}

static void read_all(recovering *f)
{
    um_rows rows;
    while ((rows = um_queue_take(&f->queue, UINT32_MAX)).count > 0) {
        for (uint32_t row = rows.first; row < rows.first + rows.count; row++) {
            uint32_t kind = rows.block->flags[row] >> 8, sqn = rows.block->sequence_numbers[row];
            uint32_t first = rows.block->first_sequence_numbers[row];
            f->begun += kind == UM_ROW_BEGINNING_OF_SESSION;
            f->ended += kind == UM_ROW_END_OF_SESSION;
            f->bursts += kind == UM_ROW_BURST_LOSS;
            if (kind == UM_ROW_MESSAGE) {
                check_payload(rows.block, row);
                note(f, first, sqn, DELIVERED, rows.block->flags[row]);
            } else if (kind == UM_ROW_UNRECOVERABLE_LOSS || kind == UM_ROW_BURST_LOSS) {
                note(f, kind == UM_ROW_BURST_LOSS ? first : sqn, sqn, LOST, 0);
            }
        }
        um_queue_release(rows.block, rows.count);
    }
}

/* ---- the transport ---- */

static uint32_t write_message(const recovering *f, uint32_t i, uint8_t *out)
{
    um_lbmc_layout layout = {.topic_index = TOPIC, .sqn = f->base + i, .payload_length = 4};
    if (f->fragments[i] > 1) {
        layout.flags = UM_MESSAGE_FRAGMENT;
        layout.first_sqn = f->base + f->starts[i];
        layout.offset = 4 * (i - f->starts[i]);
        layout.total = 4 * f->fragments[i];
    }
    uint8_t *payload = um_lbmc_write_message(out, &layout);
    um_store_be32(payload, f->base + i);
    return (uint32_t)(payload + 4 - out);
}

/* The datagram of one sqn; transport sqns are indices. */
static void arrive(recovering *f, uint32_t i, bool retransmission)
{
    uint8_t out[256] = {0};
    um_lbtrm_write_data(out, SESSION, NAK_PORT, i, 0, false);
    if (retransmission)
        out[16] |= UM_LBTRM_FLAG_RETRANSMISSION;
    uint32_t length = UM_LBTRM_DATA_BYTES + write_message(f, i, out + UM_LBTRM_DATA_BYTES);
    um_rx rx = {.data = out, .length = length, .from = source_address, .to = group, .received_ns = 1};
    um_node_on_data(&f->node, &rx, f->now_ns);
    um_node_after_batch(&f->node, f->now_ns);
}

/* Sends `count` more, of which nothing arrives when they are `lost`. */
static void stream(recovering *f, uint32_t count, bool lost)
{
    for (uint32_t end = f->sent + count; f->sent < end;) {
        f->sent++;
        if (!lost)
            arrive(f, f->sent - 1, false);
    }
    read_all(f);
}

static void pass(recovering *f, int64_t ms)
{
    for (; ms > 0; ms--) {
        f->now_ns += NS_PER_MS;
        um_node_pressured(&f->node, f->now_ns);
        um_node_tick(&f->node, f->now_ns);
        read_all(f);
    }
}

/* ---- the peer ---- */

static bool is_fetching(const recovering *f)
{
    return f->delivery->late_join.is_active && !f->delivery->late_join.is_given_up;
}

static void answer(recovering *f, const uint8_t *data, uint32_t length)
{
    CHECK(f->from_peer_bytes + length <= FROM_PEER_BYTES);
    memcpy(f->from_peer + f->from_peer_bytes, data, length);
    f->from_peer_bytes += length;
}

static void answer_range(recovering *f, uint32_t low, uint32_t high)
{
    uint8_t out[UM_RECOVERY_RANGE_BYTES];
    answer(f, out, um_recovery_write_range(out, low, high, 0));
}

static void answer_message(recovering *f, uint32_t i)
{
    uint8_t out[256];
    uint32_t length = write_message(f, i, out);
    out[0] = UM_LBMC_RECOVERED;
    answer(f, out, length);
}

/* Has the controller write requests; returns their indices. */
static uint32_t requests(recovering *f, uint32_t outstanding, uint32_t *indices, uint32_t max)
{
    uint32_t count = 0, length = um_late_join_request(f->delivery, outstanding, f->to_peer, TO_PEER_BYTES);
    for (uint32_t at = 0; at < length; at += um_load_be16(f->to_peer + at + 2))
        for (uint32_t o = at + UM_LBMC_CONTROL_BYTES; o < at + um_load_be16(f->to_peer + at + 2);
             o += UM_RECOVERY_REQUEST_BYTES) {
            CHECK(count < max);
            CHECK_EQ(um_load_be32(f->to_peer + o + 12), TOPIC);
            indices[count++] = um_load_be32(f->to_peer + o + 16) - f->base;
        }
    return count;
}

/* The controller takes what the peer has answered. */
static int64_t take(recovering *f)
{
    int64_t used = um_late_join_receive(f->session, f->delivery, f->from_peer, f->from_peer_bytes, f->now_ns);
    if (used > 0)
        memmove(f->from_peer, f->from_peer + used, f->from_peer_bytes -= (uint32_t)used);
    read_all(f);
    return used;
}

/* An honest peer until the fetch is over. */
static void fetch_all(recovering *f)
{
    uint32_t indices[2048];
    for (uint32_t round = 0; round < 10000 && is_fetching(f); round++) {
        uint32_t count = requests(f, 100, indices, 2048);
        bool told = false;
        for (uint32_t r = 0; r < count; r++) {
            if (indices[r] >= f->retained_from && indices[r] < f->sent)
                answer_message(f, indices[r]);
            else if (indices[r] < f->sent && !told)
                answer_range(f, f->base + f->retained_from, f->base + f->sent - 1), told = true;
        }
        while (f->from_peer_bytes > 0 && is_fetching(f))
            take(f);
        pass(f, 1);
    }
    f->from_peer_bytes = 0;
}

/* ---- when it begins ---- */

TEST("UM-142", "recovery begins after its delay, not before, and fetches exactly what lacks")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 1000, true);
    stream(f, 10, false);
    stream(f, 5, true);
    stream(f, 10, false);
    pass(f, DELAY_MS - 1);
    CHECK(!is_fetching(f));
    CHECK_EQ(f->delivered, 10);
    pass(f, 2);
    CHECK(is_fetching(f) && f->otr_begun && f->delivery->late_join.is_otr);
    uint32_t indices[64];
    CHECK_EQ(requests(f, 100, indices, 64), 5);
    for (uint32_t r = 0; r < 5; r++)
        CHECK_EQ(indices[r], 10 + r); /* oldest first */
    for (uint32_t r = 5; r-- > 0;)
        answer_message(f, 10 + r);
    take(f);
    CHECK_EQ(f->delivered, 25);
    for (uint32_t i = 0; i < 25; i++)
        CHECK(f->otr[i] == (i >= 10 && i < 15) && !f->late[i]);
    CHECK(!f->delivery->late_join.is_active);
    CHECK_EQ(f->receiver.counters.otr_messages, 5);
    recovering_close(f);
}

TEST("UM-143", "more than the caching threshold behind a gap begin it without the delay")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, UINT32_MAX - 30, true);
    stream(f, 10, false);
    stream(f, 1, true);
    stream(f, THRESHOLD, false);
    CHECK(!is_fetching(f));
    stream(f, 1, false);
    CHECK(is_fetching(f));
    fetch_all(f);
    CHECK_EQ(f->delivered, f->sent);
    recovering_close(f);
}

TEST("UM-142", "a source that offers nothing, or a receiver that does not want it, is as before")
{
    for (uint32_t wants = 0; wants < 2; wants++) {
        recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, !wants);
        f->receiver.config.use_otr = wants;
        stream(f, 10, false);
        stream(f, 5, true);
        stream(f, 100, false);
        pass(f, GENERATION_MS + 60);
        CHECK_EQ(f->lost, 5);
        CHECK_EQ(f->delivered, 110);
        CHECK_EQ(f->receiver.counters.otr_begun, 0);
        recovering_close(f);
    }
}

TEST("UM-142", "the transport goes on meanwhile: what it recovers is not fetched, and the recovery ends")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 5, true);
    stream(f, 10, false);
    pass(f, DELAY_MS + 1);
    CHECK(is_fetching(f));
    for (uint32_t i = 10; i < 15; i++)
        arrive(f, i, true);
    pass(f, 1);
    CHECK_EQ(f->delivered, 25);
    CHECK(!f->delivery->late_join.is_active);
    CHECK_EQ(f->receiver.counters.otr_messages, 0);
    recovering_close(f);
}

TEST("UM-142 UM-128", "what neither the transport nor the source has is lost at once")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 30, true);
    stream(f, 10, false);
    f->retained_from = 25;
    while (f->session->losses.count > 0) /* as when the source's window has moved on */
        um_loss_map_remove(&f->session->losses, um_loss_map_first(&f->session->losses));
    pass(f, DELAY_MS + 1);
    fetch_all(f);
    CHECK_EQ(f->lost, 15);
    CHECK((f->now_ns - NS_PER_S) / (int64_t)NS_PER_MS < DELAY_MS + 20);
    recovering_close(f);
}

TEST("UM-142 UM-128", "what is not retained is lost when the transport's time is up, not before; nothing more")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 30, true);
    stream(f, 10, false);
    f->retained_from = 25;
    pass(f, DELAY_MS + 1);
    fetch_all(f); /* until the rest is there: the transport's time is up meanwhile */
    CHECK_EQ(f->lost, 15);
    CHECK_EQ(f->delivered, 35);
    for (uint32_t i = 10; i < 25; i++)
        CHECK_EQ(f->fates[i], LOST);
    CHECK_EQ(f->receiver.counters.otr_lost, 15);
    CHECK_EQ(f->receiver.counters.unrecoverable_loss_events, 15);
    CHECK_EQ((f->now_ns - NS_PER_S) / NS_PER_MS >= GENERATION_MS, 1);
    recovering_close(f);
}

TEST("UX-7 UM-142", "a long run that is not retained is one event")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 2000, true);
    stream(f, 10, false);
    f->retained_from = 1900;
    pass(f, GENERATION_MS + 1);
    fetch_all(f);
    CHECK_EQ(f->lost, 1890);
    CHECK_EQ(f->bursts, 1);
    CHECK_EQ(f->delivered, f->sent - 1890);
    recovering_close(f);
}

TEST("UM-10 UM-142", "live messages beyond the map's bound are dropped, and fetched; without one, beyond the store's")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    f->receiver.config.map_entries_max = 100;
    stream(f, 10, false);
    stream(f, 5, true);
    stream(f, 3000, false);
    CHECK(is_fetching(f));
    CHECK(f->delivery->held_count <= 100);
    CHECK_EQ(f->receiver.counters.late_join_not_cached, 2900);
    fetch_all(f);
    CHECK_EQ(f->delivered, f->sent);
    f->receiver.config.map_entries_max = 0;
    stream(f, 5, true);
    stream(f, 2000, false);
    CHECK(f->delivery->held_count <= CELLS * 3 / 4);
    fetch_all(f);
    CHECK_EQ(f->delivered, f->sent);
    CHECK_EQ(f->lost, 0);
    recovering_close(f);
}

TEST("UM-142 UM-12", "arrival order: live messages go on at once, the fetched ones come late")
{
    recovering *f = recovering_open(UM_ORDERED_ARRIVAL, 0, true);
    stream(f, 10, false);
    stream(f, 5, true);
    stream(f, 300, false);
    CHECK_EQ(f->delivered, 310);
    fetch_all(f);
    CHECK_EQ(f->delivered, 315);
    recovering_close(f);
}

/* ---- peers that misbehave ---- */

TEST("UM-142", "a peer that sends nothing is given up at once and as a whole; one that leaves a hole loses the hole")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 20, true);
    stream(f, 10, false);
    pass(f, DELAY_MS + 1);
    uint32_t indices[64];
    CHECK_EQ(requests(f, 100, indices, 64), 20);
    for (uint32_t i = 10; i < 30; i++)
        if (i != 12 && i != 13)
            answer_message(f, i);
    take(f);
    CHECK_EQ(f->delivered, 12);
    CHECK(um_late_join_pass_over(f->session, f->delivery, f->now_ns));
    CHECK_EQ(f->lost, 0); /* the transport's time is not up */
    pass(f, GENERATION_MS);
    CHECK_EQ(f->lost, 2);
    CHECK_EQ(f->delivered, 38);
    CHECK(!f->delivery->late_join.is_active);

    stream(f, 20, true);
    stream(f, 10, false);
    pass(f, DELAY_MS + 1);
    CHECK(is_fetching(f));
    CHECK(!um_late_join_pass_over(f->session, f->delivery, f->now_ns));
    CHECK(!is_fetching(f));
    stream(f, 100, false); /* the present does not wait for a fetch that is over */
    pass(f, GENERATION_MS);
    CHECK_EQ(f->lost, 22);
    CHECK_EQ(f->delivered, f->sent - 22);
    recovering_close(f);
}

TEST("UM-142", "what was not requested, comes twice or is another topic's is dropped and counted")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 3, true);
    stream(f, 10, false);
    answer_message(f, 11);
    take(f); /* no recovery yet: not taken */
    f->from_peer_bytes = 0;
    pass(f, DELAY_MS + 1);
    answer_message(f, 11);
    take(f); /* before it was requested */
    CHECK_EQ(f->receiver.counters.late_join_refused, 1);
    uint32_t indices[64];
    CHECK_EQ(requests(f, 100, indices, 64), 3);
    answer_message(f, 5);
    answer_message(f, 15);
    answer_message(f, 11);
    answer_message(f, 11);
    uint32_t at = f->from_peer_bytes;
    answer_message(f, 12);
    um_store_be32(f->from_peer + at + 4, TOPIC + 1);
    take(f);
    CHECK_EQ(f->receiver.counters.late_join_refused, 5);
    answer(f, (const uint8_t[]){0x55, 0x55, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 16);
    CHECK_EQ(take(f), -EBADMSG);
    f->from_peer_bytes = 0;
    fetch_all(f);
    recovering_close(f);
}

TEST("UM-142", "ranges that lie: nothing is given up beyond what is fetched, and the transport may still recover it")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 100, true);
    stream(f, 10, false);
    stream(f, 3, true);
    stream(f, 10, false);
    pass(f, DELAY_MS + 1);
    answer_range(f, 5000000, 6000000);
    answer_range(f, 50, 3);
    answer_range(f, 0, 4000000000u);
    take(f);
    CHECK_EQ(f->receiver.counters.late_join_refused, 2);
    CHECK_EQ(f->lost, 0);
    for (uint32_t i = 10; i < 13; i++)
        arrive(f, i, true);
    read_all(f);
    CHECK_EQ(f->delivered, 23);
    stream(f, 10, false);
    CHECK_EQ(f->delivered, 33);
    recovering_close(f);
}

/* ---- sources found again ---- */

static void end_session(recovering *f)
{
    f->now_ns += 61 * (int64_t)NS_PER_S;
    pass(f, 2);
    CHECK_EQ(f->ended, 1);
    CHECK(um_node_finished_session(&f->node) == f->session);
    unmap(f);
}

static void resume(recovering *f)
{
    um_resume_point point;
    um_session_id id = session_config().id;
    map(f, true);
    CHECK(um_late_join_take_resume(&f->receiver, &id, TOPIC, &point));
    CHECK_EQ(point.next_sqn, f->base + f->next);
    CHECK(!um_late_join_take_resume(&f->receiver, &id, TOPIC, &point));
    um_late_join_begin(f->delivery, PROXIMITY, &point);
}

TEST("UM-106 UM-142", "a source found again goes on where its session ended: no past again, no gap")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, UINT32_MAX - 20, true);
    stream(f, 30, false);
    end_session(f);
    stream(f, 20, true);
    resume(f);
    stream(f, 5, false); /* the range is not known yet */
    CHECK_EQ(f->delivered, 30);
    f->retained_from = 35;
    answer_range(f, f->base + 35, f->base + f->sent - 1);
    take(f);
    CHECK_EQ(f->lost, 5);
    fetch_all(f);
    stream(f, 5, false);
    CHECK_EQ(f->delivered, f->sent - 5);
    CHECK_EQ(f->receiver.counters.otr_lost, 5);
    for (uint32_t i = 35; i < 50; i++)
        CHECK(f->otr[i]);
    recovering_close(f);
}

TEST("UM-106", "a source found again whose peer never answers: what was missed is lost, with its events")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 30, false);
    end_session(f);
    stream(f, 20, true);
    resume(f);
    stream(f, 5, false);
    um_late_join_give_up(f->session, f->delivery, f->now_ns);
    read_all(f);
    CHECK_EQ(f->lost, 20);
    stream(f, 5, false);
    CHECK_EQ(f->delivered, f->sent - 20);
    recovering_close(f);
}

TEST("UM-106", "a forged sequence number while a source is found again does not carry it off")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 30, false);
    end_session(f);
    resume(f);
    uint32_t base = f->base;
    f->base += 500000000;
    arrive(f, 30, false);
    f->base = base;
    CHECK_EQ(f->receiver.counters.malformed_fragments, 1);
    answer_range(f, 0, 29);
    take(f);
    f->sent = 31;
    stream(f, 5, false);
    arrive(f, 30, true);
    read_all(f);
    CHECK_EQ(f->lost, 0);
    recovering_close(f);
}

TEST("UM-135", "what is lost before the first message delivered is counted, not reported; later loss is reported")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, false);
    f->sent = 1;
    uint8_t out[256] = {0};
    um_lbtrm_write_data(out, SESSION, NAK_PORT, 0, 0, false);
    uint32_t topic = TOPIC, sqn = 0;
    uint32_t length = UM_LBTRM_DATA_BYTES + um_lbmc_write_tsni(out + UM_LBTRM_DATA_BYTES, &topic, &sqn, 1);
    um_rx rx = {.data = out, .length = length, .from = source_address, .to = group, .received_ns = 1};
    um_node_on_data(&f->node, &rx, f->now_ns);
    um_node_after_batch(&f->node, f->now_ns);
    stream(f, 3, true); /* 1 .. 3 */
    stream(f, 5, false);
    pass(f, GENERATION_MS + 60);
    CHECK_EQ(f->delivered, 5);
    CHECK_EQ(f->lost, 0);
    CHECK_EQ(f->receiver.counters.leading_losses, 3);
    stream(f, 2, true);
    stream(f, 5, false);
    pass(f, GENERATION_MS + 60);
    CHECK_EQ(f->lost, 2);
    CHECK_EQ(f->receiver.counters.unrecoverable_loss_events, 2);
    recovering_close(f);
}

/* ---- anything ---- */

typedef struct fuzzed {
    recovering *f;
    um_random random;
    uint32_t stuck; /* steps without progress */
    uint32_t last_next;
    uint32_t last_requested;
    bool is_hostile;
} fuzzed;

static bool one_in(fuzzed *z, uint32_t n)
{
    return um_random_below(&z->random, n) == 0;
}

static void make_fragments(fuzzed *z)
{
    for (uint32_t i = 0; i < STREAM_MAX;) {
        uint32_t count = one_in(z, 4) ? 2 + (uint32_t)um_random_below(&z->random, 3) : 1;
        count = count > STREAM_MAX - i ? 1 : count;
        for (uint32_t k = 0; k < count; k++)
            z->f->starts[i + k] = i, z->f->fragments[i + k] = count;
        i += count;
    }
}

/* Answers as peers do: most of it, some twice, some never. */
static void answer_some(fuzzed *z)
{
    recovering *f = z->f;
    uint32_t indices[2048], count = requests(f, 60, indices, 2048);
    bool told = false;
    for (uint32_t r = 0; r < count; r++) {
        if (z->is_hostile && one_in(z, 20))
            continue;
        if (indices[r] >= f->retained_from && indices[r] < f->sent) {
            answer_message(f, indices[r]);
            if (z->is_hostile && one_in(z, 20))
                answer_message(f, indices[r]);
        } else if (indices[r] < f->sent && !told) {
            answer_range(f, f->base + f->retained_from, f->base + f->sent - 1);
            told = true;
        }
        if (z->is_hostile && one_in(z, 100))
            answer_message(f, (uint32_t)um_random_below(&z->random, f->sent));
        if (z->is_hostile && one_in(z, 500)) /* the connection is lost */
            f->from_peer_bytes = 0;
    }
}

/* What umstack/recovery does in a step. */
static void serve(fuzzed *z)
{
    recovering *f = z->f;
    if (!is_fetching(f)) {
        f->from_peer_bytes = 0;
        z->stuck = 0;
        return;
    }
    answer_some(z);
    if (f->from_peer_bytes > 0 && take(f) < 0)
        f->from_peer_bytes = 0;
    bool progresses = f->delivery->next_sqn != z->last_next || um_late_join_is_left_to_transport(f->delivery);
    z->last_next = f->delivery->next_sqn;
    z->stuck = progresses ? 0 : z->stuck + 1;
    if (z->stuck % 20 == 19)
        um_late_join_retry(f->delivery);
    if (z->stuck == 400 && is_fetching(f)) {
        um_late_join_pass_over(f->session, f->delivery, f->now_ns);
        z->stuck = 0;
    }
}

/* One stream of random loss, retransmissions, outages and answers; then all of it is accounted for. */
static void run_stream(uint64_t seed, um_ordered_delivery mode, bool bounded, bool is_hostile)
{
    fuzzed z = {.random = {.state = seed}, .is_hostile = is_hostile};
    recovering *f = z.f = recovering_open(mode, (uint32_t)um_random_next(&z.random), true);
    f->is_honest = !is_hostile;
    if (mode == UM_ORDERED_SEQUENCE)
        make_fragments(&z);
    uint32_t outage = 0, pending = 0, pendings[STREAM_MAX];
    stream(f, f->fragments[0], false); /* the first message starts the stream */
    while (f->sent + 20 < STREAM_MAX) {
        if (outage == 0 && one_in(&z, 200))
            outage = 1 + (uint32_t)um_random_below(&z.random, one_in(&z, 4) ? 900 : 30);
        f->sent++;
        if (outage > 0 || one_in(&z, 50))
            pendings[pending++] = f->sent - 1;
        else
            arrive(f, f->sent - 1, false);
        outage -= outage > 0;
        if (pending > 0 && outage == 0 && one_in(&z, 6)) { /* the transport recovers one */
            uint32_t at = (uint32_t)um_random_below(&z.random, pending);
            arrive(f, pendings[at], true);
            pendings[at] = pendings[--pending];
        }
        if (bounded && f->sent > 400)
            f->retained_from = f->sent - 400;
        if (one_in(&z, 3)) {
            pass(f, 1 + (int64_t)um_random_below(&z.random, 4));
            serve(&z);
        }
        read_all(f);
    }
    z.is_hostile = false;
    uint32_t end = f->sent + f->fragments[f->sent] - (f->sent - f->starts[f->sent]);
    for (; f->sent < end; f->sent++) /* the last message comes whole */
        ;
    for (uint32_t i = f->starts[end - 1]; i < end; i++)
        arrive(f, i, false);
    for (uint32_t step = 0; step < 3000 && f->delivered + f->lost < f->sent; step++) {
        pass(f, 1);
        serve(&z);
    }
    for (uint32_t i = 0; i < f->sent && mode == UM_ORDERED_SEQUENCE; i++) {
        if (f->fates[i] == LOST) {
            CHECK(bounded || is_hostile);
        } else if (f->fates[i] == UNKNOWN) { /* of a message that lacks another fragment, which is reported */
            bool is_reported = false;
            for (uint32_t k = 0; k < f->fragments[i]; k++)
                is_reported |= f->fates[f->starts[i] + k] == LOST;
            CHECK(is_reported);
        }
    }
    if (!bounded && !is_hostile)
        CHECK_EQ(f->delivered, f->sent);
    recovering_close(f);
}

enum { SEEDS = 8 };

TEST("UM-101 UM-142", "random streams from an honest peer that retains everything: everything is delivered")
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_stream(seed, seed % 4 == 0 ? UM_ORDERED_ARRIVAL : UM_ORDERED_SEQUENCE, false, false);
}

TEST("UM-101 UM-141 UM-142", "random streams from a peer that retains little: each is delivered once, in order, or lost")
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_stream(seed, UM_ORDERED_SEQUENCE, true, false);
}

TEST("UM-101 UM-142", "random streams from a peer that lies, repeats, leaves out and disconnects")
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_stream(seed, seed % 4 == 0 ? UM_ORDERED_ARRIVAL : UM_ORDERED_SEQUENCE, seed % 2, true);
}

CHECK_MAIN
