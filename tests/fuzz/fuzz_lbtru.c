/* An LBT-RU source with clients, other addresses and forgers: raw bytes, and every packet type with chosen fields, from
 * a few addresses. Data is sent only to clients, each client gets every sqn once and in order, responses to others are
 * at most 12 bytes longer than the datagram they answer, and the table stays bounded.
 */
#include "fuzz.h"

#include "core/source/client_service.h"
#include "core/source/source.h"
#include "core/source/source_session.h"
#include "core/wire/interest_message.h"
#include "core/wire/status_message.h"

enum { SESSION = 0x5eed00aa, ADDRESSES = 8, CAPACITY = 4, CALLS_MAX = 200, MESSAGES_MAX = 400 };

typedef struct world {
    um_link link;
    um_source_session session;
    um_rate_limits limits;
    um_source source;
    uint8_t *memory;
    uint32_t space;
    uint32_t given_bytes; /* length of the datagram given to the session */
    uint32_t messages;
    uint32_t next_sqn[ADDRESSES]; /* next new sqn for each address */
    bool is_client[ADDRESSES];    /* a client since next_sqn */
} world;

static world w;

static um_address address_of(uint32_t i)
{
    return um_address_of_v4(0x0a000002 + i % ADDRESSES, 14360);
}

/* Its next datagrams were passed over, or the report repeats earlier ones in response to a NAK. */
static void check_passed(uint32_t host, const um_filter_report *report)
{
    REQUIRE(w.session.config.has_filter && !um_serial_before(w.session.next_sqn, report->first_sqn + report->count));
    uint32_t end = report->first_sqn + report->count;
    if (!um_serial_before(w.next_sqn[host], report->first_sqn) && um_serial_before(w.next_sqn[host], end))
        w.next_sqn[host] = end;
}

static void check_sent(um_address to, const um_tx *tx)
{
    uint8_t data[2048];
    uint32_t length = 0, host = um_ip_v4(to.ip) - 0x0a000002;
    um_packet packet;
    for (uint32_t p = 0; p < tx->part_count; p++) {
        REQUIRE(length + tx->parts[p].length <= sizeof data);
        memcpy(data + length, tx->parts[p].data, tx->parts[p].length);
        length += tx->parts[p].length;
    }
    REQUIRE(length == tx->length && length <= 1472 && host < ADDRESSES);
    REQUIRE(um_lbtru_decode(data, length, &packet) == UM_DGRAM_OK);
    if (packet.type == UM_LBTRU_RST || packet.flags == UM_LBTRU_FLAG_SYN) {
        REQUIRE(length <= w.given_bytes + 12); /* to an address that may be forged */
        return;
    }
    REQUIRE(packet.type == UM_LBTRM_DATA || packet.type == UM_LBTRM_SM || packet.type == UM_LBTRM_NCF);
    REQUIRE(um_client_map_find(&w.session.clients, to) != NULL);
    um_filter_report report;
    if (packet.type == UM_LBTRM_DATA && um_filter_report_decode(&packet, &report)) {
        check_passed(host, &report);
        return;
    }
    if (packet.type != UM_LBTRM_DATA || packet.flags & UM_LBTRM_FLAG_RETRANSMISSION)
        return;
    REQUIRE(!w.is_client[host] || (!um_serial_before(w.next_sqn[host], packet.sqn - packet.passed) &&
                                   !um_serial_before(packet.sqn, w.next_sqn[host])));
    w.is_client[host] = true;
    w.next_sqn[host] = packet.sqn + 1;
}

static int link_send(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    (void)link;
    uint32_t sent = 0;
    for (; sent < count && w.space > 0; sent++, w.space--)
        check_sent(to, &batch[sent]);
    return (int)sent;
}

static int link_send_oversize(um_link *link, um_address to, const um_tx *tx)
{
    (void)link, (void)to, (void)tx;
    REQUIRE(!"oversize");
    return 0;
}

static const um_link_ops ops = {.send = link_send, .send_oversize = link_send_oversize};

/* With the largest table and filters that an input can choose. */
static size_t largest_footprint(um_source_session_config config)
{
    config.client_buckets = 16;
    config.has_filter = true;
    return um_source_session_footprint(&config);
}

