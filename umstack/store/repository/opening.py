"""Opening a log: footers of sealed segments into the index, and whatever a crash left (docs/store.md)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from umstack._core import lib
from umstack.store.repository.files import File, Files
from umstack.store.repository.model import (
    CommittedRange,
    DamagedArea,
    Durability,
    Recovery,
)
from umstack.store.repository.scanning import scan, torn_at
from umstack.store.repository.segments import (
    DAMAGED_SUFFIX,
    HEADER_BYTES,
    Segment,
    adopt_footer,
    read_footer,
    read_header,
    segment_names,
    write_footer,
)


@dataclass(slots=True)
class OpenedLog:
    """The sealed segments of a log, and where the next one begins."""

    segments: list[Segment]
    next_position: int
    next_commit: int
    recovery: Recovery


def open_log(files: Files, store_id: int, index: Any, runs: Any) -> OpenedLog:
    """Read every footer into the index; scan and seal the segments that have none.

    Args:
        files: Directory of the log.
        store_id: Id of the Store, from its client state.
        index: um_span_index, empty.
        runs: um_store_runs to work with.
    """
    started = time.monotonic()
    log = OpenedLog([], 0, 1, Recovery())
    names = segment_names(files)
    for number, (position, name) in enumerate(names):
        file = files.open(name, is_writable=True)
        try:
            byte_count = file.size()
            segment = read_header(file, number, position, store_id)
            footer = None if segment is None else read_footer(file, segment)
            if segment is not None and footer is not None:
                adopt_footer(segment, footer, byte_count)
                _check(lib.um_span_index_seal(index, number, footer.spans, footer.span_count))
                is_kept = True
            else:
                is_newest = number == len(names) - 1
                unread = segment or Segment(number, position, log.next_commit, Durability.DISK)
                segment = unread
                is_kept = _scan_and_seal(
                    file, unread, byte_count, store_id, index, runs, log.recovery, is_newest=is_newest
                )
        finally:
            file.close()
        log.next_position = max(log.next_position, position + byte_count)
        if is_kept:
            log.segments.append(segment)
            log.next_commit = max(log.next_commit, segment.last_commit + 1)
        else:
            _set_aside(files, name, log.recovery, is_empty=number == len(names) - 1)
    log.recovery.segment_count = len(log.segments)
    log.recovery.seconds = time.monotonic() - started
    return log


def _check(error: int) -> None:
    if error:
        raise MemoryError("the index of the repository")


def _scan_and_seal(
    file: File,
    segment: Segment,
    byte_count: int,
    store_id: int,
    index: Any,
    runs: Any,
    recovery: Recovery,
    *,
    is_newest: bool,
) -> bool:
    """Scan a segment, decide what of it is kept, and seal it. Returns false if it has no valid record."""
    lib.um_store_runs_clear(runs)
    salt = lib.um_store_salt(store_id)
    found = scan(file, segment, byte_count, salt, runs)
    recovery.scanned_count += 1
    if found.record_count == 0:
        return False
    segment.records_end, segment.last_commit = found.end, found.last_commit
    # Under another durability a later commit does not prove that an earlier one was synced: all valid records stay.
    torn = torn_at(found, byte_count) if is_newest and segment.durability is Durability.DISK else None
    areas = [
        area for area in found.areas if area.begin < found.end and (torn is None or area.begin < torn.begin)
    ]
    if torn is not None:
        lib.um_store_runs_cut(runs, torn.run_mark)
        segment.records_end = torn.begin
        # The number of the interrupted commit is not used again.
        segment.last_commit = max(found.last_commit, torn.commit)
        recovery.damaged.append(DamagedArea(segment.name, torn.begin, torn.end - torn.begin, is_torn=True))
    recovery.damaged += [
        DamagedArea(segment.name, area.begin, area.end - area.begin, is_torn=False) for area in areas
    ]
    spans, span_count = write_footer(file, segment, runs, sum(area.end - area.begin for area in areas))
    if areas:
        recovery.missing += _gaps(spans, span_count)
    _check(lib.um_span_index_seal(index, segment.number, spans, span_count))
    return segment.records_end > HEADER_BYTES


def _gaps(spans: Any, span_count: int) -> list[CommittedRange]:
    """Return the gaps between the spans of each source."""
    pairs = [(spans[i], spans[i + 1]) for i in range(span_count - 1)]
    return [
        CommittedRange(earlier.source, earlier.last_sqn + 1, later.first_sqn - 1)
        for earlier, later in pairs
        if earlier.source == later.source
    ]


def _set_aside(files: Files, name: str, recovery: Recovery, *, is_empty: bool) -> None:
    """Remove the newest segment, to which nothing was committed; keep any other under another name."""
    if is_empty:
        files.remove(name)
    else:
        files.rename(name, name + DAMAGED_SUFFIX)
        recovery.set_aside.append(name + DAMAGED_SUFFIX)
    files.sync_names()
