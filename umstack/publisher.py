"""Publisher: sends batches on a source without a timeout, in slices.

A send that waits for receivers or a rate limit waits inside the core, where neither a signal handler nor a deadline of
the caller runs. Publisher waits in slices and calls the caller between them.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence

from umstack.buffers import Buffer
from umstack.errors import WouldBlock
from umstack.message_properties import MessageProperties
from umstack.persistent_source import PersistentSource
from umstack.source import Source

SLICE_SECONDS = 0.2

OnWait = Callable[[float, WouldBlock], None]
"""Called every slice with the seconds since the last published message and the refusal; raise to give up."""


def wait_on(_seconds: float, _why: WouldBlock) -> None:
    """Wait without a timeout."""


class Publisher:
    """Sends batches on one source. One thread at a time."""

    __slots__ = ("_last_progress", "_on_wait", "source")

    def __init__(self, source: Source | PersistentSource, on_wait: OnWait = wait_on) -> None:
        """`on_wait` is called while nothing can be sent."""
        self.source = source
        self._on_wait = on_wait
        self._last_progress = time.monotonic()

    def send_many(self, messages: Sequence[Buffer], *, flush: bool = False) -> None:
        """Publish all the messages."""
        done = 0
        self._last_progress = time.monotonic()
        while done < len(messages):
            left = messages[done:] if done else messages
            try:
                done += self._took(self.source.send_many(left, flush, timeout=SLICE_SECONDS))
            except WouldBlock as why:
                self._wait(why)

    def send_each(
        self, messages: Sequence[Buffer], properties: MessageProperties, *, flush: bool = False
    ) -> None:
        """Publish all the messages, each with these properties."""
        self._last_progress = time.monotonic()
        for number, message in enumerate(messages, 1):
            is_last = flush and number == len(messages)
            while True:
                try:
                    self.source.send(message, is_last, timeout=SLICE_SECONDS, properties=properties)
                    break
                except WouldBlock as why:
                    self._wait(why)
            self._took(1)

    def send_packed(self, data: Buffer, offsets: array[int], *, flush: bool = False) -> None:
        """Publish all the messages stored end to end in `data`; see Source.send_packed."""
        done = 0
        self._last_progress = time.monotonic()
        while done < len(offsets) - 1:
            left = offsets[done:] if done else offsets
            try:
                done += self._took(self.source.send_packed(data, left, flush, timeout=SLICE_SECONDS))
            except WouldBlock as why:
                self._wait(why)

    def _took(self, count: int) -> int:
        self._last_progress = time.monotonic()
        return count

    def _wait(self, why: WouldBlock) -> None:
        self._on_wait(time.monotonic() - self._last_progress, why)
