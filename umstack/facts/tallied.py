"""Converts the counts of the core's tally into rows of facts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from umstack.capture.reading.schema import LBTRM, LBTRU
from umstack.facts.kinds import COPY, COPY_STATUS, DATA
from umstack.facts.marks import Sender
from umstack.facts.points import point_name
from umstack.facts.schema import frame_schema
from umstack.facts.sends import Sends, Stream
from umstack.facts.sessions import session_number

_FIRST_MULTICAST, _BEHIND_MULTICAST = 224, 240
_UNICAST = 1 << 31
"""UM_TALLY_UNICAST of the core."""
_NAMES = {
    "counts": {"packet_count": "packets", "message_count": "messages"},
    "rates": {"datagram_count": "datagrams"},
    "receiver_rates": {"datagram_count": "datagrams"},
    "sizes": {"datagram_count": "datagrams"},
    "topics": {"message_count": "messages", "fragment_count": "fragments"},
    "references": {},
}
"""The columns with different names in the facts and in the core, by frame."""


_ARRAYS = ("rates", "sizes", "topics", "references")
"""The frames that have the same name in the core."""


@dataclass(slots=True)
class Tallied:
    """The facts of one window of time in a tally."""

    packets: int = 0
    sends: list[tuple[Stream, Sends]] = field(default_factory=list)
    marks: list[tuple[Sender, Any]] = field(default_factory=list)
    frames: list[tuple[str, pl.DataFrame]] = field(default_factory=list)


def tallied(
    found: dict[str, Any], path: str, interfaces: Sequence[str | None], window_ns: int
) -> dict[int, Tallied]:
    """Return the facts by window. Without windows everything is at key 0."""
    streams = found["streams"]
    windows = streams["window_ns"] if window_ns else np.zeros(len(streams), np.int64)
    keys = _keys(streams, path, interfaces).with_columns(pl.Series("window_ns", windows))
    by_window: dict[int, Tallied] = defaultdict(Tallied)
    for at, packets in zip(windows.tolist(), streams["packet_count"].tolist(), strict=True):
        by_window[at].packets += packets
    for copies in found["copies"]:
        of_window = by_window[int(copies["window_ns"]) if window_ns else 0]
        packets = int(copies["packet_count"])
        of_window.packets += packets
        point = point_name(path, interfaces[int(copies["interface"])])
        of_window.frames.append(("remarks", copies_remark(point, packets)))
    for stream, sends in _sends(found["sends"]):
        point, publisher, session_id, receiver, at = keys.select(
            "point", "publisher", "session_id", "receiver", "window_ns"
        ).row(stream)
        by_window[at].sends.append(((point, publisher, session_id, receiver or ""), sends))
    for at, sender, marks in _marks(found["marks"], keys):
        by_window[at].marks.append((sender, marks))
    for name in ("counts", *_ARRAYS):
        numbers = streams if name == "counts" else found[name]
        whose = np.arange(len(streams)) if name == "counts" else numbers["stream"]
        if name == "rates":
            unicast = (streams["key"] & _UNICAST != 0)[whose]
            parts = [("rates", ~unicast), ("receiver_rates", unicast)]
        else:
            parts = [(name, np.ones(len(whose), np.bool_))]
        for frame, chosen in parts:
            for at, rows in _frames(frame, numbers[chosen], whose[chosen], keys):
                by_window[at].frames.append((frame, rows))
    return by_window


def copies_remark(point: str, packets: int) -> pl.DataFrame:
    """Return the row of `remarks` with the number of copies at a point."""
    row = {"point": point, "kind": COPY, "status": COPY_STATUS, "packets": packets}
    return pl.DataFrame([row], frame_schema("remarks"))


def _keys(streams: Any, path: str, interfaces: Sequence[str | None]) -> pl.DataFrame:
    rows = []
    for stream in streams:
        interface = int(stream["interface"])
        source, destination = (
            ".".join(map(str, stream[name].tolist())) for name in ("source", "destination")
        )
        is_group = _FIRST_MULTICAST <= stream["destination"][0] < _BEHIND_MULTICAST
        group = f"{destination}:{stream['destination_port']}" if is_group else None
        name = interfaces[interface] if interface < len(interfaces) else None
        key = int(stream["key"])
        unicast, block = bool(key & _UNICAST), key & (_UNICAST - 1)
        receiver = f"{destination}:{stream['destination_port']}" if unicast else None
        point = point_name(path, name)
        number = session_number(key >> 32, int(stream["port"]))
        rows.append((point, source, number, receiver, group, DATA, block, LBTRU if unicast else LBTRM))
    names = ("point", "publisher", "session_id", "receiver", "group", "kind", "block", "transport")
    types = {name: frame_schema("counts")[name] for name in names}
    return pl.DataFrame(rows, types, orient="row")


def _sends(sends: Any) -> Iterator[tuple[int, Sends]]:
    """Return copies of the first sendings by stream, because the tally's memory is reused."""
    streams = sends["stream"]
    if not len(streams):
        return
    if (streams == streams[0]).all():
        yield int(streams[0]), _copied(sends)
        return
    # Sixteen-bit keys are sorted by counting.
    order = np.argsort(streams.astype(np.uint16), kind="stable")
    counts = np.bincount(streams)
    ends = np.cumsum(counts)
    for stream in np.flatnonzero(counts).tolist():
        yield stream, _copied(sends[order[ends[stream] - counts[stream] : ends[stream]]])


def _marks(marks: Any, keys: pl.DataFrame) -> Iterator[tuple[int, Sender, Any]]:
    """Yield the marks of each window and sender, which has several streams over LBT-RU."""
    if not len(marks):
        return
    whose = keys.select("window_ns", "point", "publisher", "session_id").rows()
    numbers = {one: at for at, one in enumerate(dict.fromkeys(whose))}
    of_marks = np.array([numbers[one] for one in whose])[marks["stream"]]
    for (window_ns, *sender), number in numbers.items():
        if (chosen := of_marks == number).any():
            yield window_ns, (sender[0], sender[1], sender[2]), marks[chosen]


def _copied(sends: Any) -> Sends:
    return Sends.of(sends["sqn"].copy(), sends["time_ns"].copy())


def _frames(name: str, numbers: Any, whose: Any, keys: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """Return the rows of a frame, by window."""
    if not len(whose):
        return
    schema = frame_schema(name)
    called = _NAMES[name]
    columns = {
        called.get(column, column): numbers[column].copy()
        for column in numbers.dtype.names
        if called.get(column, column) in schema
    }
    # The core's number names a key of counts. The key gives its meaning.
    known = keys[whose].select(pl.exclude(*columns))
    rows = known.hstack(pl.DataFrame(columns))
    missing = [pl.lit(None, schema[column]).alias(column) for column in schema if column not in rows.columns]
    if name in ("rates", "receiver_rates"):
        missing = [pl.lit(0, schema[one]).alias(one) for one in ("retransmissions", "retransmitted_bytes")]
    whole = rows.with_columns(missing)
    shaped = whole.select(*(pl.col(column).cast(kind) for column, kind in schema.items()), "window_ns")
    if (whole["window_ns"] == whole["window_ns"][0]).all():
        yield whole["window_ns"][0], shaped.drop("window_ns")
        return
    for (at,), part in shaped.partition_by("window_ns", as_dict=True, include_key=False).items():
        yield at, part
