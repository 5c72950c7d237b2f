"""Driver: what it costs to send and receive through a driver instead of in the application's own process."""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from umstack.bench.children import CHILD_SLACK_SECONDS, BenchError, running
from umstack.bench.driver_ends import AttachSpec
from umstack.bench.endpoint import READY_SECONDS
from umstack.bench.latency import measure_round_trip
from umstack.bench.process_watch import cpu_seconds_of, share_bytes
from umstack.bench.result import Result, merged, p50, rate, ratio
from umstack.bench.round_trip_ends import RoundTripSpec
from umstack.bench.stream_ends import Api, StreamSpec
from umstack.bench.targets import Target
from umstack.bench.throughput import (
    STREAM_ENDS,
    End,
    Pins,
    PlacedHost,
    Progress,
    carry_out,
    stream_result,
)
from umstack.lab import Lab

IN_PROCESS = "in-process"
_RECEIVES, _SENDS, _BOTH = "received by a driver", "sent by a driver", "a driver at both ends"
STREAMS: Sequence[tuple[int, Api, float]] = ((64, "batch", 0.9), (1400, "batch", 0.95), (64, "message", 0.9))
"""Message size, API and bound of each stream."""
_SHARED_BYTES = 64 << 20
_NO_FLOW_CONTROL = "\nsource flow_control none\n"
"""The publishers of the fairness measurement have no subscriber: what they share is the sending half."""
_ATTACH_LIMIT = "1000"
_SETTLING_SECONDS = 6.0
"""After this time the initial phase of topic resolution, 5 s by default, is over, and the contexts are idle."""
_IDLE_SHARE = 5
"""Idle time, in lengths of a measurement: the kernel counts processor time in units of 10 ms."""


@dataclass(frozen=True, slots=True)
class DriverPlan:
    """Scope and duration of a measurement."""

    config: str
    link: str = "socket"
    seconds: float = 2.0
    rounds: int = 3
    is_pinned: bool = False
    streams: Sequence[tuple[int, Api, float]] = STREAMS
    subscribers: int = 8
    idle_contexts: int = 10
    attached_contexts: int = 200
    threading_mode: str = "dedicated"


@dataclass(frozen=True, slots=True)
class Serving:
    """A running driver."""

    path: str
    pid: int

    @property
    def cpu_seconds(self) -> float:
        """Return its processor time so far."""
        return cpu_seconds_of(self.pid)


@contextmanager
def serving(host: PlacedHost, plan: DriverPlan) -> Iterator[Serving]:
    """Run a driver on the host's interface."""
    with tempfile.TemporaryDirectory(prefix="umstack-bench-") as folder:
        path, file = Path(folder) / "driver.sock", Path(folder) / "options"
        file.write_text(plan.config)
        command = [sys.executable, "-m", "umstack", "driver", host.address, "--path", str(path)]
        command += ["-c", str(file), "-o", f"link={plan.link}", "--clients-max", _ATTACH_LIMIT]
        command += ["--threading-mode", plan.threading_mode]
        process = host.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            while first.startswith("umstack: "):  # a warning of the link
                first = process.stderr.readline()
            if not first.startswith("serving "):
                raise BenchError(f"`{' '.join(command)}` failed: {first}{process.stderr.read()}")
            yield Serving(str(path), process.pid)
        finally:
            process.terminate()
            process.communicate(timeout=CHILD_SLACK_SECONDS)


def measure(plan: DriverPlan, progress: Progress) -> tuple[list[Result], list[Target]]:
    """Measure everything, and compare it with its targets."""
    with Lab(hosts=2, segmentation="real") as lab:
        streams = _streams(lab, plan, progress)
        trips = _round_trips(lab, plan, progress)
        progress(f"{plan.subscribers} subscribers of one topic")
        shared, targets = _sharing(lab, plan)
        progress("two publishers")
        targets.append(_fairness(lab, plan))
        progress(f"{plan.idle_contexts} idle contexts")
        targets += _idle(lab, plan)
        progress(f"{plan.attached_contexts} contexts")
        targets.append(_memory(lab, plan))
    return [*streams, *trips, *shared], [*_of_streams(plan, streams), *_of_trips(trips), *targets]


# ---- streams and round trips, in turns ----


