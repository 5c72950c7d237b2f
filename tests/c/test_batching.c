/* Batching at the source: implicit, intelligent and explicit (UM-16..UM-40). */
#include "support.h"

enum { ORDERS = 0x3e9, TRADES = 0x3ea };

/* ---- implicit batching ---- */

TEST("UM-16 UM-27 UM-30 UM-75 UM-78", "messages of two topics share a datagram, a flush of one flushes both")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *orders = source_open(f, ORDERS, 0), *trades = source_open(f, TRADES, 0);
    CHECK_EQ(send_text(f, orders, "one", 0), 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 0);
    CHECK_EQ(send_text(f, trades, "two", UM_SEND_FLUSH), 0);
    CHECK(f->actions & UM_ACTION_RUN_SENDER);
    run_sender(f);
    CHECK_EQ(f->link.count, 1);
    um_lbmc_message m[2];
    CHECK_EQ(messages_at(f, 0, m, 2), 2);
    CHECK_EQ(m[0].topic_index, ORDERS);
    CHECK_EQ(m[1].topic_index, TRADES);
    CHECK_EQ(send_text(f, orders, "three", 0), 1);
    CHECK_EQ(um_source_flush(trades, f->now_ns, &f->actions), 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 2);
    session_close(f);
}

TEST("UM-19a UM-20 C2", "the minimum length is tested after appending, and reaching it flushes")
{
    um_source_session_config config = default_config();
    config.batch_minimum_bytes = 300;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_bytes(f, source, 299, 0, 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 0);
    send_bytes(f, source, 200, 0, 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 1);
    um_lbmc_message m[2];
    CHECK_EQ(messages_at(f, 0, m, 2), 2);
    send_bytes(f, source, 300, 0, 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 2);
    CHECK_EQ(f->session->counters.flushes_length, 2);
    session_close(f);
}

TEST("UM-17 UM-19b UM-22 UM-26", "a message that has waited for the interval is sent")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_text(f, source, "one", 0);
    CHECK(f->actions & UM_ACTION_BATCH_STARTED);
    f->actions = 0;
    int64_t started_ns = f->now_ns;
    f->now_ns += 150 * NS_PER_MS;
    send_text(f, source, "two", 0);
    CHECK(!(f->actions & UM_ACTION_BATCH_STARTED)); /* the interval is that of the oldest message */
    CHECK_EQ(um_source_session_tick(f->session, f->now_ns), started_ns + config.batch_interval_ns);
    f->now_ns = started_ns + config.batch_interval_ns - 1;
    um_source_session_tick(f->session, f->now_ns);
    CHECK_EQ(f->link.count, 0);
    um_source_session_tick(f->session, ++f->now_ns);
    CHECK_EQ(f->link.count, 1);
    CHECK_EQ(f->session->counters.flushes_interval, 1);
    session_close(f);
}

TEST("UM-19b", "a message that is not published yet is not overdue because an earlier batch was")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_text(f, source, "one", 0);
    um_source_session_tick(f->session, f->now_ns += config.batch_interval_ns);
    CHECK_EQ(f->session->counters.flushes_interval, 1);
    um_source_session_tick(f->session, f->now_ns += 2 * config.batch_interval_ns);
    uint32_t before = f->session->next_sqn;
    um_source_claim claim;
    CHECK_EQ(um_source_claim_begin(source, 3, &claim), 0);
    um_source_session_tick(f->session, f->now_ns += NS_PER_MS);
    memcpy(claim.payload, "two", 3);
    CHECK_EQ(um_source_claim_commit(source, &claim, 0, f->now_ns, &f->actions), 1);
    run_sender(f);
    CHECK_EQ(f->session->next_sqn, before);
    um_source_session_tick(f->session, f->now_ns += config.batch_interval_ns);
    CHECK_EQ(f->session->next_sqn, before + 1);
    CHECK_EQ(f->session->counters.flushes_interval, 2);
    session_close(f);
}

TEST("UM-19c UM-21", "a message that does not fit the datagram flushes the deferred messages")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_bytes(f, source, 700, 0, 0);
    send_bytes(f, source, 700, 0, 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 0);
    send_bytes(f, source, 700, 0, 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 1);
    um_lbmc_message m[3];
    CHECK_EQ(messages_at(f, 0, m, 3), 2);
    CHECK_EQ(f->session->counters.flushes_full, 1);
    session_close(f);
}

TEST("UM-19c UM-21", "a message that fits to the last byte joins the datagram, one byte more does not")
{
    um_source_session_config config = default_config();
    for (uint32_t more = 0; more <= 1; more++) {
        fixture *f = session_open(&config);
        um_source *source = source_open(f, ORDERS, 0);
        send_bytes(f, source, 700, 0, 0);
        send_bytes(f, source, 728 + more, 0, 0); /* a datagram holds 712 + 740 LBMC bytes */
        run_sender(f);
        CHECK_EQ(f->link.count, more);
        um_source_flush(source, f->now_ns, &f->actions);
        run_sender(f);
        CHECK_EQ(f->link.count, 1 + more);
        CHECK_EQ(f->link.datagrams[0].length, more ? 20 + 712 : 1472);
        session_close(f);
    }
}

