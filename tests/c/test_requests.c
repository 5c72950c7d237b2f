/* Requests: the option on the wire, how a source sends one, and how a receiving session delivers it. */
#include "core/foundation/random.h"
#include "core/receiver/fetch_protocol.h"
#include "recovering.h"

static const um_request asked = {0x01020304, 0x0a090001, 14391};

/* ---- the option ---- */

TEST("W1", "a request is a message with option 4 in front of the others")
{
    uint8_t out[80] = {0}, golden[80];
    um_lbmc_layout layout = {.topic_index = 0x3ea, .sqn = 7, .payload_length = 2};
    uint8_t *payload = um_lbmc_write_request(out, &layout, &asked);
    CHECK_EQ(payload - out, from_hex("0004001e 000003ea 00000007 00108000 01020304 38370000 0a090001", golden));
    CHECK_BYTES(out, golden, payload - out);
    um_lbmc_message message;
    uint32_t length;
    CHECK_EQ(um_lbmc_decode(out, sizeof out, &message, &length), UM_DGRAM_OK);
    CHECK_EQ(length, 30);
    CHECK_EQ(message.flags, UM_MESSAGE_REQUEST);
    CHECK_EQ(message.payload_length, 2);
    um_request found = um_lbmc_read_request(message.request);
    CHECK_EQ(found.index, asked.index);
    CHECK_EQ(found.ip, asked.ip);
    CHECK_EQ(found.port, asked.port);

    layout.flags = UM_MESSAGE_FRAGMENT;
    layout.first_sqn = 7;
    layout.total = 100;
    layout.sent_ns = 5;
    payload = um_lbmc_write_request(out, &layout, &asked);
    CHECK_EQ(payload - out, um_lbmc_overhead(true, false, true) + UM_LBMC_REQUEST_BYTES);
    CHECK_EQ(um_lbmc_decode(out, sizeof out, &message, &length), UM_DGRAM_OK);
    CHECK_EQ(message.flags, UM_MESSAGE_REQUEST | UM_MESSAGE_FRAGMENT);
    CHECK_EQ(message.sent_ns, 5);
    CHECK_EQ(message.total, 100);
}

TEST("W1", "a request that cannot be answered is none: another transport, no port, or no unicast address")
{
    static const struct {
        const char *message;
        enum um_dgram_status status;
        uint16_t flags;
    } cases[] = {
        {"0004001c 000003ea 00000007 00108000 01020304 38370000 0a090001", UM_DGRAM_OK, UM_MESSAGE_REQUEST},
        {"0004001c 000003ea 00000007 00100000 01020304 38370000 0a090001", UM_DGRAM_OK, UM_MESSAGE_REQUEST},
        {"0004001c 000003ea 00000007 00108001 01020304 38370000 0a090001", UM_DGRAM_OK, 0},
        {"0004001c 000003ea 00000007 00108000 01020304 00000000 0a090001", UM_DGRAM_OK, 0},
        {"0004001c 000003ea 00000007 00108000 01020304 38370000 00000000", UM_DGRAM_OK, 0},
        {"0004001c 000003ea 00000007 00108000 01020304 38370000 e00a0a0a", UM_DGRAM_OK, 0},
        {"0004001c 000003ea 00000007 00108000 01020304 38370000 ffffffff", UM_DGRAM_OK, 0},
        {"00040018 000003ea 00000007 000c8000 01020304 38370000", UM_DGRAM_HDR, 0},
        {"00040020 000003ea 00000007 00148000 01020304 38370000 0a090001 00000000", UM_DGRAM_HDR, 0},
        {"0004001c 000003ea 00000007 00ff8000 01020304 38370000 0a090001", UM_DGRAM_HDR, 0},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t data[64];
        um_lbmc_message message;
        uint32_t length, bytes = from_hex(cases[i].message, data);
        CHECK_EQ(um_lbmc_decode(data, bytes, &message, &length), cases[i].status);
        CHECK_EQ(cases[i].status == UM_DGRAM_OK ? message.flags : 0, cases[i].flags);
    }
}

TEST("W1", "a request option further before the payload than an entry can store is refused")
{
    uint8_t data[512] = {0};
    um_lbmc_layout layout = {.topic_index = 1, .payload_length = 0};
    uint8_t *end = um_lbmc_write_request(data, &layout, &asked);
    data[UM_LBMC_HEADER_BYTES] = 6; /* an application header that may be ignored follows */
    end[0] = UM_LBMC_OPTION_DATA;
    end[1] = 239;
    end[2] = 0x80;
    um_lbmc_message message;
    uint32_t length;
    um_store_be16(data + 2, (uint16_t)(end - data + 239));
    CHECK_EQ(um_lbmc_decode(data, sizeof data, &message, &length), UM_DGRAM_OK);
    CHECK_EQ(message.payload - message.request, 255);
    end[1] = 240;
    um_store_be16(data + 2, (uint16_t)(end - data + 240));
    CHECK_EQ(um_lbmc_decode(data, sizeof data, &message, &length), UM_DGRAM_HDR);
}