def _streams(lab: Lab, plan: DriverPlan, progress: Progress) -> list[Result]:
    pins = Pins.apart() if plan.is_pinned else Pins()
    results: list[Result] = []
    for size, api, _ in plan.streams:
        spec = StreamSpec(size=size, api=api, seconds=plan.seconds, config=plan.config, link=plan.link)
        ways = {
            IN_PROCESS: partial(_stream, lab, plan, spec, pins, False, False),
            _RECEIVES: partial(_stream, lab, plan, spec, pins, False, True),
            _SENDS: partial(_stream, lab, plan, spec, pins, True, False),
        }
        results += _in_turns(plan, f"{size} B, {api} API", ways, rate, progress)
    return results


def _stream(lab: Lab, plan: DriverPlan, spec: StreamSpec, pins: Pins, sends: bool, receives: bool) -> Result:
    here, there = lab.hosts
    with ExitStack() as stack:

        def through(is_used: bool, host: PlacedHost) -> StreamSpec:
            if not is_used:
                return spec
            driver = stack.enter_context(serving(host, plan))
            return dataclasses.replace(spec, driver=driver.path)

        publisher, subscriber = through(sends, here), through(receives, there)
        end = End(there, subscriber, cpu=pins.subscriber)
        sent, received = carry_out(lab, publisher, pins.publisher, [end])
    return stream_result(spec, sent, received)


def _round_trips(lab: Lab, plan: DriverPlan, progress: Progress) -> list[Result]:
    pins = Pins.apart() if plan.is_pinned else Pins()
    results: list[Result] = []
    for wait in ("block", "busy"):
        spec = RoundTripSpec(wait=wait, loop="core", seconds=plan.seconds, config=plan.config, link=plan.link)
        ways = {
            IN_PROCESS: partial(measure_round_trip, lab, spec, pins),
            _BOTH: partial(_round_trip_by_drivers, lab, plan, spec, pins),
        }
        results += _in_turns(plan, f"round trips, {wait}", ways, p50, progress)
    return results


def _round_trip_by_drivers(lab: Lab, plan: DriverPlan, spec: RoundTripSpec, pins: Pins) -> Result:
    here, there = lab.hosts
    with serving(here, plan) as near, serving(there, plan) as far:
        return measure_round_trip(lab, spec, pins, (near.path, far.path))


def _in_turns(
    plan: DriverPlan,
    title: str,
    ways: Mapping[str, Callable[[], Result]],
    judge: Callable[[Result], float],
    progress: Progress,
) -> list[Result]:
    """Measure all ways in each round, and return the median of each with its ratio to the first."""
    found: dict[str, list[Result]] = {name: [] for name in ways}
    for number in range(1, plan.rounds + 1):
        for name, measure_once in ways.items():
            progress(f"round {number} of {plan.rounds}: {title}, {name}")
            found[name].append(measure_once())
    best = []
    for name, rounds in found.items():
        one = merged(rounds, judge)
        one["detail"]["path"] = name
        if name != IN_PROCESS:
            one["ratios"] = {IN_PROCESS: ratio(rounds, found[IN_PROCESS], judge)}
        best.append(one)
    return best


def _of_streams(plan: DriverPlan, results: Sequence[Result]) -> list[Target]:
    bounds = {(size, api): bound for size, api, bound in plan.streams}
    return [
        Target(
            f"{one['size']} B, {one['api']} API, {one['detail']['path']}",
            one["ratios"][IN_PROCESS],
            bounds[one["size"], one["api"]],
        )
        for one in results
        if one["ratios"]
    ]


def _of_trips(results: Sequence[Result]) -> list[Target]:
    blocking, blocking_by, busy, busy_by = results
    added_us = (p50(busy_by) - p50(busy)) / 2
    return [
        Target("round trip p50, blocking, to in-process", p50(blocking_by) / p50(blocking), 1.3, "at most"),
        Target("round trip p50, busy: more each way", added_us, 1.5, "at most", unit="us"),
    ]


# ---- what applications share ----


