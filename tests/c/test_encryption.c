/* Encryption: which bytes of datagrams and records are encrypted, and which datagrams are refused.
 */
#include "authentication/stream_tags.h"
#include "authentication/tagging_link.h"
#include "authentication/verifiers.h"
#include "core/wire/datagram_piece.h"
#include "core/wire/payload_walk.h"
#include "support.h"

#define NOW_NS ((int64_t)1800000000 * NS_PER_S)
#define TOLERANCE_NS ((int64_t)60 * NS_PER_S)

enum { SPACE = 2048, PAYLOAD = 100 };

static um_mac_session session_over(enum um_transport transport)
{
    return (um_mac_session){UM_ADDRESS_V4(0x0a090001, 14390), UM_ADDRESS_V4(0xe00a0a0a, 14400), 0x5eed0001, transport};
}

static um_key key_of(bool encrypts)
{
    return (um_key){.id = 7, .encrypts = encrypts, .secret = {1, 2, 3}};
}

/* DATA with `count` messages of PAYLOAD bytes of 'p', the last one a fragment, and a control message; returns the
 * length. */
static uint32_t write_datagram(uint8_t *out, enum um_transport transport, uint32_t count)
{
    um_framing_write_data(transport, out, 0x5eed0001, 14390, 5, 1, false);
    uint8_t *at = out + UM_FRAMING_DATA_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        um_lbmc_layout layout = {.topic_index = 3, .sqn = 100 + i, .payload_length = PAYLOAD};
        if (i + 1 == count) {
            layout.flags = UM_MESSAGE_FRAGMENT;
            layout.first_sqn = layout.sqn;
            layout.total = 2 * PAYLOAD;
        }
        at = um_lbmc_write_message(at, &layout);
        memset(at, 'p', PAYLOAD);
        at += PAYLOAD;
    }
    uint32_t topic = 3, sqn = 99;
    at += um_lbmc_write_tsni(at, &topic, &sqn, 1);
    return (uint32_t)(at - out);
}

static uint32_t seal(uint8_t *datagram, uint32_t length, const um_key *key, enum um_transport transport, uint64_t count)
{
    um_mac mac;
    um_mac_session session = session_over(transport);
    CHECK_EQ(um_mac_open(&mac, UM_MAC_SESSION, key, &session), 0);
    um_trailer_write(datagram + length, key->id, um_stamp_next(count, NOW_NS));
    CHECK(um_mac_seal(&mac, session.source, datagram, length + UM_TRAILER_COVERED_BYTES));
    um_mac_close(&mac);
    return length + UM_TRAILER_BYTES;
}

static um_session_verifier *open_verifier(const um_key *key, enum um_transport transport)
{
    static um_session_verifier verifier;
    um_key_set keys = {1, {*key}};
    um_mac_session session = session_over(transport);
    CHECK_EQ(um_session_verifier_open(&verifier, &keys, UM_AUTHENTICATE_ALL, TOLERANCE_NS, &session), 0);
    return &verifier;
}

static enum um_tag_status verify(um_session_verifier *verifier, const uint8_t *datagram, uint32_t *length)
{
    return verifier->base.verify(&verifier->base, verifier->session.source, datagram, length, NOW_NS);
}

static uint32_t count_byte(const uint8_t *data, uint32_t length, uint8_t byte)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < length; i++)
        count += data[i] == byte;
    return count;
}

static void check_datagram(enum um_transport transport, uint32_t count)
{
    uint8_t plain[SPACE], datagram[SPACE];
    um_key key = key_of(true);
    uint32_t length = write_datagram(plain, transport, count), at = 0, offset, payload, seen = 0;
    memcpy(datagram, plain, length);
    uint32_t sealed = seal(datagram, length, &key, transport, 5), whole = sealed;
    um_trailer trailer;
    CHECK(um_trailer_read(datagram, sealed, &trailer) && trailer.is_encrypted);
    const uint8_t *messages = datagram + UM_FRAMING_DATA_BYTES;
    uint32_t messages_bytes = length - UM_FRAMING_DATA_BYTES, end = 0;
    CHECK(memcmp(datagram, plain, UM_FRAMING_DATA_BYTES) == 0);
    while (um_payload_next(messages, messages_bytes, &at, &offset, &payload)) {
        const uint8_t *before = plain + UM_FRAMING_DATA_BYTES;
        CHECK_EQ(payload, PAYLOAD);
        CHECK(memcmp(messages + end, before + end, offset - end) == 0); /* headers stay */
        CHECK(memcmp(messages + offset, before + offset, payload) != 0);
        CHECK(count_byte(messages + offset, payload, 'p') < 10);
        end = offset + payload;
        seen++;
    }
    CHECK_EQ(seen, count);
    um_session_verifier *verifier = open_verifier(&key, transport);
    CHECK_EQ(verify(verifier, datagram, &sealed), UM_TAG_OK);
    CHECK_EQ(sealed, length);
    CHECK(memcmp(datagram, plain, length) == 0);
    CHECK_EQ(whole - sealed, UM_TRAILER_BYTES);
    um_session_verifier_close(verifier);
}

