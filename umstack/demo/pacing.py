"""PacedPublisher: sends batches no faster than it is told, whatever the transport, which over TCP has no rate limit."""

from __future__ import annotations

import time
from array import array
from itertools import pairwise

from umstack.publisher import Publisher
from umstack.source import Buffer, Source


class PacedPublisher(Publisher):
    """Sends each message when it is due by the bytes before it. One thread at a time."""

    __slots__ = ("_bytes_per_second", "_due")

    def __init__(self, source: Source, bytes_per_second: float) -> None:
        """The first message is due at once."""
        super().__init__(source)
        self._bytes_per_second = bytes_per_second
        self._due = time.monotonic()

    def send_packed(self, data: Buffer, offsets: array[int], *, flush: bool = False) -> None:
        """Publish all the messages that lie end to end in `data`, each in its time; see Source.send_packed."""
        messages = memoryview(data)
        for begin, end in pairwise(offsets):
            time.sleep(max(0.0, self._due - time.monotonic()))
            super().send_packed(messages[begin:end], array("i", [0, end - begin]), flush=flush)
            self._due += (end - begin) / self._bytes_per_second
