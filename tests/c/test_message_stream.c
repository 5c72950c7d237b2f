/* The parts of LBT-TCP below its sockets: messages from a byte stream cut anywhere, the backlog of a client, the
 * topics that a client needs, and control messages.
 */
#include "authentication/stream_tags.h"
#include "core/foundation/byte_ring.h"
#include "core/foundation/random.h"
#include "core/source/topic_filter.h"
#include "core/wire/message_stream.h"
#include "core/wire/tcp_control.h"
#include "support.h"

enum { TEXT_BYTES = 400000, RUN_MAX = 9000 };

/* Topic and control messages of random lengths, the last of maximum length. Returns the bytes. */
static uint32_t write_messages(uint8_t *out, um_random *random, uint32_t *messages)
{
    uint32_t bytes = 0;
    for (*messages = 0; bytes < TEXT_BYTES - 2 * UM_LBMC_MESSAGE_BYTES_MAX; ++*messages) {
        bool is_last = bytes > TEXT_BYTES - 4 * UM_LBMC_MESSAGE_BYTES_MAX;
        uint32_t payload = is_last ? UM_LBMC_MESSAGE_BYTES_MAX - UM_LBMC_HEADER_BYTES
                                   : (uint32_t)um_random_below(random, um_random_below(random, 8) == 0 ? 20000 : 200);
        um_lbmc_layout layout = {.topic_index = 7, .sqn = *messages, .payload_length = payload};
        memset(um_lbmc_write_message(out + bytes, &layout), (int)*messages, payload);
        bytes += UM_LBMC_HEADER_BYTES + payload;
        if (um_random_below(random, 10) == 0)
            bytes += um_lbmc_write_tsni(out + bytes, &layout.topic_index, &layout.sqn, 1);
    }
    return bytes;
}

/* Appends everything that can be taken now to `out`: runs are whole messages within the limit. */
static enum um_stream_part take_all(um_message_stream *stream, uint8_t *out, uint32_t *taken)
{
    const uint8_t *data;
    uint32_t length;
    enum um_stream_part part;
    while ((part = um_message_stream_next(stream, RUN_MAX, &data, &length)) == UM_STREAM_MESSAGES ||
           part == UM_STREAM_CONTROL) {
        uint32_t count = 0, message_length;
        um_lbmc_message message;
        for (uint32_t at = 0; at < length; at += message_length, count++) {
            CHECK_EQ(um_lbmc_decode(data + at, length - at, &message, &message_length), UM_DGRAM_OK);
            CHECK_EQ(message.type, part == UM_STREAM_CONTROL ? UM_LBMC_CONTROL : UM_LBMC_MESSAGE);
        }
        CHECK(count == 1 || (part == UM_STREAM_MESSAGES && length <= RUN_MAX));
        memcpy(out + *taken, data, length);
        *taken += length;
    }
    return part;
}

TEST("", "a stream cut anywhere returns the messages written to it")
{
    um_random random = {check_seed()};
    uint8_t *sent = zeroed(TEXT_BYTES), *received = zeroed(TEXT_BYTES);
    uint8_t *memory = zeroed(2 * UM_LBMC_MESSAGE_BYTES_MAX);
    uint32_t messages, bytes = write_messages(sent, &random, &messages);
    for (uint32_t round = 0; round < 6; round++) {
        um_message_stream stream;
        uint32_t capacity = UM_LBMC_MESSAGE_BYTES_MAX + (uint32_t)um_random_below(&random, UM_LBMC_MESSAGE_BYTES_MAX);
        uint32_t piece_max = round == 0 ? 3 : 1 << (4 * round), taken = 0;
        um_message_stream_init(&stream, memory, capacity, UM_LBMC_MESSAGE_BYTES_MAX);
        for (uint32_t at = 0; at < bytes;) {
            uint32_t space, piece = 1 + (uint32_t)um_random_below(&random, piece_max);
            uint8_t *into = um_message_stream_space(&stream, &space);
            CHECK(space > 0);
            piece = piece < space ? piece : space;
            piece = piece < bytes - at ? piece : bytes - at;
            memcpy(into, sent + at, piece);
            um_message_stream_add(&stream, piece);
            at += piece;
            CHECK_EQ(take_all(&stream, received, &taken), UM_STREAM_MORE);
        }
        CHECK_EQ(taken, bytes);
        CHECK_BYTES(received, sent, bytes);
        CHECK(um_message_stream_is_empty(&stream));
    }
    free(memory);
    free(received);
    free(sent);
}

