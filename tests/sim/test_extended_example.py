"""The extended example and the recovery example of Ultra Messaging, with all their times (UM-72..UM-90)."""

from __future__ import annotations

import pytest

from tests.sim.extended_example import DELAY, LARGE, build, play
from umstack.sim import MS, SECOND, DropReason, Fate, Kind, Type, World

BOS = Kind.BEGINNING_OF_SESSION


def seen(receiver) -> list[tuple[int, Kind, int, bytes]]:
    """Return the events of an application with their times."""
    return [(row.time_ns, row.kind, row.sequence_number, row.payload) for row in receiver.rows]


def test_a_session_that_never_sent_is_idle(world: World) -> None:
    """UM-72..UM-74: the receiver has one joined session and a controller for each topic; nothing has been
    sent, and there is no event.
    """
    example = build(world)
    world.run_for(29 * SECOND)
    assert world.trace() == []
    assert world.rows() == []
    assert example.subscriber.counters["sessions"] == 1
    assert [join.probe.mapped for join in (example.join_a, example.join_b)] == [True, True]


def test_with_adaptive_timing_a_session_that_never_sent_answers_a_question(world: World) -> None:
    """UM-72..UM-74, UM-76: with recovery_timing adaptive, the receiver asks for the position, and one session message
    answers it. That first datagram brings BOS to both receivers. Nothing else is sent but seldom status messages.
    """
    example = build(world, "adaptive")
    world.run_for(29 * SECOND)
    assert [(d.time_ns, d.type) for d in example.session.sent()] == [(DELAY, Type.SM)]
    assert [(row.time_ns, row.kind) for row in world.rows()] == [(2 * DELAY, BOS)] * 2
    others = [d for d in world.trace(Fate.SENT) if d.sender == example.subscriber.index]
    assert {d.type for d in others} == {Type.STATUS}
    assert [d.time_ns for d in others[:3]] == [0, 2 * DELAY, 200 * MS + 2 * DELAY]
    assert len(others) < 20
    assert example.subscriber.counters["sessions"] == 1
    assert [join.probe.mapped for join in (example.join_a, example.join_b)] == [True, True]


def test_the_part_without_loss(world: World) -> None:
    """UM-75..UM-80: each datagram has the expected content, both receivers get BOS before data, and A1+A2 is
    one callback.
    """
    example = build(world)
    play(example)
    carried = [
        (d.time_ns, d.sqn, [(f.topic_index, f.sqn) for f in d.fragments])
        for d in example.session.sent(Type.DATA)
    ]
    a, b, c = (source.topic_index for source in (example.a, example.b, example.c))
    assert carried == [
        (0, 0, [(a, 0)]),
        (100 * MS, 1, [(b, 0), (c, 0)]),
        (200 * MS, 2, [(a, 1)]),
        (200 * MS, 3, [(a, 2)]),
    ]
    assert seen(example.receiver_a) == [
        (DELAY, BOS, 0, b""),
        (DELAY, Kind.MESSAGE, 0, b"A0"),
        (200 * MS + DELAY, Kind.MESSAGE, 2, LARGE),
    ]
    assert seen(example.receiver_b) == [(DELAY, BOS, 0, b""), (100 * MS + DELAY, Kind.MESSAGE, 0, b"B0")]
    large = example.receiver_a.rows[-1]
    assert (large.first_sequence_number, large.sequence_number) == (1, 2)
    assert example.join_a.counters["lbm_msgs_no_topic_rcved"] == 1  # C0


def lose_c1(example) -> int:
    """Lose C sqn 1 (transport sqn 4), and delete B and C immediately (UM-82). Return the time."""
    world = example.world
    world.rule("drop", Type.DATA, sqns=4, retransmission=False)
    example.c.send(b"C1", flush=True)
    example.b.delete()
    example.c.delete()
    return world.now_ns


def test_loss_at_the_tail_is_invisible_at_first(world: World) -> None:
    """UM-82: after the loss and the deletions nothing happens: no datagram of either side, and no event."""
    example = build(world)
    play(example)
    lost_at = lose_c1(example)
    world.run_for(150 * MS)
    assert [d for d in world.trace() if d.time_ns > lost_at] == []
    assert example.join_a.counters["lost"] == 0
    assert len(example.receiver_a.rows) == 3


@pytest.mark.parametrize("timing", ["fixed", "adaptive"])
def test_loss_at_the_end_of_a_session_stays_invisible(world: World, timing: str) -> None:
    """UM-82, UM-113, UM-114, C1: if the last source is deleted right after the loss, nothing reveals it before EOS.
    With adaptive timing the receiver still sends status messages, to nobody.
    """
    example = build(world, timing)
    play(example)
    lost_at = lose_c1(example)
    example.a.delete()
    rows = [len(receiver.rows) for receiver in (example.receiver_a, example.receiver_b)]
    world.run_for(65 * SECOND)
    later = {d.type for d in world.trace(Fate.SENT) if d.time_ns > lost_at}
    assert later == ({Type.STATUS} if timing == "adaptive" else set())
    for receiver, before in zip((example.receiver_a, example.receiver_b), rows, strict=True):
        assert [row.kind for row in receiver.rows[before:]] == [Kind.END_OF_SESSION]


