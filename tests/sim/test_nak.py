"""The NAK and NCF state machines of receiver and source (UM-112..UM-134, C7, C8, C10)."""

from __future__ import annotations

import struct
from itertools import pairwise
from statistics import mean

from tests.sim.conftest import DELAY, Pair
from umstack.sim import MS, SECOND, US, Datagram, Fate, Kind, NcfReason, Session, Type
from umstack.sim.capture import host_address

AT_ONCE = {"nak_initial_backoff_ns": 0}


def naks(pair: Pair) -> list[Datagram]:
    """Return the NAKs that were sent."""
    return pair.world.trace(Fate.SENT, Type.NAK)


def ncfs(session: Session) -> list[tuple[NcfReason, list[int]]]:
    """Return reason and sqns of the NCFs that were sent."""
    return [(ncf.ncf_reason, ncf.sqns) for ncf in session.sent(Type.NCF)]


def repairs(session: Session) -> list[Datagram]:
    """Return the retransmissions that were sent."""
    return [datagram for datagram in session.sent(Type.DATA) if datagram.retransmission]


def send_each(source, count: int, size: int = 1) -> None:
    """Send `count` datagrams at the same time."""
    for _ in range(count):
        source.send(bytes(size), flush=True)


def nak_by_hand(pair: Pair, session: Session, *sqns: int) -> None:
    """Send a made-up NAK to the source."""
    options = session.options
    head = struct.pack(">BBHIHH", 3, 0, options.nak_port, options.session_id, len(sqns), 0)
    address = (host_address(pair.publisher.index), options.nak_port)
    pair.world.inject(head + struct.pack(f">{len(sqns)}I", *sqns), pair.publisher, address, ("10.0.0.254", 1))
    pair.world.run_for(0)


# ---- receivers ----


def test_gaps_are_detected_between_datagrams(pair: Pair) -> None:
    """UM-112, UM-113, UM-116, UM-3: transport sqns count datagrams of all topics; a missing one is a loss."""
    session = pair.publisher.session()
    a, b = session.source(), session.source()
    join = pair.subscriber.receiver().join(a)
    for number in range(6):
        (a, b)[number % 2].send(b"x", flush=True)
    assert [d.sqn for d in session.sent(Type.DATA)] == list(range(6))
    pair.world.run_for(2 * DELAY)
    assert join.counters["lost"] == 0
    pair.world.rule("drop", Type.DATA, sqns=(6, 8))
    send_each(a, 4)
    pair.world.run_for(2 * DELAY)
    assert (join.counters["lost"], join.probe.loss_count) == (3, 3)
    assert [row.sequence_number for row in join.rows if row.kind is Kind.MESSAGE] == [0, 1, 2]


def test_head_loss_is_not_naked(pair: Pair) -> None:
    """UM-113, UM-114: datagrams lost before the first one received are not NAKed."""
    session = pair.publisher.session()
    source = session.source()
    join = pair.subscriber.receiver().join(source)
    pair.world.rule("drop", Type.DATA, sqns=(0, 2))
    send_each(source, 5)
    pair.world.run_for(1 * SECOND)
    assert naks(pair) == []
    assert join.counters["lost"] == 0
    assert [row.sequence_number for row in join.rows[1:]] == [3, 4]


def test_tail_loss_is_detected_while_the_session_lives(pair: Pair) -> None:
    """UM-113, UM-114, C1: the session message reveals a loss at the end; without the session, nothing reveals
    it.
    """
    session, gone = pair.publisher.session(), pair.publisher.session(group=1)
    pair.world.rule("drop", Type.DATA, sqns=1, retransmission=False)
    joins = []
    for source in (session.source(), gone.source()):
        joins.append(pair.subscriber.receiver().join(source))
        send_each(source, 2)
    joins[1].source.delete()
    pair.world.run_for(1 * SECOND)
    assert [join.counters["lost"] for join in joins] == [1, 0]
    assert len(repairs(session)) == 1


