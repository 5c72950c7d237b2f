/* Shared by the tests of late join and off-transport recovery: a controller on a session, a source that retains
 * messages, and a peer that answers requests.
 */
#ifndef UM_TESTS_RECOVERING_H
#define UM_TESTS_RECOVERING_H

#include "core/delivery/delivery_controller.h"
#include "core/delivery/delivery_fetch.h"
#include "core/delivery/off_transport.h"
#include "core/receiver/fetch_protocol.h"
#include "core/receiver/node.h"
#include "core/receiver/receiver_session.h"
#include "core/source/retention.h"
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

static const um_address source_address = UM_ADDRESS_V4(0x0a090001, 5555);
static const um_address group = UM_ADDRESS_V4(0xe00a0a0a, 14400);
static const um_address request_port = UM_ADDRESS_V4(0x0a090001, 14391);

enum fate { UNKNOWN, DELIVERED, LOST };

typedef struct recovering {
    um_link link;
    um_node node;
    um_receiver_session *session;
    um_message_queue queue;
    um_receiver receiver;
    um_delivery *delivery;
    void *store_memory, *queue_memory, *session_memory, *resume_memory;
    bool otr_begun;
    int64_t now_ns;
    /* the source */
    uint32_t base;                  /* first topic sqn */
    uint32_t starts[STREAM_MAX];    /* index of the first fragment of each sqn's message */
    uint32_t fragments[STREAM_MAX]; /* number of fragments of that message */
    uint32_t retained_from;         /* index of the oldest retained message */
    uint32_t sent;                  /* index of the next message to send */
    /* the fate of each sqn, by index */
    enum fate fates[STREAM_MAX];
    bool otr[STREAM_MAX];
    bool late[STREAM_MAX];
    uint32_t next;
    uint32_t delivered, lost, bursts, begun, ended, cutoffs;
    bool is_honest; /* the peer answers every request for a retained message, so that only the others may be lost */
    uint8_t *to_peer, *from_peer;
    uint32_t from_peer_bytes;
} recovering;

static inline int send_nothing(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    (void)link, (void)to, (void)batch;
    return (int)count;
}

static const um_link_ops recovering_ops = {.send = send_nothing};

static inline um_receiver_session_config session_config(void)
{
    return (um_receiver_session_config){
        .id = {{source_address.ip, NAK_PORT}, group, SESSION, UM_TRANSPORT_LBTRM, 0},
        .nak_initial_backoff_ns = 10 * NS_PER_MS,
        .nak_backoff_ns = 20 * NS_PER_MS,
        .nak_generation_ns = GENERATION_MS * (int64_t)NS_PER_MS,
        .activity_timeout_ns = 60 * (int64_t)NS_PER_S,
        .send_naks = true,
        .datagram_max_bytes = 1472,
        .loss_capacity = 1024,
        .topic_capacity = 8,
        .window_bytes = 1 << 20,
        .status_interval_ns = NS_PER_S,
        .random_seed = 1,
    };
}

/* Maps the controller to a new session. `offers`: the source retains messages. */
static inline void map(recovering *f, bool offers)
{
    um_receiver_session_config config = session_config();
    free(f->session_memory);
    f->session_memory = zeroed(um_receiver_session_footprint(&config));
    um_receiver_session_init(f->session, f->session_memory, &config, &f->link, &f->node.store, f->now_ns);
    CHECK(um_node_add_session(&f->node, f->session));
    um_delivery_init(f->delivery, &f->receiver, f->receiver.controller_count + 1, 0, TOPIC, config.nak_generation_ns);
    CHECK(um_receiver_session_map(f->session, f->delivery, f->now_ns));
    f->delivery->request_port = offers ? request_port : (um_address){0};
    um_node_wake(&f->node, f->now_ns);
}

static inline recovering *recovering_open(um_ordered_delivery mode, uint32_t base, bool offers)
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
                                .has_begun_otr = &f->otr_begun};
    f->resume_memory = zeroed(um_resume_points_footprint(4));
    um_resume_points_init(&f->node.resume_points, f->resume_memory, 4);
    f->session = zeroed(sizeof *f->session);
    f->delivery = zeroed(sizeof *f->delivery);
    f->to_peer = zeroed(TO_PEER_BYTES);
    f->from_peer = zeroed(FROM_PEER_BYTES);
    for (uint32_t i = 0; i < STREAM_MAX; i++)
        f->starts[i] = i, f->fragments[i] = 1;
    map(f, offers);
    return f;
}

static inline void unmap(recovering *f)
{
    um_resume_points_save(&f->node.resume_points, f->session);
    um_receiver_session_unmap(f->session, f->delivery);
    um_node_remove_session(&f->node, f->session);
}

static inline void recovering_close(recovering *f)
{
    if (f->session->controllers != NULL)
        unmap(f);
    CHECK_EQ(f->node.store.cells_used, 0);
    CHECK_EQ(f->node.store.entries_used, 0);
    free(f->session), free(f->delivery), free(f->to_peer), free(f->from_peer);
    free(f->store_memory), free(f->queue_memory), free(f->session_memory), free(f->resume_memory);
    free(f);
}

/* ---- delivered rows ---- */

static inline uint32_t index_of(const recovering *f, uint32_t sqn)
{
    CHECK(sqn - f->base < f->sent);
    return sqn - f->base;
}

