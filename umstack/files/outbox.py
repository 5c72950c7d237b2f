"""Outbox: packs records end to end in one buffer and publishes a buffer at a time, so that a file's bytes are read
directly into the buffer from which they are sent.
"""

from __future__ import annotations

from array import array

from umstack.publisher import Publisher

BUFFER_BYTES = 1 << 20


class Outbox:
    """The records not yet published. One thread at a time."""

    __slots__ = ("_buffer", "_offsets", "_publisher", "_used", "_view")

    def __init__(self, publisher: Publisher) -> None:
        """Allocate the buffer."""
        self._publisher = publisher
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._offsets = array("i", [0])
        self._used = 0

    def add(self, record: bytes) -> None:
        """Append a record."""
        space = self.reserve(len(record))
        space[: len(record)] = record
        self.commit(len(record))

    def reserve(self, length_max: int) -> memoryview:
        """Return space for a record of up to this size; fill it, then call `commit`."""
        if self._used + length_max > BUFFER_BYTES:
            self.publish()
        return self._view[self._used : self._used + length_max]

    def commit(self, length: int) -> None:
        """Complete the record reserved last, with this length."""
        self._used += length
        self._offsets.append(self._used)

    def publish(self, *, flush: bool = False) -> None:
        """Publish the records added so far."""
        if self._used:
            self._publisher.send_packed(self._view[: self._used], self._offsets, flush=flush)
        self._offsets = array("i", [0])
        self._used = 0
