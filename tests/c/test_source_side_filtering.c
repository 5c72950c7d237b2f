/* Source-side filtering over LBT-RU: a client is sent the datagrams it needs, gets reports of the others, and loses
 * none. */
#include "core/delivery/delivery_controller.h"
#include "core/receiver/receiver_session.h"
#include "core/source/client_interest.h"
#include "core/source/session_messages.h"
#include "core/wire/interest_message.h"
#include "unicast.h"

enum { T1 = 0x101, T2 = 0x102, T3 = 0x103 };

/* ---- on the wire ---- */

TEST("UX-27 W1", "interests and filter reports are read back as they were written, and refused if they are cut")
{
    uint8_t out[UM_INTEREST_BYTES_MAX];
    um_interest_part part = {.version = 9, .part = 1, .part_count = 3}, read_part;
    uint32_t length = um_interest_write(out, &BOTH, 5, &part), topic, sum = 0;
    for (uint32_t i = 0; i < UM_INTEREST_PART_TOPICS_MAX; i++)
        length += um_interest_add_topic(out + length, &BOTH, i);
    CHECK_EQ(length, UM_INTEREST_BYTES_MAX);
    um_packet packet = decoded(out, length), topics;
    CHECK(packet.type == UM_LBTRM_DATA && packet.client_id == CLIENT);
    CHECK(um_interest_decode(&packet, &read_part, &topics));
    CHECK(read_part.version == 9 && read_part.part == 1 && read_part.part_count == 3 && !read_part.needs_all);
    while (um_interest_next_topic(&topics, &topic))
        sum += topic;
    CHECK_EQ(sum, UM_INTEREST_PART_TOPICS_MAX * (UM_INTEREST_PART_TOPICS_MAX - 1) / 2);
    um_filter_report report = {7, 8, 9, 10}, read;
    CHECK_EQ(um_filter_report_write(out, SID, 100, &report), UM_FILTER_REPORT_BYTES);
    packet = decoded(out, UM_FILTER_REPORT_BYTES);
    CHECK(packet.flags == UM_LBTRM_FLAG_RETRANSMISSION &&
          packet.sqn == 99); /* a duplicate for receivers that do not know it */
    CHECK(um_filter_report_decode(&packet, &read));
    CHECK(read.first_sqn == 7 && read.count == 8 && read.version == 9 && read.since_sqn == 10);
    CHECK(!um_interest_decode(&packet, &read_part, &topics));
    for (uint32_t cut = UM_LBTRU_DATA_BYTES; cut < UM_FILTER_REPORT_BYTES; cut++) {
        packet = decoded(out, cut);
        CHECK(!um_filter_report_decode(&packet, &read));
    }
    um_lbtru_write_data(out, SID, 5, 1, false);
    um_lbtru_set_passed(out, UM_LBTRU_PASSED_MAX);
    packet = decoded(out, UM_LBTRU_DATA_BYTES);
    CHECK(packet.passed == UM_LBTRU_PASSED_MAX && packet.flags == 0 && packet.sqn == 5);
    um_lbtru_set_passed(out, 3);
    CHECK_EQ(decoded(out, UM_LBTRU_DATA_BYTES).passed, 3);
}

/* ---- the source ---- */

static fixture *filtering_open(uint32_t capacity)
{
    um_source_session_config config = lbtru_config(capacity);
    config.has_filter = true;
    return session_open(&config);
}

/* Sends one part of a client's interest. */
static void interest(fixture *f, um_address from, uint32_t id, const um_interest_part *part, const uint32_t *topics,
                     uint32_t count)
{
    uint8_t out[UM_INTEREST_BYTES_MAX];
    um_lbtru_options options = {SID, id, true};
    uint32_t length = um_interest_write(out, &options, f->session->next_sqn, part);
    for (uint32_t i = 0; i < count; i++)
        length += um_interest_add_topic(out + length, &options, topics[i]);
    from_client(f, from, out, length);
}

