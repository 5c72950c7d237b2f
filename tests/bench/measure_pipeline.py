"""Measure `umstack pipeline` and the work of Spark on generated captures: a line of JSON per figure.

`rate` feeds a capture as fast as a live one grows. `days` adds days and queries their rollups. `cores` compares one
worker with two. `shuffle` computes the bytes that workers exchange for a terabyte from those for a split.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import polars as pl

from tests.bench.measure_monitor import MonitorPlan, feed, generated
from tests.unit.pipeline_tables import made_layout, packed_facts, take
from umstack.bench.children import BenchError
from umstack.bench.process_watch import ProcessWatch
from umstack.capture.generate import Traffic, generate
from umstack.capture.reading.split import split
from umstack.facts.facts import facts_of
from umstack.facts.packed import packed
from umstack.spark.umpcap_parts import TARGET_BYTES

_NS = 1_000_000_000
_DAY_SECONDS = 86_400
_FIRST_DAY_SECONDS = 1_767_225_600
_START_SECONDS, _END_SECONDS, _LOOK_SECONDS = 180.0, 120.0, 0.1
_ENDING_SECONDS = 0.5
"""The last packets of a generated capture may be earlier than its end by this much."""
_TERABYTE = 10**12

_WORST = """
    SELECT receiver, sum(lost) AS lost, sum(unrepaired) AS unrepaired, max(request_p99) / 1e6 AS worst_p99_ms
    FROM {table} GROUP BY receiver ORDER BY lost DESC
