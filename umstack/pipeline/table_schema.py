"""The tables of a pipeline: their columns, types, units and meaning. docs/tables.md shows them.

Types of silver tables are those of `umstack.analysis.tables`; the notes here are checked to name exactly their columns.
One file, because it is one list, which the page shows whole.

    python -m umstack.pipeline.table_schema       the tables as Markdown
"""

from __future__ import annotations

from functools import cache

import polars as pl
import pyarrow as pa

from umstack.analysis.tables import tables_of_part
from umstack.facts.facts import Facts
from umstack.facts.packed import PACKED
from umstack.pipeline.layout import BRONZE, FACTS, GOLD, MESSAGES, SILVER
from umstack.recorder.tables import messages

Notes = dict[str, tuple[str, str]]
"""Meaning and unit by column."""

_NS, _SINCE = "ns", "ns since 1970"
_PERCENTILES = {"min": "minimum", "p50": "median", "p90": "90th percentile", "p99": "99th percentile"} | {
    "p999": "99.9th percentile",
    "max": "maximum",
}


def _spread(prefix: str, what: str, *names: str) -> Notes:
    return {f"{prefix}_{name}": (f"{what}: {_PERCENTILES[name]}", _NS) for name in names or _PERCENTILES}


_COMMON: Notes = {
    "publisher": ("address of the source", ""),
    "session_id": ("transport session, or the negative port of its source", ""),
    "point": ("point of capture: path of its files, without rotation suffix, and interface", ""),
    "from_point": ("point of capture that saw the datagrams first", ""),
    "to_point": ("point of capture that saw them later", ""),
    "receiver": (
        "address of the receiver, with its port over LBT-RU and LBT-TCP and if others of the session have the address; "
        "null if unknown",
        "",
    ),
    "transport": ("LBT-RM, LBT-RU or LBT-TCP", ""),
    "group": ("multicast address and port, null for unicast", ""),
    "topic": ("name of the topic, null if the captures do not contain its advertisement", ""),
    "topic_index": ("number of the topic in its session", ""),
    "first_ns": ("time of the first", _SINCE),
    "last_ns": ("time of the last", _SINCE),
    "start_ns": ("start", _SINCE),
    "end_ns": ("end", _SINCE),
    "lost_ns": ("time of the loss: the first sending if captured, otherwise the first NAK", _SINCE),
    "sent_ns": ("first sending, null if not captured", _SINCE),
    "nak_ns": ("first NAK, null if not captured", _SINCE),
    "repaired_ns": ("retransmission that repaired it, null if none did", _SINCE),
    "seconds": ("from the first to the last", "s"),
    "sqn": ("sequence number; does not wrap", ""),
    "first_sqn": ("first sequence number; does not wrap", ""),
    "last_sqn": ("last sequence number; does not wrap", ""),
    "lowest_sqn": ("lowest topic sequence number", ""),
    "highest_sqn": ("highest topic sequence number", ""),
    "datagrams": ("datagrams with data, first sendings", "datagrams"),
    "messages": ("messages (whole, or the first fragment)", "messages"),
    "fragments": ("whole messages and fragments", "fragments"),
    "payload_bytes": ("payload of these", "bytes"),
    "message_bytes": ("payload of the messages", "bytes"),
    "udp_bytes": ("UDP payload of a datagram", "bytes"),
    "bytes": ("frame bytes", "bytes"),
    "frame_bytes": ("frame bytes", "bytes"),
    "retransmissions": ("retransmissions", "datagrams"),
    "retransmitted_bytes": ("frame bytes of the retransmissions", "bytes"),
    "session_messages": ("session messages", "datagrams"),
    "naks": ("NAKs", "datagrams"),
    "lost": ("losses", "datagrams"),
    "repaired": ("losses that were repaired", "datagrams"),
    "unrepaired": ("losses without a repair", "datagrams"),
    "distinct": ("different sequence numbers among them", "datagrams"),
    "missing": ("numbers that were not seen", ""),
    "requests": ("requested numbers", ""),
    "receivers": ("receivers", ""),
    "cause": ("connectivity, head, tail, burst or sporadic", ""),
    "option": ("name of the option", ""),
    "severity": ("bad, worth_a_look, good or note", ""),
    "text": ("the finding in a sentence", ""),
    "status": ("the remark, null for a well-formed packet of a session", ""),
    "kind": ("kind of packet, or NOTE", ""),
    "packets": ("packets with this remark", "packets"),
    "reason": ("why it would help", ""),
    "peak_bytes_per_second": ("the largest rate of a millisecond", "bytes/s"),
}

