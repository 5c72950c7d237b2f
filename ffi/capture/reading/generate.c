#include "capture/reading/generate.h"

#include "core/foundation/address.h"
#include "core/foundation/internet.h"
#include "core/wire/lbmc.h"

enum {
    RECORD_BYTES = 16,
    HEADERS_BYTES = UM_ETHERNET_HEADER_BYTES + UM_IPV4_UDP_HEADER_BYTES,
    NAK_PORT = 14390,
    GROUP_PORT = 14400,
    RECEIVER_PORT = 14395,
    GROUPS = 5,
    WINDOW_DATAGRAMS = 16384, /* how far the trail is behind */
};

#define SESSION_IP UINT32_C(0x0a000001)
#define RECEIVER_IP UINT32_C(0x0a010001)
#define GROUP_IP UINT32_C(0xe00a0a0a)
#define SESSION_ID UINT32_C(0x5eed0001)

enum state { WILL_NAK, WILL_RETRANSMIT, WILL_DELAY, WILL_REFUSE };

/* The output buffers of a step. */
typedef struct output {
    uint8_t *at;
    um_generate_loss *losses;
    uint32_t loss_count;
    uint64_t wanted_packets;
} output;

static bool draw_chance(um_generator *generator, double probability)
{
    return (double)(um_random_next(&generator->random) >> 11) * 0x1p-53 < probability;
}

static bool is_probability(double value)
{
    return value >= 0.0 && value <= 1.0;
}

int um_generator_init(um_generator *generator, const um_generate_config *config)
{
    uint64_t frame_bytes =
        HEADERS_BYTES + UM_LBTRM_DATA_BYTES +
        (uint64_t)config->messages_per_datagram * ((uint64_t)UM_LBMC_HEADER_BYTES + config->message_bytes);
    if (config->session_count - 1 >= UM_GENERATE_SESSIONS_MAX ||
        config->receiver_count - 1 >= UM_GENERATE_RECEIVERS_MAX || config->topic_count == 0 ||
        config->messages_per_datagram == 0 || frame_bytes > UM_GENERATE_FRAME_BYTES_MAX ||
        config->at_receiver >= (int32_t)config->receiver_count || config->gap_ns < 1 || config->start_ns < 0 ||
        config->backoff_min_ns < 0 || config->backoff_max_ns < config->backoff_min_ns || config->response_ns < 0 ||
        config->delay_ns < 0)
        return -EINVAL;
    if (!is_probability(config->loss) || !is_probability(config->run_more) || !is_probability(config->shared) ||
        !is_probability(config->delayed) || !is_probability(config->refused))
        return -EINVAL;
    memset(generator, 0, offsetof(um_generator, pending));
    generator->config = *config;
    generator->random.state = config->seed;
    generator->data_due_ns = config->start_ns;
    generator->frame_bytes = (uint32_t)frame_bytes;
    return 0;
}

static int64_t data_time_ns(const um_generate_config *config, uint32_t session, uint32_t sqn)
{
    return config->start_ns + ((int64_t)sqn * config->session_count + session) * config->gap_ns;
}

/* The heap of pending events. */

static void sift_up(um_generator *generator, uint32_t at)
{
    um_generate_pending *heap = generator->pending;
    um_generate_pending moving = heap[at];
    for (; at > 0 && heap[(at - 1) / 2].due_ns > moving.due_ns; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = moving;
}

static void sift_down(um_generator *generator)
{
    um_generate_pending *heap = generator->pending;
    um_generate_pending moving = heap[0];
    uint32_t at = 0, count = generator->pending_count;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && heap[child + 1].due_ns < heap[child].due_ns)
            child++;
        if (heap[child].due_ns >= moving.due_ns)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void add_pending(um_generator *generator, const um_generate_pending *pending)
{
    generator->pending[generator->pending_count] = *pending;
    sift_up(generator, generator->pending_count++);
}

static void drop_first(um_generator *generator)
{
    generator->pending[0] = generator->pending[--generator->pending_count];
    if (generator->pending_count > 0)
        sift_down(generator);
}

static void put_off_first(um_generator *generator, enum state state, int64_t due_ns)
{
    generator->pending[0].state = (uint8_t)state;
    generator->pending[0].due_ns = due_ns;
    sift_down(generator);
}

/* Frames */

static void store_le32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}

