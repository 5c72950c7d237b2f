/* The receiver's own NAK cutoff, set by the application for the context or a receiver, or by the session itself. */
#include "core/delivery/delivery_controller.h"
#include "core/receiver/nak_cutoff.h"
#include "core/receiver/receiver_session.h"
#include "core/wire/lbtrm.h"
#include "recovering.h"

enum { RATE = 100, INTERVAL_MS = 1000, STEP_MS = 10, BRIEF_MS = INTERVAL_MS - GENERATION_MS - 100 };

static uint32_t naks; /* sequence numbers NAKed so far */

static int count_naks(um_link *link, um_address to, const um_tx *batch, uint32_t count)
{
    (void)link, (void)to;
    for (uint32_t i = 0; i < count; i++) {
        um_packet packet;
        if (um_lbtrm_decode(batch[i].parts[0].data, batch[i].parts[0].length, &packet) == UM_DGRAM_OK &&
            packet.type == UM_LBTRM_NAK)
            naks += packet.list_count;
    }
    return (int)count;
}

static const um_link_ops counting_ops = {.send = count_naks};

static recovering *open_naking(bool offers)
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 1000, offers);
    f->link.ops = &counting_ops;
    f->session->config.nak_cutoff_interval_ns = INTERVAL_MS * (int64_t)NS_PER_MS;
    f->receiver.config.loss_check_interval_ns = 0;
    naks = 0;
    stream(f, 10, false);
    return f;
}

static void lose(recovering *f, uint32_t count)
{
    stream(f, count, true);
    stream(f, 1, false);
}

/* Ten losses per step, ten times the budget. */
static void lose_for(recovering *f, uint32_t ms)
{
    for (uint32_t step = 0; step < ms / STEP_MS; step++) {
        lose(f, 10);
        pass(f, STEP_MS);
    }
}

TEST("UX-21", "no NAK is sent while the context or its receiver is cut off; NAKs resume when both are allowed")
{
    recovering *f = open_naking(false);
    um_node_set_nak_cutoff(&f->node, NULL, true);
    lose(f, 5);
    pass(f, 100);
    CHECK_EQ(f->session->nak_cutoff, UM_NAK_CUTOFF_CONTEXT);
    um_node_set_nak_cutoff(&f->node, &f->receiver, true);
    um_node_set_nak_cutoff(&f->node, NULL, false);
    CHECK_EQ(f->session->nak_cutoff, UM_NAK_CUTOFF_RECEIVERS);
    pass(f, 100);
    CHECK_EQ(naks, 0);
    CHECK(f->session->counters.naks_withheld >= 10);
    uint64_t withheld = f->session->counters.naks_withheld;
    um_node_set_nak_cutoff(&f->node, &f->receiver, false);
    pass(f, 100);
    CHECK(naks >= 5);
    CHECK_EQ(naks, f->session->counters.naks_sent);
    CHECK_EQ(f->session->counters.naks_withheld, withheld);
    for (uint32_t i = 10; i < 15; i++)
        arrive(f, i, true);
    read_all(f);
    CHECK_EQ(f->delivered, f->sent);
    recovering_close(f);
}

TEST("UX-21", "a session NAKs if any of its receivers may; a new receiver of a cut-off context may not")
{
    recovering *f = open_naking(false);
    um_node_set_nak_cutoff(&f->node, &f->receiver, true);
    CHECK_EQ(f->session->nak_cutoff, UM_NAK_CUTOFF_RECEIVERS);
    um_receiver other = f->receiver;
    other.is_cut_off = false;
    other.controller_count = 0;
    other.controllers = NULL;
    um_delivery *delivery = zeroed(sizeof *delivery);
    um_delivery_init(delivery, &other, 99, 1, TOPIC + 1, f->session->config.nak_generation_ns);
    CHECK(um_receiver_session_map(f->session, delivery, f->now_ns));
    CHECK_EQ(f->session->nak_cutoff, 0);
    lose(f, 5);
    pass(f, 100);
    CHECK(naks >= 5);
    um_receiver_session_unmap(f->session, delivery);
    free(delivery);
    CHECK_EQ(f->session->nak_cutoff, UM_NAK_CUTOFF_RECEIVERS);
    um_node_set_nak_cutoff(&f->node, &f->receiver, false);
    um_node_set_nak_cutoff(&f->node, NULL, true);
    unmap(f);
    map(f, false);
    CHECK_EQ(f->session->nak_cutoff, UM_NAK_CUTOFF_CONTEXT);
    recovering_close(f);
}

TEST("UX-21 UM-134", "during a cutoff, losses time out even if nothing follows, or are recovered off the transport")
{
    for (uint32_t offers = 0; offers < 2; offers++) {
        recovering *f = open_naking(offers);
        um_node_set_nak_cutoff(&f->node, NULL, true);
        lose(f, 5);
        pass(f, GENERATION_MS - 50);
        CHECK_EQ(f->delivered, 10);
        CHECK(is_fetching(f) == offers);
        if (offers)
            fetch_all(f);
        pass(f, 100);
        CHECK_EQ(f->lost, offers ? 0 : 5);
        CHECK_EQ(f->delivered, f->sent - f->lost);
        CHECK_EQ(f->session->counters.unrecovered_tmo, 5);
        CHECK_EQ(naks, 0);
        recovering_close(f);
    }
}

TEST("UX-21", "a session at its limit for the cutoff interval stops NAKs and reports it, until NAKs are allowed again")
{
    recovering *f = open_naking(false);
    um_nak_budget_init(&f->session->nak_budget, RATE, f->now_ns);
    lose_for(f, BRIEF_MS);
    pass(f, GENERATION_MS + 1100); /* a pause of more than a second */
    lose_for(f, BRIEF_MS);
    CHECK_EQ(f->session->nak_cutoff, 0);
    CHECK_EQ(f->cutoffs, 0);
    lose_for(f, INTERVAL_MS);
    CHECK_EQ(f->session->nak_cutoff, UM_NAK_CUTOFF_SESSION);
    CHECK_EQ(f->session->counters.nak_cutoffs, 1);
    CHECK_EQ(f->cutoffs, 1);
    uint32_t before = naks;
    lose_for(f, 500);
    CHECK_EQ(naks, before);
    CHECK(f->session->counters.naks_withheld > 0);
    um_node_set_nak_cutoff(&f->node, &f->receiver, false);
    CHECK_EQ(f->session->nak_cutoff, 0);
    lose_for(f, INTERVAL_MS - 200); /* the interval restarts */
    CHECK(naks > before);
    CHECK_EQ(f->cutoffs, 1);
    lose_for(f, 600);
    CHECK_EQ(f->cutoffs, 2);
    recovering_close(f);
}

TEST("UX-21", "the policy is off by default, however long NAKs are limited")
{
    recovering *f = open_naking(false);
    f->session->config.nak_cutoff_interval_ns = 0;
    um_nak_budget_init(&f->session->nak_budget, RATE, f->now_ns);
    lose_for(f, 3 * INTERVAL_MS);
    CHECK(f->session->counters.naks_rate_limited > 0);
    CHECK_EQ(f->session->nak_cutoff, 0);
    CHECK_EQ(f->cutoffs, 0);
    recovering_close(f);
}

CHECK_MAIN
