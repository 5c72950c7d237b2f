"""Where live findings go: lines for people, gauges for Prometheus. (Parquet is Spark's own sink.)"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Gauge, start_http_server, write_to_textfile

from umstack.analysis.nak_storms import MINIMUM_PER_SECOND
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


class Sink(Protocol):
    """Takes the rows of windows that are new or have changed."""

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Rows of `traffic_windows` or `recovery_windows`."""


class Lines:
    """Sentences, a line each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Say what the windows hold."""
        describe = _traffic if kind == TRAFFIC else _recovery
        for row in sorted(rows, key=lambda row: (row["from"], row["publisher"], row.get("receiver") or "")):
            if text := describe(row, window_seconds):
                self._say(f"{row['from']:%H:%M:%S} {session_name(row)}: {text}")


def _traffic(row: Row, window_seconds: float) -> str:
    if row["receiver"]:
        if not row["requests"]:
            return ""
        storm = row["requests"] >= MINIMUM_PER_SECOND * window_seconds
        said = f"{row['receiver']} asked for {count(row['requests'])} datagrams in {count(row['naks'])} NAKs"
        return f"{said}: a NAK storm" if storm else said
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

    def to_dict(self) -> dict[str, list[Row]]:
        """The rows by kind, in order of time, with times as text."""
        found: dict[str, list[Row]] = {TRAFFIC: [], RECOVERY: []}
        for key, row in sorted(self._rows.items()):
            told = {"from": row["from"].isoformat(), "to": row["to"].isoformat()}
            found[key[0]].append(row | told)
        return found


class Prometheus:
    """Gauges of the latest window, served over HTTP on a port or written to a text file for the node exporter."""

    def __init__(self, port: int | None = None, text_file: Path | None = None) -> None:
        self._registry = CollectorRegistry()
        self._text_file = text_file
        self._gauges = {
            name: Gauge(
                f"umstack_{name}", text, ["publisher", "session", "receiver"], registry=self._registry
            )
            for name, text in _GAUGES.items()
        }
        self._latest: dict[tuple[str, str, int, str], Any] = {}
        if port is not None:
            start_http_server(port, registry=self._registry)

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Set the gauges to the latest window of each session and receiver."""
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
        if self._text_file is not None:
            write_to_textfile(str(self._text_file), self._registry)
