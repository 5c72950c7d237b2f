/* The topic layer of a source: fragmentation, batching, sequence numbers, claims, TSNIs. */
#include "core/foundation/random.h"
#include "support.h"

enum { TERM = UM_LOG_TERM_BYTES_MIN, ORDERS = 0x3e9, TRADES = 0x3ea };

/* ---- fragmentation ---- */

TEST("UX-25 UM-42 UM-48", "1440 bytes fill a datagram of 1472 whole")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    CHECK_EQ(send_bytes(f, source, 1440, 1, UM_SEND_FLUSH), 0);
    run_sender(f);
    CHECK_EQ(f->link.count, 1);
    CHECK_EQ(f->link.datagrams[0].length, 1472);
    um_lbmc_message message;
    CHECK_EQ(messages_at(f, 0, &message, 1), 1);
    CHECK_EQ(message.flags, 0);
    CHECK_EQ(message.payload_length, 1440);
    session_close(f);
}

TEST("UX-25 UM-5 UM-42 UM-52 UM-57", "1441 bytes become fragments of 1424 and 17, a sequence number each")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 40);
    CHECK_EQ(send_bytes(f, source, 1441, 1, UM_SEND_FLUSH), 41);
    run_sender(f);
    CHECK_EQ(f->link.count, 2);
    CHECK_EQ(f->link.datagrams[0].length, 1472);
    um_lbmc_message m[2];
    CHECK_EQ(messages_at(f, 0, &m[0], 1), 1);
    CHECK_EQ(messages_at(f, 1, &m[1], 1), 1);
    CHECK_EQ(m[0].payload_length, 1424);
    CHECK_EQ(m[1].payload_length, 17);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_EQ(m[i].flags, UM_MESSAGE_FRAGMENT);
        CHECK_EQ(m[i].sqn, 40 + i);
        CHECK_EQ(m[i].first_sqn, 40);
        CHECK_EQ(m[i].offset, 1424 * i);
        CHECK_EQ(m[i].total, 1441);
        CHECK_EQ(m[i].payload[0], (uint8_t)(1 + 1424 * i));
    }
    CHECK_EQ(messages_sent(source), 1);
    CHECK_EQ(source->counters.fragments_sent, 2);
    CHECK_EQ(source->counters.bytes_sent, 1441);
    session_close(f);
}

/* Reassembles the fragments of captured datagrams and checks them against the rule. */
static void check_fragments(fixture *f, uint32_t length, uint32_t datagram_max)
{
    uint32_t body_max = datagram_max - UM_LBTRM_DATA_BYTES, offset = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_lbmc_message m;
        CHECK(f->link.datagrams[i].length <= datagram_max);
        CHECK_EQ(messages_at(f, i, &m, 1), 1);
        bool last = i + 1 == f->link.count;
        CHECK_EQ(m.flags, f->link.count > 1 ? UM_MESSAGE_FRAGMENT : 0);
        CHECK(f->link.count == 1 || (m.offset == offset && m.total == length));
        CHECK(last || m.payload_length == body_max - um_lbmc_overhead(true, false, false));
        for (uint32_t b = 0; b < m.payload_length; b++)
            CHECK_EQ(m.payload[b], (uint8_t)(offset + b));
        offset += m.payload_length;
    }
    CHECK_EQ(offset, length);
    CHECK_EQ(f->link.count == 1, um_lbmc_overhead(false, false, false) + length <= body_max);
}

