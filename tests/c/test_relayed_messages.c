/* Messages that a relay publishes under the numbers another source gave them. */
#include "support.h"

enum { ORDERS = 0x3e9, SENT_NS = 1700000000 };

static int64_t relay(fixture *f, um_source *source, uint32_t length, uint32_t first_sqn, uint32_t last_sqn,
                     int64_t sent_ns)
{
    static uint8_t data[1 << 20];
    for (uint32_t i = 0; i < length; i++)
        data[i] = (uint8_t)(i * 7);
    um_lbmc_extras extras = {0};
    um_relayed_numbers numbers = {first_sqn, last_sqn, sent_ns};
    return um_source_relay(source, data, length, &extras, &numbers, f->now_ns, &f->actions);
}

static um_lbmc_message only_message(fixture *f, uint32_t datagram)
{
    um_lbmc_message message;
    CHECK_EQ(messages_at(f, datagram, &message, 1), 1);
    return message;
}

TEST("UX-22 AE-1", "relayed messages keep their numbers, gaps and wrap included")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    const uint32_t sqns[] = {5, 6, 9, UINT32_MAX, 0, 3};
    for (uint32_t i = 0; i < 6; i++) {
        CHECK_EQ(relay(f, source, 10, sqns[i], sqns[i], i == 2 ? SENT_NS : 0), sqns[i]);
        um_source_flush(source, f->now_ns, &f->actions);
        run_sender(f);
        um_lbmc_message m = only_message(f, i);
        CHECK_EQ(m.sqn, sqns[i]);
        CHECK_EQ(m.flags, 0);
        CHECK_EQ(m.payload_length, 10);
        CHECK_EQ(m.sent_ns, i == 2 ? SENT_NS : 0);
    }
    CHECK_EQ(messages_sent(source), 6); /* the numbers left out were not sent */
    CHECK_EQ(source->counters.fragments_sent, 6);
    um_source_number_next(source, 20);
    CHECK_EQ(send_bytes(f, source, 1, 1, UM_SEND_FLUSH), 20);
    CHECK_EQ(messages_sent(source), 7);
    session_close(f);
}

TEST("UX-22 UM-63", "numbers left out behind the last message are announced without waiting for the TSNI interval")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    CHECK_EQ(relay(f, source, 10, 5, 5, 0), 5);
    um_source_flush(source, f->now_ns, &f->actions);
    run_sender(f);
    um_source_number_next(source, 9);
    CHECK_EQ(um_source_announce(source, f->now_ns), 0);
    run_sender(f);
    um_lbmc_message m = only_message(f, 1);
    CHECK_EQ(m.tsni_count, 1);
    CHECK_EQ(um_load_be32(m.tsni), ORDERS);
    CHECK_EQ(um_load_be32(m.tsni + 4), 8);
    CHECK_EQ(source->counters.tsnis_sent, 1);
    CHECK_EQ(relay(f, source, 10, 9, 9, 0), 9);
    atomic_store(&f->session->log.is_closed, true);
    CHECK_EQ(um_source_announce(source, f->now_ns), UM_CLOSED);
    CHECK_EQ(source->counters.tsnis_sent, 1);
    session_close(f);
}

TEST("UM-42 UM-57", "a relayed message has as many fragments as it had, whatever fits a datagram")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    CHECK_EQ(relay(f, source, 1000, 7, 9, 0), 9);
    um_source_flush(source, f->now_ns, &f->actions);
    run_sender(f);
    uint32_t bytes = 0, count = 0;
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_lbmc_message m[3];
        uint32_t found = messages_at(f, i, m, 3);
        for (uint32_t k = 0; k < found; k++, count++) {
            CHECK_EQ(m[k].flags, UM_MESSAGE_FRAGMENT);
            CHECK_EQ(m[k].sqn, 7 + count);
            CHECK_EQ(m[k].first_sqn, 7);
            CHECK_EQ(m[k].offset, bytes);
            CHECK_EQ(m[k].total, 1000);
            CHECK_EQ(m[k].payload[0], (uint8_t)(bytes * 7));
            bytes += m[k].payload_length;
        }
    }
    CHECK_EQ(count, 3);
    CHECK_EQ(bytes, 1000);
    CHECK_EQ(messages_sent(source), 1);
    session_close(f);
}

TEST("UP-24 W13", "a source with a fixed fragment length relays fragments of that length, and no others")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    source->fragment_bytes = 400;
    CHECK_EQ(relay(f, source, 1000, 7, 9, 0), 9);
    um_source_flush(source, f->now_ns, &f->actions);
    run_sender(f);
    uint32_t lengths[3] = {0};
    for (uint32_t i = 0; i < f->link.count; i++) {
        um_lbmc_message m[3];
        uint32_t found = messages_at(f, i, m, 3);
        for (uint32_t k = 0; k < found; k++)
            lengths[m[k].sqn - 7] = m[k].payload_length;
    }
    CHECK_EQ(lengths[0], 400);
    CHECK_EQ(lengths[1], 400);
    CHECK_EQ(lengths[2], 200);
    CHECK_EQ(relay(f, source, 1000, 10, 11, 0), -EINVAL); /* two fragments are too few */
    CHECK_EQ(relay(f, source, 400, 10, 11, 0), -EINVAL);  /* and two too many */
    CHECK_EQ(relay(f, source, 401, 10, 10, 0), -EINVAL);
    CHECK_EQ(relay(f, source, 400, 10, 10, 0), 10);
    session_close(f);
}

TEST("UX-23", "numbers that a message cannot have, and fragments that do not fit, are refused without a number")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 3);
    CHECK_EQ(relay(f, source, 2, 10, 12, 0), -EINVAL); /* three fragments of two bytes */
    CHECK_EQ(relay(f, source, 5, 10, 13, 0), -EINVAL); /* four fragments of five bytes: none is so short */
    CHECK_EQ(relay(f, source, 0, 10, 11, 0), -EINVAL);
    CHECK_EQ(relay(f, source, 5, 10, 9, 0), -EINVAL);       /* no fragment at all */
    CHECK_EQ(relay(f, source, 1441, 10, 10, 0), -EMSGSIZE); /* one fragment that exceeds a datagram */
    CHECK_EQ(relay(f, source, 1 << 20, 10, 1000, 0), -EMSGSIZE);
    CHECK_EQ(relay(f, source, 1, 4, 0x80000003, 0), -EINVAL);
    CHECK_EQ(send_bytes(f, source, 1, 1, UM_SEND_FLUSH), 3);
    session_close(f);
}

CHECK_MAIN