static void send_interest(fixture *f, um_address from, uint32_t id, uint32_t version, uint32_t topic)
{
    um_interest_part part = {.version = version, .part_count = 1};
    interest(f, from, id, &part, &topic, 1);
}

/* The last report to a client; count UINT32_MAX: none. */
static um_filter_report last_report(const fixture *f, um_address to)
{
    um_filter_report report, found = {.count = UINT32_MAX};
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_packet packet = decoded(f->link.datagrams[i].data, f->link.datagrams[i].length);
        if (um_address_equal(f->link.datagrams[i].to, to) && um_filter_report_decode(&packet, &report))
            found = report;
    }
    return found;
}

TEST("UX-27", "a client is sent the datagrams with its topics, and each carries how many were passed over before it")
{
    fixture *f = filtering_open(8);
    um_source *one = source_open(f, T1, 0), *two = source_open(f, T2, 0);
    uint32_t id = connect_client(f, A);
    connect_client(f, B);                   /* sends no interest, and is sent everything */
    CHECK_EQ(last_report(f, A).version, 0); /* the report shows that the source filters */
    send_interest(f, A, id, 5, T1);
    um_filter_report report = last_report(f, A);
    CHECK(report.version == 5 && report.since_sqn == 0 && report.count == 0);
    capture_clear(&f->link);
    um_source *order[] = {two, two, one, one, two, one};
    for (uint32_t i = 0; i < 6; i++)
        send_bytes(f, order[i], 1000, 0, UM_SEND_FLUSH);
    CHECK_EQ(run_sender(f), 6);
    uint32_t sqns[] = {2, 3, 5}, passed[] = {2, 0, 1}, found = 0, other = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_packet packet = decoded(f->link.datagrams[i].data, f->link.datagrams[i].length);
        if (um_address_equal(f->link.datagrams[i].to, B)) {
            CHECK(packet.sqn == other && packet.passed == 0);
            other++;
            continue;
        }
        CHECK(found < 3 && packet.sqn == sqns[found] && packet.passed == passed[found]);
        found++;
    }
    CHECK(found == 3 && other == 6);
    um_source_session_snapshot(f->session);
    CHECK_EQ(f->session->counters.copies_filtered, 3);
    session_close(f);
}