def test_initial_back_off_is_uniform_around_its_nominal_value(pair: Pair) -> None:
    """UM-92, UM-117: the back-off starts at detection and lasts from half to three halves of 50 ms, drawn for each
    gap.
    """
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver(burst_loss_max=10**9).join(source, nak_backoff_ns=100 * SECOND)
    times: list[int] = []
    source.send(b"x", flush=True)
    for gap in range(300):
        pair.world.clear_rules()
        pair.world.rule("drop", Type.DATA, sqns=2 * gap + 1)
        send_each(source, 2)
        pair.world.run_for(2 * DELAY)
        found_at = pair.world.now_ns - DELAY
        pair.world.run_for(80 * MS)
        asked = [nak for nak in naks(pair)[len(times) :] if nak.sqns == [2 * gap + 1]]
        times.append(asked[0].time_ns - found_at)
        assert len(asked) == 1
    assert join.counters["naks_sent"] == 300
    assert 25 * MS <= min(times) <= 27 * MS
    assert 73 * MS <= max(times) <= 75 * MS
    assert abs(mean(times) - 50 * MS) < 3 * MS
    quarters = [
        sum(25 * MS + n * 12.5 * MS <= t < 37.5 * MS + n * 12.5 * MS for t in times) for n in range(4)
    ]
    assert min(quarters) > 45


def test_back_off_zero_naks_at_once(pair: Pair) -> None:
    """UM-117, UM-119: an initial back-off of 0 sends the NAK on detection; it lists the whole gap."""
    session = pair.publisher.session()
    source = session.source()
    pair.subscriber.receiver().join(source, **AT_ONCE)
    pair.world.rule("drop", Type.DATA, sqns=(1, 5), retransmission=False)
    send_each(source, 7)
    pair.world.run_for(10 * MS)
    assert [(nak.time_ns, sorted(nak.sqns)) for nak in naks(pair)] == [(DELAY, [1, 2, 3, 4, 5])]


def test_a_reordered_datagram_is_not_naked(pair: Pair) -> None:
    """UM-118, UM-121, UM-127: a reordered datagram is a loss that is recovered immediately: it counts as lost
    and as out of order, and causes no NAK.
    """
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver().join(source)
    pair.world.rule("delay", Type.DATA, sqns=1, delay_ns=20 * MS)
    send_each(source, 3)
    pair.world.run_for(1 * SECOND)
    assert naks(pair) == []
    counters = join.counters
    assert (counters["lost"], counters["out_of_order"], counters["naks_sent"]) == (1, 1, 0)
    assert [row.time_ns for row in join.rows[1:]] == [DELAY, 20 * MS + DELAY, 20 * MS + DELAY]


def test_naks_repeat_at_random_intervals(pair: Pair) -> None:
    """UM-119, UM-122: each NAK sets a new time, uniform from half to three halves of 200 ms; NAKs go to one address."""
    source = pair.publisher.session().source(tsni_interval_ns=0)
    join = pair.subscriber.receiver().join(source, nak_generation_ns=200 * SECOND)
    pair.world.rule("drop", Type.NAK)
    pair.world.rule("drop", Type.DATA, sqns=1)
    send_each(source, 3)
    pair.world.run_for(100 * SECOND)
    asked = naks(pair)
    gaps = [b.time_ns - a.time_ns for a, b in pairwise(asked)]
    assert all(nak.sqns == [1] for nak in asked)
    assert 100 * MS <= min(gaps) <= 104 * MS
    assert 296 * MS <= max(gaps) <= 300 * MS
    assert abs(mean(gaps) - 200 * MS) < 12 * MS
    assert {d.receiver for d in pair.world.trace(Fate.DROPPED, Type.NAK)} == {pair.publisher.index}
    assert join.counters["naks_sent"] == join.counters["nak_pckts_sent"] == len(asked)


def test_an_old_loss_is_given_up(pair: Pair) -> None:
    """UM-123: after the generation interval the loss is removed and counted, and not NAKed again."""
    source = pair.publisher.session().source(tsni_interval_ns=0)
    join = pair.subscriber.receiver().join(source, nak_generation_ns=5 * SECOND)
    pair.world.rule("drop", Type.NAK)
    pair.world.rule("drop", Type.DATA, sqns=1)
    send_each(source, 3)
    pair.world.run_until(DELAY + 5 * SECOND - 1)
    assert (join.probe.loss_count, join.counters["unrecovered_tmo"]) == (1, 0)
    pair.world.run_for(1)
    assert (join.probe.loss_count, join.counters["unrecovered_tmo"]) == (0, 1)
    count = len(naks(pair))
    pair.world.run_for(20 * SECOND)
    assert len(naks(pair)) == count


