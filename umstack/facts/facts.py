"""Facts: what the analyses need of captures, counted once where packets are decoded.

The facts of two parts of a capture, merged in any order, are those of both: counts add up, spans widen, rows are kept
in an order of their own. So a part may be a file of a rotation, a split, or what has grown since. Sequence numbers are
those of the wire; what unwraps them is a fact as well (`references`).

Memory: 12 bytes for each first sending a point of capture saw, a row for each millisecond of a session, and whole rows
for NAKs, NCFs and retransmissions alone. Errors: `CaptureError` of files that cannot be read. Nothing here is shared by
threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

import polars as pl
import pyarrow as pa

from umstack.capture import CaptureNotes, decode
from umstack.capture.split import Split
from umstack.facts.kinds import (
    BUCKET_NS,
    DATA,
    EPOCH_NS,
    KINDS,
    NAK,
    NCF,
    NEEDED,
    NOTE,
    RETRANSMISSION,
    SESSION_MESSAGE,
)
from umstack.spark.capture_files import copies
from umstack.spark.labels import labelled
from umstack.spark.packet_columns import note_row, select, topics

_POINT = {"point": pl.String, "publisher": pl.String, "session_id": pl.Int64}
_SPAN = {"first_ns": pl.Int64, "last_ns": pl.Int64}
_COUNT = pl.Int64

SCHEMAS: dict[str, dict[str, type[pl.DataType] | pl.DataType]] = {
    "sends": {**_POINT, "sqn": pl.UInt32, "time_ns": pl.Int64},
    "counts": {
        **_POINT,
        "receiver": pl.String,
        "group": pl.String,
        "kind": pl.String,
        **_SPAN,
        **dict.fromkeys(("packets", "messages", "message_bytes", "udp_bytes"), _COUNT),
    },
    "rates": {
        **_POINT,
        "start_ns": pl.Int64,
        **dict.fromkeys(("datagrams", "bytes", "retransmissions", "retransmitted_bytes"), _COUNT),
    },
    "sizes": {
        **_POINT,
        "udp_bytes": pl.Int64,
        "message_count": pl.Int64,
        **dict.fromkeys(("datagrams", "message_bytes", "frame_bytes"), _COUNT),
    },
    "topics": {
        **_POINT,
        "topic_index": pl.Int64,
        "topic": pl.String,
        **_SPAN,
        **dict.fromkeys(("messages", "fragments", "payload_bytes", "lowest_sqn", "highest_sqn"), _COUNT),
    },
    "references": {
        "publisher": pl.String,
        "session_id": pl.Int64,
        "epoch": pl.Int64,
        "time_ns": pl.Int64,
        "sqn": pl.Int64,
    },
    "rare": {
        **_POINT,
        "kind": pl.String,
        "time_ns": pl.Int64,
        "receiver": pl.String,
        "sqn": pl.Int64,
        "sqns": pl.List(pl.Int64),
        "ncf_reason": pl.String,
        "udp_bytes": pl.Int64,
    },
    "remarks": {"point": pl.String, "kind": pl.String, "status": pl.String, "packets": _COUNT},
    "fragments": {
        "source_address": pl.String,
        "destination_address": pl.String,
        "fragments": _COUNT,
        "bytes": _COUNT,
        **_SPAN,
    },
}
"""The columns of each kind of facts. docs/facts.md has units, and what may be null."""

_LOWEST = {"first_ns", "lowest_sqn"}
_HIGHEST = {"last_ns", "highest_sqn", "topic"}
_KEYS = {
    "counts": ("point", "publisher", "session_id", "receiver", "group", "kind"),
    "rates": ("point", "publisher", "session_id", "start_ns"),
    "sizes": ("point", "publisher", "session_id", "udp_bytes", "message_count"),
    "topics": ("point", "publisher", "session_id", "topic_index"),
    "remarks": ("point", "kind", "status"),
    "fragments": ("source_address", "destination_address"),
}
_MANY_PIECES = 128


@dataclass(slots=True)
class Facts:
    """Facts of captures, a frame of each kind. `packets` counts all packets of the stack, whatever they are."""

    packets: int = 0
    sends: dict[tuple[str, str, int], pl.DataFrame] = field(default_factory=dict)
    """First sendings by point of capture, publisher and session id, in order of time."""
    counts: pl.DataFrame = field(default_factory=lambda: _nothing("counts"))
    rates: pl.DataFrame = field(default_factory=lambda: _nothing("rates"))
    sizes: pl.DataFrame = field(default_factory=lambda: _nothing("sizes"))
    topics: pl.DataFrame = field(default_factory=lambda: _nothing("topics"))
    references: pl.DataFrame = field(default_factory=lambda: _nothing("references"))
    rare: pl.DataFrame = field(default_factory=lambda: _nothing("rare"))
    remarks: pl.DataFrame = field(default_factory=lambda: _nothing("remarks"))
    fragments: pl.DataFrame = field(default_factory=lambda: _nothing("fragments"))

    @classmethod
    def merged(cls, parts: Iterable[Facts]) -> Facts:
        """The facts of all of these together; the order of the parts does not matter."""
        pieces = _Pieces()
        packets = 0
        for part in parts:
            packets += part.packets
            for stream, rows in part.sends.items():
                pieces.add_sends(stream, rows)
            for one in fields(cls):
                if one.name not in ("packets", "sends"):
                    pieces.add(one.name, getattr(part, one.name))
        return pieces.facts(packets)

    def equals(self, other: Facts) -> bool:
        """Whether both say the same, to the row."""
        return (
            self.packets == other.packets
            and self.sends.keys() == other.sends.keys()
            and all(rows.equals(other.sends[stream]) for stream, rows in self.sends.items())
            and all(
                getattr(self, one.name).equals(getattr(other, one.name))
                for one in fields(self)
                if one.name not in ("packets", "sends")
            )
        )


def _nothing(name: str) -> pl.DataFrame:
    return pl.DataFrame(schema=SCHEMAS[name])


def _combined(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of several parts as those of the whole, in an order that does not depend on the parts'."""
    if name == "rare":
        return rows.sort(*_RARE_ORDER, pl.col("sqns").list.eval(pl.element().cast(pl.String)).list.join(","))
    if name == "references":
        key = ["publisher", "session_id", "epoch"]
        return rows.sort(*key, "time_ns", "sqn").unique(key, keep="first", maintain_order=True)
    key = list(_KEYS[name])
    values = [column for column in SCHEMAS[name] if column not in key]
    totals = [
        pl.col(one).min() if one in _LOWEST else pl.col(one).max() if one in _HIGHEST else pl.col(one).sum()
        for one in values
    ]
    return rows.group_by(key).agg(totals).select(list(SCHEMAS[name])).sort(key)


