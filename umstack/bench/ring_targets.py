"""The figures the project set itself for the AF_XDP link, and whether a run met them (`umstack bench rings`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from umstack.bench.compare import (
    RINGS,
    RINGS_READ,
    SOCKETS,
    SOCKETS_PLAIN,
    ComparePlan,
    Rounds,
    labelled,
    require_rings,
    take_turns,
)
from umstack.bench.latency import measure_raw, measure_round_trip, raw_plan
from umstack.bench.result import Result, merged, p50, rate, ratio
from umstack.bench.targets import Target
from umstack.bench.throughput import Baseline, Pins, Progress, measure_stream
from umstack.lab import Lab

_SMALL, _LARGE = 64, 1400
_CORE, _PYTHON = f"{RINGS}, loop in the core", f"{RINGS}, loop in Python"


def measure(plan: ComparePlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    """Measure the AF_XDP link and compare it with its targets."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    with Lab(hosts=2, segmentation="real") as lab:
        require_rings(lab)
        large = _streams(
            lab, plan, _LARGE, (RINGS, RINGS_READ, SOCKETS, SOCKETS_PLAIN), pins, progress, with_raw=True
        )
        small = _streams(lab, plan, _SMALL, (RINGS, SOCKETS_PLAIN), pins, progress)
        trips = _trips(lab, plan, pins, progress)
    results = [
        labelled(what, merged(found, rate)) for group in (large, small) for what, found in group.items()
    ]
    results += [labelled(what, merged(found, p50)) for what, found in trips.items()]
    return results, [*_of_streams(large, small), *_of_trips(trips)]


def _streams(
    lab: Lab,
    plan: ComparePlan,
    size: int,
    wanted: Sequence[str],
    pins: Pins,
    progress: Progress,
    *,
    with_raw: bool = False,
) -> Rounds:
    specs = plan.streams(size)
    contenders: dict[str, Callable[[], Result]] = {
        what: partial(measure_stream, lab, specs[what], pins) for what in wanted
    }
    if with_raw:
        contenders["raw-xdp"] = partial(Baseline("raw-xdp", size, plan.seconds, pins).measure, lab)
    return take_turns(contenders, plan.rounds, progress, f"{size} B")


def _trips(lab: Lab, plan: ComparePlan, pins: Pins, progress: Progress) -> Rounds:
    spec = plan.trips(_SMALL, "busy")[RINGS]
    contenders: dict[str, Callable[[], Result]] = {
        _CORE: partial(measure_round_trip, lab, dataclasses.replace(spec, loop="core"), pins),
        "raw-xdp": partial(measure_raw, lab, raw_plan("raw-xdp", "busy", spec), pins),
        "raw-udp": partial(measure_raw, lab, raw_plan("raw-udp", "busy", spec), pins),
        _PYTHON: partial(measure_round_trip, lab, dataclasses.replace(spec, loop="python"), pins),
    }
    return take_turns(contenders, plan.rounds, progress, f"{_SMALL} B, busy")


def _datagrams(found: Result) -> float:
    return float(found["datagrams_per_second"])


def _subscriber_cost(found: Result) -> float:
    """Return the subscriber's processor time per message that was sent to it."""
    return float(found["cpu_seconds"]["subscriber"] / found["detail"]["sent"])


def _datagram_cost(found: Result) -> float:
    """Return the subscriber's processor time per datagram that was sent to it."""
    return _subscriber_cost(found) * rate(found) / _datagrams(found)


def _of_streams(large: Rounds, small: Rounds) -> list[Target]:
    efficiency = 1 / ratio(small[RINGS], small[SOCKETS_PLAIN], _subscriber_cost)
    return [
        Target(
            f"{_LARGE} B, datagrams/s, AF_XDP link to raw AF_XDP",
            ratio(large[RINGS], large["raw-xdp"], _datagrams),
            0.85,
        ),
        Target(
            f"{_SMALL} B into Python by batches, AF_XDP link to sockets without GSO",
            ratio(small[RINGS], small[SOCKETS_PLAIN], rate),
            1.0,
        ),
        Target(f"{_SMALL} B, messages a CPU second of the subscriber, likewise", efficiency, 1.3),
        Target(
            f"{_LARGE} B, subscriber's CPU a datagram, AF_XDP link to sockets",
            ratio(large[RINGS], large[SOCKETS], _datagram_cost),
            0.6,
            "at most",
        ),
        Target(
            f"{_LARGE} B, subscriber's CPU a datagram, AF_XDP link to sockets without GSO and GRO",
            ratio(large[RINGS], large[SOCKETS_PLAIN], _datagram_cost),
            0.6,
            "at most",
        ),
    ]


def _of_trips(trips: Rounds) -> list[Target]:
    def to(what: str, baseline: str) -> float:
        return ratio(trips[what], trips[baseline], p50)

    return [
        Target("round trip p50, busy, in the core, to raw AF_XDP", to(_CORE, "raw-xdp"), 1.5, "at most", 1.2),
        Target("round trip p50, busy, in the core, to raw UDP", to(_CORE, "raw-udp"), 1.0, "at most"),
        Target("round trip p50, busy, Python, to raw UDP", to(_PYTHON, "raw-udp"), 1.8, "at most", 1.4),
    ]