static enum um_stream_part first_of(const uint8_t *bytes, uint32_t length, uint32_t message_max,
                                    enum um_dgram_status *broken_by)
{
    uint8_t *memory = zeroed(message_max);
    um_message_stream stream;
    const uint8_t *data;
    uint32_t space, run_length;
    um_message_stream_init(&stream, memory, message_max, message_max);
    memcpy(um_message_stream_space(&stream, &space), bytes, length);
    CHECK(length <= space);
    um_message_stream_add(&stream, length);
    enum um_stream_part part = um_message_stream_next(&stream, RUN_MAX, &data, &run_length);
    /* A broken stream stays broken. */
    if (part == UM_STREAM_BROKEN)
        CHECK_EQ(um_message_stream_next(&stream, RUN_MAX, &data, &run_length), UM_STREAM_BROKEN);
    *broken_by = stream.broken_by;
    free(memory);
    return part;
}

/* ---- records ---- */

static um_stream_tags *tags_of(bool is_server, uint8_t secret)
{
    static const uint8_t CONNECTION[] = "a connection";
    um_key key = {.id = 7, .secret = {secret}};
    um_stream_tags *tags = um_stream_tags_open(&key, UM_STREAM_SESSION, is_server, CONNECTION, sizeof CONNECTION);
    CHECK(tags != NULL);
    return tags;
}

TEST("", "records cut anywhere return the messages written to them, each record as a whole")
{
    um_random random = {check_seed()};
    uint8_t *sent = zeroed(TEXT_BYTES), *received = zeroed(TEXT_BYTES);
    uint32_t messages, bytes = write_messages(sent, &random, &messages), taken = 0;
    um_stream_tags *source = tags_of(true, 1), *receiver = tags_of(false, 1);
    uint8_t *memory = zeroed(192 * 1024), *record = zeroed(UM_RECORD_HEADER_BYTES + UM_RECORD_BYTES_MAX);
    um_message_stream stream;
    um_message_stream_init(&stream, memory, 192 * 1024, UM_LBMC_MESSAGE_BYTES_MAX);
    um_message_stream_verify(&stream, um_stream_tags_verifier(receiver));
    for (uint32_t at = 0, length; at < bytes; at += length) {
        length = 0; /* whole messages, as many as fit a record of random length */
        uint32_t most = 1 + (uint32_t)um_random_below(&random, 60000);
        do
            length += um_load_be16(sent + at + length + 2);
        while (at + length < bytes && length < most);
        memcpy(record + UM_RECORD_HEADER_BYTES, sent + at, length);
        CHECK_EQ(um_stream_tags_seal(source, record, length), 0);
        for (uint32_t done = 0, whole = UM_RECORD_HEADER_BYTES + length; done < whole;) {
            uint32_t space, piece = 1 + (uint32_t)um_random_below(&random, 40000), before = taken;
            uint8_t *into = um_message_stream_space(&stream, &space);
            piece = piece < space ? piece : space;
            piece = piece < whole - done ? piece : whole - done;
            memcpy(into, record + done, piece);
            um_message_stream_add(&stream, piece);
            done += piece;
            CHECK_EQ(take_all(&stream, received, &taken), UM_STREAM_MORE);
            CHECK_EQ(taken - before, done < whole ? 0 : length);
        }
    }
    CHECK_EQ(taken, bytes);
    CHECK_EQ(memcmp(sent, received, bytes), 0);
    um_stream_tags_close(source);
    um_stream_tags_close(receiver);
    free(sent);
    free(received);
    free(memory);
    free(record);
}