TEST("C4 UM-19d", "a flushed message that does not fit is sent after the deferred messages")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_bytes(f, source, 1000, 0, 0);
    send_bytes(f, source, 1000, 0, UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(f->link.count, 2);
    session_close(f);
}

TEST("UM-24", "1900 and 1900 bytes with a minimum of 2000: one datagram")
{
    um_source_session_config config = config_8k(2000);
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_bytes(f, source, 1900, 0, 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 0);
    send_bytes(f, source, 1900, 0, 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 1);
    CHECK_EQ(f->link.datagrams[0].length, 3800 + 20 + 2 * 12);
    session_close(f);
}

TEST("UM-25", "a minimum of 1 sends every message at once")
{
    um_source_session_config config = default_config();
    config.batch_minimum_bytes = 1;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 5; i++) {
        send_text(f, source, "x", 0);
        run_sender(f);
        CHECK_EQ(f->link.count, i + 1);
    }
    session_close(f);
}

/* ---- explicit batching ---- */

TEST("UM-38", "worked example: 7899 bytes deferred, ten of 100 end a batch")
{
    um_source_session_config config = config_8k(8000);
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_bytes(f, source, 7899, 0, 0);
    for (uint32_t i = 0; i < 10; i++)
        send_bytes(f, source, 100, 0, i == 0 ? UM_SEND_START_BATCH : i == 9 ? UM_SEND_END_BATCH : 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 1);
    um_lbmc_message m[16];
    CHECK_EQ(messages_at(f, 0, m, 16), 3);
    CHECK_EQ(m[0].payload_length, 7899);
    CHECK_EQ(m[2].payload_length, 100);
    um_source_flush(source, f->now_ns, &f->actions);
    run_sender(f);
    CHECK_EQ(messages_at(f, 1, m, 16), 8);
    session_close(f);
}

TEST("UM-34 UM-35 UM-36 UM-37", "a group is withheld until its end, then enters the implicit batch")
{
    um_source_session_config config = default_config();
    config.batch_minimum_bytes = 100;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0), *other = source_open(f, TRADES, 0);
    CHECK_EQ(send_bytes(f, source, 90, 0, UM_SEND_START_BATCH), 0);
    CHECK_EQ(send_bytes(f, source, 90, 0, 0), 1);
    CHECK_EQ(send_text(f, other, "x", UM_SEND_FLUSH), 0);
    run_sender(f);
    um_lbmc_message m[8];
    CHECK_EQ(f->link.count, 1); /* only the other topic's: withheld messages do not count for the minimum */
    CHECK_EQ(messages_at(f, 0, m, 8), 1);
    CHECK_EQ(send_bytes(f, source, 5, 0, UM_SEND_END_BATCH), 2);
    run_sender(f);
    CHECK_EQ(f->link.count, 2); /* 90 and 90 reached the minimum; the last 5 wait */
    CHECK_EQ(messages_at(f, 1, m, 8), 2);
    CHECK_EQ(m[0].flags, UM_MESSAGE_BATCH_START);
    CHECK_EQ(m[1].flags, 0);
    um_source_flush(source, f->now_ns, &f->actions);
    run_sender(f);
    CHECK_EQ(messages_at(f, 2, m, 8), 1);
    CHECK_EQ(m[0].flags, UM_MESSAGE_BATCH_END);
    CHECK_EQ(m[0].sqn, 2);
    session_close(f);
}

TEST("UM-34 UM-37", "a complete batch of one message carries both marks")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    CHECK_EQ(send_text(f, source, "x", UM_SEND_START_BATCH | UM_SEND_END_BATCH | UM_SEND_FLUSH), 0);
    run_sender(f);
    um_lbmc_message m;
    CHECK_EQ(messages_at(f, 0, &m, 1), 1);
    CHECK_EQ(m.flags, UM_MESSAGE_BATCH_START | UM_MESSAGE_BATCH_END);
    session_close(f);
}

TEST("UM-40", "a flush releases the messages that an open batch withholds")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_text(f, source, "one", UM_SEND_START_BATCH);
    CHECK_EQ(um_source_flush(source, f->now_ns, &f->actions), 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 1);
    send_text(f, source, "two", 0);
    send_text(f, source, "three", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(f->link.count, 2);
    um_lbmc_message m[2];
    CHECK_EQ(messages_at(f, 1, m, 2), 2);
    session_close(f);
}

