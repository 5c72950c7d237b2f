"""Where live findings go: lines for people, metrics for Prometheus, Parquet for what is no window of Spark's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server, write_to_textfile

from umstack.monitor.incident_watch import INCIDENTS, STORMS
from umstack.report.findings import CAUSES, storm
from umstack.report.quantities import bit_rate, count, duration, session_name, share

Row = dict[str, Any]

TRAFFIC, RECOVERY = "traffic", "recovery"

_GAUGES = {
    "datagrams": "New datagrams in the window.",
    "bytes": "Bytes on the wire in the window, retransmissions included.",
    "messages": "Messages in the window.",
    "retransmissions": "Retransmitted datagrams in the window.",
    "naks": "NAK packets in the window.",
    "requests": "Sequence numbers asked for by NAKs in the window.",
    "refused": "Sequence numbers the source refused or put off in the window.",
    "lost": "Datagrams lost by somebody, in the window.",
    "repaired": "Of these, seen to be repaired.",
    "request_p50": "Nanoseconds from NAK to repair, median.",
    "request_p99": "Nanoseconds from NAK to repair, 99th percentile.",
}


_INCIDENT_LABELS = ("publisher", "session", "receiver", "cause")
_STORM_LABELS = ("publisher", "session")
# Counted: the row's column that is added (1 of each row otherwise), and the labels.
_COUNTERS = {
    "loss_incidents": (INCIDENTS, None, _INCIDENT_LABELS, "Loss incidents."),
    "incident_losses": (INCIDENTS, "lost", _INCIDENT_LABELS, "Datagrams lost in incidents."),
    "nak_storms": (STORMS, None, _STORM_LABELS, "NAK storms."),
    "nak_storm_requests": (STORMS, "requests", _STORM_LABELS, "Sequence numbers asked for in NAK storms."),
}


class Sink(Protocol):
    """Takes the rows of windows that are new or have changed, and incidents and storms, each once."""

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Rows of `traffic_windows` or `recovery`, or of what `IncidentWatch` found."""


class Lines:
    """Sentences, a line each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Say what the windows hold."""
        describe = _DESCRIBE[kind]
        for row in sorted(rows, key=lambda row: (row["from"], row["publisher"], row.get("receiver") or "")):
            if text := describe(row, window_seconds):
                self._say(f"{row['from']:%H:%M:%S} {session_name(row)}: {text}")


def _traffic(row: Row, window_seconds: float) -> str:
    if row["receiver"]:
        if not row["requests"]:
            return ""
        return f"{row['receiver']} asked for {count(row['requests'])} datagrams in {count(row['naks'])} NAKs"
    text = (
        f"{count(row['datagrams'] / window_seconds)} datagrams/s, {bit_rate(row['bytes'] / window_seconds)}, "
        f"{count(row['messages'] / window_seconds)} messages/s"
    )
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
        f"{count(row['lost'])} lost, {count(row['repaired'])} repaired, from NAK to repair "
        f"{duration(row['request_p50'])} at the median, {duration(row['request_p99'])} at the 99th percentile"
    )


def _incident(row: Row, _window_seconds: float) -> str:
    who = row["receiver"] or "a receiver whose NAKs were not captured"
    text = f"{who} lost {count(row['lost'])} {'datagram' if row['lost'] == 1 else 'datagrams'}"
    if row["lost"] > 1:
        lasted_ns = row["end_ns"] - row["start_ns"]
        text += f" in {duration(lasted_ns)}, up to {count(row['longest_run'])} in a row"
    if row["unrepaired"]:
        text += f", {count(row['unrepaired'])} without a repair yet"
    return f"{text}{_ongoing(row)}: {row['cause']}, {CAUSES[row['cause']]}"


def _storm(row: Row, _window_seconds: float) -> str:
    return f"a NAK storm{_ongoing(row)}: {storm(row)}"


def _ongoing(row: Row) -> str:
    return " and goes on" if row["ongoing"] else ""


_DESCRIBE = {TRAFFIC: _traffic, RECOVERY: _recovery, INCIDENTS: _incident, STORMS: _storm}


class Windows:
    """The latest rows of every window, kept for who asks when all is taken in."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], Row] = {}

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Keep the rows in place of older ones of the same window."""
        for row in rows:
            key = (
                kind,
                str(row["from"]),
                str(row["publisher"]),
                str(row["session_id"]),
                str(row.get("receiver")),
            )
            self._rows[key] = row

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
            for kind in _DESCRIBE
        }


class Prometheus:
    """Gauges of the latest window and counts of what happened, served over HTTP on a port or written to a text file for
    the node exporter."""

    def __init__(self, port: int | None = None, text_file: Path | None = None) -> None:
        self._registry = CollectorRegistry()
        self._text_file = text_file
        self._gauges = {
            name: Gauge(
                f"umstack_{name}", text, ["publisher", "session", "receiver"], registry=self._registry
            )
            for name, text in _GAUGES.items()
        }
        self._counters = {
            name: Counter(f"umstack_{name}", text, labels, registry=self._registry)
            for name, (_, _, labels, text) in _COUNTERS.items()
        }
        self._notes = Counter(
            "umstack_capture_notes",
            "What captures do not hold or is not read of them: truncated, damaged, a copy.",
            ["point"],
            registry=self._registry,
        )
        self._latest: dict[tuple[str, str, int, str], Any] = {}
        if port is not None:
            start_http_server(port, registry=self._registry)

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Set the gauges to the latest window of each session and receiver; count what happened."""
        if kind in (INCIDENTS, STORMS):
            self._count(kind, rows)
        else:
            self._set(kind, rows)
        self._write()

    def note(self, point: str) -> None:
        """Count a note about a capture of a point."""
        self._notes.labels(point).inc()
        self._write()

    def _write(self) -> None:
        if self._text_file is not None:
            write_to_textfile(str(self._text_file), self._registry)

    def _count(self, kind: str, rows: Iterable[Row]) -> None:
        for row in rows:
            named = {
                "publisher": row["publisher"],
                "session": f"{row['session_id']:08x}",
                "receiver": row.get("receiver") or "",
                "cause": row.get("cause"),
            }
            for name, (counted, column, labels, _) in _COUNTERS.items():
                if counted == kind:
                    amount = 1 if column is None else row[column]
                    self._counters[name].labels(*(named[label] for label in labels)).inc(amount)

    def _set(self, kind: str, rows: Iterable[Row]) -> None:
        for row in rows:
            receiver = row.get("receiver") or ""
            key = (kind, row["publisher"], row["session_id"], receiver)
            if key in self._latest and row["from"] < self._latest[key]:
                continue
            self._latest[key] = row["from"]
            labels = (row["publisher"], f"{row['session_id']:08x}", receiver)
            for name, gauge in self._gauges.items():
                if row.get(name) is not None:
                    gauge.labels(*labels).set(row[name])


class Parts:
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
