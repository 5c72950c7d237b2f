"""Whether every message of a stream arrived, once and in its place: looked at one by one, or a batch at a time.

A message of the measurements begins with a counter in little endian: 0, 1, 2, ... for each topic. The last one of a
topic carries how many there were, with `END` added.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from umstack._core import ffi, lib
from umstack.batch import Batch
from umstack.events import Message
from umstack.reader import POLL_ROWS

COUNTER_BYTES = 8
END = 1 << 63
_SQN_MASK = 0xFFFFFFFF

_counter_of = struct.Struct("<Q").unpack_from


def end_message(total: int, size: int) -> bytes:
    """The message that ends a topic's stream."""
    return (END | total).to_bytes(COUNTER_BYTES, "little").ljust(size, b".")


def counters_in(buffer: Any, count: int, size: int) -> NDArray[np.uint64]:
    """The counters of messages of one size that lie end to end, without a copy."""
    return np.ndarray((count,), "<u8", buffer=buffer, strides=(size,))


class StreamCheck:
    """The account of one topic's stream."""

    __slots__ = (
        *("_next_sqn", "_order", "_ramp", "_size", "_sqn_faults", "_sqn_ramp", "_sqn_step"),
        *("expected", "received", "total"),
    )

    def __init__(self, size: int) -> None:
        self.expected = 0
        self.received = 0
        self.total: int | None = None
        """How many messages there were, once the end of the stream has said so."""
        self._size = size
        self._order = ffi.new("um_raw_order *")
        lib.um_raw_order_init(self._order)
        self._ramp = np.arange(POLL_ROWS, dtype=np.uint64)
        self._sqn_ramp = np.zeros(1, dtype=np.uint32)
        self._sqn_step = 0
        self._next_sqn: int | None = None
        self._sqn_faults = 0

    def take_batch(self, batch: Batch) -> int:
        """Account for every row of a batch; how many messages of the stream it held."""
        before = self.received
        if not self._are_next(batch):
            self.take_each(batch.messages())
            self._next_sqn = None
        return self.received - before

    def _are_next(self, batch: Batch) -> bool:
        """Whether the messages of the batch are exactly those that were to come next."""
        count, payload = len(batch), batch.payload
        if len(payload) != count * self._size:
            return False
        counters = counters_in(payload, count, self._size)
        if not ((counters - self._ramp[:count]) == self.expected).all():
            return False
        self._check_sqns(np.frombuffer(batch.sequence_numbers, np.uint32))
        self.expected += count
        self.received += count
        return True

    def _check_sqns(self, sqns: NDArray[np.uint32]) -> None:
        """Topic sequence numbers go on by the number of fragments a message takes, modulo 2**32."""
        first, last = int(sqns[0]), int(sqns[-1])
        if self._sqn_step == 0 and len(sqns) > 1:
            self._sqn_step = (int(sqns[1]) - first) & _SQN_MASK
            self._sqn_ramp = np.arange(POLL_ROWS, dtype=np.uint32) * np.uint32(self._sqn_step)
        follows = self._next_sqn in (None, first)
        if not follows or not ((sqns - sqns[0]) == self._sqn_ramp[: len(sqns)]).all():
            self._sqn_faults += 1
        self._next_sqn = (last + self._sqn_step) & _SQN_MASK if self._sqn_step else None

    def take_each(self, messages: Iterable[Message]) -> bool:
        """Account for messages one by one, until the one that ends the stream: True when it came."""
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

    @property
    def lost(self) -> int:
        """Messages known to be missing: skipped, or short of the total."""
        return int(self._order.lost_count) + max(0, (self.total or 0) - self.expected)

    @property
    def out_of_order(self) -> int:
        """Messages that came after a later one, and batches whose sequence numbers did not follow."""
        return int(self._order.out_of_order_count) + self._sqn_faults

    @property
    def duplicates(self) -> int:
        """Messages that came more than once."""
        return int(self._order.duplicate_count)


