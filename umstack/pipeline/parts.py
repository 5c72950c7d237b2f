"""The facts of a session and day as Parquet files, one per batch of the stream, and their compaction.

A file is named by the batches that it covers. A repeated batch replaces its file, unless that was compacted. Compaction
makes a folder with one file that covers several batches, and exchanges it with the folder of theirs. So all readers see
each row once at any time, and a process killed at any time neither loses facts nor counts them twice.

A file system that cannot exchange folders gets the new file before it loses the old ones. A file whose batches another
one covers is ignored, and removed later; programs that read the files themselves see its rows twice until then.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from umstack.errors import naming_path
from umstack.facts.facts import Facts
from umstack.facts.packed import PACKED, packed, unpacked
from umstack.pipeline.layout import BRONZE, FACTS, Layout, beside, day_of, half_written, remove_half_written
from umstack.recorder.disk import exchange, sync_path

PARTS_MAX = 16
"""Files of a session and day from which on they are compacted."""
_PART = re.compile(r"part-(\d{12})-(\d{12})\.parquet")


def write_parquet(file: Path, table: pa.Table, *, durable: bool = False) -> None:
    """Write a file atomically. With `durable` it survives a crash of the machine once this returns."""
    written = half_written(file)
    try:
        with naming_path(f"writing {file}"):
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, written)
            if durable:
                sync_path(written)
            written.replace(file)
            if durable:
                sync_path(file.parent)
    except BaseException:
        with suppress(OSError):
            written.unlink(missing_ok=True)
        raise


def replace_rows(file: Path, table: pa.Table) -> None:
    """Write a file atomically, unless it has these rows already: files of days that did not change stay."""
    with suppress(FileNotFoundError, pa.ArrowInvalid):
        if _read(file).equals(table):
            return
    write_parquet(file, table)


def add_batch(layout: Layout, session: str, batch: int, rows: pa.Table) -> set[date]:
    """Write the packed facts of a batch, one file per day; return the days."""
    days = set()
    for window_ns in pc.unique(rows["window_ns"]).to_pylist():
        day = day_of(window_ns)
        folder = layout.partition(BRONZE, FACTS, day, session)
        add_part(folder, batch, rows.filter(pc.equal(rows["window_ns"], window_ns)).cast(PACKED))
        days.add(day)
    return days


def add_part(folder: Path, batch: int, rows: pa.Table) -> None:
    """Write the rows of a batch, or replace its file. A compacted file that covers it has them already."""
    files = _parts(folder)[0] if folder.exists() else {}
    if not any(first <= batch <= last and first < last for first, last in files):
        write_parquet(folder / _name(batch, batch), rows, durable=True)


def merged_parts(folder: Path, merge: Callable[[pa.Table], pa.Table], least: int = PARTS_MAX) -> pa.Table:
    """Return the merged rows of all files; they become one file if there are `least` or more."""
    files, covered = _parts(folder)
    whole = merge(pa.concat_tables(_read(file) for file in files.values()))
    if len(files) >= least:
        _replace(folder, files, whole)
    _remove(covered)
    return whole


def facts_of_day(layout: Layout, session: str, day: date, *, compacts: bool) -> Facts:
    """Return the facts of a session and day. With `compacts`, many files become one."""
    folder = layout.partition(BRONZE, FACTS, day, session)
    files, covered = _parts(folder)
    found = unpacked(_read(file) for file in files.values())
    # The facts of a day have one window, its start; notes without a time have day 0.
    [(window_ns, facts)] = found.items()
    if compacts and len(files) >= PARTS_MAX:
        _replace(folder, files, packed(facts, window_ns))
    if compacts:
        _remove(covered)
    return facts


def compact(folder: Path) -> int:
    """Replace the files of a folder by one; return how many there were."""
    remove_half_written(folder)
    _discard(beside(folder))
    files, covered = _parts(folder)
    _remove(covered)
    if len(files) > 1:
        rows = pa.concat_tables(_read(file) for file in files.values())
        _replace(folder, files, _merged_facts(rows) if rows.schema.names == PACKED.names else rows)
    return len(files)


def _merged_facts(rows: pa.Table) -> pa.Table:
    [(window_ns, facts)] = unpacked([rows]).items()
    return packed(facts, window_ns)


def _replace(folder: Path, files: dict[tuple[int, int], Path], rows: pa.Table) -> None:
    """Replace the files of batches by one, at once for everyone who reads the folder."""
    name = _name(min(first for first, _ in files), max(last for _, last in files))
    prepared = beside(folder)
    _discard(prepared)
    write_parquet(prepared / name, rows, durable=True)
    for other in folder.glob("[!.]*"):
        if not _PART.fullmatch(other.name):
            shutil.copy2(other, prepared)
            sync_path(prepared / other.name)
    if not exchange(prepared, folder):
        (prepared / name).replace(folder / name)
        sync_path(folder)
        _remove(file for file in files.values() if file.name != name)
    _discard(prepared)


def _discard(prepared: Path) -> None:
    """Remove the folder of a compaction, perhaps of one that was killed."""
    if prepared.exists():
        shutil.rmtree(prepared)


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _name(first: int, last: int) -> str:
    return f"part-{first:012d}-{last:012d}.parquet"


def _read(file: Path) -> pa.Table:
    return pq.read_table(file, partitioning=None)


def _parts(folder: Path) -> tuple[dict[tuple[int, int], Path], list[Path]]:
    """Return the files by the batches they cover, and files that another one covers."""
    named = {
        (int(matched[1]), int(matched[2])): file
        for file in folder.iterdir()
        if (matched := _PART.fullmatch(file.name))
    }
    files: dict[tuple[int, int], Path] = {}
    covered: list[Path] = []
    last_covered = -1
    for first, last in sorted(named, key=lambda span: (span[0], -span[1])):
        if last <= last_covered:
            covered.append(named[first, last])
        else:
            files[first, last] = named[first, last]
            last_covered = last
    return files, covered
