/* A source session: packing, the transmission window, session messages, limits, flow control, links that are full. */
#include "core/foundation/random.h"
#include "support.h"

enum { TERM = UM_LOG_TERM_BYTES_MIN, ORDERS = 0x3e9, TRADES = 0x3ea };

static um_source_session_config flow_config(void)
{
    um_source_session_config config = default_config();
    config.flow_policy = UM_FLOW_MIN;
    return config;
}

static void status_at(fixture *f, uint64_t receiver, uint32_t next_sqn, uint32_t window_bytes)
{
    status(f, (um_status_message){.receiver_id = receiver, .next_sqn = next_sqn, .window_bytes = window_bytes});
}

TEST("AE-1", "the five counters of a new publication are 0")
{
    um_source_session_config config = flow_config();
    fixture *f = session_open(&config);
    um_source_session_snapshot(f->session);
    CHECK_EQ(f->session->counters.pub_pos, 0);
    CHECK_EQ(f->session->counters.pub_lmt, 0);
    CHECK_EQ(f->session->counters.snd_pos, 0);
    CHECK_EQ(f->session->counters.snd_lmt, 0);
    CHECK_EQ(f->session->counters.snd_bpe, 0);
    session_close(f);
}

TEST("W4", "invalid configurations are refused")
{
    um_source_session_config config = default_config();
    CHECK(um_source_session_footprint(&config) > 3 * TERM);
    config.window_bytes = TERM + 1;
    CHECK_EQ(um_source_session_footprint(&config), 0);
    config = default_config();
    config.term_length = TERM - 1;
    CHECK_EQ(um_source_session_footprint(&config), 0);
    config = default_config();
    config.datagram_max_bytes = UM_DATAGRAM_BYTES_MIN - 1;
    CHECK_EQ(um_source_session_footprint(&config), 0);
    config.datagram_max_bytes = TERM / 8 + 1;
    CHECK_EQ(um_source_session_footprint(&config), 0);
    config.term_length = 1 << 20;
    config.datagram_max_bytes = UM_DATAGRAM_BYTES_MAX + 1;
    CHECK_EQ(um_source_session_footprint(&config), 0);
}

TEST("UM-70 UM-74", "a session that never had a message sends no datagrams")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 100; i++)
        um_source_session_tick(f->session, f->now_ns += NS_PER_S);
    CHECK_EQ(f->link.count, 0);
    session_close(f);
}

TEST("UM-44 AE-38 AE-40 AE-41 W1", "two topics in one datagram, byte for byte")
{
    um_source_session_config config = default_config();
    config.initial_sqn = 0x64;
    for (uint32_t threshold = 0; threshold <= 8; threshold += 8) { /* copied, and referenced */
        config.coalesce_threshold = threshold;
        fixture *f = session_open(&config);
        send_text(f, source_open(f, ORDERS, 0x29), "EUR 1.0842/1.0843", 0);
        send_text(f, source_open(f, TRADES, 7), "GBP 1.2611/1.2613", UM_SEND_FLUSH);
        run_sender(f);
        uint8_t golden[256];
        uint32_t length = from_hex("00003836 5eed0001 00000064 00000064 80000000"
                                   "0000001d 000003e9 00000029 45555220312e303834322f312e30383433"
                                   "0000001d 000003ea 00000007 47425020312e323631312f312e32363133",
                                   golden);
        CHECK_EQ(f->link.count, 1);
        CHECK_EQ(f->link.datagrams[0].length, length);
        CHECK_BYTES(f->link.datagrams[0].data, golden, length);
        CHECK(um_address_equal(f->link.datagrams[0].to, config.group));
        session_close(f);
    }
}

TEST("AE-39 AE-40 UM-21", "if two of three messages fit, the third is in the next datagram")
{
    um_source_session_config config = default_config();
    config.batch_minimum_bytes = 1 << 30;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 3; i++)
        send_bytes(f, source, 600, 0, i == 2 ? UM_SEND_FLUSH : 0);
    CHECK_EQ(run_sender(f), 2);
    um_lbmc_message m[3];
    CHECK_EQ(messages_at(f, 0, m, 3), 2);
    CHECK_EQ(messages_at(f, 1, m, 3), 1);
    CHECK_EQ(f->link.datagrams[0].length, 20 + 2 * 612);
    session_close(f);
}

