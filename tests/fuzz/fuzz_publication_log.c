/* Operations on a source session: claims, commits, aborts, sends, flushes, NAKs, a link that refuses, a path that
 * changes, time that passes. Checked: every datagram is well-formed and no larger than the path allows, every message
 * in it was published, byte for byte, new ones once and in the order of the log; a retransmission repeats the original;
 * at the end everything published has been sent.
 */
#include "fuzz.h"

#include "core/foundation/internet.h"
#include "core/source/source.h"
#include "core/source/source_session.h"
#include "core/wire/status_message.h"

enum {
    MESSAGES_MAX = 4096,
    DATAGRAMS_MAX = 4096,
    CLAIMS_MAX = 8,
    OPERATIONS_MAX = 400,
};

/* A published frame: its content is derived from its sqn and length. */
typedef struct published {
    uint32_t length;
    bool sent;
} published;

typedef struct datagram {
    uint8_t *data;
    uint32_t length;
} datagram;

typedef struct world {
    um_link link;
    um_source_session session;
    um_rate_limits limits;
    um_source source;
    uint8_t explicit_memory[16384];
    uint8_t *memory;
    int64_t now_ns;
    uint32_t first_topic_sqn;
    published messages[MESSAGES_MAX]; /* by topic sqn */
    uint32_t message_count;
    uint32_t sent_count;
    datagram datagrams[DATAGRAMS_MAX]; /* by transport sqn */
    uint32_t datagram_count;
    uint32_t first_sqn;
    uint32_t space;
    uint32_t borrowed_count;
    uint32_t lent_max;
    int error;
    um_source_claim claims[CLAIMS_MAX];
    bool claimed[CLAIMS_MAX];
} world;

static world w;

static uint8_t content(uint32_t sqn, uint32_t offset)
{
    return (uint8_t)(sqn * 31 + offset);
}

static void check_message(const um_lbmc_message *message, bool again)
{
    uint32_t index = message->sqn - w.first_topic_sqn;
    REQUIRE(message->topic_index == 5 && index < w.message_count);
    published *known = &w.messages[index];
    REQUIRE(known->length == message->payload_length);
    REQUIRE(again == known->sent);
    if (!again)
        w.sent_count++;
    known->sent = true;
    for (uint32_t i = 0; i < message->payload_length; i++)
        REQUIRE(message->payload[i] == content(message->sqn, i));
}

static void check_data(const um_packet *packet, const uint8_t *data, uint32_t length)
{
    bool again = packet->flags & UM_LBTRM_FLAG_RETRANSMISSION;
    uint32_t index = packet->sqn - w.first_sqn;
    REQUIRE(!um_serial_before(packet->sqn, packet->trail));
    if (!again) {
        REQUIRE(index == w.datagram_count && index < DATAGRAMS_MAX);
        w.datagrams[w.datagram_count++] = (datagram){memcpy(malloc(length), data, length), length};
    }
    REQUIRE(index < w.datagram_count && w.datagrams[index].length == length);
    REQUIRE(memcmp(w.datagrams[index].data + UM_LBTRM_DATA_BYTES, data + UM_LBTRM_DATA_BYTES,
                   length - UM_LBTRM_DATA_BYTES) == 0);
    um_lbmc_message message;
    uint32_t message_length;
    for (uint32_t at = 0; at < packet->body_length; at += message_length) {
        REQUIRE(um_lbmc_decode(packet->body + at, packet->body_length - at, &message, &message_length) == UM_DGRAM_OK);
        if (message.type == UM_LBMC_MESSAGE)
            check_message(&message, again);
    }
    REQUIRE(packet->body_length > 0);
}

static uint32_t borrow_frames(um_link *link, uint8_t **pieces, uint32_t count)
{
    uint32_t borrowed = 0;
    for (; borrowed < count && w.borrowed_count < w.lent_max; borrowed++, w.borrowed_count++)
        pieces[borrowed] = fuzz_zeroed(link->borrow_bytes);
    return borrowed;
}

static void return_frames(um_link *link, uint8_t *const *pieces, uint32_t count)
{
    (void)link;
    REQUIRE(count <= w.borrowed_count);
    w.borrowed_count -= count;
    for (uint32_t i = 0; i < count; i++)
        free(pieces[i]);
}

static void take_lent(const um_tx *tx)
{
    um_borrowed_frame *borrowed = tx->borrowed;
    REQUIRE(tx->parts->data == borrowed->data && tx->part_count == 1 && tx->length >= borrowed->unsummed_bytes);
    uint64_t sum = um_internet_sum(borrowed->data + borrowed->unsummed_bytes, tx->length - borrowed->unsummed_bytes, 0);
    REQUIRE(um_internet_udp_checksum(sum) == um_internet_udp_checksum(borrowed->sum));
    return_frames(&w.link, &borrowed->data, 1);
    borrowed->data = NULL;
}

