"""Decodes captures in bulk: the core reads packets into Arrow record batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from umstack._core import ffi, lib
from umstack.capture.reading.container import Window, compression_of, interfaces_of, open_window
from umstack.capture.reading.notes import COUNT, SNAP_LENGTH, CaptureNotes, NoteKind, not_a_capture, reserved
from umstack.capture.reading.ports import CapturePorts
from umstack.capture.reading.remote import shown
from umstack.capture.reading.rows import ROWS_DEFAULT, PacketRows
from umstack.capture.reading.schema import arrow, schema
from umstack.capture.reading.split import Split
from umstack.capture.selection import Selection

if TYPE_CHECKING:
    import pyarrow

    from umstack.capture.reading.tally import Tally

_TIME_BYTES = 4
_MAGIC_BYTES = 4
_PCAP_MAGICS = (b"\xa1\xb2\xc3\xd4", b"\xa1\xb2\x3c\x4d")
_FORMATS = {lib.UM_CAPTURE_PCAP: "pcap", lib.UM_CAPTURE_PCAPNG: "pcapng", lib.UM_CAPTURE_ERF: "erf"}


def decode(
    source: str | os.PathLike[str] | Split,
    *,
    only_ours: bool = False,
    ports: CapturePorts | None = None,
    batch_rows: int = ROWS_DEFAULT,
    notes: CaptureNotes | None = None,
    selection: Selection | None = None,
    tally: Tally | None = None,
    hardware_times: bool = False,
) -> Iterator[pyarrow.RecordBatch]:
    """Decode a capture file, or a split of one, into record batches.

    The file must not be truncated while it is read.

    Args:
        source: Path of the capture, or a split of one.
        only_ours: Omit packets of other protocols.
        ports: UDP and TCP ports of the protocols; None: the defaults.
        batch_rows: Maximum rows per batch, 1 or more.
        notes: Collects defects of the file; None: they are dropped.
        selection: Omits packets that do not match; None: all packets.
        tally: Counts well-formed first transmissions, which then do not become rows. Empty it after each batch,
            which may have no rows. None: every packet becomes a row.
        hardware_times: Take `time_ns` from the trailer of a capture switch or the ERF header of a packet; a note counts
            those without. Ignored with a split, which has its own setting.

    Returns:
        An iterator of record batches of `SCHEMA`: a row per packet, in file order. IP fragments are joined: their
        datagram is one row, where its last fragment is.

    Raises:
        ValueError: `batch_rows` is below 1.
        UmError: The file cannot be read, or pyarrow is not installed.

    Example:
        ```python
        for batch in umstack.capture.decode("day.pcapng"):
            print(batch.num_rows)
        ```
    """
    part = source if isinstance(source, Split) else Split(os.fspath(source), hardware_times=hardware_times)
    if batch_rows < 1:
        raise ValueError(f"batch_rows is {batch_rows}: use 1 or more")
    arrow()
    options = _options(ports or CapturePorts(), only_ours, selection or Selection())
    if tally is not None:
        options.tally = tally.core
    reader = part.new_reader(ports)
    return _batches(part, reader, options, batch_rows, notes or CaptureNotes(), tally)


def _options(ports: CapturePorts, only_ours: bool, selection: Selection) -> Any:
    options = ffi.new(
        "um_packet_rows_options *",
        {"ports": (*ports.lbtrm, *ports.lbtru, *ports.resolution), "only_ours": only_ours},
    )
    selection.fill(options.selection)
    return options


def _batches(
    part: Split, reader: Any, options: Any, batch_rows: int, notes: CaptureNotes, tally: Tally | None
) -> Iterator[pyarrow.RecordBatch]:
    path = notes.path = shown(part.path)
    notes.compression = compression_of(part.path)
    until = 2**64 - 1 if part.end is None else part.end
    pa = arrow()
    no_rows = pa.RecordBatch.from_pylist([], schema=schema())
    # One array of the file's name; every batch uses a slice as long as its rows.
    names: Any = None
    fragments = ffi.addressof(reader, "fragments")
    with open_window(part.path, notes.compression, part.start) as window:
        try:
            step, rows = lib.UM_CAPTURE_FULL, PacketRows(batch_rows)
            while step == lib.UM_CAPTURE_FULL:
                step = _fill(rows, reader, options, window, until)
                if step != lib.UM_CAPTURE_FULL and part.end is None and lib.um_fragments_give_up(fragments):
                    # They are rows, too: the next step takes them.
                    step = lib.UM_CAPTURE_FULL
                interfaces = [interface.name for interface in interfaces_of(reader)]
                if tally is not None:
                    tally.path, tally.interfaces = path, interfaces
                    notes.rows += len(tally)
                    if step == lib.UM_CAPTURE_FULL and lib.um_tally_full(tally.core):
                        # The rows are not full.
                        yield no_rows
                        window.forget()
                        continue
                if len(rows) or (tally is not None and len(tally)):
                    names = pa.repeat(path, rows.core.row_capacity) if names is None else names
                    notes.rows += len(rows)
                    yield rows.to_batch(names, interfaces)
                    window.forget()
                    rows = PacketRows(batch_rows)
            _note_end(notes, window, step, part, reader)
        finally:
            _note_findings(notes, reader, is_end=part.end is None)


def _fill(rows: PacketRows, reader: Any, options: Any, window: Window, until: int) -> int:
    """Decode until the rows are full or the file ends, across windows."""
    while True:
        end = max(0, until - window.base)
        step = lib.um_packet_rows_decode(
            reader, rows.core, options, window.data, window.length, window.base, end, window.at
        )
        if step != lib.UM_CAPTURE_INCOMPLETE or not window.more():
            return int(step)


def _has_pcap_magic(window: Window) -> bool:
    """Return true if the window starts as a pcap file does, in either byte order and with either unit of time."""
    start = bytes(ffi.buffer(window.data, _MAGIC_BYTES))
    return start in _PCAP_MAGICS or start[::-1] in _PCAP_MAGICS


def _note_end(notes: CaptureNotes, window: Window, step: int, part: Split, reader: Any) -> None:
    """Note why reading ended before the end of the file or split."""
    position, remaining = window.position, window.remaining
    # A packet cut in its first bytes may end with zeros, but has no time of 1970.
    may_be_zeros = step == lib.UM_CAPTURE_ZEROS or (
        step == lib.UM_CAPTURE_INCOMPLETE and remaining >= _TIME_BYTES
    )
    has_zeros_only = may_be_zeros and window.has_zeros_only()
    # The problem of a split with an end may be behind it.
    if window.problem is not None and step != lib.UM_CAPTURE_ENDED:
        text = f"the {notes.compression} stream ends early, after byte {window.base + window.length} of its content"
        notes.add(NoteKind.COMPRESSION, f"{text}: {window.problem}", window.base + window.length)
    is_foreign = step == lib.UM_CAPTURE_FOREIGN
    # ERF is recognized by its first record only.
    is_unopened = step == lib.UM_CAPTURE_INCOMPLETE and reader.format == lib.UM_CAPTURE_UNKNOWN
    is_foreign |= is_unopened and remaining >= _MAGIC_BYTES and not _has_pcap_magic(window)
    if is_foreign:
        start = bytes(ffi.buffer(window.data, min(8, window.length)))
        notes.add(NoteKind.NOT_A_CAPTURE, not_a_capture(start), 0)
    elif step == lib.UM_CAPTURE_DAMAGED:
        text = f"damaged at byte {position}: no record can start there; the remaining {remaining} bytes are not read"
        notes.add(NoteKind.DAMAGED, text, position)
    elif has_zeros_only:
        notes.add(NoteKind.RESERVED, reserved(position, window.position - position), position)
    elif step == lib.UM_CAPTURE_ZEROS:
        text = f"damaged at byte {position}: a record of zeros, with other data behind it, which is not read"
        notes.add(NoteKind.DAMAGED, text, position)
    elif step == lib.UM_CAPTURE_INCOMPLETE and remaining == 0 and position == 0 and not window.problem:
        notes.add(NoteKind.EMPTY, "an empty file", 0)
    elif step == lib.UM_CAPTURE_INCOMPLETE and remaining:
        text = f"truncated: the record at byte {position} has only {remaining} bytes; the file ends in its middle"
        notes.add(NoteKind.TRUNCATED, text, position)
    elif step == lib.UM_CAPTURE_ENDED and part.end is not None and position != part.end:
        text = f"the split ends at byte {part.end}, inside a record: the file has changed since it was split"
        notes.add(NoteKind.DAMAGED, text, part.end)


def _note_findings(notes: CaptureNotes, reader: Any, *, is_end: bool) -> None:
    """Note the findings of the core up to the end of the file or split."""
    found = reader.findings
    notes.format = _FORMATS.get(reader.format)
    notes.packets = found.packet_count
    if found.clock_step_count:
        detail = (
            f", by up to {found.clock_step_max_ns / 1e9:.6f} s, first at byte {found.clock_step_position}"
        )
        notes.add(
            NoteKind.CLOCK_STEP,
            f"the clock steps backwards {COUNT} times",
            found.clock_step_position,
            count=found.clock_step_count,
            detail=detail,
        )
    if found.timeless_count:
        notes.add(NoteKind.NO_TIME, f"{COUNT} packets have no time", count=found.timeless_count)
    if found.no_hardware_time_count:
        text = f"{COUNT} packets have no time of the capture hardware, but that of the capture"
        notes.add(NoteKind.NO_TIME, text, count=found.no_hardware_time_count)
    if found.unknown_link_count:
        text = f"{COUNT} packets of link type {found.unknown_link_type}, which is not known"
        notes.add(NoteKind.LINK_TYPE, text, count=found.unknown_link_count)
    if found.unknown_block_count:
        notes.add(
            NoteKind.UNKNOWN_BLOCK,
            f"{COUNT} blocks of unknown types are skipped",
            found.unknown_block_position,
            count=found.unknown_block_count,
            detail=f", the first at byte {found.unknown_block_position}, type {found.unknown_block_type:#x}",
        )
    if found.cut_count:
        lengths = {reader.interfaces[i].snap_bytes for i in range(reader.interface_count)} - {0}
        by = f" with {SNAP_LENGTH} of {min(lengths)} bytes" if len(lengths) == 1 else ""
        text = f"captured{by}: {COUNT} packets have only their first bytes, which hold the headers"
        notes.add(NoteKind.CUT_PACKETS, text, count=found.cut_count)
    if found.wrong_length_count:
        notes.add(
            NoteKind.WRONG_LENGTH,
            f"{COUNT} packets have an impossible length on the wire: their captured length counts",
            found.wrong_length_position,
            count=found.wrong_length_count,
            detail=f"; the first at byte {found.wrong_length_position}",
        )
    if found.left_out_interface_count:
        text = (
            f"{found.left_out_interface_count} interfaces beyond the limit of {reader.interface_count}: "
            "the link type of their packets is not known"
        )
        notes.add(NoteKind.LINK_TYPE, text)
    _note_streams(notes, reader)
    _note_fragments(notes, reader)
    for i in range(reader.interface_count):
        described = reader.interfaces[i]
        lost = _lost(described, is_end=is_end)
        if lost:
            name = ffi.string(described.name).decode("utf-8", "replace") or str(i)
            notes.add(
                NoteKind.CAPTURE_DROPS,
                f"the capturing side lost {COUNT} packets of interface {name}",
                count=lost,
            )


def _note_streams(notes: CaptureNotes, reader: Any) -> None:
    found = ffi.new("um_stream_findings *")
    lib.um_streams_read_findings(ffi.addressof(reader, "streams"), found)
    if found.gap_bytes:
        text = (
            f"{COUNT} bytes of TCP streams are not in the capture, or no message was found in them: "
            "their contents are not counted"
        )
        notes.add(NoteKind.STREAM_GAPS, text, count=found.gap_bytes)
    if found.displaced_count:
        text = f"{COUNT} TCP connections were evicted for others: more are open at once than can be followed"
        notes.add(NoteKind.STREAM_GAPS, text, count=found.displaced_count)
    if found.unlisted_count:
        text = f"{COUNT} messages of TCP segments exceed the space of their row"
        notes.add(NoteKind.STREAM_GAPS, text, count=found.unlisted_count)


def _note_fragments(notes: CaptureNotes, reader: Any) -> None:
    found = ffi.new("um_fragment_findings *")
    lib.um_fragments_read_findings(ffi.addressof(reader, "fragments"), found)
    reasons = {
        "fragments are missing, as where a capture filter on ports drops them": found.missing_count,
        "more are open at once than can be held": found.displaced_count,
        "their fragments overlap or contradict each other": found.refused_count,
    }
    for reason, count in reasons.items():
        if count:
            text = f"{COUNT} datagrams sent in IP fragments are not joined: {reason}; at most their start is counted"
            notes.add(NoteKind.IP_FRAGMENTS, text, count=count)


def _lost(interface: Any, *, is_end: bool) -> int:
    """Return the packets of an interface lost while capturing, by the statistics at the end of the file.

    A capture that was killed has no statistics, only counts in single packets.
    """
    is_counted_by_packet = is_end and not interface.has_statistics
    return int(interface.packet_drop_count if is_counted_by_packet else interface.drop_count)
