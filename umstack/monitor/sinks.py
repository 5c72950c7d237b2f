"""Where live findings go: lines for people, rows for who asks at the end, Parquet for what is no window of Spark's.

Metrics are in umstack.monitor.finding_metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from umstack.capture.reading.schema import LBTTCP
from umstack.monitor.finding_watch import INCIDENTS, STORMS
from umstack.monitor.window_findings import FINDINGS, RECOVERY, TABLES, TRAFFIC
from umstack.report.findings import CAUSES, Severity, storm, suggestion
from umstack.report.quantities import bit_rate, count, duration, session_name, share

Row = dict[str, Any]

SUGGESTIONS = "suggestions"

_ORDER = ("publisher", "receiver", "option")
TELLING = (
    *("publisher", "session_id", "receiver", "point", "from_point", "to_point", "option", "topic_index"),
    *("source_address", "destination_address", "kind", "status", "topic", "text"),
    *("recovery", "request_port"),
)
"""What tells rows of a window apart."""

_SAID_BY_WINDOWS = ("recovery", "fill")
"""Topics of findings that only repeat, as long as all is well, what the windows of traffic and recovery say."""
_CHANGED = 1.25
"""A suggestion is said again when its value differs by more than this factor."""


class Sink(Protocol):
    """Takes the rows of windows that are new or have changed, and incidents, storms and findings, each once."""

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Rows of a table that `FindingWatch` gave."""


class Lines:
    """Sentences, a line each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._suggested: dict[tuple[str, int, str], int] = {}

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Say what the windows hold. Tables whose findings are sentences of their own are not said."""
        describe = _DESCRIBE.get(kind)
        if describe is None:
            return
        for row in sorted(rows, key=lambda row: (row["from"], *(row.get(name) or "" for name in _ORDER))):
            text = describe(row, window_seconds)
            if text and (kind != SUGGESTIONS or self._is_new(row)):
                self._say(f"{row['from']:%H:%M:%S} {text}")

    def _is_new(self, row: Row) -> bool:
        """Whether a suggestion was not said yet, or with quite another value."""
        key = (row["publisher"], row["session_id"], row["option"])
        said = self._suggested.get(key)
        if said is not None and max(said, row["value"]) <= _CHANGED * min(said, row["value"]):
            return False
        self._suggested[key] = row["value"]
        return True


def _traffic(row: Row, window_seconds: float) -> str:
    if row["receiver"]:
        if not row["requests"]:
            return ""
        who = f"{session_name(row)}: {row['receiver']}"
        return f"{who} asked for {count(row['requests'])} datagrams in {count(row['naks'])} NAKs"
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
        text += f", {count(row['refused'])} requests refused or put off"
    return text


def _recovery(row: Row, _window_seconds: float) -> str:
    return (
        f"{session_name(row)}: {count(row['lost'])} lost, {count(row['repaired'])} repaired, from NAK to repair "
        f"{duration(row['request_p50'])} at the median, {duration(row['request_p99'])} at the 99th percentile"
    )


def _incident(row: Row, _window_seconds: float) -> str:
    who = row["receiver"] or "a receiver whose NAKs were not captured"
    text = f"{session_name(row)}: {who} lost {count(row['lost'])} {'datagram' if row['lost'] == 1 else 'datagrams'}"
    if row["lost"] > 1:
        lasted_ns = row["end_ns"] - row["start_ns"]
        text += f" in {duration(lasted_ns)}, up to {count(row['longest_run'])} in a row"
    if row["unrepaired"]:
        text += f", {count(row['unrepaired'])} without a repair yet"
    return f"{text}{_ongoing(row)}: {row['cause']}, {CAUSES[row['cause']]}"


def _storm(row: Row, _window_seconds: float) -> str:
    return f"{session_name(row)}: a NAK storm{_ongoing(row)}: {storm(row)}"


def _suggestion(row: Row, _window_seconds: float) -> str:
    return suggestion(row)


def _finding(row: Row, _window_seconds: float) -> str:
    if row["topic"] == "suggestion" or (
        row["topic"] in _SAID_BY_WINDOWS and row["severity"] == Severity.NOTE.name.lower()
    ):
        return ""
    return str(row["text"])


def _ongoing(row: Row) -> str:
    return " and goes on" if row["ongoing"] else ""


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
    """The latest rows of every window, kept for who asks when all is taken in."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], Row] = {}

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Keep the rows in place of older ones of the same window."""
        for row in rows:
            self._rows[kind, str(row["from"]), *(str(row.get(name)) for name in TELLING)] = row

    def rows(self, kind: str) -> list[Row]:
        """The rows of a kind, in order of time."""
        return [row for key, row in sorted(self._rows.items()) if key[0] == kind]

    def to_dict(self) -> dict[str, list[Row]]:
        """The rows by kind, in order of time, with times as text."""
        return {
            kind: [
                row | {"from": row["from"].isoformat(), "to": row["to"].isoformat()}
                for row in self.rows(kind)
            ]
            for kind in _KINDS
        }


class Parts(Protocol):
    """Takes the tables of batches; a batch that is done again replaces its own, where the format can."""

    def write(self, kind: str, number: int, table: pa.Table) -> None:
        """The rows of a batch."""


class ParquetParts:
    """A folder of Parquet: a file for each batch that had rows. A batch that is done again replaces its own."""

    def __init__(self, folder: Path, name: str) -> None:
        """`name` tells the files of one stream from those of another."""
        self._folder = folder
        self._name = name

    def write(self, kind: str, number: int, table: pa.Table) -> None:
        """The rows of a batch."""
        if not len(table):
            return
        folder = self._folder / kind
        folder.mkdir(parents=True, exist_ok=True)
        file = f"part-{self._name}-{number:012d}.parquet"
        hidden = folder / f".{file}"
        pq.write_table(table, hidden)
        hidden.replace(folder / file)
