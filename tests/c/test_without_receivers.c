/* Flow control while no receiver counts: a source that publishes anyway, and one whose receivers are local. */
#include "core/source/flow_reports.h"
#include "support.h"

enum { ORDERS = 0x3e9 };

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

/* Publishes and sends `count` messages one by one; returns how many the session sent. */
static uint32_t publish_each(fixture *f, um_source *source, uint32_t count)
{
    uint32_t first = f->session->next_sqn;
    for (uint32_t i = 0; i < count; i++) {
        if (send_bytes(f, source, 500, 0, UM_SEND_FLUSH) < 0)
            break;
        run_sender(f);
        capture_clear(&f->link);
    }
    return f->session->next_sqn - first;
}

TEST("AE-12 AE-13", "a source that publishes without receivers obeys the first one from the sender's position on")
{
    enum um_flow_control_policy policies[] = {UM_FLOW_MIN, UM_FLOW_MAX, UM_FLOW_TAGGED};
    const uint32_t span = um_frame_span(UM_LBMC_HEADER_BYTES + 500);
    for (uint32_t i = 0; i < 3; i++) {
        um_source_session_config config = flow_config();
        config.flow_policy = policies[i];
        config.flow_publishes_without_receivers = true;
        fixture *f = session_open(&config);
        um_source *source = source_open(f, ORDERS, 0);
        CHECK(atomic_load(&f->session->log.is_connected));
        CHECK_EQ(publish_each(f, source, 1000), 1000);
        CHECK_EQ(f->session->sender_limit, atomic_load(&f->session->sender_position));
        CHECK_EQ(f->session->counters.snd_bpe, 0);
        int64_t joined = f->session->sender_limit;
        status_at(f, 1, f->session->next_sqn, 3 * span);
        CHECK_EQ(f->session->sender_limit, joined + 3 * span);
        CHECK_EQ(publish_each(f, source, 10), 3);
        CHECK_EQ(f->session->counters.snd_bpe, 1);
        status(f, (um_status_message){.receiver_id = 1, .flags = UM_STATUS_LEAVE}); /* the rest is sent */
        CHECK(um_source_session_has_pending(f->session));
        run_sender(f);
        CHECK_EQ(atomic_load(&f->session->sender_position), um_log_tail(&f->session->log));
        status_at(f, 2, f->session->next_sqn - 5, span); /* its window is used up: the limit never moves back */
        CHECK_EQ(f->session->sender_limit, atomic_load(&f->session->sender_position));
        CHECK_EQ(publish_each(f, source, 1), 0);
        session_close(f);
    }
}

TEST("AE-12 AE-20", "without receivers, a receiver that times out stops holding the sender, as does one that stalls")
{
    for (uint32_t stalls = 0; stalls < 2; stalls++) {
        um_source_session_config config = flow_config();
        config.flow_publishes_without_receivers = true;
        config.flow_stall_timeout_ns = stalls ? NS_PER_S : 0;
        fixture *f = session_open(&config);
        um_source *source = source_open(f, ORDERS, 0);
        f->from = (um_address)UM_ADDRESS_V4(0x0a000002, 40000);
        status_at(f, 1, 0, 10);
        CHECK_EQ(publish_each(f, source, 5), 0);
        for (uint32_t i = 0; i < 100 && f->session->next_sqn == 0; i++) {
            f->now_ns += 100 * NS_PER_MS;
            if (stalls)
                status_at(f, 1, 0, 10);
            um_source_session_tick(f->session, f->now_ns);
            run_sender(f);
        }
        CHECK_EQ(f->session->counters.receivers_stalled, stalls);
        CHECK_EQ(f->session->counters.receivers_timed_out, 1 - stalls);
        CHECK_EQ(publish_each(f, source, 50), 50);
        session_close(f);
    }
}

TEST("AE-12", "local receivers keep a session sending without others, except for a tagged group")
{
    um_source_session_config config = flow_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    CHECK_EQ(publish_each(f, source, 1), 0);
    um_flow_reports_add_local(f->session, 2);
    CHECK_EQ(publish_each(f, source, 100), 100);
    um_flow_reports_add_local(f->session, -1);
    CHECK_EQ(publish_each(f, source, 100), 100);
    um_flow_reports_add_local(f->session, -1);
    CHECK_EQ(send_text(f, source, "x", 0), UM_NOT_CONNECTED);
    session_close(f);
    config.flow_policy = UM_FLOW_TAGGED;
    f = session_open(&config);
    source = source_open(f, ORDERS, 0);
    um_flow_reports_add_local(f->session, 1);
    CHECK_EQ(send_text(f, source, "x", 0), UM_NOT_CONNECTED);
    session_close(f);
}

CHECK_MAIN
