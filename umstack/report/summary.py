"""What of the tables goes into the page: as much as a person reads, whatever made the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from umstack.facts.kinds import BUCKET_NS, NOTE

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
    "lost_repairs": "lost",
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
SUMMARISED = tuple(_ORDER)
"""The tables a summary is made of, besides losses and rates."""
# Histograms are shown whole, from the left.
_WHOLE = {"recovery_histogram", "fill_histogram"}


def summary_of(tables: Mapping[str, pa.Table], lost: Row, timelines: Timelines) -> Summary:
    """The page's rows out of tables that are small by nature; what grows with time comes added up: `lost`, the losses
    counted, and the timelines."""
    summary = Summary()
    for name, order in _ORDER.items():
        if name not in tables:
            continue
        table = tables[name]
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
    summary.tables["causes"] = _causes(tables["incidents"])
    summary.tables["lost"] = [lost]
    missing = _added(tables["gaps"], ["point"], "missing")
    summary.tables["missing"] = missing.sort_by(
        [("missing", "descending"), ("point", "ascending")]
    ).to_pylist()
    # Not of the remarks on the page: where there are many, these would be the last of them.
    notes = (
        tables["remarks"]
        .filter(pc.field("kind") == NOTE)
        .sort_by([("status", "ascending"), ("point", "ascending")])
    )
    summary.totals["notes"] = len(notes)
    summary.tables["notes"] = notes.slice(0, MOST_ROWS).to_pylist()
    summary.timeline, summary.lost_timeline = timelines.sent, timelines.lost
    summary.bin_ns, summary.start_ns, summary.end_ns = timelines.bin_ns, timelines.start_ns, timelines.end_ns
    return summary


@dataclass(slots=True)
class Timelines:
    """What was sent and lost over the time from `start_ns` to `end_ns`, in bins of `bin_ns`."""

    sent: list[Row] = field(default_factory=list)
    lost: list[Row] = field(default_factory=list)
    bin_ns: int = BUCKET_NS
    start_ns: int = 0
    end_ns: int = 0

    @classmethod
    def between(cls, low_ns: int, high_ns: int) -> Timelines:
        """Empty ones, from the first millisecond to the last; no more bins than a page is wide."""
        start_ns, end_ns = low_ns, high_ns + BUCKET_NS
        width = -(-(end_ns - start_ns) // _TIMELINE_BINS)
        return cls(
            bin_ns=max(BUCKET_NS, -(-width // BUCKET_NS) * BUCKET_NS), start_ns=start_ns, end_ns=end_ns
        )


def most_first(name: str, table: pa.Table) -> pa.Table:
    """A table in the order of the page; of equals the same comes first whenever it is asked for."""
    ties = [(column, "ascending") for column in _TIES if column in table.column_names]
    return table.sort_by([(_ORDER[name], "descending"), *ties])


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
    rows: list[Row] = (
        grouped.rename_columns(names).sort_by([("lost", "descending"), ("cause", "ascending")]).to_pylist()
    )
    return rows
