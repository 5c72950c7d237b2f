/* Late join and off-transport recovery of a delivery controller: when it starts, what it fetches, what it gives up.
 */
#include "core/delivery/delivery_fetch.h"
#include "core/delivery/delivery_rows.h"
#include "core/receiver/fetch_protocol.h"
#include "recovering.h"

/* ---- when it starts ---- */

TEST("UM-142", "recovery starts after its delay, not before, and fetches exactly the missing messages")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 1000, true);
    stream(f, 10, false);
    stream(f, 5, true);
    stream(f, 10, false);
    pass(f, DELAY_MS - 1);
    CHECK(!is_fetching(f));
    CHECK_EQ(f->delivered, 10);
    pass(f, 2);
    CHECK(is_fetching(f) && f->otr_begun && f->delivery->fetch.kind == UM_DELIVERY_FETCH_OFF_TRANSPORT);
    uint32_t indices[64];
    CHECK_EQ(requests(f, 100, indices, 64), 5);
    for (uint32_t r = 0; r < 5; r++)
        CHECK_EQ(indices[r], 10 + r); /* oldest first */
    for (uint32_t r = 5; r-- > 0;)
        answer_message(f, 10 + r);
    take(f);
    CHECK_EQ(f->delivered, 25);
    for (uint32_t i = 0; i < 25; i++)
        CHECK(f->otr[i] == (i >= 10 && i < 15) && !f->late[i]);
    CHECK(!um_delivery_fetch_is_active(f->delivery));
    CHECK_EQ(f->receiver.counters.otr_messages, 5);
    recovering_close(f);
}

TEST("UM-143 C12 UM-10", "more messages behind a gap than the caching threshold start recovery without the delay")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, UINT32_MAX - 30, true);
    stream(f, 10, false);
    stream(f, 1, true);
    stream(f, THRESHOLD, false);
    CHECK(!is_fetching(f));
    stream(f, 1, false);
    CHECK(is_fetching(f));
    fetch_all(f);
    CHECK_EQ(f->delivered, f->sent);
    recovering_close(f);
}

TEST("UM-142 UM-137 UM-139",
     "without a retaining source, or if the receiver disables it, there is no off-transport recovery")
{
    for (uint32_t wants = 0; wants < 2; wants++) {
        recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, !wants);
        f->receiver.config.use_otr = wants;
        stream(f, 10, false);
        stream(f, 5, true);
        stream(f, 100, false);
        pass(f, GENERATION_MS + 60);
        CHECK_EQ(f->lost, 5);
        CHECK_EQ(f->delivered, 110);
        CHECK_EQ(f->receiver.counters.otr_begun, 0);
        recovering_close(f);
    }
}

TEST("UM-142", "messages that the transport recovers meanwhile are not fetched, and the recovery ends")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 5, true);
    stream(f, 10, false);
    pass(f, DELAY_MS + 1);
    CHECK(is_fetching(f));
    for (uint32_t i = 10; i < 15; i++)
        arrive(f, i, true);
    pass(f, 1);
    CHECK_EQ(f->delivered, 25);
    CHECK(!um_delivery_fetch_is_active(f->delivery));
    CHECK_EQ(f->receiver.counters.otr_messages, 0);
    recovering_close(f);
}

TEST("UM-142 UM-128", "messages that neither the transport nor the source has are lost at once")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 30, true);
    stream(f, 10, false);
    f->retained_from = 25;
    while (f->session->losses.count > 0) /* as if the source's window had advanced */
        um_loss_map_remove(&f->session->losses, um_loss_map_first(&f->session->losses));
    pass(f, DELAY_MS + 1);
    fetch_all(f);
    CHECK_EQ(f->lost, 15);
    CHECK((f->now_ns - NS_PER_S) / (int64_t)NS_PER_MS < DELAY_MS + 20);
    recovering_close(f);
}

