"""Measured NAK timers on lossy and reordering paths, compared with fixed timers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

import pytest

from tests.sim.conftest import DELAY, Pair
from umstack._sim_bench import lib
from umstack.sim import MS, SECOND, US, Fate, Join, Source, Type, World

ROUND_TRIP = 2 * DELAY
FLOOR = 100 * US
FIRST_SM_ASSUMED = 20 * MS
RECEIVER_TIMERS = lib.UM_ADAPTIVE_INITIAL | lib.UM_ADAPTIVE_BACKOFF | lib.UM_ADAPTIVE_SUPPRESS
SOURCE_TIMERS = lib.UM_ADAPTIVE_IGNORE | lib.UM_ADAPTIVE_SM | lib.UM_ADAPTIVE_REPORTS
RECEIVER = {"window_bytes": 65536, "adaptive_timers": RECEIVER_TIMERS}


def send_tens(
    pair: Pair, tens: int, fault: str, adaptive: bool = True, **rule: int
) -> tuple[list[int], dict[str, int]]:
    """Send groups of ten messages, with one message of each group dropped or delayed. Return the delivery
    times and the counters.
    """
    source = pair.publisher.session(adaptive_timers=SOURCE_TIMERS * adaptive).source()
    timers = RECEIVER_TIMERS * adaptive
    join = pair.subscriber.receiver().join(source, window_bytes=65536, adaptive_timers=timers)
    waits = []
    source.send(b"x", flush=True)
    pair.world.run_for(SECOND)
    for _ in range(tens):
        pair.world.clear_rules()
        first = source.session.probe.next_sqn
        pair.world.rule(fault, Type.DATA, retransmission=False, sqns=first + 5, **rule)
        sent_ns = pair.world.now_ns
        for _ in range(10):
            source.send(b"x", flush=True)
        pair.world.run_for(SECOND)
        waits.append(join.rows[-1].time_ns - sent_ns - DELAY)
    return waits, join.counters


def nak_count(pair: Pair) -> int:
    """Return the NAKs that were sent."""
    return len(pair.world.trace(Fate.SENT, Type.NAK))


def test_a_lossy_path_is_measured(pair: Pair) -> None:
    """UM-117, UM-122: one receiver NAKs each loss once and without delay, and measures the round trip."""
    waits, counters = send_tens(pair, 40, "drop")
    assert max(waits) <= ROUND_TRIP
    assert counters["naks_sent"] == counters["lost"] == 40
    assert counters["round_trip"] == ROUND_TRIP
    assert counters["round_trip_samples"] == 40
    assert counters["nak_initial_backoff"] == 0
    assert ROUND_TRIP < counters["nak_backoff"] <= 2 * ROUND_TRIP


def test_fixed_timers_stay_those_of_ultra_messaging(pair: Pair) -> None:
    """UM-117: without adaptive timers, no loss is NAKed before half of 50 ms, however many measurements
    exist.
    """
    waits, counters = send_tens(pair, 40, "drop", adaptive=False)
    assert min(waits) >= 25 * MS + ROUND_TRIP
    assert max(waits) <= 75 * MS + ROUND_TRIP
    assert (counters["nak_initial_backoff"], counters["nak_backoff"], counters["nak_suppress"]) == (
        50 * MS,
        200 * MS,
        1000 * MS,
    )


def test_reordering_does_not_cause_naks(pair: Pair) -> None:
    """UM-118, UM-127: on a path that reorders by more than the first timer, NAKs soon stop."""
    _, counters = send_tens(pair, 40, "delay", delay_ns=10 * MS)
    assert counters["out_of_order"] > 35
    assert counters["reordering"] > 5 * MS
    assert nak_count(pair) <= 4


@pytest.mark.parametrize("delay_ns", [50 * US, 1 * MS, 40 * MS])
def test_a_lost_retransmission_takes_a_few_round_trips(pair: Pair, delay_ns: int) -> None:
    """UM-122, UM-129, UM-131: the source does not ignore the second NAK because it arrives after a round
    trip.
    """
    for host in (pair.publisher, pair.subscriber):
        host.set_faults(delay_ns=delay_ns)
    source = pair.publisher.session(adaptive_timers=SOURCE_TIMERS).source()
    join = pair.subscriber.receiver().join(source, **RECEIVER)
    source.send(b"x", flush=True)
    for _ in range(30):
        pair.world.clear_rules()
        first = source.session.probe.next_sqn
        pair.world.rule("drop", Type.DATA, retransmission=False, sqns=first)
        source.send(b"x", flush=True)
        source.send(b"x", flush=True)
        pair.world.run_for(SECOND)
    pair.world.clear_rules()
    pair.world.rule("drop", Type.DATA, sqns=source.session.probe.next_sqn, count=2)
    sent_ns = pair.world.now_ns
    source.send(b"x", flush=True)
    source.send(b"last", flush=True)
    pair.world.run_for(2 * SECOND)
    assert join.rows[-1].payload == b"last"
    assert join.rows[-1].time_ns - sent_ns <= delay_ns + 8 * delay_ns + FLOOR
    assert source.session.counters["naks_ignored"] <= 6


def measured(pair: Pair, delay_ns: int) -> tuple[Source, Join]:
    """Return a source and a receiver that have measured the round trip of this path by thirty losses."""
    for host in (pair.publisher, pair.subscriber):
        host.set_faults(delay_ns=delay_ns)
    source = pair.publisher.session(adaptive_timers=SOURCE_TIMERS).source()
    join = pair.subscriber.receiver().join(source, **RECEIVER)
    pair.world.run_for(SECOND)
    for _ in range(30):
        pair.world.clear_rules()
        pair.world.rule("drop", Type.DATA, retransmission=False, sqns=source.session.probe.next_sqn)
        source.send(b"x", flush=True)
        source.send(b"x", flush=True)
        pair.world.run_for(SECOND)
    return source, join


@pytest.mark.parametrize("delay_ns", [25 * US, 500 * US])
def test_a_lost_repair_is_found_by_later_repairs_and_costs_one_round_trip(pair: Pair, delay_ns: int) -> None:
    """UM-122, UM-129: a retransmission that is missing after later ones arrived is NAKed without waiting for
    the timer, and the source does not ignore that NAK.
    """
    source, join = measured(pair, delay_ns)
    sent_before = source.session.counters["rxs_sent"]
    ignored_before = source.session.counters["naks_ignored"]
    first = source.session.probe.next_sqn
    for sqn in range(first + 1, first + 7):
        pair.world.rule("drop", Type.DATA, retransmission=False, sqns=sqn)
    pair.world.rule("drop", Type.DATA, retransmission=True, sqns=first + 1, count=1)
    sent_ns = pair.world.now_ns
    for _ in range(8):
        source.send(b"y", flush=True)
    pair.world.run_for(SECOND)
    assert join.counters["retransmissions_lost"] == 1
    assert source.session.counters["rxs_sent"] == sent_before + 7
    assert source.session.counters["naks_ignored"] == ignored_before
    assert join.rows[-1].time_ns - sent_ns <= 2 * delay_ns + 2 * max(2 * (2 * delay_ns), FLOOR)


@pytest.mark.parametrize("delay_ns", [25 * US, 500 * US])
def test_the_loss_of_the_last_repair_is_found_by_a_report_with_later_data(pair: Pair, delay_ns: int) -> None:
    """UM-122, UM-129: no later retransmission shows that one was lost, so a report of the source does. The
    receiver NAKs again before the back-off of one and a half round trips ends, and the source serves it.
    """
    source, join = measured(pair, delay_ns)
    pair.world.clear_rules()
    source.send(b"x", flush=True)
    pair.world.run_for(SECOND)
    before = source.session.counters | join.counters
    sqn = source.session.probe.next_sqn
    pair.world.rule("drop", Type.DATA, sqns=sqn, count=2)
    shown_ns = pair.world.now_ns + delay_ns
    interval_ns = delay_ns // 10
    source.send(b"y", flush=True)
    for _ in range(100):
        source.send(b"z", flush=True)
        pair.world.run_for(interval_ns)
    pair.world.run_for(SECOND)
    counters = source.session.counters | join.counters
    grown = {name: counters[name] - before[name] for name in counters if counters[name] != before[name]}
    assert grown["retransmissions_lost"] == grown["lost"] == 1
    assert grown["rxs_sent"] == grown["repair_reports_sent"] == 2
    assert "naks_ignored" not in grown
    waited_ns = next(row.time_ns for row in join.rows if row.payload == b"y") - shown_ns
    least_ns = max(2 * delay_ns, FLOOR) + 2 * delay_ns
    assert least_ns <= waited_ns <= least_ns + delay_ns // 2 + 2 * interval_ns


def test_an_ncf_delays_no_receiver_whose_own_repair_was_lost(pair: Pair) -> None:
    """UM-130, UM-131: two receivers NAK the same datagram at once. The source retransmits it for the first and refuses
    the second with an NCF. The repair is lost at the second only, which NAKs again without a suppress interval.
    """
    other = pair.world.host()
    other.set_faults(delay_ns=DELAY)
    source = pair.publisher.session(adaptive_timers=SOURCE_TIMERS).source()
    join = pair.subscriber.receiver().join(source, **RECEIVER)
    other.receiver().join(source, random_seed=2, **RECEIVER)
    source.send(b"x", flush=True)
    pair.world.run_for(SECOND)
    for number in range(80):
        loser = (pair.subscriber, other)[number % 2]
        pair.world.clear_rules()
        sqn = source.session.probe.next_sqn
        pair.world.rule("drop", Type.DATA, receiver=loser, retransmission=False, sqns=sqn)
        source.send(b"x", flush=True)
        source.send(b"x", flush=True)
        pair.world.run_for(SECOND)
    pair.world.clear_rules()
    sqn = source.session.probe.next_sqn
    pair.world.rule("drop", Type.DATA, retransmission=False, sqns=sqn)
    pair.world.rule("drop", Type.DATA, receiver=pair.subscriber, retransmission=True, sqns=sqn, count=1)
    sent_ns = pair.world.now_ns
    source.send(b"y", flush=True)
    source.send(b"last", flush=True)
    pair.world.run_for(SECOND)
    assert join.counters["ncfs_ignored"] == 1
    assert join.rows[-1].payload == b"last"
    assert join.rows[-1].time_ns - sent_ns - DELAY <= 2.6 * ROUND_TRIP


def test_a_lost_last_datagram_is_revealed_within_a_few_round_trips(pair: Pair) -> None:
    """UM-87, C1: session messages are sent early after a burst, once the round trip is known."""
    session = pair.publisher.session(adaptive_timers=SOURCE_TIMERS)
    source = session.source(tsni_interval_ns=0)
    join = pair.subscriber.receiver().join(source, **RECEIVER)
    source.send(b"x", flush=True)
    for _ in range(10):
        pair.world.clear_rules()
        pair.world.rule("drop", Type.DATA, retransmission=False, sqns=session.probe.next_sqn)
        sent_ns = pair.world.now_ns
        source.send(b"last", flush=True)
        pair.world.run_for(SECOND)
    assert join.rows[-1].time_ns - sent_ns <= 4 * ROUND_TRIP


def test_a_lost_last_datagram_close_to_others_is_revealed_soon(pair: Pair) -> None:
    """UM-87, C1: datagrams that arrive just before a session message delay its acceptance for only one round
    trip.
    """
    delay_ns = 25 * US
    for host in (pair.publisher, pair.subscriber):
        host.set_faults(delay_ns=delay_ns)
    session = pair.publisher.session(adaptive_timers=SOURCE_TIMERS)
    source = session.source(tsni_interval_ns=0)
    join = pair.subscriber.receiver().join(source, **RECEIVER)
    source.send(b"x", flush=True)
    for _ in range(10):
        pair.world.clear_rules()
        source.send(b"before", flush=True)
        pair.world.run_for(delay_ns)
        pair.world.rule("drop", Type.DATA, retransmission=False, sqns=session.probe.next_sqn)
        sent_ns = pair.world.now_ns
        source.send(b"last", flush=True)
        pair.world.run_for(SECOND)
    assert join.rows[-1].payload == b"last"
    assert join.rows[-1].time_ns - sent_ns <= 2 * FLOOR + 4 * 2 * delay_ns


def test_early_session_messages_back_off(pair: Pair) -> None:
    """UM-68: the interval between session messages doubles, up to 10 s."""
    session = pair.publisher.session(adaptive_timers=lib.UM_ADAPTIVE_SM)
    session.source(tsni_interval_ns=0).send(b"x", flush=True)
    pair.world.run_for(60 * SECOND)
    times = [0, *(datagram.time_ns for datagram in session.sent(Type.SM))]
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[0] == FIRST_SM_ASSUMED
    assert all(after == min(2 * before, 10 * SECOND) for before, after in pairwise(gaps))
    assert gaps[-1] == 10 * SECOND


def test_receivers_get_the_size_of_their_group(pair: Pair) -> None:
    """UM-74: the source counts its receivers and reports their number once, not before its first
    message.
    """
    session = pair.publisher.session(adaptive_timers=SOURCE_TIMERS)
    source = session.source(tsni_interval_ns=0)
    joins = [pair.subscriber.receiver().join(source, **RECEIVER)]
    for _ in range(4):
        host = pair.world.host()
        joins.append(host.receiver().join(source, **RECEIVER))
    pair.world.run_for(3 * SECOND)
    assert not session.sent(Type.DATA)
    source.send(b"x", flush=True)
    pair.world.run_for(30 * SECOND)
    assert [join.counters["group_receivers"] for join in joins] == [5] * 5
    assert session.counters["group_receivers"] == 5
    assert session.counters["group_reports_sent"] == 1


@contextmanager
def large_group(seed: int, count: int, **options: int) -> Iterator[tuple[World, Source, list[Join]]]:
    """Create a source and `count` receivers at DELAY that know the size of their group."""
    small = {"hold_datagrams": 16, "hold_messages": 64, "inbox_datagrams": 64, "datagram_max_bytes": 2048}
    world = World(seed)
    publisher = world.host(path_bytes=2048, inbox_datagrams=4096, hold_datagrams=16, hold_messages=64)
    publisher.set_faults(delay_ns=DELAY)
    session = publisher.session(
        adaptive_timers=SOURCE_TIMERS, batch_minimum_bytes=1, datagram_max_bytes=1472, **options
    )
    source = session.source(tsni_interval_ns=0)
    joins = []
    for number in range(count):
        host = world.host(path_bytes=2048, **small)
        host.set_faults(delay_ns=DELAY)
        receiver = host.receiver(block_rows=64, block_bytes=1 << 12, message_max_bytes=1 << 16)
        joins.append(
            receiver.join(
                source, loss_capacity=64, topic_capacity=2, random_seed=seed << 20 | number, **RECEIVER
            )
        )
    with world:
        source.send(b"first", flush=True)
        world.run_for(500 * MS)
        yield world, source, joins


def all_lose(seed: int, count: int = 1000) -> tuple[int, float]:
    """Lose the same datagram at every receiver. Return the NAKs at the source, and the round trips until all
    receivers have it.
    """
    with large_group(seed, count) as (world, source, joins):
        assert joins[0].counters["group_receivers"] > 0.9 * count
        before = source.session.counters["naks_rcved"]
        world.rule("drop", Type.DATA, retransmission=False, sqns=source.session.probe.next_sqn)
        source.send(b"lost", flush=True)
        source.send(b"next", flush=True)
        sent_ns = world.now_ns
        world.run_for(20 * ROUND_TRIP)
        arrivals = [row.time_ns for row in world.rows() if row.payload == b"lost"]
        assert len(arrivals) == count
        naks = source.session.counters["naks_rcved"] - before
        return naks, (max(arrivals) - sent_ns - DELAY) / ROUND_TRIP


def test_a_thousand_receivers_lose_the_same_datagram() -> None:
    """UM-117, UM-124, UM-127: a few receivers NAK, and the retransmission suppresses the NAKs of the others."""
    runs = [all_lose(seed) for seed in range(1, 12)]
    assert median(naks for naks, _ in runs) <= 5
    assert median(waits for _, waits in runs) <= 4


def test_common_losses_are_repaired_once_and_leave_the_measured_round_trip_right() -> None:
    """UM-129, UM-130: most receivers get the response to another's NAK, less than a round trip after their own. It
    shortens no estimate, so the source does not take late NAKs for those of a lost retransmission.
    """
    with large_group(1, 30) as (world, source, joins):
        before = source.session.counters["rxs_sent"]
        for _ in range(60):
            world.clear_rules()
            world.rule("drop", Type.DATA, retransmission=False, sqns=source.session.probe.next_sqn)
            for _ in range(30):
                source.send(b"x", flush=True)
                world.run_for(ROUND_TRIP // 2)
        world.run_for(SECOND)
        assert source.session.counters["rxs_sent"] == before + 60
        assert min(join.counters["round_trip"] for join in joins) > 0.9 * ROUND_TRIP


def main() -> None:
    """Print the medians and maxima of `python -m tests.sim.test_recovery_timing SEEDS`."""
    runs = [all_lose(seed) for seed in range(1, int(sys.argv[1]) + 1)]
    for name, values in zip(("NAKs", "round trips"), zip(*runs, strict=True), strict=True):
        ordered = sorted(values)
        print(f"{name}: median {median(ordered):.2f}, 99 % {ordered[len(ordered) * 99 // 100]:.2f}")
        print(f"{name}: maximum {ordered[-1]:.2f}, of {len(ordered)} seeds")


if __name__ == "__main__":
    main()