static void write_headers(uint8_t *frame, const um_generator *generator, um_address source, um_address destination,
                          uint32_t datagram_bytes)
{
    bool multicast = um_ip_is_multicast(destination.ip);
    um_store_be16(frame, multicast ? 0x0100 : 0x0200);
    um_store_be32(frame + 2, multicast ? 0x5e000000 | (um_ip_v4(destination.ip) & 0x7fffff) : um_ip_v4(destination.ip));
    um_store_be16(frame + 6, 0x0200);
    um_store_be32(frame + 8, um_ip_v4(source.ip));
    um_store_be16(frame + UM_ETHERTYPE_AT, UM_ETHERTYPE_IPV4);
    uint8_t *ip = frame + UM_ETHERNET_HEADER_BYTES;
    um_store_be16(ip, UM_IPV4_VERSION_AND_LENGTH << 8);
    um_store_be16(ip + UM_IPV4_LENGTH_AT, (uint16_t)(UM_IPV4_UDP_HEADER_BYTES + datagram_bytes));
    um_store_be16(ip + UM_IPV4_IDENTIFICATION_AT, (uint16_t)generator->counts.packet_count);
    um_store_be16(ip + UM_IPV4_FRAGMENT_AT, UM_IPV4_DONT_FRAGMENT);
    ip[UM_IPV4_TTL_AT] = 16;
    ip[UM_IPV4_PROTOCOL_AT] = UM_PROTOCOL_UDP;
    um_store_be16(ip + UM_IPV4_CHECKSUM_AT, 0);
    um_store_be32(ip + UM_IPV4_FROM_AT, um_ip_v4(source.ip));
    um_store_be32(ip + UM_IPV4_TO_AT, um_ip_v4(destination.ip));
    uint16_t checksum = um_internet_checksum(um_internet_sum(ip, UM_IPV4_HEADER_BYTES, 0));
    memcpy(ip + UM_IPV4_CHECKSUM_AT, &checksum, sizeof checksum);
    uint8_t *udp = ip + UM_IPV4_HEADER_BYTES;
    um_store_be16(udp, source.port);
    um_store_be16(udp + UM_UDP_TO_AT, destination.port);
    um_store_be16(udp + UM_UDP_LENGTH_AT, (uint16_t)(UM_UDP_HEADER_BYTES + datagram_bytes));
    um_store_be16(udp + UM_UDP_CHECKSUM_AT, 0);
}

/* Completes the record whose frame was written behind out->at. */
static void finish_record(um_generator *generator, output *out, int64_t time_ns, uint32_t frame_bytes)
{
    uint32_t snap_bytes = generator->config.snap_bytes;
    uint32_t captured = snap_bytes != 0 && snap_bytes < frame_bytes ? snap_bytes : frame_bytes;
    store_le32(out->at, (uint32_t)(time_ns / 1000000000));
    store_le32(out->at + 4, (uint32_t)(time_ns % 1000000000));
    store_le32(out->at + 8, captured);
    store_le32(out->at + 12, frame_bytes);
    out->at += RECORD_BYTES + captured;
    generator->counts.packet_count++;
}

static um_address source_of(uint32_t session)
{
    return um_address_of_v4(SESSION_IP + session, NAK_PORT);
}

static um_address group_of(uint32_t session)
{
    return um_address_of_v4(GROUP_IP + session % GROUPS, GROUP_PORT);
}

