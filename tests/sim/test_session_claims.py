"""Session messages forged by an observer of the session cause neither losses nor NAK storms."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tests.sim.conftest import DELAY, Pair
from umstack.sim import FLOW_MIN, MS, SECOND, Fate, Join, Kind, Session, Source, Type

SESSION_ID, GROUP, PUBLISHER = 0x77, ("224.10.10.10", 14400), "10.0.0.1"
LOSS_MAP = 65536
MESSAGES = 3000
NAK_RATE = 50_000


def session_message(session: Session, lead: int, trail: int) -> bytes:
    """Return a session message as the source would send it."""
    port = session.options.nak_port
    return struct.pack(
        ">BBHIIIIBBH", 2, 0, port, SESSION_ID, 7, lead & 0xFFFFFFFF, trail & 0xFFFFFFFF, 0x40, 0, 0
    )


def forge(pair: Pair, session: Session, lead: int, trail: int) -> None:
    """Deliver a forged session message to the subscriber, from the publisher's address."""
    data = session_message(session, lead, trail)
    pair.world.inject(data, pair.subscriber, GROUP, (PUBLISHER, 5555))


def stream(
    pair: Pair, attack: Callable[[Session, int], None], **options: int
) -> tuple[Session, Source, Join]:
    """Publish 3,000 messages in 3 s, with the attack after each message; then wait until all recovery is
    over.
    """
    session = pair.publisher.session(session_id=SESSION_ID, batch_minimum_bytes=1, **options)
    source = session.source()
    receiver = pair.subscriber.receiver(loss_check_interval_ns=100 * MS)
    join = receiver.join(source, loss_capacity=LOSS_MAP, window_bytes=65536)
    pair.world.run_for(100 * MS)
    for number in range(MESSAGES):
        source.send(b"%d" % number, flush=True)
        attack(session, number)
        pair.world.run_for(1 * MS)
    pair.world.run_for(15 * SECOND)
    return session, source, join


def lost_events(join: Join) -> list[Kind]:
    """Return the loss events that the application got."""
    return [row.kind for row in join.rows if row.kind in (Kind.UNRECOVERABLE_LOSS, Kind.BURST_LOSS)]


@pytest.mark.parametrize("every", [3000, 100, 1])
@pytest.mark.parametrize("jump", [60_000, 250, 1_000_000])
def test_forged_lead_and_trail_lose_nothing(pair: Pair, jump: int, every: int) -> None:
    """UM-128: a forger sends lead and trail far ahead, once, thirty times or with each message; every
    message still arrives.
    """

    def attack(session: Session, number: int) -> None:
        if number % every == every // 2:
            sqn = session.probe.next_sqn + jump
            forge(pair, session, sqn, sqn)

    _, _, join = stream(pair, attack)
    assert join.receiver.messages == [b"%d" % number for number in range(MESSAGES)]
    assert lost_events(join) == []
    assert (join.counters["unrecovered_txw"], join.counters["unrecovered_tmo"]) == (0, 0)
    assert len([row for row in join.rows if row.kind is Kind.END_OF_SESSION]) == 0


def test_an_old_trail_starts_no_nak_storm(pair: Pair) -> None:
    """UM-119: thirty phantom gaps of 60,000 sqns, while the stream is active and idle, cause almost no NAKs."""

    def attack(session: Session, number: int) -> None:
        if number % 100 == 50:
            forge(pair, session, session.probe.next_sqn + 60_000 + number, 0)

    session, source, join = stream(pair, attack)
    for number in range(30):
        forge(pair, session, session.probe.next_sqn + 200 + number, 0)
        pair.world.run_for(100 * MS)
    pair.world.run_for(20 * SECOND)
    assert join.receiver.messages == [b"%d" % number for number in range(MESSAGES)]
    assert lost_events(join) == []
    assert join.counters["naks_sent"] <= 256 * 8 * 4
    assert join.probe.loss_count == 0
    source.send(b"and on", flush=True)
    pair.world.run_for(100 * MS)
    assert join.receiver.messages[-1] == b"and on"


def test_a_source_held_by_flow_control_continues(pair: Pair) -> None:
    """AE-15, AE-19: a receiver reports the positions of the true session messages in the end."""
    window = {"flow_policy": FLOW_MIN, "window_bytes": 1 << 17, "sm_maximum_interval_ns": 400 * MS}

    def attack(session: Session, number: int) -> None:
        if number % 100 == 50:
            for jump in (10, 60_000):
                sqn = session.probe.next_sqn + jump
                forge(pair, session, sqn, sqn)
            pair.world.run_for(500 * MS)

    session, source, join = stream(pair, attack, **window)
    assert join.receiver.messages == [b"%d" % number for number in range(MESSAGES)]
    for _ in range(30):
        forge(pair, session, session.probe.next_sqn + 100, 0)
        pair.world.run_for(1 * SECOND)
    assert session.probe.connected
    source.send(b"and on", flush=True)
    pair.world.run_for(1 * SECOND)
    assert join.receiver.messages[-1] == b"and on"


