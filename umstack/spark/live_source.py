"""`format("umstack")`: live topics as rows, and rows published to topics.

A recorder, which is a separate process, subscribes to the topics and appends their messages to a journal; a query reads
the journal. Its offsets are the journal's, so a range that is read again after a restart has the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from umstack.errors import OptionError
from umstack.recorder.background import note_reader
from umstack.recorder.errors import JournalError
from umstack.recorder.journal import JournalReader
from umstack.recorder.tables import messages
from umstack.spark.live_options import LiveOptions, PublishOptions

NAME = "umstack"
_NOTE_SECONDS = 1.0

OFFSET = pa.field("offset", pa.int64(), nullable=False)
RECEIVED = pa.field("received", pa.timestamp("us", "UTC"), nullable=False)


def live_schema() -> pa.Schema:
    """Return the journal's columns, the arrival time in Spark's unit, and the offset."""
    return pa.schema([*messages().schema, RECEIVED, OFFSET])


@dataclass
class JournalRange(InputPartition):
    """A partition: a range of rows of the journal."""

    start: int
    end: int


def ranges(start: int, end: int, rows: int) -> list[JournalRange]:
    """Split a range into parts of about equal length."""
    count = max(1, -(-(end - start) // rows))
    bounds = [start + (end - start) * part // count for part in range(count + 1)]
    return [JournalRange(low, high) for low, high in pairwise(bounds) if low < high]


class RangeReader:
    """Reads partitions. It is pickled and runs on the executors, which must reach the journal's directory."""

    def __init__(self, schema: StructType, options: LiveOptions) -> None:
        """Check the requested columns here, so that an error is raised by the driver and not by a worker."""
        known = {field.name: field.dataType for field in from_arrow_schema(live_schema())}
        for field in schema:
            if field.name not in known or known[field.name].simpleString() != field.dataType.simpleString():
                raise OptionError(
                    f"live topics have no column {field.name} {field.dataType.simpleString()}",
                    hint=f"there are {', '.join(f'{n} {t.simpleString()}' for n, t in known.items())}",
                )
        self.options = options
        self._names = schema.fieldNames()

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(part, JournalRange):
            raise TypeError(f"{type(part).__name__} is not a range of a journal")
        offset = part.start
        for batch in JournalReader(self.options.journal / messages().name).read(part.start, part.end):
            yield self._shaped(batch, offset)
            offset += batch.num_rows

    def _shaped(self, batch: pa.RecordBatch, offset: int) -> pa.RecordBatch:
        columns: dict[str, Any] = {
            name: batch.column(name) for name in self._names if name in batch.schema.names
        }
        if RECEIVED.name in self._names:
            columns[RECEIVED.name] = pc.divide(batch.column("received_ns"), 1000).cast(RECEIVED.type)
        if OFFSET.name in self._names:
            columns[OFFSET.name] = pa.array(np.arange(offset, offset + batch.num_rows, dtype=np.int64))
        if absent := [name for name in self._names if name not in columns]:
            raise JournalError(
                f"the journal {self.options.journal} has no {', '.join(absent)}: another version wrote it",
                hint=f"leave it out with .schema(...): there are {', '.join(batch.schema.names)}; or record again",
            )
        arrays = [columns[name] for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, names=self._names)


class JournalBatchReader(DataSourceReader):
    """Reads the current contents of the journal."""

    def __init__(self, schema: StructType, options: LiveOptions) -> None:
        self._reader = RangeReader(schema, options)

    def partitions(self) -> list[JournalRange]:
        """Return the whole journal."""
        options = self._reader.options
        journal = JournalReader(options.journal / messages().name)
        return ranges(journal.start, journal.end, options.rows_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        return self._reader.read(partition)


class LiveReader(DataSourceStreamReader):
    """Reads the journal as it grows."""

    def __init__(self, schema: StructType, options: LiveOptions) -> None:
        """Start the recorder, if the query is to have one and none runs."""
        self._reader = RangeReader(schema, options)
        self._options = options
        self._journal = JournalReader(options.journal / messages().name)
        self._noted_at = 0.0
        # The end of the last batch. When a query resumes from a checkpoint, Spark passes it to the reader by requesting
        # the partitions of an empty range there, before it requests the latest offset.
        self._position: int | None = None
        # Start of a query without a checkpoint; Spark requests the latest offset before this one.
        self._initial: int | None = None
        if options.recorder is not None:
            options.recorder.ensure()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the start of a query without a checkpoint."""
        if self._initial is None:
            journal = self._journal
            self._initial = journal.start if self._options.start == "earliest" else journal.end
        return {"offset": self._initial}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the end of the journal, or of the part that one trigger may read."""
        now = time.monotonic()
        if now - self._noted_at >= _NOTE_SECONDS:
            self._noted_at = now
            if self._options.recorder is not None:
                self._options.recorder.ensure()
            else:
                note_reader(self._options.journal)
        begin = self.initialOffset()["offset"] if self._position is None else self._position
        return {"offset": max(begin, min(self._journal.end, begin + self._options.rows_per_trigger))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[JournalRange]:
        """Return the rows between two offsets, in parts."""
        self._position, self._initial = end["offset"], None
        return ranges(start["offset"], end["offset"], self._options.rows_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Release the rows before this offset, which this query will not read again."""
        if self._options.forgets:
            self._journal.truncate(end["offset"])


class UmstackDataSource(DataSource):
    """Live topics as DataFrames, and DataFrames published to topics."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> StructType:
        """Return all columns."""
        return from_arrow_schema(live_schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query, for the current contents of the journal."""
        return JournalBatchReader(schema, LiveOptions.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        return LiveReader(schema, LiveOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer that publishes a DataFrame."""
        from umstack.spark.live_sink import RowPublisher

        return RowPublisher(schema, PublishOptions.of(self.options), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer that publishes what a streaming query makes."""
        from umstack.spark.live_sink import StreamPublisher

        return StreamPublisher(schema, PublishOptions.of(self.options), overwrite)