def test_a_retransmission_for_another_receiver_recovers_the_loss(pair: Pair) -> None:
    """UM-121, UM-124, UM-127: when both receivers lose a datagram, the faster one NAKs and all get the
    retransmission, so the slower one never NAKs.
    """
    source = pair.publisher.session().source()
    slow = pair.world.host()
    slow.set_faults(delay_ns=DELAY)
    quick_join = pair.subscriber.receiver().join(source, nak_initial_backoff_ns=10 * MS)
    slow_join = slow.receiver().join(source, nak_initial_backoff_ns=60 * MS)
    pair.world.rule("drop", Type.DATA, sqns=1, retransmission=False)
    send_each(source, 3)
    pair.world.run_for(1 * SECOND)
    assert [nak.sender for nak in naks(pair)] == [pair.subscriber.index]
    for join in (quick_join, slow_join):
        assert (join.counters["lost"], join.probe.loss_count, join.counters["rxs_rcved"]) == (1, 0, 1)
    assert slow_join.counters["naks_sent"] == 0


def test_an_unneeded_retransmission_is_a_duplicate(pair: Pair) -> None:
    """UM-124: a receiver without loss gets the retransmissions for other receivers and drops them."""
    source = pair.publisher.session().source()
    healthy = pair.world.host()
    lossy_join, healthy_join = (h.receiver().join(source, **AT_ONCE) for h in (pair.subscriber, healthy))
    pair.world.rule("drop", Type.DATA, receiver=pair.subscriber, sqns=1, retransmission=False)
    send_each(source, 3)
    pair.world.run_for(1 * SECOND)
    assert healthy_join.counters["duplicate_data"] == 1
    assert [join.receiver.messages for join in (lossy_join, healthy_join)] == [[b"\0"] * 3] * 2


def test_sqns_before_the_trail_are_given_up_at_nak_time(pair: Pair) -> None:
    """UM-125, UM-128: headers carry the trail; a sqn before it is unrecoverable at the next NAK time and is
    not NAKed.
    """
    session = pair.publisher.session(window_bytes=1 << 16, term_length=1 << 16)
    source = session.source(tsni_interval_ns=0)
    join = pair.subscriber.receiver().join(source)
    pair.world.rule("drop", Type.DATA, sqns=(1, 2))
    for _ in range(70):  # 140000 bytes: the window holds the last 65536
        send_each(source, 1, 2000)
        pair.world.run_for(100 * US)
    last = session.sent(Type.DATA)[-1]
    assert last.sqn - last.trail == 65536 // 2012 - 1
    assert join.probe.loss_count == 2
    pair.world.run_for(1 * SECOND)
    counters = join.counters
    assert (counters["unrecovered_txw"], counters["unrecovered_tmo"], counters["naks_sent"]) == (2, 0, 0)
    assert join.probe.loss_count == 0
    assert naks(pair) == []


def test_no_naks_with_send_naks_0(pair: Pair) -> None:
    """UM-134: gaps wait for the generation interval."""
    source = pair.publisher.session().source(tsni_interval_ns=0)
    join = pair.subscriber.receiver().join(source, send_naks=False, nak_generation_ns=2 * SECOND)
    pair.world.rule("drop", Type.DATA, sqns=1)
    send_each(source, 3)
    pair.world.run_for(3 * SECOND)
    assert naks(pair) == []
    assert join.counters["unrecovered_tmo"] == 1


def test_long_lists_are_split(pair: Pair) -> None:
    """UM-119: a NAK never exceeds the datagram size; every sqn of a long gap is NAKed once."""
    source = pair.publisher.session().source()
    small = pair.world.host(path_bytes=500)
    small.set_faults(delay_ns=DELAY)
    small.receiver().join(source, datagram_max_bytes=500, **AT_ONCE)
    pair.world.rule("drop", Type.DATA, sqns=(1, 1000), retransmission=False)
    send_each(source, 1002)
    pair.world.run_for(10 * MS)
    assert sorted(sqn for nak in naks(pair) for sqn in nak.sqns) == list(range(1, 1001))
    assert max(len(nak.data) for nak in naks(pair)) <= 500


def test_losses_beyond_a_full_loss_map_are_given_up(pair: Pair) -> None:
    """UM-116: the loss map is bounded; losses beyond the bound are counted, and the others are recovered."""
    source = pair.publisher.session().source(tsni_interval_ns=0)
    join = pair.subscriber.receiver(burst_loss_max=10**9).join(source, loss_capacity=16)
    pair.world.rule("drop", Type.DATA, sqns=(1, 12), retransmission=False)
    pair.world.rule("drop", Type.DATA, sqns=(14, 25), retransmission=False)
    send_each(source, 27)
    pair.world.run_for(2 * DELAY)
    assert join.probe.loss_count == 16
    pair.world.run_for(1 * SECOND)
    counters = join.counters
    assert (counters["lost"], counters["loss_map_overflows"], counters["unrecovered_txw"]) == (24, 8, 8)
    assert counters["rxs_rcved"] == 16
    assert join.probe.loss_count == 0


# ---- sources ----


