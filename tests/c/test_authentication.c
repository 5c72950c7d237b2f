/* Authentication: tags against answers computed without libcrypto (tests/tag_oracle.py), datagrams that are refused,
 * stamps and windows at their wrap, rotation, and sizes.
 */
#include "authentication/resolution.h"
#include "authentication/tagging_link.h"
#include "authentication/verifiers.h"
#include "support.h"

#define NOW_NS ((int64_t)1800000000 * NS_PER_S) /* of the wall clock */
#define TOLERANCE_NS ((int64_t)60 * NS_PER_S)

static const um_mac_session SESSION = {UM_ADDRESS_V4(0x0a090001, 14390), UM_ADDRESS_V4(0xe00a0a0a, 14400), 0x5eed0001,
                                       UM_TRANSPORT_LBTRM};
static const um_address RECEIVER = UM_ADDRESS_V4(0x0a090002, 40000);

static um_key key_of(uint8_t id)
{
    um_key key = {.id = id};
    for (uint32_t i = 0; i < UM_KEY_BYTES; i++)
        key.secret[i] = (uint8_t)(i + (id == 7 ? 0 : id));
    return key;
}

static um_key_set set_of(uint8_t first, uint8_t second)
{
    return (um_key_set){second != 0 ? 2 : 1, {key_of(first), key_of(second)}};
}

/* A session message and its trailer with this key and stamp; returns the length. */
static uint32_t tagged_sm(uint8_t *out, enum um_mac_purpose purpose, const um_key *key, uint64_t stamp)
{
    um_mac mac;
    uint32_t length = um_lbtrm_write_sm(out, SESSION.session_id, SESSION.source.port, 1, 0x69, 0x64);
    uint32_t covered = length + UM_TRAILER_COVERED_BYTES;
    CHECK_EQ(um_mac_open(&mac, purpose, key, purpose == UM_MAC_SESSION ? &SESSION : NULL), 0);
    um_trailer_write(out + length, key->id, stamp);
    CHECK(um_mac_tag(&mac, RECEIVER, out, covered, out + covered));
    um_mac_close(&mac);
    return length + UM_TRAILER_BYTES;
}

