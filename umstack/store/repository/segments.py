"""Segment files: their names, headers and footers (docs/store.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from umstack._core import ffi, lib
from umstack.store.repository.files import File, Files
from umstack.store.repository.model import Durability

SUFFIX = ".seg"
DAMAGED_SUFFIX = ".damaged"
HEADER_BYTES: int = lib.UM_STORE_SEGMENT_HEADER_BYTES
_TRAILER_BYTES: int = lib.UM_STORE_TRAILER_BYTES
_SPAN_BYTES: int = ffi.sizeof("um_store_span")
RUN_BYTES: int = ffi.sizeof("um_store_run")
_DURABILITIES = tuple(Durability)


@dataclass(slots=True)
class Segment:
    """A segment file that is open for appending, or sealed."""

    number: int
    """Its number in this process, in the order of the log."""
    position: int
    """Of its first byte in the log; its name."""
    first_commit: int
    durability: Durability
    records_end: int = HEADER_BYTES
    """Offset behind its last readable record."""
    byte_count: int = 0
    run_count: int = 0
    last_commit: int = 0
    is_sealed: bool = False

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return segment_name(self.position)

    def run_offset(self, run_index: int) -> int:
        """Return where a run of the footer is in the file."""
        return self.byte_count - _TRAILER_BYTES - (self.run_count - run_index) * RUN_BYTES


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a sealed segment."""

    records_end: int
    last_commit: int
    run_count: int
    spans: Any
    """um_store_span[]"""
    span_count: int
    runs_checksum: int
    bad_bytes: int
    keeps: Any
    """The memory behind `spans`."""


def segment_name(position: int) -> str:
    """Return the file name of the segment that begins at this position of the log."""
    return f"{position:016x}{SUFFIX}"


def segment_position(name: str) -> int | None:
    """Return the position in a file name, or None if no segment is named so."""
    digits = name.removesuffix(SUFFIX)
    if len(digits) != 16 or digits == name or not set(digits) <= set("0123456789abcdef"):
        return None
    return int(digits, 16)


def write_header(file: File, segment: Segment, store_id: int, created_ns: int) -> None:
    """Write the header of a new segment and sync it."""
    header = ffi.new("um_store_segment_header *")
    header.durability = _DURABILITIES.index(segment.durability)
    header.store_id = store_id
    header.position = segment.position
    header.first_commit = segment.first_commit
    header.created_ns = created_ns
    lib.um_store_segment_header_finish(header)
    file.write(0, bytes(ffi.buffer(header)))
    file.sync()


def read_header(file: File, number: int, position: int, store_id: int) -> Segment | None:
    """Return the segment by its header, or None if the header is damaged or of another Store."""
    data = file.read(0, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return None
    header = ffi.from_buffer("um_store_segment_header *", data)
    if lib.um_store_segment_header_check(header) != 0:
        return None
    if header.store_id != store_id or header.position != position or header.durability >= len(_DURABILITIES):
        return None
    return Segment(number, position, header.first_commit, _DURABILITIES[header.durability])


def write_footer(file: File, segment: Segment, runs: Any, bad_bytes: int) -> Any:
    """Seal a segment: write its footer behind the records, end the file there, and sync it.

    Returns:
        The spans, um_store_span[], and their number.
    """
    run_count = lib.um_store_runs_count(runs)
    sorted_runs = ffi.new("um_store_run[]", max(run_count, 1))
    lib.um_store_runs_sorted(runs, sorted_runs)
    spans = ffi.new("um_store_span[]", max(run_count, 1))
    span_count = lib.um_store_runs_spans(sorted_runs, run_count, spans)
    spans_part = bytes(ffi.buffer(spans, span_count * _SPAN_BYTES))
    runs_part = bytes(ffi.buffer(sorted_runs, run_count * RUN_BYTES))
    trailer = ffi.new("um_store_trailer *")
    trailer.position = segment.position
    trailer.records_end = segment.records_end
    trailer.last_commit = segment.last_commit
    trailer.span_count, trailer.run_count = span_count, run_count
    trailer.spans_checksum = lib.um_crc32c(0, ffi.from_buffer(spans_part), len(spans_part))
    trailer.runs_checksum = lib.um_crc32c(0, ffi.from_buffer(runs_part), len(runs_part))
    trailer.bad_bytes = bad_bytes
    lib.um_store_trailer_finish(trailer)
    footer = spans_part + runs_part + bytes(ffi.buffer(trailer))
    file.write(segment.records_end, footer)
    file.truncate(segment.records_end + len(footer))
    file.sync()
    segment.byte_count = segment.records_end + len(footer)
    segment.run_count = run_count
    segment.is_sealed = True
    return spans, span_count


def read_footer(file: File, segment: Segment) -> Footer | None:
    """Return the footer without its runs, or None if the file has no valid one."""
    byte_count = file.size()
    if byte_count < HEADER_BYTES + _TRAILER_BYTES:
        return None
    data = file.read(byte_count - _TRAILER_BYTES, _TRAILER_BYTES)
    trailer = ffi.from_buffer("um_store_trailer *", data)
    if lib.um_store_trailer_check(trailer) != 0 or trailer.position != segment.position:
        return None
    spans_bytes = trailer.span_count * _SPAN_BYTES
    whole = trailer.records_end + spans_bytes + trailer.run_count * RUN_BYTES + _TRAILER_BYTES
    if whole != byte_count:
        return None
    content = file.read(trailer.records_end, spans_bytes)
    if lib.um_crc32c(0, ffi.from_buffer(content), len(content)) != trailer.spans_checksum:
        return None
    spans = ffi.cast("um_store_span *", ffi.from_buffer(content))
    return Footer(
        trailer.records_end,
        trailer.last_commit,
        trailer.run_count,
        spans,
        trailer.span_count,
        trailer.runs_checksum,
        trailer.bad_bytes,
        content,
    )


def adopt_footer(segment: Segment, footer: Footer, byte_count: int) -> None:
    """Mark the segment as sealed by this footer."""
    segment.records_end, segment.last_commit = footer.records_end, footer.last_commit
    segment.run_count, segment.byte_count, segment.is_sealed = footer.run_count, byte_count, True


def segment_names(files: Files) -> list[tuple[int, str]]:
    """Return position and name of each segment file, in the order of the log."""
    found = [(segment_position(name), name) for name in files.names()]
    return sorted((position, name) for position, name in found if position is not None)