TEST("UX-25 UM-21 UM-42 UM-45 W4", "any length, any datagram size: whole if it fits, full fragments if not")
{
    um_random random = {check_seed()};
    for (uint32_t i = 0; i < 400; i++) {
        um_source_session_config config = default_config();
        config.term_length = 1 << 19;
        config.batch_minimum_bytes = 0;
        config.datagram_max_bytes = 500 + (uint32_t)um_random_below(&random, i % 4 == 0 ? 65000 : 2000);
        if (config.datagram_max_bytes > UM_DATAGRAM_BYTES_MAX)
            config.datagram_max_bytes = UM_DATAGRAM_BYTES_MAX;
        fixture *f = session_open(&config);
        um_source *source = source_open(f, ORDERS, (uint32_t)um_random_next(&random));
        uint32_t length = (uint32_t)um_random_below(&random, 1 + (i % 2 ? 1 << 15 : 3 * config.datagram_max_bytes));
        if (i % 8 == 0)
            length = config.datagram_max_bytes - 32 + (i & 8 ? 1 : 0);
        if (length > um_source_message_max(source))
            length = um_source_message_max(source);
        CHECK(send_bytes(f, source, length, 0, UM_SEND_FLUSH) >= 0);
        run_sender(f);
        check_fragments(f, length, config.datagram_max_bytes);
        session_close(f);
    }
}

TEST("UP-9", "with fragments of a fixed length, the numbers of a message depend on its length only")
{
    enum { FRAGMENT = 400 };
    static const uint32_t lengths[] = {0, FRAGMENT, FRAGMENT + 1, 3 * FRAGMENT, 3 * FRAGMENT + 1, 5};
    static const uint32_t last[] = {0, 1, 3, 6, 10, 11};
    static const uint32_t paths[] = {300, 1400}; /* shorter than a fragment, and long enough for several */
    static uint8_t data[9 * FRAGMENT];
    for (uint32_t k = 0; k < 4; k++) {
        um_source_session_config config = default_config();
        fixture *f = session_open(&config);
        um_source *source = source_open(f, ORDERS, 0);
        source->fragment_bytes = FRAGMENT;
        atomic_store(&f->session->body_max_bytes, paths[k % 2]);
        if (k < 2) {
            for (uint32_t i = 0; i < 6; i++)
                CHECK_EQ(um_source_send(source, data, lengths[i], 0, f->now_ns, &f->actions), last[i]);
        } else {
            um_messages all = {.data = data, .lengths = lengths, .count = 6};
            uint64_t done_bytes;
            CHECK_EQ(um_source_send_many(source, &all, 0, f->now_ns, &f->actions, &done_bytes), 6);
        }
        um_lbmc_extras extras = {.properties_bytes = 100};
        CHECK_EQ(um_source_send_with(source, data, FRAGMENT, &extras, 0, f->now_ns, &f->actions), 12);
        CHECK_EQ(um_source_send_with(source, data, FRAGMENT + 1, &extras, 0, f->now_ns, &f->actions), 14);
        session_close(f);
    }
}

TEST("", "the longest message is sent, one byte more is refused")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    uint32_t longest = um_source_message_max(source);
    CHECK_EQ(longest, TERM / 16);
    CHECK_EQ(send_bytes(f, source, longest + 1, 0, UM_SEND_FLUSH), -EMSGSIZE);
    CHECK(send_bytes(f, source, longest, 0, UM_SEND_FLUSH) > 0);
    run_sender(f);
    check_fragments(f, longest, 1472);
    session_close(f);
}

TEST("", "an empty message is sent")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    CHECK_EQ(send_text(f, source, "", UM_SEND_FLUSH), 0);
    run_sender(f);
    um_lbmc_message m;
    CHECK_EQ(messages_at(f, 0, &m, 1), 1);
    CHECK_EQ(m.payload_length, 0);
    session_close(f);
}

TEST("UX-22 UM-52", "topic and transport sequence numbers wrap")
{
    um_source_session_config config = default_config();
    config.initial_sqn = UINT32_MAX;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, UINT32_MAX);
    CHECK_EQ(send_bytes(f, source, 3000, 0, UM_SEND_FLUSH), 1);
    CHECK_EQ(send_text(f, source, "x", UM_SEND_FLUSH), 2);
    run_sender(f);
    CHECK_EQ(packet_at(f, 0).sqn, UINT32_MAX);
    CHECK_EQ(packet_at(f, 1).sqn, 0);
    CHECK_EQ(packet_at(f, 1).trail, UINT32_MAX);
    um_lbmc_message m[2];
    CHECK_EQ(messages_at(f, 2, m, 2), 2);
    CHECK_EQ(m[0].sqn, 1);
    CHECK_EQ(m[0].first_sqn, UINT32_MAX);
    CHECK_EQ(m[1].sqn, 2);
    session_close(f);
}