static void open_world(fuzz_input *input)
{
    uint8_t choices = take_u8(input);
    um_source_session_config config = {
        .transport = UM_TRANSPORT_LBTRU,
        .session_id = SESSION,
        .nak_port = 14380,
        .initial_sqn = choices & 1 ? UINT32_MAX - 20 : 0,
        .term_length = UM_LOG_TERM_BYTES_MIN,
        .window_bytes = UM_LOG_TERM_BYTES_MIN,
        .datagram_max_bytes = 1472,
        .coalesce_threshold = 8,
        .batch_interval_ns = 1000,
        .ignore_interval_ns = 500,
        .sm_minimum_interval_ns = 2000,
        .sm_maximum_interval_ns = 20000,
        .unblock_timeout_ns = 10000,
        .flow_policy = choices >> 2 & 3,
        .flow_receiver_timeout_ns = 50000,
        .client_capacity = CAPACITY,
        .client_buckets = 1 + (choices >> 4),
        .client_timeout_ns = 30000,
        .client_key = {1, 2},
        .has_filter = choices & 2,
    };
    uint8_t *memory = w.memory;
    size_t bytes = um_source_session_footprint(&config);
    memset(&w, 0, sizeof w);
    w.memory = memory ? memory : fuzz_zeroed(largest_footprint(config));
    memset(w.memory, 0, bytes);
    w.link.ops = &ops;
    w.space = UINT32_MAX;
    um_rate_limiter_init(&w.limits.data, 0, 1000, 0);
    um_rate_limiter_init(&w.limits.retransmit, 0, 1000, 0);
    um_source_session_init(&w.session, w.memory, &config, &w.link, &w.limits, 0);
    um_source_config source = {.topic_index = 1};
    um_source_init(&w.source, NULL, &source, &w.session);
}

static void look_at_clients(void)
{
    REQUIRE(w.session.clients.count <= CAPACITY);
    uint32_t behind = 0;
    for (uint32_t i = 0; i < w.session.clients.count; i++)
        behind += w.session.clients.clients[i].behind > 0;
    REQUIRE(behind == w.session.clients.behind_count);
    for (uint32_t i = 0; i < ADDRESSES; i++)
        if (um_client_map_find(&w.session.clients, address_of(i)) == NULL)
            w.is_client[i] = false;
}

static void call(um_address from, const uint8_t *data, uint32_t length, int64_t now_ns)
{
    w.given_bytes = length;
    BOUNDED(um_source_session_on_control(&w.session, from, data, length, now_ns));
    look_at_clients();
}

static uint32_t build_interest(fuzz_input *input, const um_lbtru_options *options, uint8_t *out)
{
    uint8_t choices = take_u8(input);
    um_interest_part part = {1 + (choices & 3), choices >> 2 & 1, (uint8_t)(1 + (choices >> 3 & 1)), choices >> 4 & 1};
    uint32_t length = um_interest_write(out, options, w.session.next_sqn, &part);
    return choices & 0x80 ? length : length + um_interest_add_topic(out + length, options, 1 + (choices >> 5 & 1));
}

static uint32_t build(fuzz_input *input, uint8_t choice, um_address from, uint8_t *out)
{
    uint32_t right = um_client_map_id(&w.session.clients, from);
    um_lbtru_options options = {SESSION, choice & 8 ? right : take_u32(input), true};
    um_session_id id = {.session_id = SESSION, .transport = UM_TRANSPORT_LBTRU};
    uint32_t sqns[32], count = take_u8(input) % 32;
    for (uint32_t i = 0; i < count; i++)
        sqns[i] = w.session.next_sqn - take_u8(input);
    um_status_message status = {.receiver_id = take_u8(input),
                                .next_sqn = w.session.next_sqn - take_u8(input),
                                .window_bytes = take_u32(input),
                                .flags = take_u8(input)};
    switch (choice & 7) {
    case 0:
        return um_lbtru_write_creq(out, &options);
    case 1:
        if (count == 0) /* it restarts, and recovers datagrams whose report it missed */
            w.is_client[um_ip_v4(from.ip) - 0x0a000002] = false;
        return um_lbtru_write_ack(out, &options, count == 0, w.session.next_sqn - 1);
    case 2:
        return um_lbtru_write_nak(out, &options, sqns, count);
    case 3:
        return um_status_write(out, &id, options.client_id, &status);
    default:
        return choice & 8 ? build_interest(input, &options, out) : um_lbtru_write_rst(out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t datagram[2048];
    fuzz_input input = {data, size};
    int64_t now_ns = 0;
    open_world(&input);
    for (uint32_t i = 0; i < CALLS_MAX && input.left > 0; i++) {
        uint8_t choice = take_u8(&input);
        um_address from = address_of(choice >> 4);
        if ((choice & 7) < 5) {
            call(from, datagram, build(&input, choice, from, datagram), now_ns);
        } else if ((choice & 7) == 5) {
            fuzz_input raw = take_bytes(&input, take_u8(&input));
            call(from, raw.at, (uint32_t)raw.left, now_ns);
        } else if ((choice & 7) == 6 && w.messages++ < MESSAGES_MAX) {
            uint32_t actions = 0;
            uint8_t bytes[1024] = {0};
            w.space = choice & 8 ? UINT32_MAX : take_u8(&input) % 8;
            um_source_send(&w.source, bytes, (uint32_t)take_u8(&input) * 4, UM_SEND_FLUSH, now_ns, &actions);
            BOUNDED(um_source_session_send(&w.session, now_ns, 64));
        } else {
            now_ns += take_u16(&input);
            w.space = UINT32_MAX;
            BOUNDED(um_source_session_tick(&w.session, now_ns));
            look_at_clients();
        }
    }
    return 0;
}