def test_a_nak_is_answered_at_once(pair: Pair) -> None:
    """UM-115, UM-120, UM-133: retransmissions are sent directly from the window, in the order of the sqns,
    with the retransmission flag.
    """
    session = pair.publisher.session()
    source = session.source()
    send_each(source, 6)
    pair.world.run_for(1 * MS)
    nak_by_hand(pair, session, 4, 1, 3)
    assert [(d.time_ns, d.sqn) for d in repairs(session)] == [(1 * MS, 1), (1 * MS, 3), (1 * MS, 4)]
    originals = {d.sqn: d.data for d in session.sent(Type.DATA) if not d.retransmission}
    assert all(d.data[20:] == originals[d.sqn][20:] for d in repairs(session))
    assert ncfs(session) == []


def test_naks_outside_the_window_get_no_response(pair: Pair) -> None:
    """UM-129, C10: NAKs for sqns that have left the window or were never sent get no response but are
    counted.
    """
    session = pair.publisher.session(window_bytes=4096)
    source = session.source()
    send_each(source, 10, 1000)
    nak_by_hand(pair, session, 0, 1, 9, 10, 5000, 2**32 - 1)
    assert [d.sqn for d in repairs(session)] == [9]
    assert ncfs(session) == []
    counters = session.counters
    assert (counters["naks_out_of_window"], counters["nak_unknown_sqn"]) == (3, 2)
    assert counters["naks_rcved"] == 6
    assert counters["nak_pckts_rcved"] == 1


def test_one_refusal_in_an_ignore_interval(pair: Pair) -> None:
    """UM-129, UM-130, C8: within 500 ms of a retransmission, the first further NAK gets an NCF and later ones
    get no response.
    """
    session = pair.publisher.session()
    source = session.source()
    send_each(source, 3)
    for _ in range(5):
        nak_by_hand(pair, session, 1)
        pair.world.run_for(100 * MS)
    assert len(repairs(session)) == 1
    assert ncfs(session) == [(NcfReason.IGNORED, [1])]
    counters = session.counters
    assert (counters["naks_ignored"], counters["naks_suppressed"]) == (1, 3)
    nak_by_hand(pair, session, 1)  # 500 ms after the retransmission
    assert len(repairs(session)) == 2
    nak_by_hand(pair, session, 1)
    assert len(ncfs(session)) == 2


def test_a_refused_receiver_waits_and_then_backs_off(pair: Pair) -> None:
    """UM-131, C7: after an NCF, a receiver sends no NAK for 1 s; then a normal back-off and the next NAK
    follow.
    """
    session = pair.publisher.session(ignore_interval_ns=400 * MS)
    source = session.source(tsni_interval_ns=0)
    join = pair.subscriber.receiver().join(source)
    pair.world.rule("drop", Type.DATA, sqns=1)
    send_each(source, 3)
    pair.world.run_for(4 * SECOND)
    refused = pair.world.trace(Fate.RECEIVED, Type.NCF)
    assert join.counters["ncfs_ignored"] == len(refused) >= 2
    for ncf in refused[:-1]:
        quiet_until = ncf.time_ns + 1000 * MS + 100 * MS
        following = next(nak for nak in naks(pair) if nak.time_ns > ncf.time_ns)
        assert quiet_until <= following.time_ns <= quiet_until + 200 * MS


def test_ncfs_do_not_delay_giving_up(pair: Pair) -> None:
    """UM-123, UM-131: after any number of NCFs, a loss is given up after the generation interval."""
    session = pair.publisher.session()
    source = session.source(tsni_interval_ns=0)
    options = {"nak_generation_ns": 3 * SECOND, "nak_suppress_ns": 2 * SECOND}
    join = pair.subscriber.receiver().join(source, **options)
    pair.world.rule("drop", Type.DATA, sqns=1)
    send_each(source, 3)
    pair.world.run_until(DELAY + 3 * SECOND)
    assert join.counters["ncfs_ignored"] > 0
    assert join.counters["unrecovered_tmo"] == 1


def limited(pair: Pair, rate_bps: int) -> Session:
    """Open a session with a retransmission rate limit."""
    host = pair.world.host(retransmit_rate_bps=rate_bps, rate_interval_ns=10 * MS)
    host.set_faults(delay_ns=DELAY)
    return host.session()


def hand_nak(pair: Pair, session: Session, *sqns: int) -> None:
    """Like nak_by_hand, to the host of that session."""
    nak_by_hand(Pair(pair.world, session.host, pair.subscriber), session, *sqns)