TEST("UM-21 UM-44 W4", "datagrams of any mix of sizes are as full as whole frames allow, and never too long")
{
    um_random random = {check_seed()};
    for (uint32_t run = 0; run < 30; run++) {
        um_source_session_config config = default_config();
        config.coalesce_threshold = (uint32_t)um_random_below(&random, 20);
        config.batch_minimum_bytes = 1 << 30;
        fixture *f = session_open(&config);
        um_source *source = source_open(f, ORDERS, 0);
        uint32_t sent = 0;
        while (send_bytes(f, source, (uint32_t)um_random_below(&random, run % 2 ? 60 : 2500), (uint8_t)sent, 0) >= 0)
            sent++;
        um_source_flush(source, f->now_ns, &f->actions);
        run_sender(f);
        uint32_t previous = 0;
        for (uint32_t i = 0; i < f->link.count; i++) {
            um_lbmc_message m[200];
            CHECK(messages_at(f, i, m, 200) > 0 && f->link.datagrams[i].length <= 1472);
            bool is_fragment = m[0].flags & UM_MESSAGE_FRAGMENT;
            uint32_t first_bytes = um_lbmc_overhead(is_fragment, false, false) + m[0].payload_length;
            CHECK(i == 0 || previous + first_bytes > 1472); /* it did not fit the previous datagram */
            previous = f->link.datagrams[i].length;
        }
        CHECK_EQ(messages_sent(source), sent);
        session_close(f);
    }
}

TEST("UM-44 W6", "a link that is faster in one piece gets every datagram in one piece, with the same bytes")
{
    um_source_session_config config = default_config();
    config.batch_minimum_bytes = 1 << 30;
    fixture *fixtures[] = {session_open(&config), session_open(&config)};
    for (int whole = 0; whole <= 1; whole++) {
        fixture *f = fixtures[whole];
        f->link.base.is_faster_in_one_piece = whole;
        um_source *source = source_open(f, ORDERS, 0);
        for (uint32_t i = 0; i < 40; i++)
            send_bytes(f, source, 100 + 37 * i % 1300, (uint8_t)i, i == 39 ? UM_SEND_FLUSH : 0);
        CHECK(run_sender(f) > 10);
    }
    CHECK(fixtures[1]->link.pieces < fixtures[1]->link.count);
    CHECK(fixtures[0]->link.pieces > fixtures[0]->link.count);
    CHECK_EQ(fixtures[0]->link.count, fixtures[1]->link.count);
    for (uint32_t i = 0; i < fixtures[0]->link.count; i++) {
        const capture *parted = &fixtures[0]->link.datagrams[i], *whole = &fixtures[1]->link.datagrams[i];
        CHECK_EQ(parted->length, whole->length);
        CHECK(memcmp(parted->data, whole->data, whole->length) == 0);
    }
    session_close(fixtures[0]);
    session_close(fixtures[1]);
}

/* A message that fills its frame exactly. */
enum { WHOLE_LINES = 22 * UM_FRAME_ALIGNMENT - UM_FRAME_HEADER_BYTES - UM_LBMC_HEADER_BYTES };

TEST("UM-44 W3 W6", "messages that fill a datagram are sent in place from the log, end to end, also when retransmitted")
{
    um_source_session_config config = default_config();
    config.ignore_interval_ns = 0;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 20; i++)
        send_bytes(f, source, WHOLE_LINES, (uint8_t)i, i == 19 ? UM_SEND_FLUSH : 0);
    f->link.space = 12;
    run_sender(f);
    f->link.space = 20;
    f->now_ns += NS_PER_S;
    um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(f->link.count, 20);
    CHECK_EQ(f->link.pieces, 1);
    nak(f, (uint32_t[]){3, 12, 19}, 3);
    run_sender(f);
    CHECK_EQ(f->link.count, 23);
    for (uint32_t i = 0; i < 23; i++) {
        um_lbmc_message m[2];
        uint32_t sqn = i < 20 ? i : (uint32_t[]){3, 12, 19}[i - 20];
        CHECK_EQ(packet_at(f, i).sqn, sqn);
        CHECK_EQ(packet_at(f, i).flags & UM_LBTRM_FLAG_RETRANSMISSION, i < 20 ? 0 : UM_LBTRM_FLAG_RETRANSMISSION);
        CHECK_EQ(messages_at(f, i, m, 2), 1);
        CHECK_EQ(m[0].payload_length, WHOLE_LINES);
        CHECK_EQ(m[0].payload[WHOLE_LINES - 1], (uint8_t)(sqn + WHOLE_LINES - 1));
    }
    session_close(f);
}

