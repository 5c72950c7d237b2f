/* NAK service: datagrams that are retransmitted, refused with an NCF, or dropped without a response. */
#include "core/foundation/random.h"
#include "support.h"

enum { TERM = UM_LOG_TERM_BYTES_MIN, ORDERS = 0x3e9 };

/* A session that has sent datagrams 0 .. count-1, one message of 1000 bytes each. */
static fixture *sent_session(um_source_session_config config, uint32_t count, uint64_t retransmit_bps)
{
    fixture *f = session_open_limited(&config, 0, retransmit_bps, 10 * (int64_t)NS_PER_MS);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < count; i++)
        CHECK(send_bytes(f, source, 1000, (uint8_t)i, UM_SEND_FLUSH) >= 0);
    run_sender(f);
    CHECK_EQ(f->link.count, count);
    return f;
}

/* Captured datagram `again` is `original` retransmitted: equal except for the flag and the trail. */
static void check_retransmission(fixture *f, const capture *original, uint32_t again)
{
    const capture *copy = &f->link.datagrams[again];
    CHECK_EQ(copy->length, original->length);
    CHECK_BYTES(copy->data, original->data, 12);
    CHECK_EQ(um_load_be32(copy->data + 12), f->session->trail_sqn);
    CHECK_EQ(copy->data[16], original->data[16] | UM_LBTRM_FLAG_RETRANSMISSION);
    CHECK_BYTES(copy->data + 17, original->data + 17, original->length - 17);
    CHECK(um_address_equal(copy->to, original->to));
}

/* Checks that the NCF captured at `at` lists `sqns`; returns its reason. */
static enum um_ncf_reason check_ncf(fixture *f, uint32_t at, const uint32_t *sqns, uint32_t count)
{
    um_packet ncf = packet_at(f, at);
    CHECK_EQ(ncf.type, UM_LBTRM_NCF);
    CHECK_EQ(ncf.trail, f->session->trail_sqn);
    CHECK_EQ(ncf.list_count, count);
    CHECK_EQ(f->link.datagrams[at].length, UM_LBTRM_NCF_BYTES + 4 * count);
    CHECK(um_address_equal(f->link.datagrams[at].to, f->session->config.group));
    for (uint32_t i = 0; i < count; i++)
        CHECK_EQ(um_load_be32(ncf.list + 4 * i), sqns[i]);
    return ncf.ncf_reason;
}

TEST("UM-3 UM-86 UM-120 UM-124 UM-133 AE-47", "a NAK is served at once, to the group, with the same bytes")
{
    fixture *f = sent_session(default_config(), 20, 0);
    nak(f, (const uint32_t[]){7, 3, 19}, 3);
    CHECK_EQ(f->link.count, 23);
    for (uint32_t i = 20; i < 23; i++)
        check_retransmission(f, &f->link.datagrams[packet_at(f, i).sqn], i);
    CHECK_EQ(f->session->counters.nak_pckts_rcved, 1);
    CHECK_EQ(f->session->counters.naks_rcved, 3);
    CHECK_EQ(f->session->counters.rxs_sent, 3);
    CHECK_EQ(f->session->counters.rx_bytes_sent, 3 * 1032);
    CHECK_EQ(f->session->next_sqn, 20);
    session_close(f);
}

TEST("UM-133 W4 W6",
     "a link error is reported, the link is tried again without a busy loop, and the retransmission is not lost")
{
    fixture *f = sent_session(default_config(), 20, 0);
    f->link.error = -EMSGSIZE;
    nak(f, (const uint32_t[]){7}, 1);
    CHECK_EQ(f->session->link_error, -EMSGSIZE);
    f->session->link_error = 0;
    int64_t next_ns = um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(f->session->link_error, -EMSGSIZE);
    CHECK(next_ns >= f->now_ns + NS_PER_MS && next_ns <= f->now_ns + 100 * NS_PER_MS);
    f->link.error = 0;
    um_source_session_tick(f->session, f->now_ns = next_ns);
    CHECK_EQ(f->link.count, 21);
    check_retransmission(f, &f->link.datagrams[7], 20);
    session_close(f);
}

