"""The project's performance targets, and the check that a run met them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from umstack.bench import capture, flow, latency, raw, recovery, scale, throughput
from umstack.bench.result import Result
from umstack.bench.round_trip_ends import RoundTripSpec
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import Progress

SOAK_MESSAGES = 10_000_000

_SOAK_GROWTH_MIB = 4
_MIB = 1 << 20
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Target:
    """One figure: the measured value, the required bound and, if there is one, the aim."""

    what: str
    measured: float | None
    bound: float
    sense: Literal["at least", "at most"] = "at least"
    aim: float | None = None
    unit: str = "x"

    @property
    def is_met(self) -> bool:
        """Return True if the measured figure is within the bound."""
        return self._reaches(self.bound)

    @property
    def is_aim_met(self) -> bool | None:
        """Return True if the measured figure reaches the aim."""
        return None if self.aim is None else self._reaches(self.aim)

    def _reaches(self, bound: float) -> bool:
        if self.measured is None:
            return False
        return self.measured >= bound if self.sense == "at least" else self.measured <= bound

    def as_json(self) -> dict[str, Any]:
        """One entry of the `targets` of `umstack bench all --json`."""
        return {**dataclasses.asdict(self), "met": self.is_met, "aim_met": self.is_aim_met}


@dataclass(frozen=True, slots=True)
class AllPlan:
    """Duration and number of rounds of the measurements."""

    config: str
    seconds: float = 1.0
    rounds: int = 3
    loss: float = 0.01
    soak_messages: int = SOAK_MESSAGES
    topics: Sequence[int] = (1, 10, 100, 1000)
    receivers: Sequence[int] = (1, 2, 4, 8)
    is_pinned: bool = True

    def stream(self, size: int, **more: Any) -> StreamSpec:
        """Return a stream of the plan."""
        return StreamSpec(size=size, config=self.config, seconds=self.seconds, **more)


Part = Callable[[AllPlan, Progress], tuple[list[Result], list[Target]]]


def measure_all(plan: AllPlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    """Run every measurement. Return its results and the outcome of every target."""
    results: list[Result] = []
    targets: list[Target] = []
    parts: Sequence[Part] = (_throughput, _messages, _latency, _recovery, _flow, _scale, _capture, _soak)
    for part in parts:
        found, reached = part(plan, progress)
        results += found
        targets += reached
    return results, targets


def _stack(results: Sequence[Result], **wanted: Any) -> Result:
    """Return the stack's own result with these properties."""
    return next(
        one
        for one in results
        if one["what"] == "umstack" and all(one[key] == value for key, value in wanted.items())
    )