/* ---- the transmission window ---- */

TEST("UM-115 UM-125",
     "the window holds its bytes of payload, the oldest datagrams leave it, every header carries the trail")
{
    um_source_session_config config = default_config();
    config.window_bytes = 3100;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 10; i++) {
        send_bytes(f, source, 1000, 0, UM_SEND_FLUSH); /* 1012 LBMC bytes: three fit the window */
        run_sender(f);
        CHECK_EQ(packet_at(f, i).sqn, i);
        CHECK_EQ(packet_at(f, i).trail, i < 3 ? 0 : i - 2);
        um_source_session_snapshot(f->session);
        CHECK_EQ(f->session->counters.txw_msgs, i < 3 ? i + 1 : 3);
        CHECK_EQ(f->session->counters.txw_bytes, 1012 * f->session->counters.txw_msgs);
    }
    session_close(f);
}

TEST("UM-125", "the window holds when many datagrams are sent at once")
{
    um_source_session_config config = default_config();
    config.window_bytes = 3100;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 10; i++)
            send_bytes(f, source, 1000, 0, UM_SEND_FLUSH);
        CHECK_EQ(run_sender(f), 10);
        CHECK_EQ(f->session->next_sqn - f->session->trail_sqn, 3);
        CHECK_EQ(f->session->window_used_bytes, 3 * 1012);
    }
    for (uint32_t i = 0; i < f->link.count; i++)
        CHECK(!um_serial_before(packet_at(f, i).sqn, packet_at(f, i).trail));
    session_close(f);
}

TEST("UM-125 UX-22", "the window works across the wrap of sequence numbers")
{
    um_source_session_config config = default_config();
    config.window_bytes = 3100;
    config.initial_sqn = UINT32_MAX - 4;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 10; i++) {
        send_bytes(f, source, 1000, 0, UM_SEND_FLUSH);
        run_sender(f);
        CHECK_EQ(packet_at(f, i).sqn, UINT32_MAX - 4 + i);
        CHECK_EQ(packet_at(f, i).trail, UINT32_MAX - 4 + (i < 3 ? 0 : i - 2));
    }
    session_close(f);
}

TEST("UM-125 AE-46 AE-47", "no datagram stays in the window after its log space may be cleaned")
{
    um_source_session_config config = default_config();
    config.window_bytes = TERM;
    um_random random = {check_seed()};
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 4000; i++) {
        send_bytes(f, source, (uint32_t)um_random_below(&random, 900), (uint8_t)i, UM_SEND_FLUSH);
        run_sender(f);
        const um_sent *oldest = um_source_session_sent(f->session, f->session->trail_sqn);
        CHECK(oldest->position >= f->session->log.clean_position);
        CHECK(f->session->next_sqn - f->session->trail_sqn <= TERM / 64);
        CHECK(f->session->window_used_bytes <= TERM);
        capture_clear(&f->link);
    }
    CHECK(atomic_load(&f->session->log.active_term_count) > 10);
    session_close(f);
}

TEST("UX-1", "a datagram over the slice's limit is queued and its send succeeds; later sends wait for the next slice")
{
    um_source_session_config config = default_config();
    fixture *f = session_open_limited(&config, 1000000, 0, 100 * (int64_t)NS_PER_MS);
    um_source *source = source_open(f, ORDERS, 0);
    uint32_t accepted = 0;
    int64_t result;
    while ((result = send_bytes(f, source, 1218, 0, UM_SEND_FLUSH)) >= 0) { /* 1250 bytes per datagram */
        run_sender(f);
        accepted++;
    }
    CHECK_EQ(result, UM_RATE_LIMITED);
    CHECK_EQ(accepted, 11); /* ten were sent, the eleventh is queued */
    CHECK_EQ(f->link.count, 10);
    CHECK(!um_source_session_has_pending(f->session));
    int64_t slice_ns = f->now_ns + 100 * (int64_t)NS_PER_MS;
    CHECK_EQ(um_source_session_tick(f->session, f->now_ns), slice_ns);
    CHECK_EQ(send_text(f, source, "x", 0), UM_RATE_LIMITED);
    f->now_ns = slice_ns;
    um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(f->link.count, 11);
    CHECK_EQ(send_text(f, source, "x", 0), 11);
    session_close(f);
}