TEST("UM-133", "the oldest datagram is retransmitted first")
{
    fixture *f = sent_session(default_config(), 20, 0);
    nak(f, (const uint32_t[]){7, 3, 19, 0, 11}, 5);
    uint32_t expected[] = {0, 3, 7, 11, 19};
    for (uint32_t i = 0; i < 5; i++)
        CHECK_EQ(packet_at(f, 20 + i).sqn, expected[i]);
    session_close(f);
}

TEST("UM-133 UX-22", "the oldest datagram is retransmitted first, across the wrap")
{
    um_source_session_config config = default_config();
    config.initial_sqn = UINT32_MAX - 2;
    fixture *f = sent_session(config, 8, 0);
    nak(f, (const uint32_t[]){4, 0, UINT32_MAX - 1, 2, UINT32_MAX}, 5);
    uint32_t expected[] = {UINT32_MAX - 1, UINT32_MAX, 0, 2, 4};
    for (uint32_t i = 0; i < 5; i++)
        CHECK_EQ(packet_at(f, 8 + i).sqn, expected[i]);
    session_close(f);
}

TEST("UM-88", "a closed source's datagrams are still retransmitted")
{
    fixture *f = sent_session(default_config(), 3, 0);
    source_close(f->session->sources);
    nak_one(f, 1);
    CHECK_EQ(f->link.count, 4);
    check_retransmission(f, &f->link.datagrams[1], 3);
    session_close(f);
}

TEST("AE-36 AE-47 UM-120",
     "datagrams across aborted and unblocked claims and the end of a term are retransmitted unchanged")
{
    um_random random = {check_seed()};
    um_source_session_config config = default_config();
    config.unblock_timeout_ns = 0;
    config.batch_minimum_bytes = 1 << 30;
    for (uint32_t threshold = 0; threshold <= 15; threshold += 15) {
        config.coalesce_threshold = threshold;
        fixture *f = session_open(&config);
        um_source *source = source_open(f, ORDERS, 0);
        for (uint32_t i = 0; i < 2000; i++) {
            um_source_claim claim = {.length = 0};
            uint32_t length = (uint32_t)um_random_below(&random, 300);
            switch (um_random_below(&random, 8)) {
            case 0:
                if (um_source_claim_begin(source, length, &claim) == 0)
                    um_source_claim_abort(source, &claim, &f->actions);
                break;
            case 1:
                CHECK(um_source_claim_begin(source, length, &claim) != 0 || claim.length == length); /* abandoned */
                break;
            default:
                send_bytes(f, source, length, (uint8_t)i, 0);
            }
            if (um_random_below(&random, 10) == 0)
                um_source_flush(source, f->now_ns, &f->actions);
            while (um_source_session_tick(f->session, f->now_ns) == f->now_ns)
                ;
        }
        CHECK(atomic_load(&f->session->log.active_term_count) >= 2);
        CHECK(f->session->counters.unblocked_publications > 10);
        uint32_t first = f->session->trail_sqn, count = f->link.count, checked = 0;
        for (uint32_t sqn = first; sqn != f->session->next_sqn; sqn++) {
            nak_one(f, sqn);
            CHECK_EQ(f->link.count, ++checked + count);
            check_retransmission(f, &f->link.datagrams[sqn], f->link.count - 1);
        }
        CHECK(checked > 20);
        session_close(f);
    }
}

/* ---- refusals ---- */

TEST("UM-129 C10", "outside the window: no response")
{
    um_source_session_config config = default_config();
    config.window_bytes = 3100;
    fixture *f = sent_session(config, 10, 0); /* 7, 8 and 9 are in the window */
    nak(f, (const uint32_t[]){0, 6, 10, 11, 1u << 31, UINT32_MAX}, 6);
    CHECK_EQ(f->link.count, 10);
    CHECK_EQ(f->session->counters.naks_out_of_window, 3);
    CHECK_EQ(f->session->counters.nak_unknown_sqn, 3);
    nak_one(f, 7);
    CHECK_EQ(f->link.count, 11);
    session_close(f);
}

TEST("UM-129", "before anything was sent: no response")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    nak(f, (const uint32_t[]){0, 1, UINT32_MAX}, 3);
    CHECK_EQ(f->link.count, 0);
    CHECK_EQ(f->session->counters.nak_unknown_sqn + f->session->counters.naks_out_of_window, 3);
    session_close(f);
}

