"""Sinks for live findings: lines for people, rows for programs, Parquet files.

Metrics are in umstack.monitor.finding_metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from umstack.capture.reading.schema import LBTTCP
from umstack.errors import naming_path
from umstack.monitor.finding_watch import INCIDENTS, STORMS
from umstack.monitor.window_findings import FINDINGS, RECOVERY, TABLES, TRAFFIC
from umstack.report.findings import CAUSES, Severity, storm, suggestion
from umstack.report.quantities import bit_rate, count, duration, session_name, share

Row = dict[str, Any]

SUGGESTIONS = "suggestions"

_ORDER = ("publisher", "receiver", "option")
IDENTITY = (
    *("publisher", "session_id", "receiver", "point", "from_point", "to_point", "option", "topic_index"),
    *("source_address", "destination_address", "kind", "status", "topic", "text"),
    *("recovery", "request_port"),
)
"""The columns that identify a row within a window."""

_REPEATED_TOPICS = ("recovery", "fill")
"""Topics of findings that, with severity note, only repeat the lines of the windows of traffic and recovery."""
_CHANGED = 1.25
"""A suggestion is repeated when its value differs by more than this factor."""
SUGGESTIONS_MAX = 10_000
"""Suggestions whose last value is remembered."""


class Sink(Protocol):
    """Receives the new or changed rows of windows, and each incident, storm and finding once."""

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Process rows of a table made by `FindingWatch`."""


class Lines:
    """Describes rows in sentences, one per line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._suggested: dict[tuple[str, int, str], int] = {}

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Describe the rows. Skips tables whose findings are separate sentences."""
        describe = _DESCRIBE.get(kind)
        if describe is None:
            return
        for row in sorted(rows, key=lambda row: (row["from"], *(row.get(name) or "" for name in _ORDER))):
            text = describe(row, window_seconds)
            if text and (kind != SUGGESTIONS or self._is_new(row)):
                self._say(f"{row['from']:%H:%M:%S} {text}")

    def _is_new(self, row: Row) -> bool:
        """Return true if a suggestion was not shown yet, or its value has changed considerably."""
        key = (row["publisher"], row["session_id"], row["option"])
        shown = self._suggested.get(key)
        if shown is not None and max(shown, row["value"]) <= _CHANGED * min(shown, row["value"]):
            return False
        self._suggested.pop(key, None)
        if len(self._suggested) == SUGGESTIONS_MAX:
            del self._suggested[next(iter(self._suggested))]
        self._suggested[key] = row["value"]
        return True


def _traffic(row: Row, window_seconds: float) -> str:
    if row["receiver"]:
        if not row["requests"]:
            return ""
        who = f"{session_name(row)}: {row['receiver']}"
        return f"{who} requested {count(row['requests'])} datagrams in {count(row['naks'])} NAKs"
    text = f"{session_name(row)}, {row['transport']}: "
    if row["transport"] != LBTTCP:
        text += f"{count(row['datagrams'] / window_seconds)} datagrams/s, "
    text += f"{bit_rate(row['bytes'] / window_seconds)}, {count(row['messages'] / window_seconds)} messages/s"
    if row["fill"] is not None:
        text += f", {share(row['fill'])} of the MTU"
    if row["retransmissions"]:
        ratio = row["retransmissions"] / max(1, row["datagrams"])
        text += f", {count(row['retransmissions'])} retransmitted ({share(ratio)})"
    if row["refused"]:
        text += f", {count(row['refused'])} requests refused or delayed"
    return text


def _recovery(row: Row, _window_seconds: float) -> str:
    return (
        f"{session_name(row)}: {count(row['lost'])} lost, {count(row['repaired'])} repaired; from NAK to repair "
        f"{duration(row['request_p50'])} (median), {duration(row['request_p99'])} (99th percentile)"
    )


def _incident(row: Row, _window_seconds: float) -> str:
    who = row["receiver"] or "a receiver whose NAKs were not captured"
    text = f"{session_name(row)}: {who} lost {count(row['lost'])} {'datagram' if row['lost'] == 1 else 'datagrams'}"
    if row["lost"] > 1:
        lasted_ns = row["end_ns"] - row["start_ns"]
        text += f" in {duration(lasted_ns)}, at most {count(row['longest_run'])} in a row"
    if row["unrepaired"]:
        text += f", {count(row['unrepaired'])} not repaired yet"
    return f"{text}{_ongoing(row)}: {row['cause']}, {CAUSES[row['cause']]}"


def _storm(row: Row, _window_seconds: float) -> str:
    return f"{session_name(row)}: a NAK storm{_ongoing(row)}: {storm(row)}"


def _suggestion(row: Row, _window_seconds: float) -> str:
    return suggestion(row)


def _finding(row: Row, _window_seconds: float) -> str:
    if row["topic"] == "suggestion" or (
        row["topic"] in _REPEATED_TOPICS and row["severity"] == Severity.NOTE.name.lower()
    ):
        return ""
    return str(row["text"])


def _ongoing(row: Row) -> str:
    return " (ongoing)" if row["ongoing"] else ""


_DESCRIBE = {
    TRAFFIC: _traffic,
    RECOVERY: _recovery,
    INCIDENTS: _incident,
    STORMS: _storm,
    SUGGESTIONS: _suggestion,
    FINDINGS: _finding,
}
_KINDS = (TRAFFIC, RECOVERY, INCIDENTS, STORMS, FINDINGS, *TABLES)


class Windows:
    """Keeps the latest rows of every window until the end of a run over existing captures."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], Row] = {}

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Keep the rows, replacing older ones of the same window."""
        for row in rows:
            self._rows[kind, str(row["from"]), *(str(row.get(name)) for name in IDENTITY)] = row

    def rows(self, kind: str) -> list[Row]:
        """Return the rows of a kind in order of time."""
        return [row for key, row in sorted(self._rows.items()) if key[0] == kind]

    def to_dict(self) -> dict[str, list[Row]]:
        """Return the rows by kind in order of time, with times as text."""
        return {
            kind: [
                row | {"from": row["from"].isoformat(), "to": row["to"].isoformat()}
                for row in self.rows(kind)
            ]
            for kind in _KINDS
        }


class Parts(Protocol):
    """Writes the tables of batches. A repeated batch replaces its earlier output, if the format allows it."""

    def write(self, kind: str, number: int, table: pa.Table) -> None:
        """Write the rows of a batch."""


class ParquetParts:
    """A Parquet folder: one file for each batch with rows. A repeated batch replaces its file."""

    def __init__(self, folder: Path, name: str) -> None:
        """`name` distinguishes the files of different streams."""
        self._folder = folder
        self._name = name

    def write(self, kind: str, number: int, table: pa.Table) -> None:
        """Write the rows of a batch."""
        if not len(table):
            return
        folder = self._folder / kind
        file = f"part-{self._name}-{number:012d}.parquet"
        hidden = folder / f".{file}"
        with naming_path(f"writing {folder / file}"):
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, hidden)
            hidden.replace(folder / file)
