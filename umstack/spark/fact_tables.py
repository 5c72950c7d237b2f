"""The tables of a report, made by Spark: workers make facts from parts of captures, then the tables of each session.

Only facts and tables are sent between processes. The driver collects the tables and holds them as the engine without
Spark does (umstack.analysis.tables).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from umstack.analysis.tables import Tables, tables_of_part, together
from umstack.facts.facts import Facts
from umstack.facts.kinds import SESSION
from umstack.facts.packed import NO_SESSION, PACKETS, from_ipc, ipc, unpacked
from umstack.spark.umpcap import UmpcapDataSource
from umstack.spark.umpcap_manifest import find_splits

_TABLES = pa.schema([("table", pa.string()), ("rows", pa.binary())])
_SLICE_ROWS = 1 << 20
"""Maximum length of a row with a table; a longer table is split into several rows, because Spark limits rows."""


def facts_frame(spark: SparkSession, captures: Sequence[str], hardware_times: bool = False) -> DataFrame:
    """Return the packed facts of captures, one row for each frame of a session and part of a capture."""
    spark.dataSource.register(UmpcapDataSource)
    find_splits(spark, captures, hardwareTimes=str(hardware_times).lower())
    reader = spark.read.format(UmpcapDataSource.name()).option("rows", "facts").option("notes", "true")
    reader = reader.option("hardwareTimes", str(hardware_times).lower())
    return reader.load(list(captures))


def _analyst(mtu: int) -> Callable[[tuple[pa.Scalar, ...], pa.Table], pa.Table]:
    """Return the function that makes the tables of one session from all its facts, on the executors."""

    def analyse(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
        facts = unpacked([rows]).get(0, Facts())
        found = list(_sent(tables_of_part(facts, mtu)))
        if (key[0].as_py(), key[1].as_py()) == NO_SESSION:
            found.append((PACKETS, facts.packets.to_bytes(8, "little")))
        names, contents = zip(*found, strict=True) if found else ((), ())
        return pa.table([pa.array(names, pa.string()), pa.array(contents, pa.binary())], schema=_TABLES)

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
    by_session = facts_frame(spark, captures, hardware_times).groupBy(*SESSION)
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