TEST("", "payloads are encrypted, headers are not, and the receiver gets the datagram back")
{
    for (uint32_t count = 1; count < 8; count++) {
        check_datagram(UM_TRANSPORT_LBTRM, count);
        check_datagram(UM_TRANSPORT_LBTRU, count);
    }
}

TEST("", "a datagram without messages is covered, too")
{
    uint8_t datagram[SPACE];
    um_key key = key_of(true);
    uint32_t length = um_lbtrm_write_sm(datagram, 0x5eed0001, 14390, 1, 0x69, 0x64);
    uint32_t sealed = seal(datagram, length, &key, UM_TRANSPORT_LBTRM, 5), whole = sealed;
    um_session_verifier *verifier = open_verifier(&key, UM_TRANSPORT_LBTRM);
    datagram[length - 1] ^= 1;
    CHECK_EQ(verify(verifier, datagram, &sealed), UM_TAG_WRONG);
    datagram[length - 1] ^= 1;
    sealed = whole;
    CHECK_EQ(verify(verifier, datagram, &sealed), UM_TAG_OK);
    um_session_verifier_close(verifier);
}

TEST("", "a datagram with any bit flipped is refused")
{
    uint8_t original[SPACE], datagram[SPACE];
    um_key key = key_of(true);
    uint32_t length = write_datagram(original, UM_TRANSPORT_LBTRM, 3);
    uint32_t sealed = seal(original, length, &key, UM_TRANSPORT_LBTRM, 5), tag_at = sealed - UM_TAG_BYTES;
    um_session_verifier *verifier = open_verifier(&key, UM_TRANSPORT_LBTRM);
    for (uint32_t bit = 0; bit < 8 * sealed; bit++) {
        uint32_t left = sealed;
        memcpy(datagram, original, sealed);
        datagram[bit / 8] ^= (uint8_t)(1 << bit % 8);
        enum um_tag_status status = verify(verifier, datagram, &left);
        CHECK(status != UM_TAG_OK);
        if (bit < 8 * length || bit >= 8 * tag_at)
            CHECK_EQ(status, UM_TAG_WRONG);
    }
    memcpy(datagram, original, sealed);
    CHECK_EQ(verify(verifier, datagram, &sealed), UM_TAG_OK);
    um_session_verifier_close(verifier);
}

TEST("", "a retransmission, which has another stamp, shares no payload byte sequence with the first transmission")
{
    uint8_t first[SPACE], second[SPACE];
    um_key key = key_of(true);
    uint32_t length = write_datagram(first, UM_TRANSPORT_LBTRM, 1);
    memcpy(second, first, length);
    seal(first, length, &key, UM_TRANSPORT_LBTRM, 5);
    seal(second, length, &key, UM_TRANSPORT_LBTRM, 6);
    uint32_t equal = 0, at = UM_FRAMING_DATA_BYTES + UM_LBMC_HEADER_BYTES + UM_LBMC_FRAGMENT_BYTES;
    for (uint32_t i = at; i < at + PAYLOAD; i++)
        equal += first[i] == second[i];
    CHECK(equal < 8);
}

TEST("", "hosts that encrypt and hosts that do not refuse each other by name")
{
    for (int encrypts = 0; encrypts < 2; encrypts++) {
        uint8_t datagram[SPACE];
        um_key ours = key_of(encrypts), theirs = key_of(!encrypts);
        uint32_t length = write_datagram(datagram, UM_TRANSPORT_LBTRM, 2);
        uint32_t sealed = seal(datagram, length, &theirs, UM_TRANSPORT_LBTRM, 5);
        um_session_verifier *verifier = open_verifier(&ours, UM_TRANSPORT_LBTRM);
        CHECK_EQ(verify(verifier, datagram, &sealed), UM_TAG_ENCRYPTION);
        um_session_verifier_close(verifier);
    }
}

TEST("", "a control message is never encrypted, whatever its trailer states")
{
    uint8_t datagram[SPACE];
    um_key key = key_of(true);
    um_key_set keys = {1, {key}};
    um_mac mac;
    um_senders_verifier verifier;
    um_address from = UM_ADDRESS_V4(0x0a090002, 40000);
    uint32_t length = um_lbtrm_write_nak(datagram, 0x5eed0001, 14390, (uint32_t[]){5}, 1);
    CHECK_EQ(um_mac_open(&mac, UM_MAC_CONTROL, &key, NULL), 0);
    um_trailer_write(datagram + length, key.id, um_stamp_next(5, NOW_NS));
    CHECK(um_mac_seal(&mac, from, datagram, length + UM_TRAILER_COVERED_BYTES));
    um_mac_close(&mac);
    CHECK_EQ(um_senders_verifier_open(&verifier, &keys, UM_MAC_CONTROL, TOLERANCE_NS), 0);
    uint32_t sealed = length + UM_TRAILER_BYTES;
    um_trailer_mark_encrypted(datagram + length);
    CHECK_EQ(verifier.base.verify(&verifier.base, from, datagram, &sealed, NOW_NS), UM_TAG_WRONG);
    datagram[length + 7] = 0;
    CHECK_EQ(verifier.base.verify(&verifier.base, from, datagram, &sealed, NOW_NS), UM_TAG_OK);
    um_senders_verifier_close(&verifier);
}