static int take(const um_tx *tx, bool oversize)
{
    static uint8_t data[UM_DATAGRAM_BYTES_MAX];
    uint32_t length = 0;
    if (w.error != 0)
        return w.error;
    if (w.space == 0)
        return 0;
    for (uint32_t i = 0; i < tx->part_count; i++) {
        REQUIRE(length + tx->parts[i].length <= tx->length && tx->length <= sizeof data);
        memcpy(data + length, tx->parts[i].data, tx->parts[i].length);
        length += tx->parts[i].length;
    }
    REQUIRE(length == tx->length);
    uint32_t most = atomic_load(&w.session.body_max_bytes) + UM_LBTRM_DATA_BYTES;
    REQUIRE(oversize == (length > most));
    um_packet packet;
    REQUIRE(um_lbtrm_decode(data, length, &packet) == UM_DGRAM_OK);
    if (packet.type == UM_LBTRM_DATA)
        check_data(&packet, data, length);
    if (tx->borrowed != NULL && !oversize)
        take_lent(tx);
    w.space--;
    return 1;
}

static int link_send(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    int taken = 0, result = 1;
    (void)link, (void)to;
    while ((uint32_t)taken < count && (result = take(&batch[taken], false)) == 1)
        taken++;
    return taken > 0 ? taken : result;
}

static int link_send_oversize(um_link *link, um_address to, const um_tx *tx)
{
    (void)link, (void)to;
    return take(tx, true);
}

static const um_link_ops ops = {
    .send = link_send, .send_oversize = link_send_oversize, .borrow = borrow_frames, .return_frames = return_frames};

static void open_world(fuzz_input *input)
{
    uint8_t *memory = w.memory;
    um_source_session_config config = {
        .session_id = 1,
        .nak_port = 2,
        .initial_sqn = 0u - take_u8(input),
        .initial_term_id = 0u - take_u8(input) % 4,
        .term_length = UM_LOG_TERM_BYTES_MIN,
        .window_bytes = 4096u << take_u8(input) % 5,
        .datagram_max_bytes = 500 + take_u16(input) % 2000,
        .coalesce_threshold = take_u8(input) % 20,
        .batch_minimum_bytes = take_u16(input) % 4096,
        .batch_interval_ns = 1000,
        .ignore_interval_ns = 500,
        .sm_minimum_interval_ns = 2000,
        .sm_maximum_interval_ns = 20000,
        .unblock_timeout_ns = 10000,
        .flow_policy = take_u8(input) % 2 ? UM_FLOW_MIN : UM_FLOW_NONE,
        .flow_receiver_timeout_ns = 50000,
    };
    memset(&w, 0, sizeof w);
    w.memory = memory ? memory : fuzz_zeroed(8 << 20);
    REQUIRE(um_source_session_footprint(&config) != 0 && um_source_session_footprint(&config) <= 8 << 20);
    memset(w.memory, 0, um_source_session_footprint(&config));
    w.link.ops = &ops;
    w.link.borrow_bytes = config.coalesce_threshold % 2 ? 1536 : 0;
    w.lent_max = config.coalesce_threshold * 8;
    w.space = UINT32_MAX;
    w.now_ns = 1000;
    w.first_sqn = config.initial_sqn;
    um_rate_limiter_init(&w.limits.data, take_u8(input) % 4 == 0 ? 80000000000 : 0, 1000, w.now_ns);
    um_rate_limiter_init(&w.limits.retransmit, take_u8(input) % 2 ? 8000000000 : 0, 1000, w.now_ns);
    um_source_session_init(&w.session, w.memory, &config, &w.link, &w.limits, w.now_ns);
    w.first_topic_sqn = 0u - take_u8(input);
    um_source_config source = {.topic_index = 5,
                               .initial_sqn = w.first_topic_sqn,
                               .tsni_interval_ns = 7000,
                               .tsni_threshold_ns = 100000,
                               .explicit_capacity = take_u16(input) % (sizeof w.explicit_memory + 1)};
    um_source_init(&w.source, w.explicit_memory, &source, &w.session);
}

/* The frame lengths of a message of `length` bytes in datagrams of body_max. */
static void note_published(int64_t last_sqn, uint32_t frames, const uint32_t *lengths)
{
    REQUIRE((uint32_t)last_sqn - w.first_topic_sqn == w.message_count + frames - 1);
    for (uint32_t i = 0; i < frames; i++)
        w.messages[w.message_count++] = (published){lengths[i], false};
}

static uint32_t next_sqn(void)
{
    return (uint32_t)atomic_load(&w.source.next_sqn);
}