/* Returns the stream's error for these bytes, from which it must return no message. */
static um_message_stream refused(const uint8_t *data, uint32_t length, uint32_t capacity)
{
    um_stream_tags *receiver = tags_of(false, 1);
    uint8_t *memory = zeroed(capacity), taken[1024];
    uint32_t taken_bytes = 0;
    um_message_stream stream;
    um_message_stream_init(&stream, memory, capacity, capacity);
    um_message_stream_verify(&stream, um_stream_tags_verifier(receiver));
    memcpy(memory, data, length);
    um_message_stream_add(&stream, length);
    CHECK_EQ(take_all(&stream, taken, &taken_bytes), UM_STREAM_BROKEN);
    CHECK_EQ(take_all(&stream, taken, &taken_bytes), UM_STREAM_BROKEN); /* it stays broken */
    CHECK_EQ(taken_bytes, 0);
    um_stream_tags_close(receiver);
    free(memory);
    return stream;
}

TEST("", "no message of an invalid record is returned, and the stream reports the reason")
{
    enum { MESSAGE = 40, RECORD = UM_RECORD_HEADER_BYTES + MESSAGE };
    um_lbmc_layout layout = {.topic_index = 7, .payload_length = MESSAGE - UM_LBMC_HEADER_BYTES};
    uint8_t record[RECORD], changed[RECORD], greeting[UM_RECORD_HEADER_BYTES];
    um_lbmc_write_message(record + UM_RECORD_HEADER_BYTES, &layout);
    um_stream_tags *source = tags_of(true, 1), *other = tags_of(true, 2);
    CHECK_EQ(um_stream_tags_seal(source, record, MESSAGE), 0);
    for (uint32_t bit = 0; bit < 8 * RECORD; bit++) {
        memcpy(changed, record, RECORD);
        changed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (bit / 8 >= 8 && bit / 8 < 12 && um_load_be32(changed + 8) > MESSAGE)
            continue; /* longer than the bytes received: the stream waits, and then the tag is wrong */
        CHECK(refused(changed, RECORD, RECORD).refused_by != UM_TAG_OK);
    }
    CHECK_EQ(refused(record + UM_RECORD_HEADER_BYTES, MESSAGE, RECORD).refused_by, UM_TAG_MISSING);
    um_stream_greeting said = {UM_STREAM_SESSION, 1, 7, false};
    CHECK_EQ(um_stream_greeting_write(greeting, &said), 0);
    CHECK_EQ(refused(greeting, sizeof greeting, RECORD).refused_by, UM_TAG_MISSING);
    memcpy(changed, record, RECORD);
    changed[7] = 9; /* an unknown key */
    CHECK_EQ(refused(changed, RECORD, RECORD).refused_by, UM_TAG_KEY_UNKNOWN);
    CHECK_EQ(um_stream_tags_seal(other, changed, MESSAGE), 0);
    CHECK_EQ(refused(changed, RECORD, RECORD).refused_by, UM_TAG_WRONG);
    CHECK_EQ(um_stream_tags_seal(source, record, MESSAGE), 0); /* the second record without the first */
    CHECK_EQ(refused(record, RECORD, RECORD).refused_by, UM_TAG_REPLAYED);
    um_stream_tags_close(source);
    source = tags_of(true, 1);
    CHECK_EQ(um_stream_tags_seal(source, record, MESSAGE - 1), 0); /* an incomplete message */
    CHECK_EQ(refused(record, RECORD - 1, RECORD).broken_by, UM_DGRAM_SIZE);
    um_store_be32(record + 8, RECORD); /* longer than the space */
    CHECK_EQ(refused(record, RECORD - 1, RECORD).broken_by, UM_DGRAM_SIZE);
    um_stream_tags_close(source);
    um_stream_tags_close(other);
}