static void check_tag(const uint8_t *datagram, uint32_t length, const char *hex)
{
    char text[2 * UM_TAG_BYTES + 1];
    for (uint32_t i = 0; i < UM_TAG_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", datagram[length - UM_TAG_BYTES + i]);
    CHECK(strcmp(text, hex) == 0);
}

TEST("", "tags match known answers from an implementation without libcrypto")
{
    uint8_t datagram[64];
    um_key key = key_of(7);
    check_tag(datagram, tagged_sm(datagram, UM_MAC_SESSION, &key, 0x123456789abcd), "7b13b0532e76786941157e94");
    check_tag(datagram, tagged_sm(datagram, UM_MAC_CONTROL, &key, 0x123456789abcd), "d5da4fecba3ecc385618bfb0");
    check_tag(datagram, tagged_sm(datagram, UM_MAC_RESOLUTION, &key, 0x123456789abcd), "42ae6d629ecfea550976f1a3");
}

/* ---- stamps and windows ---- */

TEST("", "stamps ascend whatever the clock does, and their count increases with each datagram")
{
    uint64_t stamp = um_stamp_next(5, NOW_NS), before = stamp;
    CHECK_EQ(stamp & 0x3fffff, 6);
    CHECK_EQ(stamp >> UM_STAMP_COUNT_BITS, 1800000000ull * 4);
    stamp = um_stamp_next(stamp, NOW_NS - 3600 * (int64_t)NS_PER_S);
    CHECK_EQ(stamp, before + 1);
    stamp = um_stamp_next(stamp, NOW_NS + NS_PER_S);
    CHECK_EQ(stamp & 0x3fffff, 8);
    CHECK_EQ(stamp >> UM_STAMP_COUNT_BITS, 1800000001ull * 4);
}

TEST("", "a count that wraps within a quarter second carries into the next")
{
    uint64_t last = 1800000000ull * 4 << UM_STAMP_COUNT_BITS | 0x3fffff;
    uint64_t stamp = um_stamp_next(last, NOW_NS);
    CHECK_EQ(stamp, last + 1);
    CHECK_EQ(stamp & 0x3fffff, 0);
    uint64_t places[4] = {0};
    CHECK(um_replay_window_take(places, 2, last) && um_replay_window_take(places, 2, stamp));
    CHECK(!um_replay_window_take(places, 2, last) && !um_replay_window_take(places, 2, stamp));
    CHECK(um_stamp_is_fresh(stamp, NOW_NS, NS_PER_S));
}

TEST("", "a window accepts each stamp once, in any order within its reach")
{
    uint64_t places[8] = {0}, base = 1800000000ull * 4 << UM_STAMP_COUNT_BITS | 77;
    const uint32_t order[] = {3, 1, 2, 0, 7, 6, 10, 4, 9};
    for (uint32_t i = 0; i < sizeof order / sizeof *order; i++)
        CHECK(um_replay_window_take(places, 3, base + order[i]));
    for (uint32_t i = 0; i < sizeof order / sizeof *order; i++)
        CHECK(!um_replay_window_take(places, 3, base + order[i]));
    CHECK(um_replay_window_take(places, 3, base + 5));
    CHECK(!um_replay_window_take(places, 3, base + 5 - 8));
}

/* Stamps of a sender: the count `n`, at this number of quarter seconds. */
static uint64_t sent(uint64_t quarter, uint64_t n)
{
    return (7200000000 + quarter) << UM_STAMP_COUNT_BITS | (n & 0x3fffff);
}

TEST("", "a sender whose clock is set back continues its count, and none of its stamps is accepted twice")
{
    um_sender_window window = {0};
    uint32_t refused_late = 0;
    for (uint64_t n = 0x3ffff0; n < 0x400100; n++) /* the count wraps, the clock jumps forward and back */
        CHECK(um_sender_window_take(&window, sent(n < 0x3ffff8 ? 40 : n < 0x400080 ? 1240 : 41, n)));
    for (uint64_t n = 0x3ffff0; n < 0x400100; n++)
        CHECK(!um_sender_window_take(&window, sent(n < 0x3ffff8 ? 40 : n < 0x400080 ? 1240 : 41, n)));
    CHECK(um_sender_window_take(&window, sent(41, 0x400105))); /* five were overtaken */
    for (uint64_t n = 0x400104; n >= 0x400100; n--)
        refused_late += !um_sender_window_take(&window, sent(41, n));
    CHECK_EQ(refused_late, 0);
    CHECK(!um_sender_window_take(&window, sent(41, 0x400105 + UM_SENDER_LEAD_MAX + 1))); /* too far to be the next */
    CHECK(um_sender_window_take(&window, sent(41, 0x400105 + UM_SENDER_LEAD_MAX)));
    CHECK(!um_sender_window_take(&window, sent(1240, 77777))); /* a restart must be newer than all before */
    CHECK(um_sender_window_take(&window, sent(1241, 77777)));
    CHECK(!um_sender_window_take(&window, sent(1240, 77776))); /* it may have been accepted before */
    CHECK(um_sender_window_take(&window, sent(1241, 77776)));
}

TEST("", "only a session's stamps ascend, others follow their clock")
{
    uint64_t stamp = um_stamp_follow(5, NOW_NS), back = um_stamp_follow(stamp, NOW_NS - 300 * (int64_t)NS_PER_S);
    CHECK_EQ(stamp & 0x3fffff, 6);
    CHECK_EQ(back & 0x3fffff, 7);
    CHECK_EQ((stamp >> UM_STAMP_COUNT_BITS) - (back >> UM_STAMP_COUNT_BITS), 1200);
    CHECK_EQ(um_stamp_ahead_ns(stamp, NOW_NS - 300 * (int64_t)NS_PER_S), 300 * (int64_t)NS_PER_S);
    CHECK_EQ(um_stamp_ahead_ns(stamp, NOW_NS + 300 * (int64_t)NS_PER_S), 0);
}

TEST("", "a stamp is fresh within the tolerance, on either side")
{
    uint64_t stamp = um_stamp_next(0, NOW_NS);
    CHECK(um_stamp_is_fresh(stamp, NOW_NS + TOLERANCE_NS, TOLERANCE_NS));
    CHECK(um_stamp_is_fresh(stamp, NOW_NS - TOLERANCE_NS, TOLERANCE_NS));
    CHECK(!um_stamp_is_fresh(stamp, NOW_NS + TOLERANCE_NS + NS_PER_S, TOLERANCE_NS));
    CHECK(!um_stamp_is_fresh(stamp, NOW_NS - TOLERANCE_NS - NS_PER_S, TOLERANCE_NS));
    CHECK(!um_stamp_is_fresh(stamp, -1, TOLERANCE_NS) && !um_stamp_is_fresh(UINT64_MAX >> 8, NOW_NS, TOLERANCE_NS));
}

/* ---- verifiers ---- */

static um_session_verifier session_verifier;
static um_senders_verifier senders_verifier;

static enum um_tag_status verify(um_verifier *verifier, um_address from, const uint8_t *data, uint32_t length)
{
    uint8_t *exact = malloc(length > 0 ? length : 1); /* so that AddressSanitizer detects a read beyond it */
    memcpy(exact, data, length);
    uint32_t left = length;
    enum um_tag_status status = verifier->verify(verifier, from, exact, &left, NOW_NS);
    CHECK_EQ(left, status == UM_TAG_OK ? length - UM_TRAILER_BYTES : length);
    free(exact);
    return status;
}

static um_verifier *open_session_verifier(const um_key_set *keys)
{
    CHECK_EQ(um_session_verifier_open(&session_verifier, keys, UM_AUTHENTICATE_ALL, TOLERANCE_NS, &SESSION), 0);
    return &session_verifier.base;
}

static um_verifier *open_senders_verifier(const um_key_set *keys)
{
    CHECK_EQ(um_senders_verifier_open(&senders_verifier, keys, UM_MAC_CONTROL, TOLERANCE_NS), 0);
    return &senders_verifier.base;
}

static void close_verifiers(void)
{
    um_session_verifier_close(&session_verifier);
    um_senders_verifier_close(&senders_verifier);
}

TEST("", "a datagram is accepted once, then replayed, and wrong with any bit flipped")
{
    um_key_set keys = set_of(7, 0);
    uint8_t datagram[64];
    uint64_t stamp = um_stamp_next(0, NOW_NS);
    for (int purpose = UM_MAC_SESSION; purpose <= UM_MAC_CONTROL; purpose++) {
        um_verifier *verifier = purpose == UM_MAC_SESSION ? open_session_verifier(&keys) : open_senders_verifier(&keys);
        uint32_t length = tagged_sm(datagram, purpose, &keys.keys[0], stamp);
        for (uint32_t bit = 0; bit < 8 * length; bit++) {
            datagram[bit / 8] ^= (uint8_t)(1 << bit % 8);
            CHECK(verify(verifier, RECEIVER, datagram, length) != UM_TAG_OK);
            datagram[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        CHECK_EQ(verify(verifier, RECEIVER, datagram, length), UM_TAG_OK);
        CHECK_EQ(verify(verifier, RECEIVER, datagram, length), UM_TAG_REPLAYED);
    }
    close_verifiers();
}

TEST("", "a datagram of any length without a trailer has no tag")
{
    um_key_set keys = set_of(7, 0);
    um_verifier *verifier = open_session_verifier(&keys);
    uint8_t datagram[64];
    uint32_t length = tagged_sm(datagram, UM_MAC_SESSION, &keys.keys[0], um_stamp_next(0, NOW_NS));
    for (uint32_t cut = 0; cut < length; cut++)
        CHECK_EQ(verify(verifier, RECEIVER, datagram, cut), UM_TAG_MISSING);
    close_verifiers();
}

TEST("", "each reason for refusal is reported")
{
    um_key_set keys = set_of(7, 0);
    um_key outsider = key_of(7), other = key_of(8);
    outsider.secret[0] ^= 1;
    um_verifier *verifier = open_session_verifier(&keys);
    uint8_t datagram[64];
    uint64_t stamp = um_stamp_next(0, NOW_NS);
    uint32_t length = tagged_sm(datagram, UM_MAC_SESSION, &outsider, stamp);
    CHECK_EQ(verify(verifier, RECEIVER, datagram, length), UM_TAG_WRONG);
    length = tagged_sm(datagram, UM_MAC_SESSION, &other, stamp);
    CHECK_EQ(verify(verifier, RECEIVER, datagram, length), UM_TAG_KEY_UNKNOWN);
    length = tagged_sm(datagram, UM_MAC_CONTROL, &keys.keys[0], stamp);
    CHECK_EQ(verify(verifier, RECEIVER, datagram, length), UM_TAG_WRONG); /* a key derived for another purpose */
    length = tagged_sm(datagram, UM_MAC_SESSION, &keys.keys[0], um_stamp_next(0, NOW_NS - 2 * TOLERANCE_NS));
    CHECK_EQ(verify(verifier, RECEIVER, datagram, length), UM_TAG_STALE);
    length = tagged_sm(datagram, UM_MAC_SESSION, &keys.keys[0], stamp);
    CHECK_EQ(verify(verifier, RECEIVER, datagram, length), UM_TAG_OK);
    close_verifiers();
}

TEST("", "a wrong tag has no effect: the right datagram is accepted afterwards")
{
    um_key_set keys = set_of(7, 0);
    um_key outsider = key_of(7);
    outsider.secret[31] ^= 0x80;
    um_verifier *verifier = open_senders_verifier(&keys);
    uint8_t datagram[64];
    uint64_t stamp = um_stamp_next(0, NOW_NS);
    uint32_t length = tagged_sm(datagram, UM_MAC_CONTROL, &outsider, stamp);
    for (uint32_t i = 0; i < 5000; i++)
        CHECK_EQ(verify(verifier, um_address_of_v4(um_ip_v4(RECEIVER.ip) + i, (uint16_t)i), datagram, length),
                 UM_TAG_WRONG);
    CHECK_EQ(senders_verifier.sender_count, 0);
    length = tagged_sm(datagram, UM_MAC_CONTROL, &keys.keys[0], stamp);
    CHECK_EQ(verify(verifier, RECEIVER, datagram, length), UM_TAG_OK);
    CHECK_EQ(senders_verifier.sender_count, 1);
    close_verifiers();
}

TEST("", "a datagram replayed from another address is refused")
{
    um_key_set keys = set_of(7, 0);
    um_verifier *verifier = open_senders_verifier(&keys);
    uint8_t datagram[64];
    uint32_t length = tagged_sm(datagram, UM_MAC_CONTROL, &keys.keys[0], um_stamp_next(0, NOW_NS));
    CHECK_EQ(verify(verifier, (um_address){RECEIVER.ip, 40001}, datagram, length), UM_TAG_WRONG);
    CHECK_EQ(verify(verifier, um_address_of_v4(um_ip_v4(RECEIVER.ip) + 1, 40000), datagram, length), UM_TAG_WRONG);
    CHECK_EQ(verify(verifier, RECEIVER, datagram, length), UM_TAG_OK);
    close_verifiers();
}

TEST("", "with scope control, untagged DATA is accepted and untagged control is not")
{
    um_key_set keys = set_of(7, 0);
    CHECK_EQ(um_session_verifier_open(&session_verifier, &keys, UM_AUTHENTICATE_CONTROL, TOLERANCE_NS, &SESSION), 0);
    um_verifier *verifier = &session_verifier.base;
    uint8_t data[UM_LBTRM_DATA_BYTES], sm[UM_LBTRM_SM_BYTES];
    uint32_t length = sizeof data;
    um_lbtrm_write_data(data, SESSION.session_id, SESSION.source.port, 1, 1, false);
    CHECK_EQ(verifier->verify(verifier, RECEIVER, data, &length, NOW_NS), UM_TAG_OK);
    CHECK_EQ(length, sizeof data);
    um_lbtrm_write_sm(sm, SESSION.session_id, SESSION.source.port, 1, 2, 1);
    CHECK_EQ(verify(verifier, RECEIVER, sm, sizeof sm), UM_TAG_MISSING);
    close_verifiers();
}

TEST("", "datagrams of a replaced sender cannot be replayed as a new sender's")
{
    um_key_set keys = set_of(7, 0);
    um_mac mac;
    um_verifier *verifier = open_senders_verifier(&keys);
    uint8_t first[64], datagram[64];
    um_address victim = um_address_of_v4(0x0a000000, 1);
    uint64_t stamp = um_stamp_next(0, NOW_NS);
    CHECK_EQ(um_mac_open(&mac, UM_MAC_CONTROL, &keys.keys[0], NULL), 0);
    uint32_t plain = um_lbtrm_write_sm(datagram, 1, 1, 1, 1, 1), length = plain + UM_TRAILER_BYTES;
    uint32_t covered = plain + UM_TRAILER_COVERED_BYTES;
    for (uint32_t i = 0; i < 4 * UM_SENDERS_MAX; i++) { /* the first one is replaced */
        um_address from = um_address_of_v4(um_ip_v4(victim.ip) + i, 1);
        um_trailer_write(datagram + plain, 7, stamp + i);
        CHECK(um_mac_tag(&mac, from, datagram, covered, datagram + covered));
        if (i == 0)
            memcpy(first, datagram, length);
        CHECK_EQ(verify(verifier, from, datagram, length), UM_TAG_OK);
    }
    CHECK(senders_verifier.sender_count <= UM_SENDERS_MAX && senders_verifier.forgotten_stamp != 0);
    CHECK_EQ(verify(verifier, victim, first, length), UM_TAG_REPLAYED);
    um_mac_close(&mac);
    close_verifiers();
}

TEST("", "during rotation two keys are valid, then the old one is refused; the window is kept")
{
    um_key_set old = set_of(7, 8), new = set_of(8, 0);
    um_verifier *verifier = open_session_verifier(&old);
    uint8_t with_7[64], with_8[64], late[64];
    uint64_t stamp = um_stamp_next(0, NOW_NS);
    uint32_t length = tagged_sm(with_7, UM_MAC_SESSION, &old.keys[0], stamp);
    tagged_sm(with_8, UM_MAC_SESSION, &old.keys[1], stamp + 1);
    tagged_sm(late, UM_MAC_SESSION, &old.keys[0], stamp + 2);
    CHECK_EQ(verify(verifier, RECEIVER, with_7, length), UM_TAG_OK);
    CHECK_EQ(verify(verifier, RECEIVER, with_8, length), UM_TAG_OK);
    CHECK_EQ(um_session_verifier_set_keys(&session_verifier, &new), 0);
    CHECK_EQ(verify(verifier, RECEIVER, late, length), UM_TAG_KEY_UNKNOWN);
    CHECK_EQ(verify(verifier, RECEIVER, with_8, length), UM_TAG_REPLAYED);
    close_verifiers();
}

TEST("", "topic resolution datagrams are tagged, verified, refused as replays, and rotated")
{
    um_key_set keys = set_of(7, 8), later = set_of(8, 7), last = set_of(9, 0);
    um_resolution_tags *sender = um_resolution_tags_open(&keys, TOLERANCE_NS, RECEIVER, 5);
    um_resolution_tags *receiver = um_resolution_tags_open(&later, TOLERANCE_NS, SESSION.source, 6);
    CHECK(sender != NULL && receiver != NULL);
    char datagram[60] = "an advertisement";
    CHECK_EQ(um_resolution_tags_append(sender, datagram, 32), 0);
    CHECK_EQ(um_resolution_tags_verify(receiver, RECEIVER, datagram, 60), UM_TAG_OK);
    CHECK_EQ(um_resolution_tags_verify(receiver, RECEIVER, datagram, 60), UM_TAG_REPLAYED);
    CHECK_EQ(um_resolution_tags_set_keys(sender, &later), 0);
    CHECK_EQ(um_resolution_tags_append(sender, datagram, 32), 0);
    CHECK_EQ(um_resolution_tags_verify(receiver, RECEIVER, datagram, 60), UM_TAG_OK);
    CHECK_EQ(um_resolution_tags_set_keys(receiver, &last), 0);
    CHECK_EQ(um_resolution_tags_append(sender, datagram, 32), 0);
    CHECK_EQ(um_resolution_tags_verify(receiver, RECEIVER, datagram, 60), UM_TAG_KEY_UNKNOWN);
    um_resolution_tags_close(sender);
    um_resolution_tags_close(receiver);
}

/* ---- the link and a session behind it ---- */

static um_tagging_link tagging;

TEST("", "a session's datagrams fit the path with their trailers, and no stamp is used twice")
{
    um_key_set keys = set_of(7, 0);
    um_source_session_config config = default_config();
    config.batch_minimum_bytes = 1;
    config.data_trailer_bytes = config.control_trailer_bytes = UM_TRAILER_BYTES;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, 1, 0);
    CHECK_EQ(um_tagging_link_open(&tagging, &f->link.base, &keys.keys[0], UM_MAC_SESSION, UM_AUTHENTICATE_ALL, &SESSION,
                                  SESSION.source, config.datagram_max_bytes, 3),
             0);
    f->session->link = f->session->staged.link = &tagging.base;
    send_bytes(f, source, 1472 - UM_LBTRM_DATA_BYTES - UM_LBMC_HEADER_BYTES - UM_TRAILER_BYTES, 1, UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(f->link.count, 1); /* it fills a datagram */
    CHECK_EQ(f->link.datagrams[0].length, 1472);
    send_bytes(f, source, 4000, 1, UM_SEND_FLUSH);
    for (uint32_t i = 0; i < 40; i++)
        send_bytes(f, source, 100, 1, i == 39 ? UM_SEND_FLUSH : 0);
    run_sender(f);
    f->now_ns += NS_PER_S;
    um_source_session_tick(f->session, f->now_ns); /* sends a session message */
    nak_one(f, 0);
    nak_one(f, 0); /* within the ignore interval: an NCF */
    um_verifier *verifier = open_session_verifier(&keys);
    uint64_t last = 0;
    uint32_t types = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        const capture *sent = &f->link.datagrams[i];
        uint32_t left = sent->length;
        um_trailer trailer;
        CHECK(sent->length <= 1472);
        CHECK(um_trailer_read(sent->data, sent->length, &trailer) && trailer.stamp > last);
        last = trailer.stamp;
        int64_t wall_ns = (int64_t)(trailer.stamp >> UM_STAMP_COUNT_BITS) * UM_STAMP_QUARTER_NS;
        CHECK_EQ(verifier->verify(verifier, SESSION.source, sent->data, &left, wall_ns), UM_TAG_OK);
        um_packet packet;
        CHECK_EQ(um_lbtrm_decode(sent->data, left, &packet), UM_DGRAM_OK);
        types |= 1u << packet.type | (packet.flags & UM_LBTRM_FLAG_RETRANSMISSION ? 1u << 16 : 0);
    }
    CHECK_EQ(types, 1u << UM_LBTRM_DATA | 1u << UM_LBTRM_SM | 1u << UM_LBTRM_NCF | 1u << 16);
    um_tagging_link_close(&tagging);
    close_verifiers();
    f->session->link = f->session->staged.link = &f->link.base;
    session_close(f);
}

TEST("", "a link that was full is offered the rest with new stamps")
{
    um_key_set keys = set_of(7, 0);
    static capture_link link;
    link.base.ops = &capture_ops;
    CHECK_EQ(um_tagging_link_open(&tagging, &link.base, &keys.keys[0], UM_MAC_SESSION, UM_AUTHENTICATE_ALL, &SESSION,
                                  SESSION.source, 64, 3),
             0);
    uint8_t data[3][30];
    um_part parts[3];
    um_tx batch[3];
    for (uint32_t i = 0; i < 3; i++) {
        memset(data[i], 0, sizeof data[i]);
        um_lbtrm_write_data(data[i], 1, 1, i, 0, false);
        parts[i] = (um_part){data[i], sizeof data[i]};
        batch[i] = (um_tx){.parts = &parts[i], .part_count = 1, .length = sizeof data[i]};
    }
    link.space = 1;
    CHECK_EQ(tagging.base.ops->send(&tagging.base, SESSION.group, batch, 3), 1);
    link.space = UINT32_MAX;
    CHECK_EQ(tagging.base.ops->send(&tagging.base, SESSION.group, batch + 1, 2), 2);
    um_trailer first, second;
    CHECK(um_trailer_read(link.datagrams[0].data, link.datagrams[0].length, &first));
    CHECK(um_trailer_read(link.datagrams[1].data, link.datagrams[1].length, &second));
    CHECK_EQ(second.stamp & 0x3fffff, (first.stamp & 0x3fffff) + 3);
    um_tagging_link_close(&tagging);
    capture_clear(&link);
}

CHECK_MAIN