static void send_message(uint32_t length, uint32_t flags)
{
    static uint8_t data[UM_LOG_TERM_BYTES_MIN / 16];
    uint32_t lengths[64], frames = 0;
    uint32_t body_max = atomic_load(&w.session.body_max_bytes);
    bool batch = flags & (UM_SEND_START_BATCH | UM_SEND_END_BATCH);
    uint32_t next = next_sqn();
    length %= sizeof data + 1;
    if (um_lbmc_overhead(false, batch, false) + length <= body_max) {
        lengths[frames++] = length;
    } else {
        uint32_t chunk = body_max - um_lbmc_overhead(true, batch, false);
        for (uint32_t left = length; left > 0; left -= lengths[frames++])
            lengths[frames] = left < chunk ? left : chunk;
    }
    if (w.message_count + frames > MESSAGES_MAX - 64)
        return;
    uint32_t at = 0;
    for (uint32_t i = 0; i < frames; i++)
        for (uint32_t j = 0; j < lengths[i]; j++)
            data[at++] = content(next + i, j);
    uint32_t actions = 0;
    int64_t result = um_source_send(&w.source, data, length, flags, w.now_ns, &actions);
    REQUIRE(result >= 0 || next_sqn() == next); /* UX-23 */
    if (result >= 0)
        note_published(result, frames, lengths);
}

static void send_many(fuzz_input *input)
{
    static uint8_t data[256 * 2600];
    uint32_t lengths[256], count = take_u8(input), next = next_sqn(), at = 0;
    bool large = take_u8(input) & 1; /* most fill a datagram */
    uint32_t most = atomic_load(&w.session.body_max_bytes) - UM_LBMC_HEADER_BYTES;
    if (w.message_count + count > MESSAGES_MAX - 64)
        return;
    for (uint32_t i = 0; i < count; i++) {
        lengths[i] = large && (i + count) % 5 != 0 ? most - i % 8 : (i * 7 + count) % 64;
        for (uint32_t j = 0; j < lengths[i]; j++)
            data[at++] = content(next + i, j);
    }
    um_messages messages = {.data = data, .lengths = lengths, .count = count};
    if (large)
        messages.staged = &w.session.staged;
    uint32_t actions = 0;
    uint64_t done_bytes;
    int64_t done =
        um_source_send_many(&w.source, &messages, take_u8(input) & UM_SEND_FLUSH, w.now_ns, &actions, &done_bytes);
    REQUIRE(done <= count);
    if (done > 0)
        note_published((int64_t)(uint32_t)(next + done - 1), (uint32_t)done, lengths);
    REQUIRE(next_sqn() == next + (done > 0 ? (uint32_t)done : 0));
}

static void claim(uint8_t slot, uint32_t length)
{
    if (w.claimed[slot] || w.message_count >= MESSAGES_MAX - 64)
        return;
    uint32_t body_max = atomic_load(&w.session.body_max_bytes);
    int result = um_source_claim_begin(&w.source, length, &w.claims[slot]);
    REQUIRE(result != 0 || UM_LBMC_HEADER_BYTES + length <= body_max);
    w.claimed[slot] = result == 0;
}

static void finish_claim(uint8_t slot, bool commit, uint32_t flags)
{
    if (!w.claimed[slot])
        return;
    um_source_claim *c = &w.claims[slot];
    uint32_t actions = 0, next = next_sqn();
    w.claimed[slot] = false;
    /* A frame that is no longer borrowed was unblocked: its bytes must not be written. */
    bool borrowed =
        um_frame_kind_of(atomic_load(um_frame_state_of(&w.session.log, c->claim.frames))) == UM_FRAME_BORROWED;
    if (!commit) {
        um_source_claim_abort(&w.source, c, &actions);
        return;
    }
    for (uint32_t i = 0; borrowed && i < c->length; i++)
        c->payload[i] = content(next, i);
    int64_t result = um_source_claim_commit(&w.source, c, flags, w.now_ns, &actions);
    REQUIRE(borrowed ? result >= 0 : result == UM_CLOSED);
    REQUIRE(next_sqn() == next + borrowed);
    if (borrowed)
        note_published(result, 1, &c->length);
}

static void nak(fuzz_input *input)
{
    uint8_t datagram[UM_LBTRM_NAK_BYTES + 4 * 64];
    uint32_t sqns[64], count = take_u8(input) % 64, lowest = take_distance(input);
    for (uint32_t i = 0; i < count; i++)
        sqns[i] = w.session.next_sqn - lowest - take_distance(input);
    uint32_t length = um_lbtrm_write_nak(datagram, 1, 2, sqns, count);
    BOUNDED(um_source_session_on_control(&w.session, um_address_of_v4(0x0a000002, 40000), datagram, length, w.now_ns));
}