static inline void note(recovering *f, uint32_t first, uint32_t last, enum fate fate, uint16_t flags)
{
    for (uint32_t i = index_of(f, first); i <= index_of(f, last); i++) {
        CHECK_EQ(f->fates[i], UNKNOWN);
        if (f->receiver.config.ordered_delivery == UM_ORDERED_SEQUENCE)
            CHECK(i >= f->next);
        CHECK(fate != LOST || !f->is_honest || i < f->retained_from); /* retained messages are never lost */
        f->fates[i] = fate;
        f->otr[i] = flags & UM_MESSAGE_OTR;
        f->late[i] = flags & UM_MESSAGE_RETRANSMIT;
        f->next = i + 1;
        f->delivered += fate == DELIVERED;
        f->lost += fate == LOST;
    }
}

static inline void check_payload(const um_block *block, uint32_t row)
{
    uint8_t payload[64];
    uint32_t count = block->sequence_numbers[row] - block->first_sequence_numbers[row] + 1;
    CHECK_EQ(um_block_copy(block, row, payload, sizeof payload), 4 * count);
    for (uint32_t i = 0; i < count; i++)
        CHECK_EQ(um_load_be32(payload + 4 * i), block->first_sequence_numbers[row] + i);
}

static inline void read_all(recovering *f)
{
    um_rows rows;
    while ((rows = um_queue_take(&f->queue, UINT32_MAX)).count > 0) {
        for (uint32_t row = rows.first; row < rows.first + rows.count; row++) {
            uint32_t kind = um_row_kind_of(rows.block->flags[row]), sqn = rows.block->sequence_numbers[row];
            uint32_t first = rows.block->first_sequence_numbers[row];
            f->begun += kind == UM_ROW_BEGINNING_OF_SESSION;
            f->ended += kind == UM_ROW_END_OF_SESSION;
            f->bursts += kind == UM_ROW_BURST_LOSS;
            f->cutoffs += kind == UM_ROW_NAK_CUTOFF;
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

static inline uint32_t write_message(const recovering *f, uint32_t i, uint8_t *out)
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
static inline void arrive(recovering *f, uint32_t i, bool retransmission)
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

/* Sends `count` more messages; if lost, none of them arrives. */
static inline void stream(recovering *f, uint32_t count, bool lost)
{
    for (uint32_t end = f->sent + count; f->sent < end;) {
        f->sent++;
        if (!lost)
            arrive(f, f->sent - 1, false);
    }
    read_all(f);
}

static inline void pass(recovering *f, int64_t ms)
{
    for (; ms > 0; ms--) {
        f->now_ns += NS_PER_MS;
        um_node_review_queues(&f->node, f->now_ns);
        um_node_tick(&f->node, f->now_ns);
        read_all(f);
    }
}

/* ---- the peer ---- */

static inline bool is_fetching(const recovering *f)
{
    return um_delivery_fetch_is_running(f->delivery);
}

static inline void answer(recovering *f, const uint8_t *data, uint32_t length)
{
    CHECK(f->from_peer_bytes + length <= FROM_PEER_BYTES);
    memcpy(f->from_peer + f->from_peer_bytes, data, length);
    f->from_peer_bytes += length;
}

static inline void answer_range(recovering *f, uint32_t low, uint32_t high)
{
    uint8_t out[UM_RECOVERY_RANGE_BYTES];
    answer(f, out, um_recovery_write_range(out, low, high, 0));
}

static inline void answer_message(recovering *f, uint32_t i)
{
    uint8_t out[256];
    uint32_t length = write_message(f, i, out);
    out[0] = UM_LBMC_RECOVERED;
    answer(f, out, length);
}

/* Makes the controller write requests; returns their indices. */
static inline uint32_t requests(recovering *f, uint32_t outstanding, uint32_t *indices, uint32_t max)
{
    uint32_t count = 0, length = um_fetch_protocol_request(f->delivery, 0, outstanding, f->to_peer, TO_PEER_BYTES);
    for (uint32_t at = 0; at < length; at += um_load_be16(f->to_peer + at + 2))
        for (uint32_t o = at + UM_LBMC_CONTROL_BYTES; o < at + um_load_be16(f->to_peer + at + 2);
             o += UM_RECOVERY_REQUEST_BYTES) {
            CHECK(count < max);
            CHECK_EQ(um_load_be32(f->to_peer + o + 12), TOPIC);
            indices[count++] = um_load_be32(f->to_peer + o + 16) - f->base;
        }
    return count;
}

/* Passes the peer's answers to the controller. */
static inline int64_t take(recovering *f)
{
    int64_t used = um_fetch_protocol_receive(f->session, f->delivery, f->from_peer, f->from_peer_bytes, f->now_ns);
    if (used > 0)
        memmove(f->from_peer, f->from_peer + used, f->from_peer_bytes -= (uint32_t)used);
    read_all(f);
    return used;
}

/* Plays an honest peer until the fetch is over. */
static inline void fetch_all(recovering *f)
{
    uint32_t indices[2048];
    for (uint32_t round = 0; round < 10000 && is_fetching(f); round++) {
        uint32_t count = requests(f, 100, indices, 2048);
        bool has_answered = false;
        for (uint32_t r = 0; r < count; r++) {
            if (indices[r] >= f->retained_from && indices[r] < f->sent)
                answer_message(f, indices[r]);
            else if (indices[r] < f->sent && !has_answered)
                answer_range(f, f->base + f->retained_from, f->base + f->sent - 1), has_answered = true;
        }
        while (f->from_peer_bytes > 0 && is_fetching(f))
            take(f);
        pass(f, 1);
    }
    f->from_peer_bytes = 0;
}

#endif