class TopicsCheck:
    """The accounts of many topics whose messages come through one event queue.

    While all goes well a batch costs a few array operations, however its rows are spread over the topics. A batch
    that holds anything else, events or an end included, is gone through message by message.
    """

    __slots__ = (
        *("_bases", "_expected", "_has_base", "_numbers", "_ramp", "_size", "_sqn_faults", "_sqn_step"),
        *("_topic_of", "checks", "is_ended"),
    )

    def __init__(self, topics: Sequence[str], size: int) -> None:
        self.checks = [StreamCheck(size) for _ in topics]
        """One for each topic: what they say of it is complete after settle()."""
        self.is_ended = False
        """Whether the end of every topic has come."""
        self._size = size
        self._numbers = {topic: number for number, topic in enumerate(topics)}
        self._topic_of = np.zeros(0, dtype=np.uint16)
        self._expected = np.zeros(len(topics), dtype=np.uint64)
        self._bases = np.zeros(len(topics), dtype=np.uint32)
        self._has_base = np.zeros(len(topics), dtype=np.bool_)
        self._ramp = np.arange(POLL_ROWS, dtype=np.uint64)
        self._sqn_step = 0
        self._sqn_faults = 0

    def take_batch(self, batch: Batch) -> int:
        """Account for every row of a batch; how many messages of the streams it held."""
        if self._are_next(batch):
            return len(batch)
        self.settle()
        before = self.received
        for message in batch:
            self.checks[self._numbers[message.topic]].take_each((message,))
        for number, check in enumerate(self.checks):
            self._expected[number] = check.expected
        self.is_ended = all(check.total is not None for check in self.checks)
        return self.received - before

    def _are_next(self, batch: Batch) -> bool:
        """Whether each topic's messages in the batch are exactly those that were to come next of it."""
        count, payload = len(batch), batch.payload
        if len(payload) != count * self._size:
            return False
        topics = self._topics_of(batch)
        counters = counters_in(payload, count, self._size)
        sqns = np.frombuffer(batch.sequence_numbers, np.uint32)
        starts = np.concatenate(([0], np.flatnonzero(topics[1:] != topics[:-1]) + 1))
        if len(np.unique(topics[starts])) < len(starts):  # some topic comes in more than one run
            order = np.argsort(topics, kind="stable")
            topics, counters, sqns = topics[order], counters[order], sqns[order]
            starts = np.concatenate(([0], np.flatnonzero(topics[1:] != topics[:-1]) + 1))
        counts = np.diff(starts, append=count)
        present = topics[starts]
        firsts = self._expected[present]
        if not (counters - self._ramp[:count] == np.repeat(firsts - self._ramp[starts], counts)).all():
            return False
        self._check_sqns(present, counters, sqns, starts, counts)
        self._expected[present] = firsts + counts.astype(np.uint64)
        return True

    def _topics_of(self, batch: Batch) -> NDArray[np.uint16]:
        sources = np.frombuffer(batch.sources, np.uint32)
        known = len(self._topic_of)
        if known <= (highest := int(sources.max())):
            more = [self._numbers[batch.topic_of(source)] for source in range(known, highest + 1)]
            self._topic_of = np.concatenate((self._topic_of, np.array(more, dtype=np.uint16)))
        return self._topic_of[sources]

    def _check_sqns(
        self,
        present: NDArray[np.uint16],
        counters: NDArray[np.uint64],
        sqns: NDArray[np.uint32],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> None:
        """A topic's sequence numbers go on by the number of fragments a message takes, modulo 2**32."""
        if self._sqn_step == 0:
            longest = int(counts.argmax())
            if counts[longest] < 2:
                return
            at = int(starts[longest])
            self._sqn_step = (int(sqns[at + 1]) - int(sqns[at])) & _SQN_MASK
        bases = sqns - counters.astype(np.uint32) * np.uint32(self._sqn_step)
        new = present[~self._has_base[present]]
        if len(new):
            self._bases[present] = np.where(self._has_base[present], self._bases[present], bases[starts])
            self._has_base[new] = True
        self._sqn_faults += int((bases != np.repeat(self._bases[present], counts)).sum())

    def settle(self) -> None:
        """Hand what was accounted for in one stroke to the topics' own accounts."""
        for check, expected in zip(self.checks, self._expected.tolist(), strict=True):
            check.received += expected - check.expected
            check.expected = expected

    @property
    def received(self) -> int:
        """Messages received of all topics, after settle()."""
        return sum(check.received for check in self.checks)

    @property
    def sqn_faults(self) -> int:
        """Messages whose sequence number did not follow."""
        return self._sqn_faults
