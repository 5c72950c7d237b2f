"""Labels packets in Arrow, with the same columns as `umstack.analysis.observations.label` in Spark, kind by kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from umstack._engine.core_address import named
from umstack.facts.kinds import (
    CLOSE,
    DATA,
    FRAGMENT,
    FROM_RECEIVERS,
    KINDS,
    MALFORMED_STATUSES,
    NOTE,
    NOTE_STATUS,
    OPEN,
    OTHER,
    RETRANSMISSION,
    SEGMENT,
    SEGMENTS,
    TYPES,
)
from umstack.facts.sessions import has_segments, receiver_ends

TEXT = pa.dictionary(pa.int32(), pa.string())

LABELLED = pa.schema(
    [
        ("point", TEXT),
        ("time_ns", pa.int64()),
        ("publisher", TEXT),
        ("session_id", pa.int64()),
        ("receiver", TEXT),
        ("group", TEXT),
        ("transport", TEXT),
        ("block", pa.int64()),
        ("transport_flags", pa.int32()),
        ("sqn", pa.int64()),
        ("sqns", pa.list_(pa.int64())),
        ("ncf_reason", TEXT),
        ("udp_bytes", pa.int32()),
        ("tcp_bytes", pa.int32()),
        ("to_source", pa.bool_()),
        ("frame_bytes", pa.int32()),
        ("message_count", pa.int32()),
        ("message_bytes", pa.int32()),
        ("ip_fragment", pa.bool_()),
        ("ip_fragments", pa.int32()),
        ("status", TEXT),
        ("source_address", TEXT),
        ("destination_address", TEXT),
    ]
)
"""The columns of a labelled packet, except its kind."""

_FROM_RECEIVERS = pa.array(FROM_RECEIVERS)
_TCP_FIN_RST, _TCP_SYN = 0x05, 0x02
_NO_TEXT = pa.scalar(None, pa.string())
_MULTICAST = r"^(?:(?:22[4-9]|23[0-9])\.|ff[0-9a-f]{2}:)"


def labelled(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Return the packets of a batch with the columns `NEEDED`, by kind."""
    kinds = _kinds(batch).dictionary_encode()
    found = kinds.dictionary.to_pylist()
    for code, kind in enumerate(found):
        rows = batch if len(found) == 1 else batch.filter(pc.equal(kinds.indices, code))
        yield kind, _of_kind(rows, kind)


def _kinds(batch: pa.RecordBatch) -> pa.Array:
    kind, status = batch.column("packet_type"), batch.column("status")
    known = pc.and_(pc.is_valid(batch.column("session_id")), pc.is_valid(batch.column("time_ns")))
    malformed = pc.or_(*(pc.starts_with(status, one) for one in MALFORMED_STATUSES))
    of_session = pc.and_(pc.and_not(known, malformed), pc.is_in(kind, value_set=pa.array(TYPES)))
    again = pc.and_(pc.equal(kind, DATA), batch.column("retransmission"))
    segments = _segments(batch, known) if has_segments(batch) else ()
    conditions = [
        pc.and_(of_session, pc.fill_null(again, False)),
        of_session,
        *(which for which, _ in segments),
    ]
    conditions += [batch.column("ip_fragment"), pc.starts_with(status, NOTE_STATUS)]
    labels = (RETRANSMISSION, kind, *(label for _, label in segments), FRAGMENT, NOTE, OTHER)
    return pc.case_when(pc.make_struct(*conditions), *labels)


def _segments(batch: pa.RecordBatch, known: pa.Array) -> tuple[tuple[pa.Array, str], ...]:
    """Return masks of the segments of connections that are, or may turn out to be, LBT-TCP, by kind.

    If several masks are true for a packet, the first gives its kind.
    """
    segment = pc.and_(
        pc.and_(known, pc.equal(batch.column("packet_type"), "TCP")), pc.is_null(batch.column("recovery"))
    )
    segment = pc.fill_null(segment, False)
    flags = pc.fill_null(batch.column("tcp_flags"), 0)
    opens = pc.not_equal(pc.bit_wise_and(flags, _TCP_SYN), 0)
    opens = pc.and_(opens, pc.fill_null(batch.column("to_source"), False))
    closes = pc.not_equal(pc.bit_wise_and(flags, _TCP_FIN_RST), 0)
    return (pc.and_(segment, opens), OPEN), (pc.and_(segment, closes), CLOSE), (segment, SEGMENT)


