/* Records on a byte stream, and an attacker on the path: records are passed, held back, repeated, swapped, changed, cut
 * and mixed with those of another connection and with other bytes, in pieces of any size, while keys rotate. Messages
 * taken from the stream are those of the honest side, from the first one on, in order and whole; no message after a
 * wrong byte is taken. Each input runs with keys that tag, and with keys that encrypt.
 */
#include "fuzz.h"

#include "authentication/stream_tags.h"
#include "core/wire/message_stream.h"

enum { RECORDS_MAX = 24, MESSAGES_MAX = 512, TEXT_MAX = RECORDS_MAX * MESSAGES_MAX, CAPACITY = 2048, RUN_MAX = 200 };

typedef struct record {
    uint8_t bytes[UM_RECORD_HEADER_BYTES + MESSAGES_MAX];
    uint8_t messages[MESSAGES_MAX]; /* before encryption */
    uint32_t length;
} record;

typedef struct world {
    bool encrypts;
    um_stream_tags *source;
    um_stream_tags *other; /* the same side of another connection */
    um_stream_tags *receiver;
    um_message_stream stream;
    uint8_t memory[CAPACITY];
    record made[RECORDS_MAX];
    uint32_t made_count;
    uint32_t passed_count;  /* unchanged records, from the first one on */
    bool is_spoilt;         /* other bytes have arrived since */
    uint8_t text[TEXT_MAX]; /* messages of the unchanged records */
    uint32_t text_bytes;
    uint8_t taken[TEXT_MAX];
    uint32_t taken_bytes;
    bool is_broken;
} world;

static world w;

static um_key key_of(uint8_t id)
{
    um_key key = {.id = id, .encrypts = w.encrypts};
    memset(key.secret, id, sizeof key.secret);
    return key;
}

static void begin(bool encrypts)
{
    static const uint8_t HERE[] = "one connection", THERE[] = "another";
    w.encrypts = encrypts;
    um_key key = key_of(1);
    w.source = um_stream_tags_open(&key, UM_STREAM_SESSION, true, HERE, sizeof HERE);
    w.other = um_stream_tags_open(&key, UM_STREAM_SESSION, true, THERE, sizeof THERE);
    w.receiver = um_stream_tags_open(&key, UM_STREAM_SESSION, false, HERE, sizeof HERE);
    REQUIRE(w.source != NULL && w.other != NULL && w.receiver != NULL);
    um_message_stream_init(&w.stream, w.memory, CAPACITY, CAPACITY);
    um_message_stream_verify(&w.stream, um_stream_tags_verifier(w.receiver));
    w.made_count = w.passed_count = w.text_bytes = w.taken_bytes = 0;
    w.is_spoilt = w.is_broken = false;
}

static void end(void)
{
    um_stream_tags_close(w.source);
    um_stream_tags_close(w.other);
    um_stream_tags_close(w.receiver);
}

/* ---- the honest side ---- */

static uint32_t write_messages(fuzz_input *input, uint8_t *out)
{
    uint32_t count = 1 + take_u8(input) % 4, bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t payload = take_u8(input) % 100;
        um_lbmc_layout layout = {.topic_index = 7, .sqn = i, .payload_length = payload};
        memset(um_lbmc_write_message(out + bytes, &layout), take_u8(input), payload);
        bytes += UM_LBMC_HEADER_BYTES + payload;
    }
    return bytes;
}

static void make(fuzz_input *input)
{
    if (w.made_count == RECORDS_MAX)
        return;
    record *made = &w.made[w.made_count++];
    uint32_t bytes = write_messages(input, made->messages);
    memcpy(made->bytes + UM_RECORD_HEADER_BYTES, made->messages, bytes);
    REQUIRE(um_stream_tags_seal(w.source, made->bytes, bytes) == 0);
    made->length = UM_RECORD_HEADER_BYTES + bytes;
}

/* The receiver gets new keys first, as in a rotation. */
static void rotate(fuzz_input *input)
{
    uint8_t first = take_u8(input) % 3 + 1, second = first % 3 + 1;
    um_key_set both = {2, {key_of(second), key_of(first)}}, sends = {2, {key_of(first), key_of(second)}};
    if (w.made_count != w.passed_count) /* the keys of records in transit stay in use */
        return;
    um_key_set all = {2, {key_of(first), key_of(second)}};
    REQUIRE(um_stream_tags_set_keys(w.receiver, &both) == 0);
    REQUIRE(um_stream_tags_set_keys(w.source, &sends) == 0);
    REQUIRE(um_stream_tags_set_keys(w.receiver, &all) == 0);
}