def test_naks_per_second_are_limited(pair: Pair) -> None:
    """UM-119: a forged DATA datagram that is 65,000 ahead causes as many losses; their NAKs stay within the
    rate.
    """
    rate = 5000
    session = pair.publisher.session(session_id=SESSION_ID, batch_minimum_bytes=1)
    source = session.source()
    join = pair.subscriber.receiver().join(source, loss_capacity=LOSS_MAP, nak_rate_limit=rate)
    pair.world.run_for(100 * MS)
    source.send(b"1", flush=True)
    pair.world.run_for(100 * MS)
    sqn = session.probe.next_sqn + 65_000
    data = struct.pack(">BBHIIIHH", 0, 0, session.options.nak_port, SESSION_ID, sqn, 0, 0, 0)
    pair.world.inject(data, pair.subscriber, GROUP, (PUBLISHER, 5555))
    pair.world.run_for(5 * SECOND)
    naks = pair.world.trace(Fate.SENT, Type.NAK)
    sent = sum(len(nak.sqns) for nak in naks)
    assert 4 * rate <= sent <= rate // 4 + 5 * rate
    counted = join.counters["naks_rate_limited"]
    assert sent - rate // 4 <= counted <= sent
    for begin in range(0, 5000, 250):
        span = [n for n in naks if begin <= (n.time_ns - naks[0].time_ns) // MS < begin + 1000]
        assert sum(len(nak.sqns) for nak in span) <= rate // 4 + rate


def test_a_rejoined_session_reports_the_losses_in_between(pair: Pair) -> None:
    """UM-99, UM-101, UM-104: after an outage, unrecoverable messages are reported as lost, and the rest is
    delivered."""
    session = pair.publisher.session(
        session_id=SESSION_ID, batch_minimum_bytes=1, window_bytes=1 << 16, term_length=1 << 16
    )
    source = session.source()
    receiver = pair.subscriber.receiver(loss_check_interval_ns=50 * MS, burst_loss_max=1 << 30)
    options = {"activity_timeout_ns": 500 * MS, "nak_generation_ns": 400 * MS, "nak_backoff_ns": 20 * MS}
    first = receiver.join(source, **options)
    pair.world.run_for(100 * MS)
    sent: dict[int, bytes] = {}

    def publish(count: int) -> None:
        for _ in range(count):
            payload = b"%d" % len(sent) + bytes(500)
            sent[source.send(payload, flush=True)] = payload
            pair.world.run_for(1 * MS)

    publish(100)
    pair.subscriber.set_faults(delay_ns=DELAY, partitioned=True)
    publish(1000)
    assert not first.probe.mapped
    pair.subscriber.set_faults(delay_ns=DELAY)
    again = receiver.join(source, **options)
    publish(100)
    pair.world.run_for(2 * SECOND)
    reported = [row for row in receiver.rows if row.kind in (Kind.MESSAGE, Kind.UNRECOVERABLE_LOSS)]
    assert [row.sequence_number for row in reported] == list(sent)
    lost = [row for row in reported if row.kind is Kind.UNRECOVERABLE_LOSS]
    assert 700 < len(lost) < 1000
    assert all(row.join == again.index for row in lost)
    assert all(row.payload == sent[row.sequence_number] for row in reported if row.kind is Kind.MESSAGE)


def test_replayed_datagrams_end_a_session_but_lose_nothing_unreported(pair: Pair) -> None:
    """UM-104, UX-9: replayed datagrams end an idle session; when it is joined again, it resumes at its
    position.
    """
    session = pair.publisher.session(
        session_id=SESSION_ID, batch_minimum_bytes=1, window_bytes=1 << 16, term_length=1 << 16
    )
    source = session.source()
    receiver = pair.subscriber.receiver(loss_check_interval_ns=50 * MS)
    first = receiver.join(source)
    pair.world.run_for(100 * MS)
    for number in range(500):
        source.send(b"%d" % number + bytes(500), flush=True)
        pair.world.run_for(1 * MS)
    pair.world.run_for(100 * MS)
    old = pair.world.trace(Fate.SENT, Type.DATA)[:64]
    for datagram in old:
        pair.world.inject(datagram.data, pair.subscriber, GROUP, (PUBLISHER, 5555))
    pair.world.run_for(1 * MS)
    assert not first.probe.mapped
    for number in range(500, 510):
        source.send(b"%d" % number + bytes(500), flush=True)
        pair.world.run_for(1 * MS)
    again = receiver.join(source)
    for datagram in old[:20]:
        pair.world.inject(datagram.data, pair.subscriber, GROUP, (PUBLISHER, 5555))
    for number in range(510, 600):
        source.send(b"%d" % number + bytes(500), flush=True)
        pair.world.run_for(1 * MS)
    pair.world.run_for(12 * SECOND)
    assert [row.payload.rstrip(b"\0") for row in receiver.rows if row.kind is Kind.MESSAGE] == [
        b"%d" % number for number in range(600)
    ]
    assert again.probe.mapped
