"""The default receiver window under loss at a high rate."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.sim.conftest import Pair
from umstack.sim import ADAPTIVE_JOIN, ADAPTIVE_SESSION, FLOW_MIN, US, Fate, Type
from umstack.sim.options import TransportOptions

LINK_BPS = 10_000_000_000
MESSAGE = bytes(8000)
DATAGRAM_NS = 8 * len(MESSAGE) * 1_000_000_000 // LINK_BPS
PAUSE_NS = 150 * US
"""The sender offers more to a full link every 100 us."""


@pytest.mark.parametrize("window_bytes", [TransportOptions().window_bytes, 1 << 19], ids=["default", "small"])
def test_the_default_window_covers_two_lost_repairs_at_10_gbit(pair: Pair, window_bytes: int) -> None:
    """AE-18: while a datagram and two of its repairs are lost, 10 Gbit/s over a round trip of 0.2 ms continue. With a
    window of 512 KiB, twice what the path holds, they stop.
    """
    publisher = pair.world.host(link_bps=LINK_BPS, link_queue_ns=200 * US)
    for host in (publisher, pair.subscriber):
        host.set_faults(delay_ns=100 * US)
    session = publisher.session(
        term_length=1 << 24,
        window_bytes=1 << 24,
        batch_minimum_bytes=1,
        flow_policy=FLOW_MIN,
        **ADAPTIVE_SESSION,
    )
    source = session.source()
    receiver = pair.subscriber.receiver(block_count=16, block_bytes=1 << 20)
    join = receiver.join(source, **ADAPTIVE_JOIN | {"window_bytes": window_bytes})
    pair.world.run_for(1000 * US)
    for number in range(2000):
        if number % 100 == 50:
            sqn = session.probe.next_sqn + 20
            pair.world.rule("drop", Type.DATA, sqns=sqn, retransmission=False)
            if number == 1550:
                pair.world.rule("drop", Type.DATA, sqns=sqn, retransmission=True, count=2)
        while source.try_send(MESSAGE, flush=True) >= 0:
            pass
        pair.world.run_for(DATAGRAM_NS)
    sent = [d.time_ns for d in session.sent(Type.DATA) if not d.retransmission]
    longest_ns = max(b - a for a, b in pairwise(sent[len(sent) // 2 :]))
    dropped = [d for d in pair.world.trace(Fate.DROPPED, Type.DATA) if d.retransmission]
    assert len(dropped) == 2
    assert join.counters["unrecovered_tmo"] == 0
    assert (longest_ns < PAUSE_NS) is (window_bytes > 1 << 19), longest_ns
