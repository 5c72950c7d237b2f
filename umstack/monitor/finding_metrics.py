"""Live findings as metrics: gauges for the latest window, counters for events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server, write_to_textfile

from umstack.errors import naming_path
from umstack.facts.sessions import parts_of
from umstack.monitor.finding_watch import INCIDENTS, STORMS
from umstack.monitor.sinks import Row
from umstack.monitor.window_findings import FINDINGS, RECOVERY, TRAFFIC
from umstack.report.findings import topic_name


@dataclass(frozen=True, slots=True)
class _Metric:
    """A metric made from the rows of a table."""

    table: str
    column: str | None
    """The column with the value; None counts the rows."""
    labels: tuple[str, ...]
    text: str


_RECEIVER = ("publisher", "session", "receiver")
_SESSION = ("publisher", "session")
_POINT = ("publisher", "session", "point")
_PAIR = ("publisher", "session", "from_point", "to_point")
_TOPIC = ("publisher", "session", "topic")
_STORE = ("store", "store_port", "client", "topic_index")
_RECOVERY = ("publisher", "receiver", "topic", "recovery")
_CAUSE = (*_RECEIVER, "cause")


def _gauges(table: str, labels: tuple[str, ...], texts: dict[str, str]) -> dict[str, _Metric]:
    return {name: _Metric(table, name, labels, text) for name, text in texts.items()}


_GAUGES = {
    **_gauges(
        TRAFFIC,
        _RECEIVER,
        {
            "datagrams": "New datagrams in the window.",
            "bytes": "Bytes on the wire in the window, retransmissions included.",
            "messages": "Messages in the window.",
            "retransmissions": "Retransmitted datagrams in the window.",
            "naks": "NAK packets in the window.",
            "requests": "Sequence numbers requested by NAKs in the window.",
            "refused": "Sequence numbers that the source refused or delayed in the window.",
        },
    ),
    **_gauges(
        RECOVERY,
        _RECEIVER,
        {
            "lost": "Datagrams lost by at least one receiver in the window.",
            "repaired": "Datagrams lost in the window with a retransmission in the capture.",
            "request_p50": "Nanoseconds from NAK to retransmission, median.",
            "request_p99": "Nanoseconds from NAK to retransmission, 99th percentile.",
        },
    ),
    "topic_messages": _Metric("topics", "messages", _TOPIC, "Messages of a topic in the window."),
    "topic_payload_bytes": _Metric(
        "topics", "payload_bytes", _TOPIC, "Payload bytes of a topic in the window."
    ),
    **_gauges(
        "rate_summary",
        _POINT,
        {"peak_bytes_per_second": "Bytes per second in the busiest millisecond of the window."},
    ),
    **_gauges(
        "latency",
        _PAIR,
        {
            "latency_p50": "Nanoseconds from one capture point to another, median.",
            "latency_p99": "Nanoseconds from one capture point to another, 99th percentile.",
        },
    ),
    **_gauges(
        "stores",
        _STORE,
        {
            "stability_p50": "Nanoseconds from a sending to its acknowledgement by the Store, median.",
            "stability_p99": "Nanoseconds from a sending to its acknowledgement by the Store, 99th percentile.",
        },
    ),
    "suggested": _Metric(
        "suggestions", "value", (*_SESSION, "option"), "Suggested value of an option, in its unit."
    ),
}
_COUNTERS = {
    "loss_incidents": _Metric(INCIDENTS, None, _CAUSE, "Loss incidents."),
    "incident_losses": _Metric(INCIDENTS, "lost", _CAUSE, "Datagrams lost in incidents."),
    "nak_storms": _Metric(STORMS, None, _SESSION, "NAK storms."),
    "nak_storm_requests": _Metric(STORMS, "requests", _SESSION, "Sequence numbers requested in NAK storms."),
    "findings": _Metric(FINDINGS, None, ("topic", "severity"), "Findings of windows."),
    "useless_repair_bytes": _Metric("repairs", "useless_bytes", _POINT, "Bytes retransmitted without need."),
    "lost_repairs": _Metric("lost_repairs", "lost", _PAIR, "Retransmissions lost between two points."),
    "recovered_messages": _Metric(
        "recoveries",
        "messages",
        _RECOVERY,
        "Messages fetched over TCP: late join, off-transport recovery, Stores.",
    ),
    "store_stable_messages": _Metric("stores", "stable", _STORE, "Messages that a Store acknowledged."),
    "store_lost_messages": _Metric("stores", "lost", _STORE, "Messages that a Store has given up."),
    "store_refusals": _Metric("stores", "refused", _STORE, "Registrations that a Store refused."),
    "connects": _Metric(
        "clients",
        "connects",
        _RECEIVER,
        "Connections of LBT-TCP receivers, and connection requests of LBT-RU receivers.",
    ),
    "disconnects": _Metric(
        "clients", "closes", _RECEIVER, "Closed LBT-TCP connections: segments with FIN or RST."
    ),
    "missing_messages": _Metric(
        "clients", "missing", _RECEIVER, "Fragments and messages missing from LBT-TCP connections."
    ),
    "copied_datagrams": _Metric("duplicates", "copies", _POINT, "Additional copies of datagrams."),
    "missing_datagrams": _Metric(
        "gaps",
        "missing",
        _POINT,
        "Datagrams, and messages of LBT-TCP, whose first transmission was not captured.",
    ),
    "over_mtu_datagrams": _Metric("datagram_fill", "over_mtu", _POINT, "Datagrams that exceed the MTU."),
    "ip_fragments": _Metric(
        "ip_fragments", "fragments", ("source_address", "destination_address"), "IP fragments."
    ),
    "remarks": _Metric(
        "remarks",
        "packets",
        ("point", "kind", "status"),
        "Packets that are malformed, truncated or fragments.",
    ),
}


SERIES_MAX = 20_000
"""Series of all metrics together."""


class FindingMetrics:
    """Serves metrics over HTTP on a port, or writes them to a text file for the node exporter."""

    def __init__(self, port: int | None = None, text_file: Path | None = None) -> None:
        self._registry = CollectorRegistry()
        self._text_file = text_file
        self._gauges = {
            name: Gauge(f"umstack_{name}", one.text, one.labels, registry=self._registry)
            for name, one in _GAUGES.items()
        }
        self._counters = {
            name: Counter(f"umstack_{name}", one.text, one.labels, registry=self._registry)
            for name, one in _COUNTERS.items()
        }
        self._notes = Counter(
            "umstack_capture_notes",
            "Notes on captures: truncated, damaged, or a copy that is not read.",
            ["point"],
            registry=self._registry,
        )
        self._latest: dict[tuple[str, ...], Any] = {}
        if port is not None:
            start_http_server(port, registry=self._registry)

    def take(self, kind: str, rows: Iterable[Row], window_seconds: float) -> None:
        """Set the gauges to the latest window of each set of labels; add to the counters."""
        for row in rows:
            self._set(kind, row)
            self._count(kind, row)
        self._write()

    def note(self, point: str) -> None:
        """Count a note on a capture at a point."""
        self._notes.labels(point).inc()
        self._write()

    def _write(self) -> None:
        if self._text_file is not None:
            with naming_path(f"writing {self._text_file}"):
                write_to_textfile(str(self._text_file), self._registry)

    def _set(self, kind: str, row: Row) -> None:
        for name, one in _GAUGES.items():
            value = None if one.column is None else row.get(one.column)
            if one.table != kind or value is None:
                continue
            labels = _values(one, row)
            latest = self._latest.get((name, *labels), row["from"])
            self._keep(name, labels, max(row["from"], latest))
            if row["from"] >= latest:
                self._gauges[name].labels(*labels).set(value)

    def _count(self, kind: str, row: Row) -> None:
        for name, one in _COUNTERS.items():
            if one.table == kind:
                amount = 1 if one.column is None else row[one.column] or 0
                labels = _values(one, row)
                self._keep(name, labels, row["from"])
                self._counters[name].labels(*labels).inc(amount)

    def _keep(self, name: str, labels: tuple[str, ...], latest: Any) -> None:
        """Note the latest window of a series. Beyond the limit, the series set longest ago is removed.

        Captures decide how many sessions there are. A counter that returns begins at 0, as after a restart.
        """
        self._latest.pop((name, *labels), None)
        self._latest[name, *labels] = latest
        if len(self._latest) > SERIES_MAX:
            oldest, *values = next(iter(self._latest))
            del self._latest[oldest, *values]
            (self._gauges.get(oldest) or self._counters[oldest]).remove(*values)


def _values(metric: _Metric, row: Row) -> tuple[str, ...]:
    named = dict(row)
    if {"topic", "topic_index"} <= row.keys():
        named["topic"] = topic_name(row)
    if row.get("session_id") is not None:
        number = row["session_id"]
        session_id, port = parts_of(number)
        text = f"{session_id:08x} port {port}" if port else f"{session_id:08x}"
        named["session"] = text if number >= 0 else f"port {-number}"
    return tuple(str(named.get(label) or "") for label in metric.labels)