/* ---- refusals ---- */

TEST("UX-23 AE-12 AE-13 AE-14", "a refused send uses no sequence number")
{
    um_source_session_config config = default_config();
    config.flow_policy = UM_FLOW_MIN;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 7);
    CHECK_EQ(send_text(f, source, "x", 0), UM_NOT_CONNECTED);
    CHECK_EQ(send_bytes(f, source, 5000, 0, 0), -EMSGSIZE);
    status(f, (um_status_message){.receiver_id = 1, .window_bytes = 0, .next_sqn = 0});
    uint32_t sent = 0;
    int64_t result;
    while ((result = send_bytes(f, source, 1000, 0, 0)) >= 0)
        CHECK_EQ(result, 7 + sent++);
    CHECK_EQ(result, UM_BACK_PRESSURED);
    CHECK(f->actions & UM_ACTION_RUN_SENDER);
    um_source_session_close(f->session);
    CHECK_EQ(send_text(f, source, "x", 0), UM_CLOSED);
    CHECK_EQ(atomic_load(&source->next_sqn), 7 + sent);
    CHECK_EQ(messages_sent(source), sent);
    CHECK_EQ(source->counters.sends_refused, 3);
    CHECK_EQ(f->session->counters.not_connected, 1);
    CHECK_EQ(f->session->counters.back_pressured, 1);
    session_close(f);
}

TEST("AE-13 UM-19", "a full log flushes itself: the deferred tail is sent and makes space")
{
    um_source_session_config config = default_config();
    config.batch_minimum_bytes = 1 << 30;
    config.datagram_max_bytes = 8192;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    while (send_bytes(f, source, 3, 0, 0) >= 0)
        ;
    run_sender(f);
    CHECK_EQ(atomic_load(&f->session->sender_position), um_log_tail(&f->session->log));
    CHECK(send_bytes(f, source, 3, 0, 0) > 0);
    session_close(f);
}

/* ---- claims ---- */

TEST("AE-32 AE-33", "a claim is written in place, and is no longer than a datagram can hold")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 3);
    um_source_claim claim;
    CHECK_EQ(um_source_claim_begin(source, 1441, &claim), -EMSGSIZE);
    CHECK_EQ(um_source_claim_begin(source, UINT32_MAX, &claim), -EMSGSIZE);
    CHECK_EQ(um_source_claim_begin(source, UINT32_MAX - 11, &claim), -EMSGSIZE);
    CHECK_EQ(um_source_claim_begin(source, 1440, &claim), 0);
    memset(claim.payload, 0xab, 1440);
    CHECK_EQ(um_source_claim_commit(source, &claim, UM_SEND_FLUSH, f->now_ns, &f->actions), 3);
    run_sender(f);
    CHECK_EQ(f->link.datagrams[0].length, 1472);
    um_lbmc_message m;
    CHECK_EQ(messages_at(f, 0, &m, 1), 1);
    CHECK_EQ(m.sqn, 3);
    CHECK_EQ(m.payload[1439], 0xab);
    session_close(f);
}

TEST("AE-34 UM-27", "an uncommitted claim holds back later frames, and its commit releases them")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    um_source_claim claim;
    CHECK_EQ(um_source_claim_begin(source, 4, &claim), 0);
    CHECK_EQ(send_text(f, source, "after", UM_SEND_FLUSH), 0);
    CHECK(um_source_session_has_pending(f->session));
    CHECK_EQ(run_sender(f), 0);
    CHECK(!um_source_session_has_pending(f->session)); /* else its owner would loop */
    memcpy(claim.payload, "held", 4);
    f->actions = 0;
    CHECK_EQ(um_source_claim_commit(source, &claim, 0, f->now_ns, &f->actions), 1);
    CHECK(f->actions & UM_ACTION_RUN_SENDER);
    CHECK(um_source_session_has_pending(f->session));
    run_sender(f);
    um_lbmc_message m[2];
    CHECK_EQ(messages_at(f, 0, m, 2), 2);
    CHECK_EQ(m[0].sqn, 1);
    CHECK_EQ(m[1].sqn, 0);
    session_close(f);
}

