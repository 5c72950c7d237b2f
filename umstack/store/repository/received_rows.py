"""ReceivedRows: the columns of a batch of received messages, from which the repository stages in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from umstack._core import ffi

if TYPE_CHECKING:
    from umstack.batch import Batch


class ReceivedRows:
    """The rows of a batch: messages and events. The batch lives as long as this object.

    Args:
        batch: The batch; not empty.
    """

    __slots__ = ("columns", "count", "flags", "offsets", "payload", "received_ns", "sources", "sqns")

    def __init__(self, batch: Batch) -> None:
        self.count = len(batch)
        self.offsets = batch.offsets
        self.sqns = batch.sequence_numbers
        self.sources = batch.sources
        self.flags = batch.flags
        self.received_ns = batch.received_ns
        self.payload = batch.payload
        self.columns = ffi.new(
            "um_received_rows *",
            {
                "offsets": ffi.from_buffer("int32_t[]", self.offsets),
                "sqns": ffi.from_buffer("uint32_t[]", self.sqns),
                "sources": ffi.from_buffer("uint32_t[]", self.sources),
                "flags": ffi.from_buffer("uint16_t[]", self.flags),
                "received_ns": ffi.from_buffer("int64_t[]", self.received_ns),
                "payload": ffi.from_buffer("uint8_t[]", self.payload),
                "count": self.count,
            },
        )
        """The columns for C: um_received_rows."""

    def message(self, row: int) -> bytes:
        """Return a copy of a row's payload."""
        return bytes(self.payload[self.offsets[row] : self.offsets[row + 1]])


__all__ = ["ReceivedRows"]