TEST("UM-142 UM-128", "only messages that are not retained are lost, and not before the transport's timeout")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 30, true);
    stream(f, 10, false);
    f->retained_from = 25;
    pass(f, DELAY_MS + 1);
    fetch_all(f); /* until the others have arrived; the transport times out meanwhile */
    CHECK_EQ(f->lost, 15);
    CHECK_EQ(f->delivered, 35);
    for (uint32_t i = 10; i < 25; i++)
        CHECK_EQ(f->fates[i], LOST);
    CHECK_EQ(f->receiver.counters.otr_lost, 15);
    CHECK_EQ(f->receiver.counters.unrecoverable_loss_events, 15);
    CHECK_EQ((f->now_ns - NS_PER_S) / NS_PER_MS >= GENERATION_MS, 1);
    recovering_close(f);
}

TEST("UX-7 UM-142", "a long run of messages that are not retained is one event")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 2000, true);
    stream(f, 10, false);
    f->retained_from = 1900;
    pass(f, GENERATION_MS + 1);
    fetch_all(f);
    CHECK_EQ(f->lost, 1890);
    CHECK_EQ(f->bursts, 1);
    CHECK_EQ(f->delivered, f->sent - 1890);
    recovering_close(f);
}

TEST("UM-10 UM-142", "live messages beyond the bound of the order map, or else of the buffer, are dropped and fetched")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    f->receiver.config.map_entries_max = 100;
    stream(f, 10, false);
    stream(f, 5, true);
    stream(f, 3000, false);
    CHECK(is_fetching(f));
    CHECK(f->delivery->held_count <= 100);
    CHECK_EQ(f->delivery->receiver->counters.order_map_entries, f->delivery->held_count);
    CHECK_EQ(f->receiver.counters.late_join_not_cached, 2900);
    fetch_all(f);
    CHECK_EQ(f->delivered, f->sent);
    f->receiver.config.map_entries_max = 0;
    stream(f, 5, true);
    stream(f, 2000, false);
    CHECK(f->delivery->held_count <= CELLS * 3 / 4);
    CHECK_EQ(f->delivery->receiver->counters.order_map_entries, f->delivery->held_count);
    fetch_all(f);
    CHECK_EQ(f->delivered, f->sent);
    CHECK_EQ(f->lost, 0);
    recovering_close(f);
}

TEST("UM-142", "a gap that became old during a recovery is recovered next, not given up")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 5, true);
    stream(f, 10, false);
    pass(f, DELAY_MS + 1);
    CHECK(is_fetching(f));
    stream(f, 5, true);
    stream(f, 10, false);
    pass(f, GENERATION_MS + 100); /* the peer is slow */
    CHECK_EQ(f->lost, 0);
    fetch_all(f);
    CHECK_EQ(f->delivered, f->sent);
    CHECK_EQ(f->receiver.counters.otr_begun, 2);
    recovering_close(f);
}

TEST("UM-142 UM-12", "in arrival order, live messages are delivered at once and fetched ones when they arrive")
{
    recovering *f = recovering_open(UM_ORDERED_ARRIVAL, 0, true);
    stream(f, 10, false);
    stream(f, 5, true);
    stream(f, 300, false);
    CHECK_EQ(f->delivered, 310);
    fetch_all(f);
    CHECK_EQ(f->delivered, 315);
    recovering_close(f);
}

/* ---- peers that misbehave ---- */

TEST("UM-142", "a fetch from a silent peer is given up as a whole; a peer that skips messages loses only those")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 20, true);
    stream(f, 10, false);
    pass(f, DELAY_MS + 1);
    uint32_t indices[64];
    CHECK_EQ(requests(f, 100, indices, 64), 20);
    for (uint32_t i = 10; i < 30; i++)
        if (i != 12 && i != 13)
            answer_message(f, i);
    take(f);
    CHECK_EQ(f->delivered, 12);
    CHECK(um_fetch_protocol_pass_over(f->session, f->delivery, f->now_ns));
    CHECK_EQ(f->lost, 0); /* the transport has not timed out */
    pass(f, GENERATION_MS);
    CHECK_EQ(f->lost, 2);
    CHECK_EQ(f->delivered, 38);
    CHECK(!um_delivery_fetch_is_active(f->delivery));

    stream(f, 20, true);
    stream(f, 10, false);
    pass(f, DELAY_MS + 1);
    CHECK(is_fetching(f));
    CHECK(!um_fetch_protocol_pass_over(f->session, f->delivery, f->now_ns));
    CHECK(!is_fetching(f));
    stream(f, 100, false); /* live messages do not wait for a fetch that is over */
    pass(f, GENERATION_MS);
    CHECK_EQ(f->lost, 22);
    CHECK_EQ(f->delivered, f->sent - 22);
    recovering_close(f);
}

