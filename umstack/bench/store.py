"""The repository of a Store against a loop of 1 MiB write and fdatasync in the same directory."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from umstack._core import ffi, lib
from umstack.bench.result import Result, merged, result
from umstack.bench.throughput import Progress
from umstack.store.repository import Durability, Repository, RepositorySettings

BASELINE = "write-loop"
_LOOP_BYTES = 1 << 20
_LOOP_FILE_BYTES = 128 << 20
_BATCH_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class StorePlan:
    """The measurements of a repository."""

    directory: Path
    sizes: Sequence[int] = (64, 1024, 1400)
    durability: Durability = Durability.DISK
    seconds: float = 2.0
    rounds: int = 3


def measure(plan: StorePlan, progress: Progress) -> list[Result]:
    """Measure the loop and each message size once a round, in turns."""
    contenders: dict[str, Callable[[], Result]] = {BASELINE: partial(_measure_loop, plan)}
    contenders |= {f"{size} B": partial(_measure_repository, plan, size) for size in plan.sizes}
    found: dict[str, list[Result]] = {name: [] for name in contenders}
    for number in range(1, plan.rounds + 1):
        for name, measure_once in contenders.items():
            progress(f"round {number} of {plan.rounds}: {name}")
            found[name].append(measure_once())
    results = []
    for name, rounds in found.items():
        one = merged(rounds, _disk_rate)
        if name != BASELINE:
            pairs = zip(rounds, found[BASELINE], strict=True)
            ratios = sorted(_disk_rate(mine) / _disk_rate(loop) for mine, loop in pairs)
            one["ratios"] = {BASELINE: ratios[len(ratios) // 2]}
        results.append(one)
    return results


def _disk_rate(found: Result) -> float:
    """Return the bytes per second that reached the disk."""
    return float(found["detail"]["disk_bytes_per_second"])


def _measure_loop(plan: StorePlan) -> Result:
    """Write and sync 1 MiB at a time into an allocated file, from its start again when it is full."""
    data = os.urandom(_LOOP_BYTES)
    with tempfile.NamedTemporaryFile(dir=plan.directory) as file:
        os.posix_fallocate(file.fileno(), 0, _LOOP_FILE_BYTES)
        os.fsync(file.fileno())
        written = 0
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < plan.seconds:
            os.pwrite(file.fileno(), data, written % _LOOP_FILE_BYTES)
            if plan.durability is Durability.DISK:
                os.fdatasync(file.fileno())
            written += _LOOP_BYTES
    return result(
        what=BASELINE,
        size=_LOOP_BYTES,
        messages_per_second=written / _LOOP_BYTES / elapsed,
        detail={"disk_bytes_per_second": written / elapsed, "commits": written // _LOOP_BYTES},
    )


def _measure_repository(plan: StorePlan, size: int) -> Result:
    """Append on a thread as fast as the staging ring takes messages, and commit."""
    settings = RepositorySettings(plan.durability, source_bytes=_LOOP_FILE_BYTES)
    with (
        tempfile.TemporaryDirectory(dir=plan.directory) as directory,
        Repository(directory, settings) as repository,
    ):
        source = repository.register_source("bench", 1).number
        is_over, has_space = threading.Event(), threading.Event()
        appender = threading.Thread(target=_append, args=(repository, source, size, is_over, has_space))
        records = disk_bytes = commits = 0
        started = time.monotonic()
        appender.start()
        try:
            while (elapsed := time.monotonic() - started) < plan.seconds:
                commit = repository.commit()
                has_space.set()
                if commit is None:
                    time.sleep(0)
                    continue
                records, disk_bytes, commits = (
                    records + commit.record_count,
                    disk_bytes + commit.byte_count,
                    commits + 1,
                )
                if repository.needs_reclaim:
                    repository.reclaim()
        finally:
            is_over.set()
            has_space.set()
            appender.join()
        held = repository.ranges(source)
        lost = 0 if len(held) == 1 and held[0][1] == records - 1 else records
    return result(
        what="umstack",
        size=size,
        messages_per_second=records / elapsed,
        lost=lost,
        detail={
            "disk_bytes_per_second": disk_bytes / elapsed,
            "commits": commits,
            "durability": plan.durability,
        },
    )


def _append(
    repository: Repository, source: int, size: int, is_over: threading.Event, has_space: threading.Event
) -> None:
    """Fill the staging ring through the function that a receiving thread in C calls."""
    count = max(_BATCH_BYTES // size, 1)
    data, sizes = os.urandom(count * size), ffi.new("uint32_t[]", [size] * count)
    sqn = 0
    while not is_over.is_set():
        now_ns = time.time_ns()
        appended = lib.um_staging_append_many(
            repository.staging, source, sqn, now_ns, ffi.from_buffer(data), sizes, count
        )
        sqn += appended
        if appended < count:
            has_space.clear()
            has_space.wait(1.0)