/* ---- sending ---- */

TEST("UX-25", "a request of any length has the option in each fragment: one if it fits, otherwise full fragments")
{
    um_random random = {check_seed()};
    for (uint32_t i = 0; i < 200; i++) {
        um_source_session_config config = default_config();
        config.term_length = 1 << 19;
        config.datagram_max_bytes = 500 + (uint32_t)um_random_below(&random, i % 4 == 0 ? 30000 : 2000);
        fixture *f = session_open(&config);
        um_source *source = source_open(f, 9, 0xfffffffe);
        uint32_t body_max = config.datagram_max_bytes - UM_LBTRM_DATA_BYTES, offset = 0;
        uint32_t fits = body_max - um_lbmc_overhead(false, false, false) - UM_LBMC_REQUEST_BYTES;
        uint32_t length = i == 0   ? fits
                          : i == 1 ? fits + 1
                                   : (uint32_t)um_random_below(&random, 1 + um_source_message_max(source));
        uint8_t *data = zeroed(length + 1);
        for (uint32_t b = 0; b < length; b++)
            data[b] = (uint8_t)um_random_next(&random);
        int64_t last = um_source_request(source, data, length, &asked, UM_SEND_FLUSH, f->now_ns, &f->actions);
        run_sender(f);
        CHECK_EQ(f->link.count == 1, length <= fits);
        CHECK_EQ((uint32_t)last, 0xfffffffe + f->link.count - 1);
        for (uint32_t k = 0; k < f->link.count; k++) {
            um_lbmc_message m;
            CHECK(f->link.datagrams[k].length <= config.datagram_max_bytes);
            CHECK_EQ(messages_at(f, k, &m, 1), 1);
            CHECK_EQ(m.flags, UM_MESSAGE_REQUEST | (f->link.count > 1 ? UM_MESSAGE_FRAGMENT : 0));
            CHECK_EQ(um_lbmc_read_request(m.request).index, asked.index);
            CHECK_EQ(m.sqn, 0xfffffffe + k);
            CHECK(f->link.count == 1 || (m.offset == offset && m.total == length && m.first_sqn == 0xfffffffe));
            CHECK_BYTES(m.payload, data + offset, m.payload_length);
            offset += m.payload_length;
        }
        CHECK_EQ(offset, length);
        CHECK_EQ(messages_sent(source), 1);
        CHECK_EQ(source->counters.bytes_sent, length);
        free(data);
        session_close(f);
    }
}

TEST("UX-23", "a request that is too long or within an explicit batch is refused and takes no number")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, 9, 0);
    const uint8_t data[1] = {0};
    uint32_t too_long = um_source_message_max(source) + 1;
    CHECK_EQ(um_source_request(source, data, too_long, &asked, 0, f->now_ns, &f->actions), -EMSGSIZE);
    CHECK_EQ(send_text(f, source, "first", UM_SEND_START_BATCH), 0);
    CHECK_EQ(um_source_request(source, data, 1, &asked, 0, f->now_ns, &f->actions), -EBUSY);
    CHECK_EQ(send_text(f, source, "last", UM_SEND_END_BATCH), 1);
    CHECK_EQ(um_source_request(source, data, 1, &asked, 0, f->now_ns, &f->actions), 2);
    session_close(f);
}

/* ---- receiving ---- */

/* Receives a datagram with message `sqn`, a request with the given number; 0: a plain message. */
static void arrive_at(recovering *f, uint32_t transport_sqn, um_lbmc_layout layout, uint32_t index)
{
    uint8_t out[1472] = {0};
    um_lbtrm_write_data(out, SESSION, NAK_PORT, transport_sqn, 0, false);
    layout.topic_index = TOPIC;
    um_request request = {index, asked.ip, asked.port};
    uint8_t *body = out + UM_LBTRM_DATA_BYTES;
    uint8_t *payload =
        index == 0 ? um_lbmc_write_message(body, &layout) : um_lbmc_write_request(body, &layout, &request);
    memset(payload, (int)layout.sqn, layout.payload_length);
    um_rx rx = {
        .data = out, .length = (uint32_t)(payload - out) + layout.payload_length, .from = source_address, .to = group};
    um_node_on_data(&f->node, &rx, f->now_ns);
}

