/* The client's side of the request protocol: when it connects, requests again and gives up, and its request for the
 * range.
 */
#include "core/delivery/delivery_fetch.h"
#include "core/receiver/fetch.h"
#include "core/receiver/fetch_runs.h"
#include "recovering.h"

enum { ATTEMPT_MS = 20, REQUEST_MS = 30, TIMEOUT_MS = 400 };

static um_fetch begin(recovering *f, bool is_otr, uint32_t outstanding)
{
    um_fetch fetch = {.id = f->session->config.id,
                      .topic_index = TOPIC,
                      .epoch = f->delivery->fetch.epoch,
                      .plan = {.is_otr = is_otr,
                               .attempts_max = is_otr ? 0 : 3,
                               .outstanding_max = outstanding,
                               .attempt_minimum_ns = ATTEMPT_MS * (int64_t)NS_PER_MS,
                               .attempt_maximum_ns = ATTEMPT_MS * (int64_t)NS_PER_MS,
                               .request_minimum_ns = REQUEST_MS * (int64_t)NS_PER_MS,
                               .request_maximum_ns = 4 * REQUEST_MS * (int64_t)NS_PER_MS,
                               .message_timeout_ns = TIMEOUT_MS * (int64_t)NS_PER_MS}};
    um_fetch_begin(&fetch);
    return fetch;
}

static int step(recovering *f, um_fetch *fetch)
{
    int result = um_fetch_step(fetch, f->session, f->delivery, f->from_peer, f->from_peer_bytes, f->to_peer,
                               TO_PEER_BYTES, f->now_ns);
    f->from_peer_bytes -= fetch->consumed;
    memmove(f->from_peer, f->from_peer + fetch->consumed, f->from_peer_bytes);
    read_all(f);
    return result;
}

static int attend(recovering *f, um_fetch *fetch)
{
    int action = um_fetch_attend(fetch, f->session, f->delivery, f->now_ns);
    static um_fetch_connection connection;
    uint8_t request[UM_RANGE_REQUEST_BYTES_MAX];
    if (action == UM_FETCH_CONNECT) {
        connection = (um_fetch_connection){0};
        um_fetch_on_connect(fetch, &connection);
        CHECK(um_fetch_request_range(fetch, request) <= sizeof request);
    } else if (action == UM_FETCH_DISCONNECT) {
        um_fetch_on_disconnect(fetch);
    }
    read_all(f);
    return action;
}

TEST("UM-140", "a range request decodes as encoded; a truncated one or one of another length is refused")
{
    um_range_request request = {.topic_index = 7, .request_index = 1, .outstanding_max = 9}, read;
    for (uint32_t bounds = 0; bounds < 16; bounds++) {
        request.bounds = (um_range_bounds){.has_low_sqn = bounds & 1,
                                           .has_count = bounds & 2,
                                           .has_bytes = bounds & 4,
                                           .has_age = bounds & 8,
                                           .low_sqn = bounds & 1 ? 5 : 0,
                                           .count = bounds & 2 ? 6 : 0,
                                           .bytes = bounds & 4 ? 1ull << 40 : 0,
                                           .age_ns = bounds & 8 ? 3 * (int64_t)NS_PER_S : 0};
        uint8_t out[UM_RANGE_REQUEST_BYTES_MAX] = {0};
        uint32_t length = um_range_request_write(out, &request);
        memset(&read, 0xee, sizeof read);
        CHECK(um_range_request_read(out, length, &read));
        CHECK_EQ(read.topic_index, 7);
        CHECK_EQ(read.request_index, 1);
        CHECK_EQ(read.outstanding_max, 9);
        CHECK(read.bounds.has_low_sqn == request.bounds.has_low_sqn && read.bounds.low_sqn == request.bounds.low_sqn);
        CHECK(read.bounds.has_count == request.bounds.has_count && read.bounds.count == request.bounds.count);
        CHECK(read.bounds.has_bytes == request.bounds.has_bytes && read.bounds.bytes == request.bounds.bytes);
        CHECK(read.bounds.has_age == request.bounds.has_age && read.bounds.age_ns == request.bounds.age_ns);
        for (uint32_t cut = 0; cut < length; cut++)
            CHECK(!um_range_request_read(out, cut, &read));
    }
}

TEST("UM-140", "a late join without a range reconnects after its interval, and gives up after all attempts")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    um_delivery_fetch_begin(f->delivery, PROXIMITY);
    um_fetch fetch = begin(f, false, 10);
    uint32_t connections = 0, disconnections = 0;
    int action = 0;
    for (uint32_t ms = 0; ms < 200 && action != -ENOENT; ms++) {
        CHECK_EQ(step(f, &fetch), 0);
        action = attend(f, &fetch);
        connections += action == UM_FETCH_CONNECT;
        disconnections += action == UM_FETCH_DISCONNECT;
        CHECK(disconnections == 0 || ms >= ATTEMPT_MS);
        pass(f, 1);
    }
    CHECK_EQ(connections, 3);
    CHECK(fetch.is_given_up && action == -ENOENT);
    stream(f, 10, false);
    CHECK_EQ(f->delivered, 10); /* live delivery continues without the past */
    recovering_close(f);
}