TEST("UX-4", "retransmissions count against the data limit too, new data not against theirs")
{
    um_source_session_config config = default_config();
    fixture *f = session_open_limited(&config, 8000000, 800000, 10 * (int64_t)NS_PER_MS); /* 10,000 and 1,000 B */
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 5; i++) {
        send_bytes(f, source, 468, 0, UM_SEND_FLUSH); /* 500 bytes per datagram */
        run_sender(f);
    }
    CHECK_EQ(f->link.count, 5);
    CHECK_EQ(f->limits.data.credit_bytes, 10000 - 2500);
    CHECK_EQ(f->limits.retransmit.credit_bytes, 1000);
    uint32_t sqns[] = {0, 1, 2};
    nak(f, sqns, 3);
    CHECK_EQ(f->session->counters.rxs_sent, 2);
    CHECK_EQ(f->limits.data.credit_bytes, 10000 - 3500);
    CHECK_EQ(f->limits.retransmit.credit_bytes, 0);
    CHECK_EQ(f->session->retransmit_count, 1);
    int64_t next_ns = um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(next_ns, f->now_ns + 10 * NS_PER_MS);
    f->now_ns = next_ns;
    um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(f->session->counters.rxs_sent, 3);
    session_close(f);
}

TEST("UX-1 W6", "datagrams that the link refuses do not use up the limit")
{
    um_source_session_config config = default_config();
    fixture *f = session_open_limited(&config, 8000000, 8000000, 10 * (int64_t)NS_PER_MS);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 8; i++)
        send_bytes(f, source, 1218, 0, UM_SEND_FLUSH);
    f->link.space = 3;
    CHECK_EQ(run_sender(f), 3);
    CHECK_EQ(f->limits.data.credit_bytes, 10000 - 3750);
    f->link.error = -ENETDOWN;
    CHECK_EQ(run_sender(f), -ENETDOWN);
    CHECK_EQ(f->limits.data.credit_bytes, 10000 - 3750);
    uint32_t sqns[] = {0, 1, 2};
    nak(f, sqns, 3);
    CHECK_EQ(f->limits.data.credit_bytes, 10000 - 3750);
    CHECK_EQ(f->limits.retransmit.credit_bytes, 10000);
    CHECK_EQ(f->session->retransmit_count, 3);
    session_close(f);
}

/* ---- flow control ---- */

TEST("AE-12 AE-13 AE-15 AE-19 AE-21", "connected by the first status message, which sets the sender's limit")
{
    um_source_session_config config = flow_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    CHECK_EQ(send_text(f, source, "x", 0), UM_NOT_CONNECTED);
    status_at(f, 1, 0, 10000);
    CHECK(atomic_load(&f->session->log.is_connected));
    CHECK_EQ(f->session->sender_limit, 10000);
    CHECK_EQ(atomic_load(&f->session->log.publication_limit), TERM / 2);
    CHECK_EQ(send_text(f, source, "x", 0), 0);
    CHECK_EQ(f->session->counters.status_messages_received, 1);
    session_close(f);
}