TEST("AE-36 UX-23", "an aborted claim leaves no bytes in the datagram and no gap in the sqns")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    um_source_claim claim;
    send_text(f, source, "one", 0);
    CHECK_EQ(um_source_claim_begin(source, 100, &claim), 0);
    send_text(f, source, "two", UM_SEND_FLUSH);
    CHECK_EQ(run_sender(f), 1);
    f->actions = 0;
    um_source_claim_abort(source, &claim, &f->actions);
    CHECK(f->actions & UM_ACTION_RUN_SENDER);
    CHECK(um_source_session_has_pending(f->session));
    CHECK_EQ(run_sender(f), 1);
    CHECK_EQ(f->link.datagrams[0].length, 20 + 12 + 3);
    CHECK_EQ(f->link.datagrams[1].length, 20 + 12 + 3);
    um_lbmc_message m;
    messages_at(f, 1, &m, 1);
    CHECK_EQ(m.sqn, 1);
    CHECK_EQ(source->counters.claims_aborted, 1);
    session_close(f);
}

TEST("AE-35 UX-23", "an unblocked claim cannot be committed and takes no sqn")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    um_source_claim claim;
    CHECK_EQ(um_source_claim_begin(source, 100, &claim), 0);
    send_text(f, source, "behind", UM_SEND_FLUSH);
    int64_t start_ns = f->now_ns, next_ns = f->now_ns;
    for (uint32_t ticks = 0; f->link.count == 0; ticks++) {
        CHECK(ticks < 100);
        f->now_ns = next_ns;
        next_ns = um_source_session_tick(f->session, f->now_ns);
        CHECK(next_ns >= f->now_ns && next_ns < UM_NEVER_NS);
    }
    CHECK_EQ(f->now_ns - start_ns, config.unblock_timeout_ns);
    CHECK_EQ(f->session->counters.unblocked_publications, 1);
    CHECK_EQ(um_source_claim_commit(source, &claim, UM_SEND_FLUSH, f->now_ns, &f->actions), UM_CLOSED);
    CHECK_EQ(send_text(f, source, "next", UM_SEND_FLUSH), 1);
    run_sender(f);
    CHECK_EQ(f->link.count, 2);
    session_close(f);
}

/* ---- many at once ---- */

/* Lengths of n messages, mostly small, some longer than a datagram. */
static uint32_t make_lengths(um_random *random, uint32_t *lengths, uint32_t count)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        lengths[i] = (uint32_t)um_random_below(random, um_random_below(random, 20) == 0 ? 4000 : 100);
        total += lengths[i];
    }
    return total;
}