static void write_messages(const um_generate_config *config, uint8_t *at, const uint8_t *end, uint32_t sqn)
{
    uint64_t message = (uint64_t)sqn * config->messages_per_datagram;
    for (uint32_t i = 0; i < config->messages_per_datagram && at < end; i++, message++) {
        um_lbmc_layout layout = {.topic_index = 1 + (uint32_t)(message % config->topic_count),
                                 .sqn = (uint32_t)(message / config->topic_count),
                                 .payload_length = config->message_bytes};
        at = um_lbmc_write_message(at, &layout);
        uint32_t filled = at >= end ? 0 : (uint32_t)(end - at);
        filled = filled < config->message_bytes ? filled : config->message_bytes;
        memset(at, (int)(sqn & 0xff), filled);
        at += config->message_bytes;
    }
}

static void capture_data(um_generator *generator, output *out, int64_t time_ns, uint32_t session, uint32_t sqn,
                         bool retransmission)
{
    uint8_t *frame = out->at + RECORD_BYTES;
    uint32_t frame_bytes = generator->frame_bytes, snap_bytes = generator->config.snap_bytes;
    uint32_t written = snap_bytes != 0 && snap_bytes < frame_bytes ? snap_bytes : frame_bytes;
    write_headers(frame, generator, source_of(session), group_of(session), frame_bytes - HEADERS_BYTES);
    um_lbtrm_write_data(frame + HEADERS_BYTES, SESSION_ID + session, NAK_PORT, sqn,
                        sqn < WINDOW_DATAGRAMS ? 0 : sqn - WINDOW_DATAGRAMS + 1, retransmission);
    write_messages(&generator->config, frame + HEADERS_BYTES + UM_LBTRM_DATA_BYTES, frame + written, sqn);
    finish_record(generator, out, time_ns, frame_bytes);
    if (retransmission)
        generator->counts.retransmission_count++;
    else
        generator->counts.data_count++;
}

static uint32_t list_of(const um_generate_pending *pending, uint32_t *sqns)
{
    uint32_t count = 0;
    for (uint64_t mask = pending->mask; mask != 0; mask &= mask - 1)
        sqns[count++] = pending->first_sqn + (uint32_t)__builtin_ctzll(mask);
    return count;
}

static void capture_nak(um_generator *generator, output *out, const um_generate_pending *pending)
{
    uint32_t sqns[UM_GENERATE_RUN_MAX];
    uint32_t count = list_of(pending, sqns);
    uint8_t *frame = out->at + RECORD_BYTES;
    um_address receiver = um_address_of_v4(RECEIVER_IP + pending->receiver, RECEIVER_PORT);
    uint32_t bytes = um_lbtrm_write_nak(frame + HEADERS_BYTES, SESSION_ID + pending->session, NAK_PORT, sqns, count);
    write_headers(frame, generator, receiver, source_of(pending->session), bytes);
    finish_record(generator, out, pending->due_ns, HEADERS_BYTES + bytes);
    generator->counts.nak_count++;
}

static void capture_ncf(um_generator *generator, output *out, const um_generate_pending *pending,
                        enum um_ncf_reason reason)
{
    uint32_t sqns[UM_GENERATE_RUN_MAX];
    uint32_t count = list_of(pending, sqns);
    uint8_t *frame = out->at + RECORD_BYTES;
    uint32_t bytes =
        um_lbtrm_write_ncf(frame + HEADERS_BYTES, SESSION_ID + pending->session, NAK_PORT, 0, reason, sqns, count);
    write_headers(frame, generator, source_of(pending->session), group_of(pending->session), bytes);
    finish_record(generator, out, pending->due_ns, HEADERS_BYTES + bytes);
    generator->counts.ncf_count++;
}

/* Losses */

static void report_loss(const um_generator *generator, um_generate_loss *loss, const um_generate_pending *pending,
                        uint32_t bit, enum um_generate_outcome outcome, int64_t end_ns)
{
    uint32_t sqn = pending->first_sqn + bit;
    *loss = (um_generate_loss){
        .session = pending->session,
        .receiver = pending->receiver,
        .sqn = sqn,
        .nak_count = pending->nak_count,
        .lost_ns = data_time_ns(&generator->config, pending->session, sqn),
        .first_nak_ns = pending->nak_count > 0 ? pending->first_nak_ns : -1,
        .end_ns = end_ns,
        .outcome = outcome,
    };
}

