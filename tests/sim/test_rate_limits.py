"""The transport rate limiters (UX-1..UX-4)."""

from __future__ import annotations

from itertools import pairwise

from tests.sim.conftest import Pair
from umstack.sim import (
    ADAPTIVE_JOIN,
    ADAPTIVE_SESSION,
    FLOW_MIN,
    MS,
    SECOND,
    Datagram,
    Session,
    Source,
    Type,
    World,
)

RATE_LIMITED = -1006
HEADER = 32  # of a datagram with one message


def limited(world: World, **options) -> Source:
    """Create a source on a host with rate limits, with one message per datagram."""
    return world.host(**options).session(batch_minimum_bytes=1).source(tsni_interval_ns=0)


def sent(session: Session) -> list[tuple[int, int]]:
    """Return the send times and the bytes."""
    return [(d.time_ns, len(d.data)) for d in session.sent(Type.DATA)]


def in_slices(datagrams: list[Datagram], slice_ns: int) -> dict[int, int]:
    """Return the bytes per slice."""
    found: dict[int, int] = {}
    for datagram in datagrams:
        number = datagram.time_ns // slice_ns
        found[number] = found.get(number, 0) + len(datagram.data)
    return found


def test_a_datagram_over_the_limit_is_queued(world: World) -> None:
    """UX-1: 1 Mbit/s and slices of 100 ms allow 12 500 bytes; the next send in the slice waits or is refused."""
    source = limited(world, data_rate_bps=1_000_000, rate_interval_ns=100 * MS)
    results = [source.try_send(bytes(1000 - HEADER)) for _ in range(15)]
    assert results == [*range(13), RATE_LIMITED, RATE_LIMITED]
    assert len(sent(source.session)) == 12
    world.run_until(100 * MS - 1)
    assert len(sent(source.session)) == 12
    world.run_until(100 * MS)
    assert sent(source.session)[12:] == [(100 * MS, 1000)]
    assert source.try_send(b"x") == 13  # UX-23: the refused messages used no sqn


def test_no_slice_exceeds_its_allowance(world: World) -> None:
    """UX-1: each slice carries at most its allowance, and idle time adds none."""
    source = limited(world, data_rate_bps=2_000_000, rate_interval_ns=10 * MS)
    world.run_for(1 * SECOND)
    for _ in range(4000):
        source.try_send(bytes(500 - HEADER))
        world.run_for(MS // 4)
    slices = in_slices(source.session.sent(Type.DATA), 10 * MS)
    assert max(slices.values()) <= 2500
    assert sum(slices.values()) >= 0.9 * 2_000_000 / 8


def test_a_datagram_larger_than_a_slice_collects_credit(world: World) -> None:
    """UX-3: with a very small limit a send waits several slices until there is enough credit."""
    source = limited(world, data_rate_bps=100_000, rate_interval_ns=10 * MS)  # 125 bytes per slice
    for number in range(3):
        while source.try_send(bytes([number]) * (1000 - HEADER)) < 0:
            world.run_for(1 * MS)
    world.run_for(1 * SECOND)
    assert [time for time, _ in sent(source.session)] == [70 * MS, 150 * MS, 230 * MS]


def test_sessions_of_a_context_share_the_limit(world: World) -> None:
    """UX-1: the limiter belongs to the context, so a session that uses it up blocks publishers of another
    session.
    """
    host = world.host(data_rate_bps=1_000_000, rate_interval_ns=100 * MS)
    first, second = (host.session(batch_minimum_bytes=1).source() for _ in range(2))
    while first.try_send(bytes(968)) >= 0:
        pass
    assert second.try_send(b"x") == RATE_LIMITED
    world.run_for(100 * MS)
    assert second.try_send(b"x") == 0


def test_retransmissions_have_a_separate_limit(pair: Pair) -> None:
    """UX-4: retransmissions obey both limits; their separate limit does not delay new data."""
    world = pair.world
    host = world.host(data_rate_bps=10_000_000, retransmit_rate_bps=1_000_000, rate_interval_ns=10 * MS)
    session = host.session(batch_minimum_bytes=1)
    source = session.source()
    join = pair.subscriber.receiver().join(source, nak_initial_backoff_ns=0, nak_suppress_ns=0)
    world.rule("drop", Type.DATA, sqns=(1, 10), retransmission=False)
    for _ in range(12):
        source.send(bytes(968))
    world.run_for(10 * MS)
    for _ in range(100):
        world.run_for(1 * MS)
        source.send(bytes(500))
    world.run_for(1 * SECOND)
    repairs = [d for d in session.sent(Type.DATA) if d.retransmission]
    fresh = [d for d in session.sent(Type.DATA) if not d.retransmission]
    assert max(in_slices(repairs, 10 * MS).values()) <= 1250
    assert max(in_slices(session.sent(Type.DATA), 10 * MS).values()) <= 12500
    assert [d.time_ns for d in fresh[12:]] == [10 * MS + n * MS for n in range(1, 101)]
    assert join.probe.loss_count == 0
    assert join.counters["unrecovered_tmo"] == 0


def test_new_data_continues_while_retransmissions_wait(pair: Pair) -> None:
    """UX-1, UM-133: a queue of retransmissions, which their limit stretches over 250 ms, neither refuses nor
    delays new data while the receiver's window is open; both are sent in every slice.
    """
    publisher = pair.world.host(retransmit_rate_bps=8_000_000, rate_interval_ns=10 * MS)
    session = publisher.session(batch_minimum_bytes=1, flow_policy=FLOW_MIN, **ADAPTIVE_SESSION)
    source = session.source(tsni_interval_ns=0)
    join = pair.subscriber.receiver().join(source, **ADAPTIVE_JOIN | {"window_bytes": 1 << 21})
    pair.world.run_for(10 * MS)
    first = session.probe.next_sqn
    pair.world.rule("drop", Type.DATA, retransmission=False, sqns=(first, first + 249))
    for _ in range(250):
        assert source.try_send(bytes(1000 - HEADER), flush=True) >= 0
    pair.world.run_for(1 * MS)
    for _ in range(400):
        assert source.try_send(bytes(100), flush=True) >= 0
        pair.world.run_for(1 * MS)
    pair.world.run_for(1 * SECOND)
    retransmitted = [d for d in session.sent(Type.DATA) if d.retransmission]
    new = [d.time_ns for d in session.sent(Type.DATA) if not d.retransmission][-400:]
    assert len(retransmitted) == 250
    assert retransmitted[-1].time_ns - retransmitted[0].time_ns > 200 * MS
    assert max(b - a for a, b in pairwise(new)) == 1 * MS
    assert len(in_slices(retransmitted, 10 * MS)) > 20
    assert join.counters["unrecovered_tmo"] == 0
    assert len(join.rows) == 1 + 650, "BOS and the messages"