TEST("W9 UM-16 UM-42", "send_many sends the same datagrams as single sends")
{
    um_random random = {check_seed()};
    enum { COUNT = 2000 };
    uint32_t lengths[COUNT];
    int32_t offsets[COUNT + 1] = {0};
    uint32_t total = make_lengths(&random, lengths, COUNT);
    uint8_t *data = malloc(total);
    for (uint32_t i = 0; i < total; i++)
        data[i] = (uint8_t)um_random_next(&random);
    for (uint32_t i = 0; i < COUNT; i++)
        offsets[i + 1] = offsets[i] + (int32_t)lengths[i];
    um_source_session_config config = config_8k(2048);
    config.window_bytes = 1 << 20;
    fixture *one = session_open(&config), *many = session_open(&config), *by_offsets = session_open(&config);
    um_source *a = source_open(one, ORDERS, 9), *b = source_open(many, ORDERS, 9),
              *c = source_open(by_offsets, ORDERS, 9);
    const uint8_t *at = data;
    for (uint32_t i = 0; i < COUNT; at += lengths[i++])
        CHECK(um_source_send(a, at, lengths[i], i + 1 == COUNT ? UM_SEND_FLUSH : 0, one->now_ns, &one->actions) >= 0);
    um_messages by_length = {.data = data, .lengths = lengths, .count = COUNT};
    uint64_t done_bytes;
    CHECK_EQ(um_source_send_many(b, &by_length, UM_SEND_FLUSH, many->now_ns, &many->actions, &done_bytes), COUNT);
    CHECK_EQ(done_bytes, total);
    um_messages by_offset = {.data = data, .offsets = offsets, .count = COUNT};
    CHECK_EQ(um_source_send_many(c, &by_offset, UM_SEND_FLUSH, many->now_ns, &many->actions, &done_bytes), COUNT);
    run_sender(one);
    run_sender(many);
    run_sender(by_offsets);
    CHECK(one->link.count > 10);
    CHECK_EQ(many->link.count, one->link.count);
    CHECK_EQ(by_offsets->link.count, one->link.count);
    for (uint32_t i = 0; i < one->link.count; i++) {
        CHECK_EQ(many->link.datagrams[i].length, one->link.datagrams[i].length);
        CHECK_BYTES(many->link.datagrams[i].data, one->link.datagrams[i].data, one->link.datagrams[i].length);
        CHECK_EQ(by_offsets->link.datagrams[i].length, one->link.datagrams[i].length);
        CHECK_BYTES(by_offsets->link.datagrams[i].data, one->link.datagrams[i].data, one->link.datagrams[i].length);
    }
    CHECK_EQ(messages_sent(b), messages_sent(a));
    CHECK_EQ(messages_sent(b), COUNT);
    CHECK_EQ(b->counters.fragments_sent, a->counters.fragments_sent);
    CHECK_EQ(b->counters.bytes_sent, total);
    free(data);
    session_close(one);
    session_close(many);
    session_close(by_offsets);
}

TEST("AE-13 UX-23 W9", "send_many returns how many it published, and continues from there")
{
    um_source_session_config config =
        default_config(); /* the smallest term: a group must not claim more than it allows */
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    enum { COUNT = 2000 };
    uint32_t lengths[COUNT];
    uint8_t *data = malloc(COUNT * 40);
    for (uint32_t i = 0; i < COUNT; i++) {
        lengths[i] = 40;
        memset(data + 40 * i, (int)(i & 0xff), 40);
    }
    uint32_t done = 0, refusals = 0;
    while (done < COUNT) {
        um_messages messages = {.data = data + 40 * done, .lengths = lengths + done, .count = COUNT - done};
        uint64_t done_bytes;
        int64_t result = um_source_send_many(source, &messages, UM_SEND_FLUSH, f->now_ns, &f->actions, &done_bytes);
        CHECK(result > 0 || result == UM_BACK_PRESSURED);
        refusals += result < 0;
        done += result > 0 ? (uint32_t)result : 0;
        CHECK_EQ(done_bytes, result > 0 ? 40 * (uint64_t)result : 0);
        if (result < 0)
            run_sender(f);
    }
    run_sender(f);
    CHECK(refusals > 0);
    uint32_t next = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_lbmc_message m[64];
        uint32_t count = messages_at(f, i, m, 64);
        for (uint32_t j = 0; j < count; j++, next++) {
            CHECK_EQ(m[j].sqn, next);
            CHECK_EQ(m[j].payload[39], next & 0xff);
        }
    }
    CHECK_EQ(next, COUNT);
    free(data);
    session_close(f);
}

TEST("W9", "invalid lengths are refused, whatever their sum")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    uint32_t impossible[] = {UINT32_MAX, UINT32_MAX - 3, UINT32_MAX - 11, UINT32_MAX - 12, 1u << 31, TERM};
    for (uint32_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++) {
        uint32_t lengths[] = {2, impossible[i], 2};
        um_messages messages = {.data = (const uint8_t *)"abcd", .lengths = lengths, .count = 3};
        uint64_t done_bytes;
        CHECK_EQ(um_source_send_many(source, &messages, 0, f->now_ns, &f->actions, &done_bytes), 1);
        CHECK_EQ(done_bytes, 2);
        messages = (um_messages){.data = (const uint8_t *)"cd", .lengths = lengths + 1, .count = 2};
        CHECK_EQ(um_source_send_many(source, &messages, 0, f->now_ns, &f->actions, &done_bytes), -EMSGSIZE);
    }
    int32_t backwards[] = {0, 2, 1};
    um_messages messages = {.data = (const uint8_t *)"ab", .offsets = backwards, .count = 2};
    uint64_t done_bytes;
    CHECK_EQ(um_source_send_many(source, &messages, 0, f->now_ns, &f->actions, &done_bytes), 1);
    session_close(f);
}