_RARE_ORDER = (
    *("publisher", "session_id", "time_ns", "kind", "point", "receiver", "sqn", "ncf_reason", "udp_bytes"),
)


class _Pieces:
    """Rows of facts on their way into one frame of each kind."""

    def __init__(self) -> None:
        self._of: dict[str, list[pl.DataFrame]] = {}
        self._sends: dict[tuple[str, str, int], list[pl.DataFrame]] = {}

    def add(self, name: str, rows: pl.DataFrame) -> None:
        """Take rows, of the schema of `name`. Many pieces become one, so that memory does not grow with the batches."""
        if not len(rows):
            return
        waiting = self._of.setdefault(name, [])
        waiting.append(rows)
        if name != "rare" and len(waiting) >= _MANY_PIECES:
            self._of[name] = [_combined(name, pl.concat(waiting))]

    def add_sends(self, stream: tuple[str, str, int], rows: pl.DataFrame) -> None:
        """Take first sendings."""
        self._sends.setdefault(stream, []).append(rows)

    def facts(self, packets: int) -> Facts:
        """What came of it."""
        frames = {
            name: _combined(name, pl.concat([_nothing(name), *self._of.get(name, [])]))
            for name in SCHEMAS
            if name != "sends"
        }
        sends = {}
        for stream in sorted(self._sends):
            rows = pl.concat(self._sends.pop(stream))
            in_order = rows["time_ns"].is_sorted() and not (rows["time_ns"].diff() == 0).any()
            sends[stream] = rows if in_order else rows.sort("time_ns", "sqn")
        return Facts(packets, sends, **frames)


def facts_of(sources: Sequence[str | Split]) -> Facts:
    """The facts of these files, or splits of files: each is decoded once. Of files alike one is read."""
    whole = [one for one in sources if isinstance(one, str)]
    doubles = copies(whole)
    pieces, packets = _Pieces(), 0
    for source in sources:
        path = source if isinstance(source, str) else source.path
        if isinstance(source, str) and source in doubles:
            _take(pieces, note_row([*NEEDED], path, f"the same as {doubles[source]}, not read again", None))
            continue
        notes = CaptureNotes()
        for batch in decode(source, only_ours=True, notes=notes):
            packets += len(batch)
            _take_topics(pieces, topics(batch))
            _take(pieces, select(batch, [*NEEDED]))
        for note in notes.notes:
            _take(pieces, note_row([*NEEDED], path, note.text, note.position))
    return pieces.facts(packets)


def facts_of_packets(batches: Iterable[pa.RecordBatch]) -> Facts:
    """The facts of packets that were decoded elsewhere: batches of `umstack.spark.packet_columns.PACKETS`."""
    pieces, packets = _Pieces(), 0
    for batch in batches:
        packets += len(batch)
        _take_topics(pieces, topics(batch))
        _take(pieces, select(batch, [*NEEDED]))
    return pieces.facts(packets)