TEST("", "bytes that cannot be LBMC break the stream at once, and no message is returned")
{
    static const struct {
        uint8_t bytes[8];
        enum um_stream_part part;
        enum um_dgram_status broken_by;
    } cases[] = {
        {{0x00, 0, 0, 11}, UM_STREAM_BROKEN, UM_DGRAM_HDR},     /* shorter than its header */
        {{0x00, 0, 0, 0}, UM_STREAM_BROKEN, UM_DGRAM_HDR},      /* a length that would never advance */
        {{0x08, 255, 0, 3}, UM_STREAM_BROKEN, UM_DGRAM_HDR},    /* the same in a control message */
        {{0x10, 0, 0, 20}, UM_STREAM_BROKEN, UM_DGRAM_VERSION}, /* version 1 */
        {{'G', 'E', 'T', ' '}, UM_STREAM_BROKEN, UM_DGRAM_VERSION},
        {{0x02, 0, 0, 20}, UM_STREAM_BROKEN, UM_DGRAM_TYPE}, /* a recovery message */
        {{0x00, 0, 1, 1}, UM_STREAM_BROKEN, UM_DGRAM_SIZE},  /* longer than the maximum */
        {{0x00, 0, 0, 20}, UM_STREAM_MORE, UM_DGRAM_OK},
        {{0x01, 255, 0, 4}, UM_STREAM_END, UM_DGRAM_OK},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum um_dgram_status broken_by;
        CHECK_EQ(first_of(cases[i].bytes, 8, 256, &broken_by), cases[i].part);
        CHECK_EQ(broken_by, cases[i].broken_by);
    }
}

TEST("", "a client's backlog returns its bytes in order, in pieces of any size")
{
    enum { CAPACITY = 100 };
    um_random random = {check_seed()};
    uint8_t *memory = zeroed(CAPACITY);
    um_byte_ring ring = {.memory = memory, .capacity = CAPACITY};
    uint8_t next_in = 0, next_out = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        uint8_t piece[CAPACITY];
        uint32_t count = (uint32_t)um_random_below(&random, um_byte_ring_space(&ring) + 1), length;
        for (uint32_t k = 0; k < count; k++)
            piece[k] = next_in++;
        um_byte_ring_append(&ring, piece, count);
        CHECK(ring.used <= CAPACITY);
        const uint8_t *oldest = um_byte_ring_oldest(&ring, &length);
        CHECK(length <= ring.used && (length > 0 || ring.used == 0));
        length = (uint32_t)um_random_below(&random, length + 1);
        for (uint32_t k = 0; k < length; k++)
            CHECK_EQ(oldest[k], next_out++);
        um_byte_ring_drop(&ring, length);
    }
    free(memory);
}

TEST("", "a set of topics holds as many as its capacity, and loses none")
{
    um_random random = {check_seed()};
    void *memory = zeroed(um_topic_filter_footprint(UM_TOPIC_FILTER_TOPICS_MAX));
    um_topic_filter filter;
    um_topic_filter_init(&filter, memory, UM_TOPIC_FILTER_TOPICS_MAX);
    static bool wanted[3 * UM_TOPIC_FILTER_TOPICS_MAX];
    uint32_t count = 0, universe = 3 * UM_TOPIC_FILTER_TOPICS_MAX;
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t topic = (uint32_t)um_random_below(&random, universe);
        if (um_random_below(&random, 3) == 0) {
            um_topic_filter_remove(&filter, topic);
            count -= wanted[topic];
            wanted[topic] = false;
        } else {
            bool added = um_topic_filter_add(&filter, topic);
            CHECK_EQ(added, wanted[topic] || count < UM_TOPIC_FILTER_TOPICS_MAX);
            count += added && !wanted[topic];
            wanted[topic] |= added;
        }
        CHECK_EQ(filter.count, count);
    }
    for (uint32_t topic = 0; topic < universe; topic++)
        CHECK_EQ(um_topic_filter_has(&filter, topic), wanted[topic]);
    free(memory);
}

