"""ReceivedRows: the columns of a batch of received messages, from which the repository stages in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from umstack._core import ffi, lib

if TYPE_CHECKING:
    from umstack.batch import Batch


class ReceivedRows:
    """The rows of a batch: messages, fragments and events. The batch lives as long as this object.

    Args:
        batch: The batch, of a receiver that keeps properties in the payloads; not empty.
    """

    __slots__ = ("batch", "columns", "count", "flags", "offsets", "payload", "received_ns", "sources", "sqns")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.count = len(batch)
        self.offsets = batch.offsets
        self.sqns = batch.sequence_numbers
        self.sources = batch.sources
        self.flags = batch.flags
        self.received_ns = batch.received_ns
        self.payload = batch.payload
        first_sqns, fragment_offsets, message_lengths, properties = batch._columns_of_parts()
        self.columns = ffi.new(
            "um_received_rows *",
            {
                "offsets": ffi.from_buffer("int32_t[]", self.offsets),
                "sqns": ffi.from_buffer("uint32_t[]", self.sqns),
                "first_sqns": first_sqns,
                "fragment_offsets": fragment_offsets,
                "message_lengths": message_lengths,
                "properties": properties,
                "sources": ffi.from_buffer("uint32_t[]", self.sources),
                "flags": ffi.from_buffer("uint16_t[]", self.flags),
                "received_ns": ffi.from_buffer("int64_t[]", self.received_ns),
                "payload": ffi.from_buffer("uint8_t[]", self.payload),
                "count": self.count,
            },
        )
        """The columns for C: um_received_rows."""

    def message(self, row: int, topic_index: int) -> bytes:
        """Return a row as a data message with this topic index."""
        size = lib.um_received_rows_encode(self.columns, row, topic_index, ffi.NULL)
        encoded = ffi.new("uint8_t[]", size)
        lib.um_received_rows_encode(self.columns, row, topic_index, encoded)
        message: bytes = ffi.buffer(encoded)[:]
        return message


__all__ = ["ReceivedRows"]