TEST("UX-27", "a datagram is sent to clients that need any of its topics, a TSNI to clients that need its topic")
{
    fixture *f = filtering_open(8);
    um_source *one = source_open(f, T1, 0), *two = source_open(f, T2, 0);
    uint32_t of_a = connect_client(f, A), of_b = connect_client(f, B), of_c = connect_client(f, C);
    send_interest(f, A, of_a, 1, T1);
    send_interest(f, B, of_b, 1, T2);
    send_interest(f, C, of_c, 1, T3);
    capture_clear(&f->link);
    send_text(f, one, "x", 0);
    send_text(f, two, "y", UM_SEND_FLUSH);
    CHECK_EQ(run_sender(f), 1);
    CHECK(sent_to(f, A) == 1 && sent_to(f, B) == 1 && sent_to(f, C) == 0);
    capture_clear(&f->link);
    send_text(f, one, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK(sent_to(f, A) == 1 && sent_to(f, B) == 0 && sent_to(f, C) == 0);
    capture_clear(&f->link);
    f->now_ns += 5 * (int64_t)NS_PER_S + 1;
    um_source_tick_tsni(f->session, f->now_ns); /* both topics in one TSNI */
    run_sender(f);
    CHECK(sent_to(f, A) == 1 && sent_to(f, B) == 1 && sent_to(f, C) == 0);
    session_close(f);
}

TEST("UX-27", "a client whose interest is missing, incomplete or too large is sent everything")
{
    enum { MANY = UM_CLIENT_TOPICS_MAX + 1, PART = UM_INTEREST_PART_TOPICS_MAX };
    fixture *f = filtering_open(8);
    um_source *source = source_open(f, T3, 0);
    uint32_t id = connect_client(f, A), topics[MANY];
    for (uint32_t i = 0; i < MANY; i++)
        topics[i] = 0x1000 + i;
    um_interest_part part = {.version = 7, .part_count = 2};
    interest(f, A, id, &part, topics, PART);
    capture_clear(&f->link);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(sent_to(f, A), 1); /* one part of two */
    part.part = 1;
    interest(f, A, id, &part, topics + PART, 1);
    CHECK_EQ(last_report(f, A).version, 7);
    CHECK_EQ(last_report(f, A).since_sqn, 1);
    capture_clear(&f->link);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(sent_to(f, A), 0);
    part = (um_interest_part){.version = 8, .part_count = 1, .needs_all = true};
    interest(f, A, id, &part, NULL, 0);
    part = (um_interest_part){.version = 7, .part_count = 1}; /* late */
    interest(f, A, id, &part, topics, 1);
    CHECK_EQ(last_report(f, A).version, 8);
    capture_clear(&f->link);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(sent_to(f, A), 1);
    part = (um_interest_part){.version = 9, .part_count = (MANY + PART - 1) / PART};
    for (uint32_t at = 0; at < MANY; at += PART, part.part++)
        interest(f, A, id, &part, topics + at, MANY - at < PART ? MANY - at : PART);
    CHECK_EQ(last_report(f, A).version, 9);
    capture_clear(&f->link);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(sent_to(f, A), 1); /* more topics than there is space for */
    /* The part that arrives last is neither the one without space, nor the one that needs every topic. */
    part = (um_interest_part){.version = 10, .part_count = (MANY + PART - 1) / PART + 1};
    for (uint32_t at = 0; at < MANY; at += PART, part.part++)
        interest(f, A, id, &part, topics + at, MANY - at < PART ? MANY - at : PART);
    interest(f, A, id, &part, topics, 1);
    CHECK_EQ(last_report(f, A).version, 10);
    part = (um_interest_part){.version = 11, .part_count = 2, .needs_all = true};
    capture_clear(&f->link);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(sent_to(f, A), 1);
    interest(f, A, id, &part, NULL, 0);
    part = (um_interest_part){.version = 11, .part = 1, .part_count = 2};
    interest(f, A, id, &part, topics, 1);
    CHECK_EQ(last_report(f, A).version, 11);
    capture_clear(&f->link);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(sent_to(f, A), 1);
    session_close(f);
}

TEST("UX-27 UX-11", "an interest without the client id of its address changes nothing")
{
    fixture *f = filtering_open(8);
    um_source *source = source_open(f, T1, 0);
    uint32_t id = connect_client(f, A);
    send_interest(f, A, id, 1, T1);
    capture_clear(&f->link);
    send_interest(f, A, id + 1, 2, T2);
    send_interest(f, B, id, 2, T2);
    CHECK(f->session->counters.dgrams_dropped_client == 2 && f->session->counters.interests_rcved == 1);
    capture_clear(&f->link);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(sent_to(f, A), 1);
    session_close(f);
}

TEST("UX-27", "a receiver that restarts at the same address is sent everything until its new interest has arrived")
{
    fixture *f = filtering_open(8);
    um_source *source = source_open(f, T2, 0);
    uint32_t id = connect_client(f, A);
    send_interest(f, A, id, 500, T1);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    connect_client(f, A);
    CHECK_EQ(last_report(f, A).version, 0);
    capture_clear(&f->link);
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(sent_to(f, A), 1);
    CHECK_EQ(decoded(f->link.datagrams[0].data, f->link.datagrams[0].length).passed, 0);
    send_interest(f, A, id, 3, T1); /* an older version, of another receiver */
    CHECK_EQ(last_report(f, A).version, 3);
    session_close(f);
}

TEST("UX-27 UM-124", "a NAK of a datagram that a client does not need gets a report, other NAKs the datagram")
{
    fixture *f = filtering_open(8);
    um_source *one = source_open(f, T1, 0), *two = source_open(f, T2, 0);
    uint32_t of_a = connect_client(f, A), of_b = connect_client(f, B);
    send_interest(f, A, of_a, 1, T1);
    send_interest(f, B, of_b, 1, T2);
    um_source *order[] = {one, two, two, two, one, two};
    for (uint32_t i = 0; i < 6; i++)
        send_bytes(f, order[i], 1000, 0, UM_SEND_FLUSH);
    run_sender(f);
    capture_clear(&f->link);
    uint8_t out[128];
    uint32_t sqns[] = {0, 1, 2, 3, 4, 5};
    um_lbtru_options options = {SID, of_a, true};
    from_client(f, A, out, um_lbtru_write_nak(out, &options, sqns, 5));
    CHECK_EQ(sent_to(f, B), 0);
    um_filter_report report = last_report(f, A);
    CHECK(report.first_sqn == 1 && report.count == 3 && report.version == 1);
    uint32_t repaired = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_packet packet = decoded(f->link.datagrams[i].data, f->link.datagrams[i].length);
        if (um_filter_report_decode(&packet, &report))
            continue;
        CHECK(packet.flags == UM_LBTRM_FLAG_RETRANSMISSION && packet.passed == 0);
        repaired |= 1u << packet.sqn;
    }
    CHECK_EQ(repaired, 1u << 0 | 1u << 4);
    /* A topic added later also applies to datagrams sent before. */
    send_interest(f, A, of_a, 2, T2);
    capture_clear(&f->link);
    from_client(f, A, out, um_lbtru_write_nak(out, &options, sqns + 1, 1));
    CHECK(sent_to(f, A) == 1 && sent_to(f, B) == 1);
    session_close(f);
}

