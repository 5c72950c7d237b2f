"""Compares kernel sockets with AF_XDP: streams and round trips over each link, and raw baselines, in one run.

Sizes that do not fit an MTU of 1500 are measured in a lab at MTU 9000, where a datagram occupies several frames of a
ring. Each round measures every contender once, so that a disturbance of the machine affects all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from umstack._core import lib
from umstack.bench import raw
from umstack.bench.latency import measure_raw, measure_round_trip, raw_plan
from umstack.bench.result import Result, merged, p50, rate, ratio
from umstack.bench.round_trip_ends import Loop, RoundTripSpec, Wait
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import Baseline, Pins, Progress, baselines, measure_stream, options_text
from umstack.errors import Unsupported
from umstack.lab import Lab
from umstack_xdp.ladder import Mode, chosen, decide
from umstack_xdp.probe import probe_interface

SIZES = (64, 256, 1024, 1400, 8900)
SIZE_MAX = 8900

_ETHERNET_MTU, _JUMBO_MTU = 1500, 9000
_ETHERNET_SIZE_MAX = 1400
"""Largest message that is kept within one datagram at MTU 1500."""

_OWN = "umstack, "
SOCKETS, SOCKETS_PLAIN, RINGS = f"{_OWN}sockets", f"{_OWN}sockets without GSO", f"{_OWN}AF_XDP"
RINGS_READ = f"{RINGS}, payloads read"


@dataclass(frozen=True, slots=True)
class ComparePlan:
    """Sizes, waits and rounds of a comparison."""

    sizes: Sequence[int] = SIZES
    waits: Sequence[Wait] = ("busy", "block")
    loop: Loop = "core"
    seconds: float = 1.0
    rounds: int = 3
    options: Sequence[str] = ()
    is_pinned: bool = True

    def streams(self, size: int) -> dict[str, StreamSpec]:
        """Return the stack's streams of a size by contender."""
        with_gso, without = (options_text("min", kind, self.options) for kind in ("real", "none"))
        common = StreamSpec(size=size, seconds=self.seconds, config=with_gso)
        found = {
            RINGS: dataclasses.replace(common, link="xdp"),
            SOCKETS: dataclasses.replace(common, link="socket"),
            SOCKETS_PLAIN: dataclasses.replace(common, link="socket", config=without),
        }
        if size >= lib.UM_QUEUE_PINNED_BYTES_MIN:
            found[RINGS_READ] = dataclasses.replace(found[RINGS], reads="payload")
        return found

    def trips(self, size: int, wait: Wait) -> dict[str, RoundTripSpec]:
        """Return the stack's round trips by contender."""
        common = RoundTripSpec(
            size=size,
            wait=wait,
            loop=self.loop,
            seconds=self.seconds,
            mode="sequential",
            config=options_text("min", "real", self.options),
        )
        return {
            RINGS: dataclasses.replace(common, link="xdp"),
            SOCKETS: dataclasses.replace(common, link="socket"),
        }


@dataclass(slots=True)
class Row:
    """One contender at one message size."""

    size: int
    what: str
    messages_per_second: float | None = None
    datagrams_per_second: float | None = None
    to_sockets: float | None = None
    """Rate relative to the stack over sockets: the median of the rounds' ratios."""
    publisher_ns: float | None = None
    """CPU time per message in nanoseconds: user and kernel time of the process."""
    subscriber_ns: float | None = None
    round_trip_us: dict[str, dict[str, float]] = field(default_factory=dict)
    """Microseconds at p50, p99 and p999 by wait mode."""

    def as_json(self) -> dict[str, Any]:
        """One entry of the `comparison` of `umstack bench compare --json`."""
        return dataclasses.asdict(self)


Rounds = dict[str, list[Result]]


