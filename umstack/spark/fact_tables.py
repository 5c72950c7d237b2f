"""The tables of a report, made by Spark: workers make facts from parts of captures, then the tables of each session.

Of large captures, the workers first omit the times that no table needs (umstack.analysis.needed_times). The worker
that makes the tables of a session then gets facts in proportion to its losses, not to its packets.

Only facts and tables are sent between processes. The driver collects the tables and holds them as the engine without
Spark does (umstack.analysis.tables).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from umstack.analysis import needed_times
from umstack.analysis.needed_times import EVERYTHING, NOTHING, Ranges, needed, outline
from umstack.analysis.tables import Tables, tables_of_part, together
from umstack.capture.reading.capture_files import capture_files, total_bytes
from umstack.facts.facts import Facts
from umstack.facts.kept_times import NotKeptError
from umstack.facts.kinds import SESSION
from umstack.facts.packed import NO_SESSION, PACKED, PACKETS, from_ipc, ipc, packed, unpacked, with_sends
from umstack.facts.sends import Sends, Stream
from umstack.facts.sessions import Session
from umstack.spark.umpcap import UmpcapDataSource
from umstack.spark.umpcap_manifest import find_splits
from umstack.spark.umpcap_parts import TARGET_BYTES

_TABLES = pa.schema([("table", pa.string()), ("rows", pa.binary())])
_SLICE_ROWS = 1 << 20
"""Maximum length of a row with a table; a longer table is split into several rows, because Spark limits rows."""
_PART = "part"
_FAN_IN = 32
"""Partitions whose facts are merged before those of the whole session are."""
_MERGED_BYTES = _FAN_IN * TARGET_BYTES
"""Captures of this length or less have so few partitions that their facts are merged at once, with all times."""
_OUTLINED = ("sends", "references", "rare")
"""The frames from which the needed times are determined."""
_NEEDED = pa.schema(
    [
        *(PACKED.field(name) for name in SESSION),
        ("firsts", pa.list_(pa.int64())),
        ("lasts", pa.list_(pa.int64())),
    ]
)


def facts_frame(spark: SparkSession, captures: Sequence[str], hardware_times: bool = False) -> DataFrame:
    """Return the packed facts of captures, one row for each frame of a session and part of a capture."""
    spark.dataSource.register(UmpcapDataSource)
    find_splits(spark, captures, hardwareTimes=str(hardware_times).lower())
    reader = spark.read.format(UmpcapDataSource.name()).option("rows", "facts").option("notes", "true")
    reader = reader.option("hardwareTimes", str(hardware_times).lower())
    return reader.load(list(captures))


@contextmanager
def thinned(facts: DataFrame) -> Iterator[DataFrame]:
    """Return packed facts without the times that no table needs. Each worker reads the facts of a partition at a time.

    The facts are stored by the executors until the end of the block, because they are read twice.
    """
    packed_schema, needed_schema = from_arrow_schema(PACKED), from_arrow_schema(_NEEDED)
    stored = facts.persist()
    try:
        outlines = stored.where(F.col("frame").isin(*_OUTLINED)).mapInArrow(_outline, packed_schema)
        found = outlines.groupBy(*SESSION).applyInArrow(_needed, needed_schema).toArrow()
        numbers = {
            (row["publisher"], row["session_id"]): Ranges(
                np.array(row["firsts"], np.int64), np.array(row["lasts"], np.int64)
            )
            for row in found.to_pylist()
        }
        shared = facts.sparkSession.sparkContext.broadcast(numbers)
        yield stored.mapInArrow(_thinner(shared), packed_schema)
    finally:
        stored.unpersist()


def _outline(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (with_sends(batch, lambda _, sends: outline(sends)) for batch in rows)


def _needed(key: tuple[pa.Scalar, ...], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    session = (key[0].as_py(), key[1].as_py())
    try:
        facts = unpacked(rows, spills=True).get(0, Facts())
        numbers = needed(facts).get(session, NOTHING)
    except NotKeptError:
        numbers = EVERYTHING  # its parts overlap in time
    yield pa.record_batch([[session[0]], [session[1]], [numbers.firsts], [numbers.lasts]], schema=_NEEDED)


def _thinner(
    numbers: Broadcast[dict[Session, Ranges]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that omits times, on the executors."""

    def thin(stream: Stream, sends: Sends) -> Sends:
        return needed_times.thinned(sends, numbers.value[stream[1:3]])

    return lambda rows: (with_sends(batch, thin) for batch in rows)


def merged(facts: DataFrame) -> DataFrame:
    """Return packed facts in fewer rows: workers merge those of neighbouring partitions, several per session at a time.

    Facts merge in any order, so one session is merged by all workers.
    """
    numbered = facts.withColumn(_PART, F.floor(F.spark_partition_id() / _FAN_IN))
    return numbered.groupBy(*SESSION, _PART).applyInArrow(_merge, from_arrow_schema(PACKED))


def _merge(_key: tuple[pa.Scalar, ...], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for window_ns, facts in unpacked(rows, spills=True).items():
        yield from packed(facts, window_ns).to_batches()


def _analyst(mtu: int) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Return the function that makes the tables of one session from all its facts, on the executors."""

    def analyse(key: tuple[pa.Scalar, ...], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        facts = unpacked(rows, spills=True).get(0, Facts())
        found = list(_sent(tables_of_part(facts, mtu)))
        if (key[0].as_py(), key[1].as_py()) == NO_SESSION:
            found.append((PACKETS, facts.packets.to_bytes(8, "little")))
        for name, content in found:
            yield pa.record_batch([[name], [content]], schema=_TABLES)

    return analyse


def _sent(tables: Tables) -> list[tuple[str, bytes]]:
    return [
        (name, ipc(part.to_arrow(compat_level=pl.CompatLevel.oldest())))
        for name, table in tables.items()
        for part in table.iter_slices(_SLICE_ROWS)
        if len(part)
    ]


def tables_by_spark(
    spark: SparkSession, captures: Sequence[str], mtu: int, hardware_times: bool = False
) -> tuple[Tables, int]:
    """Return the tables of captures, as from `umstack.analysis.tables.tables_of`, and the number of packets."""
    facts = facts_frame(spark, captures, hardware_times)
    if total_bytes(capture_files(captures)) > _MERGED_BYTES:
        with thinned(facts) as thin:
            return tables_of_frame(merged(thin), mtu)
    return tables_of_frame(facts, mtu)


def tables_of_frame(facts: DataFrame, mtu: int) -> tuple[Tables, int]:
    """Return the tables of packed facts, and the number of packets."""
    by_session = facts.groupBy(*SESSION)
    made = by_session.applyInArrow(_analyst(mtu), from_arrow_schema(_TABLES)).toArrow()
    packets, parts = 0, list[Tables]()
    for row in made.to_pylist():
        if row["table"] == PACKETS:
            packets = int.from_bytes(row["rows"], "little")
        else:
            table = pl.from_arrow(from_ipc(row["rows"]))
            assert isinstance(table, pl.DataFrame)
            parts.append({row["table"]: table})
    return together(parts), packets
