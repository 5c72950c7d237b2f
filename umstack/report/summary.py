"""What of the tables goes into the page: as much as a person reads, collected from Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import NOTE, SESSION
from umstack.analysis.rates import BUCKET_NS, at_one_point
from umstack.report.tables import Tables

Row = dict[str, Any]

_MOST_ROWS = 50
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


# What makes a row of a table come first, the largest; the page shows no more than it can.
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
# Histograms are shown whole, from the left.
_WHOLE = {"recovery_histogram", "fill_histogram"}


def summarise(tables: Tables) -> Summary:
    """Collect the page's rows."""
    summary = Summary()
    for name, order in _ORDER.items():
        if name not in tables.names:
            continue
        frame = tables.read(name)
        if name == "recovery_histogram":
            frame = frame.groupBy("from_ns", "to_ns").agg(F.sum("losses").alias("losses"))
        elif name == "fill_histogram":
            frame = frame.groupBy("from", "to").agg(F.sum("datagrams").alias("datagrams"))
        whole = name in _WHOLE
        rows = frame.orderBy(F.asc(order) if whole else F.desc(order)).limit(10 * _MOST_ROWS if whole else _MOST_ROWS).collect()
        summary.tables[name] = [row.asDict(recursive=True) for row in rows]
        summary.totals[name] = len(rows) if len(rows) < _MOST_ROWS else frame.count()
    summary.tables["causes"] = _causes(tables.read("incidents"))
    summary.tables["lost"] = _lost(tables.read("losses"))
    summary.tables["missing"] = [
        row.asDict() for row in tables.read("gaps").groupBy("point").agg(F.sum("missing").alias("missing")).collect()
    ]
    summary.tables["notes"] = [row for row in summary["remarks"] if row["kind"] == NOTE]
    _timelines(tables, summary)
    return summary


def _causes(incidents: DataFrame) -> list[Row]:
    grouped = incidents.groupBy("cause").agg(
        F.count("*").alias("incidents"),
        F.sum("lost").alias("lost"),
        F.sum("unrepaired").alias("unrepaired"),
        F.max(F.col("end_ns") - F.col("start_ns")).alias("longest_ns"),
        F.max("longest_run").alias("longest_run"),
        F.size(F.collect_set("receiver")).alias("receivers"),
    )
    return [row.asDict() for row in grouped.orderBy(F.desc("lost")).collect()]


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
    lost = tables.read("losses").groupBy(binned("lost_ns")).agg(
        F.count("*").alias("lost"), F.count_if(F.col("repaired_ns").isNull()).alias("unrepaired")
    )
    summary.timeline = [row.asDict() for row in sent.orderBy("start_ns").collect()]
    summary.lost_timeline = [row.asDict() for row in lost.orderBy("start_ns").collect()]