def _of_kind(batch: pa.RecordBatch, kind: str) -> pa.RecordBatch:
    count, of_session = batch.num_rows, kind in KINDS
    # The facts `fragments` need the addresses; those of whole datagrams of a session are in other columns.
    needs_addresses = not of_session or pc.any(batch.column("ip_fragment")).as_py()
    nothing = pa.nulls(count, TEXT)
    source, destination = _text(batch, "source_address"), _text(batch, "destination_address")
    publisher, receiver = source, nothing
    if kind in FROM_RECEIVERS:
        publisher = destination
        receiver = receiver_ends(batch.column("source_address"), batch.column("source_port"))
        receiver = receiver.dictionary_encode()
    elif kind in SEGMENTS:
        publisher = pc.if_else(
            batch.column("to_source"), batch.column("destination_address"), batch.column("source_address")
        ).dictionary_encode()
    elif not of_session:
        publisher, receiver = _parties(batch)
    if of_session and batch.column("receiver_end").null_count < count:
        own = receiver.cast(pa.string())
        receiver = pc.coalesce(batch.column("receiver_end"), own).dictionary_encode()
    columns: dict[str, Any] = {
        "publisher": publisher,
        "receiver": receiver,
        "group": _groups(destination, batch.column("destination_port")),
        "sqn": pc.coalesce(batch.column("transport_sqn"), batch.column("lead_sqn")),
        "sqns": batch.column("sqns").cast(LABELLED.field("sqns").type),
        "status": _remark(batch, of_session),
        "source_address": source if needs_addresses else nothing,
        "destination_address": destination if needs_addresses else nothing,
    }
    for name in LABELLED.names:
        if name not in columns:
            columns[name] = _text(batch, name) if LABELLED.field(name).type == TEXT else batch.column(name)
    return pa.RecordBatch.from_arrays([columns[name] for name in LABELLED.names], schema=LABELLED)


def _text(batch: pa.RecordBatch, name: str) -> pa.DictionaryArray:
    return batch.column(name).dictionary_encode()


def _parties(batch: pa.RecordBatch) -> tuple[pa.DictionaryArray, pa.DictionaryArray]:
    """Return publisher and receiver for packets of any type."""
    source, destination = batch.column("source_address"), batch.column("destination_address")
    from_receiver = pc.is_in(batch.column("packet_type"), value_set=_FROM_RECEIVERS)
    publisher = pc.if_else(from_receiver, destination, source)
    receiver = pc.if_else(from_receiver, source, _NO_TEXT)
    return publisher.dictionary_encode(), receiver.dictionary_encode()


def _remark(batch: pa.RecordBatch, of_session: bool) -> pa.DictionaryArray:
    """Return the remark about each packet. A well-formed packet of a session has none."""
    status = batch.column("status")
    if of_session:
        status = pc.if_else(pc.equal(status, "ok"), _NO_TEXT, status)
    return status.dictionary_encode()


def _groups(destination: pa.DictionaryArray, ports: pa.Array) -> pa.DictionaryArray:
    """Return multicast address and port as one text, computed once per pair instead of once per packet."""
    addresses = destination.dictionary
    multicast = pc.match_substring_regex(addresses, _MULTICAST)
    to_group = pc.fill_null(multicast.take(destination.indices), False)
    known_ports = ports.dictionary_encode()
    port_codes = pc.fill_null(known_ports.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    address_codes = pc.fill_null(destination.indices, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    width = len(known_ports.dictionary) + 1
    pairs, codes = np.unique(address_codes * width + port_codes + 1, return_inverse=True)
    texts = []
    for pair in pairs.tolist():
        address, port = divmod(pair, width)
        number = known_ports.dictionary[port - 1].as_py() if port else None
        text = addresses[address].as_py() if len(addresses) else ""
        texts.append(text if number is None else named(text, number))
    indices = pc.if_else(to_group, pa.array(codes.astype(np.int32)), pa.scalar(None, pa.int32()))
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))
