"""The timeline of unrecoverable loss of Ultra Messaging, with `recovery_timing` fixed and adaptive (UM-91..UM-106)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.sim.extended_example import DELAY, Example, build, play
from tests.sim.product import product_join, product_session
from umstack.sim import MS, SECOND, Fate, Kind, Type, World


def lost_a4(world: World, recovery_timing: str) -> Example:
    """Run up to T = 0: all datagrams so far were received, all NAKs are blocked, and A 4 will be lost. It has transport
    sqn 6 with fixed timing, and 7 with adaptive timing, which has sent a group report.
    """
    made = build(world, recovery_timing)
    play(made)
    made.c.send(b"C1", flush=True)
    made.b.delete()
    made.c.delete()
    world.run_for(100 * MS)
    made.a.send(b"A3", flush=True)
    world.run_for(100 * MS)
    world.rule("drop", Type.NAK)
    world.rule("drop", Type.DATA, sqns=made.session.probe.next_sqn)
    return made


@pytest.fixture
def example(world: World) -> Example:
    """Return the example at T = 0 with fixed timing."""
    return lost_a4(world, "fixed")


@pytest.fixture(params=["fixed", "adaptive"])
def either(request: pytest.FixtureRequest, world: World) -> Example:
    """Return the example at T = 0 with fixed timing, then with adaptive timing."""
    return lost_a4(world, request.param)


def since(start_ns: int, datagrams) -> list[float]:
    """Return the seconds since T = 0, rounded to microseconds."""
    return [round((d.time_ns - start_ns) / 1e9, 6) for d in datagrams if d.time_ns >= start_ns]


def test_timeline(example: Example) -> None:
    """UM-91..UM-98: session messages are sent at 0.2, 0.6, 1.4 and 3.0 s, NAKs in their ranges and TSNI #7 at
    5 s; the transport gives up at 10.2 s, and the loss is reported at 15 s.
    """
    world, start = example.world, example.world.now_ns
    rows_before = len(example.receiver_a.rows)
    example.a.send(b"A4", flush=True)
    assert example.session.sent(Type.DATA)[-1].sqn == 6

    world.run_until(start + 5 * SECOND - 1)
    assert since(start, example.session.sent(Type.SM)) == [0.2, 0.6, 1.4, 3.0]  # UM-92, UM-94
    assert {d.lead for d in example.session.sent(Type.SM) if d.time_ns > start} == {6}

    detected_at = start + 200 * MS + DELAY
    naks = [nak for nak in world.trace(Fate.SENT, Type.NAK) if nak.time_ns > start]
    assert all(nak.sqns == [6] for nak in naks)
    assert detected_at + 25 * MS <= naks[0].time_ns <= detected_at + 75 * MS  # UM-92, UM-93
    gaps = [b.time_ns - a.time_ns for a, b in pairwise(naks)]
    assert all(100 * MS <= gap <= 300 * MS for gap in gaps)  # UM-94
    assert 4.7 * SECOND / (300 * MS) <= len(naks) <= 4.8 * SECOND / (100 * MS)

    world.run_until(start + 5 * SECOND + DELAY)
    tsni = example.session.sent(Type.DATA)[-1]
    assert (tsni.time_ns - start, tsni.sqn, tsni.tsnis) == (
        5 * SECOND,
        7,
        [(example.a.topic_index, 4)],
    )  # UM-95
    assert example.join_a.probe.gap_count == 1
    assert example.session.counters["rxs_sent"] == 0

    world.run_until(start + 10_200 * MS + DELAY - 1)
    assert example.join_a.counters["unrecovered_tmo"] == 0
    world.run_until(start + 10_200 * MS + DELAY)
    assert example.join_a.counters["unrecovered_tmo"] == 1  # UM-96
    assert example.join_a.probe.loss_count == 0
    quiet_from = world.now_ns

    world.run_until(start + 15 * SECOND + DELAY - 1)
    assert len(example.receiver_a.rows) == rows_before  # UM-96, UM-97
    assert not [nak for nak in world.trace(Fate.SENT, Type.NAK) if nak.time_ns > quiet_from]
    world.run_until(start + 15 * SECOND + DELAY)
    event = example.receiver_a.rows[-1]
    assert (event.time_ns, event.kind, event.sequence_number) == (
        start + 15 * SECOND + DELAY,
        Kind.UNRECOVERABLE_LOSS,
        4,
    )  # UM-98, UM-100: on the third TSNI
    assert since(start, [d for d in example.session.sent(Type.DATA) if d.tsnis]) == [5, 10, 15]
    assert len(example.receiver_a.rows) == rows_before + 1  # UM-101
    assert example.receiver_b.rows[-1].kind is Kind.MESSAGE  # B gets no event for it


def test_timeline_with_adaptive_timing(world: World) -> None:
    """UM-91..UM-98: with recovery_timing adaptive the first session message follows after the round trip that the
    receiver measured when it joined, with its margin. NAKs start at once and then double their intervals up to 300 ms.
    The transport gives up after the same 10 s, so earlier; the loss is reported at 15 s, as with fixed timing.
    """
    example = lost_a4(world, "adaptive")
    start, lost = world.now_ns, example.session.probe.next_sqn
    rows_before = len(example.receiver_a.rows)
    example.a.send(b"A4", flush=True)
    world.run_until(start + 5 * SECOND - 1)
    first_ms = 2 * (2 * DELAY) // MS
    messages = [(first_ms * (2**n - 1)) / 1000 for n in range(1, 11)]
    assert since(start, example.session.sent(Type.SM)) == messages
    detected_at = start + first_ms * MS + DELAY
    naks = world.trace(Fate.SENT, Type.NAK)
    assert {tuple(nak.sqns) for nak in naks} == {(lost,)}
    assert naks[0].time_ns == detected_at
    gaps = [b.time_ns - a.time_ns for a, b in pairwise(naks)]
    assert all(after == min(2 * before, 300 * MS) for before, after in pairwise(gaps[:8]))
    assert set(gaps[7:]) == {300 * MS}

    world.run_until(detected_at + 10 * SECOND - 1)
    assert example.join_a.counters["unrecovered_tmo"] == 0
    world.run_until(detected_at + 10 * SECOND)
    assert example.join_a.counters["unrecovered_tmo"] == 1
    given_up_at = world.now_ns
    world.run_until(start + 15 * SECOND + DELAY - 1)
    assert len(example.receiver_a.rows) == rows_before
    assert not [nak for nak in world.trace(Fate.SENT, Type.NAK) if nak.time_ns > given_up_at]
    world.run_until(start + 15 * SECOND + DELAY)
    assert [(row.kind, row.sequence_number) for row in example.receiver_a.rows[rows_before:]] == [
        (Kind.UNRECOVERABLE_LOSS, 4)
    ]
    assert since(start, [d for d in example.session.sent(Type.DATA) if d.tsnis]) == [5, 10, 15]


def test_other_topics_flow_and_later_messages_wait(either: Example) -> None:
    """UM-99: another topic is delivered immediately; A 5 waits for the loss event and follows it in order."""
    example, world = either, either.world
    other = example.session.source()
    receiver = example.subscriber.receiver()
    receiver.join(other)
    world.clear_rules()
    other.send(b"D0", flush=True)
    world.run_for(10 * MS)
    assert receiver.messages == [b"D0"]
    world.rule("drop", Type.NAK)
    world.rule("drop", Type.DATA, sqns=example.session.probe.next_sqn)
    start = world.now_ns
    example.a.send(b"A4", flush=True)
    world.run_until(start + 7 * SECOND)
    other.send(b"D1", flush=True)
    world.run_until(start + 8 * SECOND)
    example.a.send(b"A5", flush=True)
    world.run_until(start + 20 * SECOND)
    assert receiver.rows[-1].time_ns == start + 7 * SECOND + DELAY
    # A 5 reveals the gap, but the TSNI at 5 s has done so before; the next of the datagrams of A after 15 s is the
    # second TSNI after A 5.
    reported_at = start + 18 * SECOND + DELAY
    tail = [(row.time_ns, row.kind, row.sequence_number, row.payload) for row in example.receiver_a.rows[-2:]]
    assert tail == [(reported_at, Kind.UNRECOVERABLE_LOSS, 4, b""), (reported_at, Kind.MESSAGE, 5, b"A5")]


def test_a_message_after_the_timeout_triggers_the_event(either: Example) -> None:
    """UM-99, UM-100: a message of the topic after 15 s makes the receiver give up the gap, and follows the
    loss event.
    """
    example, world, start = either, either.world, either.world.now_ns
    example.a.send(b"A4", flush=True)
    world.run_until(start + 14 * SECOND)
    world.rule("drop", Type.DATA, sqns=example.session.probe.next_sqn)  # the third TSNI
    world.run_until(start + 16 * SECOND)
    assert example.receiver_a.rows[-1].kind is Kind.MESSAGE
    example.a.send(b"A5", flush=True)
    world.run_until(start + 17 * SECOND)
    reported_at = start + 16 * SECOND + DELAY
    tail = [(row.time_ns, row.kind, row.sequence_number) for row in example.receiver_a.rows[-2:]]
    assert tail == [(reported_at, Kind.UNRECOVERABLE_LOSS, 4), (reported_at, Kind.MESSAGE, 5)]


@pytest.mark.parametrize("timing", ["fixed", "adaptive"])
def test_without_traffic_only_a_loss_check_triggers_the_event(world: World, timing: str) -> None:
    """UM-100: if no message of the topic arrives after the timeout, there is no event; a loss-check interval
    triggers it.
    """
    example = build(world, timing)
    checking = example.subscriber.receiver(loss_check_interval_ns=2500 * MS)
    checking.join(example.a, **product_join(recovery_timing=timing))
    example.a.send(b"A0", flush=True)
    world.run_for(100 * MS)
    world.rule("drop", Type.NAK)
    world.rule("drop", Type.DATA, sqns=1)
    example.a.send(b"A1", flush=True)
    world.run_for(100 * MS)
    example.a.send(b"A2", flush=True)
    world.run_for(100 * MS)
    found_at = world.now_ns - 100 * MS + DELAY
    world.rule("drop", Type.DATA)  # no TSNI arrives
    world.run_for(30 * SECOND)
    assert example.receiver_a.rows[-1].sequence_number == 0
    reported = checking.rows[-2:]
    assert [(row.kind, row.sequence_number) for row in reported] == [
        (Kind.UNRECOVERABLE_LOSS, 1),
        (Kind.MESSAGE, 2),
    ]
    assert found_at + 10 * SECOND <= reported[0].time_ns <= found_at + 12.5 * SECOND


def test_the_end_of_the_session(either: Example) -> None:
    """UM-102..UM-106: deletion sends nothing; both receivers get EOS 60 s after the last traffic, and the
    receivers remain. With adaptive timing receivers still send status messages, seldom.
    """
    example, world, start = either, either.world, either.world.now_ns
    is_adaptive = example.session.options.adaptive_timers != 0
    example.a.send(b"A4", flush=True)
    world.run_until(start + 15_100 * MS)
    assert since(start, example.session.sent(Type.SM))[-4:] == (
        [15.004, 15.012, 15.028, 15.06] if is_adaptive else [10.2, 10.6, 11.4, 13.0]
    )  # UM-102; C18: a TSNI, like any datagram, restarts the session messages
    example.a.delete()
    deleted_at = world.now_ns
    last_ns = max(d.time_ns for d in world.trace(Fate.RECEIVED, Type.DATA, Type.SM))
    assert last_ns == start + 15 * SECOND + DELAY + (60 * MS if is_adaptive else 0)

    world.run_until(last_ns + 60 * SECOND - 1)
    later = [d.type for d in world.trace(Fate.SENT) if d.time_ns > deleted_at]
    assert later == ([Type.STATUS] * len(later) if is_adaptive else [])  # UM-103
    assert len(later) <= 5
    assert all(row.kind is not Kind.END_OF_SESSION for row in world.rows())
    world.run_until(last_ns + 60 * SECOND)
    for receiver in (
        example.receiver_a,
        example.receiver_b,
    ):  # UM-104, UM-105: B also gets it, although its source was deleted long before
        assert (receiver.rows[-1].time_ns, receiver.rows[-1].kind) == (
            last_ns + 60 * SECOND,
            Kind.END_OF_SESSION,
        )
    assert not example.join_a.probe.mapped
    assert example.subscriber.counters["sessions"] == 0

    timing = "adaptive" if is_adaptive else "fixed"
    again = example.publisher.session(**product_session(recovery_timing=timing)).source(
        topic_index=example.a.topic_index
    )
    example.receiver_a.join(again, **product_join(recovery_timing=timing))
    again.send(b"new", flush=True)
    world.run_for(10 * MS)
    assert [row.kind for row in example.receiver_a.rows[-2:]] == [
        Kind.BEGINNING_OF_SESSION,
        Kind.MESSAGE,
    ]  # UM-106
