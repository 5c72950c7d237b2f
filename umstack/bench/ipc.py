"""LBT-IPC against a bare ring in shared memory: streams and round trips between processes of this machine."""

from __future__ import annotations

import dataclasses
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any

from umstack.bench.children import CHILD_SLACK_SECONDS, Child, running
from umstack.bench.endpoint import READY_SECONDS
from umstack.bench.ipc_ends import RingSpec, make_ring
from umstack.bench.latency import measure_round_trip
from umstack.bench.result import Result, merged, p50, rate, ratio, result
from umstack.bench.round_trip_ends import RoundTripSpec
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import Pins, Progress, measure_stream

_ENDS = "umstack.bench.ipc_ends"
_MEMORY = Path("/dev/shm")
BASELINE = "bare-ring"


@dataclass(frozen=True, slots=True)
class LocalHost:
    """This machine, in the place of one host of a lab."""

    number: int
    address: str = "lo"

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process here."""
        return subprocess.Popen(argv, **options)


@dataclass(frozen=True, slots=True)
class OneHost:
    """All ends on this machine, which find each other over loopback."""

    hosts: Sequence[LocalHost]

    def await_join(self, group: str, *hosts: int) -> None:
        """Do nothing: no switch forwards the group."""


@dataclass(frozen=True, slots=True)
class IpcPlan:
    """The streams and round trips of a measurement."""

    config: str
    sizes: Sequence[int] = (64, 1024)
    readers: Sequence[int] = (1, 2)
    seconds: float = 2.0
    rounds: int = 3
    is_pinned: bool = True
    has_round_trip: bool = True


def resolution_options() -> str:
    """Return options that keep topic resolution apart from other contexts on loopback."""
    random = SystemRandom()
    group = f"239.255.{random.randrange(256)}.{random.randrange(1, 255)}"
    port = random.randrange(20000, 60000)
    return f"context resolver_multicast_address {group}\ncontext resolver_multicast_port {port}\n"


def measure(plan: IpcPlan, progress: Progress) -> list[Result]:
    """Measure every contender once a round, in turns."""
    config = f"{plan.config}\n{resolution_options()}"
    pins = Pins.apart() if plan.is_pinned else Pins()
    place = OneHost([LocalHost(number) for number in range(max(plan.readers) + 1)])
    results: list[Result] = []
    for size in plan.sizes:
        contenders: dict[str, Callable[[], Result]] = {
            BASELINE: partial(_measure_ring_stream, size, plan.seconds, pins)
        }
        for count in plan.readers:
            spec = StreamSpec(
                size=size, seconds=plan.seconds, config=config, transport="lbtipc", receivers=count
            )
            contenders[f"{count} readers"] = partial(_of_readers, place, spec, pins)
        results += _in_turns(plan, f"{size} B", contenders, rate, progress)
    if plan.has_round_trip:
        results += _in_turns(plan, "round trips", _round_trips(plan, config, place, pins), p50, progress)
    return results


def _in_turns(
    plan: IpcPlan,
    title: str,
    contenders: dict[str, Callable[[], Result]],
    judge: Callable[[Result], float],
    progress: Progress,
) -> list[Result]:
    """Measure all contenders, the baseline first, in each round, and return the median of each with its ratio."""
    found: dict[str, list[Result]] = {name: [] for name in contenders}
    for number in range(1, plan.rounds + 1):
        for name, measure_once in contenders.items():
            progress(f"round {number} of {plan.rounds}: {title}, {name}")
            found[name].append(measure_once())
    best = []
    for name, rounds in found.items():
        one = merged(rounds, judge)
        if name != BASELINE:
            one["ratios"] = {BASELINE: ratio(rounds, found[BASELINE], judge)}
        best.append(one)
    return best


def _of_readers(place: OneHost, spec: StreamSpec, pins: Pins) -> Result:
    found = measure_stream(place, spec, pins)
    found["detail"] = {**(found["detail"] or {}), "readers": spec.receivers}
    return found


def _round_trips(plan: IpcPlan, config: str, place: OneHost, pins: Pins) -> dict[str, Callable[[], Result]]:
    base = RoundTripSpec(transport="lbtipc", seconds=plan.seconds, config=config)
    specs = {
        "core, busy": dataclasses.replace(base, wait="busy", loop="core", mode="sequential"),
        "Python, busy": dataclasses.replace(base, wait="busy", mode="sequential"),
        "Python, blocking": base,
    }
    contenders: dict[str, Callable[[], Result]] = {
        BASELINE: partial(_measure_ring_round_trip, base.size, plan.seconds, pins)
    }
    return contenders | {name: partial(measure_round_trip, place, spec, pins) for name, spec in specs.items()}


# ---- the baseline ----


def _run_ends(spec: RingSpec, roles: tuple[str, str], pins: Pins) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the ends of the rings in the spec, which are made first, and return what both report."""
    with (
        tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder,
        ExitStack() as stack,
    ):
        files = [Path(folder) / name for name in spec.files]
        for file in files:
            make_ring(file, spec.size)
        ends: list[Child] = []
        for role, cpu in zip(roles, (pins.publisher, pins.subscriber), strict=True):
            own = dataclasses.replace(spec, files=[str(file) for file in files], cpu=cpu)
            ends.append(stack.enter_context(running(LocalHost(0), _ENDS, own.as_arguments(role))))
        for end in ends:
            end.receive(READY_SECONDS)
        for end in reversed(ends):
            end.order(go=True)
        first, second = (end.receive(spec.seconds + CHILD_SLACK_SECONDS) for end in ends)
    return first, second


def _measure_ring_stream(size: int, seconds: float, pins: Pins) -> Result:
    spec = RingSpec(files=["ring"], size=size, seconds=seconds)
    sent, received = _run_ends(spec, ("send", "receive"), pins)
    return result(
        what=BASELINE,
        size=size,
        api="message",
        messages_per_second=received["received"] / received["seconds"],
        lost=sent["sent"] - received["received"],
        out_of_order=received["misplaced"],
        detail={"readers": 1},
    )


def _measure_ring_round_trip(size: int, seconds: float, pins: Pins) -> Result:
    spec = RingSpec(files=["requests", "replies"], size=size, seconds=seconds)
    asked, _ = _run_ends(spec, ("ping", "echo"), pins)
    return result(
        what=BASELINE,
        size=size,
        api="message",
        messages_per_second=asked["samples"] / asked["seconds"],
        lost=0,
        out_of_order=asked["misplaced"],
        wait="busy",
        loop="core",
        round_trip_us={"p50": asked["p50_us"], "p99": asked["p99_us"], "p999": asked["p999_us"]},
    )