TEST("UM-106 UM-142", "the connection to a rediscovered source that does not answer lasts the request interval")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    f->delivery->has_resume = true;
    um_delivery_fetch_begin(f->delivery, PROXIMITY);
    um_fetch fetch = begin(f, true, 10);
    uint32_t connected_ms = 0, disconnected_ms = 0;
    for (uint32_t ms = 1; ms < 100 && disconnected_ms == 0; ms++) {
        CHECK_EQ(step(f, &fetch), 0);
        int action = attend(f, &fetch);
        connected_ms = action == UM_FETCH_CONNECT ? ms : connected_ms;
        disconnected_ms = action == UM_FETCH_DISCONNECT ? ms : 0;
        pass(f, 1);
    }
    CHECK(connected_ms > 0 && disconnected_ms - connected_ms >= REQUEST_MS - 1);
    recovering_close(f);
}

TEST("UM-140", "a message with more fragments than may be outstanding is requested completely")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    for (uint32_t i = 10; i < 16; i++)
        f->starts[i] = 10, f->fragments[i] = 6;
    stream(f, 10, false);
    stream(f, 6, true);
    stream(f, 10, false);
    pass(f, DELAY_MS + 1);
    for (uint32_t i = 10; i < 16; i++) {
        uint32_t indices[8];
        CHECK_EQ(requests(f, 1, indices, 8), 1);
        CHECK_EQ(indices[0], i);
        answer_message(f, i);
        take(f);
    }
    CHECK_EQ(f->delivered, f->sent);
    CHECK_EQ(f->lost, 0);
    recovering_close(f);
}

TEST("UM-140", "a late range on a connection with other answers is awaited there, until all attempts are used")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    um_delivery_fetch_begin(f->delivery, PROXIMITY);
    um_fetch fetch = begin(f, false, 10);
    uint32_t connections = 0, disconnections = 0, ms = 0;
    int action = 0;
    for (; ms < 200 && action != -ENOENT; ms++) {
        CHECK_EQ(step(f, &fetch), 0);
        action = attend(f, &fetch);
        connections += action == UM_FETCH_CONNECT;
        disconnections += action == UM_FETCH_DISCONNECT;
        if (fetch.connection != NULL)
            fetch.connection->received_ns = f->now_ns + 1; /* of another topic */
        pass(f, 1);
    }
    CHECK_EQ(connections, 1);
    CHECK_EQ(disconnections, 0);
    CHECK(fetch.is_given_up && ms >= 3 * ATTEMPT_MS);
    recovering_close(f);
}

TEST("UM-106 UM-142", "a recovery without answers keeps a connection on which other topics' answers arrive")
{
    for (uint32_t is_silent = 0; is_silent < 2; is_silent++) {
        recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
        f->delivery->has_resume = true;
        um_delivery_fetch_begin(f->delivery, PROXIMITY);
        um_fetch fetch = begin(f, true, 10);
        uint32_t disconnections = 0;
        for (uint32_t ms = 1; ms < 3 * REQUEST_MS; ms++) {
            CHECK_EQ(step(f, &fetch), 0);
            disconnections += attend(f, &fetch) == UM_FETCH_DISCONNECT;
            if (!is_silent && fetch.connection != NULL)
                fetch.connection->received_ns = f->now_ns + 1;
            pass(f, 1);
        }
        CHECK(is_silent ? disconnections > 0 : disconnections == 0);
        recovering_close(f);
    }
}

static uint32_t put_message(uint8_t *out, uint32_t topic_index, uint32_t sqn)
{
    memset(out, 0, 20);
    out[0] = UM_LBMC_RECOVERED;
    um_store_be16(out + 2, 20);
    um_store_be32(out + 4, topic_index);
    um_store_be32(out + 8, sqn);
    return 20;
}

TEST("UM-140", "answers on a shared connection are split by topic: messages by their index, ranges by the request's")
{
    uint8_t data[256];
    uint32_t length = 0, key = 0;
    length += um_recovery_write_range(data, 0, 5, um_request_index(UM_PURPOSE_OFF_TRANSPORT, 7));
    length += put_message(data + length, 7, 0);
    length += put_message(data + length, 7, 1);
    length += put_message(data + length, 0x80000009, 0);
    length += um_recovery_write_range(data + length, 0, 5, um_request_index(UM_PURPOSE_LATE_JOIN, 0x80000009));
    CHECK_EQ(um_fetch_next_run(data, length, false, &key), 60);
    CHECK_EQ(key, um_fetch_topic_key(7));
    CHECK_EQ(um_fetch_next_run(data + 60, length - 60, false, &key), 40);
    CHECK_EQ(key, um_fetch_topic_key(0x80000009));
    CHECK_EQ(um_fetch_next_run(data, length, true, &key), length);
    for (uint32_t cut = 0; cut < 20; cut++)
        CHECK_EQ(um_fetch_next_run(data, cut, false, &key), 0);
    CHECK_EQ(um_fetch_next_run(data, 39, false, &key), 20);
    data[60] = UM_LBMC_MESSAGE; /* no answer of the request protocol */
    CHECK_EQ(um_fetch_next_run(data, length, true, &key), 60);
    CHECK_EQ(um_fetch_next_run(data + 60, length - 60, true, &key), -EBADMSG);
    um_store_be16(data + 2, 3); /* shorter than its header */
    CHECK_EQ(um_fetch_next_run(data, length, false, &key), -EBADMSG);
}

CHECK_MAIN
