"""Measures the cost of a capture by alternating the same stream with and without `umstack capture`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from umstack.bench.children import CHILD_SLACK_SECONDS, BenchError
from umstack.bench.result import Result, merged, rate, ratio
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import Pins, Progress, measure_stream
from umstack.lab import Lab, namespaces
from umstack.lab.cables import port_name

Place = Literal["subscriber", "publisher", "switch"]

_GROUPS = ("--group", "239.255.0.0/16")
"""Includes the group of the measured streams."""
_FILE_MEBIBYTES = 256
_PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """The streams to measure with and without a capture, and how."""

    specs: Sequence[StreamSpec]
    place: Place = "subscriber"
    options: Sequence[str] = ()
    """Additional arguments of `umstack capture`."""
    rounds: int = 3
    is_pinned: bool = True


def measure(plan: CapturePlan, progress: Progress) -> list[Result]:
    """Measure each stream without and with a capture in every round, in alternating order."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    found: list[Result] = []
    with Lab(hosts=2, segmentation="real") as lab:
        for spec in plan.specs:
            alone: list[Result] = []
            beside: list[Result] = []
            for number in range(1, plan.rounds + 1):
                for captured in (False, True) if number % 2 else (True, False):
                    what = f"with a capture at the {plan.place}" if captured else "without a capture"
                    progress(f"{spec.size} B, {spec.link}, round {number} of {plan.rounds}: {what}")
                    if captured:
                        beside.append(_measure_captured(lab, spec, plan, pins))
                    else:
                        alone.append(measure_stream(lab, spec, pins))
            best = merged(beside, rate)
            best["ratios"] = {"without_capture": ratio(beside, alone, rate)}
            found += [best, merged(alone, rate)]
    return found


def _measure_captured(lab: Lab, spec: StreamSpec, plan: CapturePlan, pins: Pins) -> Result:
    number = 0 if plan.place == "publisher" else 1
    interface = port_name(number) if plan.place == "switch" else lab.hosts[number].interface
    namespace = lab.switch_namespace if plan.place == "switch" else lab.hosts[number].namespace
    options = (*_GROUPS, "--rotate-size", str(_FILE_MEBIBYTES), "--files", "1", *plan.options)
    with (
        tempfile.TemporaryDirectory() as directory,
        capturing(namespace, interface, Path(directory), options) as summary,
    ):
        found = measure_stream(lab, spec, pins)
    report = {name: summary[name] for name in ("packets", "dropped", "cpu_seconds", "egress")}
    return {**found, "detail": {**found["detail"], "capture": {"at": plan.place, **report}}}


@contextmanager
def capturing(
    namespace: str, interface: str, directory: Path, options: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Run `umstack capture` during the block. Afterwards the dictionary holds its summary."""
    command = [
        sys.executable,
        "-m",
        "umstack",
        "capture",
        interface,
        "--json",
        "--out",
        str(directory),
        *options,
    ]
    summary: dict[str, Any] = {}
    process = namespaces.call(
        namespace,
        lambda: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True),
    )
    try:
        while not any(directory.glob("*.part")):
            if process.poll() is not None:
                raise BenchError(f"umstack capture: {process.communicate()[1].strip()}")
            time.sleep(_PAUSE_SECONDS)
        yield summary
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=CHILD_SLACK_SECONDS)
        if process.returncode != 0:
            raise BenchError(f"umstack capture: {complained.strip()}")
        summary |= json.loads(said)
    finally:
        process.kill()
        process.wait()