def test_beyond_the_rate_limit_retransmissions_are_delayed(pair: Pair) -> None:
    """UM-129, UM-132, UM-133, UX-4: above the rate limit, the source sends an NCF with rx_delay and queues
    the retransmission; the oldest is sent first, and receivers wait.
    """
    session = limited(pair, 1_000_000)  # 1250 bytes in 10 ms: one datagram of 1032
    source = session.source()
    send_each(source, 6, 1000)
    hand_nak(pair, session, 5, 3, 1, 4)
    assert [d.sqn for d in repairs(session)] == [1]
    assert ncfs(session) == [(NcfReason.RX_DELAY, [5, 3, 4])]
    assert session.counters["naks_rx_delay_ignored"] == 3
    pair.world.run_for(100 * MS)
    assert [(d.time_ns, d.sqn) for d in repairs(session)] == [
        (0, 1),
        (10 * MS, 3),
        (20 * MS, 4),
        (30 * MS, 5),
    ]
    assert len(ncfs(session)) == 1


def test_when_the_queue_is_full_requests_are_shed(pair: Pair) -> None:
    """UM-132: when limiter and queue are full, the source sends an NCF with reason shed and no
    retransmission.
    """
    session = limited(pair, 10_000)
    source = session.source()
    send_each(source, 1200)
    hand_nak(pair, session, *range(1200))
    shed = [sqn for reason, sqns in ncfs(session) if reason is NcfReason.SHED for sqn in sqns]
    delayed = [sqn for reason, sqns in ncfs(session) if reason is NcfReason.RX_DELAY for sqn in sqns]
    counters = session.counters
    assert len(delayed) + len(repairs(session)) == 1024
    assert len(shed) == counters["naks_shed"] == 1200 - 1024
    assert counters["rctlr_rx_msgs"] == len(delayed)
    assert max(len(ncf.data) for ncf in session.sent(Type.NCF)) <= session.options.datagram_max_bytes


def test_retransmissions_precede_new_data(pair: Pair) -> None:
    """UM-133, UX-4: if data and a retransmission both wait for the data limit, the retransmission is sent
    first; the limit covers both.
    """
    host = pair.world.host(data_rate_bps=1_000_000, rate_interval_ns=10 * MS)
    session = host.session()
    source = session.source()
    send_each(source, 1, 1000)
    source.send(bytes(1000), flush=True)  # queued because the slice is used up
    nak_by_hand(Pair(pair.world, host, pair.subscriber), session, 0)
    pair.world.run_for(100 * MS)
    order = [(d.time_ns, d.sqn, d.retransmission) for d in session.sent(Type.DATA)]
    assert order == [(0, 0, False), (10 * MS, 0, True), (20 * MS, 1, False)]


def test_ncf_reasons_are_counted_separately(pair: Pair) -> None:
    """UM-132: a receiver counts NCFs by reason, including unknown reasons, and the trace shows them."""
    session = pair.publisher.session()
    source = session.source()
    join = pair.subscriber.receiver().join(source)
    send_each(source, 3)
    pair.world.run_for(2 * DELAY)
    for reason in range(6):
        options = session.options
        ncf = struct.pack(">BBHIIHBB", 4, 0, options.nak_port, options.session_id, 0, 2, 0, reason << 4)
        sender = (host_address(pair.publisher.index), 1)
        pair.world.inject(ncf + bytes(8), pair.subscriber, ("224.10.10.10", 14400), sender)
    pair.world.run_for(1)
    counters = join.counters
    assert counters["ncf_pckts_rcved"] == 6
    assert [counters[f"ncfs_{reason}"] for reason in ("ignored", "rx_delay", "shed", "unknown")] == [
        2,
        2,
        2,
        6,
    ]
    seen = [ncf.ncf_reason for ncf in pair.world.trace(Fate.RECEIVED, Type.NCF)]
    assert seen == [*NcfReason, NcfReason.UNKNOWN]


def test_recovery_is_measured(pair: Pair) -> None:
    """The receiver measures time and NAKs per recovery; naks_sent is at least nak_pckts_sent."""
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver().join(source, **AT_ONCE)
    pair.world.rule("drop", Type.DATA, sqns=(1, 3), retransmission=False)
    send_each(source, 5)
    pair.world.run_for(10 * MS)
    counters = join.counters
    assert (counters["nak_stm_min"], counters["nak_stm_max"]) == (2 * DELAY, 2 * DELAY)
    assert (counters["nak_tx_min"], counters["nak_tx_max"], counters["nak_tx_mean"]) == (1, 1, 1000)
    assert counters["naks_sent"] >= counters["nak_pckts_sent"]
