"""What of the tables goes into the page: as much as a person reads, collected from Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from umstack.analysis.observations import NOTE, SESSION
from umstack.analysis.rates import BUCKET_NS, at_one_point
from umstack.report.tables import Tables

Row = dict[str, Any]

MOST_ROWS = 50
_TIMELINE_BINS = 600


@dataclass(slots=True)
class Summary:
    """The rows of the page, by table, and its timeline."""

    tables: dict[str, list[Row]] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    timeline: list[Row] = field(default_factory=list)
    lost_timeline: list[Row] = field(default_factory=list)
    bin_ns: int = BUCKET_NS
    start_ns: int = 0
    end_ns: int = 0

    def __getitem__(self, name: str) -> list[Row]:
        return self.tables.get(name, [])


_ORDER = {
    "sessions": "datagrams",
    "topics": "payload_bytes",
    "incidents": "lost",
    "recovery_latency": "lost",
    "recovery_histogram": "from_ns",
    "rate_summary": "peak_bytes_per_second",
    "bursts": "bytes",
    "datagram_fill": "datagrams",
    "fill_histogram": "from",
    "repairs": "retransmissions",
    "duplicates": "copies",
    "gaps": "missing",
    "nak_storms": "requests",
    "suggestions": "losses_helped",
    "latency": "datagrams",
    "ip_fragments": "fragments",
    "remarks": "packets",
}
"""What makes a row of a table come first, the largest; the page shows no more than it can."""
_TIES = (
    "publisher",
    "session_id",
    "point",
    "receiver",
    "option",
    "from_point",
    "to_point",
    "status",
    "start_ns",
)
# Histograms are shown whole, from the left.
_WHOLE = {"recovery_histogram", "fill_histogram"}


def summarise(tables: Tables) -> Summary:
    """Take the page's rows out of the tables. What is small by nature is read here, what grows with time by Spark."""
    summary = Summary()
    for name, order in _ORDER.items():
        if name not in tables.names:
            continue
        table = _load(tables, name)
        if name == "recovery_histogram":
            table = _added(table, ["from_ns", "to_ns"], "losses")
        elif name == "fill_histogram":
            table = _added(table, ["from", "to"], "datagrams")
        summary.totals[name] = len(table)
        summary.tables[name] = (
            table.sort_by(order).to_pylist()
            if name in _WHOLE
            else most_first(name, table).slice(0, MOST_ROWS).to_pylist()
        )
    incidents = _load(tables, "incidents")
    summary.tables["causes"] = _causes(incidents)
    summary.tables["lost"] = _lost(tables.read("losses"))
    summary.tables["missing"] = _added(_load(tables, "gaps"), ["point"], "missing").to_pylist()
    # Not of the remarks on the page: where there are many, these would be the last of them.
    notes = _load(tables, "remarks").filter(pc.field("kind") == NOTE).sort_by("status")
    summary.totals["notes"] = len(notes)
    summary.tables["notes"] = notes.slice(0, MOST_ROWS).to_pylist()
    _timelines(tables, summary)
    return summary


def most_first(name: str, table: pa.Table) -> pa.Table:
    """A table in the order of the page; of equals the same comes first whenever it is asked for."""
    ties = [(column, "ascending") for column in _TIES if column in table.column_names]
    return table.sort_by([(_ORDER[name], "descending"), *ties])


def _load(tables: Tables, name: str) -> pa.Table:
    """A table as it lies on disk; without a file of it, its columns without rows."""
    path = tables.local_path(name)
    empty = to_arrow_schema(tables.read(name).schema).empty_table()
    parts = [pq.read_table(file, partitioning=None) for file in sorted(path.glob("*.parquet"))]
    return pa.concat_tables([empty, *parts], promote_options="permissive")


def _added(table: pa.Table, keys: list[str], value: str) -> pa.Table:
    """One row for each of the keys, with the sum of a value."""
    return table.group_by(keys).aggregate([(value, "sum")]).rename_columns([*keys, value])


def _causes(incidents: pa.Table) -> list[Row]:
    lasted = pc.subtract(incidents["end_ns"], incidents["start_ns"])
    grouped = (
        incidents.append_column("lasted_ns", lasted)
        .group_by("cause")
        .aggregate(
            [
                ("cause", "count"),
                ("lost", "sum"),
                ("unrepaired", "sum"),
                ("lasted_ns", "max"),
                ("longest_run", "max"),
                ("receiver", "count_distinct"),
            ]
        )
    )
    names = ["cause", "incidents", "lost", "unrepaired", "longest_ns", "longest_run", "receivers"]
    rows: list[Row] = grouped.rename_columns(names).sort_by([("lost", "descending")]).to_pylist()
    return rows


def _lost(losses: DataFrame) -> list[Row]:
    whole = losses.agg(
        F.count("*").alias("losses"),
        F.count("repaired_ns").alias("repaired"),
        F.count_distinct(*SESSION, "sqn").alias("datagrams"),
        F.sum("naks").alias("naks"),
    )
    return [row.asDict() for row in whole.collect()]


def _timelines(tables: Tables, summary: Summary) -> None:
    rates = at_one_point(tables.read("rates"))
    [span] = rates.agg(F.min("start_ns").alias("low"), F.max("start_ns").alias("high")).collect()
    if span["low"] is None:
        return
    summary.start_ns, summary.end_ns = span["low"], span["high"] + BUCKET_NS
    width = -(-(summary.end_ns - summary.start_ns) // _TIMELINE_BINS)
    summary.bin_ns = max(BUCKET_NS, -(-width // BUCKET_NS) * BUCKET_NS)
    start, bin_ns = summary.start_ns, summary.bin_ns

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
    summary.timeline = [row.asDict() for row in sent.orderBy("start_ns").collect()]
    summary.lost_timeline = [row.asDict() for row in lost.orderBy("start_ns").collect()]