TEST("AE-8 AE-9 AE-10 AE-20 AE-44", "no datagram passes the sender limit, and an episode at the limit is counted once")
{
    um_source_session_config config = flow_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    uint32_t span = um_frame_span(UM_LBMC_HEADER_BYTES + 500);
    status_at(f, 1, 0, 3 * span);
    for (uint32_t i = 0; i < 10; i++)
        send_bytes(f, source, 500, 0, UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(atomic_load(&f->session->sender_position), 3 * span);
    CHECK_EQ(f->session->counters.snd_bpe, 1);
    CHECK(!um_source_session_has_pending(f->session));
    for (uint32_t i = 0; i < 5; i++)
        run_sender(f);
    CHECK_EQ(f->session->counters.snd_bpe, 1);
    status_at(f, 1, f->session->next_sqn, span + span - 1); /* one more fits, two do not */
    run_sender(f);
    CHECK_EQ(atomic_load(&f->session->sender_position), 4 * span);
    CHECK_EQ(f->session->counters.snd_bpe, 2);
    status_at(f, 1, f->session->next_sqn, 100000);
    run_sender(f);
    CHECK_EQ(atomic_load(&f->session->sender_position), 10 * span);
    CHECK_EQ(f->session->counters.snd_bpe, 2);
    session_close(f);
}

TEST("AE-19", "a status message that is late, in the future or far too old has no effect")
{
    um_source_session_config config = flow_config();
    config.window_bytes = 2100;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 10; i++) {
        status_at(f, 1, i, 20000);
        send_bytes(f, source, 1000, 0, UM_SEND_FLUSH);
        CHECK_EQ(run_sender(f), 1);
    }
    int64_t limit = f->session->sender_limit;
    status_at(f, 1, 0, 100);
    CHECK_EQ(f->session->sender_limit, limit);
    status_at(f, 1, 11, 1 << 30);
    status_at(f, 1, 1u << 31, 1 << 30);
    status_at(f, 1, 0 - (TERM / 64), 1 << 30);
    CHECK_EQ(f->session->sender_limit, limit);
    CHECK_EQ(f->session->counters.status_out_of_range, 3);
    status_at(f, 2, 2, 500); /* before the window: counted as its trail */
    CHECK_EQ(f->session->flow.receivers[1].limit,
             um_source_session_sent(f->session, f->session->trail_sqn)->position + 500);
    session_close(f);
}

TEST("AE-19 UM-125", "a receiver's window is limited to the retransmittable bytes")
{
    um_source_session_config config = flow_config();
    config.window_bytes = 5000;
    fixture *f = session_open(&config);
    status_at(f, 1, 0, 4000);
    CHECK_EQ(f->session->sender_limit, 4000);
    status_at(f, 1, 0, 1 << 30);
    CHECK_EQ(f->session->sender_limit, 5000);
    session_close(f);
}

TEST("AE-12 AE-23",
     "when the last receiver times out, the session is no longer connected and the limit drops to the sender")
{
    um_source_session_config config = flow_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    status_at(f, 1, 0, 20000);
    send_text(f, source, "x", UM_SEND_FLUSH);
    int64_t start_ns = f->now_ns;
    while (atomic_load(&f->session->log.is_connected)) {
        int64_t next_ns = um_source_session_tick(f->session, f->now_ns);
        CHECK(next_ns > f->now_ns);
        if (atomic_load(&f->session->log.is_connected))
            f->now_ns = next_ns;
    }
    CHECK_EQ(f->now_ns - start_ns, config.flow_receiver_timeout_ns);
    CHECK_EQ(f->session->counters.receivers_timed_out, 1);
    CHECK_EQ(send_text(f, source, "x", 0), UM_NOT_CONNECTED);
    CHECK_EQ(atomic_load(&f->session->log.publication_limit), atomic_load(&f->session->sender_position));
    session_close(f);
}

TEST("AE-20", "a receiver that leaves stops counting at once")
{
    um_source_session_config config = flow_config();
    fixture *f = session_open(&config);
    status_at(f, 1, 0, 1000);
    status_at(f, 2, 0, 20000);
    CHECK_EQ(f->session->sender_limit, 1000);
    status(f, (um_status_message){.receiver_id = 1, .flags = UM_STATUS_LEAVE});
    CHECK_EQ(f->session->sender_limit, 20000);
    status(f, (um_status_message){.receiver_id = 2, .flags = UM_STATUS_LEAVE});
    CHECK(!atomic_load(&f->session->log.is_connected));
    session_close(f);
}