"""


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "umstack", *map(str, arguments)]


def _run(*arguments: object) -> tuple[float, float]:
    """Run a command of umstack; return its seconds, and the processor time of all its processes."""
    began = time.monotonic()
    process = subprocess.Popen(_command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    watch = ProcessWatch(process.pid)
    with process, watch.watched():
        _, complained = process.communicate()
    if process.returncode != 0:
        raise BenchError(complained.decode(errors="replace")[-500:])
    return time.monotonic() - began, sum(watch.cpu_seconds().values())


def _say(**found: Any) -> None:
    click.echo(json.dumps({**found, "load": round(os.getloadavg()[0], 1)}))


class _Visible:
    """Records how old the newest captured packet is that the tables have, each time they change."""

    def __init__(self, tables: Path) -> None:
        self._files = tables / "silver" / "sessions"
        self._ended = threading.Event()
        self._last_ns: dict[Path, tuple[int, int]] = {}
        self.fresh: list[float] = []
        """Seconds from the newest packet of a session to the file that has it."""
        self.stale: list[float] = []
        """The same for the packet before, which readers of the tables saw until then."""

    def watch(self, began: float) -> None:
        """Look until the end, at the sessions whose packets are newer than the start."""
        while not self._ended.wait(_LOOK_SECONDS):
            for file in self._files.rglob("rows.parquet"):
                changed_ns = file.stat().st_mtime_ns
                before_ns, last_ns = self._last_ns.get(file, (0, int(began * _NS)))
                if changed_ns == before_ns:
                    continue
                newest_ns = pl.read_parquet(file, columns=["last_ns"])["last_ns"].max()
                if isinstance(newest_ns, int) and newest_ns > last_ns:
                    self.fresh.append((changed_ns - newest_ns) / _NS)
                    self.stale.append((changed_ns - last_ns) / _NS)
                    self._last_ns[file] = changed_ns, newest_ns

    def newest_ns(self) -> int:
        """Return the time of the newest packet that the tables have; 0 before the first."""
        return max((last_ns for _, last_ns in list(self._last_ns.values())), default=0)

    def end(self) -> None:
        """End `watch`."""
        self._ended.set()


@click.group()
def command() -> None:
    """Measure the pipeline; each figure is one line of JSON with the load of the machine."""


@command.command()
@click.option(
    "--rate", "per_second", default=200_000, show_default=True, help="Datagrams captured per second."
)
@click.option("--seconds", default=40.0, show_default=True, help="Duration of the capture.")
@click.option("--interval", default=1.0, show_default=True, help="Seconds between the starts of batches.")
def rate(per_second: int, seconds: float, interval: float) -> None:
    """Measure how far the tables are behind a capture that grows, and the cores that this takes."""
    with tempfile.TemporaryDirectory(prefix="umstack-bench-") as folder:
        captures, tables = Path(folder) / "captures", Path(folder) / "tables"
        captures.mkdir()
        generate(captures / "warm.pcap", 10_000, Traffic(seed=1, start_ns=(int(time.time()) - 60) * _NS))
        began = time.time() + seconds
        source = generated(Path(folder), MonitorPlan(per_second, seconds=seconds), began)
        arguments = _command("pipeline", captures, "--tables", tables, "--interval", interval)
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        watch, seen = ProcessWatch(process.pid), _Visible(tables)
        looking = threading.Thread(target=seen.watch, args=(began,))
        try:
            with watch.watched():
                until = time.monotonic() + _START_SECONDS
                while not any((tables / "silver" / "sessions").glob("date=*")):
                    if process.poll() is not None or time.monotonic() > until:
                        raise BenchError("umstack pipeline made no tables")
                    time.sleep(_LOOK_SECONDS)
                time.sleep(max(0.0, began - time.time()))
                late_seconds = time.time() - began
                if late_seconds > 1:
                    raise BenchError(f"Spark started {late_seconds:.0f} s late: use more --seconds")
                looking.start()
                before = sum(watch.cpu_seconds().values())
                feed(source, captures / "live.pcap", began, seconds)
                cores = (sum(watch.cpu_seconds().values()) - before) / seconds
                until = time.monotonic() + _END_SECONDS
                while (
                    seen.newest_ns() < (began + seconds - _ENDING_SECONDS) * _NS and time.monotonic() < until
                ):
                    time.sleep(_LOOK_SECONDS)
        finally:
            seen.end()
            process.terminate()
            process.wait(_START_SECONDS)
    behind = sorted(seen.fresh)
    if not behind:
        raise BenchError("the tables have no packet of the capture")
    _say(
        figure="rate",
        datagrams_per_second=per_second,
        seconds=seconds,
        batches=len(behind),
        behind_median=round(behind[len(behind) // 2], 2),
        behind_most=round(behind[-1], 2),
        behind_before_a_batch_most=round(max(seen.stale), 2),
        cores=round(cores, 2),
    )


def _day(folder: Path, number: int, packets: int, step: int) -> None:
    """Write the capture of one day, `step` days after the one before. Sessions continue over days without a gap."""
    traffic = Traffic(seed=number + 1, sessions=2, snap_bytes=96, loss=0.01)
    at_noon = (_FIRST_DAY_SECONDS + step * number * _DAY_SECONDS + _DAY_SECONDS // 2) * _NS
    made = generate(folder / f"day-{number:03d}.part", packets, replace(traffic, start_ns=at_noon))
    made.path.rename(folder / f"day-{number:03d}.pcap")


@command.command()
@click.option("--days", default=30, show_default=True, help="Days of captures.")
@click.option("--packets", default=20_000, show_default=True, help="Packets per day.")
@click.option("--consecutive", is_flag=True, help="No empty day between two: the sessions last all days.")
def days(days: int, packets: int, consecutive: bool) -> None:
    """Measure the work for each day that is added, and the query for the receiver that lost most over all days.

    The work is that of the pipeline's tasks. Spark's own, which does not depend on the days before, is not part of it.
    """
    import duckdb

    work, took = list[float](), {}
    with tempfile.TemporaryDirectory(prefix="umstack-bench-") as folder:
        layout = made_layout(Path(folder) / "tables")
        for number in range(days):
            _day(Path(folder), number, packets, step=1 if consecutive else 2)
            began = time.process_time()
            take(layout, number, packed_facts(facts_of([f"{folder}/day-{number:03d}.pcap"])))
            work.append(time.process_time() - began)
        files = f"{layout.root}/gold/receiver_days/**/*.parquet"
        began = time.monotonic()
        rows = duckdb.sql(
            _WORST.format(table=f"read_parquet('{files}', hive_partitioning = true)")
        ).fetchall()
        took["duckdb"] = time.monotonic() - began
        began = time.monotonic()
        frame = pl.scan_parquet(files, hive_partitioning=True, missing_columns="insert")
        totals = frame.group_by("receiver").agg(
            pl.col("lost", "unrepaired").sum(), pl.col("request_p99").max()
        )
        found = totals.sort("lost", descending=True).collect()
        took["polars"] = time.monotonic() - began
        seen_days = frame.select(pl.col("date").n_unique()).collect().item()
    if seen_days != days or [row[1] for row in rows] != found["lost"].to_list():
        raise BenchError(f"{seen_days} of {days} days, or DuckDB and Polars differ")
    _say(
        figure="days",
        days=days,
        consecutive=consecutive,
        packets_per_day=packets,
        first_days_cpu_seconds=round(median(work[1:6]), 3),
        last_days_cpu_seconds=round(median(work[-5:]), 3),
        **{f"query_{name}_seconds": round(one, 2) for name, one in took.items()},
    )


@command.command()
@click.option("--packets", default=20_000_000, show_default=True, help="Packets of the capture.")
@click.option("--rounds", default=2, show_default=True, help="Rounds, in turns.")
@click.option("--sessions", default=2, show_default=True, help="Sessions that the packets are divided among.")
def cores(packets: int, rounds: int, sessions: int) -> None:
    """Measure a report by Spark with one worker and with two."""
    with tempfile.TemporaryDirectory(prefix="umstack-bench-") as folder:
        path = generate(Path(folder) / "big.pcap", packets, Traffic(sessions=sessions, snap_bytes=96)).path
        for number in range(rounds):
            took = {
                workers: _run("report", path, "--out", f"{folder}/out", "--master", f"local[{workers}]")
                for workers in (1, 2)
            }
            _say(
                figure="cores",
                packets=packets,
                sessions=sessions,
                round=number + 1,
                **{f"local{workers}_seconds": round(one[0], 1) for workers, one in took.items()},
                **{f"local{workers}_cpu_seconds": round(one[1], 1) for workers, one in took.items()},
                ratio=round(took[1][0] / took[2][0], 2),
            )


@command.command()
@click.option(
    "--packets", default=1_000_000, show_default=True, help="Packets of the capture; several splits."
)
@click.option("--loss", default=0.001, show_default=True, help="Share of datagrams that each receiver loses.")
def shuffle(packets: int, loss: float) -> None:
    """Compute the bytes of facts that workers send each other for a terabyte, from the facts of whole splits."""
    with tempfile.TemporaryDirectory(prefix="umstack-bench-") as folder:
        traffic = Traffic(sessions=2, message_bytes=1000, loss=loss)
        path = generate(Path(folder) / "switch.pcap", packets, traffic).path
        parts = split(str(path), TARGET_BYTES)[:-1]  # the last one is shorter
        facts = [facts_of([part]) for part in parts]
    if not parts:
        raise BenchError(f"the capture has no split of {TARGET_BYTES} bytes: use more --packets")
    sizes = [packed(one).nbytes for one in facts]
    per_split = sum(sizes) / len(sizes)
    splits = _TERABYTE / TARGET_BYTES
    _say(
        figure="shuffle",
        loss=loss,
        split_bytes=TARGET_BYTES,
        splits_measured=len(parts),
        packets_per_split=round(sum(one.packets for one in facts) / len(facts)),
        facts_bytes_per_split=round(per_split),
        share_of_the_capture=round(per_split / TARGET_BYTES, 5),
        terabyte_gigabytes=round(per_split * splits / 1e9, 2),
    )


if __name__ == "__main__":
    command()
