/* Session messages of a source: when they are sent, and what they carry. */
#include "core/foundation/random.h"
#include "support.h"

enum { TERM = UM_LOG_TERM_BYTES_MIN, ORDERS = 0x3e9, TRADES = 0x3ea };

/* Runs the timers for `seconds`; stores the times of session messages, relative to the start, in ms. */
static uint32_t session_message_times(fixture *f, uint32_t seconds, uint32_t *times_ms, uint32_t most)
{
    int64_t start_ns = f->now_ns, next_ns = f->now_ns;
    uint32_t count = 0;
    while (next_ns <= start_ns + seconds * (int64_t)NS_PER_S) {
        f->now_ns = next_ns;
        uint32_t before = f->link.count;
        next_ns = um_source_session_tick(f->session, f->now_ns);
        CHECK(next_ns >= f->now_ns);
        for (; before < f->link.count; before++) {
            CHECK_EQ(packet_at(f, before).type, UM_LBTRM_SM);
            CHECK(count < most);
            times_ms[count++] = (uint32_t)((f->now_ns - start_ns) / NS_PER_MS);
        }
    }
    return count;
}

TEST("UM-67 UM-68 UM-94 AE-43", "session messages after 200 ms idle, then twice as far apart up to 10 s")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    source->tsni_interval_ns = 0;
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    uint32_t expected[] = {200, 600, 1400, 3000, 6200, 12600, 22600, 32600, 42600};
    uint32_t times[16];
    CHECK_EQ(session_message_times(f, 45, times, 16), 9);
    for (uint32_t i = 0; i < 9; i++)
        CHECK_EQ(times[i], expected[i]);
    CHECK_EQ(f->session->counters.session_messages_sent, 9);
    session_close(f);
}

TEST("UM-70 C18", "data starts the idle interval again, from 200 ms")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    uint32_t times[16];
    for (uint32_t i = 0; i < 20; i++) { /* every 150 ms: never idle */
        send_text(f, source, "x", UM_SEND_FLUSH);
        run_sender(f);
        CHECK_EQ(um_source_session_tick(f->session, f->now_ns), f->now_ns + config.sm_minimum_interval_ns);
        f->now_ns += 150 * NS_PER_MS;
        um_source_session_tick(f->session, f->now_ns);
    }
    CHECK_EQ(f->link.count, 20);
    f->now_ns -= 150 * NS_PER_MS;
    capture_clear(&f->link);
    CHECK_EQ(session_message_times(f, 1, times, 16), 2);
    CHECK_EQ(times[0], 200);
    CHECK_EQ(times[1], 600);
    session_close(f);
}

TEST("UM-69 UM-71 UM-125", "a session message carries lead and trail, has its own counter and takes no sqn")
{
    um_source_session_config config = default_config();
    config.initial_sqn = 500;
    config.window_bytes = 2100;
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    for (uint32_t i = 0; i < 4; i++)
        send_bytes(f, source, 1000, 0, UM_SEND_FLUSH);
    run_sender(f);
    capture_clear(&f->link);
    uint32_t times[16];
    CHECK_EQ(session_message_times(f, 1, times, 16), 2);
    for (uint32_t i = 0; i < 2; i++) {
        um_packet sm = packet_at(f, i);
        CHECK_EQ(sm.sqn, i);
        CHECK_EQ(sm.lead, 503);
        CHECK_EQ(sm.trail, 502);
        CHECK_EQ(sm.flags, UM_LBTRM_FLAG_UNICAST_NAKS);
    }
    send_text(f, source, "next", UM_SEND_FLUSH);
    run_sender(f);
    CHECK_EQ(packet_at(f, 2).sqn, 504);
    session_close(f);
}

TEST("UM-68", "after a long pause of the caller one session message is sent, not all that were missed")
{
    um_source_session_config config = default_config();
    fixture *f = session_open(&config);
    um_source *source = source_open(f, ORDERS, 0);
    source->tsni_interval_ns = 0;
    send_text(f, source, "x", UM_SEND_FLUSH);
    run_sender(f);
    f->now_ns += 3600 * (int64_t)NS_PER_S;
    uint32_t times[16];
    CHECK_EQ(session_message_times(f, 0, times, 16), 1);
    session_close(f);
}

/* ---- rate limits ---- */

CHECK_MAIN
