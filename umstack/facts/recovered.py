"""Facts of TCP connections: requests and messages of late join, off-transport recovery and Stores, their endpoints, and
registrations and acknowledgements at Stores.

A segment with requests travels to the source or Store, a segment with messages from it. Both are counted per connection
and topic.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from umstack.facts.marks import acknowledged_marks
from umstack.facts.packet_columns import RECOVERED
from umstack.facts.points import points
from umstack.facts.sessions import advertised_session

_REQUEST, _RANGE_REQUEST = "request", "range_request"
_OF_RECEIVER = (_REQUEST, _RANGE_REQUEST)
_KINDS = pa.array([RECOVERED, *_OF_RECEIVER])
_REGISTRATION, _REGISTERED, _REFUSED, _KEEPALIVE = "registration", "registered", "refused", "keepalive"
_STABLE, _LOST, _CONSUMED = "stable", "lost", "consumed"
_STORE_KINDS = pa.array([_REGISTRATION, _REGISTERED, _REFUSED, _KEEPALIVE, _STABLE, _LOST, _CONSUMED])
_SQNS = 1 << 32


def recovery_frames(batch: pa.RecordBatch) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield rows of the facts `recoveries`, `stores`, `marks` and `endpoints` of a batch of packets, by their names."""
    segments = batch.filter(pc.is_valid(batch.column("tcp_bytes")))
    if len(segments):
        yield "recoveries", _recoveries(segments)
        clients = _of_clients(segments)
        yield "stores", _stores(clients)
        yield "marks", acknowledged_marks(clients.filter(pl.col("kind") == _STABLE))
    advertised = batch.filter(pc.is_valid(batch.column("advertisements")))
    if len(advertised):
        listed = advertised.column("advertisements").flatten().to_pylist()
        offers = pl.DataFrame([one | {"session_id": advertised_session(one)} for one in listed], _ADVERTISED)
        offered = offers.filter(pl.col("request_port").is_not_null())
        yield (
            "endpoints",
            offered.rename({"request_address": "publisher"}).unique(
                ["publisher", "request_port", "topic_index", "topic", "session_id"]
            ),
        )


_ADVERTISED = {
    "topic": pl.String,
    "topic_index": pl.Int64,
    "session_id": pl.Int64,
    "request_address": pl.String,
    "request_port": pl.Int64,
}


def _items(segments: pa.RecordBatch, wanted_kinds: pa.Array) -> pl.DataFrame:
    """Return the items of these kinds that segments carry, one row each, with the number of the segment."""
    messages = segments.column("messages")
    offsets = messages.offsets.to_numpy()
    # A list array may contain values that no row of this slice refers to.
    values = messages.values[offsets[0] : offsets[-1]]
    kinds = values.field("kind")
    wanted = pc.is_in(kinds, value_set=wanted_kinds)
    segment = np.repeat(np.arange(len(segments)), np.diff(offsets))[wanted.to_numpy(zero_copy_only=False)]
    columns = {
        name: pl.Series(pc.struct_field(values, name).filter(wanted).to_numpy(zero_copy_only=False))
        for name in ("topic_index", "topic_sqn", "first_sqn", "payload_bytes")
    }
    starts = pc.equal(pc.fill_null(pc.struct_field(values, "fragment_offset").filter(wanted), 0), 0)
    return pl.DataFrame(
        {
            "segment": pl.Series(segment, dtype=pl.Int64),
            "kind": pl.Series(kinds.filter(wanted).to_pylist(), dtype=pl.String),
            **columns,
            "starts": pl.Series(starts.to_numpy(zero_copy_only=False), dtype=pl.Boolean),
        }
    )


def _with_segment(segments: pa.RecordBatch, items: pl.DataFrame) -> pl.DataFrame:
    """Return the items that have a time, with columns of their segments."""
    names = (
        "time_ns",
        "source_address",
        "source_port",
        "destination_address",
        "destination_port",
        "recovery",
        "to_source",
    )
    of_segment = pl.DataFrame(
        {
            "segment": np.arange(len(segments)),
            "point": pl.Series(points(segments).to_pylist(), dtype=pl.String),
            **{name: pl.from_arrow(segments.column(name)) for name in names},
        }
    )
    return items.join(of_segment, "segment").filter(pl.col("time_ns").is_not_null())


def _of_clients(segments: pa.RecordBatch) -> pl.DataFrame:
    """Return what clients and Stores sent each other, one row each."""

    def end(of_store: str, of_client: str) -> pl.Expr:
        return pl.when(pl.col("to_source")).then(of_client).otherwise(of_store)

    return _with_segment(segments, _items(segments, _STORE_KINDS)).with_columns(
        store=end("source_address", "destination_address"),
        store_port=end("source_port", "destination_port"),
        client=end("destination_address", "source_address"),
        client_port=end("destination_port", "source_port"),
    )


def _stores(items: pl.DataFrame) -> pl.DataFrame:
    kind, sqn = pl.col("kind"), pl.col("topic_sqn")
    numbers = (sqn - pl.col("first_sqn")) % _SQNS + 1

    def times(wanted: str) -> pl.Expr:
        return (kind == wanted).sum()

    return items.group_by("point", "store", "store_port", "client", "client_port", "topic_index").agg(
        first_ns=pl.col("time_ns").min(),
        last_ns=pl.col("time_ns").max(),
        registrations=times(_REGISTRATION),
        registered=times(_REGISTERED),
        refused=times(_REFUSED),
        keepalives=times(_KEEPALIVE),
        acknowledgements=times(_STABLE),
        stable=numbers.filter(kind == _STABLE).sum(),
        lost=numbers.filter(kind == _LOST).sum(),
        consumptions=times(_CONSUMED),
        highest_stable_sqn=sqn.filter(kind == _STABLE).max(),
        highest_consumed_sqn=sqn.filter(kind == _CONSUMED).max(),
    )


def _recoveries(segments: pa.RecordBatch) -> pl.DataFrame:
    items = _with_segment(segments, _items(segments, _KINDS))
    kind = pl.col("kind")
    is_request, is_message = kind.is_in(_OF_RECEIVER), kind == RECOVERED

    def end(of_source: str, of_receiver: str) -> pl.Expr:
        return pl.when(is_request).then(of_receiver).otherwise(of_source)

    key = ["point", "publisher", "request_port", "receiver", "receiver_port", "recovery", "topic_index"]
    return (
        items.with_columns(
            publisher=end("source_address", "destination_address"),
            request_port=end("source_port", "destination_port"),
            receiver=end("destination_address", "source_address"),
            receiver_port=end("destination_port", "source_port"),
        )
        .group_by(key)
        .agg(
            first_ns=pl.col("time_ns").min(),
            last_ns=pl.col("time_ns").max(),
            range_requests=(kind == _RANGE_REQUEST).sum(),
            requests=(kind == _REQUEST).sum(),
            messages=(is_message & pl.col("starts")).sum(),
            fragments=is_message.sum(),
            payload_bytes=pl.col("payload_bytes").filter(is_message).cast(pl.Int64).sum(),
            lowest_sqn=pl.col("topic_sqn").filter(is_message).min(),
            highest_sqn=pl.col("topic_sqn").filter(is_message).max(),
        )
    )
