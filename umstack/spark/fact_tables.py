"""The tables of a report, made by Spark: workers make facts from parts of captures, then the tables of each session.

Only facts and tables are sent between processes. The driver collects the tables and holds them as the engine without
Spark does (umstack.analysis.tables).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from umstack.analysis.tables import Tables, tables_of_part, together
from umstack.capture.reading.capture_files import capture_files, total_bytes
from umstack.facts.facts import Facts
from umstack.facts.kinds import SESSION
from umstack.facts.packed import NO_SESSION, PACKED, PACKETS, from_ipc, ipc, packed, unpacked
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
"""Captures of this length or less have so few partitions that their facts are merged at once."""


def facts_frame(spark: SparkSession, captures: Sequence[str], hardware_times: bool = False) -> DataFrame:
    """Return the packed facts of captures, one row for each frame of a session and part of a capture."""
    spark.dataSource.register(UmpcapDataSource)
    find_splits(spark, captures, hardwareTimes=str(hardware_times).lower())
    reader = spark.read.format(UmpcapDataSource.name()).option("rows", "facts").option("notes", "true")
    reader = reader.option("hardwareTimes", str(hardware_times).lower())
    return reader.load(list(captures))


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
        facts = merged(facts)
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