@pytest.mark.parametrize(
    ("timing", "numbers"), [("fixed", [3, 4]), ("adaptive", [0, 1, 2, 3, 4])], ids=["fixed", "adaptive"]
)
def test_loss_at_the_head(world: World, timing: str, numbers: list[int]) -> None:
    """UM-113, UM-114: datagrams lost before the first one are not recovered. With adaptive timing the session message
    that answered the receiver came before them, so they are a gap and are recovered.
    """
    example = build(world, timing)
    world.run_for(10 * MS)
    world.rule("drop", Type.DATA, sqns=(0, 2), retransmission=False)
    for number in range(5):
        example.a.send(bytes([number]), flush=True)
    world.run_for(1 * SECOND)
    assert [(row.sequence_number, row.payload[0]) for row in example.receiver_a.rows[1:]] == [
        (number, number) for number in numbers
    ]
    assert example.join_a.counters["lost"] == len(numbers) - 2
    assert bool(world.trace(Fate.SENT, Type.NAK)) is (timing == "adaptive")


def test_the_next_datagram_is_delivered_and_reveals_the_loss(world: World) -> None:
    """UM-3, UM-11, UM-84..UM-86, UM-88: A3 is delivered in spite of the gap; transport sqn 4 is NAKed,
    retransmitted after C was deleted, and dropped.
    """
    example = build(world)
    play(example)
    lose_c1(example)
    world.run_for(100 * MS)
    sent_at = world.now_ns
    example.a.send(b"A3", flush=True)
    world.run_for(150 * MS)
    assert seen(example.receiver_a)[-1] == (sent_at + DELAY, Kind.MESSAGE, 3, b"A3")
    naks = world.trace(Fate.SENT, Type.NAK)
    assert [(nak.sqns, nak.sender) for nak in naks] == [([4], example.subscriber.index)]
    detected_at = sent_at + DELAY
    assert detected_at + 25 * MS <= naks[0].time_ns <= detected_at + 75 * MS
    again = [d for d in example.session.sent(Type.DATA) if d.retransmission]
    assert [(d.time_ns, d.sqn, d.fragments[0].payload) for d in again] == [
        (naks[0].time_ns + DELAY, 4, b"C1")
    ]
    assert [len(receiver.rows) for receiver in (example.receiver_a, example.receiver_b)] == [4, 2]
    counters = example.join_a.counters
    assert (counters["lost"], counters["rxs_rcved"], counters["lbm_msgs_no_topic_rcved"]) == (1, 1, 2)
    assert example.join_a.probe.loss_count == 0


def test_a_session_message_reveals_the_loss_at_the_tail(world: World) -> None:
    """UM-87, UM-71, C1, C5: if A3 is not sent, the session message 0.2 s later reveals transport sqn 4, and
    the NAK cycle follows.
    """
    example = build(world)
    play(example)
    lost_at = lose_c1(example)
    world.run_for(1 * SECOND)
    first = next(d for d in example.session.sent(Type.SM) if d.time_ns > lost_at)
    assert (first.time_ns, first.lead) == (lost_at + 200 * MS, 4)
    nak = world.trace(Fate.SENT, Type.NAK)[0]
    detected_at = first.time_ns + DELAY
    assert detected_at + 25 * MS <= nak.time_ns <= detected_at + 75 * MS
    assert [d.sqn for d in example.session.sent(Type.DATA) if d.retransmission] == [4]
    assert example.join_a.probe.loss_count == 0


def test_deleting_the_last_source_ends_retransmission(world: World) -> None:
    """UM-90: deleting the last source deletes the session; a NAK then gets no response, and the loss is not
    recovered.
    """
    example = build(world)
    play(example)
    lose_c1(example)
    world.run_for(100 * MS)
    example.a.send(b"A3", flush=True)
    example.a.delete()
    world.run_for(1 * SECOND)
    naks = world.trace(Fate.DROPPED, Type.NAK)
    assert naks
    assert {nak.drop_reason for nak in naks} == {DropReason.NO_PORT}
    assert not any(d.retransmission for d in example.session.sent(Type.DATA))
    assert example.join_a.probe.loss_count == 1


def test_adaptive_timers_change_nothing_without_loss(world: World) -> None:
    """UM-75..UM-80: with recovery_timing adaptive, every message and event has the time and datagram that it has
    with fixed timers. Group reports, datagrams without messages, take transport sqns of their own.
    """
    streams = []
    for timing in ("fixed", "adaptive"):
        with World() as made:
            example = build(made, timing)
            play(example)
            data = [(d.time_ns, d.fragments) for d in example.session.sent(Type.DATA) if d.fragments]
            streams.append((data, seen(example.receiver_a), seen(example.receiver_b)))
    assert streams[0] == streams[1]


def test_adaptive_timers_nak_the_loss_soon(world: World) -> None:
    """UM-84..UM-88: with recovery_timing adaptive a session message reveals C1 within 200 ms, and it is NAKed and
    retransmitted sooner than after the 25 ms that fixed timers wait at least.
    """
    example = build(world, "adaptive")
    play(example)
    lost = example.session.probe.next_sqn
    world.rule("drop", Type.DATA, sqns=lost, retransmission=False)
    lost_at = world.now_ns
    example.c.send(b"C1", flush=True)
    example.b.delete()
    example.c.delete()
    world.run_for(1 * SECOND)
    revealing = next(d for d in example.session.sent(Type.SM) if d.time_ns > lost_at)
    nak = world.trace(Fate.SENT, Type.NAK)[0]
    assert nak.sqns == [lost]
    assert lost_at < revealing.time_ns < lost_at + 200 * MS
    assert nak.time_ns < revealing.time_ns + DELAY + 25 * MS
    assert [d.sqn for d in example.session.sent(Type.DATA) if d.retransmission] == [lost]
    assert example.join_a.probe.loss_count == 0
    assert [len(receiver.rows) for receiver in (example.receiver_a, example.receiver_b)] == [3, 2]