TEST("AE-15 AE-19 UM-74", "a receiver without a valid position elicits session messages at a bounded rate")
{
    um_source_session_config config = flow_config();
    config.initial_sqn = 100;
    fixture *f = session_open(&config);
    for (uint32_t i = 0; i < 1000; i++)
        status(f, (um_status_message){.next_sqn = 5000, .flags = i % 2 ? UM_STATUS_ELICIT : 0});
    CHECK_EQ(f->link.count, 1);
    um_packet sm = packet_at(f, 0);
    CHECK_EQ(sm.type, UM_LBTRM_SM);
    CHECK_EQ(sm.lead, 99);
    CHECK_EQ(sm.trail, 100);
    int64_t due_ns = um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(due_ns, f->now_ns + NS_PER_MS); /* the others are answered together */
    CHECK_EQ(f->link.count, 1);
    um_source_session_tick(f->session, f->now_ns = due_ns);
    um_source_session_tick(f->session, f->now_ns + 1);
    CHECK_EQ(f->link.count, 2);
    f->now_ns += 2 * NS_PER_MS;
    status(f, (um_status_message){.receiver_id = 1, .flags = UM_STATUS_ELICIT});
    CHECK_EQ(f->link.count, 3);
    session_close(f);
}

TEST("UM-74 UM-76",
     "without flow control, a receiver without a position also elicits session messages at a bounded rate")
{
    um_source_session_config config = default_config();
    config.adaptive_timers = UM_ADAPTIVE_REPORTS;
    config.initial_sqn = 100;
    fixture *f = session_open(&config);
    f->now_ns += 2 * NS_PER_MS;
    status(f, (um_status_message){.receiver_id = 1, .next_sqn = 100});
    CHECK_EQ(f->link.count, 0);
    for (uint32_t i = 0; i < 1000; i++)
        status(f, (um_status_message){.receiver_id = i, .flags = UM_STATUS_ELICIT});
    CHECK_EQ(f->link.count, 1);
    um_packet sm = packet_at(f, 0);
    CHECK(sm.type == UM_LBTRM_SM && sm.lead == 99 && sm.trail == 100);
    session_close(f);
}

TEST("UM-74 UM-76", "with fixed timing and without flow control, a session that never sent answers no receiver")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    f->now_ns += 2 * NS_PER_MS;
    status(f, (um_status_message){.receiver_id = 1, .flags = UM_STATUS_ELICIT});
    CHECK_EQ(f->link.count, 0);
    session_close(f);
}

TEST("UM-19", "a group report does not flush a held batch early")
{
    um_source_session_config config = default_config();
    config.adaptive_timers = UM_ADAPTIVE_REPORTS;
    config.batch_minimum_bytes = 1000;
    config.batch_interval_ns = 200 * NS_PER_MS;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_text(f, source, "first", UM_SEND_FLUSH);
    run_sender(f);
    status(f, (um_status_message){.receiver_id = 1, .next_sqn = config.initial_sqn + 1});
    um_source_session_tick(f->session, f->now_ns += 240 * NS_PER_MS);
    send_text(f, source, "held", 0);
    uint32_t before = f->session->next_sqn;
    int64_t held_ns = f->now_ns;
    for (; f->session->next_sqn == before; f->now_ns += NS_PER_MS)
        um_source_session_tick(f->session, f->now_ns);
    CHECK(f->now_ns - held_ns >= 200 * NS_PER_MS);
    um_source_session_tick(f->session, f->now_ns += 2 * NS_PER_MS);
    CHECK_EQ(f->session->counters.group_reports_sent, 1);
    session_close(f);
}

TEST("AE-9", "without flow control status messages have no effect")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    status_at(f, 1, 0, 10);
    CHECK_EQ(f->session->sender_limit, INT64_MAX);
    CHECK_EQ(f->session->flow.receiver_count, 0);
    session_close(f);
}

/* ---- links ---- */

TEST("W6 AE-42", "a full link is sent the rest later, in order and once")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 30; i++)
        send_bytes(f, source, 1000, (uint8_t)i, UM_SEND_FLUSH);
    for (uint32_t taken = 0; taken < 30; taken += 3) {
        f->link.space = 3;
        CHECK_EQ(run_sender(f), 3);
        CHECK_EQ(atomic_load(&f->session->sender_position), (taken + 3) * um_frame_span(UM_LBMC_HEADER_BYTES + 1000));
        bool more = taken + 3 < 30;
        CHECK(!um_source_session_has_pending(f->session));
        f->link.space = 0;
        int64_t next_ns = um_source_session_tick(f->session, f->now_ns);
        CHECK(more ? next_ns <= f->now_ns + NS_PER_MS && next_ns > f->now_ns : next_ns > f->now_ns + NS_PER_MS);
    }
    for (uint32_t i = 0; i < 30; i++) {
        um_lbmc_message m;
        CHECK_EQ(messages_at(f, i, &m, 1), 1);
        CHECK_EQ(packet_at(f, i).sqn, i);
        CHECK_EQ(m.payload[0], i);
    }
    session_close(f);
}

