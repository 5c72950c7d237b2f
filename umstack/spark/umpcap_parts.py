"""Options of `umpcap` and the decoding of its partitions, shared by the batch and the stream reader."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from umstack.capture import (
    CaptureError,
    CaptureNote,
    CaptureNotes,
    CapturePorts,
    NoteKind,
    Split,
    decode,
)
from umstack.capture.reading.tally import Tally
from umstack.capture.selection import Selection
from umstack.facts.facts import Counter
from umstack.facts.kinds import BUCKET_NS
from umstack.facts.packed import PACKED, packed
from umstack.facts.packet_columns import PACKETS, note_row, select
from umstack.pipeline.table_schema import layer_of
from umstack.spark.option_names import unknown_options
from umstack.spark.umpcap_tasks import CapturePart, CaptureTask

OPTION_NAMES = (
    *(
        "targetPartitionBytes",
        "onlyOurs",
        "lbtrmPorts",
        "lbtruPorts",
        "resolutionPorts",
        "tcpPorts",
        "storePorts",
    ),
    *("notes", "rows", "windowSeconds", "batchRows", "maxBytesPerTrigger", "hardwareTimes", "manifestFolder"),
    *("path", "paths"),
)
"""All options of a read; Spark itself adds path and paths."""

PACKET_ROWS, FACT_ROWS = "packets", "facts"
TARGET_BYTES = 64 << 20
_BATCH_ROWS = 32768
_OPTIONS_HINT = "docs/spark.md lists the options of umpcap"


@dataclass(frozen=True, slots=True)
class UmpcapOptions:
    """The parsed options of a read."""

    paths: tuple[str, ...]
    target_bytes: int
    batch_rows: int
    only_ours: bool
    notes: bool
    rows: str
    window_ns: int
    """Length of the time windows of facts; 0 if time is not divided."""
    trigger_bytes: int | None
    """Maximum bytes of captures in a batch of a stream; None: everything available."""
    ports: CapturePorts
    hardware_times: bool = False
    manifest_folder: Path = field(default_factory=lambda: _manifest_folder({}))
    """Where the splits of large captures are kept."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> UmpcapOptions:
        """Parse Spark's options, whose names are case-insensitive. CaptureError for an unknown one."""
        lowered = {name.lower(): value for name, value in options.items()}
        if unknown := unknown_options(options, OPTION_NAMES):
            raise CaptureError(
                f"umpcap has no option {', '.join(unknown)}",
                hint=f"there are {', '.join(OPTION_NAMES)}; docs/spark.md explains them",
            )
        paths = json.loads(lowered["paths"]) if "paths" in lowered else [lowered.get("path", "")]
        if not all(paths):
            raise CaptureError("no capture is named", hint='load("capture.pcapng"), or a folder, or a glob')
        rows = lowered.get("rows", PACKET_ROWS)
        if rows not in (PACKET_ROWS, FACT_ROWS) and layer_of(rows) is None:
            hint = "docs/tables.md lists the tables"
            raise CaptureError(f"rows is {rows}: it can be packets, facts, or the name of a table", hint=hint)
        default = CapturePorts()
        return cls(
            paths=tuple(paths),
            target_bytes=_positive(lowered, "targetPartitionBytes", TARGET_BYTES),
            batch_rows=_positive(lowered, "batchRows", _BATCH_ROWS),
            only_ours=_flag(lowered, "onlyOurs") or rows != PACKET_ROWS,
            notes=_flag(lowered, "notes"),
            rows=rows,
            window_ns=_window_ns(lowered),
            trigger_bytes=_positive(lowered, "maxBytesPerTrigger", 0) or None,
            ports=CapturePorts(
                _ports(lowered, "lbtrmPorts", default.lbtrm),
                _ports(lowered, "resolutionPorts", default.resolution),
                _ports(lowered, "tcpPorts", default.tcp),
                _ports(lowered, "lbtruPorts", default.lbtru),
                _ports(lowered, "storePorts", default.store),
            ),
            hardware_times=_flag(lowered, "hardwareTimes"),
            manifest_folder=_manifest_folder(lowered),
        )

    def decode(
        self, part: Split, notes: CaptureNotes, selection: Selection | None = None, tally: Tally | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Decode one part with these options."""
        return decode(
            part,
            only_ours=self.only_ours,
            ports=self.ports,
            batch_rows=self.batch_rows,
            notes=notes,
            selection=selection,
            tally=tally,
        )


def _manifest_folder(options: Mapping[str, str]) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(options.get("manifestfolder") or Path(cache) / "umstack" / "splits")


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not text.isdecimal() or int(text) == 0:
        raise CaptureError(f"{name} is {text}: it must be a whole number above 0", hint=_OPTIONS_HINT)
    return int(text)


def _window_ns(options: Mapping[str, str]) -> int:
    text = options.get("windowseconds", "0")
    try:
        # Rates are counted per millisecond; each millisecond belongs to one window.
        milliseconds = round(float(text) * 1000)
    except (ValueError, OverflowError):
        milliseconds = -1
    if milliseconds < 0:
        raise CaptureError(f"windowSeconds is {text}: it must be a number of seconds", hint=_OPTIONS_HINT)
    return milliseconds * BUCKET_NS


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise CaptureError(f"{name} is {text}: it can be true or false", hint=_OPTIONS_HINT)
    return text == "true"


def _ports(options: Mapping[str, str], name: str, default: tuple[int, int]) -> tuple[int, int]:
    text = options.get(name.lower())
    if text is None:
        return default
    low, _, high = text.partition("-")
    if not low.isdecimal() or not (high or low).isdecimal():
        raise CaptureError(f"{name} is {text}: give a port, or a range like 14390-14401", hint=_OPTIONS_HINT)
    return int(low), int(high or low)


class PartReader:
    """Decodes partitions of batch and stream readers. It is pickled and runs on the executors."""

    def __init__(self, schema: StructType, options: UmpcapOptions, *, of_stream: bool = False) -> None:
        """Check the requested columns here, so that an error is raised by the driver and not by a worker.

        With `of_stream`, parts do not note how files end, which the stream reports. Of packets that became rows they
        note counts, which only facts add up.
        """
        self.options = options
        self.of_stream = of_stream
        known = PACKED if options.rows == FACT_ROWS else PACKETS
        types = {field.name: field.dataType for field in from_arrow_schema(known)}
        for column in schema:
            if column.name not in types:
                raise CaptureError(
                    f"a capture has no column {column.name}", hint=f"there are {', '.join(types)}"
                )
            if column.dataType.simpleString() != types[column.name].simpleString():
                wanted, got = types[column.name].simpleString(), column.dataType.simpleString()
                raise CaptureError(f"column {column.name} is {wanted}, not {got}", hint=_OPTIONS_HINT)
        self.names = schema.fieldNames()
        self.selection = Selection()
        """Filter for the packets that become rows. A note, which is not a packet, matches no filter."""

    def read(self, task: CaptureTask) -> Iterator[pa.RecordBatch]:
        """Return the record batches of a partition."""
        if self.options.rows == FACT_ROWS:
            yield from self._facts(task)
            return
        for part in task.parts:
            yield from self._packets(part)

    def _facts(self, task: CaptureTask) -> Iterator[pa.RecordBatch]:
        counter = Counter(self.options.window_ns)
        for part in task.parts:
            self._count(counter, part)
        for window_ns, facts in counter.facts().items():
            yield from packed(facts, window_ns).select(self.names).to_batches()

    def _count(self, counter: Counter, part: CapturePart) -> None:
        path = part.split.path
        if part.note is not None:
            counter.note(path, part.note)
            return
        notes = CaptureNotes()
        for batch in self.options.decode(part.split, notes, tally=counter.tally):
            counter.take(batch)
        for note in notes.notes if self.options.notes else ():
            if self._is_reported(note, notes, part):
                counter.note(path, note.template, note.count)

    def _packets(self, part: CapturePart) -> Iterator[pa.RecordBatch]:
        if part.note is not None and not self.selection.is_everything:
            return
        if part.note is not None:
            yield note_row(self.names, part.split.path, part.note, part.position)
            return
        notes = CaptureNotes()
        options = self.options
        for batch in options.decode(part.split, notes, self.selection):
            yield select(batch, self.names)
        for note in notes.notes if options.notes and self.selection.is_everything else ():
            if self._is_reported(note, notes, part):
                yield note_row(self.names, part.split.path, note.text, note.position)

    def _is_reported(self, note: CaptureNote, notes: CaptureNotes, part: CapturePart) -> bool:
        if not self.of_stream or part.is_whole or note.kind is NoteKind.CAPTURE_DROPS:
            return True
        if self.options.rows == FACT_ROWS and note.count is not None:
            return True
        # A part without packets is the header of a file; the decoder searches for the first packet after it.
        return note.rows_are_missing and notes.packets > 0
