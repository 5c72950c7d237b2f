"""The columns of each kind of facts: types, units, what may be null. docs/facts.md shows them.

A frame has a key, by which the rows of parts are added up, or none, where every row counts by itself. What a column is
added up by is its `merge`: `sum`, `min` or `max`.
"""

from __future__ import annotations

from functools import cache

import polars as pl
import pyarrow as pa

_NANOSECONDS = "ns since 1970"
_TEXT, _NUMBER = pa.string(), pa.int64()


def _key(
    name: str, kind: pa.DataType, comment: str, *, nullable: bool = False, unit: str | None = None
) -> pa.Field:
    return _field(name, kind, comment, nullable=nullable, unit=unit, merge="key")


def _field(
    name: str,
    kind: pa.DataType,
    comment: str,
    *,
    nullable: bool = False,
    unit: str | None = None,
    merge: str | None = None,
) -> pa.Field:
    metadata = {"comment": comment}
    if unit is not None:
        metadata["unit"] = unit
    if merge is not None:
        metadata["merge"] = merge
    return pa.field(name, kind, nullable=nullable, metadata=metadata)


def _count(name: str, comment: str, unit: str | None = None) -> pa.Field:
    return _field(name, _NUMBER, comment, unit=unit, merge="sum")


_SESSION = (
    _key("publisher", _TEXT, "address of the source"),
    _key(
        "session_id", _NUMBER, "transport session; negative: the source's port, see `umstack.facts.sessions`"
    ),
)
_POINT = (_key("point", _TEXT, "where it was captured: file and interface"), *_SESSION)
_RECEIVER = _key("receiver", _TEXT, "address and port that it was sent to; null: a group", nullable=True)
_COPY = (
    _RECEIVER,
    _key("block", _NUMBER, "256 numbers: of datagrams (LBT-RU), of the topic (LBT-TCP); 0 of a group"),
)
_SPAN = (
    _field("first_ns", _NUMBER, "time of the first", unit=_NANOSECONDS, merge="min"),
    _field("last_ns", _NUMBER, "time of the last", unit=_NANOSECONDS, merge="max"),
)