_SILVER: dict[str, tuple[str, Notes]] = {
    "sessions": (
        "session and point of capture",
        {
            "ncfs": ("NCFs", "datagrams"),
            "status_messages": ("status messages", "datagrams"),
            "data_bytes": ("UDP payload of the first sendings", "bytes"),
            "restarts": ("restarts of the source with the same session id", ""),
            "datagrams_per_second": ("mean rate of the first sendings", "datagrams/s"),
            "bits_per_second": ("mean rate of the first sendings", "bits/s"),
            "receivers": ("receivers that sent packets to the source", ""),
        },
    ),
    "topics": ("topic of a session", {}),
    "losses": ("sequence number that one receiver missed", {}),
    "incidents": (
        "group of losses of a receiver that follow each other closely",
        {
            "longest_run": ("the most consecutive numbers lost", "datagrams"),
            "longest_run_ns": ("duration of that run", _NS),
        },
    ),
    "recoveries": (
        "source, topic, receiver and kind of recovery over TCP",
        {
            "recovery": ("late_join, off_transport or store; null if its start was not captured", ""),
            "request_port": ("TCP port of the source", ""),
            "connections": ("connections", ""),
            "range_requests": ("requests for the retained range", ""),
        },
    ),
    "stores": (
        "Store, client and topic",
        {
            "store": ("address of the Store", ""),
            "store_port": ("TCP port of the Store", ""),
            "client": ("address of the source or receiver", ""),
            "topic_index": ("number of the topic, or the source's registration id", ""),
            "connections": ("connections", ""),
            "registrations": ("registrations and deregistrations", ""),
            "registered": ("accepted ones", ""),
            "refused": ("refused ones", ""),
            "keepalives": ("keepalives in both directions", ""),
            "acknowledgements": ("acknowledged ranges", ""),
            "stable": ("messages and fragments in these ranges", "messages"),
            "lost": ("messages and fragments that the Store has given up", "messages"),
            "consumptions": ("acknowledgements of the receiver", ""),
            "highest_stable_sqn": ("highest sequence number acknowledged", ""),
            "highest_consumed_sqn": ("highest sequence number that the receiver has consumed", ""),
            "stability_samples": (
                "numbers whose first sending and acknowledgement one point saw, of every 64th",
                "",
            ),
            **_spread(
                "stability", "time from first sending to acknowledgement", "p50", "p90", "p99", "p999", "max"
            ),
        },
    ),
    "latency": (
        "two points of capture of a session, and over LBT-RU a receiver",
        {
            **_spread("latency", "time between the points"),
            "datagrams": ("datagrams seen at both points", "datagrams"),
            "negative": ("datagrams with a negative time between the points", "datagrams"),
            "offset_ns": ("estimated offset of the clocks, null without NAKs at both points", _NS),
            "uncertainty_ns": ("maximum error of the offset", _NS),
            "drift": ("drift of the clocks, if no single offset is possible", "s/s"),
            "is_corrected": ("true if times were corrected by the offset", ""),
        },
    ),
    "clients": (
        "LBT-RU receiver or LBT-TCP connection",
        {
            "connects": ("connect requests", ""),
            "closes": ("ends of the connection", ""),
            "acknowledgements": ("acknowledgements", "datagrams"),
            "segments": ("TCP segments with data", "segments"),
            "reconnected": ("true if the receiver had been connected before", ""),
            "missing": ("topic sequence numbers that the connection skipped", ""),
        },
    ),
    "client_totals": (
        "LBT-RU or LBT-TCP session",
        {
            "clients": ("receivers or connections", ""),
            "hosts": ("different hosts of these", ""),
            "connected": ("connections that began in the captures", ""),
            "ended": ("connections that ended in the captures", ""),
            "again": ("receivers that connected again, and how often", ""),
            "missed": ("receivers that missed topic sequence numbers, and how many", ""),
        },
    ),
    "repairs": (
        "session and point of capture",
        {
            "unrequested": ("retransmissions that answer no captured NAK", "datagrams"),
            "repeated": ("retransmissions that follow another one without a NAK in between", "datagrams"),
            "useless_bytes": ("frame bytes of these two", "bytes"),
            "refused_no_retry": ("numbers refused by an NCF: no longer available", ""),
            "refused_ignored": ("numbers refused by an NCF: requested too soon", ""),
            "refused_rx_delay": ("numbers refused by an NCF: retransmitted later", ""),
            "refused_shed": ("numbers refused by an NCF: load", ""),
        },
    ),
    "lost_repairs": (
        "session and two points of capture",
        {
            "retransmissions": ("retransmissions that passed the first point", "datagrams"),
            "lost": ("those that did not arrive at the second point", "datagrams"),
        },
    ),
    "stalls": (
        "pause of a publisher that a loss caused",
        {
            "stall_ns": ("duration", _NS),
            "last_nak_ns": ("last NAK", _SINCE),
            "lost_repair_ns": ("lost retransmission, null if none was lost", _SINCE),
        },
    ),
    "nak_storms": (
        "period with very many NAKs for very many numbers",
        {
            "repeated": ("numbers requested more than once", ""),
            "receivers": ("receivers with their requests and their share of them (0 to 1)", ""),
        },
    ),
    "gaps": (
        "run of numbers whose first sending a point did not see",
        {
            "topic_index": ("topic of missing topic sequence numbers (LBT-TCP), null for datagrams", ""),
            "before_ns": ("time of the datagram before the gap", _SINCE),
            "after_ns": ("time of the datagram after the gap", _SINCE),
        },
    ),
    "coverage": (
        "32768 sequence numbers at a point and, over LBT-RU, a receiver",
        {
            "bucket": ("sequence numbers divided by 32768", ""),
            "low": ("lowest number seen", ""),
            "high": ("highest number seen", ""),
            "low_ns": ("time of the first", _SINCE),
            "high_ns": ("time of the last", _SINCE),
        },
    ),
    "duplicates": (
        "session and point with datagrams seen more than once",
        {"copies": ("datagrams seen again", "datagrams")},
    ),
    "recovery_latency": (
        "receiver of a session",
        {
            "naks_per_loss": ("NAKs per loss", ""),
            **_spread("request", "time from first NAK to repair"),
            **_spread("recovery", "time from loss to repair", "p50", "p90", "p99", "p999", "max"),
        },
    ),
    "recovery_histogram": (
        "receiver and logarithmic bin of the time from first NAK to repair",
        {
            "from_ns": ("lower end of the bin", _NS),
            "to_ns": ("upper end of the bin", _NS),
            "losses": ("losses repaired within this time", "datagrams"),
        },
    ),
    "rates": (
        "millisecond of a session at a point of capture",
        {"datagrams": ("datagrams with data, including retransmissions", "datagrams")},
    ),
    "rate_summary": (
        "session and point of capture",
        {
            "busy_buckets": ("milliseconds with data", ""),
            "busy_bytes_per_second": ("mean rate of these", "bytes/s"),
            "p50_bytes_per_second": ("median rate of these", "bytes/s"),
            "p99_bytes_per_second": ("99th percentile of these rates", "bytes/s"),
            "peak_datagrams_per_second": ("the largest rate of a millisecond", "datagrams/s"),
        },
    ),
    "bursts": (
        "run of milliseconds far above the mean rate",
        {
            "duration_ns": ("duration", _NS),
            "times_mean": ("peak rate divided by the mean rate of the session", ""),
        },
    ),
    "datagram_sizes": (
        "UDP length and number of messages, of first sendings",
        {"message_count": ("messages in a datagram", "messages")},
    ),
    "datagram_fill": (
        "session and point of capture",
        {
            "messages_per_datagram": ("mean number of messages", ""),
            "most_messages": ("the most messages in a datagram", "messages"),
            "fill": ("used share of the MTU, 0 to 1", ""),
            "half_empty": ("datagrams that use less than half of the MTU", "datagrams"),
            "over_mtu": ("datagrams longer than the MTU", "datagrams"),
            "payload_share": ("payload divided by frame bytes, 0 to 1", ""),
            "payload_bytes_per_datagram": ("mean payload", "bytes"),
        },
    ),
    "fill_histogram": (
        "session and share of the MTU",
        {"from": ("lower end of the bin, 0 to 1", ""), "to": ("upper end of the bin", "")},
    ),
    "ip_fragments": (
        "pair of addresses with IP fragments",
        {
            "source_address": ("source address", ""),
            "destination_address": ("destination address", ""),
            "fragments": ("IP fragments", "fragments"),
        },
    ),
    "suggestions": (
        "option whose other value would have helped",
        {
            "value": ("suggested value, in `unit`", ""),
            "unit": ("unit of the value", ""),
            "losses_helped": ("losses that it would have helped", "datagrams"),
            "receivers_helped": ("number of receivers of these losses", ""),
            "receivers": ("these receivers", ""),
        },
    ),
    "remarks": (
        "packets without a session, malformed packets, and parts missing from a file",
        {},
    ),
}

