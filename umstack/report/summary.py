"""Selects the rows of the tables for the page, limited to a number that a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from umstack.facts.kinds import BUCKET_NS, NOTE
from umstack.facts.points import series_of

Row = dict[str, Any]

MOST_ROWS = 50
_TIMELINE_BINS = 600


@dataclass(slots=True)
class Run:
    """Datagrams sent and lost from `start_ns` to `end_ns`, in bins of `bin_ns`."""

    start_ns: int
    end_ns: int
    bin_ns: int
    sent: list[Row] = field(default_factory=list)
    lost: list[Row] = field(default_factory=list)

    @classmethod
    def between(cls, low_ns: int, high_ns: int) -> Run:
        """Return an empty run from the first millisecond to the last, with at most as many bins as the page is wide."""
        start_ns, end_ns = low_ns, high_ns + BUCKET_NS
        width = -(-(end_ns - start_ns) // _TIMELINE_BINS)
        return cls(start_ns, end_ns, max(BUCKET_NS, -(-width // BUCKET_NS) * BUCKET_NS))


@dataclass(slots=True)
class Summary:
    """The rows of the page, by table, and its timelines."""

    tables: dict[str, list[Row]] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    """Periods in which something was sent, with long pauses between them."""
    expected_loss: float | None = None
    """Share of datagrams (0 to 1) that the network was set to lose on the way to each receiver."""

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
    "recoveries": "fragments",
    "stores": "stable",
    "clients": "messages",
    "client_totals": "clients",
    "duplicates": "copies",
    "gaps": "missing",
    "nak_storms": "requests",
    "stalls": "stall_ns",
    "suggestions": "losses_helped",
    "latency": "datagrams",
    "ip_fragments": "fragments",
    "remarks": "packets",
}
"""The column that sorts each table, largest first; the page shows only the first rows."""
_TIES = (
    "publisher",
    "session_id",
    "point",
    "receiver",
    "recovery",
    "store",
    "store_port",
    "client",
    "topic_index",
    "option",
    "from_point",
    "to_point",
    "status",
    "start_ns",
)
SUMMARISED = tuple(_ORDER)
"""The tables that a summary is made from, besides losses and rates."""
# Histograms are shown whole, from the left.
_WHOLE = {"recovery_histogram", "fill_histogram"}


def summary_of(
    tables: Mapping[str, pa.Table], lost: Row, runs: list[Run], captures: Sequence[str]
) -> Summary:
    """Return the page's rows, from tables that are small by nature. Data that grows with time is aggregated already:
    `lost` (counts of losses) and `runs`."""
    summary = Summary(runs=runs)
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
    summary.tables["stall_totals"] = _stall_totals(tables["stalls"])
    summary.tables["lost"] = [lost]
    # Gaps of LBT-TCP connections are reported with their receiver.
    of_datagrams = tables["gaps"].filter(pc.is_null(tables["gaps"]["topic_index"]))
    missing = _added(of_datagrams, ["point"], "missing")
    summary.tables["missing"] = missing.sort_by(
        [("missing", "descending"), ("point", "ascending")]
    ).to_pylist()
    # The notes come from the whole table, because the page's rows could omit them among many remarks.
    notes = (
        tables["remarks"]
        .filter(pc.field("kind") == NOTE)
        .sort_by([("status", "ascending"), ("point", "ascending")])
    )
    summary.totals["notes"] = len(notes)
    summary.tables["notes"] = notes.slice(0, MOST_ROWS).to_pylist()
    name_sessions(summary, captures)
    return summary


def name_sessions(summary: Summary, captures: Sequence[str] = ()) -> None:
    """Add each session's topics to its rows, and its capture folders if the captures are in several folders."""
    topics: dict[tuple[str, int], list[str]] = {}
    for row in summary["topics"]:
        if row["topic"]:
            topics.setdefault((row["publisher"], row["session_id"]), []).append(row["topic"])
    folders = _folders(summary["sessions"], captures)
    for rows in summary.tables.values():
        for row in rows:
            key = (row.get("publisher", ""), row.get("session_id", 0))
            if named := topics.get(key):
                row["topics"] = sorted(named)
            if where := folders.get(key):
                row["folders"] = sorted(where)


def _folders(sessions: Sequence[Row], captures: Sequence[str]) -> dict[tuple[str, int], set[str]]:
    paths = [PurePath(capture) for capture in captures]
    if len({path.parent for path in paths}) < 2:
        return {}
    files = {(series_of(str(path)), path.parent.name) for path in paths}
    found: dict[tuple[str, int], set[str]] = {}
    for row in sessions:
        ends = {row["point"], row["point"].rpartition(":")[0]}
        where = {folder for series, folder in files if any(_is_end(series, end) for end in ends)}
        found.setdefault((row["publisher"], row["session_id"]), set()).update(where)
    return found


def _is_end(path: str, end: str) -> bool:
    return bool(end) and (path == end or path.endswith(f"/{end}"))


def most_first(name: str, table: pa.Table) -> pa.Table:
    """Return the table in the order of the page; ties are broken by further columns, so that the order is stable."""
    ties = [(column, "ascending") for column in _TIES if column in table.column_names]
    return table.sort_by([(_ORDER[name], "descending"), *ties])


def _added(table: pa.Table, keys: list[str], value: str) -> pa.Table:
    """Return one row per combination of the keys, with the sum of `value`."""
    return table.group_by(keys).aggregate([(value, "sum")]).rename_columns([*keys, value])


def _stall_totals(stalls: pa.Table) -> list[Row]:
    keys = ["publisher", "session_id", "point"]
    grouped = stalls.group_by(keys).aggregate([("stall_ns", "count"), ("stall_ns", "sum")])
    order = [("stall_ns", "descending"), *((key, "ascending") for key in keys)]
    rows: list[Row] = grouped.rename_columns([*keys, "stalls", "stall_ns"]).sort_by(order).to_pylist()
    return rows


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