TEST("UM-39", "a group too long to be withheld is sent in parts, in order")
{
    um_source_session_config config = default_config();
    config.batch_minimum_bytes = 0;
    fixture *f = session_open(&config);
    um_source_config source_config = {.topic_index = ORDERS, .explicit_capacity = 256};
    um_source *source = zeroed(sizeof *source);
    um_source_init(source, zeroed(256), &source_config, f->session);
    for (uint32_t i = 0; i < 20; i++)
        CHECK_EQ(send_bytes(f, source, 60, 0, i == 0 ? UM_SEND_START_BATCH : i == 19 ? UM_SEND_END_BATCH : 0), i);
    run_sender(f);
    uint32_t next = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_lbmc_message m[32];
        uint32_t count = messages_at(f, i, m, 32);
        for (uint32_t j = 0; j < count; j++)
            CHECK_EQ(m[j].sqn, next++);
    }
    CHECK_EQ(next, 20);
    session_close(f);
}

TEST("UM-35 UX-23", "back-pressure in the middle of a release loses and repeats nothing")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    f->link.space = 0;
    while (send_bytes(f, source, 1000, 0, UM_SEND_FLUSH) >= 0)
        ;
    uint32_t before = atomic_load(&source->next_sqn);
    for (uint32_t i = 0; i < 20; i++)
        CHECK_EQ(send_bytes(f, source, 1000, (uint8_t)i, i == 0 ? UM_SEND_START_BATCH : 0), before + i);
    CHECK_EQ(send_bytes(f, source, 1000, 20, UM_SEND_END_BATCH | UM_SEND_FLUSH), UM_BACK_PRESSURED);
    uint32_t tries = 0;
    do { /* a little space at a time */
        f->link.space = 3;
        run_sender(f);
        CHECK(tries++ < 100);
    } while (send_bytes(f, source, 1000, 20, UM_SEND_END_BATCH | UM_SEND_FLUSH) == UM_BACK_PRESSURED);
    f->link.space = UINT32_MAX;
    run_sender(f);
    uint32_t next = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_lbmc_message m;
        CHECK_EQ(messages_at(f, i, &m, 1), 1);
        CHECK_EQ(m.sqn, next++);
        CHECK_EQ(m.payload[0], m.sqn < before ? 0 : m.sqn - before);
    }
    CHECK_EQ(next, before + 21);
    session_close(f);
}

TEST("UM-34 W4", "a withheld message keeps its sequence numbers when the path shrinks")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    CHECK_EQ(send_bytes(f, source, 3000, 0, UM_SEND_START_BATCH), 2);
    um_source_session_set_datagram_max(f->session, 600);
    CHECK_EQ(send_bytes(f, source, 100, 0, UM_SEND_END_BATCH | UM_SEND_FLUSH), 3);
    run_sender(f);
    uint32_t next = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_lbmc_message m[4];
        uint32_t count = messages_at(f, i, m, 4);
        for (uint32_t j = 0; j < count; j++)
            CHECK_EQ(m[j].sqn, next++);
        CHECK_EQ(f->link.datagrams[i].oversize, f->link.datagrams[i].length > 600);
    }
    CHECK_EQ(next, 4);
    session_close(f);
}

TEST("UM-62 UM-19",
     "a TSNI of an idle topic does not flush a held batch early, and comes although a batch is always open")
{
    um_source_session_config config = default_config();
    config.batch_minimum_bytes = 1000;
    config.batch_interval_ns = 200 * NS_PER_MS;
    fixture *f = session_open(&config);
    um_source *idle = source_open(f, ORDERS, 0), *busy = source_open(f, ORDERS + 1, 0);
    send_text(f, idle, "first", UM_SEND_FLUSH);
    run_sender(f);
    f->now_ns += idle->tsni_interval_ns - 10 * (int64_t)NS_PER_MS;
    um_source_session_tick(f->session, f->now_ns);
    send_text(f, busy, "held", 0);
    uint32_t before = f->session->next_sqn;
    int64_t held_ns = f->now_ns;
    for (; f->session->next_sqn == before; f->now_ns += NS_PER_MS)
        um_source_session_tick(f->session, f->now_ns);
    CHECK(f->now_ns - held_ns >= 200 * NS_PER_MS);
    um_source_session_tick(f->session, f->now_ns += 2 * NS_PER_MS);
    CHECK_EQ(idle->counters.tsnis_sent, 1);
    f->now_ns += idle->tsni_interval_ns - 10 * (int64_t)NS_PER_MS;
    for (uint32_t i = 0; i < 1000 && idle->counters.tsnis_sent == 1; i++) { /* every tick finds an open batch */
        send_text(f, busy, "held", 0);
        um_source_session_tick(f->session, f->now_ns += NS_PER_MS);
        send_text(f, busy, "held", UM_SEND_FLUSH);
        send_text(f, busy, "held", 0);
    }
    CHECK_EQ(idle->counters.tsnis_sent, 2);
    source_close(idle);
    source_close(busy);
    session_close(f);
}

CHECK_MAIN