FACTS: dict[str, pa.Schema] = {
    "sends": pa.schema(
        [
            *_POINT,
            _RECEIVER,
            _field("sqn", pa.uint32(), "number on the wire of a first sending, or of a copy of it"),
            _field("time_ns", _NUMBER, "when it was captured", unit=_NANOSECONDS),
        ]
    ),
    "counts": pa.schema(
        [
            *_POINT,
            _key(
                "receiver",
                _TEXT,
                "address that sent it, over LBT-RU and LBT-TCP address and port that sent it or that it was sent to; "
                "null: the source, to a group",
                nullable=True,
            ),
            _key("group", _TEXT, "multicast address and port; null: not to a group", nullable=True),
            _key(
                "kind",
                _TEXT,
                "DATA, RETRANSMISSION, SM, NAK, NCF, STATUS, ACK, CREQ, FILTER; OPEN, CLOSE, SEGMENT of TCP",
            ),
            _key("block", _NUMBER, "of DATA and RETRANSMISSION over LBT-RU: 256 numbers; otherwise 0"),
            _field(
                "transport",
                _TEXT,
                "LBT-RM, LBT-RU or LBT-TCP; null: of a TCP connection that nothing has told of yet",
                nullable=True,
                merge="max",
            ),
            *_SPAN,
            _count("packets", "packets of the kind"),
            _count("messages", "messages with payload in them"),
            _count("message_bytes", "their payload", "bytes"),
            _count("udp_bytes", "UDP payload, or TCP payload", "bytes"),
        ]
    ),
    "rates": pa.schema(
        [
            *_POINT,
            _key("start_ns", _NUMBER, "beginning of a millisecond", unit=_NANOSECONDS),
            _count("datagrams", "datagrams of data, retransmissions included"),
            _count("bytes", "frames of these", "bytes"),
            _count("retransmissions", "of these, sent again"),
            _count("retransmitted_bytes", "frames of these", "bytes"),
        ]
    ),
    "receiver_rates": pa.schema(
        [
            *_POINT,
            _RECEIVER.with_nullable(False),
            _key("start_ns", _NUMBER, "beginning of a millisecond", unit=_NANOSECONDS),
            _count("datagrams", "datagrams, or TCP segments, with data"),
            _count("bytes", "frames of these", "bytes"),
            _count("retransmissions", "of these, sent again"),
            _count("retransmitted_bytes", "frames of these", "bytes"),
        ]
    ),
    "sizes": pa.schema(
        [
            *_POINT,
            *_COPY,
            _key("udp_bytes", _NUMBER, "UDP payload of a datagram", unit="bytes"),
            _key("message_count", _NUMBER, "messages in a datagram"),
            _count("datagrams", "first sendings like that"),
            _count("message_bytes", "payload in them", "bytes"),
            _count("frame_bytes", "frames of these", "bytes"),
        ]
    ),
    "topics": pa.schema(
        [
            *_POINT,
            *_COPY,
            _key("topic_index", _NUMBER, "number of the topic in its session"),
            _field("topic", _TEXT, "name; null: not advertised", nullable=True, merge="max"),
            *(one.with_nullable(True) for one in _SPAN),
            _count("messages", "first fragments, or whole messages"),
            _count("fragments", "messages and fragments"),
            _count("payload_bytes", "payload of these", "bytes"),
            _field("lowest_sqn", _NUMBER, "topic sequence number", nullable=True, merge="min"),
            _field("highest_sqn", _NUMBER, "topic sequence number", nullable=True, merge="max"),
        ]
    ),
    "runs": pa.schema(
        [
            *_POINT,
            _RECEIVER.with_nullable(False),
            _field("topic_index", _NUMBER, "number of the topic in its session"),
            _field("first_sqn", _NUMBER, "topic sequence number that a run begins with"),
            _field("last_sqn", _NUMBER, "and the one that it ends with; runs that touch are one"),
            _field("first_ns", _NUMBER, "earliest time in it", unit=_NANOSECONDS),
            _field("last_ns", _NUMBER, "latest time in it", unit=_NANOSECONDS),
        ]
    ),
    "passed": pa.schema(
        [
            *_POINT,
            _RECEIVER.with_nullable(False),
            _field("first_sqn", _NUMBER, "number on the wire that a run begins with"),
            _field("last_sqn", _NUMBER, "and the one that it ends with; runs of a minute that touch are one"),
            _field("first_ns", _NUMBER, "when it was first said", unit=_NANOSECONDS),
            _field("last_ns", _NUMBER, "and last", unit=_NANOSECONDS),
        ]
    ),
    "references": pa.schema(
        [
            *_SESSION,
            _key("epoch", _NUMBER, "minute", unit="minutes since 1970"),
            _field("time_ns", _NUMBER, "of the first number in it", unit=_NANOSECONDS),
            _field("sqn", _NUMBER, "that number; of a session message the one behind its lead"),
        ]
    ),
    "rare": pa.schema(
        [
            *_POINT,
            _field("kind", _TEXT, "NAK, NCF or RETRANSMISSION"),
            _field("time_ns", _NUMBER, "when it was captured", unit=_NANOSECONDS),
            _field("receiver", _TEXT, "of a NAK; of LBT-RU also of what was sent to it", nullable=True),
            _field("sqn", _NUMBER, "of a retransmission; null: cut off", nullable=True),
            _field("sqns", pa.list_(_NUMBER), "of a NAK or NCF; null: cut off", nullable=True),
            _field("ncf_reason", _TEXT, "of an NCF", nullable=True),
            _field("udp_bytes", _NUMBER, "UDP payload; null: cut off", nullable=True, unit="bytes"),
        ]
    ),
    "recoveries": pa.schema(
        [
            _key("point", _TEXT, "where it was captured: file and interface"),
            _key("publisher", _TEXT, "address of the source"),
            _key("request_port", _NUMBER, "TCP port of the source"),
            _key("receiver", _TEXT, "address of the receiver"),
            _key("receiver_port", _NUMBER, "TCP port of the receiver, another for each connection"),
            _key(
                "recovery",
                _TEXT,
                "late_join or off_transport; null: its beginning was not captured",
                nullable=True,
            ),
            _key("topic_index", _NUMBER, "number of the topic"),
            *_SPAN,
            _count("range_requests", "requests for the range that is retained"),
            _count("requests", "fragments and messages that were requested"),
            _count("messages", "first fragments, or whole messages, that were sent again"),
            _count("fragments", "messages and fragments that were sent again"),
            _count("payload_bytes", "payload of these", "bytes"),
            _field("lowest_sqn", _NUMBER, "topic sequence number sent again", nullable=True, merge="min"),
            _field("highest_sqn", _NUMBER, "topic sequence number sent again", nullable=True, merge="max"),
        ]
    ),
    "endpoints": pa.schema(
        [
            _key("publisher", _TEXT, "address that takes requests"),
            _key("request_port", _NUMBER, "and its TCP port"),
            _key("topic_index", _NUMBER, "number of the topic"),
            _field("topic", _TEXT, "name", merge="max"),
            _field("session_id", _NUMBER, "transport session that the topic is published in", merge="max"),
        ]
    ),
    "remarks": pa.schema(
        [
            _key("point", _TEXT, "where it was captured"),
            _key("kind", _TEXT, "kind of packet, or NOTE"),
            _key("status", _TEXT, "what is said of it; null: of a session, well formed", nullable=True),
            _count("packets", "packets like that"),
        ]
    ),
    "fragments": pa.schema(
        [
            _key("source_address", _TEXT, "from", nullable=True),
            _key("destination_address", _TEXT, "to", nullable=True),
            _count("fragments", "IP fragments"),
            _count("bytes", "frames of these", "bytes"),
            *_SPAN,
        ]
    ),
}
"""The Arrow schema of each kind of facts; the metadata of a field has `comment`, `unit` and `merge`."""

OF_SESSIONS = ("counts", "rates", "receiver_rates", "sizes", "topics", "runs", "passed", "references", "rare")
"""The frames whose rows belong to one session each; so do `sends`."""


@cache
def frame_schema(name: str) -> pl.Schema:
    """The same for Polars."""
    table = pl.from_arrow(FACTS[name].empty_table())
    assert isinstance(table, pl.DataFrame)
    return table.schema


@cache
def merges(name: str) -> dict[str, str]:
    """How columns are added up: `key`, `sum`, `min` or `max`, by column; a column of neither is not there."""
    return {
        field.name: field.metadata[b"merge"].decode() for field in FACTS[name] if b"merge" in field.metadata
    }


def markdown() -> str:
    """The schema as docs/facts.md has it."""
    lines = []
    for name, schema in FACTS.items():
        lines += [
            f"### `{name}`",
            "",
            "| column | type | unit | null | merged by | what |",
            "|---|---|---|---|---|---|",
        ]
        for field in schema:
            told = {key.decode(): value.decode() for key, value in field.metadata.items()}
            null = "may be" if field.nullable else ""
            values = (f"`{field.name}`", str(field.type), told.get("unit", ""), null, told.get("merge", ""))
            lines.append(f"| {' | '.join(values)} | {told['comment']} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