def measure(plan: ComparePlan, progress: Progress) -> tuple[list[Result], list[Row]]:
    """Measure and compare every size over each link and the raw baselines."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    results: list[Result] = []
    rows: list[Row] = []
    for mtu, sizes in groupby(sorted(plan.sizes), _mtu_for):
        with Lab(hosts=2, mtu=mtu, segmentation="real") as lab:
            require_rings(lab)
            for size in sizes:
                found, compared = _Size(lab, plan, size, pins, progress).measure()
                results += found
                rows += compared
    return results, rows


def _mtu_for(size: int) -> int:
    return _ETHERNET_MTU if size <= _ETHERNET_SIZE_MAX else _JUMBO_MTU


def require_rings(lab: Lab) -> None:
    """Raise an error if the lab's hosts do not support AF_XDP."""
    host = lab.hosts[0]
    steps = host.call(lambda: decide(probe_interface(host.facts()), "xdp"))
    if chosen(steps) is None:
        least = next(step for step in steps if step.mode is Mode.GENERIC)
        problems = " and ".join(reason.problem for reason in least.reasons)
        remedies = "; ".join(reason.remedy for reason in least.reasons)
        raise Unsupported(f"nothing to compare: {problems}", hint=remedies)


def take_turns(
    contenders: dict[str, Callable[[], Result]], rounds: int, progress: Progress, about: str
) -> Rounds:
    """Measure each contender once per round."""
    found: Rounds = {what: [] for what in contenders}
    for number in range(1, rounds + 1):
        for what, measure_once in contenders.items():
            progress(f"{about}, round {number} of {rounds}: {what}")
            found[what].append(measure_once())
    return found


class _Size:
    """The contenders at one message size."""

    def __init__(self, lab: Lab, plan: ComparePlan, size: int, pins: Pins, progress: Progress) -> None:
        self._lab, self._plan, self._size = lab, plan, size
        self._pins, self._progress = pins, progress

    def measure(self) -> tuple[list[Result], list[Row]]:
        """Return the contenders' results, and a row of the comparison for each."""
        streams = self._rounds(dict(self._streams()))
        rows = {what: self._row(what, found, streams[SOCKETS]) for what, found in streams.items()}
        results = [labelled(what, merged(found, rate)) for what, found in streams.items()]
        for wait in self._plan.waits:
            for what, found in self._rounds(dict(self._trips(wait)), f", {wait}").items():
                trip = merged(found, p50)
                results.append(labelled(what, trip))
                rows[what].round_trip_us[wait] = trip["round_trip_us"]
        return results, list(rows.values())

    def _rounds(self, contenders: dict[str, Callable[[], Result]], about: str = "") -> Rounds:
        return take_turns(contenders, self._plan.rounds, self._progress, f"{self._size} B{about}")

    def _streams(self) -> Iterator[tuple[str, Callable[[], Result]]]:
        for name, spec in self._plan.streams(self._size).items():
            yield name, lambda spec=spec: measure_stream(self._lab, spec, self._pins)  # type: ignore[misc]
        for what in baselines(self._size, "real", "xdp"):
            baseline = Baseline(what, self._size, self._plan.seconds, self._pins)
            yield what, lambda baseline=baseline: baseline.measure(self._lab)  # type: ignore[misc]

    def _trips(self, wait: Wait) -> Iterator[tuple[str, Callable[[], Result]]]:
        trips = self._plan.trips(self._size, wait)
        for name, spec in trips.items():
            yield name, lambda spec=spec: measure_round_trip(self._lab, spec, self._pins)  # type: ignore[misc]
        kinds: tuple[raw.Subject, ...] = ("raw-xdp", "raw-udp") if wait == "busy" else ("raw-udp",)
        for what in kinds:
            asked = raw_plan(what, wait, trips[SOCKETS])
            yield what, lambda asked=asked: measure_raw(self._lab, asked, self._pins)  # type: ignore[misc]

    def _row(self, what: str, rounds: Sequence[Result], by_sockets: Sequence[Result]) -> Row:
        middle = merged(rounds, rate)
        sent = middle["detail"]["sent"]
        received = middle["detail"].get("received", sent)
        spent = middle["cpu_seconds"]
        return Row(
            self._size,
            what,
            messages_per_second=middle["messages_per_second"],
            datagrams_per_second=middle["datagrams_per_second"],
            to_sockets=ratio(rounds, by_sockets, rate),
            publisher_ns=spent["publisher"] / max(1, sent) * 1e9,
            subscriber_ns=spent["subscriber"] / max(1, received) * 1e9,
        )


def labelled(what: str, found: Result) -> Result:
    """Return the result with the name of the contender."""
    return {**found, "detail": {**found["detail"], "contender": what}}