TEST("W6", "a link that fails is tried again without a busy loop, and no datagram is lost")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_text(f, source, "x", UM_SEND_FLUSH);
    f->link.error = -ENETDOWN;
    CHECK_EQ(run_sender(f), -ENETDOWN);
    CHECK(!um_source_session_has_pending(f->session));
    int64_t next_ns = um_source_session_tick(f->session, f->now_ns);
    CHECK(next_ns >= f->now_ns + NS_PER_MS && next_ns <= f->now_ns + 100 * NS_PER_MS);
    f->link.error = 0;
    um_source_session_tick(f->session, f->now_ns = next_ns);
    CHECK_EQ(f->link.count, 1);
    CHECK_EQ(packet_at(f, 0).sqn, 0);
    session_close(f);
}

TEST("W6 W8", "a link that was full for a moment leaves no flush unsent")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 100; i++)
        send_bytes(f, source, 300, 0, UM_SEND_FLUSH);
    f->link.space = 1;
    run_sender(f);
    f->link.space = UINT32_MAX;
    run_sender(f);
    CHECK_EQ(atomic_load(&f->session->sender_position), um_log_tail(&f->session->log));
    send_text(f, source, "next", UM_SEND_FLUSH);
    CHECK(um_source_session_has_pending(f->session));
    session_close(f);
}

TEST("W4", "when the path shrinks, datagrams already built are sent as oversize, later ones fit")
{
    um_source_session_config config = default_config();
    config.batch_minimum_bytes = 1 << 30;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_bytes(f, source, 200, 0, 0);
    send_bytes(f, source, 1440, 0, 0);
    send_bytes(f, source, 200, 0, 0);
    send_bytes(f, source, 200, 0, 0);
    send_bytes(f, source, 1440, 0, 0);
    um_source_session_set_datagram_max(f->session, 600);
    send_bytes(f, source, 1440, 0, UM_SEND_FLUSH);
    run_sender(f);
    uint32_t payload = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_lbmc_message m[8];
        uint32_t count = messages_at(f, i, m, 8);
        CHECK_EQ(packet_at(f, i).sqn, i);
        CHECK_EQ(f->link.datagrams[i].oversize, f->link.datagrams[i].length > 600);
        CHECK(!f->link.datagrams[i].oversize || count == 1);
        for (uint32_t j = 0; j < count; j++)
            payload += m[j].payload_length;
    }
    CHECK_EQ(payload, 3 * 200 + 3 * 1440);
    uint32_t sqns[64], count = f->link.count;
    for (uint32_t i = 0; i < count; i++)
        sqns[i] = i;
    nak(f, sqns, count);
    CHECK_EQ(f->link.count, 2 * count);
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ(f->link.datagrams[count + i].length, f->link.datagrams[i].length);
        CHECK_EQ(f->link.datagrams[count + i].oversize, f->link.datagrams[i].length > 600);
    }
    session_close(f);
}

TEST("W4", "the path size is limited to the configured size and the smallest datagram")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source_session_set_datagram_max(f->session, 9000);
    CHECK_EQ(atomic_load(&f->session->body_max_bytes), 1452);
    um_source_session_set_datagram_max(f->session, 68);
    CHECK_EQ(atomic_load(&f->session->body_max_bytes), UM_DATAGRAM_BYTES_MIN - 20);
    um_source_session_set_datagram_max(f->session, 1472);
    CHECK_EQ(atomic_load(&f->session->body_max_bytes), 1452);
    session_close(f);
}

/* ---- the log underneath ---- */