static void send_status(fuzz_input *input)
{
    uint8_t datagram[UM_STATUS_DATAGRAM_BYTES_MAX];
    um_status_message status = {.receiver_id = take_u8(input) % 4,
                                .next_sqn = w.session.next_sqn - take_distance(input),
                                .window_bytes = take_u16(input) * 2u,
                                .flags = take_u8(input) & 3};
    um_source_session_on_control(&w.session, um_address_of_v4(0x0a000002, 40000), datagram,
                                 um_status_encode(datagram, 1, 2, &status), w.now_ns);
}

static void check_invariants(void)
{
    um_publication_log *log = &w.session.log;
    int64_t position = atomic_load(&w.session.sender_position), tail = um_log_tail(log);
    int64_t limit = atomic_load(&log->publication_limit);
    REQUIRE(position <= tail);
    REQUIRE(limit <= position + log->term_length / 2 || !atomic_load(&log->is_connected));
    REQUIRE(atomic_load(&log->writable_end) == log->clean_position + 3 * (int64_t)log->term_length);
    REQUIRE(tail <= atomic_load(&log->writable_end));
    REQUIRE(log->clean_position <= position - (int64_t)log->term_length || log->clean_position == 0);
    REQUIRE(w.session.window_used_bytes <= w.session.config.window_bytes ||
            w.session.next_sqn - w.session.trail_sqn <= 1);
    REQUIRE(w.session.retransmit_count <= UM_RETRANSMIT_QUEUE_MAX);
    REQUIRE(w.session.trail_sqn == w.session.next_sqn ||
            um_source_session_sent(&w.session, w.session.trail_sqn)->position >= log->clean_position);
}

static void operate(fuzz_input *input)
{
    uint8_t operation = take_u8(input);
    uint32_t actions = 0;
    switch (operation % 16) {
    case 0:
    case 1:
        send_message(take_u8(input), operation & 0x80 ? UM_SEND_FLUSH : 0);
        break;
    case 2:
        send_message(take_u16(input), (operation >> 4) & 7);
        break;
    case 3:
        send_many(input);
        break;
    case 4:
        claim(operation >> 5, take_u16(input) % 2600);
        break;
    case 5:
        finish_claim(operation >> 5, true, operation & 0x10 ? UM_SEND_FLUSH : 0);
        break;
    case 6:
        finish_claim(operation >> 5, false, 0);
        break;
    case 7:
        um_source_flush(&w.source, w.now_ns, &actions);
        break;
    case 8:
    case 9:
        um_source_session_send(&w.session, w.now_ns, 1 + take_u8(input));
        break;
    case 10:
        nak(input);
        break;
    case 11:
        w.now_ns += take_u16(input);
        BOUNDED(REQUIRE(um_source_session_tick(&w.session, w.now_ns) >= w.now_ns));
        break;
    case 12:
        send_status(input);
        break;
    case 13:
        um_source_session_set_datagram_max(&w.session, take_u16(input) % 2600);
        break;
    case 14:
        w.space = operation & 0x80 ? UINT32_MAX : take_u8(input);
        w.error = operation & 0x40 ? -ENETDOWN : 0;
        break;
    default: {
        fuzz_input raw = take_bytes(input, take_u8(input));
        um_source_session_on_control(&w.session, um_address_of_v4(0x0a000002, 40000), raw.at, (uint32_t)raw.left,
                                     w.now_ns);
    }
    }
    check_invariants();
}

/* With an unlimited receiver, a link that accepts everything and no open claim, everything must be sent. */
static void finish(void)
{
    w.space = UINT32_MAX;
    w.error = 0;
    for (uint8_t slot = 0; slot < CLAIMS_MAX; slot++)
        if (w.claimed[slot] && slot % 2)
            finish_claim(slot, true, 0);
    for (uint32_t i = 0; i < 2000 && w.sent_count < w.message_count; i++) {
        uint8_t datagram[UM_STATUS_DATAGRAM_BYTES_MAX];
        uint32_t actions = 0;
        um_status_message status = {.receiver_id = 1, .next_sqn = w.session.next_sqn, .window_bytes = 1u << 31};
        um_source_session_on_control(&w.session, um_address_of_v4(0x0a000002, 40000), datagram,
                                     um_status_encode(datagram, 1, 2, &status), w.now_ns);
        um_source_flush(&w.source, w.now_ns, &actions);
        w.now_ns += 1000;
        um_source_session_tick(&w.session, w.now_ns);
        check_invariants();
    }
    REQUIRE(w.sent_count == w.message_count);
    um_staged_drop_sent(&w.session.staged, INT64_MAX);
    REQUIRE(w.borrowed_count == 0);
    for (uint32_t i = 0; i < w.datagram_count; i++)
        free(w.datagrams[i].data);
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