TEST("UM-35 W9", "send_many while a batch is open joins it")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_text(f, source, "first", UM_SEND_START_BATCH);
    uint32_t lengths[] = {1, 1};
    um_messages messages = {.data = (const uint8_t *)"ab", .lengths = lengths, .count = 2};
    uint64_t done_bytes;
    CHECK_EQ(um_source_send_many(source, &messages, 0, f->now_ns, &f->actions, &done_bytes), 2);
    CHECK_EQ(um_log_tail(&f->session->log), 0);
    send_text(f, source, "last", UM_SEND_END_BATCH | UM_SEND_FLUSH);
    run_sender(f);
    um_lbmc_message m[4];
    CHECK_EQ(messages_at(f, 0, m, 4), 4);
    session_close(f);
}

static void check_sent(um_source *source, uint64_t messages, uint64_t fragments)
{
    CHECK_EQ(messages_sent(source), messages);
    CHECK_EQ(source->counters.fragments_sent, fragments);
}

TEST("", "messages and fragments are counted when they are sent, also across the wrap of topic sqns")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, UINT32_MAX - 2);
    send_text(f, source, "one", 0);
    check_sent(source, 1, 1);
    send_bytes(f, source, 1441, 1, UM_SEND_START_BATCH);
    send_text(f, source, "held", 0);
    check_sent(source, 1, 1);
    CHECK_EQ(send_bytes(f, source, 4000, 1, UM_SEND_END_BATCH), 3);
    check_sent(source, 4, 1 + 2 + 1 + 3);
    um_source_claim claim;
    CHECK_EQ(um_source_claim_begin(source, 100, &claim), 0);
    check_sent(source, 4, 7);
    CHECK_EQ(um_source_claim_commit(source, &claim, 0, f->now_ns, &f->actions), 4);
    check_sent(source, 5, 8);
    session_close(f);
}

/* ---- TSNIs ---- */

/* Runs the session's timers up to a time; returns the number of datagrams sent. */
static uint32_t run_until(fixture *f, int64_t until_ns)
{
    uint32_t before = f->link.count;
    for (;;) {
        int64_t next_ns = um_source_session_tick(f->session, f->now_ns);
        CHECK(next_ns >= f->now_ns);
        if (next_ns > until_ns)
            break;
        f->now_ns = next_ns;
    }
    f->now_ns = until_ns;
    return f->link.count - before;
}

/* Counts the TSNI datagrams among the captured ones from `first` on; stores the last one. */
static uint32_t tsni_count(fixture *f, uint32_t first, um_lbmc_message *last)
{
    uint32_t count = 0;
    for (uint32_t i = first; i < f->link.count; i++) {
        um_lbmc_message m[64];
        if (packet_at(f, i).type != UM_LBTRM_DATA || messages_at(f, i, m, 64) == 0 || m[0].tsni == NULL)
            continue;
        *last = m[0];
        count++;
    }
    return count;
}

