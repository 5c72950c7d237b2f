"""Columns computed from the decoder's columns: totals over a datagram's messages, and counts by topic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from umstack.capture import SCHEMA
from umstack.capture.reading.schema import LBTTCP
from umstack.facts.kinds import NOTE_STATUS
from umstack.facts.points import points, series_of
from umstack.facts.sessions import BLOCK, BLOCK_BITS, RECEIVER_END, advertised_session, has_segments

RECOVERED = "recovered"
_CONTENT_KINDS = ("message", "proactive", RECOVERED)

MESSAGE_COUNT = pa.field("message_count", pa.int32(), nullable=False)
MESSAGE_BYTES = pa.field("message_bytes", pa.int32(), nullable=False)

POINT = pa.field("point", pa.string(), nullable=False)

# The columns that `umstack.facts.sessions` adds cannot be requested.
_WHOLE = pa.schema([*SCHEMA, POINT, MESSAGE_COUNT, MESSAGE_BYTES, RECEIVER_END, BLOCK])

TIMESTAMP = pa.field("timestamp", pa.timestamp("us", "UTC"))
"""`time_ns` in microseconds, Spark's unit of time. Null if `time_ns` is null."""

PACKETS = pa.schema([*SCHEMA, POINT, MESSAGE_COUNT, MESSAGE_BYTES, TIMESTAMP])
"""One row per packet: the decoder's columns, the point of capture, and the number and payload bytes of its messages."""

