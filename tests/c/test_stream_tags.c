/* Tags on connections of the request protocol: what a side seals the other accepts once and in order, and nothing else.
 */
#include "authentication/stream_tags.h"
#include "support.h"

enum { MESSAGES = 100, RECORD = UM_RECORD_HEADER_BYTES + MESSAGES };

static const char CONNECTION[] = "what both sides know";

static um_stream_tags *side(bool is_server, uint8_t secret, const char *connection)
{
    um_key key = {.id = 7};
    memset(key.secret, secret, sizeof key.secret);
    um_stream_tags *tags = um_stream_tags_open(&key, is_server, connection, (uint32_t)strlen(connection));
    CHECK(tags != NULL);
    return tags;
}

static void seal(um_stream_tags *tags, char *record, uint8_t fill)
{
    memset(record + UM_RECORD_HEADER_BYTES, fill, MESSAGES);
    CHECK_EQ(um_stream_tags_seal(tags, record, MESSAGES), 0);
}

TEST("UM-138", "both directions, each in its order")
{
    um_stream_tags *receiver = side(false, 1, CONNECTION), *source = side(true, 1, CONNECTION);
    char record[RECORD];
    for (uint32_t n = 0; n < 10; n++) {
        seal(receiver, record, (uint8_t)n);
        CHECK_EQ(um_stream_record_bytes(record, RECORD), RECORD);
        CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_OK);
        seal(source, record, (uint8_t)n);
        CHECK_EQ(um_stream_tags_verify(receiver, record), UM_TAG_OK);
    }
    um_stream_tags_close(receiver);
    um_stream_tags_close(source);
}

TEST("UM-138", "any bit flipped is wrong, and leaves the right record to be accepted")
{
    um_stream_tags *receiver = side(false, 1, CONNECTION), *source = side(true, 1, CONNECTION);
    char record[RECORD];
    seal(receiver, record, 5);
    for (uint32_t bit = 8 * 12; bit < 8 * RECORD; bit++) { /* the head and the length are read before */
        record[bit / 8] ^= (char)(1 << bit % 8);
        CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_WRONG);
        record[bit / 8] ^= (char)(1 << bit % 8);
    }
    record[11]--; /* a record that claims to be shorter */
    CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_WRONG);
    record[11]++;
    CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_OK);
    um_stream_tags_close(receiver);
    um_stream_tags_close(source);
}

TEST("UM-138", "a record is accepted in its place only")
{
    um_stream_tags *receiver = side(false, 1, CONNECTION), *source = side(true, 1, CONNECTION);
    char first[RECORD], second[RECORD];
    seal(receiver, first, 1);
    seal(receiver, second, 2);
    CHECK_EQ(um_stream_tags_verify(source, second), UM_TAG_REPLAYED);
    CHECK_EQ(um_stream_tags_verify(source, first), UM_TAG_OK);
    CHECK_EQ(um_stream_tags_verify(source, first), UM_TAG_REPLAYED);
    CHECK_EQ(um_stream_tags_verify(source, second), UM_TAG_OK);
    um_stream_tags_close(receiver);
    um_stream_tags_close(source);
}

TEST("UM-138", "nothing of another key, connection or direction is right")
{
    um_stream_tags *source = side(true, 1, CONNECTION);
    um_stream_tags *others[] = {side(false, 2, CONNECTION), side(false, 1, "another"), side(true, 1, CONNECTION)};
    char record[RECORD];
    for (uint32_t i = 0; i < sizeof others / sizeof *others; i++) {
        seal(others[i], record, 1);
        CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_WRONG);
        um_stream_tags_close(others[i]);
    }
    um_stream_tags_close(source);
}

TEST("UM-138", "headers are told from greetings and from all else as soon as they can be")
{
    um_stream_tags *source = side(true, 1, CONNECTION);
    char record[RECORD];
    seal(source, record, 1);
    for (uint32_t length = 0; length < UM_RECORD_HEADER_BYTES; length++) {
        char *exact = malloc(length > 0 ? length : 1); /* so that a read beyond it is seen */
        memcpy(exact, record, length);
        CHECK_EQ(um_stream_record_bytes(exact, length), -EAGAIN);
        if (length > 0) {
            exact[length < 8 ? length - 1 : 7] ^= 1;
            CHECK_EQ(um_stream_record_bytes(exact, length), -EBADMSG);
        }
        free(exact);
    }
    um_store_be32((uint8_t *)record + 8, UM_RECORD_BYTES_MAX);
    CHECK_EQ(um_stream_record_bytes(record, RECORD), UM_RECORD_HEADER_BYTES + UM_RECORD_BYTES_MAX);
    um_store_be32((uint8_t *)record + 8, UM_RECORD_BYTES_MAX + 1);
    CHECK_EQ(um_stream_record_bytes(record, RECORD), -EBADMSG);
    um_store_be32((uint8_t *)record + 8, 0);
    CHECK_EQ(um_stream_record_bytes(record, RECORD), 0);
    um_stream_tags_close(source);
}

TEST("UM-138", "more than a key is derived from is refused")
{
    um_key key = {.id = 1};
    char connection[4096] = {0};
    CHECK(um_stream_tags_open(&key, true, connection, sizeof connection) == NULL);
}

CHECK_MAIN
