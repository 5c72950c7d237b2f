"""Reading a segment from its start, record by record: after a crash, and to verify it.

A commit is written only after the one before it was synced. So a bad area that belongs to an earlier commit than some
valid record behind it is damage of acknowledged bytes, and everything around it is kept. Any other bad area begins the
commit that the crash interrupted: sectors of it may be on the disk in any order, none was acknowledged, and the segment
ends there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from umstack._core import ffi, lib
from umstack.store.repository.errors import RepositoryDamaged
from umstack.store.repository.files import File
from umstack.store.repository.segments import HEADER_BYTES, Segment

CHUNK_BYTES = 4 << 20
_ROWS = 32768
_LONGEST_RECORD_BYTES: int = lib.UM_STORE_RECORD_HEADER_BYTES + lib.UM_STORE_MESSAGE_BYTES_MAX
_COMMITS = 1 << 32


@dataclass(frozen=True, slots=True)
class BadArea:
    """Bytes without a valid record."""

    begin: int
    end: int
    is_zero: bool
    """True: never written."""
    commit: int
    """The first commit that the area can belong to."""
    run_mark: int
    """Runs before the area."""


@dataclass(slots=True)
class Scanned:
    """The result of a scan."""

    areas: list[BadArea]
    last_commit: int
    """Highest commit of a valid record; 0: there is no valid record."""
    record_count: int
    end: int
    """Offset behind the last valid record."""


OnRows = Callable[[Any, int, Any], None]


def part_of(data: bytes, offset: int, segment: Segment, salt: int, *, is_last: bool) -> Any:
    part = ffi.new("um_store_part *")
    part.data = ffi.from_buffer(data)
    part.bytes, part.position = len(data), segment.position + offset
    part.salt, part.is_last = salt, is_last
    return part


def scan(
    file: File, segment: Segment, end: int, salt: int, runs: Any, on_rows: OnRows | None = None
) -> Scanned:
    """Check every record of a segment from its header to `end`, and add each to the runs.

    Args:
        file: The segment's file.
        segment: Its position and first commit.
        end: Offset where the scan ends.
        salt: Salt of the Store's checksums.
        runs: um_store_runs of the segment, empty.
        on_rows: Called with um_store_row[], their number and the part that contains them.

    Raises:
        RepositoryDamaged: The segment has more runs than a segment can have.
    """
    found = Scanned([], 0, 0, HEADER_BYTES)
    rows = ffi.new("um_store_row[]", _ROWS)
    stop = ffi.new("enum um_store_scan_stop *")
    read_bytes = ffi.new("uint64_t *")
    offset, ends_commit = HEADER_BYTES, True
    last_commit = segment.first_commit - 1
    while offset < end:
        data = file.read(offset, min(CHUNK_BYTES, end - offset))
        part = part_of(data, offset, segment, salt, is_last=offset + len(data) >= end)
        count = lib.um_store_scan_all(part, rows, _ROWS, stop, read_bytes)
        if lib.um_store_rows_index(part, rows, count, segment.position, runs) != count:
            raise RepositoryDamaged(f"{segment.name} has too many gaps to be indexed")
        if count:
            if on_rows is not None:
                on_rows(rows, count, part)
            last = rows[count - 1]
            last_commit = segment.first_commit + (last.commit - segment.first_commit) % _COMMITS
            ends_commit = bool(last.flags & lib.UM_STORE_RECORD_ENDS_COMMIT)
            found.last_commit = max(found.last_commit, last_commit)
            found.record_count += count
        offset += read_bytes[0]
        found.end = offset if count else found.end
        if stop[0] == lib.UM_STORE_SCAN_BAD or not data:
            area_end, is_zero = next_record(file, segment, offset, end, salt)
            mark = lib.um_store_runs_break(runs)
            found.areas.append(BadArea(offset, area_end, is_zero, last_commit + ends_commit, mark))
            offset = area_end
    return found


def next_record(file: File, segment: Segment, offset: int, end: int, salt: int) -> tuple[int, bool]:
    """Return the offset of the next valid record behind a bad one, or the end, and whether all between is zero."""
    is_zero = ffi.new("bool *")
    are_zero = True
    at = offset
    while at < end:
        data = file.read(at, min(CHUNK_BYTES, end - at))
        if not data:
            break
        found = lib.um_store_find_record(part_of(data, at, segment, salt, is_last=True), 0, is_zero)
        if found < len(data):
            return at + found, are_zero and bool(is_zero[0])
        are_zero = are_zero and bool(is_zero[0])
        if at + len(data) >= end:
            break
        at += len(data) - _LONGEST_RECORD_BYTES & ~7
    return end, are_zero


def torn_at(scanned: Scanned, end: int) -> BadArea | None:
    """Return the area that begins the commit which the crash interrupted, or None.

    Args:
        scanned: Scan of the newest segment, written with durability `disk`.
        end: Where the scan ended.
    """
    for area in scanned.areas:
        if area.end >= end or area.commit >= scanned.last_commit:
            return None if area.is_zero and area.end >= end else area
    return None