TEST("UX-27", "a topic filter copies messages of its topics, and of a TSNI their records")
{
    void *memory = zeroed(um_topic_filter_footprint(UM_TOPIC_FILTER_TOPICS_MAX));
    uint8_t sent[4096], passed[4096], expected[4096];
    um_topic_filter filter;
    um_topic_filter_init(&filter, memory, UM_TOPIC_FILTER_TOPICS_MAX);
    CHECK(um_topic_filter_add(&filter, 0) && um_topic_filter_add(&filter, 5));
    uint32_t bytes = 0, wanted = 0;
    for (uint32_t i = 0; i < 40; i++) {
        um_lbmc_layout layout = {.topic_index = i % 8, .sqn = i, .payload_length = i};
        uint8_t *begin = sent + bytes;
        memset(um_lbmc_write_message(begin, &layout), (int)i, i);
        bytes += UM_LBMC_HEADER_BYTES + i;
        if (i % 8 == 0 || i % 8 == 5) {
            memcpy(expected + wanted, begin, UM_LBMC_HEADER_BYTES + i);
            wanted += UM_LBMC_HEADER_BYTES + i;
        }
    }
    uint32_t topics[4] = {1, 5, 2, 0}, sqns[4] = {10, 50, 20, 90};
    uint32_t topics_wanted[2] = {5, 0}, sqns_wanted[2] = {50, 90};
    bytes += um_lbmc_write_tsni(sent + bytes, topics, sqns, 4);
    wanted += um_lbmc_write_tsni(expected + wanted, topics_wanted, sqns_wanted, 2);
    bytes += um_lbmc_write_tsni(sent + bytes, topics, sqns, 1); /* no record of it is copied */
    CHECK_EQ(um_topic_filter_copy(&filter, sent, bytes, passed), wanted);
    CHECK_BYTES(passed, expected, wanted);
    um_topic_filter_remove(&filter, 0);
    um_topic_filter_remove(&filter, 5);
    CHECK_EQ(um_topic_filter_copy(&filter, sent, bytes, passed), 0);
    free(memory);
}

static um_tcp_control only_control(const uint8_t *message, uint32_t length)
{
    um_tcp_control_reader reader = um_tcp_control_read(message, length);
    um_tcp_control control = um_tcp_control_next(&reader);
    CHECK_EQ(um_tcp_control_next(&reader).kind, UM_TCP_NOTHING);
    return control;
}

TEST("", "control messages of LBT-TCP are read back as they were written")
{
    uint8_t bytes[UM_TCP_CONTROL_BYTES_MAX];
    um_tcp_control control = only_control(bytes, um_tcp_write_session_id(bytes, 0x5eed0001));
    CHECK(control.kind == UM_TCP_SESSION_ID && control.session_id == 0x5eed0001);
    control =
        only_control(bytes, um_tcp_write_ssf_init(bytes, 0x5eed0002, 12, um_address_of_v4(0x0a000001, 14371), true));
    CHECK(control.kind == UM_TCP_SSF_INIT && control.session_id == 0x5eed0002 && control.client_index == 12);
    CHECK(control.is_answering);
    for (int included = 0; included < 2; included++) {
        control = only_control(bytes, um_tcp_write_ssf_request(bytes, included, 0x5eed0003, 13, 99));
        CHECK_EQ(control.kind, included ? UM_TCP_SSF_INCLUDE : UM_TCP_SSF_EXCLUDE);
        CHECK(control.session_id == 0x5eed0003 && control.client_index == 13 && control.topic_index == 99);
        um_tcp_control answer = only_control(bytes, um_tcp_write_ssf_answer(bytes, &control, 4000000000));
        CHECK(answer.kind == control.kind && answer.session_id == 0x5eed0003 && answer.topic_index == 99);
        CHECK_EQ(answer.client_index, 4000000000);
    }
    /* The stream accepts each message as a whole, and a message cut short yields no option that is not there. */
    uint32_t length = um_tcp_write_session_id(bytes, 1);
    for (uint32_t cut = UM_LBMC_CONTROL_BYTES; cut < length; cut++) {
        um_tcp_control_reader reader = um_tcp_control_read(bytes, cut);
        CHECK_EQ(um_tcp_control_next(&reader).kind, UM_TCP_NOTHING);
    }
}

CHECK_MAIN