TEST("AE-34 AE-35", "an abandoned claim becomes padding after the timeout, and the sender continues")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    um_source_claim claim;
    source->tsni_interval_ns = 0;
    send_text(f, source, "before", 0);
    CHECK_EQ(um_source_claim_begin(source, 500, &claim), 0);
    send_text(f, source, "after", UM_SEND_FLUSH);
    run_sender(f);
    int64_t start_ns = f->now_ns, next_ns = f->now_ns;
    uint32_t ticks = 0;
    while (f->session->counters.unblocked_publications == 0) {
        f->now_ns = next_ns;
        next_ns = um_source_session_tick(f->session, f->now_ns);
        CHECK(ticks++ < 100);
    }
    CHECK_EQ(f->now_ns - start_ns, config.unblock_timeout_ns);
    CHECK_EQ(next_ns, f->now_ns);
    capture_clear(&f->link);
    um_source_session_tick(f->session, f->now_ns);
    um_lbmc_message m;
    CHECK_EQ(messages_at(f, 0, &m, 1), 1);
    CHECK_BYTES(m.payload, (const uint8_t *)"after", 5);
    session_close(f);
}

TEST("AE-30 AE-36 AE-39", "padding at the end of a term is not sent, and datagrams continue after it")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        CHECK_EQ(send_bytes(f, source, 333, (uint8_t)i, UM_SEND_FLUSH), i);
        if (i % 7 == 0)
            run_sender(f);
    }
    run_sender(f);
    uint32_t next = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_lbmc_message m[8];
        uint32_t count = messages_at(f, i, m, 8);
        bytes += f->link.datagrams[i].length;
        for (uint32_t j = 0; j < count; j++) {
            CHECK_EQ(m[j].sqn, next);
            CHECK_EQ(m[j].payload_length, 333);
            CHECK_EQ(m[j].payload[5], (uint8_t)(next + 5));
            next++;
        }
    }
    CHECK_EQ(next, 1000);
    CHECK_EQ(f->session->counters.bytes_sent, bytes);
    CHECK_EQ(f->session->counters.msgs_sent, f->link.count);
    um_source_session_snapshot(f->session);
    CHECK(f->session->counters.term_rotations > 4);
    CHECK(f->session->counters.pub_pos > 1000 * 352);
    CHECK_EQ(f->session->counters.snd_pos, f->session->counters.pub_pos);
    session_close(f);
}

TEST("UM-88 UX-17", "a closed source or session refuses messages; messages in the log are still sent")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *orders = source_open(f, ORDERS, 0), *trades = source_open(f, TRADES, 0);
    send_text(f, orders, "one", 0);
    um_source_fini(orders);
    CHECK_EQ(send_text(f, orders, "two", 0), UM_CLOSED);
    CHECK_EQ(send_text(f, trades, "three", 0), 0);
    um_source_session_close(f->session);
    CHECK_EQ(send_text(f, trades, "four", 0), UM_CLOSED);
    um_source_flush(trades, f->now_ns, &f->actions);
    run_sender(f);
    um_lbmc_message m[4];
    CHECK_EQ(messages_at(f, 0, m, 4), 2);
    source_close(orders);
    session_close(f);
}

/* True if a message that fills the largest datagram is sent when a receiver grants this window. */
static bool leaves_with_window(uint32_t window_bytes)
{
    um_source_session_config config = default_config();
    config.term_length = config.window_bytes = 1 << 20;
    config.datagram_max_bytes = UM_DATAGRAM_BYTES_MAX;
    config.flow_policy = UM_FLOW_MIN;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    status(f, (um_status_message){.receiver_id = 1, .next_sqn = 0, .window_bytes = window_bytes});
    uint32_t length = UM_DATAGRAM_BYTES_MAX - UM_LBTRM_DATA_BYTES - UM_LBMC_HEADER_BYTES;
    CHECK(send_bytes(f, source, length, 1, UM_SEND_FLUSH) >= 0);
    run_sender(f);
    bool left = f->link.count == 1;
    CHECK(!left || f->link.datagrams[0].length == UM_DATAGRAM_BYTES_MAX);
    session_close(f);
    return left;
}

TEST("AE-18", "the smallest configurable window, 64 KiB, allows the largest datagram; a smaller one would not")
{
    CHECK(leaves_with_window(65536));
    CHECK(!leaves_with_window(65535));
}

CHECK_MAIN
