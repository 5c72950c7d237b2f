/* Tags on connections of the request protocol: each side accepts records of the other once and in order, and no others.
 */
#include "authentication/stream_tags.h"
#include "support.h"

enum { MESSAGES = 100, RECORD = UM_RECORD_HEADER_BYTES + MESSAGES };

static const char CONNECTION[] = "what both sides know";

static um_stream_tags *side(bool is_server, uint8_t secret, const char *connection)
{
    um_key key = {.id = 7};
    memset(key.secret, secret, sizeof key.secret);
    um_stream_tags *tags = um_stream_tags_open(&key, UM_STREAM_REQUESTS, is_server, (const uint8_t *)connection,
                                               (uint32_t)strlen(connection));
    CHECK(tags != NULL);
    return tags;
}

static void seal(um_stream_tags *tags, uint8_t *record, uint8_t fill)
{
    memset(record + UM_RECORD_HEADER_BYTES, fill, MESSAGES);
    CHECK_EQ(um_stream_tags_seal(tags, record, MESSAGES), 0);
}

TEST("", "records are accepted in both directions, each in its order")
{
    um_stream_tags *receiver = side(false, 1, CONNECTION), *source = side(true, 1, CONNECTION);
    uint8_t record[RECORD];
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

TEST("", "a record with any bit flipped is refused, and the right record is still accepted")
{
    um_stream_tags *receiver = side(false, 1, CONNECTION), *source = side(true, 1, CONNECTION);
    uint8_t record[RECORD];
    seal(receiver, record, 5);
    for (uint32_t bit = 8 * 12; bit < 8 * RECORD; bit++) { /* the head and the length are checked first */
        record[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_WRONG);
        record[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    record[11]--; /* a shorter length */
    CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_WRONG);
    record[11]++;
    CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_OK);
    um_stream_tags_close(receiver);
    um_stream_tags_close(source);
}

TEST("", "a record is accepted only in its place")
{
    um_stream_tags *receiver = side(false, 1, CONNECTION), *source = side(true, 1, CONNECTION);
    uint8_t first[RECORD], second[RECORD];
    seal(receiver, first, 1);
    seal(receiver, second, 2);
    CHECK_EQ(um_stream_tags_verify(source, second), UM_TAG_REPLAYED);
    CHECK_EQ(um_stream_tags_verify(source, first), UM_TAG_OK);
    CHECK_EQ(um_stream_tags_verify(source, first), UM_TAG_REPLAYED);
    CHECK_EQ(um_stream_tags_verify(source, second), UM_TAG_OK);
    um_stream_tags_close(receiver);
    um_stream_tags_close(source);
}

TEST("", "records of another key, connection or direction are refused")
{
    um_stream_tags *source = side(true, 1, CONNECTION);
    um_stream_tags *others[] = {side(false, 2, CONNECTION), side(false, 1, "another"), side(true, 1, CONNECTION)};
    uint8_t record[RECORD];
    for (uint32_t i = 0; i < sizeof others / sizeof *others; i++) {
        seal(others[i], record, 1);
        CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_WRONG);
        um_stream_tags_close(others[i]);
    }
    um_stream_tags_close(source);
}

TEST("", "headers, greetings and other bytes are distinguished as early as possible")
{
    um_stream_tags *source = side(true, 1, CONNECTION);
    uint8_t record[RECORD];
    seal(source, record, 1);
    for (uint32_t length = 0; length < UM_RECORD_HEADER_BYTES; length++) {
        uint8_t *exact = malloc(length > 0 ? length : 1); /* so that AddressSanitizer detects a read beyond it */
        memcpy(exact, record, length);
        CHECK_EQ(um_stream_record_bytes(exact, length), -EAGAIN);
        if (length > 0) {
            exact[length < 7 ? length - 1 : 6] ^= 1;
            CHECK_EQ(um_stream_record_bytes(exact, length), -EBADMSG);
        }
        free(exact);
    }
    um_store_be32(record + 8, UM_RECORD_BYTES_MAX);
    CHECK_EQ(um_stream_record_bytes(record, RECORD), UM_RECORD_HEADER_BYTES + UM_RECORD_BYTES_MAX);
    um_store_be32(record + 8, UM_RECORD_BYTES_MAX + 1);
    CHECK_EQ(um_stream_record_bytes(record, RECORD), -EBADMSG);
    um_store_be32(record + 8, 0);
    CHECK_EQ(um_stream_record_bytes(record, RECORD), 0);
    um_stream_tags_close(source);
}

