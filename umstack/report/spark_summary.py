"""The page's rows out of tables that Spark made: what is small is read here, what grows with time by Spark."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from umstack.analysis.rates import at_one_point
from umstack.facts.kinds import SESSION
from umstack.report.summary import SUMMARISED, Row, Summary, Timelines, summary_of
from umstack.report.tables import Tables


def summarise(tables: Tables) -> Summary:
    """The summary of tables that were written."""
    small = {name: _load(tables, name) for name in SUMMARISED if name in tables.names}
    return summary_of(small, _lost(tables.read("losses")), _timelines(tables))


def _load(tables: Tables, name: str) -> pa.Table:
    """A table as it lies on disk; without a file of it, its columns without rows."""
    path = tables.local_path(name)
    empty = to_arrow_schema(tables.read(name).schema).empty_table()
    parts = [pq.read_table(file, partitioning=None) for file in sorted(path.glob("*.parquet"))]
    return pa.concat_tables([empty, *parts], promote_options="permissive")


def _lost(losses: DataFrame) -> Row:
    whole = losses.agg(
        F.count("*").alias("losses"),
        F.count("repaired_ns").alias("repaired"),
        F.count_distinct(*SESSION, "sqn").alias("datagrams"),
        F.sum("naks").alias("naks"),
    )
    [row] = whole.collect()
    found: Row = row.asDict()
    return found


def _timelines(tables: Tables) -> Timelines:
    rates = at_one_point(tables.read("rates"))
    [span] = rates.agg(F.min("start_ns").alias("low"), F.max("start_ns").alias("high")).collect()
    if span["low"] is None:
        return Timelines()
    lines = Timelines.between(span["low"], span["high"])
    start, bin_ns = lines.start_ns, lines.bin_ns

    def binned(time: str) -> Column:
        return F.expr(f"(({time} - {start}) div {bin_ns}) * {bin_ns} + {start}").alias("start_ns")

    sent = rates.groupBy(binned("start_ns")).agg(
        F.sum("bytes").alias("bytes"),
        F.sum("retransmitted_bytes").alias("retransmitted_bytes"),
        F.max("bytes").alias("peak_bytes"),
    )
    lost = (
        tables.read("losses")
        .groupBy(binned("lost_ns"))
        .agg(F.count("*").alias("lost"), F.count_if(F.col("repaired_ns").isNull()).alias("unrepaired"))
    )
    lines.sent = [row.asDict() for row in sent.orderBy("start_ns").collect()]
    lines.lost = [row.asDict() for row in lost.orderBy("start_ns").collect()]
    return lines
