"""Limits of the send rate over every transport; TCP has none of its own. Pace: messages, PacedPublisher: bytes."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import cast

from umstack.buffers import Buffer
from umstack.errors import WouldBlock
from umstack.persistent_source import PersistentSource
from umstack.publisher import Publisher
from umstack.source import Source

_LAG_SECONDS_MAX = 0.1


class Pace:
    """Limits messages per second. After a delay at most a tenth of a second is caught up, so that no burst follows."""

    __slots__ = ("_due", "_idle", "_messages_per_second")

    def __init__(self, messages_per_second: float, idle: Callable[[float], None]) -> None:
        """`idle` is called with the seconds to wait. The first message is due at once."""
        self._messages_per_second = messages_per_second
        self._idle = idle
        self._due = time.monotonic()

    def take(self, most: int) -> int:
        """Wait until a message is due. Return how many are due, at most `most`, and count them as sent."""
        while (early := self._due - (now := time.monotonic())) > 0:
            self._idle(early)
        self._due = max(self._due, now - _LAG_SECONDS_MAX)
        count = min(most, 1 + int((now - self._due) * self._messages_per_second))
        self._due += count / self._messages_per_second
        return count


class PacedPublisher(Publisher):
    """Delays each message until the bytes before it have used their time at the set rate. One thread at a time."""

    __slots__ = ("_bytes_per_second", "_due")

    def __init__(
        self,
        source: Source | PersistentSource,
        on_wait: Callable[[float, WouldBlock], None],
        bytes_per_second: float,
    ) -> None:
        """The first message is due immediately."""
        super().__init__(source, on_wait)
        self._bytes_per_second = bytes_per_second
        self._due = time.monotonic()

    def send_packed(self, data: Buffer, offsets: array[int], *, flush: bool = False) -> None:
        """Publish each message in `data` when it is due; see Source.send_packed."""
        messages = memoryview(cast("bytes", data))
        for begin, end in pairwise(offsets):
            time.sleep(max(0.0, self._due - time.monotonic()))
            super().send_packed(messages[begin:end], array("i", [0, end - begin]), flush=flush)
            self._due += (end - begin) / self._bytes_per_second
