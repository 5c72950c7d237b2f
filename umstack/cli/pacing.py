"""PacedPublisher: limits the rate of a tree over every transport; TCP has no rate limit."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from itertools import pairwise

from umstack.errors import WouldBlock
from umstack.publisher import Publisher
from umstack.source import Buffer, Source


class PacedPublisher(Publisher):
    """Delays each message until the bytes before it have used their time at the set rate. One thread at a time."""

    __slots__ = ("_bytes_per_second", "_due")

    def __init__(
        self, source: Source, on_wait: Callable[[float, WouldBlock], None], bytes_per_second: float
    ) -> None:
        """The first message is due immediately."""
        super().__init__(source, on_wait)
        self._bytes_per_second = bytes_per_second
        self._due = time.monotonic()

    def send_packed(self, data: Buffer, offsets: array[int], *, flush: bool = False) -> None:
        """Publish each message in `data` when it is due; see Source.send_packed."""
        messages = memoryview(data)
        for begin, end in pairwise(offsets):
            time.sleep(max(0.0, self._due - time.monotonic()))
            super().send_packed(messages[begin:end], array("i", [0, end - begin]), flush=flush)
            self._due += (end - begin) / self._bytes_per_second
