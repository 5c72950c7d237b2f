"""Limits on a bad receiver: one of a hundred receivers that loses a fifth of the datagrams, and a forged
receiver.
"""

from __future__ import annotations

import struct

import pytest

from tests.sim.conftest import DELAY, Pair
from umstack._engine.core_address import ip_text
from umstack._sim_bench import lib
from umstack.sim import FLOW_MIN, MS, SECOND, Session, World

NOISY, STALLED, CUT_OFF = 3, 1, 4
RATE_BPS = 16_000_000
REPAIR_BPS = RATE_BPS // 10
HONEST = 99
MESSAGE = bytes(1000)
RECEIVER_KNOWN = 6


def last_event(session: Session) -> tuple[int, str]:
    """Return the kind of the newest receiver event, and the receiver's address."""
    event = lib.um_sim_last_event(session.world.handle, session.index)
    return (event.kind, ip_text(event.receiver.ip)) if event else (0, "")


def run_group(
    culprit_loss_ppm: int, is_adaptive: bool = False, **options: int
) -> tuple[int, dict[str, int], tuple[int, int], int]:
    """Publish for two seconds as fast as the limiter allows, to 99 honest receivers and one that loses
    datagrams.

    Return the minimum of datagrams at an honest receiver, the session's counters, the last event and the
    lossy receiver.
    """
    small = {"hold_datagrams": 64, "hold_messages": 1024, "inbox_datagrams": 256}
    with World() as world:
        publisher = world.host(data_rate_bps=RATE_BPS, retransmit_rate_bps=REPAIR_BPS, **small)
        session = publisher.session(
            term_length=1 << 22,
            window_bytes=1 << 22,
            batch_minimum_bytes=1,
            ignore_interval_ns=10 * MS,
            repair_budget_bps=REPAIR_BPS,
            adaptive_timers=7 * is_adaptive,
            **options,
        )
        source = session.source()
        joins = []
        for number in range(HONEST + 1):
            host = world.host(**small)
            host.set_faults(delay_ns=DELAY, loss_ppm=0 if number < HONEST else culprit_loss_ppm)
            receiver = host.receiver(block_rows=256, block_bytes=1 << 17, message_max_bytes=1 << 16)
            joins.append(
                receiver.join(
                    source,
                    window_bytes=65536,
                    status_interval_ns=100 * MS,
                    nak_initial_backoff_ns=5 * MS,
                    nak_backoff_ns=20 * MS,
                    loss_capacity=1024,
                    adaptive_timers=7 * is_adaptive,
                )
            )
        for _ in range(200):
            while source.try_send(MESSAGE, flush=True) >= 0:
                pass
            world.run_for(10 * MS)
        fewest = min(join.counters["msgs_rcved"] for join in joins[:HONEST])
        assert all(join.counters["lost"] == 0 for join in joins[:HONEST])
        return fewest, session.counters, last_event(session), f"10.0.0.{1 + HONEST + 1}"


@pytest.mark.parametrize("is_adaptive", [False, True], ids=["fixed", "adaptive"])
def test_one_receiver_in_a_hundred_loses_a_fifth(is_adaptive: bool) -> None:
    """UM-129, UX-4: retransmissions stay below their limit, the other receivers keep 0.95 of their rate, and
    an event names the bad receiver.
    """
    alone, before, event, _ = run_group(0, is_adaptive)
    assert before["rxs_sent"] == 0
    assert event[0] == RECEIVER_KNOWN  # no later event
    fewest, counters, event, culprit = run_group(200_000, is_adaptive)
    assert counters["rxs_sent"] > 50
    as_unknown = 65536 if is_adaptive else 0  # NAKs before the second status message makes it a member
    assert counters["rx_bytes_sent"] <= as_unknown + 65536 + 2 * REPAIR_BPS // 4 // 8 + 1032
    assert fewest >= 0.95 * alone
    assert event == (NOISY, culprit)


def test_a_receiver_over_its_share_is_no_longer_served() -> None:
    """UX-21: under the policy, the bad receiver gets no more retransmissions, without effect on the others."""
    fewest, counters, event, culprit = run_group(200_000, nak_cutoff_interval_ns=500 * MS)
    assert event == (CUT_OFF, culprit)
    assert counters["naks_cut_off"] > 0
    assert fewest > 0


@pytest.mark.parametrize("timeout_ns", [0, 1 * SECOND])
def test_a_forged_receiver_holds_the_source_for_a_bounded_time(pair: Pair, timeout_ns: int) -> None:
    """AE-19, AE-20: a forged receiver repeats window 0; the honest receiver gets 0.95 of its rate after the
    bound.
    """
    session = pair.publisher.session(
        flow_policy=FLOW_MIN, batch_minimum_bytes=1, session_id=0x77, flow_stall_timeout_ns=timeout_ns
    )
    source = session.source()
    join = pair.subscriber.receiver().join(source, window_bytes=65536, status_interval_ns=20 * MS)
    pair.world.run_for(50 * MS)

    def run(seconds: int, is_attacked: bool) -> int:
        had = join.counters["msgs_rcved"]
        for tick in range(100 * seconds):
            if is_attacked and tick % 100 == 0:
                pair.world.inject(forged, pair.publisher, ("10.0.0.1", port), ("10.0.0.99", 5555))
            for _ in range(10):
                source.try_send(MESSAGE, flush=True)
            pair.world.run_for(10 * MS)
        return int(join.counters["msgs_rcved"]) - had

    calm = run(2, False)
    status = next(d for d in pair.world.trace() if d.destination[0] == "10.0.0.1" and d.data[33] == 0)
    port = status.destination[1]
    sqn = session.probe.next_sqn
    forged = bytearray(status.data)
    struct.pack_into(">II", forged, 8, sqn, sqn)
    struct.pack_into(">II", forged, 36, sqn, 0)
    struct.pack_into(">Q", forged, 48, 666)
    forged = bytes(forged)
    run(2, True)
    attacked = run(2, True)
    if timeout_ns:
        assert session.counters["receivers_stalled"] == 1
        assert last_event(session) == (STALLED, "10.0.0.99")
        assert attacked >= 0.95 * calm
    else:
        assert session.counters["receivers_stalled"] == 0
        assert attacked < 0.1 * calm
