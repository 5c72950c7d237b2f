"""Rows of packets: the core fills the columns, Arrow owns their memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from umstack._core import ffi, lib
from umstack.capture.reading.schema import LBTRM, LBTRU, LBTTCP, arrow, message_type, schema
from umstack.recovery.codec import endpoint_of
from umstack.resolution.codec import (
    LbtipcAddress,
    LbtrmAddress,
    LbtruAddress,
    OtherTransport,
    ResolutionDatagram,
    TcpAddress,
)
from umstack.resolution.codec import decode as decode_resolution

if TYPE_CHECKING:
    import pyarrow

ROWS_DEFAULT = 32768
"""Rows per batch: enough to make Python's overhead negligible, few enough to stay in a processor's cache."""

_WIDTHS = {"int64": 8, "int32": 4}
_RESOLUTION_BYTES = 4 * int(lib.UM_PACKETS_RESOLUTION_BYTES_MAX)
_RESOLUTION_HEAD = struct.Struct("=II")


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of numbers: its name, here and in the core, its type, and its validity bitmap."""

    name: str
    kind: str
    valid: int | None = None


_NUMBERS = (
    _Column("position", "int64"),
    _Column("time_ns", "int64", lib.UM_PACKETS_TIME),
    _Column("interface_id", "int32"),
    _Column("link_type", "int32"),
    _Column("frame_bytes", "int32"),
    _Column("captured_bytes", "int32"),
    _Column("vlan", "int32", lib.UM_PACKETS_VLAN),
    _Column("inner_vlan", "int32", lib.UM_PACKETS_INNER_VLAN),
    _Column("queue", "int64", lib.UM_PACKETS_QUEUE),
    _Column("dropped", "int64", lib.UM_PACKETS_DROPPED),
    _Column("source_port", "int32", lib.UM_PACKETS_PORTS),
    _Column("destination_port", "int32", lib.UM_PACKETS_PORTS),
    _Column("ip_fragments", "int32", lib.UM_PACKETS_IP_FRAGMENT),
    _Column("udp_bytes", "int32", lib.UM_PACKETS_UDP),
    _Column("tcp_bytes", "int32", lib.UM_PACKETS_TCP),
    _Column("tcp_flags", "int32", lib.UM_PACKETS_TCP),
    _Column("session_id", "int64", lib.UM_PACKETS_SESSION),
    _Column("nak_port", "int32", lib.UM_PACKETS_NAK_PORT),
    _Column("client_id", "int64", lib.UM_PACKETS_CLIENT),
    _Column("ack_sqn", "int64", lib.UM_PACKETS_ACK),
    _Column("transport_flags", "int32", lib.UM_PACKETS_FLAGS),
    _Column("transport_sqn", "int64", lib.UM_PACKETS_DATA),
    _Column("sm_sqn", "int64", lib.UM_PACKETS_SM),
    _Column("lead_sqn", "int64", lib.UM_PACKETS_SM),
    _Column("trail_sqn", "int64", lib.UM_PACKETS_TRAIL),
    _Column("next_sqn", "int64", lib.UM_PACKETS_STATUS),
    _Column("window_bytes", "int64", lib.UM_PACKETS_STATUS),
    _Column("group_tag", "int64", lib.UM_PACKETS_STATUS),
    _Column("receiver_id", "int64", lib.UM_PACKETS_STATUS),
)
_MESSAGE_NUMBERS = (
    _Column("topic_index", "int64", lib.UM_PACKETS_MESSAGE_TOPIC),
    _Column("topic_sqn", "int64", lib.UM_PACKETS_MESSAGE_TOPIC),
    _Column("first_sqn", "int64", lib.UM_PACKETS_MESSAGE_LENGTH),
    _Column("fragment_offset", "int64", lib.UM_PACKETS_MESSAGE_LENGTH),
    _Column("message_length", "int64", lib.UM_PACKETS_MESSAGE_LENGTH),
    _Column("payload_bytes", "int32"),
    _Column("sent_ns", "int64", lib.UM_PACKETS_MESSAGE_SENT),
)
# Texts: maximum bytes of one, and its bitmap.
_TEXTS: dict[str, tuple[int, int | None]] = {
    "source_address": (lib.UM_PACKETS_ADDRESS_BYTES_MAX, lib.UM_PACKETS_IP),
    "destination_address": (lib.UM_PACKETS_ADDRESS_BYTES_MAX, lib.UM_PACKETS_IP),
    "status": (lib.UM_PACKETS_STATUS_BYTES_MAX, None),
    "packet_type": (lib.UM_PACKETS_TYPE_BYTES_MAX, lib.UM_PACKETS_TYPE),
    "verdict": (lib.UM_PACKETS_VERDICT_BYTES_MAX, lib.UM_PACKETS_VERDICT),
    "ncf_reason": (lib.UM_PACKETS_REASON_BYTES_MAX, lib.UM_PACKETS_NCF),
    "recovery": (lib.UM_PACKETS_RECOVERY_BYTES_MAX, lib.UM_PACKETS_RECOVERY),
    "transport": (lib.UM_PACKETS_TRANSPORT_BYTES_MAX, lib.UM_PACKETS_TRANSPORT),
}
_FLAGS: dict[str, tuple[int, int | None]] = {
    "ip_fragment": (lib.UM_PACKETS_IP_FRAGMENT, None),
    "copy": (lib.UM_PACKETS_COPY, None),
    "retransmission": (lib.UM_PACKETS_RETRANSMISSION, lib.UM_PACKETS_DATA),
    "to_source": (lib.UM_PACKETS_TO_SOURCE, lib.UM_PACKETS_TYPE),
}


