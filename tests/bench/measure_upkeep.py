"""Measure the cost of starting and watching a process, next to the interpreter alone. Needs no root."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import umstack
from umstack.bench.throughput import Progress
from umstack.cli.bench_options import JSON, describe, print_table, progress_shown
from umstack.cli.bench_tables import empty_table
from umstack.errors import LinkError

Figure = dict[str, Any]

TOPICS = 1000
_SCRAPES = 20
_PATIENCE_SECONDS = 60.0
_FIRST_MESSAGE = """
import umstack
with umstack.Context("lo") as context:
    receiver = context.receiver("first")
    source = context.source("first", flow_control="min")
    source.wait_connected(timeout=10)
    source.send(b"message", flush=True)
    next(iter(receiver))
    print("received", flush=True)
"""
_STARTS: dict[str, tuple[str, ...]] = {
    "interpreter alone": ("-c", "print()"),
    "import umstack": ("-c", "import umstack; print()"),
    "umstack --help": ("-m", "umstack", "--help"),
    "first message": ("-c", _FIRST_MESSAGE),
}


@dataclass(frozen=True, slots=True)
class UpkeepPlan:
    """Number of rounds, and how long `umstack top` is watched."""

    rounds: int = 15
    seconds: float = 10.0
    """Seconds for which `umstack top` is watched."""


def measure(plan: UpkeepPlan, progress: Progress) -> list[Figure]:
    """Measure starts in turns, then scrapes of a process with a thousand topics, and `umstack top` beside it."""
    starts: dict[str, list[float]] = {what: [] for what in _STARTS}
    progress("starts")
    for arguments in _STARTS.values():  # first run: Python writes its compiled modules
        _until_first_line(arguments)
    for _ in range(plan.rounds):
        for what, arguments in _STARTS.items():
            starts[what].append(_until_first_line(arguments) * 1e3)
    found = [_figure(what, "ms", rounds) for what, rounds in starts.items()]
    first: list[float] = []
    later: list[float] = []
    for _ in range(max(1, plan.rounds // 5)):
        progress("scrapes")
        one, more = _scrapes()
        first.append(one)
        later += more
    found += [
        _figure(f"first scrape of {TOPICS} topics", "ms", first),
        _figure(f"later scrapes of {TOPICS} topics", "ms", later),
    ]
    progress("a stream that is scraped")
    found.append(
        _figure("a stream scraped once a second, to one that is not", "x", _scraped_ratios(plan.rounds))
    )
    progress("umstack top")
    return [*found, _figure("umstack top", "% of a processor", [_top_percent(plan.seconds)])]


def _figure(what: str, unit: str, rounds: Sequence[float]) -> Figure:
    return {
        "what": what,
        "unit": unit,
        "median": statistics.median(rounds),
        "least": min(rounds),
        "rounds": rounds,
    }


def _until_first_line(arguments: Sequence[str]) -> float:
    """Return the seconds from starting Python to its first line of output."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        taken = time.perf_counter() - started
        child.stdout.read()
    if not line or child.returncode:
        raise LinkError(f"python {arguments[0]} ended with {child.returncode}", hint="run it by hand")
    return taken


_SERVING = f"""
import socket, sys, umstack
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{{free.getsockname()[1]}}"
with umstack.Context("lo", metrics=address) as context:
    sources = [context.source(f"topic {{number}}") for number in range({TOPICS})]
    print(f"http://{{address}}/metrics", flush=True)
    sys.stdin.read()
"""


def _scrapes() -> tuple[float, list[float]]:
    """Return the milliseconds of the first scrape, and of later scrapes, of an idle process."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        url = child.stdout.readline().strip()
        taken = []
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(1 + _SCRAPES):
            started = time.perf_counter()
            page = opener.open(url, timeout=_PATIENCE_SECONDS).read()
            taken.append((time.perf_counter() - started) * 1e3)
            if page.count(b"umstack_source_messages_sent_total{") != TOPICS:
                raise LinkError("a scrape is missing topics", hint="report it")
        child.stdin.close()
    return taken[0], taken[1:]


_SCRAPER = """
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for line in sys.stdin:
    opener.open(sys.argv[1], timeout=60).read()
    print("scraped", flush=True)
