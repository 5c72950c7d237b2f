"""The columns of each kind of facts: their types, units and whether they can be null. docs/facts.md shows them.

A frame with a key combines the rows of parts that have equal keys. A frame without one keeps every row. The `merge` of
a column is how its values are combined: `sum`, `min` or `max`.
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
    _key("session_id", _NUMBER, "number of the session: its id and port, see `umstack.facts.sessions`"),
)
_POINT = (
    _key("point", _TEXT, "point of capture: path of its files, without rotation suffix, and interface"),
    *_SESSION,
)
_RECEIVER = _key("receiver", _TEXT, "destination address and port, null for a multicast group", nullable=True)
_COPY = (
    _RECEIVER,
    _key(
        "block", _NUMBER, "block of 256 datagram numbers (LBT-RU) or topic numbers (LBT-TCP), 0 for a group"
    ),
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
            _field("sqn", pa.uint32(), "wire number of a first sending, or of a copy of it"),
            _field("time_ns", _NUMBER, "capture time", unit=_NANOSECONDS),
        ]
    ),
    "counts": pa.schema(
        [
            *_POINT,
            _key(
                "receiver",
                _TEXT,
                "address and port of the sender; over LBT-RU and LBT-TCP of the receiver, in both directions; "
                "null if the source sent it to a group",
                nullable=True,
            ),
            _key("group", _TEXT, "multicast address and port, null for unicast", nullable=True),
            _key(
                "kind",
                _TEXT,
                "DATA, RETRANSMISSION, SM, NAK, NCF, STATUS, ACK, CREQ, FILTER; OPEN, CLOSE, SEGMENT of TCP",
            ),
            _key(
                "block", _NUMBER, "block of 256 numbers, for DATA and RETRANSMISSION over LBT-RU; otherwise 0"
            ),
            _field(
                "transport",
                _TEXT,
                "LBT-RM, LBT-RU or LBT-TCP, null for a TCP connection whose protocol is not yet known",
                nullable=True,
                merge="max",
            ),
            *_SPAN,
            _count("packets", "packets of the kind"),
            _count("messages", "messages with payload in these packets"),
            _count("message_bytes", "payload of these messages", "bytes"),
            _count("udp_bytes", "UDP or TCP payload", "bytes"),
        ]
    ),
    "rates": pa.schema(
        [
            *_POINT,
            _key("start_ns", _NUMBER, "start of the millisecond", unit=_NANOSECONDS),
            _count("datagrams", "datagrams with data, including retransmissions"),
            _count("bytes", "frame bytes of these datagrams", "bytes"),
            _count("retransmissions", "retransmissions among these datagrams"),
            _count("retransmitted_bytes", "frame bytes of the retransmissions", "bytes"),
        ]
    ),
    "receiver_rates": pa.schema(
        [
            *_POINT,
            _RECEIVER.with_nullable(False),
            _key("start_ns", _NUMBER, "start of the millisecond", unit=_NANOSECONDS),
            _count("datagrams", "datagrams, or TCP segments, with data"),
            _count("bytes", "frame bytes of these", "bytes"),
            _count("retransmissions", "retransmissions among these"),
            _count("retransmitted_bytes", "frame bytes of the retransmissions", "bytes"),
        ]
    ),
    "sizes": pa.schema(
        [
            *_POINT,
            *_COPY,
            _key("udp_bytes", _NUMBER, "UDP payload of a datagram", unit="bytes"),
            _key("message_count", _NUMBER, "messages in a datagram"),
            _count("datagrams", "first sendings of this size and message count"),
            _count("message_bytes", "message payload in these datagrams", "bytes"),
            _count("frame_bytes", "frame bytes of these datagrams", "bytes"),
        ]
    ),
    "topics": pa.schema(
        [
            *_POINT,
            *_COPY,
            _key("topic_index", _NUMBER, "number of the topic in its session"),
            _field("topic", _TEXT, "name, null if not advertised", nullable=True, merge="max"),
            *(one.with_nullable(True) for one in _SPAN),
            _count("messages", "messages (whole, or the first fragment)"),
            _count("fragments", "whole messages and fragments"),
            _count("payload_bytes", "payload of these", "bytes"),
            _field("lowest_sqn", _NUMBER, "lowest topic sequence number", nullable=True, merge="min"),
            _field("highest_sqn", _NUMBER, "highest topic sequence number", nullable=True, merge="max"),
        ]
    ),
    "runs": pa.schema(
        [
            *_POINT,
            _RECEIVER.with_nullable(False),
            _field("topic_index", _NUMBER, "number of the topic in its session"),
            _field("first_sqn", _NUMBER, "first topic sequence number of the run"),
            _field("last_sqn", _NUMBER, "last topic sequence number of the run; adjacent runs are joined"),
            _field("first_ns", _NUMBER, "earliest capture time in the run", unit=_NANOSECONDS),
            _field("last_ns", _NUMBER, "latest capture time in the run", unit=_NANOSECONDS),
        ]
    ),
    "passed": pa.schema(
        [
            *_POINT,
            _RECEIVER.with_nullable(False),
            _field("first_sqn", _NUMBER, "first wire number of the run"),
            _field(
                "last_sqn", _NUMBER, "last wire number of the run; adjacent runs within a minute are joined"
            ),
            _field(
                "first_ns", _NUMBER, "capture time of the first packet that reports it", unit=_NANOSECONDS
            ),
            _field("last_ns", _NUMBER, "capture time of the last packet that reports it", unit=_NANOSECONDS),
        ]
    ),
    "references": pa.schema(
        [
            *_SESSION,
            _key("epoch", _NUMBER, "minute", unit="minutes since 1970"),
            _field("time_ns", _NUMBER, "capture time of the first number in the minute", unit=_NANOSECONDS),
            _field("sqn", _NUMBER, "the first number in the minute; for a session message its lead plus one"),
        ]
    ),
    "leads": pa.schema(
        [
            *_POINT,
            _RECEIVER,
            _key("epoch", _NUMBER, "minute", unit="minutes since 1970"),
            _key("sqn", _NUMBER, "lead of a session message: the last wire number that was sent before it"),
            *_SPAN,
        ]
    ),
    "rare": pa.schema(
        [
            *_POINT,
            _field("kind", _TEXT, "NAK, NCF or RETRANSMISSION"),
            _field("time_ns", _NUMBER, "capture time", unit=_NANOSECONDS),
            _field(
                "receiver",
                _TEXT,
                "address and port of the sender of a NAK; over LBT-RU also of the receiver of the packet",
                nullable=True,
            ),
            _field("sqn", _NUMBER, "number of a retransmission, null if truncated", nullable=True),
            _field("sqns", pa.list_(_NUMBER), "numbers of a NAK or NCF, null if truncated", nullable=True),
            _field("ncf_reason", _TEXT, "reason of an NCF", nullable=True),
            _field("udp_bytes", _NUMBER, "UDP payload, null if truncated", nullable=True, unit="bytes"),
        ]
    ),
    "recoveries": pa.schema(
        [
            _key(
                "point",
                _TEXT,
                "point of capture: path of its files, without rotation suffix, and interface",
            ),
            _key("publisher", _TEXT, "address of the source or Store"),
            _key("request_port", _NUMBER, "TCP port of the source or Store"),
            _key("receiver", _TEXT, "address of the receiver"),
            _key("receiver_port", _NUMBER, "TCP port of the receiver, different for each connection"),
            _key(
                "recovery",
                _TEXT,
                "late_join, off_transport or store, null if the start of the connection was not captured",
                nullable=True,
            ),
            _key("topic_index", _NUMBER, "number of the topic"),
            *_SPAN,
            _count("range_requests", "requests for the retained range"),
            _count("requests", "requested fragments and messages"),
            _count("messages", "messages sent again (whole, or the first fragment)"),
            _count("fragments", "whole messages and fragments sent again"),
            _count("payload_bytes", "payload of these", "bytes"),
            _field(
                "lowest_sqn", _NUMBER, "lowest topic sequence number sent again", nullable=True, merge="min"
            ),
            _field(
                "highest_sqn", _NUMBER, "highest topic sequence number sent again", nullable=True, merge="max"
            ),
        ]
    ),
    "stores": pa.schema(
        [
            _key(
                "point",
                _TEXT,
                "point of capture: path of its files, without rotation suffix, and interface",
            ),
            _key("store", _TEXT, "address of the Store"),
            _key("store_port", _NUMBER, "TCP port of the Store"),
            _key("client", _TEXT, "address of the source or receiver"),
            _key("client_port", _NUMBER, "TCP port of the client, different for each connection"),
            _key("topic_index", _NUMBER, "number of the topic, or the source's registration id"),
            *_SPAN,
            _count("registrations", "registrations and deregistrations"),
            _count("registered", "accepted registrations and deregistrations"),
            _count("refused", "refused registrations"),
            _count("keepalives", "keepalives in both directions"),
            _count("acknowledgements", "acknowledged ranges"),
            _count("stable", "messages and fragments in these ranges"),
            _count("lost", "messages and fragments that the Store has given up"),
            _count("consumptions", "acknowledgements of the receiver"),
            _field(
                "highest_stable_sqn",
                _NUMBER,
                "highest sequence number acknowledged",
                nullable=True,
                merge="max",
            ),
            _field(
                "highest_consumed_sqn",
                _NUMBER,
                "highest sequence number that the receiver has consumed",
                nullable=True,
                merge="max",
            ),
        ]
    ),
    "marks": pa.schema(
        [
            _key("point", _TEXT, "point of capture"),
            _key("client", _TEXT, "address of the source"),
            _key("session", _NUMBER, "its session, null if a Store acknowledged the number", nullable=True),
            _key("topic_index", _NUMBER, "number of the topic"),
            _key("store", _TEXT, "address of the Store, null if the number was sent", nullable=True),
            _key("store_port", _NUMBER, "TCP port of the Store", nullable=True),
            _key("sqn", _NUMBER, "topic sequence number, a multiple of 64"),
            _field("time_ns", _NUMBER, "time of the first such packet", unit=_NANOSECONDS, merge="min"),
        ]
    ),
    "endpoints": pa.schema(
        [
            _key("publisher", _TEXT, "address that accepts requests"),
            _key("request_port", _NUMBER, "TCP port that accepts requests"),
            _key("topic_index", _NUMBER, "number of the topic"),
            _field("topic", _TEXT, "name", merge="max"),
            _field("session_id", _NUMBER, "transport session of the topic", merge="max"),
        ]
    ),
    "remarks": pa.schema(
        [
            _key("point", _TEXT, "point of capture"),
            _key("kind", _TEXT, "kind of packet; COPY, NOTE"),
            _key("status", _TEXT, "the remark, null for a well-formed packet of a session", nullable=True),
            _count("packets", "packets of this kind with this remark"),
        ]
    ),
    "fragments": pa.schema(
        [
            _key("source_address", _TEXT, "source address", nullable=True),
            _key("destination_address", _TEXT, "destination address", nullable=True),
            _count("fragments", "IP fragments"),
            _count("bytes", "frame bytes of these", "bytes"),
            *_SPAN,
        ]
    ),
}
"""The Arrow schema of each kind of facts; the metadata of a field has `comment`, `unit` and `merge`."""

OF_SESSIONS = (
    "counts",
    "rates",
    "receiver_rates",
    "sizes",
    "topics",
    "runs",
    "passed",
    "references",
    "leads",
    "rare",
)
"""The frames whose rows belong to one session each; so do `sends`."""


@cache
def frame_schema(name: str) -> pl.Schema:
    """The same for Polars."""
    table = pl.from_arrow(FACTS[name].empty_table())
    assert isinstance(table, pl.DataFrame)
    return table.schema


@cache
def merges(name: str) -> dict[str, str]:
    """Return how each column is combined: `key`, `sum`, `min` or `max`. Columns that are not combined are left out."""
    return {
        field.name: field.metadata[b"merge"].decode() for field in FACTS[name] if b"merge" in field.metadata
    }


def markdown() -> str:
    """Return the schema as Markdown, as in docs/facts.md."""
    lines = []
    for name, schema in FACTS.items():
        lines += [
            f"### `{name}`",
            "",
            "| column | type | unit | null | merged by | meaning |",
            "|---|---|---|---|---|---|",
        ]
        for field in schema:
            metadata = {key.decode(): value.decode() for key, value in field.metadata.items()}
            null = "may be" if field.nullable else ""
            values = (
                f"`{field.name}`",
                str(field.type),
                metadata.get("unit", ""),
                null,
                metadata.get("merge", ""),
            )
            lines.append(f"| {' | '.join(values)} | {metadata['comment']} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