def _sharing(lab: Lab, plan: DriverPlan) -> tuple[list[Result], list[Target]]:
    """Compare the processor time for one topic of a fixed number of messages with one and many subscribers."""
    spec = StreamSpec(
        size=1400,
        max_messages=_SHARED_BYTES // 1400,
        seconds=CHILD_SLACK_SECONDS,
        config=plan.config,
        link=plan.link,
    )
    host = lab.hosts[1]

    def through(count: int) -> tuple[Result, float]:
        with serving(host, plan) as driver:
            before = driver.cpu_seconds
            attached = dataclasses.replace(spec, driver=driver.path)
            sent, received = carry_out(lab, spec, None, [End(host, attached)] * count, connected=1)
            spent = driver.cpu_seconds - before
        return _shared_result(spec, sent, received, f"{count} by a driver", spent), spent

    one, spent_one = through(1)
    many, spent_many = through(plan.subscribers)
    sockets = dataclasses.replace(spec, link="socket")
    sent, received = carry_out(lab, sockets, None, [End(host, sockets)] * plan.subscribers)
    spent_sockets = sum(end["cpu_seconds"] for end in received)
    alone = _shared_result(sockets, sent, received, f"{plan.subscribers} on sockets", 0.0)
    title = f"{plan.subscribers} subscribers: the driver's processor time, to"
    return [one, many, alone], [
        Target(f"{title} that for one", spent_many / spent_one, 1.5, "at most"),
        Target(f"{title} processes on sockets", spent_many / spent_sockets, 0.25, "at most"),
    ]


def _shared_result(
    spec: StreamSpec, sent: dict[str, object], received: list[dict[str, object]], path: str, spent: float
) -> Result:
    found = stream_result(spec, sent, received)
    return {**found, "detail": {**found["detail"], "path": path, "driver_cpu_seconds": spent}}


def _fairness(lab: Lab, plan: DriverPlan) -> Target:
    """Two publishers in two processes send for the same time: the slower's share of the faster's messages."""
    host = lab.hosts[0]
    with serving(host, plan) as driver, ExitStack() as stack:
        spec = StreamSpec(
            size=1400,
            seconds=plan.seconds,
            config=plan.config + _NO_FLOW_CONTROL,
            driver=driver.path,
            interface=host.address,
        )
        ends = [
            stack.enter_context(running(host, STREAM_ENDS, spec.as_arguments("publish"))) for _ in range(2)
        ]
        for end in ends:
            end.receive(READY_SECONDS)
        for end in ends:
            end.order(go=True)
        sent = sorted(end.receive(plan.seconds + CHILD_SLACK_SECONDS)["sent"] for end in ends)
        for end in ends:
            end.order(stop=True)
            end.receive(CHILD_SLACK_SECONDS)
    return Target("two publishers: the slower's rate, to the faster's", sent[0] / sent[1], 0.9)


# ---- idle applications ----


@contextmanager
def _attached(lab: Lab, plan: DriverPlan, count: int) -> Iterator[tuple[Serving, int, list[float]]]:
    """Attach this many contexts of one process. Yields the driver, the process, and the seconds that each took."""
    host = lab.hosts[1]
    with serving(host, plan) as driver:
        spec = AttachSpec(interface=host.address, config=plan.config, driver=driver.path, contexts=count)
        with running(host, "umstack.bench.driver_ends", spec.as_arguments("attach")) as end:
            seconds = end.receive(READY_SECONDS + count)["attached_seconds"]
            yield driver, end.process.pid, seconds
            end.order(stop=True)


def _idle(lab: Lab, plan: DriverPlan) -> list[Target]:
    with _attached(lab, plan, plan.idle_contexts) as (driver, _, seconds):
        time.sleep(_SETTLING_SECONDS)
        before = driver.cpu_seconds
        idle_seconds = _IDLE_SHARE * plan.seconds
        time.sleep(idle_seconds)
        spent = driver.cpu_seconds - before
    what = f"idle driver with {plan.idle_contexts} idle contexts"
    return [
        Target("attaching a context", statistics.median(seconds) * 1e3, 50, "at most", unit="ms"),
        Target(what, spent / idle_seconds * 100, 1, "at most", unit="% of a processor"),
    ]


def _memory(lab: Lab, plan: DriverPlan) -> Target:
    with _attached(lab, plan, plan.attached_contexts) as (driver, pid, _):
        used = share_bytes(driver.pid) + share_bytes(pid)
    what = f"memory of the driver and {plan.attached_contexts} contexts with a source and a receiver each"
    return Target(what, used / 2**20, 2048, "at most", unit="MiB")