"""
_WINDOW_SECONDS = 1.0
_STREAM_GROUP = "224.10.10.200"


def _scraped_ratios(rounds: int) -> list[float]:
    """Return loopback stream rates during a second with a scrape of a thousand topics, relative to one without."""
    with ExitStack() as stack:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        context = stack.enter_context(umstack.Context("lo", metrics=address, statistics=False))
        for number in range(TOPICS - 1):
            context.source(f"topic {number}")
        # A separate session: the session of the other sources has no flow control.
        receiver = context.receiver("stream")
        source = context.source("stream", flow_control="min", transport_lbtrm_multicast_address=_STREAM_GROUP)
        source.wait_connected(timeout=_PATIENCE_SECONDS)
        command = [sys.executable, "-c", _SCRAPER, f"http://{address}/metrics"]
        scraper = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert scraper.stdin is not None
        assert scraper.stdout is not None
        batch = [b"x" * 64] * 1000
        ratios = []
        for number in range(rounds):
            rates = {}
            for is_scraped in (True, False) if number % 2 else (False, True):
                count, started = 0, time.perf_counter()
                if is_scraped:
                    scraper.stdin.write("scrape\n")
                    scraper.stdin.flush()
                while time.perf_counter() - started < _WINDOW_SECONDS:
                    source.send_many(batch, flush=True)
                    while count_now := len(receiver.poll(4096, 0)):
                        count += count_now
                rates[is_scraped] = count / (time.perf_counter() - started)
                if is_scraped:
                    scraper.stdout.readline()
            ratios.append(rates[True] / rates[False])
        scraper.stdin.close()
    return ratios


def _top_percent(seconds: float) -> float:
    """Return the percentage of one CPU that `umstack top` uses, after its start, while a context sends and
    receives."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="umstack-bench-"))
        Path(folder).chmod(0o700)
        context = stack.enter_context(_context(folder))
        receiver, source = context.receiver("watched"), context.source("watched", flow_control="min")
        source.wait_connected(timeout=_PATIENCE_SECONDS)
        pid, terminal = pty.fork()
        if pid == 0:  # a separate process on its own terminal
            os.environ.update({"UMSTACK_STAT_DIR": folder, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"})
            os.execv(sys.executable, [sys.executable, "-m", "umstack", "top"])
        os.set_blocking(terminal, False)
        try:
            _keep_busy(source, receiver, terminal, 3.0)
            before = _cpu_seconds(pid)
            started = time.monotonic()
            _keep_busy(source, receiver, terminal, seconds)
            spent, passed = _cpu_seconds(pid) - before, time.monotonic() - started
        finally:
            with contextlib.suppress(OSError):
                os.write(terminal, b"q")
            os.waitpid(pid, 0)
            os.close(terminal)
    return 100 * spent / passed


def _context(folder: str) -> umstack.Context:
    """Open a context with its counter file in the folder."""
    previous = os.environ.get("UMSTACK_STAT_DIR")
    os.environ["UMSTACK_STAT_DIR"] = folder
    try:
        return umstack.Context("lo", statistics=True)
    finally:
        if previous is None:
            del os.environ["UMSTACK_STAT_DIR"]
        else:
            os.environ["UMSTACK_STAT_DIR"] = previous


def _keep_busy(source: umstack.Source, receiver: umstack.Receiver, terminal: int, seconds: float) -> None:
    """Generate traffic and read the terminal."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        source.send_many([b"message"] * 100, flush=True)
        receiver.poll(100, 0.05)
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 1 << 16)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def upkeep_table(figures: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the figures."""
    table = empty_table(["what"], ["median", "least", "rounds"])
    for one in figures:
        shown = [
            f"{one[key]:,.{3 if one['unit'] == 'x' else 1}f} {one['unit']}" for key in ("median", "least")
        ]
        table.add_row(one["what"], *shown, str(len(one["rounds"])))
    return table


@click.command(epilog="Example: python -m tests.bench.measure_upkeep --rounds 15")
@click.option("--rounds", default=15, show_default=True, help="Rounds; the figures are medians.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.5),
    default=10.0,
    show_default=True,
    help="How long `umstack top` is watched.",
)
@JSON
def command(rounds: int, seconds: float, as_json: bool) -> None:
    """Measure the cost of starting and watching a process: import, first message, scrapes, `umstack top`."""
    with progress_shown("upkeep") as progress:
        figures = measure(UpkeepPlan(rounds, seconds), progress)
    if as_json:
        click.echo(
            json.dumps({"environment": describe("", is_pinned=False, rounds=rounds), "figures": figures})
        )
    else:
        print_table(upkeep_table(figures))


if __name__ == "__main__":
    command()