_MESSAGES: Notes = {
    "topic": ("name of the topic", ""),
    "source": ("transport session and topic index of the source, as receivers name it", ""),
    "sequence_number": ("topic sequence number", ""),
    "received_ns": ("time of arrival", _SINCE),
    "received": ("time of arrival", "us since 1970"),
    "payload": ("the message", ""),
}
_TEXT_COLUMNS = {"source", "publisher", "point", "transport", "topic", "receiver", "severity", "text"}


def _columns(names: str) -> dict[str, pa.DataType]:
    """Return the types of columns of a gold table."""
    return {name: pa.string() if name in _TEXT_COLUMNS else pa.int64() for name in names.split()}


_GOLD: dict[str, tuple[str, dict[str, pa.DataType], Notes]] = {
    "session_days": (
        "day and session",
        _columns(
            "publisher session_id point transport first_ns last_ns datagrams messages message_bytes "
            "data_bytes retransmissions naks lost unrepaired"
        ),
        {
            "point": ("point of capture that saw most of the session; the other columns are of this one", ""),
            "data_bytes": ("UDP payload of the first sendings", "bytes"),
            "lost": ("losses of all its receivers", "datagrams"),
        },
    ),
    "topic_days": (
        "day and topic of a session",
        _columns(
            "publisher session_id topic_index topic first_ns last_ns messages fragments "
            "payload_bytes lowest_sqn highest_sqn session_lost session_unrepaired"
        ),
        {
            "session_lost": (
                "losses of its session: a lost datagram may carry any of its topics",
                "datagrams",
            ),
            "session_unrepaired": ("those without a repair", "datagrams"),
        },
    ),
    "receiver_days": (
        "day, session and receiver with losses",
        _columns(
            "publisher session_id receiver lost repaired unrepaired naks request_p50 request_p90 "
            "request_p99 request_p999 request_max"
        ),
        _spread("request", "time from first NAK to repair", "p50", "p90", "p99", "p999", "max"),
    ),
    "message_days": (
        "day and source of a topic, of messages that a recorder received",
        _columns(
            "topic source first_ns last_ns messages payload_bytes first_sequence_number "
            "last_sequence_number missing"
        ),
        {
            "topic": _MESSAGES["topic"],
            "source": _MESSAGES["source"],
            "first_sequence_number": ("lowest topic sequence number of the day", ""),
            "last_sequence_number": ("highest topic sequence number of the day", ""),
            "missing": ("numbers between these two that were not recorded", "messages"),
        },
    ),
    "findings": (
        "finding on a session, the worst first (`rank`)",
        _columns("publisher session_id rank topic severity text"),
        {
            "publisher": ("address of the source, empty for findings on no session", ""),
            "rank": ("place among the findings on the session, from 0", ""),
            "topic": ("kind of finding", ""),
        },
    ),
}

