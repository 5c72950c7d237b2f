/* Datagrams at the NAK port of a session that has sent data: raw bytes, and NAKs and status messages with chosen
 * fields. Each call is bounded, sent datagrams are well-formed, and retransmissions repeat datagrams sent before.
 */
#include "fuzz.h"

#include "core/source/source.h"
#include "core/source/source_session.h"
#include "core/wire/status_message.h"

enum { SENT = 60, CALLS_MAX = 64 };

typedef struct world {
    um_link link;
    um_source_session session;
    um_rate_limits limits;
    um_source source;
    uint8_t *memory;
    uint32_t first_sqn;
    uint32_t sent_count;
} world;

static world w;

static int link_send(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    (void)link, (void)to;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t data[UM_LBTRM_NCF_BYTES + 4 * UM_NCF_LIST_MAX + 1500];
        uint32_t length = 0;
        for (uint32_t p = 0; p < batch[i].part_count; p++) {
            REQUIRE(length + batch[i].parts[p].length <= sizeof data);
            memcpy(data + length, batch[i].parts[p].data, batch[i].parts[p].length);
            length += batch[i].parts[p].length;
        }
        um_packet packet;
        REQUIRE(length == batch[i].length && length <= 1472);
        REQUIRE(um_lbtrm_decode(data, length, &packet) == UM_DGRAM_OK);
        REQUIRE(packet.type != UM_LBTRM_NAK);
        if (packet.type == UM_LBTRM_DATA) {
            bool again = packet.flags & UM_LBTRM_FLAG_RETRANSMISSION;
            REQUIRE(again ? packet.sqn - w.first_sqn < w.sent_count : packet.sqn - w.first_sqn == w.sent_count);
            w.sent_count += !again;
        }
    }
    return (int)count;
}

static int link_send_oversize(um_link *link, um_address to, const um_tx *tx)
{
    (void)link, (void)to, (void)tx;
    REQUIRE(!"oversize");
    return 0;
}

static const um_link_ops ops = {.send = link_send, .send_oversize = link_send_oversize};

static void open_world(fuzz_input *input)
{
    uint8_t choices = take_u8(input);
    um_source_session_config config = {
        .session_id = 0x5eed0001,
        .nak_port = 0x3836,
        .initial_sqn = choices & 1 ? UINT32_MAX - SENT / 2 : 0,
        .term_length = UM_LOG_TERM_BYTES_MIN,
        .window_bytes = choices & 2 ? 4096 : UM_LOG_TERM_BYTES_MIN,
        .datagram_max_bytes = 1472,
        .coalesce_threshold = 8,
        .batch_interval_ns = 1000,
        .ignore_interval_ns = 500,
        .sm_minimum_interval_ns = 2000,
        .adaptive_timers = 7,
        .sm_maximum_interval_ns = 20000,
        .unblock_timeout_ns = 10000,
        .flow_policy = choices >> 2 & 3,
        .flow_receiver_timeout_ns = 50000,
    };
    uint8_t *memory = w.memory;
    size_t bytes = um_source_session_footprint(&config);
    memset(&w, 0, sizeof w);
    w.memory = memory ? memory : fuzz_zeroed(bytes);
    memset(w.memory, 0, bytes);
    w.link.ops = &ops;
    w.first_sqn = config.initial_sqn;
    um_rate_limiter_init(&w.limits.data, 0, 1000, 0);
    um_rate_limiter_init(&w.limits.retransmit, choices & 16 ? 800000000 : 0, 1000, 0);
    um_source_session_init(&w.session, w.memory, &config, &w.link, &w.limits, 0);
    um_source_config source = {.topic_index = 1};
    um_source_init(&w.source, NULL, &source, &w.session);
    uint8_t datagram[UM_STATUS_DATAGRAM_BYTES_MAX];
    um_status_message status = {.receiver_id = 1, .next_sqn = w.first_sqn, .window_bytes = 1 << 20};
    um_source_session_on_control(&w.session, um_address_of_v4(0x0a000002, 40000), datagram,
                                 um_status_encode(datagram, 0x5eed0001, 0x3836, &status), 0);
    for (uint32_t i = 0; i < SENT; i++) {
        uint8_t data[1024] = {0};
        uint32_t actions = 0;
        um_source_send(&w.source, data, i * 17, UM_SEND_FLUSH, 0, &actions);
        um_source_session_send(&w.session, 0, 64);
    }
}

static void call(const uint8_t *data, uint32_t length, int64_t now_ns)
{
    BOUNDED(um_source_session_on_control(&w.session, um_address_of_v4(0x0a000002, 40000), data, length, now_ns));
    REQUIRE(w.session.retransmit_count <= UM_RETRANSMIT_QUEUE_MAX);
    REQUIRE(w.session.flow.receiver_count <= UM_FLOW_RECEIVERS_MAX);
    REQUIRE(w.session.next_sqn - w.first_sqn == w.sent_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t datagram[UM_DATAGRAM_BYTES_MAX];
    fuzz_input input = {data, size};
    int64_t now_ns = 0;
    open_world(&input);
    for (uint32_t i = 0; i < CALLS_MAX && input.left > 0; i++) {
        uint8_t choice = take_u8(&input);
        uint32_t length = 0;
        if (choice % 4 == 0) { /* a NAK of a run, whose length is a multiple of the choice */
            uint32_t count = take_u16(&input) % 16300, first = w.session.next_sqn - take_distance(&input);
            um_lbtrm_write_nak(datagram, 0x5eed0001, 0x3836, NULL, 0);
            um_store_be16(datagram + 8, (uint16_t)count);
            for (uint32_t n = 0; n < count; n++)
                um_store_be32(datagram + UM_LBTRM_NAK_BYTES + 4 * n, first + n % (1 + choice));
            length = UM_LBTRM_NAK_BYTES + 4 * count;
        } else if (choice % 4 == 1) {
            um_status_message status = {.receiver_id = take_u16(&input),
                                        .next_sqn = w.session.next_sqn - take_distance(&input),
                                        .window_bytes = take_u32(&input),
                                        .group_tag = take_u8(&input),
                                        .flags = take_u8(&input)};
            length = um_status_encode(datagram, 0x5eed0001, 0x3836, &status);
        } else if (choice % 4 == 2) {
            fuzz_input raw = take_bytes(&input, take_u16(&input));
            call(raw.at, (uint32_t)raw.left, now_ns);
            continue;
        } else {
            now_ns += take_u16(&input);
            BOUNDED(um_source_session_tick(&w.session, now_ns));
            continue;
        }
        call(datagram, length, now_ns);
    }
    return 0;
}