def _take_topics(pieces: _Pieces, batch: pa.RecordBatch) -> None:
    if not len(batch):
        return
    counted = pl.from_arrow(batch)
    assert isinstance(counted, pl.DataFrame)
    named = counted.rename(
        {"source_address": "publisher", "message_sqn_low": "lowest_sqn", "message_sqn_high": "highest_sqn"}
    )
    pieces.add("topics", _combined("topics", _shaped("topics", named)))


def _shaped(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(pl.col(column).cast(kind) for column, kind in SCHEMAS[name].items())


def _take(pieces: _Pieces, batch: pa.RecordBatch) -> None:
    for kind, of_kind in labelled(batch):
        rows = pl.from_arrow(of_kind)
        assert isinstance(rows, pl.DataFrame)
        rows = rows.with_columns(pl.col(pl.Categorical).cast(pl.String), kind=pl.lit(kind))
        if kind in KINDS:
            _take_session(pieces, kind, rows)
        _take_remarks(pieces, kind, rows)


def _take_remarks(pieces: _Pieces, kind: str, rows: pl.DataFrame) -> None:
    remarkable = rows if kind not in KINDS else rows.filter(pl.col("status") != "ok")
    if len(remarkable):
        counted = remarkable.group_by("point", "kind", "status").agg(packets=pl.len())
        pieces.add("remarks", _shaped("remarks", counted))
    cut = rows.filter("ip_fragment") if kind != NOTE else rows.clear()
    if len(cut):
        group = pl.col("group").str.split(":").list.first()
        to = pl.when(pl.col("receiver").is_not_null()).then("publisher").otherwise(group)
        ends = cut.with_columns(
            source_address=pl.coalesce("source_address", "receiver", "publisher"),
            destination_address=pl.coalesce(pl.col("destination_address"), to),
        )
        counted = ends.group_by("source_address", "destination_address").agg(
            fragments=pl.len(),
            bytes=pl.col("frame_bytes").sum(),
            first_ns=pl.col("time_ns").min(),
            last_ns=pl.col("time_ns").max(),
        )
        pieces.add("fragments", _shaped("fragments", counted))


def _take_session(pieces: _Pieces, kind: str, rows: pl.DataFrame) -> None:
    key = ["point", "publisher", "session_id"]
    is_data, is_repair = kind == DATA, kind == RETRANSMISSION
    counted = rows.group_by([*key, "receiver", "group", "kind"]).agg(
        first_ns=pl.col("time_ns").min(),
        last_ns=pl.col("time_ns").max(),
        packets=pl.len(),
        messages=pl.col("message_count").sum(),
        message_bytes=pl.col("message_bytes").cast(pl.Int64).sum(),
        udp_bytes=pl.col("udp_bytes").cast(pl.Int64).sum(),
    )
    pieces.add("counts", _shaped("counts", counted))
    if is_data or is_repair:
        start = (pl.col("time_ns") // BUCKET_NS * BUCKET_NS).alias("start_ns")
        volume = pl.col("frame_bytes").cast(pl.Int64).sum()
        by_ms = rows.group_by([*key, start]).agg(datagrams=pl.len(), bytes=volume)
        again = {
            "retransmissions": pl.col("datagrams") if is_repair else pl.lit(0),
            "retransmitted_bytes": pl.col("bytes") if is_repair else pl.lit(0),
        }
        pieces.add("rates", _shaped("rates", by_ms.with_columns(**again)))
    if is_data:
        for stream, sent in rows.select([*key, "sqn", "time_ns"]).partition_by(key, as_dict=True).items():
            numbers = sent.filter(pl.col("sqn").is_not_null())
            narrow = numbers.select(pl.col("sqn").cast(pl.UInt32), "time_ns")
            pieces.add_sends((stream[0], stream[1], stream[2]), narrow)
        sized = rows.filter(pl.col("message_count") > 0).group_by([*key, "udp_bytes", "message_count"])
        wide = sized.agg(
            datagrams=pl.len(),
            message_bytes=pl.col("message_bytes").cast(pl.Int64).sum(),
            frame_bytes=pl.col("frame_bytes").cast(pl.Int64).sum(),
        )
        pieces.add("sizes", _shaped("sizes", wide))
    if is_data or is_repair or kind == SESSION_MESSAGE:
        epoch = (pl.col("time_ns") // EPOCH_NS).alias("epoch")
        numbered = rows.filter(pl.col("sqn").is_not_null()).with_columns(epoch)
        if kind == SESSION_MESSAGE:
            # The number behind its lead: a session that starts at 0 has a lead of 2**32 - 1 before it sends.
            numbered = numbered.with_columns(sqn=(pl.col("sqn") + 1) % 2**32)
        first = pl.struct("time_ns", "sqn").sort_by("time_ns", "sqn").first().alias("first")
        found = numbered.group_by("publisher", "session_id", "epoch").agg(first).unnest("first")
        pieces.add("references", _shaped("references", found))
    if kind in (NAK, NCF, RETRANSMISSION):
        pieces.add("rare", _shaped("rare", rows))
