"""Measures the data pipeline on generated captures: packets decoded per second, and time and memory of a report."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from umstack.bench.children import BenchError
from umstack.bench.process_watch import ProcessWatch
from umstack.capture.generate import Traffic, generate
from umstack.capture.reading.decode import decode

Progress = Callable[[str], None]

_TSHARK_SHARE = 100
"""tshark reads one in this many packets of the capture, because the whole capture would take minutes."""


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Number of packets in the capture, and bytes kept of each."""

    packets: int
    snap_bytes: int = 96
    rounds: int = 3
    directory: Path | None = None
    """Directory of the capture; None: the directory for temporary files."""


@contextmanager
def _generated(plan: PipelinePlan, packets: int, progress: Progress) -> Iterator[Path]:
    """A capture of two sessions with four receivers, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="umstack-bench-", dir=plan.directory) as directory:
        path = Path(directory) / "switch.pcap"
        progress(f"generating {packets:,} packets")
        generate(path, packets, Traffic(seed=1, sessions=2, receivers=4, snap_bytes=plan.snap_bytes))
        yield path


def measure_decode(plan: PipelinePlan, progress: Progress) -> dict[str, Any]:
    """Measure packets per second: one thread into Arrow columns, and tshark (if installed) into ten fields."""
    with _generated(plan, plan.packets, progress) as path:
        rates: list[float] = []
        for number in range(1, plan.rounds + 1):
            progress(f"decoding, round {number} of {plan.rounds}")
            rates.append(_decode_rate(path, plan.packets))
    packets = max(1000, plan.packets // _TSHARK_SHARE)
    with _generated(plan, packets, progress) as path:
        progress(f"tshark over {packets:,} packets")
        by_tshark = _tshark_rate(path, packets)
    reached = float(median(rates))
    return {
        "what": "decode",
        "packets": plan.packets,
        "snap_bytes": plan.snap_bytes,
        "packets_per_second": reached,
        "rounds": rates,
        "tshark_packets_per_second": by_tshark,
        "ratios": None if by_tshark is None else {"tshark": reached / by_tshark},
    }


def _decode_rate(path: Path, packets: int) -> float:
    began = time.perf_counter()
    found = sum(batch.num_rows for batch in decode(path))
    if found != packets:
        raise BenchError(f"{found} of {packets} packets were decoded")
    return float(found / (time.perf_counter() - began))


_TSHARK_FIELDS = (
    *("frame.time_epoch", "ip.src", "udp.srcport", "ip.dst", "udp.dstport"),
    *("lbtrm.hdr.type", "lbtrm.data.sqn", "lbtrm.data.trail_sqn", "lbmc.tidx", "lbmc.sqn"),
)


def _tshark_rate(path: Path, packets: int) -> float | None:
    """Return tshark's packets per second without its start-up time, which is measured by a run over one packet."""
    tshark = shutil.which("tshark")
    if tshark is None:
        return None
    fields = [argument for name in _TSHARK_FIELDS for argument in ("-e", name)]
    command = [tshark, "-r", str(path), "-n", "-T", "fields", *fields]
    took = _seconds(command)
    return packets / max(took - _seconds([*command, "-c", "1"]), 1e-3)


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise BenchError(f"{command[0]}: {done.stderr.strip()}")
    return time.perf_counter() - began


def measure_report(plan: PipelinePlan, progress: Progress) -> dict[str, Any]:
    """Run `umstack report` on the capture and measure time, processor time and each process's peak memory."""
    with _generated(plan, plan.packets, progress) as path:
        progress("umstack report")
        command = [
            sys.executable,
            "-m",
            "umstack",
            "report",
            str(path),
            "--out",
            str(path.parent / "out"),
            "--json",
        ]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        watch = ProcessWatch(process.pid)
        with process, watch.watched():
            said, complained = process.communicate()
        took = time.perf_counter() - began
    if process.returncode != 0:
        raise BenchError(f"umstack report: {complained.strip()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(said)["packets"]
    if found != plan.packets:
        raise BenchError(f"the report has {found} of {plan.packets} packets")
    return {
        "what": "report",
        "packets": plan.packets,
        "snap_bytes": plan.snap_bytes,
        "seconds": took,
        "packets_per_second": plan.packets / took,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_memory_bytes": watch.peaks(),
    }