TEST("UM-129 UM-130 UM-132", "within the ignore interval one NCF, then no response, then service again")
{
    fixture *f = sent_session(default_config(), 3, 0);
    nak_one(f, 1);
    CHECK_EQ(f->link.count, 4);
    f->now_ns += 100 * NS_PER_MS;
    nak_one(f, 1);
    CHECK_EQ(f->link.count, 5);
    CHECK_EQ(check_ncf(f, 4, (const uint32_t[]){1}, 1), UM_NCF_IGNORED);
    for (uint32_t i = 0; i < 3; i++) {
        f->now_ns += 100 * NS_PER_MS;
        nak_one(f, 1);
    }
    CHECK_EQ(f->link.count, 5);
    CHECK_EQ(f->session->counters.naks_ignored, 1);
    CHECK_EQ(f->session->counters.naks_suppressed, 3);
    f->now_ns += 100 * NS_PER_MS; /* 500 ms after the retransmission */
    nak_one(f, 1);
    CHECK_EQ(f->link.count, 6);
    check_retransmission(f, &f->link.datagrams[1], 5);
    f->now_ns += 1;
    nak_one(f, 1);
    CHECK_EQ(check_ncf(f, 6, (const uint32_t[]){1}, 1), UM_NCF_IGNORED);
    session_close(f);
}

TEST("UM-129 UM-132", "a full limiter delays: the sqn is queued, announced by an NCF, and sent in the next slice")
{
    fixture *f = sent_session(default_config(), 10, 8 * 2 * 1032 * 100); /* two per slice of 10 ms */
    nak(f, (const uint32_t[]){5, 4, 3, 2}, 4);
    CHECK_EQ(f->link.count, 13);
    CHECK_EQ(packet_at(f, 10).sqn, 2);
    CHECK_EQ(packet_at(f, 11).sqn, 3);
    CHECK_EQ(check_ncf(f, 12, (const uint32_t[]){5, 4}, 2), UM_NCF_RX_DELAY);
    CHECK_EQ(f->session->counters.naks_rx_delay_ignored, 2);
    um_source_session_snapshot(f->session);
    CHECK_EQ(f->session->counters.rctlr_rx_msgs, 2);
    nak_one(f, 5); /* already queued and announced */
    CHECK_EQ(f->link.count, 13);
    CHECK_EQ(f->session->counters.naks_suppressed, 1);
    int64_t next_ns = um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(next_ns, f->now_ns + 10 * NS_PER_MS);
    um_source_session_tick(f->session, f->now_ns = next_ns);
    CHECK_EQ(f->link.count, 15);
    CHECK_EQ(packet_at(f, 13).sqn, 4);
    CHECK_EQ(packet_at(f, 14).sqn, 5);
    CHECK_EQ(f->session->retransmit_count, 0);
    session_close(f);
}

TEST("UM-130 UM-132", "a full queue sheds: one NCF per ignore interval")
{
    um_source_session_config config = default_config();
    config.term_length = 1 << 22;
    config.window_bytes = 1 << 22;
    fixture *f = session_open_limited(&config, 0, 8000, 10 * (int64_t)NS_PER_MS);
    um_source *source = source_open(f, ORDERS, 0);
    enum { COUNT = UM_RETRANSMIT_QUEUE_MAX + 300 };
    uint32_t sqns[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        send_bytes(f, source, 1000, 0, UM_SEND_FLUSH);
        sqns[i] = i;
    }
    run_sender(f);
    CHECK_EQ(f->link.count, COUNT);
    nak(f, sqns, COUNT);
    CHECK_EQ(f->session->retransmit_count, UM_RETRANSMIT_QUEUE_MAX);
    CHECK_EQ(f->session->counters.naks_shed, 300);
    uint32_t listed = 0, shed = 0;
    for (uint32_t i = COUNT; i < f->link.count; i++) {
        um_packet ncf = packet_at(f, i);
        CHECK_EQ(ncf.type, UM_LBTRM_NCF);
        CHECK(f->link.datagrams[i].length <= 1472);
        listed += ncf.list_count;
        shed += ncf.ncf_reason == UM_NCF_SHED ? ncf.list_count : 0;
    }
    CHECK_EQ(listed, COUNT);
    CHECK_EQ(shed, 300);
    CHECK_EQ(f->session->counters.ncfs_sent, COUNT);
    uint32_t before = f->link.count;
    for (uint32_t i = 0; i < 50; i++)
        nak(f, sqns, COUNT); /* a flood: no response */
    CHECK_EQ(f->link.count, before);
    f->now_ns += config.ignore_interval_ns;
    nak_one(f, COUNT - 1);
    CHECK_EQ(f->link.count, before + 1);
    session_close(f);
}

