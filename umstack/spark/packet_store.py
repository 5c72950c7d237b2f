"""Captures decoded into Parquet by the tasks themselves: packets by kind, and counts by topic, in one pass.

Packets never cross into the virtual machine as rows: a task decodes a part of a capture, labels it in Arrow as
`umstack.analysis.observations.label` does in Spark, and writes it where the driver and all workers find it. What a task
hands to Spark is its counts by topic.

A part's files have names of their own and appear whole, so a part that is done again replaces itself; the table takes
its name when all parts are there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from umstack.analysis.observations import NEEDED
from umstack.capture import CaptureNotes
from umstack.spark.labels import LABELLED, labelled
from umstack.spark.packet_columns import PACKETS, TOPICS, note_row, select, topics
from umstack.spark.umpcap import UmpcapReader
from umstack.spark.umpcap_parts import CapturePart, UmpcapOptions

_ROW_GROUP = 1 << 18
_CODEC = "snappy"
# What repeats; the others are different in every packet, and a dictionary of them would be built in vain.
_REPEATING = (
    *("point", "publisher", "session_id", "receiver", "group", "ncf_reason", "status"),
    *("source_address", "destination_address", "udp_bytes", "frame_bytes", "message_count", "message_bytes"),
)
STORED: StructType = from_arrow_schema(LABELLED.append(pa.field("kind", pa.string())))
"""The columns of the table: those of `label`, `kind` last because it is the name of a folder."""


@dataclass(slots=True)
class _KindFile:
    """The file of one kind of packets of one part: hidden until it is whole."""

    folder: Path
    name: str
    batches: list[pa.RecordBatch] = field(default_factory=list)
    waiting: int = 0
    writer: pq.ParquetWriter | None = None

    @property
    def _hidden(self) -> Path:
        return self.folder / f".{self.name}"

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; write them when there are enough."""
        self.batches.append(batch)
        self.waiting += batch.num_rows
        if self.waiting >= _ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self.writer is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.writer = pq.ParquetWriter(
                self._hidden,
                LABELLED,
                compression=_CODEC,
                use_dictionary=list(_REPEATING),
                store_schema=False,
            )
        rows = pa.Table.from_batches(self.batches).unify_dictionaries()
        self.batches, self.waiting = [], 0
        self.writer.write_table(rows, row_group_size=_ROW_GROUP)

    def finish(self, final_name: str) -> None:
        """Write the rest, and show the file."""
        if self.waiting:
            self._flush()
        if self.writer is not None:
            self.writer.close()
            self._hidden.replace(self.folder / final_name)

    def discard(self) -> None:
        """Leave nothing of an attempt that failed."""
        if self.writer is not None and self._hidden.exists():
            self._hidden.unlink()


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Decodes parts of captures into the table's folder. It is pickled and runs on the executors."""

    folder: str
    options: UmpcapOptions
    parts: Sequence[CapturePart]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the parts of these numbers; counts by topic come out."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._write(number)

    def _write(self, number: int) -> Iterator[pa.RecordBatch]:
        files: dict[str, _KindFile] = {}
        counted: list[pa.RecordBatch] = []
        attempt = f"{number:06d}-{uuid4().hex}"
        try:
            for batch, is_note in self._batches(self.parts[number]):
                if not is_note:
                    counted.append(topics(batch))
                for kind, rows in labelled(batch if is_note else select(batch, [*NEEDED])):
                    if kind not in files:
                        files[kind] = _KindFile(Path(self.folder) / f"kind={kind}", attempt)
                    files[kind].add(rows)
            for file in files.values():
                file.finish(f"part-{number:06d}.parquet")
        except BaseException:
            for file in files.values():
                file.discard()
            raise
        yield from counted

    def _batches(self, part: CapturePart) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """What a part holds: batches of packets with all their columns, and notes, which are told apart."""
        path, options = part.split.path, self.options
        if part.note is not None:
            yield note_row([*NEEDED], path, part.note, None), True
            return
        notes = CaptureNotes()
        for batch in options.decode(part.split, notes):
            yield batch, False
        for note in notes.notes:
            yield note_row([*NEEDED], path, note.text, note.position), True


@dataclass(frozen=True, slots=True)
class PacketStore:
    """A table of packets below `folder`, storage that the driver and all workers reach by the same path."""

    folder: Path

    @property
    def _unfinished(self) -> Path:
        return self.folder.with_name(f".{self.folder.name}")

    def fill(self, spark: SparkSession, captures: Sequence[str], *, only_ours: bool) -> DataFrame:
        """Counts by topic. Working them out writes the packets, once; `commit` is to be called then."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished.mkdir(parents=True)
        given = {"paths": json.dumps(list(captures)), "onlyOurs": str(only_ours).lower(), "notes": "true"}
        options = UmpcapOptions.of(given)
        parts = UmpcapReader(from_arrow_schema(PACKETS), options).partitions()
        writer = PartWriter(str(self._unfinished), options, parts)
        # A task a part: what is done again after a failure is little.
        numbers = spark.range(0, len(parts), 1, len(parts))
        return numbers.mapInArrow(writer, from_arrow_schema(TOPICS))

    def commit(self) -> None:
        """Give the table its name, in place of an older one, and leave out what attempts that died left."""
        for left in self._unfinished.glob("*/.*"):
            left.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._unfinished.rename(self.folder)
