"""`spark.read.format("umpcap")`: captures as rows, one per packet, split inside large files, in Arrow batches.

Options: `targetPartitionBytes`, `onlyOurs`, `lbtrmPorts`, `lbtruPorts`, `resolutionPorts`, `tcpPorts`, `storePorts`,
`batchRows`, `notes`, `rows`, `windowSeconds`, `hardwareTimes`, `manifestFolder`; docs/spark.md explains them.
`.schema(...)` with some of the columns omits the others, which is much faster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from umstack.capture import CaptureError, Split
from umstack.capture.reading.capture_files import capture_files, copies, remote_versions
from umstack.facts.packed import PACKED
from umstack.facts.packet_columns import PACKETS
from umstack.spark.column_notes import commented
from umstack.spark.pushed_filters import push, spark_pushes_filters
from umstack.spark.umpcap_manifest import parts_of
from umstack.spark.umpcap_parts import FACT_ROWS, PACKET_ROWS, PartReader, UmpcapOptions
from umstack.spark.umpcap_stream import UmpcapStreamReader
from umstack.spark.umpcap_tables import TableReader, table_schema
from umstack.spark.umpcap_tasks import CapturePart, CaptureTask, packed_tasks

NAME = "umpcap"


class UmpcapReader(DataSourceReader):
    """Reads the current contents of the captures."""

    def __init__(self, schema: StructType, options: UmpcapOptions) -> None:
        self._reader = PartReader(schema, options)
        self._options = options

    def partitions(self) -> list[CaptureTask]:
        """Tasks that read all files; of identical files only one is read."""
        files = capture_files(self._options.paths)
        doubles = copies(files)
        versions = remote_versions(self._options.paths)
        read = (file for file in files if file not in doubles)
        parts = [part for file in read for part in parts_of(file, self._options, versions.get(file))]
        if self._options.notes:
            for file, original in doubles.items():
                parts.append(CapturePart(Split(file), f"the same as {original}, not read again"))
        return packed_tasks(parts, self._options.target_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode a partition."""
        if not isinstance(partition, CaptureTask):
            raise TypeError(f"{type(partition).__name__} is not a part of a capture")
        return self._reader.read(partition)


class FilteringUmpcapReader(UmpcapReader):
    """A reader for a query whose filters Spark pushes to the source."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take the filters that the decoder can apply; returns those left to Spark."""
        if self._options.rows == FACT_ROWS:
            return filters
        self._reader.selection, left = push(self._reader.selection, filters)
        return left


class UmpcapDataSource(DataSource):
    """Captures (pcap, pcapng, ERF, plain or compressed) as DataFrames, batch and streaming."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> StructType:
        """Return all columns."""
        rows = UmpcapOptions.of(self.options).rows
        if rows == PACKET_ROWS:
            return commented(PACKETS)
        return commented(PACKED) if rows == FACT_ROWS else table_schema(rows)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = UmpcapOptions.of(self.options)
        if options.rows not in (PACKET_ROWS, FACT_ROWS):
            return TableReader(schema, options)
        kind = FilteringUmpcapReader if spark_pushes_filters(sys.modules) else UmpcapReader
        return kind(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        options = UmpcapOptions.of(self.options)
        if options.rows not in (PACKET_ROWS, FACT_ROWS):
            raise CaptureError(
                f"the rows of {options.rows} change as captures grow: a stream has only packets and facts",
                hint="umstack pipeline keeps the tables of growing captures (docs/pipeline.md)",
            )
        return UmpcapStreamReader(schema, options)
