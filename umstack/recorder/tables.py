"""The tables of a recorder: messages, events of their sessions, and the transports' counters for each interval.

In the journal a row has the schema defined here. In Parquet it also has `time` (or `received`), the same instant in
microseconds as Spark uses, and the partition columns `day` and `session`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from umstack.batch import Batch
from umstack.events import (
    BeginningOfSession,
    BurstLoss,
    CutLoose,
    EndOfSession,
    Event,
    InterfaceChanged,
    NakCutoff,
    StaleTags,
    UnrecoverableLoss,
)
from umstack.recorder.journal import arrow
from umstack.telemetry.counters import Counter, CounterKind, schema

if TYPE_CHECKING:
    import pyarrow

NS_PER_S = 1_000_000_000

_RATES = {"messages_per_second": "lbm_msgs_rcved", "bytes_per_second": "bytes_rcved"}
"""Columns with the growth rate of a counter within the interval."""


@dataclass(frozen=True, slots=True)
class Table:
    """One kind of row: its columns, and those with its time and transport session."""

    name: str
    schema: pyarrow.Schema
    time_column: str
    session_column: str
    """"LBTRM:ip:port:session:group:port" or "LBTRU:ip:port:session", with or without the topic index in brackets."""

    @property
    def instant_column(self) -> str:
        """Name of the time column in Parquet, in microseconds."""
        return self.time_column.removesuffix("_ns")


@cache
def messages() -> Table:
    """Every message, in the order the recorder took it."""
    pa = arrow()
    columns = [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("received_ns", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
    return Table("messages", pa.schema(columns), "received_ns", "source")


@cache
def events() -> Table:
    """Starts and ends of sessions, and unrecoverably lost topic sequence numbers."""
    pa = arrow()
    columns = [
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("first_sequence_number", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("lost", pa.int64(), nullable=False),
    ]
    return Table("events", pa.schema(columns), "time_ns", "source")


def _counters() -> tuple[Counter, ...]:
    return schema().group("receiver_transport").core_counters


@cache
def transports() -> Table:
    """The counters of each receiving transport session in an interval: datagrams, gaps, NAKs, repairs, losses.

    Counters and the number of recovered datagrams are the growth within the interval, and rates are that growth per
    second; snapshots, means, extremes and percentiles are the values at its end.
    """
    pa = arrow()
    columns = [
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("interval_ns", pa.int64(), nullable=False),
        pa.field("transport", pa.string(), nullable=False),
        *(pa.field(name, pa.float64()) for name in _RATES),
        *(pa.field(c.name, pa.int64() if c.scale == 1 else pa.float64()) for c in _counters()),
        pa.field("recovered", pa.int64()),
        pa.field("recovery_p50_ms", pa.float64()),
        pa.field("recovery_p99_ms", pa.float64()),
    ]
    return Table("transports", pa.schema(columns), "time_ns", "transport")


def all_tables() -> tuple[Table, ...]:
    """Every table; each has its own journal."""
    return messages(), events(), transports()


def message_rows(batch: Batch) -> pyarrow.RecordBatch:
    """The messages of a batch. The payloads reference the batch and are not copied."""
    pa = arrow()
    rows = batch.to_arrow()
    columns = [
        rows.column("topic").dictionary_decode(),
        rows.column("source").dictionary_decode(),
        rows.column("sequence_number").cast(pa.int64()),
        rows.column("received_ns").view(pa.int64()),
        rows.column("payload"),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=messages().schema)


def event_rows(batch: Batch, now_ns: int) -> pyarrow.RecordBatch:
    """The events of a batch that are not messages."""
    found = [row for event in batch.events() if (row := _event_row(event, now_ns)) is not None]
    return arrow().RecordBatch.from_pylist(found, schema=events().schema)


def _event_row(event: Event, now_ns: int) -> dict[str, Any] | None:
    row: dict[str, Any] = {"time_ns": now_ns, "topic": event.topic, "source": event.source, "lost": 0}
    match event:
        case BeginningOfSession():
            return row | {"kind": "beginning_of_session"}
        case EndOfSession():
            return row | {"kind": "end_of_session"}
        case NakCutoff():
            return row | {"kind": "nak_cutoff"}
        case StaleTags():
            return row | {"kind": "stale_tags"}
        case InterfaceChanged():
            return row | {"kind": f"interface_{event.change}", "source": event.interface}
        case CutLoose():
            return row | _numbers(event.first_sequence_number, event.sequence_number) | {"kind": "cut_loose"}
        case UnrecoverableLoss():
            number = event.sequence_number
            return row | _numbers(number, number) | {"kind": "unrecoverable_loss", "lost": 1}
        case BurstLoss():
            first, last = event.first_sequence_number, event.sequence_number
            lost = ((last - first) & 0xFFFFFFFF) + 1
            return row | _numbers(first, last) | {"kind": "burst_loss", "lost": lost}
    return None


def _numbers(first: int, last: int) -> dict[str, int]:
    return {"first_sequence_number": first, "sequence_number": last}


class TransportIntervals:
    """Turns readings of a context's counters into rows: the changes since the previous reading."""

    def __init__(self, monotonic_ns: int) -> None:
        self._last_ns = monotonic_ns
        self._last: dict[str, Mapping[str, Any]] = {}

    def rows(
        self, readings: Iterable[Mapping[str, Any]], now_ns: int, monotonic_ns: int
    ) -> pyarrow.RecordBatch:
        """Rows for the transports of a reading (Context.stats()["receiver_transports"]).

        `now_ns` is the rows' wall-clock time. The interval is one of `monotonic_ns`, which no clock step changes.
        """
        current = {reading["transport"]: reading for reading in readings}
        interval_ns = monotonic_ns - self._last_ns
        rows = []
        for transport, reading in current.items():
            changes = _changes(reading, self._last.get(transport, {}))
            row = {"time_ns": now_ns, "interval_ns": interval_ns, "transport": transport}
            rows.append(row | changes | _rates(changes, interval_ns))
        self._last, self._last_ns = current, monotonic_ns
        return arrow().RecordBatch.from_pylist(rows, schema=transports().schema)


def _rates(changes: Mapping[str, Any], interval_ns: int) -> dict[str, float]:
    """The rates over the interval, which is not empty."""
    return {rate: changes[name] * NS_PER_S / interval_ns for rate, name in _RATES.items()}


def _changes(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    changes = {name: now.get(name) for name in transports().schema.names if name in now}
    growing = [c.name for c in _counters() if c.kind is CounterKind.COUNTER]
    for name in (*growing, "recovered"):
        if now.get(name) is not None:
            changes[name] = now[name] - (before.get(name) or 0)
    changes.pop("transport", None)
    return changes