TEST("", "a greeting carries its kind, subject and key, and its own nonce")
{
    uint8_t first[UM_RECORD_HEADER_BYTES], second[UM_RECORD_HEADER_BYTES];
    for (int kind = 0; kind < UM_STREAM_KINDS; kind++) {
        um_stream_greeting said = {(enum um_stream_kind)kind, 0x01020304, 9, kind == 1}, read;
        CHECK_EQ(um_stream_greeting_write(first, &said), 0);
        CHECK_EQ(um_stream_greeting_write(second, &said), 0);
        CHECK_EQ(um_stream_record_bytes(first, sizeof first), 0);
        CHECK_EQ(memcmp(first, second, 17), 0);
        CHECK(memcmp(first + 17, second + 17, 11) != 0);
        CHECK(um_stream_greeting_read(first, &read));
        CHECK_EQ(read.kind, said.kind);
        CHECK_EQ(read.subject, said.subject);
        CHECK_EQ(read.key_id, said.key_id);
        CHECK_EQ(read.is_encrypted, said.is_encrypted);
        for (uint32_t byte = 0; byte < 12; byte++) { /* no greeting, or an unknown kind */
            memcpy(second, first, sizeof second);
            second[byte] ^= 0x40;
            CHECK(!um_stream_greeting_read(second, &read));
        }
    }
}

TEST("", "kinds of connections share no keys")
{
    um_key key = {.id = 7};
    uint8_t record[RECORD];
    um_stream_tags *server = um_stream_tags_open(&key, UM_STREAM_REQUESTS, true, (const uint8_t *)"x", 1);
    for (int kind = 0; kind < UM_STREAM_KINDS; kind++) {
        um_stream_tags *client = um_stream_tags_open(&key, (enum um_stream_kind)kind, false, (const uint8_t *)"x", 1);
        seal(client, record, 1);
        CHECK_EQ(um_stream_tags_verify(server, record), kind == UM_STREAM_REQUESTS ? UM_TAG_OK : UM_TAG_WRONG);
        um_stream_tags_close(client);
    }
    um_stream_tags_close(server);
}

TEST("", "different keys with one identifier have different checks")
{
    um_key first = {.id = 7}, second = {.id = 7, .secret = {1}};
    CHECK(um_stream_key_check(&first) != um_stream_key_check(&second));
    CHECK_EQ(um_stream_key_check(&first), um_stream_key_check(&first));
}

TEST("", "a direction changes its key, which its next record names")
{
    um_key old = {.id = 7, .secret = {1}}, new = {.id = 8, .secret = {2}};
    const um_key_set both = {2, {old, new}}, turned = {2, {new, old}}, last = {1, {new}};
    const uint8_t *connection = (const uint8_t *)CONNECTION;
    um_stream_tags *source = um_stream_tags_open(&old, UM_STREAM_SESSION, true, connection, 4);
    um_stream_tags *receiver = um_stream_tags_open(&old, UM_STREAM_SESSION, false, connection, 4);
    uint8_t record[RECORD];
    seal(source, record, 0);
    CHECK_EQ(um_stream_tags_verify(receiver, record), UM_TAG_OK);
    CHECK_EQ(um_stream_tags_set_keys(source, &turned), 0);
    seal(source, record, 1);
    CHECK_EQ(um_stream_record_read(record).number, 1); /* the numbers continue */
    CHECK_EQ(record[7], new.id);
    CHECK_EQ(um_stream_tags_verify(receiver, record), UM_TAG_KEY_UNKNOWN); /* not known to the receiver yet */
    CHECK_EQ(um_stream_tags_set_keys(receiver, &both), 0);
    CHECK_EQ(um_stream_tags_verify(receiver, record), UM_TAG_OK);
    seal(source, record, 2);
    CHECK_EQ(record[7], 0); /* named once */
    CHECK_EQ(um_stream_tags_verify(receiver, record), UM_TAG_OK);
    seal(receiver, record, 3); /* the other direction still uses its old key */
    CHECK_EQ(record[7], 0);
    CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_OK);
    seal(receiver, record, 4);
    CHECK_EQ(um_stream_tags_set_keys(source, &last), 0);
    CHECK_EQ(um_stream_tags_verify(source, record), UM_TAG_KEY_UNKNOWN); /* the old key is no longer in use */
    um_stream_tags_close(source);
    um_stream_tags_close(receiver);
}

TEST("", "a connection identity too long for key derivation is refused")
{
    um_key key = {.id = 1};
    uint8_t connection[4096] = {0};
    CHECK(um_stream_tags_open(&key, UM_STREAM_REQUESTS, true, connection, sizeof connection) == NULL);
}

CHECK_MAIN