TEST("UM-142", "messages not requested, received twice or of another topic are dropped and counted")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 10, false);
    stream(f, 3, true);
    stream(f, 10, false);
    answer_message(f, 11);
    take(f); /* dropped: there is no recovery yet */
    f->from_peer_bytes = 0;
    pass(f, DELAY_MS + 1);
    answer_message(f, 11);
    take(f); /* before the message was requested */
    CHECK_EQ(f->receiver.counters.late_join_refused, 1);
    uint32_t indices[64];
    CHECK_EQ(requests(f, 100, indices, 64), 3);
    answer_message(f, 5);
    answer_message(f, 15);
    answer_message(f, 11);
    answer_message(f, 11);
    uint32_t at = f->from_peer_bytes;
    answer_message(f, 12);
    um_store_be32(f->from_peer + at + 4, TOPIC + 1);
    take(f);
    CHECK_EQ(f->receiver.counters.late_join_refused, 5);
    answer(f, (const uint8_t[]){0x55, 0x55, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 16);
    CHECK_EQ(take(f), -EBADMSG);
    f->from_peer_bytes = 0;
    fetch_all(f);
    recovering_close(f);
}

TEST("UM-142", "a false range gives up nothing that was not fetched; the transport may still recover it")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 100, true);
    stream(f, 10, false);
    stream(f, 3, true);
    stream(f, 10, false);
    pass(f, DELAY_MS + 1);
    answer_range(f, 5000000, 6000000);
    answer_range(f, 50, 3);
    answer_range(f, 0, 4000000000u);
    take(f);
    CHECK_EQ(f->receiver.counters.late_join_refused, 2);
    CHECK_EQ(f->lost, 0);
    for (uint32_t i = 10; i < 13; i++)
        arrive(f, i, true);
    read_all(f);
    CHECK_EQ(f->delivered, 23);
    stream(f, 10, false);
    CHECK_EQ(f->delivered, 33);
    recovering_close(f);
}

/* ---- rediscovered sources ---- */

static void end_session(recovering *f)
{
    f->now_ns += 61 * (int64_t)NS_PER_S;
    pass(f, 2);
    CHECK_EQ(f->ended, 1);
    CHECK(um_node_finished_session(&f->node) == f->session);
    unmap(f);
}

static void resume(recovering *f)
{
    map(f, true);
    um_resume_points_apply(&f->node.resume_points, f->session, f->delivery);
    CHECK(f->delivery->has_resume);
    CHECK_EQ(f->delivery->resume_sqn, f->base + f->next);
    um_delivery_fetch_begin(f->delivery, PROXIMITY);
}

TEST("UM-106 UM-142", "a rediscovered source resumes where its session ended: no past twice, no gap")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, UINT32_MAX - 20, true);
    stream(f, 30, false);
    end_session(f);
    stream(f, 20, true);
    resume(f);
    stream(f, 5, false); /* the range is not known yet */
    CHECK_EQ(f->delivered, 30);
    answer_range(f, f->base, f->base + 20); /* of another stream: it ends before the delivered messages */
    take(f);
    CHECK(f->delivery->fetch.state == UM_DELIVERY_FETCH_AWAITS_RANGE);
    CHECK_EQ(f->receiver.counters.late_join_refused, 1);
    f->retained_from = 35;
    answer_range(f, f->base + 35, f->base + f->sent - 1);
    take(f);
    CHECK_EQ(f->lost, 5);
    fetch_all(f);
    stream(f, 5, false);
    CHECK_EQ(f->delivered, f->sent - 5);
    CHECK_EQ(f->receiver.counters.otr_lost, 5);
    for (uint32_t i = 35; i < 50; i++)
        CHECK(f->otr[i]);
    recovering_close(f);
}