TEST("", "a piece of a datagram is one payload, and so is everything behind an undecodable header")
{
    uint8_t data[SPACE], inner[PAYLOAD];
    memset(inner, 'p', sizeof inner);
    um_datagram_piece piece = {.sqn = 5, .total_bytes = 2 * PAYLOAD, .index = 0, .count = 2, .data = inner};
    uint32_t head = um_datagram_piece_encode(data, &piece), at = 0, offset, length;
    memcpy(data + head, inner, sizeof inner);
    CHECK(um_payload_next(data, head + PAYLOAD, &at, &offset, &length));
    CHECK_EQ(offset, head);
    CHECK_EQ(length, PAYLOAD);
    CHECK(!um_payload_next(data, head + PAYLOAD, &at, &offset, &length));
    for (uint32_t type = 0; type < 256; type++) { /* a first byte with an unknown version or type */
        if (type == UM_LBMC_MESSAGE || type == UM_LBMC_END || type == UM_LBMC_PROACTIVE || type == UM_LBMC_RECOVERED ||
            type == UM_LBMC_CONTROL)
            continue;
        at = 0;
        memset(data, 0, sizeof data);
        data[0] = (uint8_t)type;
        data[3] = 64;
        CHECK(um_payload_next(data, 100, &at, &offset, &length));
        CHECK_EQ(offset, 0);
        CHECK_EQ(length, 100);
    }
}

TEST("", "the first record of a source matches a known answer from an implementation without libcrypto")
{
    static const uint8_t CONNECTION[] = "both greetings";
    static const uint8_t EXPECTED[] = {0x66, 0x7e, 0xc0, 0xfd}; /* tests/tag_oracle.py */
    static const uint8_t TAG[] = {0x2d, 0x74, 0x75, 0xec, 0x16, 0xc5, 0xe5, 0x44, 0x27, 0xef, 0x7d, 0x4b};
    um_key key = key_of(true);
    um_stream_tags *source = um_stream_tags_open(&key, UM_STREAM_REQUESTS, true, CONNECTION, sizeof CONNECTION);
    uint8_t record[64];
    um_lbmc_layout layout = {.topic_index = 3, .sqn = 100, .payload_length = sizeof EXPECTED};
    uint8_t *payload = um_lbmc_write_message(record + UM_RECORD_HEADER_BYTES, &layout);
    memset(payload, 'p', sizeof EXPECTED);
    CHECK_EQ(um_stream_tags_seal(source, record, UM_LBMC_HEADER_BYTES + sizeof EXPECTED), 0);
    CHECK(memcmp(payload, EXPECTED, sizeof EXPECTED) == 0);
    CHECK(memcmp(record + UM_RECORD_COVERED_BYTES, TAG, sizeof TAG) == 0);
    um_stream_tags_close(source);
}

TEST("", "the payloads of records are encrypted in both directions, and records of hosts that do not are refused")
{
    static const uint8_t CONNECTION[] = "both greetings";
    um_key key = key_of(true), plain = key_of(false);
    um_stream_tags *receiver = um_stream_tags_open(&key, UM_STREAM_REQUESTS, false, CONNECTION, sizeof CONNECTION);
    um_stream_tags *source = um_stream_tags_open(&key, UM_STREAM_REQUESTS, true, CONNECTION, sizeof CONNECTION);
    um_stream_tags *other = um_stream_tags_open(&plain, UM_STREAM_REQUESTS, true, CONNECTION, sizeof CONNECTION);
    CHECK(um_stream_tags_encrypt(source) && !um_stream_tags_encrypt(other));
    uint8_t record[SPACE], messages[SPACE];
    for (uint32_t n = 1; n < 10; n++) {
        uint32_t length = write_datagram(messages, UM_TRANSPORT_LBTRM, n) - UM_FRAMING_DATA_BYTES;
        memmove(messages, messages + UM_FRAMING_DATA_BYTES, length);
        memcpy(record + UM_RECORD_HEADER_BYTES, messages, length);
        CHECK_EQ(um_stream_tags_seal(n % 2 ? source : receiver, record, length), 0);
        CHECK(count_byte(record + UM_RECORD_HEADER_BYTES, length, 'p') < 10 * n);
        CHECK(memcmp(record + UM_RECORD_HEADER_BYTES, messages, UM_LBMC_HEADER_BYTES) == 0);
        CHECK_EQ(um_stream_tags_verify(n % 2 ? receiver : source, record), UM_TAG_OK);
        CHECK(memcmp(record + UM_RECORD_HEADER_BYTES, messages, length) == 0);
    }
    memset(record + UM_RECORD_HEADER_BYTES, 0, PAYLOAD);
    CHECK_EQ(um_stream_tags_seal(other, record, PAYLOAD), 0);
    CHECK_EQ(um_stream_tags_verify(receiver, record), UM_TAG_WRONG);
    um_stream_tags_close(other);
    um_stream_tags_close(source);
    um_stream_tags_close(receiver);
}

CHECK_MAIN