TEST("UM-132 W4", "NCF lists fit the smallest datagram")
{
    um_source_session_config config = default_config();
    config.datagram_max_bytes = UM_DATAGRAM_BYTES_MIN;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    uint32_t sqns[300];
    for (uint32_t i = 0; i < 300; i++) {
        sqns[i] = i;
        send_text(f, source, "x", UM_SEND_FLUSH);
        run_sender(f);
    }
    nak(f, sqns, 300);
    capture_clear(&f->link);
    nak(f, sqns, 300);
    uint32_t listed = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        CHECK(f->link.datagrams[i].length <= UM_DATAGRAM_BYTES_MIN);
        listed += packet_at(f, i).list_count;
    }
    CHECK_EQ(listed, 300);
    session_close(f);
}

TEST("UM-120", "the same sqn twice in a NAK causes one retransmission")
{
    fixture *f = sent_session(default_config(), 3, 0);
    nak(f, (const uint32_t[]){1, 1, 1, 1}, 4);
    CHECK_EQ(f->session->counters.rxs_sent, 1);
    CHECK_EQ(f->session->counters.ncfs_sent, 1);
    CHECK_EQ(f->session->counters.naks_rx_delay_ignored, 1); /* it was still queued, not sent */
    CHECK_EQ(f->session->counters.naks_ignored, 0);
    session_close(f);
}

/* ---- links and windows that move ---- */

TEST("W6 UM-132", "a full link delays retransmissions, which are soon tried again")
{
    fixture *f = sent_session(default_config(), 10, 0);
    f->link.space = 2;
    nak(f, (const uint32_t[]){1, 2, 3, 4, 5}, 5);
    CHECK_EQ(f->session->counters.rxs_sent, 2);
    CHECK_EQ(f->session->retransmit_count, 3);
    int64_t next_ns = um_source_session_tick(f->session, f->now_ns);
    CHECK(next_ns > f->now_ns && next_ns <= f->now_ns + NS_PER_MS);
    f->link.space = UINT32_MAX;
    um_source_session_tick(f->session, f->now_ns = next_ns);
    CHECK_EQ(f->session->counters.rxs_sent, 5);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(packet_at(f, f->link.count - 3 + i).sqn, 3 + i);
    session_close(f);
}

TEST("W6 UM-132", "datagrams that a full link did not accept do not count against the limit")
{
    fixture *f = sent_session(default_config(), 8, 8 * 9 * 1032 * 100); /* nine per slice of 10 ms */
    const uint32_t sqns[] = {0, 1, 2, 3, 4, 5, 6, 7};
    f->link.space = 0;
    nak(f, sqns, 8);
    CHECK_EQ(f->session->retransmit_count, 8);
    f->link.space = UINT32_MAX;
    um_source_session_tick(f->session, f->now_ns); /* the same slice */
    CHECK_EQ(f->session->retransmit_count, 0);
    CHECK_EQ(f->session->counters.rxs_sent, 8);
    session_close(f);
}

TEST("UM-125 UM-129", "a queued sqn that leaves the window is not sent")
{
    um_source_session_config config = default_config();
    config.window_bytes = 3100;
    fixture *f = sent_session(config, 3, 0);
    f->link.space = 0;
    nak(f, (const uint32_t[]){0, 1, 2}, 3);
    CHECK_EQ(f->session->retransmit_count, 3);
    f->link.space = UINT32_MAX;
    for (uint32_t i = 0; i < 2; i++)
        send_bytes(f, f->session->sources, 1000, 0, UM_SEND_FLUSH);
    run_sender(f);
    um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(f->session->counters.rxs_sent, 1);
    CHECK_EQ(packet_at(f, f->link.count - 1).sqn, 2);
    CHECK_EQ(f->session->retransmit_count, 0);
    session_close(f);
}