TEST("UM-106", "if the peer of a rediscovered source never answers, the missed messages are reported lost")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 30, false);
    end_session(f);
    stream(f, 20, true);
    resume(f);
    stream(f, 5, false);
    um_fetch_protocol_give_up(f->session, f->delivery, f->now_ns);
    read_all(f);
    CHECK_EQ(f->lost, 20);
    stream(f, 5, false);
    CHECK_EQ(f->delivered, f->sent - 20);
    recovering_close(f);
}

TEST("UM-106", "a forged sequence number during rediscovery does not derail the stream")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, true);
    stream(f, 30, false);
    end_session(f);
    resume(f);
    uint32_t base = f->base;
    f->base += 500000000;
    arrive(f, 30, false);
    f->base = base;
    CHECK_EQ(f->receiver.counters.malformed_fragments, 1);
    answer_range(f, 0, 29);
    take(f);
    f->sent = 31;
    stream(f, 5, false);
    arrive(f, 30, true);
    read_all(f);
    CHECK_EQ(f->lost, 0);
    recovering_close(f);
}

TEST("UM-135", "losses before the first delivered message are counted, later ones are reported")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 0, false);
    f->sent = 1;
    uint8_t out[256] = {0};
    um_lbtrm_write_data(out, SESSION, NAK_PORT, 0, 0, false);
    uint32_t topic = TOPIC, sqn = 0;
    uint32_t length = UM_LBTRM_DATA_BYTES + um_lbmc_write_tsni(out + UM_LBTRM_DATA_BYTES, &topic, &sqn, 1);
    um_rx rx = {.data = out, .length = length, .from = source_address, .to = group, .received_ns = 1};
    um_node_on_data(&f->node, &rx, f->now_ns);
    um_node_after_batch(&f->node, f->now_ns);
    stream(f, 3, true); /* 1 .. 3 */
    stream(f, 5, false);
    pass(f, GENERATION_MS + 60);
    CHECK_EQ(f->delivered, 5);
    CHECK_EQ(f->lost, 0);
    CHECK_EQ(f->receiver.counters.leading_losses, 3);
    stream(f, 2, true);
    stream(f, 5, false);
    pass(f, GENERATION_MS + 60);
    CHECK_EQ(f->lost, 2);
    CHECK_EQ(f->receiver.counters.unrecoverable_loss_events, 2);
    recovering_close(f);
}

/* Cuts the queue loose while `count` messages arrive, as if its reader had left it full, then opens it. */
static void cut_loose(recovering *f, uint32_t count)
{
    f->queue.state = UM_QUEUE_CUT_LOOSE;
    um_delivery_starve(f->delivery);
    stream(f, count, false);
    CHECK(f->delivery->is_cut_loose);
    CHECK(f->delivery->is_cut_loose);
    f->queue.state = UM_QUEUE_OPEN;
    stream(f, 1, false);
}

TEST("W8 UM-142", "messages missed by a queue that was cut loose are fetched at once, without the delay of gaps")
{
    recovering *f = recovering_open(UM_ORDERED_SEQUENCE, 1000, true);
    stream(f, 10, false);
    f->retained_from = 15; /* earlier ones are lost */
    cut_loose(f, 20);
    CHECK(is_fetching(f));
    fetch_all(f);
    take(f);
    CHECK_EQ(f->lost, 5);
    CHECK_EQ(f->delivered, f->sent - 5);
    CHECK_EQ(f->receiver.counters.otr_messages, 15);
    recovering_close(f);
}

TEST("W8 UM-142", "in arrival order, messages missed by a queue that was cut loose are lost, and none is fetched")
{
    recovering *f = recovering_open(UM_ORDERED_ARRIVAL, 1000, true);
    stream(f, 10, false);
    cut_loose(f, 20);
    CHECK(!is_fetching(f));
    stream(f, 10, false);
    pass(f, GENERATION_MS + 60);
    take(f);
    CHECK(!is_fetching(f));
    CHECK_EQ(f->lost, 20);
    CHECK_EQ(f->delivered, f->sent - 20);
    recovering_close(f);
}

CHECK_MAIN
