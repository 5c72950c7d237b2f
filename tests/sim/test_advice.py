"""The options that a report suggests are tried in the network that was captured: recovery never becomes slower."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

from umstack.analysis.tables import tables_of
from umstack.facts.facts import facts_of
from umstack.sim import MS, SECOND, US, World, truth_of, write_capture

DATAGRAMS, PACE_NS = 1_500, 500 * US
PREFIX = "transport_lbtrm_"
MOST_SLOWER = 1.05
MOST_SLOWER_P99 = 1.2
"""If a fifth of all datagrams is lost, the slowest recoveries wait for the suppress interval, which no option here
shortens: a NAK for a repair that another receiver lost, too, is refused."""
Network = tuple[int, dict[str, int]]
"""The delay to and from a receiver, and its losses."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """The options of recovery, in milliseconds."""

    nak_initial_backoff_interval: int
    nak_backoff_interval: int
    ignore_interval: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The losses of a run with these options, the times of its recoveries, and the advice."""

    recoveries_ms: list[float]
    first_waits_ms: list[float]
    """From a sending to the first NAK for it; for a burst, of its last datagram."""
    unrepaired: int
    advice: list[dict[str, Any]]

    def advised(self, options: Intervals) -> Intervals:
        """Return the options with those that are suggested."""
        found = {row["option"].removeprefix(PREFIX): row["value"] for row in self.advice}
        names = Intervals.__slots__
        return Intervals(**{name: found.get(name, getattr(options, name)) for name in names})


def run(
    folder: Path, network: Network, options: Intervals, receiver_count: int = 2, pace_ns: int = PACE_NS
) -> Outcome:
    """Send to the receivers of a network; return the truth, and the advice of the switch's capture."""
    delay_ns, losses = network
    with World(7) as world:
        publisher = world.host()
        session = publisher.session(session_id=77, ignore_interval_ns=options.ignore_interval * MS)
        source = session.source()
        receivers = [world.host() for _ in range(receiver_count)]
        for number, host in enumerate(receivers):
            host.receiver(loss_check_interval_ns=MS).join(
                source,
                nak_initial_backoff_ns=options.nak_initial_backoff_interval * MS,
                nak_backoff_ns=options.nak_backoff_interval * MS,
                random_seed=number,
            )
            host.set_faults(delay_ns=delay_ns, **losses)
        publisher.set_faults(delay_ns=delay_ns)
        for sent in range(DATAGRAMS):
            if sent == DATAGRAMS - 200:
                # Only a session message reveals the loss of the last datagrams, whatever the options.
                for host in receivers:
                    host.set_faults(delay_ns=delay_ns)
            source.send(bytes(200), flush=True)
            world.run_for(pace_ns)
        world.run_for(4 * SECOND)
        path = folder / "run.pcapng"
        write_capture(world, path)
        [session_truth] = truth_of(world).sessions
    lost = [one for one in session_truth.losses if one.naks_ns and not one.came_at_first]
    took = [(one.repaired_ns - one.sent_ns) / MS for one in lost if one.repaired_ns and one.sent_ns]
    facts = facts_of([str(path)])
    at_switch = facts.renamed(
        {point: "switch" if point.endswith(":switch") else point for point in facts.points()}, {}
    )
    advice = tables_of(at_switch)["suggestions"].to_dicts()
    by_nak: dict[tuple[str, int], float] = {}
    for one in lost:
        if one.sent_ns:
            key, wait_ms = (one.receiver, one.naks_ns[0]), (one.naks_ns[0] - one.sent_ns) / MS
            by_nak[key] = min(wait_ms, by_nak.get(key, wait_ms))
    return Outcome(took, list(by_nak.values()), sum(one.repaired_ns is None for one in lost), advice)


NEAR, FAR = 200 * US, 5 * MS
SPORADIC, HEAVY = {"loss_ppm": 10_000}, {"loss_ppm": 200_000}
BURSTS = {"burst_begin_ppm": 3_000, "burst_end_ppm": 100_000}
DEFAULTS, HASTY, REFUSING, SLOW = (
    Intervals(50, 200, 500),
    Intervals(1, 2, 1),
    Intervals(10, 20, 500),
    Intervals(200, 400, 100),
)