_PARTITIONS: Notes = {
    "date": (
        "day (UTC) of the row's time, or of the start of its session; 1970-01-01 for notes on files",
        "",
    ),
    "session": ("source and session id, `none` for rows of no session", ""),
}


@cache
def message_schema() -> pa.Schema:
    """Return the columns of recorded messages, in bronze."""
    recorded = messages()
    instant = pa.field(recorded.instant_column, pa.timestamp("us", "UTC"))
    fields = [*recorded.schema, instant]
    return pa.schema([_noted(field.with_nullable(True), *_MESSAGES[field.name]) for field in fields])


def bronze_schemas() -> dict[str, pa.Schema]:
    """Return the schemas of the bronze tables: packed facts (docs/facts.md), and recorded messages."""
    return {FACTS: PACKED, MESSAGES: message_schema()}


@cache
def schemas() -> dict[str, dict[str, pa.Schema]]:
    """Return the Arrow schema of each table by layer; metadata of a field has `comment` and, if it has one, `unit`."""
    silver = {
        name: _described(_portable(table.to_arrow(compat_level=pl.CompatLevel.oldest()).schema), name)
        for name, table in tables_of_part(Facts()).items()
    }
    gold = {
        name: _described(pa.schema(list(columns.items())), name) for name, (_, columns, _) in _GOLD.items()
    }
    return {SILVER: silver, GOLD: gold}


