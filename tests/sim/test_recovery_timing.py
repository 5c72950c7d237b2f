"""NAK timers that are measured: what a lossy and a reordering path cost, and what fixed timers do there."""

from __future__ import annotations

from statistics import median

from tests.sim.conftest import DELAY, Pair
from umstack.sim import MS, SECOND, Fate, Type

ROUND_TRIP = 2 * DELAY


def send_tens(
    pair: Pair, tens: int, fault: str, adaptive: bool, **rule: int
) -> tuple[list[int], dict[str, int]]:
    """Tens of messages, one of each dropped or delayed. How long each ten took to be there; the counters."""
    source = pair.publisher.session().source()
    join = pair.subscriber.receiver().join(source, adaptive_timing=adaptive)
    waits = []
    for number in range(tens):
        pair.world.clear_rules()
        pair.world.rule(fault, Type.DATA, retransmission=False, sqns=10 * number + 5, **rule)
        sent_ns = pair.world.now_ns
        for _ in range(10):
            source.send(b"x", flush=True)
        pair.world.run_for(SECOND)
        waits.append(join.rows[-1].time_ns - sent_ns - DELAY)
    return waits, join.counters


def nak_count(pair: Pair) -> int:
    """The NAKs sent."""
    return len(pair.world.trace(Fate.SENT, Type.NAK))


def test_a_lossy_path_is_measured(pair: Pair) -> None:
    """UM-117, UM-122: the first loss waits a few ms, later ones a few round trips, and each is asked for once."""
    waits, counters = send_tens(pair, 40, "drop", adaptive=True)
    assert waits[0] <= 1.5 * 2 * MS + ROUND_TRIP
    assert max(waits) <= 3 * ROUND_TRIP
    assert ROUND_TRIP < median(waits) <= 2.5 * ROUND_TRIP
    assert counters["naks_sent"] == counters["lost"] == 40


def test_fixed_timers_stay_those_of_ultra_messaging(pair: Pair) -> None:
    """UM-117: without adaptive timing, no loss is asked for before half of 50 ms, however many were measured."""
    waits, _ = send_tens(pair, 40, "drop", adaptive=False)
    assert min(waits) >= 25 * MS + ROUND_TRIP
    assert max(waits) <= 75 * MS + ROUND_TRIP


def test_reordering_is_not_taken_for_loss(pair: Pair) -> None:
    """UM-118, UM-127: a path that reorders by more than the first timer is soon left to do so."""
    _, counters = send_tens(pair, 40, "delay", adaptive=True, delay_ns=10 * MS)
    assert counters["out_of_order"] > 35
    assert nak_count(pair) <= 4
