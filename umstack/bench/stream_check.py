"""Checks that every message of a stream arrived once and in order, either one by one or a batch at a time.

A message of the measurements begins with a little-endian counter: 0, 1, 2, ... for each topic. The last message of a
topic carries the number of messages plus `END`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from umstack._sim_bench import ffi, lib
from umstack.batch import Batch
from umstack.events import Event, Message
from umstack.reader import POLL_ROWS

COUNTER_BYTES = lib.UM_ECHO_COUNTER_BYTES
END = 1 << 63
_SQN_MASK = 0xFFFFFFFF

_counter_of = struct.Struct("<Q").unpack_from


def end_message(total: int, size: int) -> bytes:
    """Return the message that ends a topic's stream."""
    return (END | total).to_bytes(COUNTER_BYTES, "little").ljust(size, b".")


class StreamCheck:
    """Checks one topic's stream."""

    __slots__ = (
        *("_next_sqn", "_order", "_ramp", "_size", "_sqn_faults", "_sqn_ramp", "_sqn_step"),
        *("expected", "received", "total"),
    )

    def __init__(self, size: int) -> None:
        self.expected = 0
        self.received = 0
        self.total: int | None = None
        """Number of messages in the stream, known once its end has arrived."""
        self._size = size
        self._order = ffi.new("um_raw_order *")
        lib.um_raw_order_init(self._order)
        self._ramp = np.arange(POLL_ROWS, dtype=np.uint64)
        self._sqn_ramp = np.zeros(1, dtype=np.uint32)
        self._sqn_step = 0
        self._next_sqn: int | None = None
        self._sqn_faults = 0

    def take_batch(self, batch: Batch) -> int:
        """Check every row of a batch, and return the number of messages of the stream in it."""
        before = self.received
        if not self._are_next(batch):
            self.take_each(batch.messages())
            self._next_sqn = None
        return self.received - before

    def _are_next(self, batch: Batch) -> bool:
        """Return True if the batch contains exactly the next expected messages."""
        count = len(batch)
        if batch.payload_bytes != count * self._size:
            return False
        counters = np.frombuffer(batch.heads(COUNTER_BYTES), "<u8")
        if not ((counters - self._ramp[:count]) == self.expected).all():
            return False
        self._check_sqns(np.frombuffer(batch.sequence_numbers, np.uint32))
        self.expected += count
        self.received += count
        return True

    def _check_sqns(self, sqns: NDArray[np.uint32]) -> None:
        """Check that topic sequence numbers increase by the fragments per message, modulo 2**32."""
        first, last = int(sqns[0]), int(sqns[-1])
        if self._sqn_step == 0 and len(sqns) > 1:
            self._sqn_step = (int(sqns[1]) - first) & _SQN_MASK
            self._sqn_ramp = np.arange(POLL_ROWS, dtype=np.uint32) * np.uint32(self._sqn_step)
        follows = self._next_sqn in (None, first)
        if not follows or not ((sqns - sqns[0]) == self._sqn_ramp[: len(sqns)]).all():
            self._sqn_faults += 1
        self._next_sqn = (last + self._sqn_step) & _SQN_MASK if self._sqn_step else None

    def take_each(self, messages: Iterable[Message]) -> bool:
        """Check messages one by one up to the end of the stream. Return True if the end was among them."""
        expected = self.expected
        first = expected
        for message in messages:
            (counter,) = _counter_of(message.data)
            if counter == expected:
                expected += 1
                continue
            self._settle(first, expected)
            if counter & END:
                self.total = counter ^ END
                return True
            self._misplaced(counter)
            first = expected = self.expected
        self._settle(first, expected)
        return False

    def _settle(self, first: int, expected: int) -> None:
        self.received += expected - first
        self.expected = expected

    def _misplaced(self, counter: int) -> None:
        self._order.next = self.expected
        lib.um_raw_order_note(self._order, counter)
        self.expected = self._order.next
        self.received += 1

    def advance(self, expected: int, sqn_faults: int) -> None:
        """Record that messages up to this counter were in order, and how many sequence numbers were not."""
        self._settle(self.expected, expected)
        self._sqn_faults += sqn_faults

    @property
    def lost(self) -> int:
        """Number of messages known to be missing, either skipped or short of the total."""
        return int(self._order.lost_count) + max(0, (self.total or 0) - self.expected)

    @property
    def out_of_order(self) -> int:
        """Number of messages that arrived after a later one, and of batches with wrong sequence numbers."""
        return int(self._order.out_of_order_count) + self._sqn_faults

    @property
    def duplicates(self) -> int:
        """Number of messages that arrived more than once."""
        return int(self._order.duplicate_count)


class TopicsCheck:
    """Checks the streams of several topics, whose messages may arrive through one event queue.

    Normally one call of the core checks a batch over all topics. Batches that do not match, including those
    with events and ends, are checked message by message.
    """

    __slots__ = (
        *("_numbers", "_rows", "_size", "_sources", "_stream_of", "_streams"),
        *("checks", "is_ended", "received"),
    )

    def __init__(self, topics: Sequence[str], size: int) -> None:
        self.checks = [StreamCheck(size) for _ in topics]
        """One for each topic."""
        self.received = 0
        """Number of messages received on all topics."""
        self.is_ended = False
        """Return True once the end of every topic has arrived."""
        self._size = size
        self._numbers = {topic: number for number, topic in enumerate(topics)}
        self._streams = ffi.new("um_stream[]", len(topics))
        self._stream_of = ffi.new("uint32_t[]", 0)
        self._sources = 0
        self._rows = ffi.new("um_rows *")

    def take_batch(self, batch: Batch) -> int:
        """Check every row of a batch, and return the number of messages of the streams in it."""
        rows, before = self._rows, self.received
        rows.block, rows.first, rows.count = batch._block, batch._first, len(batch)
        taken = lib.um_stream_take(self._streams, self._stream_of, self._sources, rows, self._size)
        self.received += taken
        if taken < len(batch):
            self._note_sources(batch)
            self._take_each(batch.events()[taken:])
        return self.received - before

    def _note_sources(self, batch: Batch) -> None:
        """Look up the topics of sources that are new in this batch."""
        count = max(batch.sources) + 1
        if count > self._sources:
            self._stream_of = ffi.new(
                "uint32_t[]", [self._numbers[batch.topic_of(number)] for number in range(count)]
            )
            self._sources = count

    def _take_each(self, events: Iterable[Event]) -> None:
        """Check a batch that is not a run of messages in order."""
        self.settle()
        for event in events:
            if isinstance(event, Message):
                self.checks[self._numbers[event.topic]].take_each((event,))
        for stream, check in zip(self._streams, self.checks, strict=True):
            stream.next = check.expected
            stream.has_sqn = False
        self.received = sum(check.received for check in self.checks)
        self.is_ended = all(check.total is not None for check in self.checks)

    def settle(self) -> None:
        """Pass the counts of the core on to the checks of the topics."""
        for stream, check in zip(self._streams, self.checks, strict=True):
            check.advance(stream.next, stream.sqn_fault_count)
            stream.sqn_fault_count = 0