TEST("UX-27", "filter reports are sent before session messages, in time, and before a client's position is out of date")
{
    fixture *f = filtering_open(8);
    um_source *one = source_open(f, T1, 0), *two = source_open(f, T2, 0);
    uint32_t id = connect_client(f, A);
    send_interest(f, A, id, 1, T2);
    capture_clear(&f->link);
    send_text(f, one, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(f->link.count, 0);
    /* Other clients are sent so much that no session message is due. */
    for (uint32_t i = 0; i < 19; i++) {
        f->now_ns += 10 * NS_PER_MS;
        send_text(f, one, "x", UM_SEND_FLUSH);
        um_source_session_tick(f->session, f->now_ns);
        CHECK_EQ(f->link.count, 0);
    }
    f->now_ns += 10 * NS_PER_MS;
    um_source_session_tick(f->session, f->now_ns);
    um_filter_report report = last_report(f, A);
    CHECK(f->link.count == 1 && report.first_sqn == 0 && report.count == 20);
    capture_clear(&f->link);
    send_text(f, one, "x", UM_SEND_FLUSH);
    run_sender(f);
    um_source_session_message_send(f->session, f->now_ns);
    report = last_report(f, A);
    CHECK(f->link.count == 2 && report.first_sqn == 20 && report.count == 1);
    CHECK_EQ(decoded(f->link.datagrams[1].data, f->link.datagrams[1].length).type, UM_LBTRM_SM);
    capture_clear(&f->link);
    for (uint32_t i = 0; i < 100; i++) { /* flow control would wait for the client's position */
        send_bytes(f, one, 1400, 0, UM_SEND_FLUSH);
        run_sender(f);
    }
    CHECK_EQ(f->link.count, 1);
    capture_clear(&f->link);
    send_text(f, two, "x", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(f->link.count, 1);
    CHECK(decoded(f->link.datagrams[0].data, f->link.datagrams[0].length).passed > 0);
    session_close(f);
}

/* Sqns that one client has received or that were passed over for it, each once. */
typedef struct has_all {
    uint32_t next;
    uint32_t sent;
} has_all;

TEST("UX-27", "whatever the link refuses, each client gets each sqn once: sent if it needs it, else passed over")
{
    enum { CLIENTS = 3, MESSAGES = 400, TOPICS = 3 };
    um_source_session_config config = lbtru_config(8);
    config.has_filter = true;
    config.term_length = config.window_bytes = 1 << 20;
    fixture *f = session_open(&config);
    um_address clients[CLIENTS] = {A, B, C};
    uint32_t topics[TOPICS] = {T1, T2, T3}, topic_of[MESSAGES + 1];
    um_source *sources[TOPICS];
    for (uint32_t i = 0; i < TOPICS; i++)
        sources[i] = source_open(f, topics[i], 0);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        uint32_t id = connect_client(f, clients[i]);
        um_interest_part part = {.version = 1, .part_count = 1};
        interest(f, clients[i], id, &part, topics, i); /* none, T1, T1 and T2 */
    }
    capture_clear(&f->link);
    um_random random = {17};
    for (uint32_t i = 0; i < MESSAGES; i++) {
        topic_of[i] = (uint32_t)um_random_below(&random, TOPICS);
        send_bytes(f, sources[topic_of[i]], 900, (uint8_t)i, UM_SEND_FLUSH);
        f->link.space = (uint32_t)um_random_below(&random, 4);
        if (i % 5 == 0)
            run_sender(f);
        f->now_ns += NS_PER_MS / 10;
    }
    for (uint32_t i = 0; i < 2000; i++) {
        f->link.space = 1 + (uint32_t)um_random_below(&random, 3);
        run_sender(f);
    }
    f->link.space = UINT32_MAX;
    um_clients_report_passed(f->session);
    CHECK(f->session->clients.behind_count == 0 && f->session->next_sqn == MESSAGES);
    has_all has[CLIENTS] = {0};
    for (uint32_t i = 0; i < f->link.count; i++) {
        capture *one = &f->link.datagrams[i];
        um_packet packet = decoded(one->data, one->length);
        um_filter_report report;
        uint32_t k = 0;
        while (!um_address_equal(one->to, clients[k]))
            k++;
        bool is_report = um_filter_report_decode(&packet, &report);
        uint32_t passed = is_report ? report.count : packet.passed;
        CHECK_EQ(is_report ? report.first_sqn : packet.sqn - passed, has[k].next);
        for (uint32_t n = 0; n < passed; n++)
            CHECK(topic_of[has[k].next + n] >= k);
        has[k].next += passed + !is_report;
        has[k].sent += !is_report;
        if (!is_report)
            CHECK(topic_of[packet.sqn] < k);
    }
    for (uint32_t k = 0; k < CLIENTS; k++) {
        CHECK_EQ(has[k].next, MESSAGES);
        CHECK((has[k].sent > 0) == (k > 0));
    }
    session_close(f);
}

TEST("UX-27 UX-1", "the data rate limit counts the copies that are sent")
{
    um_source_session_config config = lbtru_config(8);
    config.has_filter = true;
    fixture *f = session_open_limited(&config, 8 * 1000 * 1000, 0, 10 * NS_PER_MS);
    um_source *source = source_open(f, T1, 0);
    uint32_t of_a = connect_client(f, A), of_b = connect_client(f, B);
    send_interest(f, A, of_a, 1, T1);
    send_interest(f, B, of_b, 1, T2);
    capture_clear(&f->link);
    for (uint32_t i = 0; i < 20; i++)
        send_bytes(f, source, 968, 0, UM_SEND_FLUSH); /* 1000 bytes each: 10 per slice */
    run_sender(f);
    CHECK(sent_to(f, A) == 10 && sent_to(f, B) == 0);
    session_close(f);
}

/* ---- the receiver ---- */

static void data_of(connecting *c, uint32_t sqn, uint32_t passed, uint32_t topic, uint32_t topic_sqn)
{
    uint8_t out[128];
    um_lbmc_layout layout = {.topic_index = topic, .sqn = topic_sqn, .payload_length = 4};
    um_lbtru_write_data(out, SID, sqn, 0, false);
    um_lbtru_set_passed(out, passed);
    uint8_t *payload = um_lbmc_write_message(out + UM_LBTRU_DATA_BYTES, &layout);
    um_store_be32(payload, topic_sqn);
    c->r->base = 0;
    c->r->sent = STREAM_MAX;
    from_source(c, out, (uint32_t)(payload + 4 - out));
}

static void report_of(connecting *c, uint32_t first, uint32_t count, uint32_t version, uint32_t since)
{
    uint8_t out[UM_FILTER_REPORT_BYTES];
    um_filter_report report = {first, count, version, since};
    from_source(c, out, um_filter_report_write(out, SID, 0, &report));
}

/* The last interest sent; part_count 0: none. */
static um_interest_part last_interest(const connecting *c, um_packet *topics)
{
    um_interest_part part, found = {0};
    um_packet behind;
    for (uint32_t i = 0; i < c->link.count; i++) {
        um_packet packet = decoded(c->link.datagrams[i].data, c->link.datagrams[i].length);
        if (um_interest_decode(&packet, &part, &behind)) {
            found = part;
            *topics = behind;
        }
    }
    return found;
}

/* Connects, with the interest in one topic in force since the first datagram. Returns its version. */
static uint32_t filtered(connecting *c)
{
    um_packet topics;
    pass(c->r, 1);
    syn(c, CLIENT, 0);
    CHECK_EQ(last_interest(c, &topics).part_count, 0); /* no interest before a report shows that the source filters */
    report_of(c, 0, 0, 0, 0);
    pass(c->r, 1);
    um_interest_part part = last_interest(c, &topics);
    uint32_t topic;
    CHECK(part.part_count == 1 && um_interest_next_topic(&topics, &topic) && topic == TOPIC);
    CHECK(!um_interest_next_topic(&topics, &topic));
    report_of(c, 0, 0, part.version, 1);
    capture_clear(&c->link);
    return part.version;
}

TEST("UX-27", "datagrams passed over are neither lost nor NAKed; datagrams missing before them are")
{
    connecting *c = connecting_open();
    um_receiver_session *session = c->r->session;
    uint32_t version = filtered(c);
    data_of(c, 1, 0, TOPIC, 1);
    data_of(c, 5, 3, TOPIC, 2);
    CHECK(session->next_sqn == 6 && session->losses.count == 0 && session->counters.lost == 0);
    CHECK_EQ(session->counters.dgrams_passed_over, 3);
    data_of(c, 10, 2, TOPIC, 4); /* 6 and 7 are missing */
    CHECK(session->losses.count == 2 && um_loss_map_find(&session->losses, 7) != NULL);
    report_of(c, 11, 20, version, 1);
    CHECK(session->next_sqn == 31 && session->losses.count == 2);
    report_of(c, 6, 1, version, 1); /* in response to a NAK */
    CHECK(session->losses.count == 1 && um_loss_map_find(&session->losses, 6) == NULL);
    pass(c->r, 5);
    CHECK(sent_of(c, UM_LBTRM_NAK) >= 1);
    data_of(c, 7, 0, TOPIC, 3);
    CHECK_EQ(session->losses.count, 0);
    CHECK_EQ(c->r->delivered, 4);
    connecting_close(c);
}

TEST("UX-27", "datagrams left out for another client's interest, or without an interest, are not passed over")
{
    connecting *c = connecting_open();
    um_receiver_session *session = c->r->session;
    um_packet topics;
    pass(c->r, 1);
    syn(c, CLIENT, 0);
    data_of(c, 3, 2, TOPIC, 1); /* no interest was sent */
    CHECK(session->losses.count == 2 && session->counters.dgrams_passed_over == 0);
    report_of(c, 1, 2, 77, 1);
    CHECK_EQ(session->losses.count, 2);
    pass(c->r, 1);
    um_interest_part part = last_interest(c, &topics);
    CHECK(part.version != 0 && part.version != 77);
    data_of(c, 6, 2, TOPIC, 2); /* sent, but not in force */
    report_of(c, 4, 2, part.version + 1, 1);
    CHECK_EQ(session->losses.count, 4);
    report_of(c, 4, 2, part.version, 1);
    CHECK_EQ(session->losses.count, 4 - (session->interest.is_in_force ? 2 : 0));
    connecting_close(c);
}

TEST("UX-27", "an interest is repeated until it is in force, and sent again if the source has another one")
{
    connecting *c = connecting_open();
    um_packet topics;
    uint32_t version = filtered(c);
    pass(c->r, 3000);
    CHECK_EQ(last_interest(c, &topics).part_count, 0);
    report_of(c, 0, 0, 0, 0); /* the source has lost it */
    pass(c->r, 2000);
    CHECK_EQ(last_interest(c, &topics).version, version);
    uint32_t sent = (uint32_t)c->r->session->counters.interests_sent;
    CHECK(sent > 5 && sent < 15);         /* at growing intervals, up to the acknowledgement interval */
    report_of(c, 0, 0, version + 500, 0); /* of an earlier receiver */
    pass(c->r, 1000);
    version = last_interest(c, &topics).version;
    CHECK(version == c->r->session->interest.version);
    report_of(c, 0, 0, version, 1);
    sent = (uint32_t)c->r->session->counters.interests_sent;
    pass(c->r, 3000);
    CHECK_EQ(c->r->session->counters.interests_sent, sent);
    connecting_close(c);
}

TEST("UX-27", "a re-added topic starts where the source reports that all of it is sent, not before")
{
    connecting *c = connecting_open();
    recovering *r = c->r;
    um_packet topics;
    filtered(c);
    um_delivery *later = zeroed(sizeof *later);
    um_delivery_init(later, &r->receiver, 2, 0, T2, r->session->config.nak_generation_ns);
    CHECK(um_receiver_session_map(r->session, later, r->now_ns));
    um_node_wake(&r->node, r->now_ns);
    data_of(c, 1, 0, T2, 70); /* sent before filtering, or in a datagram with another topic */
    CHECK(later->state == UM_DELIVERY_WAITING && r->session->counters.msgs_before_interest == 1);
    pass(r, 30);
    um_interest_part part = last_interest(c, &topics);
    uint32_t topic, seen = 0;
    while (um_interest_next_topic(&topics, &topic))
        seen |= topic == T2 ? 1 : topic == TOPIC ? 2 : 4;
    CHECK_EQ(seen, 3);
    report_of(c, 2, 8, part.version, 10);
    CHECK_EQ(r->session->next_sqn, 10);
    data_of(c, 10, 0, T2, 80);
    CHECK(later->state == UM_DELIVERY_RUNNING && later->next_sqn == 81);
    um_receiver_session_unmap(r->session, later);
    free(later);
    pass(r, 30);
    um_interest_part without = last_interest(c, &topics);
    CHECK(without.version == part.version + 1 && um_interest_next_topic(&topics, &topic) && topic == TOPIC);
    CHECK(!um_interest_next_topic(&topics, &topic));
    connecting_close(c);
}

TEST("UX-27 UX-11", "after a reset the interest is sent again once the receiver is connected")
{
    connecting *c = connecting_open();
    um_packet topics;
    uint8_t out[64];
    uint32_t version = filtered(c);
    from_source(c, out, um_lbtru_write_rst(out));
    pass(c->r, 101);
    CHECK_EQ(sent_of(c, UM_LBTRU_CREQ), 1);
    capture_clear(&c->link);
    syn(c, CLIENT, 0);
    um_packet packet = decoded(c->link.datagrams[0].data, c->link.datagrams[0].length);
    CHECK(packet.type == UM_LBTRU_ACK && packet.flags == UM_LBTRU_FLAG_SYN);
    pass(c->r, 5);
    CHECK_EQ(last_interest(c, &topics).version, version);
    pass(c->r, 1000);
    packet = decoded(c->link.datagrams[c->link.count - 1].data, c->link.datagrams[c->link.count - 1].length);
    for (uint32_t i = 1; i < c->link.count; i++) {
        packet = decoded(c->link.datagrams[i].data, c->link.datagrams[i].length);
        CHECK(packet.type != UM_LBTRU_ACK || packet.flags == 0);
    }
    connecting_close(c);
}

CHECK_MAIN