def _throughput(plan: AllPlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    specs = [plan.stream(size) for size in (64, 1024, 1400)]
    asked = throughput.ThroughputPlan(specs, rounds=plan.rounds, is_pinned=plan.is_pinned)
    results = throughput.measure(asked, progress)
    small = _stack(results, size=64)
    rate = small["messages_per_second"] / _MILLION
    targets = [
        Target("64 B, batch API", rate, 5.0, aim=10.0, unit="M messages/s"),
        Target("64 B, batch API, to raw-udp-packed", small["ratios"]["raw-udp-packed"], 0.4, aim=0.7),
    ]
    for size in (1024, 1400):
        ratios = _stack(results, size=size)["ratios"]
        targets += [
            Target(f"{size} B, batch API, to raw-udp", ratios["raw-udp"], 0.9),
            Target(f"{size} B, batch API, to raw-udp-gso", ratios["raw-udp-gso"], 0.8),
        ]
    return results, targets


def _messages(plan: AllPlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    spec = plan.stream(64, api="message")
    asked = throughput.ThroughputPlan(
        [spec], rounds=plan.rounds, is_pinned=plan.is_pinned, has_baselines=False
    )
    results = throughput.measure(asked, progress)
    rate = results[0]["messages_per_second"] / _MILLION
    return results, [Target("64 B, one at a time from Python", rate, 1.2, aim=2.0, unit="M messages/s")]


def _latency(plan: AllPlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    kinds = (("block", "python"), ("busy", "core"), ("busy", "python"))
    specs = [
        RoundTripSpec(config=plan.config, mode="sequential", wait=wait, loop=loop, seconds=plan.seconds)  # type: ignore[arg-type]
        for wait, loop in kinds
    ]
    results = latency.measure(latency.LatencyPlan(specs, plan.rounds, is_pinned=plan.is_pinned), progress)

    def to_raw(wait: raw.Wait, loop: str) -> float:
        return float(_stack(results, wait=wait, loop=loop)["ratios"]["raw-udp"])

    return results, [
        Target("round trip p50, blocking, Python, to raw", to_raw("block", "python"), 1.2, "at most"),
        Target("round trip p50, busy, in the core, to raw", to_raw("busy", "core"), 1.6, "at most", 1.3),
        Target("round trip p50, busy, Python, to raw", to_raw("busy", "python"), 2.5, "at most", 2.0),
    ]


def _recovery(plan: AllPlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    results: list[Result] = []
    targets: list[Target] = []
    for size in (64, 1024):
        trip = recovery.round_trip_spec(plan.config, plan.seconds, is_tuned=True) if size == 64 else None
        spec = _with(plan.stream(size), recovery.STREAM_OPTIONS)
        asked = recovery.RecoveryPlan(spec, trip, plan.loss, plan.rounds, plan.is_pinned)
        found = recovery.measure(asked, progress)
        lossy = next(one for one in found if "lossless" in (one["ratios"] or {}))
        naks, lost = lossy["detail"]["naks_per_datagram_dropped"], float(lossy["unrecoverable"])
        about = f"{size} B, {plan.loss:.0%} lost"
        targets += [
            Target(f"{about}, to the lossless rate", lossy["ratios"]["lossless"], 0.7, aim=0.9),
            Target(f"{about}, NAKed per datagram lost", naks, 1.1, "at most", unit=""),
            Target(f"{about}, unrecoverable", lost, 0, "at most", unit="messages"),
        ]
        if trip is not None:
            tail = found[-1]["round_trip_us"]
            about = f"round trip, {plan.loss:.0%} lost each way"
            targets += [
                Target(f"{about}, p99", tail["p99"], 1000, "at most", unit="us"),
                Target(f"{about}, p99.9", tail["p999"], 5000, "at most", 1000, unit="us"),
            ]
        results += found
    return results, targets


def _with(spec: StreamSpec, options: str) -> StreamSpec:
    """Return the spec with additional options, which the spec's existing options override."""
    return dataclasses.replace(spec, config=f"{options}{spec.config}")


def _flow(plan: AllPlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    asked = flow.FlowPlan(plan.stream(64, receivers=2), rounds=plan.rounds, is_pinned=plan.is_pinned)
    results = flow.measure(asked, progress)
    off = abs(results[0]["ratios"]["own_maximum"] - 1)
    return results, [
        Target("flow control min: settled rate, off the slowest's own", off, 0.1, "at most", unit="of it"),
        Target("flow control min: lost", float(results[0]["lost"]), 0, "at most", unit="messages"),
    ]


def _scale(plan: AllPlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    asked = scale.ScalePlan(plan.stream(64), plan.topics, plan.receivers, plan.rounds, plan.is_pinned)
    results = scale.measure(asked, progress)
    topics = results[len(plan.topics) - 1]
    first, *_, last = [one for one in results[len(plan.topics) :] if one["what"] == "umstack"]
    growth = last["ratios"]["raw-udp-gso_sender_cost"] / first["ratios"]["raw-udp-gso_sender_cost"]
    targets = [
        Target(f"cost a message, {plan.topics[-1]} topics to one, {end}", cost, scale.FLAT, "at most")
        for name, cost in topics["ratios"].items()
        for end in [name.partition("_")[0]]
    ]
    about = f"publisher's cost to a raw sender's, {plan.receivers[-1]} subscribers to one"
    return results, [*targets, Target(about, growth, scale.FLAT, "at most")]


def _capture(plan: AllPlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    results: list[Result] = []
    targets: list[Target] = []
    specs = [plan.stream(size, mode="embedded") for size in (64, 1400)]
    places: Sequence[capture.Place] = ("publisher", "subscriber")
    for place in places:
        asked = capture.CapturePlan(specs, place, rounds=plan.rounds, is_pinned=plan.is_pinned)
        found = capture.measure(asked, progress)
        for spec, beside in zip(specs, found[::2], strict=True):
            kept = beside["ratios"]["without_capture"]
            targets.append(Target(f"{spec.size} B beside a capture at the {place}, to without", kept, 0.9))
        results += found
    return results, targets


def _soak(plan: AllPlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    spec = dataclasses.replace(plan.stream(64), max_messages=plan.soak_messages, seconds=60.0)
    asked = throughput.ThroughputPlan([spec], rounds=1, is_pinned=plan.is_pinned, has_baselines=False)
    results = throughput.measure(asked, progress)
    memory = results[0]["detail"]["memory_bytes"]
    return results, [
        Target(
            f"growth over {plan.soak_messages / _MILLION:g} M messages, {end}",
            None if at["early"] is None else (at["end"] - at["early"]) / _MIB,
            _SOAK_GROWTH_MIB,
            "at most",
            unit="MiB",
        )
        for end, at in memory.items()
    ]