static void report_run(um_generator *generator, output *out, const um_generate_pending *pending,
                       enum um_generate_outcome outcome)
{
    for (uint64_t mask = pending->mask; mask != 0; mask &= mask - 1)
        report_loss(generator, &out->losses[out->loss_count++], pending, (uint32_t)__builtin_ctzll(mask), outcome,
                    pending->due_ns);
}

static int64_t backoff_ns(um_generator *generator)
{
    const um_generate_config *config = &generator->config;
    return config->backoff_min_ns +
           (int64_t)um_random_below(&generator->random,
                                    (uint64_t)(config->backoff_max_ns - config->backoff_min_ns + 1));
}

/* A retransmission reaches every receiver except those that lose it again. */
static bool retransmit_one(um_generator *generator, output *out, uint32_t session, uint32_t sqn, int64_t now_ns)
{
    bool seen = generator->config.at_receiver < 0 || !draw_chance(generator, generator->config.loss);
    for (uint32_t i = 0; i < generator->pending_count; i++) {
        um_generate_pending *pending = &generator->pending[i];
        uint32_t bit = sqn - pending->first_sqn;
        if (pending->session != session || bit >= UM_GENERATE_RUN_MAX || !(pending->mask & UINT64_C(1) << bit))
            continue;
        bool here = pending->receiver == generator->config.at_receiver;
        if (here ? !seen : draw_chance(generator, generator->config.loss))
            continue;
        report_loss(generator, &out->losses[out->loss_count++], pending, bit, UM_GENERATE_RECOVERED, now_ns);
        pending->mask &= ~(UINT64_C(1) << bit);
    }
    return seen;
}

static void retransmit(um_generator *generator, output *out)
{
    um_generate_pending lost = generator->pending[0];
    for (uint64_t mask = lost.mask; mask != 0; mask &= mask - 1) {
        if (generator->counts.packet_count >= out->wanted_packets)
            return;
        uint32_t sqn = lost.first_sqn + (uint32_t)__builtin_ctzll(mask);
        if (retransmit_one(generator, out, lost.session, sqn, lost.due_ns))
            capture_data(generator, out, lost.due_ns, lost.session, sqn, true);
    }
    if (generator->pending[0].mask == 0)
        drop_first(generator);
    else
        put_off_first(generator, WILL_NAK, lost.due_ns + 1 + backoff_ns(generator));
}

static void send_nak(um_generator *generator, output *out)
{
    um_generate_pending *pending = &generator->pending[0];
    const um_generate_config *config = &generator->config;
    if (pending->nak_count == UM_GENERATE_NAKS_MAX) {
        report_run(generator, out, pending, UM_GENERATE_GIVEN_UP);
        drop_first(generator);
        return;
    }
    if (pending->nak_count++ == 0)
        pending->first_nak_ns = pending->due_ns;
    if (config->at_receiver < 0 || config->at_receiver == pending->receiver)
        capture_nak(generator, out, pending);
    enum state response = draw_chance(generator, config->refused)   ? WILL_REFUSE
                          : draw_chance(generator, config->delayed) ? WILL_DELAY
                                                                    : WILL_RETRANSMIT;
    put_off_first(generator, response, pending->due_ns + config->response_ns);
}

static void take_first(um_generator *generator, output *out)
{
    um_generate_pending *pending = &generator->pending[0];
    if (pending->mask == 0) {
        drop_first(generator);
        return;
    }
    switch (pending->state) {
    case WILL_NAK:
        send_nak(generator, out);
        break;
    case WILL_RETRANSMIT:
        retransmit(generator, out);
        break;
    case WILL_DELAY:
        capture_ncf(generator, out, pending, UM_NCF_RX_DELAY);
        put_off_first(generator, WILL_RETRANSMIT, pending->due_ns + generator->config.delay_ns);
        break;
    default:
        capture_ncf(generator, out, pending, UM_NCF_NO_RETRY);
        report_run(generator, out, pending, UM_GENERATE_REFUSED);
        drop_first(generator);
        break;
    }
}

/* New datagrams */

