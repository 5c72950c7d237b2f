/* A receiver that loses the first datagrams of a session, and others before delivery has started: when it delivers the
 * next message, when it declares the losses, and their numbers.
 */
#include "recovering.h"

enum {
    SECOND_MS = 100, /* when the second datagram is lost */
    CHECK_MS = 50,   /* the loss check interval of these tests */
    SHORT_BYTES = 256,
    LONG_BYTES = 300,
};

enum cause { DROPPED_BY_NETWORK, TOO_LONG };

/* When a session message arrives: before the first datagram, between the first two, behind the data; or never. */
enum session_message { NEVER, BEFORE, BETWEEN, BEHIND };

typedef struct first_datagrams {
    enum cause cause;
    enum session_message session_message;
    bool sends_naks;
    um_ordered_delivery mode;
} first_datagrams;

static void arrive_too_long(recovering *f, uint32_t i, bool is_retransmission)
{
    uint8_t out[LONG_BYTES] = {0};
    um_lbtrm_write_data(out, SESSION, NAK_PORT, i, 0, is_retransmission);
    um_rx rx = {.data = out, .length = sizeof out, .from = source_address, .to = group, .received_ns = 1};
    um_node_on_data(&f->node, &rx, f->now_ns);
    um_node_after_batch(&f->node, f->now_ns);
}

static void lose(recovering *f, const first_datagrams *with)
{
    if (with->cause == TOO_LONG)
        arrive_too_long(f, f->sent, false);
    f->sent++;
}

static void announce(recovering *f)
{
    uint8_t out[64];
    uint32_t length = um_lbtrm_write_sm(out, SESSION, NAK_PORT, 0, f->sent - 1, 0);
    um_rx rx = {.data = out, .length = length, .from = source_address, .to = group, .received_ns = 1};
    um_node_on_data(&f->node, &rx, f->now_ns);
    um_node_after_batch(&f->node, f->now_ns);
}

/* Returns the time in milliseconds until so many messages were delivered and lost. */
static int64_t ms_until(recovering *f, uint32_t delivered, uint32_t lost)
{
    for (int64_t ms = 0; ms < 4 * GENERATION_MS; ms++) {
        read_all(f);
        if (f->delivered >= delivered && f->lost >= lost)
            return ms;
        pass(f, 1);
    }
    printf("    %u delivered, %u lost\n", f->delivered, f->lost);
    return -1;
}

static recovering *open_with(const first_datagrams *with)
{
    recovering *f = recovering_open(with->mode, 0, false);
    f->session->config.receive_max_bytes = SHORT_BYTES;
    f->session->config.send_naks = with->sends_naks;
    f->delivery->is_nak_free = !with->sends_naks;
    f->receiver.config.loss_check_interval_ns = with->sends_naks ? CHECK_MS * (int64_t)NS_PER_MS : 0;
    return f;
}

/* Datagrams 0 and 2 are lost, 1 and 3 arrive, and nothing after them. */
static void check_first_datagrams(const first_datagrams *with)
{
    recovering *f = open_with(with);
    if (with->session_message == BEFORE)
        announce(f);
    lose(f, with);
    if (with->session_message == BETWEEN)
        announce(f);
    stream(f, 1, false);
    bool is_known = with->session_message == BEFORE; /* only then is it known that the session began with datagram 0 */
    bool is_refused = is_known && with->sends_naks && with->cause == TOO_LONG;
    pass(f, SECOND_MS);
    CHECK_EQ(f->delivered, !is_known);
    if (is_refused)
        arrive_too_long(f, 0, true);
    lose(f, with);
    stream(f, 1, false);
    if (with->session_message == BEHIND)
        announce(f);
    int64_t first_ms = ms_until(f, 1, 0);
    CHECK_EQ(first_ms, is_known && !is_refused ? GENERATION_MS - SECOND_MS : 0);
    int64_t second_ms = first_ms + ms_until(f, 2, 1);
    CHECK(second_ms >= GENERATION_MS && second_ms <= GENERATION_MS + (with->sends_naks ? CHECK_MS : 0));
    CHECK_EQ(f->fates[1], DELIVERED);
    CHECK_EQ(f->fates[2], LOST);
    CHECK_EQ(f->fates[3], DELIVERED);
    const um_receiver_transport_counters *counters = &f->session->counters;
    CHECK_EQ(counters->lost, 1u + is_known);
    CHECK_EQ(counters->unrecovered_tmo, 1u + (is_known && !is_refused));
    CHECK_EQ(counters->unrecovered_too_long, is_refused);
    CHECK_EQ(counters->dgrams_dropped_too_long, (with->cause == TOO_LONG ? 2u : 0u) + is_refused);
    CHECK_EQ(f->receiver.counters.unrecoverable_loss_events, 1);
    CHECK_EQ(f->node.counters.fragments_lost, 1);
    CHECK_EQ(f->node.counters.fragments_unrecoverably_lost, 1);
    recovering_close(f);
}

TEST("UM-101 UM-100", "losses among the first datagrams are declared in time and by number, if nothing else arrives")
{
    for (uint32_t i = 0; i < 2 * 2 * 4 * 2; i++)
        check_first_datagrams(&(first_datagrams){.cause = i % 2,
                                                 .sends_naks = i / 2 % 2,
                                                 .session_message = i / 4 % 4,
                                                 .mode = i / 16 ? UM_ORDERED_ARRIVAL : UM_ORDERED_SEQUENCE});
}

TEST("UM-100", "a loss check declares a loss that only a TSNI shows")
{
    recovering *f = open_with(&(first_datagrams){.sends_naks = true, .mode = UM_ORDERED_SEQUENCE});
    stream(f, 1, false);
    pass(f, 1); /* the tick that mapping requested */
    f->sent++;
    uint8_t out[64] = {0};
    um_lbtrm_write_data(out, SESSION, NAK_PORT, 2, 0, false);
    uint32_t topic = TOPIC, sqn = 1;
    uint32_t length = UM_LBTRM_DATA_BYTES + um_lbmc_write_tsni(out + UM_LBTRM_DATA_BYTES, &topic, &sqn, 1);
    um_rx rx = {.data = out, .length = length, .from = source_address, .to = group, .received_ns = 1};
    um_node_on_data(&f->node, &rx, f->now_ns);
    um_node_after_batch(&f->node, f->now_ns);
    int64_t lost_ms = ms_until(f, 1, 1);
    CHECK(lost_ms >= GENERATION_MS && lost_ms <= GENERATION_MS + CHECK_MS);
    recovering_close(f);
}

CHECK_MAIN