TOPICS = pa.schema(
    [
        pa.field("source_address", pa.string()),
        pa.field("session_id", pa.int64()),
        pa.field("topic_index", pa.int64()),
        pa.field("first_ns", pa.int64()),
        pa.field("last_ns", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("fragments", pa.int64()),
        pa.field("payload_bytes", pa.int64()),
        pa.field("message_sqn_low", pa.int64()),
        pa.field("message_sqn_high", pa.int64()),
        POINT,
        pa.field("receiver", pa.string()),
        pa.field("block", pa.int64()),
        pa.field("topic", pa.string()),
    ]
)
"""One row per topic and batch of packets, and one row with its name per advertisement. The facts of topics add up both.
"""


def _content_mask(messages: Any) -> Any:
    """Return a mask of the messages in a batch that carry payload."""
    kinds = messages.values.field("kind")
    return pc.is_in(kinds, value_set=pa.array(_CONTENT_KINDS)).to_numpy(zero_copy_only=False)


def message_totals(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Return the number of messages and of their payload bytes for every packet."""
    messages = batch.column("messages")
    offsets = messages.offsets.to_numpy()
    counted = _content_mask(messages)
    sizes = messages.values.field("payload_bytes").to_numpy(zero_copy_only=False) * counted
    return _sums(counted, offsets), _sums(sizes, offsets)


def _sums(values: Any, offsets: Any) -> pa.Array:
    running = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
    return pa.array((running[offsets[1:]] - running[offsets[:-1]]).astype(np.int32))


def select(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return the batch with these columns of PACKETS, in this order."""
    derived: dict[str, pa.Array] = {}
    if MESSAGE_COUNT.name in names or MESSAGE_BYTES.name in names:
        derived[MESSAGE_COUNT.name], derived[MESSAGE_BYTES.name] = message_totals(batch)
    if TIMESTAMP.name in names:
        derived[TIMESTAMP.name] = pc.divide(batch.column("time_ns"), 1000).cast(TIMESTAMP.type)
    if POINT.name in names:
        derived[POINT.name] = points(batch)
    columns = [derived[name] if name in derived else batch.column(name) for name in names]
    return pa.RecordBatch.from_arrays(columns, schema=_schema(names))


def _schema(names: list[str]) -> pa.Schema:
    return pa.schema([(PACKETS if name in PACKETS.names else _WHOLE).field(name) for name in names])


def topics(batch: pa.RecordBatch, messages: pa.Table) -> pa.RecordBatch:
    """Return counts by topic over the first sendings of a batch, and the topic names advertised in it.

    `messages` is the result of `sent_messages`.
    """
    counted = _topic_counts(batch, messages)
    if batch.column("advertisements").null_count == len(batch):
        return counted
    return pa.concat_batches([counted, _topic_names(batch)])


def _topic_names(batch: pa.RecordBatch) -> pa.RecordBatch:
    advertised = batch.filter(pc.is_valid(batch.column("advertisements")))
    named = [
        {
            "source_address": one["source_address"],
            "session_id": advertised_session(one),
            "topic_index": one["topic_index"],
            "block": 0,
            "messages": 0,
            "fragments": 0,
            "payload_bytes": 0,
            POINT.name: point,
            "topic": one["topic"],
        }
        for point, records in zip(
            points(advertised).to_pylist(), advertised.column("advertisements").to_pylist(), strict=True
        )
        for one in records
    ]
    return pa.RecordBatch.from_pylist(named, schema=TOPICS)


def _streamed(batch: pa.RecordBatch) -> pa.Array:
    """Return a mask of the segments that carry data of LBT-TCP sessions."""
    if not has_segments(batch):
        return pa.repeat(pa.scalar(False), len(batch))
    of_session = pc.fill_null(pc.equal(batch.column("transport"), LBTTCP), False)
    sent = pc.and_not(of_session, pc.fill_null(batch.column("to_source"), True))
    return pc.and_(sent, pc.is_valid(batch.column("time_ns")))


def sent_messages(batch: pa.RecordBatch) -> pa.Table:
    """Return the first sendings of messages with payload in a batch: their packet's row, and the counted values."""
    again = pc.fill_null(batch.column("retransmission"), True)
    sent = pc.fill_null(pc.and_not(pc.equal(batch.column("packet_type"), "DATA"), again), False)
    sent = pc.and_(sent, pc.is_valid(batch.column("session_id")))
    streamed = _streamed(batch)
    sent = pc.or_(sent, streamed)
    messages = batch.column("messages")
    offsets = messages.offsets.to_numpy()
    parents = np.repeat(np.arange(len(batch)), np.diff(offsets))
    # A list array may contain values that no row of this slice refers to. They must not be counted.
    within = slice(offsets[0], offsets[-1])
    counted = _content_mask(messages)[within] & sent.to_numpy(zero_copy_only=False)[parents]
    mask = pa.array(counted, pa.bool_())

    def values(name: str) -> pa.Array:
        return pc.struct_field(messages.values[within], name).filter(mask)

    starts = pc.equal(pc.fill_null(values("fragment_offset"), 0), 0)
    packets = parents[counted]
    of_stream = streamed.to_numpy(zero_copy_only=False)[packets]
    blocks = batch.column("block").to_numpy()[packets]
    if of_stream.any():
        blocks = np.where(of_stream, values("topic_sqn").to_numpy() >> BLOCK_BITS, blocks)
    return pa.table(
        {
            "packet": pa.array(packets),
            "streamed": pa.array(of_stream),
            "block": pa.array(blocks, pa.int64()),
            "topic_index": values("topic_index"),
            "starts": pc.cast(starts, pa.int64()),
            "payload_bytes": values("payload_bytes"),
            "topic_sqn": values("topic_sqn"),
        }
    )


_COUNTED = (
    ("starts", "sum"),
    ("starts", "count"),
    ("payload_bytes", "sum"),
    ("topic_sqn", "min"),
    ("topic_sqn", "max"),
)


def stream_messages(batch: pa.RecordBatch, messages: pa.Table) -> pa.Table | None:
    """Return the messages of LBT-TCP sessions among `sent_messages`, in the form that `umstack.facts.runs` reads."""
    if not has_segments(batch):
        return None
    table = messages.filter(messages["streamed"])
    packets = table["packet"].combine_chunks()
    columns = {
        "point": points(batch).take(packets),
        "publisher": batch.column("source_address").take(packets),
        "session_id": batch.column("session_id").take(packets),
        "receiver": batch.column(RECEIVER_END.name).take(packets),
        "topic_index": table["topic_index"],
        "topic_sqn": table["topic_sqn"],
        "time_ns": batch.column("time_ns").take(packets),
    }
    return pa.table(columns)


def _topic_counts(batch: pa.RecordBatch, table: pa.Table) -> pa.RecordBatch:
    if not len(table):
        return _no_topics()
    sessions, numbers = _sessions(batch)
    parents = table["packet"].combine_chunks()
    table = table.append_column("session", numbers.take(parents))
    table = table.append_column("time_ns", batch.column("time_ns").take(parents))
    grouped = table.group_by(["session", "topic_index", "block"], use_threads=False).aggregate(
        [("time_ns", "min"), ("time_ns", "max"), *_COUNTED]
    )
    whose = grouped["session"].combine_chunks()
    source, session_id, point, receiver = (column.take(whose) for column in sessions)
    topic, block, *counted = grouped.columns[1:]
    columns = [
        source,
        session_id,
        topic,
        *counted,
        point,
        receiver,
        block,
        pa.nulls(len(grouped), pa.string()),
    ]
    named = pa.table(columns, names=TOPICS.names).cast(TOPICS)
    [whole] = named.combine_chunks().to_batches()
    return whole


def _sessions(batch: pa.RecordBatch) -> tuple[list[pa.Array], pa.Array]:
    """Return the sessions of a batch as columns, and the index of each packet's session.

    A session here is the combination of source, session id, point of capture and receiver. Messages are grouped by the
    index, which is faster than grouping by four columns.
    """
    columns = tuple(batch.column(name) for name in ("source_address", "session_id"))
    columns += (points(batch), batch.column(RECEIVER_END.name))
    encoded = [column.dictionary_encode(null_encoding="encode") for column in columns]
    counts = [len(column.dictionary) for column in encoded]
    codes = np.ravel_multi_index([column.indices.to_numpy() for column in encoded], counts)
    found, numbers = np.unique(codes, return_inverse=True)
    places = np.unravel_index(found, counts)
    sessions = [column.dictionary.take(pa.array(at)) for column, at in zip(encoded, places, strict=True)]
    return sessions, pa.array(numbers)


def _no_topics() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=TOPICS)


def note_status(capture_file: str, text: str) -> str:
    """Return the `status` of a note on a file."""
    return f"{NOTE_STATUS}{capture_file}: {text}"


def note_row(names: list[str], capture_file: str, text: str, position: int | None) -> pa.RecordBatch:
    """Return a row with a note about a file in `status`. Other columns are null, or empty if they cannot be null."""
    said = {
        "capture_file": capture_file,
        POINT.name: series_of(capture_file),
        "status": note_status(capture_file, text),
        "position": -1 if position is None else position,
    }
    nothing = {pa.string(): "", pa.bool_(): False}
    row, schema = {}, _schema(names)
    for name in names:
        kind = schema.field(name)
        row[name] = said.get(name, None if kind.nullable else nothing.get(kind.type, 0))
    return pa.RecordBatch.from_pylist([row], schema=schema)