TEST("UM-120 UM-133",
     "random NAKs under a limiter: each retransmission repeats the original, none twice in an interval")
{
    um_random random = {check_seed()};
    um_source_session_config config = default_config();
    config.window_bytes = TERM / 2;
    config.ignore_interval_ns = 20 * (int64_t)NS_PER_MS;
    fixture *f = session_open_limited(&config, 0, 2000000, NS_PER_MS);
    um_source *source = source_open(f, ORDERS, 0);
    capture kept[1024] = {{0}};
    int64_t again_ns[1024] = {0};
    for (uint32_t round = 0; round < 3000; round++) {
        f->now_ns += (int64_t)um_random_below(&random, 2 * NS_PER_MS);
        if (um_random_below(&random, 3) == 0)
            send_bytes(f, source, (uint32_t)um_random_below(&random, 1440), (uint8_t)round, UM_SEND_FLUSH);
        uint32_t sqns[64], count = (uint32_t)um_random_below(&random, 10);
        for (uint32_t i = 0; i < count; i++)
            sqns[i] = f->session->next_sqn - (uint32_t)um_random_below(&random, 60);
        f->link.space = um_random_below(&random, 4) == 0 ? (uint32_t)um_random_below(&random, 5) : UINT32_MAX;
        nak(f, sqns, count);
        um_source_session_tick(f->session, f->now_ns);
        for (uint32_t i = 0; i < f->link.count; i++) {
            um_packet packet = packet_at(f, i);
            capture *original = &kept[packet.sqn % 1024];
            if (packet.type != UM_LBTRM_DATA)
                continue;
            if (packet.flags & UM_LBTRM_FLAG_RETRANSMISSION) {
                CHECK_EQ(f->link.datagrams[i].length, original->length);
                CHECK_BYTES(f->link.datagrams[i].data + 20, original->data + 20, original->length - 20);
                CHECK(f->now_ns - again_ns[packet.sqn % 1024] >= config.ignore_interval_ns);
                again_ns[packet.sqn % 1024] = f->now_ns;
            } else {
                free(original->data);
                *original =
                    (capture){malloc(f->link.datagrams[i].length), f->link.datagrams[i].length, {{0}, 0}, false};
                memcpy(original->data, f->link.datagrams[i].data, original->length);
                again_ns[packet.sqn % 1024] = 0;
            }
        }
        capture_clear(&f->link);
    }
    CHECK(f->session->counters.rxs_sent > 500);
    CHECK(f->session->counters.naks_ignored > 50);
    for (uint32_t i = 0; i < 1024; i++)
        free(kept[i].data);
    session_close(f);
}

/* ---- the NAK port ---- */

TEST("", "datagrams for other sessions are dropped and counted by reason")
{
    fixture *f = sent_session(default_config(), 3, 0);
    uint8_t bytes[64];
    struct {
        const char *hex;
        const uint64_t *counter;
    } cases[] = {
        {"", &f->session->counters.dgrams_dropped_size},
        {"03003836 5eed00", &f->session->counters.dgrams_dropped_size},
        {"03003836 5eed0001 00020000 00000001", &f->session->counters.dgrams_dropped_size},
        {"13003836 5eed0001 00010000 00000001", &f->session->counters.dgrams_dropped_version},
        {"03013836 5eed0001 00010000 00000001", &f->session->counters.dgrams_dropped_hdr},
        {"03003836 5eed0001 00010001 00000001", &f->session->counters.dgrams_dropped_hdr},
        {"09003836 5eed0001 00010000 00000001", &f->session->counters.dgrams_dropped_type},
        {"02003836 5eed0001 00000001 00000069 00000064 80000000", &f->session->counters.dgrams_dropped_type},
        {"04003836 5eed0001 00000064 00010020 00000068", &f->session->counters.dgrams_dropped_type},
        {"03003836 5eed0002 00010000 00000001", &f->session->counters.dgrams_dropped_sid},
        {"03003837 5eed0001 00010000 00000001", &f->session->counters.dgrams_dropped_sid},
        {"00003836 5eed0001 00000065 00000065 80000000 0000000c 000003e9 00000001",
         &f->session->counters.status_malformed},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t before = *cases[i].counter;
        control(f, bytes, from_hex(cases[i].hex, bytes));
        CHECK_EQ(*cases[i].counter, before + 1);
    }
    CHECK_EQ(f->link.count, 3);
    CHECK_EQ(f->session->counters.nak_pckts_rcved, 0);
    session_close(f);
}

CHECK_MAIN