static void lose_run(um_generator *generator, uint32_t session, uint32_t receiver, uint32_t sqn, uint32_t length)
{
    if (generator->pending_count == UM_GENERATE_PENDING_MAX || generator->run_ends[session][receiver] > sqn)
        return;
    generator->run_ends[session][receiver] = sqn + length;
    um_generate_pending pending = {
        .mask = length == 64 ? UINT64_MAX : (UINT64_C(1) << length) - 1,
        .first_sqn = sqn,
        .session = (uint16_t)session,
        .receiver = (uint16_t)receiver,
        .state = WILL_NAK,
        /* The gap shows when the datagram behind it arrives. */
        .due_ns = data_time_ns(&generator->config, session, sqn + length) + backoff_ns(generator),
    };
    add_pending(generator, &pending);
}

static void lose(um_generator *generator, uint32_t session, uint32_t receiver, uint32_t sqn)
{
    const um_generate_config *config = &generator->config;
    uint32_t length = 1;
    while (length < UM_GENERATE_RUN_MAX && draw_chance(generator, config->run_more))
        length++;
    if (!draw_chance(generator, config->shared)) {
        lose_run(generator, session, receiver, sqn, length);
        return;
    }
    for (uint32_t other = 0; other < config->receiver_count; other++)
        lose_run(generator, session, other, sqn, length);
}

static void send_next(um_generator *generator, output *out)
{
    const um_generate_config *config = &generator->config;
    uint32_t session = (uint32_t)(generator->data_sequence % config->session_count);
    uint32_t sqn = (uint32_t)(generator->data_sequence / config->session_count);
    for (uint32_t receiver = 0; receiver < config->receiver_count; receiver++) {
        if (draw_chance(generator, config->loss))
            lose(generator, session, receiver, sqn);
    }
    if (config->at_receiver < 0 || generator->run_ends[session][config->at_receiver] <= sqn)
        capture_data(generator, out, generator->data_due_ns, session, sqn, false);
    generator->data_sequence++;
    generator->data_due_ns += config->gap_ns;
}

void um_generator_run(um_generator *generator, uint64_t packet_count, uint8_t *out, uint64_t out_bytes,
                      um_generate_loss *losses, uint32_t loss_capacity, uint64_t *written_bytes, uint32_t *loss_count)
{
    output to = {.at = out, .losses = losses, .wanted_packets = packet_count};
    while (generator->counts.packet_count < packet_count &&
           out_bytes - (uint64_t)(to.at - out) >= UM_GENERATE_STEP_BYTES_MAX &&
           loss_capacity - to.loss_count >= UM_GENERATE_STEP_LOSSES_MAX) {
        if (generator->pending_count > 0 && generator->pending[0].due_ns <= generator->data_due_ns)
            take_first(generator, &to);
        else
            send_next(generator, &to);
    }
    *written_bytes = (uint64_t)(to.at - out);
    *loss_count = to.loss_count;
}

/* If the end of the capture cuts a run, only the sent datagrams were lost. */
static uint64_t sent_part(const um_generator *generator, const um_generate_pending *pending)
{
    uint64_t sent = 0;
    for (uint64_t mask = pending->mask; mask != 0; mask &= mask - 1) {
        uint32_t bit = (uint32_t)__builtin_ctzll(mask);
        if (data_time_ns(&generator->config, pending->session, pending->first_sqn + bit) < generator->data_due_ns)
            sent |= UINT64_C(1) << bit;
    }
    return sent;
}

uint32_t um_generator_open_losses(um_generator *generator, um_generate_loss *losses, uint32_t capacity)
{
    uint32_t count = 0;
    while (generator->pending_count > 0 && capacity - count >= UM_GENERATE_RUN_MAX) {
        const um_generate_pending *pending = &generator->pending[--generator->pending_count];
        for (uint64_t mask = sent_part(generator, pending); mask != 0; mask &= mask - 1)
            report_loss(generator, &losses[count++], pending, (uint32_t)__builtin_ctzll(mask), UM_GENERATE_OPEN, -1);
    }
    return count;
}