def layer_of(name: str) -> str | None:
    """Return the layer of a table; None if there is no such table."""
    return next((layer for layer, tables in schemas().items() if name in tables), None)


def with_partitions(schema: pa.Schema) -> pa.Schema:
    """Return the schema that readers see: with the columns of the partitions."""
    types = {"date": pa.date32(), "session": pa.string()}
    added = [
        pa.field(name, types[name], metadata={"comment": note}) for name, (note, _) in _PARTITIONS.items()
    ]
    return pa.schema([*schema, *added])


def rows_per(name: str) -> str:
    """Return what a table has one row per."""
    if name == MESSAGES:
        return "message of a recorder's journal"
    return _SILVER[name][0] if name in _SILVER else _GOLD[name][0]


def _notes(name: str) -> Notes:
    return _SILVER[name][1] if name in _SILVER else _GOLD[name][2]


def _described(schema: pa.Schema, name: str) -> pa.Schema:
    own = _notes(name)
    if unknown := own.keys() - set(schema.names):
        raise LookupError(f"{name} has no column {', '.join(sorted(unknown))}")
    fields = []
    for field in schema:
        # tests/unit/test_pipeline_parts.py fails for a column without a note.
        comment, unit = own[field.name] if field.name in own else _COMMON.get(field.name, ("", ""))
        fields.append(_noted(field, comment, unit))
    return pa.schema(fields)


def _noted(field: pa.Field, comment: str, unit: str) -> pa.Field:
    return field.with_metadata({"comment": comment} | ({"unit": unit} if unit else {}))


def _portable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the types that every reader of Parquet has."""
    return pa.schema([field.with_type(_narrow(field.type)) for field in schema])


def _narrow(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_list(kind):
        return pa.list_(_narrow(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_narrow(field.type)) for field in kind])
    return kind


def markdown() -> str:
    """Return the tables as Markdown, as in docs/tables.md."""
    lines = []
    for layer, tables in {BRONZE: {MESSAGES: message_schema()}, **schemas()}.items():
        lines += [f"## {layer.capitalize()}", ""]
        for name, schema in sorted(tables.items()):
            lines += [f"### `{name}`", "", f"One row per {rows_per(name)}.", ""]
            lines += ["| column | type | unit | meaning |", "|---|---|---|---|"]
            for field in schema:
                notes = {key.decode(): value.decode() for key, value in field.metadata.items()}
                kind = str(field.type).replace("element: ", "")
                lines.append(f"| `{field.name}` | {kind} | {notes.get('unit', '')} | {notes['comment']} |")
            lines.append("")
    lines += ["## Partitions", "", "| column | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {comment} |" for name, (comment, _) in _PARTITIONS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
