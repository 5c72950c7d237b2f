"""Checks and lists the segment files of a repository without changing them, also while a Store writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umstack._core import ffi, lib
from umstack.store.repository.client_state import FILE_NAME, ClientState
from umstack.store.repository.files import DiskFiles, File, Files
from umstack.store.repository.model import Durability
from umstack.store.repository.scanning import part_of, scan, torn_at
from umstack.store.repository.segments import (
    HEADER_BYTES,
    RUN_BYTES,
    Footer,
    Segment,
    adopt_footer,
    read_footer,
    read_header,
    segment_names,
)

_ROWS = 4096
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The state of one segment file."""

    name: str
    is_sealed: bool
    byte_count: int
    record_count: int
    first_commit: int
    last_commit: int
    torn_bytes: int
    """Bytes of an interrupted commit at the end of an open segment; the next start removes them."""
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """One record of the log."""

    segment: str
    offset: int
    """Of the record in the file."""
    commit: int
    """Lower 32 bits of the commit's number."""
    source: int
    sqn: int
    sqn_count: int
    """Sqns that it covers: more than 1 only for a marker of lost messages."""
    received_ns: int
    is_lost: bool
    message: bytes


def verify(directory: Path) -> list[SegmentReport]:
    """Check every byte of every segment: headers, footers, checksums of records, and that footers match the records.

    Args:
        directory: Directory of the repository.

    Returns:
        A report per segment, in the order of the log.

    Raises:
        RepositoryDamaged: The client state is missing.
    """
    files = DiskFiles(directory)
    store_id = _store_id(directory)
    runs = ffi.gc(lib.um_store_runs_create(), lib.um_store_runs_free)
    names = segment_names(files)
    reports = []
    for number, (position, name) in enumerate(names):
        file = files.open(name)
        try:
            segment = read_header(file, number, position, store_id)
            if segment is None:
                size = file.size()
                problem = "the header is damaged, or of another Store"
                reports.append(SegmentReport(name, False, size, 0, 0, 0, 0, (problem,)))
            else:
                lib.um_store_runs_clear(runs)
                reports.append(
                    _verify_segment(file, segment, store_id, runs, is_newest=number == len(names) - 1)
                )
        finally:
            file.close()
    return reports


def _store_id(directory: Path) -> int:
    state = ClientState(directory / FILE_NAME, is_read_only=True)
    try:
        return state.store_id
    finally:
        state.close()


def _verify_segment(
    file: File, segment: Segment, store_id: int, runs: Any, *, is_newest: bool
) -> SegmentReport:
    size = file.size()
    problems = []
    footer = read_footer(file, segment)
    end = size if footer is None else footer.records_end
    found = scan(file, segment, end, lib.um_store_salt(store_id), runs)
    torn_bytes = 0
    areas = found.areas
    if footer is not None:
        adopt_footer(segment, footer, size)
        problems += _footer_problems(file, segment, footer, runs)
    else:
        torn = torn_at(found, end) if segment.durability is Durability.DISK and is_newest else None
        if torn is not None:
            torn_bytes = torn.end - torn.begin
            areas = [area for area in areas if area.begin < torn.begin]
        areas = [area for area in areas if not (area.is_zero and area.end >= end)]
        if not is_newest:
            problems.append("the footer is damaged")
    problems += [f"no valid record from offset {area.begin} to {area.end}" for area in areas]
    return SegmentReport(
        segment.name,
        footer is not None,
        size,
        found.record_count,
        segment.first_commit,
        found.last_commit,
        torn_bytes,
        tuple(problems),
    )


def _footer_problems(file: File, segment: Segment, footer: Footer, runs: Any) -> list[str]:
    stored = file.read(segment.run_offset(0), footer.run_count * RUN_BYTES)
    if lib.um_crc32c(0, ffi.from_buffer(stored), len(stored)) != footer.runs_checksum:
        return ["the runs of the footer are damaged"]
    count = lib.um_store_runs_count(runs)
    counted = ffi.new("um_store_run[]", max(count, 1))
    lib.um_store_runs_sorted(runs, counted)
    if bytes(ffi.buffer(counted, count * RUN_BYTES)) != stored:
        return ["the footer does not match the records"]
    return []


def dump(directory: Path) -> Iterator[DumpedRecord]:
    """Return every valid record, in the order of the log.

    Args:
        directory: Directory of the repository.

    Raises:
        RepositoryDamaged: The client state is missing.
    """
    files = DiskFiles(directory)
    store_id = _store_id(directory)
    for number, (position, name) in enumerate(segment_names(files)):
        yield from _dump_segment(files, number, position, name, store_id)


def _dump_segment(
    files: Files, number: int, position: int, name: str, store_id: int
) -> Iterator[DumpedRecord]:
    salt = lib.um_store_salt(store_id)
    rows = ffi.new("um_store_row[]", _ROWS)
    stop, read_bytes, is_zero = ffi.new("enum um_store_scan_stop *"), ffi.new("uint64_t *"), ffi.new("bool *")
    segment = Segment(number, position, 0, Durability.DISK)
    file = files.open(name)
    try:
        offset, end = HEADER_BYTES, file.size()
        while offset < end:
            data = file.read(offset, min(_CHUNK_BYTES, end - offset))
            if not data:
                return
            part = part_of(data, offset, segment, salt, is_last=offset + len(data) >= end)
            count = lib.um_store_scan_all(part, rows, _ROWS, stop, read_bytes)
            for row in rows[0:count]:
                is_lost = bool(row.flags & lib.UM_STORE_RECORD_LOST)
                yield DumpedRecord(
                    name,
                    offset + row.offset - lib.UM_STORE_RECORD_HEADER_BYTES,
                    row.commit,
                    row.source,
                    row.sqn,
                    row.sqn_count,
                    row.received_ns,
                    is_lost,
                    b"" if is_lost else data[row.offset : row.offset + row.length],
                )
            offset += read_bytes[0]
            if stop[0] == lib.UM_STORE_SCAN_BAD:
                found = lib.um_store_find_record(part, read_bytes[0], is_zero)
                offset += found - read_bytes[0]
    finally:
        file.close()
