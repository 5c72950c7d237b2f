"""A publisher with a fixed rate: the child process that feeds a live query.

`python -m umstack.bench.paced_ends publish SPEC`, the spec being a `PacedSpec` in JSON.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import numpy as np

import umstack
from umstack.bench.children import say
from umstack.bench.endpoint import READY_SECONDS, EndSpec, await_receivers, await_turn, run

NUMBER_BYTES = 8
"""A message starts with its number (0, 1, 2, ...), big-endian because Spark's SQL reads bytes in that order."""

_TICK_SECONDS = 0.005
_BATCH_MESSAGES = 4096
_BATCH_BYTES = 256 * 1024
_SEND_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedSpec(EndSpec):
    """Arguments of the publisher."""

    topic: str
    size: int
    rate: int
    """Messages per second."""
    messages: int


class NumberedMessages:
    """Messages packed end to end in one buffer; all numbers are written in one operation."""

    def __init__(self, size: int) -> None:
        self._count = max(1, min(_BATCH_MESSAGES, _BATCH_BYTES // size))
        self._data = bytearray(b"." * (self._count * size))
        self._numbers = np.ndarray((self._count,), ">u8", buffer=self._data, strides=(size,))
        self._ramp = np.arange(self._count, dtype=np.uint64)
        self._offsets = np.arange(self._count + 1, dtype=np.int32) * np.int32(size)

    def send(self, source: umstack.Source, first: int, count: int) -> int:
        """Publish up to `count` messages from this number on, as far as the buffer allows. Return how many."""
        np.add(self._ramp, np.uint64(first), out=self._numbers)
        offsets = self._offsets[: min(count, self._count) + 1]
        return source.send_packed(self._data, offsets, timeout=_SEND_SECONDS)


def _send_paced(spec: PacedSpec, source: umstack.Source) -> None:
    """Send the messages that are due at every tick; messages delayed by flow control follow as soon as possible."""
    messages = NumberedMessages(spec.size)
    sent, start = 0, time.monotonic()
    while sent < spec.messages:
        due = min(spec.messages, int((time.monotonic() - start) * spec.rate))
        while sent < due:
            sent += messages.send(source, sent, due - sent)
        if sent < spec.messages:
            time.sleep(_TICK_SECONDS)
    source.flush()


def publish(spec: PacedSpec) -> None:
    """Publish when ordered, and exit when the parent orders it."""
    with spec.open_context() as context, context.source(spec.topic) as source:
        await_receivers(source, 1)
        say(ready=True)
        await_turn(context)
        cpu_seconds, start = time.process_time(), time.monotonic()
        _send_paced(spec, source)
        ended = time.monotonic()
        say(
            seconds=ended - start,
            ended=ended,
            cpu_seconds=time.process_time() - cpu_seconds,
            drained=bool(source.wait_drained(timeout=READY_SECONDS)),
        )
        await_turn(context)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], PacedSpec, {"publish": publish}))