@pytest.mark.parametrize("options", [DEFAULTS, HASTY, REFUSING, SLOW])
@pytest.mark.parametrize("losses", [SPORADIC, HEAVY, BURSTS], ids=["sporadic", "heavy", "bursts"])
@pytest.mark.parametrize("delay_ns", [NEAR, FAR])
def test_advice_never_makes_recovery_slower(
    tmp_path: Path, delay_ns: int, losses: dict[str, int], options: Intervals
) -> None:
    """The times to repair and the losses that stay open, with the options and with those that are suggested."""
    before = run(tmp_path, (delay_ns, losses), options)
    advised = before.advised(options)
    after = run(tmp_path, (delay_ns, losses), advised)
    compare(before, after, advised)


def compare(before: Outcome, after: Outcome, advised: Intervals) -> None:
    """Fail if recovery is slower with the advice, or if its stated gain is not the measured one."""
    assert len(before.recoveries_ms) > 10
    assert after.unrepaired <= before.unrepaired
    for how, most in (
        (statistics.mean, MOST_SLOWER),
        (statistics.median, MOST_SLOWER),
        (p99, MOST_SLOWER_P99),
    ):
        assert how(after.recoveries_ms) <= most * how(before.recoveries_ms) + 1, (how, advised)
    for row in before.advice:
        stated = re.search(r"a first NAK then comes after about (\d+) ms, not ([\d.]+)$", row["reason"])
        if stated is not None:
            gain_ms = float(stated[2]) - float(stated[1])
            measured_ms = statistics.median(before.first_waits_ms) - statistics.median(after.first_waits_ms)
            assert measured_ms == pytest.approx(gain_ms, rel=0.2, abs=2)


def p99(times: list[float]) -> float:
    """The time that one of a hundred exceeds."""
    return sorted(times)[-1 - len(times) // 100]


@pytest.mark.parametrize(
    ("receivers", "pace_ns", "network", "options"),
    [
        (6, 100 * US, (FAR, BURSTS), DEFAULTS),
        (6, 200 * US, (NEAR, SPORADIC), SLOW),
        (1, 2 * MS, (FAR, SPORADIC), DEFAULTS),
    ],
)
def test_advice_holds_at_other_rates_and_numbers_of_receivers(
    tmp_path: Path, receivers: int, pace_ns: int, network: Network, options: Intervals
) -> None:
    """The same comparison, for one receiver at 500 datagrams per second to six at 10,000."""
    before = run(tmp_path, network, options, receivers, pace_ns)
    advised = before.advised(options)
    assert advised != options
    compare(before, run(tmp_path, network, advised, receivers, pace_ns), advised)


@pytest.mark.parametrize(("delay_ns", "best_ms"), [(NEAR, 1), (FAR, 10)])
def test_advice_is_the_best_setting_of_a_known_network(tmp_path: Path, delay_ns: int, best_ms: int) -> None:
    """Single losses need no wait for a burst: the first NAK waits a round trip."""
    before = run(tmp_path, (delay_ns, SPORADIC), DEFAULTS)
    advised = before.advised(DEFAULTS)
    assert advised.nak_initial_backoff_interval == best_ms
    assert advised.nak_backoff_interval >= 2 * advised.ignore_interval
    after = run(tmp_path, (delay_ns, SPORADIC), advised)
    assert statistics.median(after.recoveries_ms) < 0.5 * statistics.median(before.recoveries_ms)
    [reason] = [
        row["reason"] for row in before.advice if row["option"].endswith("nak_initial_backoff_interval")
    ]
    assert f"after about {best_ms} ms, not" in reason, "the expected gain"


def test_hasty_receivers_that_recover_fast_are_left_alone(tmp_path: Path) -> None:
    """Many NAKs are unnecessary, but a longer back-off would delay the recoveries that lost a retransmission."""
    found = run(tmp_path, (FAR, HEAVY), HASTY)
    assert found.advised(HASTY) == HASTY