def _session_of(address: LbtrmAddress | LbtruAddress | TcpAddress) -> dict[str, Any]:
    """Return the columns of an advertisement's session."""
    if isinstance(address, LbtrmAddress):
        group = {"group_address": address.group, "group_port": address.destination_port}
        group["nak_port"] = address.nak_port
        session: int | None = address.session_id
        transport, port = LBTRM, None
    else:
        group = {}
        session = address.session_id or None
        transport, port = LBTRU if isinstance(address, LbtruAddress) else LBTTCP, address.source_port
    return {
        "transport": transport,
        "source_address": address.source_ip,
        "source_port": port,
        "session_id": session,
        **group,
    }


@cache
def _arrow_type(kind: str) -> Any:
    return getattr(arrow(), kind)()


class PacketRows:
    """Columns for `row_capacity` packets, filled by the core once and then converted to a record batch."""

    __slots__ = ("_bitmaps", "_buffers", "_message_bitmaps", "_pa", "core")

    def __init__(self, row_capacity: int) -> None:
        """Allocate the columns from Arrow's pool, which reuses the memory of earlier batches."""
        self._pa = arrow()
        self._buffers: dict[str, Any] = {}
        rows = -(-row_capacity // lib.UM_PACKETS_MULTIPLE) * lib.UM_PACKETS_MULTIPLE
        messages = lib.UM_PACKETS_PACKET_ITEMS_MAX + 2 * rows
        sqns = lib.UM_PACKETS_PACKET_ITEMS_MAX + rows
        self.core = ffi.new(
            "um_packet_rows *",
            {"row_capacity": rows, "message_capacity": messages, "sqn_capacity": sqns},
        )
        for column in _NUMBERS:
            self._allocate(column.name, rows * _WIDTHS[column.kind])
        for column in _MESSAGE_NUMBERS:
            self._allocate(column.name, messages * _WIDTHS[column.kind])
        for name, (most, _) in _TEXTS.items():
            self._allocate_text(name, rows, most)
        self._allocate_text("kind", messages, lib.UM_PACKETS_KIND_BYTES_MAX)
        self._allocate("sqn_offsets", (rows + 1) * 4)
        self._allocate("message_offsets", (rows + 1) * 4)
        self._allocate("sqns", sqns * 8)
        self._allocate("present", rows * 4)
        self._allocate("message_present", messages)
        self._allocate("resolution", _RESOLUTION_BYTES)
        self.core.resolution_capacity = _RESOLUTION_BYTES
        self._bitmaps = [self._bitmap(self.core.bitmaps, i, rows) for i in range(lib.UM_PACKETS_BITS)]
        self._message_bitmaps = [
            self._bitmap(self.core.message_bitmaps, i, messages) for i in range(lib.UM_PACKETS_MESSAGE_BITS)
        ]
        lib.um_packet_rows_begin(self.core)

    def _buffer(self, size_bytes: int) -> Any:
        return self._pa.allocate_buffer(size_bytes)

    def _allocate(self, name: str, size_bytes: int) -> None:
        buffer = self._buffers[name] = self._buffer(size_bytes)
        setattr(self.core, name, ffi.cast("void *", buffer.address))

    def _allocate_text(self, name: str, count: int, most_bytes: int) -> None:
        offsets = self._buffers[f"{name}.offsets"] = self._buffer((count + 1) * 4)
        data = self._buffers[name] = self._buffer(count * most_bytes + lib.UM_PACKETS_TEXT_SLACK_BYTES)
        text = getattr(self.core, name)
        text.offsets = ffi.cast("int32_t *", offsets.address)
        text.data = ffi.cast("char *", data.address)

    def _bitmap(self, bitmaps: Any, index: int, count: int) -> Any:
        buffer = self._buffer(-(-count // 64) * 8)
        bitmaps[index] = ffi.cast("uint8_t *", buffer.address)
        return buffer

    def __len__(self) -> int:
        return int(self.core.row_count)

    def to_batch(self, capture_file: Any, interface_names: list[str | None]) -> pyarrow.RecordBatch:
        """Return the rows as a record batch over the same memory; `capture_file`: an array of the name, long enough."""
        lib.um_packet_rows_finish(self.core)
        count = len(self)
        arrays = {column.name: self._number(column, count) for column in _NUMBERS}
        arrays |= {name: self._text(name, valid, count) for name, (_, valid) in _TEXTS.items()}
        arrays |= {name: self._flag(bits, valid, count) for name, (bits, valid) in _FLAGS.items()}
        arrays["capture_file"] = capture_file.slice(0, count)
        arrays["interface_name"] = self._interface_names(arrays["interface_id"], interface_names)
        arrays["sqns"] = self._sqns(count)
        arrays["messages"] = self._messages(count)
        arrays["advertisements"] = self._advertisements(count)
        wanted = schema()
        return self._pa.RecordBatch.from_arrays([arrays[name] for name in wanted.names], schema=wanted)

    def _valid(self, bit: int | None, count: int) -> tuple[Any, int]:
        """Return the validity bitmap and the number of nulls; no bitmap without nulls."""
        if bit is None:
            return None, 0
        nulls = count - int(self.core.set_counts[bit])
        return (self._bitmaps[bit] if nulls else None), nulls

    def _number(self, column: _Column, count: int) -> Any:
        valid, nulls = self._valid(column.valid, count)
        buffers = [valid, self._buffers[column.name]]
        return self._pa.Array.from_buffers(_arrow_type(column.kind), count, buffers, nulls)

    def _text(self, name: str, valid_bit: int | None, count: int) -> Any:
        valid, nulls = self._valid(valid_bit, count)
        return self._text_array(name, count, valid, nulls)

    def _text_array(self, name: str, count: int, valid: Any, nulls: int) -> Any:
        buffers = [valid, self._buffers[f"{name}.offsets"], self._buffers[name]]
        return self._pa.Array.from_buffers(self._pa.string(), count, buffers, nulls)

    def _flag(self, bit: int, valid_bit: int | None, count: int) -> Any:
        valid, nulls = self._valid(valid_bit, count)
        return self._pa.Array.from_buffers(self._pa.bool_(), count, [valid, self._bitmaps[bit]], nulls)

    def _interface_names(self, interface_ids: Any, names: list[str | None]) -> Any:
        pa = self._pa
        if not any(names):
            return pa.nulls(len(interface_ids), pa.string())
        # -1: an interface without a description.
        table = pa.array([*names, None], pa.string())
        ids = interface_ids.to_numpy()
        return table.take(pa.array(np.where(ids < 0, len(names), ids)))

    def _sqns(self, count: int) -> Any:
        pa = self._pa
        items = pa.Array.from_buffers(pa.int64(), int(self.core.sqn_count), [None, self._buffers["sqns"]], 0)
        return self._list("sqns", lib.UM_PACKETS_LIST, "sqn_offsets", items, count)

    def _messages(self, count: int) -> Any:
        pa = self._pa
        total = int(self.core.message_count)
        children = [self._message_number(column, total) for column in _MESSAGE_NUMBERS]
        children.append(self._text_array("kind", total, None, 0))
        items = pa.Array.from_buffers(message_type(), total, [None], 0, children=children)
        return self._list("messages", lib.UM_PACKETS_MESSAGES, "message_offsets", items, count)

    def _message_number(self, column: _Column, total: int) -> Any:
        nulls = 0 if column.valid is None else total - int(self.core.message_set_counts[column.valid])
        valid = self._message_bitmaps[column.valid] if nulls and column.valid is not None else None
        buffers = [valid, self._buffers[column.name]]
        return self._pa.Array.from_buffers(_arrow_type(column.kind), total, buffers, nulls)

    def _resolution(self) -> Iterator[tuple[int, ResolutionDatagram]]:
        """Yield the rows and datagrams of topic resolution that have topics."""
        kept = memoryview(self._buffers["resolution"])[: self.core.resolution_bytes]
        at = 0
        while at < len(kept):
            row, length = _RESOLUTION_HEAD.unpack_from(kept, at)
            at += _RESOLUTION_HEAD.size
            datagram = decode_resolution(bytes(kept[at : at + length]))
            at += length
            if isinstance(datagram, ResolutionDatagram):
                yield row, datagram

    def _advertisements(self, count: int) -> Any:
        """Return topics with their sessions. They are rare, so Python builds the column."""
        found: dict[int, list[dict[str, Any]]] = {}
        for row, datagram in self._resolution():
            advertised = [
                {
                    "topic": one.topic.encode(errors="surrogateescape").decode(errors="replace"),
                    "topic_index": one.index,
                    **_session_of(one.transport),
                    "request_address": None if offered is None else offered.ip,
                    "request_port": None if offered is None else offered.port,
                }
                for one in datagram.advertisements
                if not isinstance(one.transport, (OtherTransport, LbtipcAddress))  # neither is in a capture
                for offered in (endpoint_of(one.options),)
            ]
            if advertised:
                found[row] = advertised
        kind = schema().field("advertisements").type
        if not found:
            return self._pa.nulls(count, kind)
        lengths = np.zeros(count, np.int32)
        lengths[list(found)] = [len(advertised) for advertised in found.values()]
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        items = self._pa.array([one for advertised in found.values() for one in advertised], kind.value_type)
        nothing = self._pa.array(lengths == 0)
        return self._pa.ListArray.from_arrays(self._pa.array(offsets), items, kind, mask=nothing)

    def _list(self, name: str, valid_bit: int, offsets: str, items: Any, count: int) -> Any:
        valid, nulls = self._valid(valid_bit, count)
        kind = schema().field(name).type
        return self._pa.Array.from_buffers(
            kind, count, [valid, self._buffers[offsets]], nulls, children=[items]
        )