/* ---- the path ---- */

static void take(void)
{
    const uint8_t *data;
    uint32_t length;
    enum um_stream_part part;
    while ((part = um_message_stream_next(&w.stream, RUN_MAX, &data, &length)) == UM_STREAM_MESSAGES) {
        REQUIRE(length > 0 && data >= w.memory && data + length <= w.memory + w.stream.end);
        REQUIRE(w.taken_bytes + length <= w.text_bytes);
        memcpy(w.taken + w.taken_bytes, data, length);
        w.taken_bytes += length;
    }
    REQUIRE(part == UM_STREAM_MORE || part == UM_STREAM_BROKEN);
    REQUIRE(memcmp(w.taken, w.text, w.taken_bytes) == 0);
    w.is_broken = part == UM_STREAM_BROKEN;
    REQUIRE(w.is_broken || w.is_spoilt || w.taken_bytes == w.text_bytes);
    REQUIRE(!w.is_broken || w.is_spoilt);
}

static void feed(fuzz_input *input, const uint8_t *bytes, uint32_t length)
{
    uint8_t cut = take_u8(input);
    while (length > 0 && !w.is_broken) {
        uint32_t space, piece = cut % 4 == 0 ? length : cut;
        uint8_t *into = um_message_stream_space(&w.stream, &space);
        REQUIRE(space > 0);
        piece = piece < length ? piece : length;
        piece = piece < space ? piece : space;
        memcpy(into, bytes, piece);
        um_message_stream_add(&w.stream, piece);
        bytes += piece;
        length -= piece;
        if (length == 0 || w.is_spoilt)
            take();
        else { /* no message of a record is taken before the record is complete */
            const uint8_t *data;
            uint32_t taken;
            REQUIRE(um_message_stream_next(&w.stream, RUN_MAX, &data, &taken) == UM_STREAM_MORE);
        }
    }
}

/* The next record, unchanged. */
static void pass(fuzz_input *input)
{
    if (w.passed_count == w.made_count)
        return;
    record *next = &w.made[w.passed_count];
    if (!w.is_spoilt) {
        uint32_t bytes = next->length - UM_RECORD_HEADER_BYTES;
        memcpy(w.text + w.text_bytes, next->messages, bytes);
        w.text_bytes += bytes;
        w.passed_count++;
    }
    feed(input, next->bytes, next->length);
}

static void spoil(fuzz_input *input)
{
    uint8_t bytes[UM_RECORD_HEADER_BYTES + MESSAGES_MAX], how = take_u8(input) % 5;
    uint32_t length;
    if (w.made_count == 0 && how != 4)
        return;
    uint32_t which = take_u8(input) % (w.made_count > 0 ? w.made_count : 1), at = take_u16(input);
    const record *made = &w.made[which];
    memcpy(bytes, made->bytes, made->length);
    length = made->length;
    if (how == 0) { /* a bit */
        bytes[at % length] ^= (uint8_t)(1 << take_u8(input) % 8);
    } else if (how == 1) { /* cut, with a matching length */
        uint32_t left = at % (length - UM_RECORD_HEADER_BYTES);
        um_store_be32(bytes + 8, left);
        length = UM_RECORD_HEADER_BYTES + left;
    } else if (how == 2) { /* out of order */
        if (which == w.passed_count && !w.is_spoilt)
            return;
    } else if (how == 3) { /* of another connection */
        uint32_t messages_bytes = length - UM_RECORD_HEADER_BYTES;
        REQUIRE(um_stream_tags_seal(w.other, bytes, messages_bytes) == 0);
    } else {
        fuzz_input raw = take_bytes(input, 1 + take_u8(input) % 64);
        length = (uint32_t)raw.left;
        if (length == 0)
            return;
        memcpy(bytes, raw.at, length);
    }
    w.is_spoilt = true;
    feed(input, bytes, length);
}

static void run(fuzz_input input, bool encrypts)
{
    begin(encrypts);
    while (input.left > 0 && !w.is_broken) {
        switch (take_u8(&input) % 8) {
        case 0:
        case 1:
        case 2:
            make(&input);
            break;
        case 3:
        case 4:
        case 5:
            pass(&input);
            break;
        case 6:
            rotate(&input);
            break;
        default:
            spoil(&input);
        }
    }
    end();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    run(input, false);
    run(input, true);
    return 0;
}
