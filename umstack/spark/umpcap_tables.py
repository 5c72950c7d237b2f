"""`spark.read.format("umpcap").option("rows", "losses")`: a table of a pipeline's folder, or of captures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from umstack.capture import CaptureError, CaptureNotes, decode
from umstack.capture.reading.capture_files import capture_files, copies
from umstack.capture.reading.remote import filesystem_of, is_remote
from umstack.facts.facts import Counter, Facts
from umstack.facts.kinds import SESSION
from umstack.facts.packed import packed, unpacked
from umstack.pipeline.derive import session_rows
from umstack.pipeline.fetched import stored_rows, stored_settings
from umstack.pipeline.layout import DAY_NS, Layout, day_of, local_path, opened, session_name
from umstack.pipeline.table_schema import layer_of, schemas, with_partitions
from umstack.report.outputs import arrow
from umstack.spark.column_notes import commented
from umstack.spark.umpcap_parts import UmpcapOptions

_FILES = 32
"""Files of a table that a task reads."""


def table_schema(name: str) -> StructType:
    """Return the columns of a table, with those of its partitions."""
    return commented(with_partitions(_schema(name)))


def _schema(name: str) -> pa.Schema:
    return schemas()[layer_of(name) or ""][name]


@dataclass
class TableFiles(InputPartition):
    """Files of a table, with their day and session."""

    files: list[tuple[str, date, str]]


@dataclass
class Captures(InputPartition):
    """Captures that a table is computed from, by one task: sessions and points may be in all of them."""

    files: list[str]


class TableReader(DataSourceReader):
    """Reads one table."""

    def __init__(self, schema: StructType, options: UmpcapOptions) -> None:
        self._names = schema.fieldNames()
        self._options = options
        if unknown := set(self._names) - set(with_partitions(_schema(options.rows)).names):
            raise CaptureError(
                f"{options.rows} has no column {', '.join(sorted(unknown))}", hint="docs/tables.md lists them"
            )

    def partitions(self) -> list[InputPartition]:
        """Return the files of the table; for captures one task that computes it."""
        paths = self._options.paths
        found = _files(paths[0], self._options.rows) if len(paths) == 1 else None
        if found is not None:
            # Spark would read a partition None if there were no partitions.
            starts = range(0, max(1, len(found)), _FILES)
            return [TableFiles(found[start : start + _FILES]) for start in starts]
        return [Captures(capture_files(paths))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read files, or compute the table of captures."""
        if isinstance(partition, TableFiles):
            tables = self._options.paths[0]
            filesystem = filesystem_of(tables)[0] if is_remote(tables) else None
            for path, day, session in partition.files:
                rows = pq.read_table(path, partitioning=None, filesystem=filesystem)
                yield from self._shaped(rows, day, session)
        elif isinstance(partition, Captures):
            for session, day, rows in _computed(partition.files, self._options):
                yield from self._shaped(rows, day, session)
        else:
            raise TypeError(f"{type(partition).__name__} is not a part of a table")

    def _shaped(self, rows: pa.Table, day: date, session: str) -> list[pa.RecordBatch]:
        """Return the wanted columns; one that an older version did not write is null."""
        schema = _schema(self._options.rows)
        whole = pa.concat_tables([schema.empty_table(), rows], promote_options="default")
        whole = whole.select(schema.names).cast(schema)
        whole = whole.append_column("date", pa.repeat(pa.scalar(day, pa.date32()), len(whole)))
        whole = whole.append_column("session", pa.repeat(session, len(whole)))
        batches: list[pa.RecordBatch] = whole.select(self._names).combine_chunks().to_batches()
        return batches


def reader_of_files(tables: str, name: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that reads files of a table on the workers; its rows are their path, day and session."""
    reader = TableReader(table_schema(name), UmpcapOptions.of({"path": tables, "rows": name}))

    def read(files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in files:
            wanted = [(row["path"], row["day"], row["session"]) for row in batch.to_pylist()]
            yield from reader.read(TableFiles(wanted))

    return read


def _files(tables: str, name: str) -> list[tuple[str, date, str]] | None:
    """Return the files of a table with their day and session; None if `tables` has no tables but captures."""
    layer = layer_of(name) or ""
    if is_remote(tables):
        return None if stored_settings(tables) is None else stored_rows(tables, layer, name)
    if Layout(local_path(tables)).settings() is None:
        return None
    layout, _ = opened(tables)
    found = [
        (layout.partition(layer, name, day, session) / "rows.parquet", day, session)
        for session, days in layout.sessions().items()
        for day in days
    ]
    return [(str(file), day, session) for file, day, session in found if file.exists()]


def _computed(files: list[str], options: UmpcapOptions) -> Iterator[tuple[str, date, pa.Table]]:
    """Yield session, day and rows of a table, as a pipeline derives them."""
    counter, doubles = Counter(DAY_NS, spills=True), copies(files)
    for file in files:
        if file in doubles:
            counter.note(file, f"the same as {doubles[file]}, not read again")
            continue
        notes = CaptureNotes()
        for batch in decode(
            file,
            only_ours=True,
            ports=options.ports,
            notes=notes,
            tally=counter.tally,
            hardware_times=options.hardware_times,
        ):
            counter.take(batch)
        for note in notes.notes:
            counter.note(file, note.template, note.count)
    for key, by_day in _by_session(counter.facts()).items():
        for _, name, day, rows in session_rows(key, by_day, mtu=1500):
            if name == options.rows and len(rows):
                yield session_name(*key), day, arrow(rows).cast(_schema(name))


def _by_session(windows: dict[int, Facts]) -> dict[tuple[str, int], dict[date, Facts]]:
    found: dict[tuple[str, int], dict[date, Facts]] = {}
    for window_ns, facts in windows.items():
        rows = packed(facts, window_ns)
        places: dict[tuple[str, int], list[int]] = {}
        for place, one in enumerate(rows.select(SESSION).to_pylist()):
            places.setdefault((one["publisher"], one["session_id"]), []).append(place)
        for key, of_session in places.items():
            facts_of_session = unpacked([rows.take(of_session)])[window_ns]
            found.setdefault(key, {})[day_of(window_ns)] = facts_of_session
    return found
