"""Measure the delay and CPU use of `umstack monitor` on a generated capture that grows as a live one does.

The delay of a window is the modification time of its Parquet file minus the end of the window.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
from rich.table import Table

from umstack.bench.children import BenchError
from umstack.bench.pipeline import Progress
from umstack.bench.process_watch import ProcessWatch
from umstack.capture.generate import Traffic, generate
from umstack.cli.bench_options import JSON, describe, print_table, progress_shown
from umstack.cli.bench_tables import empty_table, rate_text

WINDOW_SECONDS = 5.0
_WARM = Traffic(seed=1, datagrams_per_second=2000, receivers=3, loss=0.001)
_WARM_PACKETS, _WARM_SECONDS = 20_000, 30
_START_SECONDS = 120.0
_LOOK_SECONDS = 0.1
_FEED_SECONDS = 0.05
_AHEAD_SECONDS = 2.0
_END_SECONDS = 15.0
_SETTLE_SECONDS = 4.0
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class MonitorPlan:
    """Traffic of the capture, and its length."""

    rate: int = 200_000
    """Datagrams per second."""
    messages: int = 1
    """Messages of 100 bytes per datagram."""
    seconds: float = 30.0
    idle_seconds: float = 10.0
    loss: float = 0.001
    receivers: int = 4


def measure(plan: MonitorPlan, progress: Progress) -> dict[str, Any]:
    """Measure the seconds from the end of a window to its findings, and the CPU use under load and idle."""
    with tempfile.TemporaryDirectory(prefix="umstack-bench-") as directory:
        base = Path(directory)
        (base / "captures").mkdir()
        with _monitor(base) as process:
            watch = ProcessWatch(process.pid, adds_up=True)
            with watch.watched():
                progress("starting Spark")
                _warm(base, process)
                progress("idle")
                time.sleep(_SETTLE_SECONDS)
                idle = _cores(watch, lambda: time.sleep(plan.idle_seconds))
                began = time.time() + _AHEAD_SECONDS
                source = generated(base, plan, began)
                progress(f"feeding {plan.rate:,} datagrams per second")
                target = base / "captures" / "live.pcap"
                fed = _cores(watch, lambda: feed(source, target, began, plan.seconds))
                time.sleep(_END_SECONDS)
            behind = _behind(base / "out" / "findings", began)
            if process.poll() is not None or not behind:
                raise BenchError("umstack monitor reported no findings")
    return {
        "what": "monitor",
        "rate": plan.rate,
        "messages_per_datagram": plan.messages,
        "seconds": plan.seconds,
        "windows": len(behind),
        "seconds_behind": behind,
        "cores_fed": fed,
        "cores_idle": idle,
        "together_memory_bytes": watch.together_bytes,
    }


@contextmanager
def _monitor(base: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "umstack", "monitor", str(base / "captures")]
    command += [
        "--window",
        str(WINDOW_SECONDS),
        "--parquet",
        str(base / "out"),
        "--checkpoint",
        str(base / "state"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_START_SECONDS)


def _warm(base: Path, process: subprocess.Popen[bytes]) -> None:
    """Write a small old capture; once its findings appear, everything is running."""
    start_ns = int((time.time() - _WARM_SECONDS) * _NS)
    warm = generate(base / "warm.pcap", _WARM_PACKETS, replace(_WARM, start_ns=start_ns)).path
    warm.rename(base / "captures" / "warm.pcap")
    until = time.monotonic() + _START_SECONDS
    while not (base / "out" / "findings").exists():
        if process.poll() is not None or time.monotonic() > until:
            raise BenchError("umstack monitor did not start")
        time.sleep(_LOOK_SECONDS)


def generated(base: Path, plan: MonitorPlan, began: float) -> Path:
    """Write a capture with the times of the feed."""
    traffic = Traffic(
        seed=2,
        sessions=2,
        start_ns=int(began * _NS),
        datagrams_per_second=plan.rate,
        receivers=plan.receivers,
        loss=plan.loss,
        messages_per_datagram=plan.messages,
        message_bytes=100,
    )
    return generate(base / "live.pcap", int(plan.rate * plan.seconds), traffic).path


def feed(source: Path, target: Path, began: float, seconds: float) -> None:
    """Write a capture at the rate at which it would have grown."""
    size = source.stat().st_size
    with source.open("rb") as read, target.open("wb", buffering=0) as written:
        done = 0
        while done < size:
            due = min(size, int(size * (time.time() - began) / seconds))
            if due > done:
                written.write(read.read(due - done))
                done = due
            time.sleep(_FEED_SECONDS)


def _cores(watch: ProcessWatch, work: Callable[[], None]) -> float:
    before, began = sum(watch.cpu_seconds().values()), time.monotonic()
    work()
    return (sum(watch.cpu_seconds().values()) - before) / (time.monotonic() - began)


def _behind(folder: Path, began: float) -> list[float]:
    """Return, for each measured window, the seconds from its end to its findings."""
    found = []
    for file in sorted(folder.glob("*.parquet")):
        last = max(end.timestamp() for end in pq.read_table(file)["to"].to_pylist())
        if last > began:
            found.append(round(file.stat().st_mtime - last, 2))
    return found


def monitor_table(found: Mapping[str, Any]) -> Table:
    """Return a table with one line per figure."""
    table = empty_table(("monitor",), ("",))
    table.add_row("datagrams/s", rate_text(found["rate"]))
    table.add_row("messages in each", str(found["messages_per_datagram"]))
    table.add_row("windows reported", str(found["windows"]))
    table.add_row("s from a window's end to its findings, at most", f"{max(found['seconds_behind']):.1f}")
    table.add_row("cores: fed", f"{found['cores_fed']:.2f}")
    table.add_row("cores: idle", f"{found['cores_idle']:.3f}")
    table.add_row("MiB at most: together", f"{found['together_memory_bytes'] / (1 << 20):,.0f}")
    return table


@click.command(epilog="Example: python -m tests.bench.measure_monitor --rate 20000 --messages 10")
@click.option(
    "--rate",
    type=click.IntRange(1, 10_000_000),
    default=200_000,
    show_default=True,
    help="Datagrams captured a second.",
)
@click.option(
    "--messages",
    type=click.IntRange(1, 10),
    default=1,
    show_default=True,
    help="Messages of 100 bytes in each.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=5),
    default=30.0,
    show_default=True,
    help="How long they are captured.",
)
@JSON
def command(rate: int, messages: int, seconds: float, as_json: bool) -> None:
    """Measure the delay of `umstack monitor` on a growing capture, and its CPU use under load and idle."""
    with progress_shown("monitor") as progress:
        found = measure(MonitorPlan(rate, messages, seconds), progress)
    if as_json:
        click.echo(json.dumps({"environment": describe("", is_pinned=False), "results": [found]}))
    else:
        print_table(monitor_table(found))


if __name__ == "__main__":
    command()