TEST("UM-62 UM-63 UM-64 UM-65", "an idle topic announces its last sqn every 5 s, for 60 s")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    run_until(f, f->now_ns + 100 * (int64_t)NS_PER_S);
    CHECK_EQ(f->link.count, 0); /* never sent, nothing to announce */
    send_text(f, source, "x", 0);
    int64_t sent_ns = f->now_ns;
    send_text(f, source, "y", UM_SEND_FLUSH);
    run_sender(f);
    um_lbmc_message m;
    run_until(f, sent_ns + 5 * (int64_t)NS_PER_S - 1);
    CHECK_EQ(tsni_count(f, 0, &m), 0);
    run_until(f, sent_ns + 5 * (int64_t)NS_PER_S);
    CHECK_EQ(tsni_count(f, 0, &m), 1);
    CHECK_EQ(m.tsni_count, 1);
    CHECK_EQ(um_load_be32(m.tsni), ORDERS);
    CHECK_EQ(um_load_be32(m.tsni + 4), 1);
    CHECK_EQ(packet_at(f, f->link.count - 1).sqn, 1); /* it takes a transport sqn */
    run_until(f, sent_ns + 60 * (int64_t)NS_PER_S);
    CHECK_EQ(tsni_count(f, 0, &m), 12);
    run_until(f, sent_ns + 600 * (int64_t)NS_PER_S);
    CHECK_EQ(tsni_count(f, 0, &m), 12);
    CHECK_EQ(source->counters.tsnis_sent, 12);
    uint32_t before = f->link.count; /* data starts the cycle again */
    send_text(f, source, "z", UM_SEND_FLUSH);
    run_until(f, f->now_ns + 5 * (int64_t)NS_PER_S);
    CHECK_EQ(tsni_count(f, before, &m), 1);
    CHECK_EQ(um_load_be32(m.tsni + 4), 2);
    session_close(f);
}

TEST("UM-66", "TSNIs of many topics share datagrams")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    for (uint32_t i = 0; i < 70; i++)
        send_text(f, source_open(f, i, 100 * i), "x", 0);
    um_source_flush(f->session->sources, f->now_ns, &f->actions);
    int64_t sent_ns = f->now_ns;
    run_sender(f);
    uint32_t before = f->link.count;
    run_until(f, sent_ns + 5 * (int64_t)NS_PER_S);
    bool seen[70] = {false};
    uint32_t datagrams = 0;
    for (uint32_t i = before; i < f->link.count; i++) {
        um_lbmc_message m[8];
        uint32_t count = packet_at(f, i).type == UM_LBTRM_DATA ? messages_at(f, i, m, 8) : 0;
        datagrams += count > 0;
        for (uint32_t j = 0; j < count; j++) {
            for (uint32_t r = 0; r < m[j].tsni_count; r++) {
                uint32_t topic = um_load_be32(m[j].tsni + 8 * r);
                CHECK(topic < 70 && !seen[topic]);
                seen[topic] = true;
                CHECK_EQ(um_load_be32(m[j].tsni + 8 * r + 4), 100 * topic);
            }
        }
    }
    CHECK(datagrams <= 3);
    for (uint32_t i = 0; i < 70; i++)
        CHECK(seen[i]);
    session_close(f);
}

TEST("UM-64", "an interval of 0 turns TSNIs off, a threshold of 0 never stops them")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    source->tsni_interval_ns = 0;
    send_text(f, source, "x", UM_SEND_FLUSH);
    um_lbmc_message m;
    run_until(f, f->now_ns + 100 * (int64_t)NS_PER_S);
    CHECK_EQ(tsni_count(f, 0, &m), 0);
    source->tsni_interval_ns = 5 * (int64_t)NS_PER_S;
    source->tsni_threshold_ns = 0;
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_until(f, f->now_ns + 500 * (int64_t)NS_PER_S);
    CHECK_EQ(tsni_count(f, 0, &m), 100);
    session_close(f);
}

TEST("UM-35 UM-62", "a TSNI does not announce messages that an open batch withholds")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    send_text(f, source, "sent", UM_SEND_FLUSH);
    CHECK_EQ(send_text(f, source, "withheld", UM_SEND_START_BATCH), 1);
    CHECK_EQ(send_text(f, source, "withheld", 0), 2);
    um_lbmc_message m;
    run_until(f, f->now_ns + 5 * (int64_t)NS_PER_S);
    CHECK_EQ(tsni_count(f, 0, &m), 1);
    CHECK_EQ(um_load_be32(m.tsni + 4), 0);
    session_close(f);
}

CHECK_MAIN