/* Returns the request numbers of the delivered messages in order, 0 for a plain one. */
static uint32_t take_indices(recovering *f, uint32_t *indices, uint32_t most)
{
    uint32_t count = 0;
    um_rows rows;
    while ((rows = um_queue_take(&f->queue, UINT32_MAX)).count > 0) {
        for (uint32_t i = rows.first; i < rows.first + rows.count; i++) {
            if (um_row_kind_of(rows.block->flags[i]) != UM_ROW_MESSAGE)
                continue;
            CHECK(count < most);
            const um_request *request = &rows.block->requests[i];
            bool is_request = rows.block->flags[i] & UM_MESSAGE_REQUEST;
            CHECK(!is_request || (request->ip == asked.ip && request->port == asked.port));
            CHECK(!is_request ||
                  rows.block->payload[rows.block->offsets[i]] == (uint8_t)rows.block->first_sequence_numbers[i]);
            indices[count++] = is_request ? request->index : 0;
        }
        um_queue_release(rows.block, rows.count);
    }
    return count;
}

TEST("UM-53 UM-56", "a request's row holds the response address: delivered at once, held, or reassembled")
{
    static const um_ordered_delivery modes[] = {UM_ORDERED_SEQUENCE, UM_ORDERED_ARRIVAL, UM_ORDERED_FRAGMENTS};
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t indices[8];
        recovering *f = recovering_open(modes[k], 0, false);
        arrive_at(f, 0, (um_lbmc_layout){.sqn = 0, .payload_length = 1}, 0);
        arrive_at(f, 1, (um_lbmc_layout){.sqn = 1, .payload_length = 600}, 100);
        arrive_at(f, 3, (um_lbmc_layout){.sqn = 3, .payload_length = 1}, 300);
        arrive_at(f, 4, (um_lbmc_layout){.sqn = 4, .payload_length = 1, .sent_ns = 7}, 0);
        arrive_at(f, 2, (um_lbmc_layout){.sqn = 2, .payload_length = 0x10}, 200);
        um_lbmc_layout part = {.flags = UM_MESSAGE_FRAGMENT, .first_sqn = 5, .total = 20, .payload_length = 10};
        part.sqn = 6, part.offset = 10;
        if (modes[k] != UM_ORDERED_FRAGMENTS)
            arrive_at(f, 6, part, 500);
        part.sqn = 5, part.offset = 0;
        if (modes[k] != UM_ORDERED_FRAGMENTS)
            arrive_at(f, 5, part, 500);
        static const uint32_t in_order[] = {0, 100, 200, 300, 0, 500}, as_they_come[] = {0, 100, 300, 0, 200, 500};
        uint32_t count = take_indices(f, indices, 8);
        CHECK_EQ(count, modes[k] == UM_ORDERED_FRAGMENTS ? 5 : 6);
        for (uint32_t i = 0; i < count; i++)
            CHECK_EQ(indices[i], modes[k] == UM_ORDERED_SEQUENCE ? in_order[i] : as_they_come[i]);
        CHECK_EQ(f->session->counters.lbm_reqs_rcved, modes[k] == UM_ORDERED_FRAGMENTS ? 3 : 5);
        recovering_close(f);
    }
}

TEST("UM-142", "a request recovered off the transport is delivered as a request")
{
    uint32_t indices[8];
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 1, false);
    stream(f, 2, true);
    stream(f, 1, false);
    pass(f, DELAY_MS + 100);
    CHECK(is_fetching(f));
    CHECK_EQ(requests(f, 10, indices, 8), 2);
    for (uint32_t sqn = 2; sqn >= 1; sqn--) { /* the first goes into the order map, the second directly on */
        um_lbmc_layout layout = {.topic_index = TOPIC, .sqn = sqn, .payload_length = 3};
        uint8_t out[64];
        uint8_t *payload = um_lbmc_write_request(out, &layout, &(um_request){sqn * 100, asked.ip, asked.port});
        out[0] = UM_LBMC_RECOVERED;
        memset(payload, (int)sqn, 3);
        answer(f, out, um_load_be16(out + 2));
    }
    CHECK_EQ(um_fetch_protocol_receive(f->session, f->delivery, f->from_peer, f->from_peer_bytes, f->now_ns),
             (int64_t)f->from_peer_bytes);
    CHECK_EQ(take_indices(f, indices, 8), 3);
    CHECK_EQ(indices[0], 100);
    CHECK_EQ(indices[1], 200);
    CHECK_EQ(indices[2], 0);
    recovering_close(f);
}

CHECK_MAIN
