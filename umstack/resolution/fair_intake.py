"""FairIntake: received datagrams that wait to be handled, in turns by sender: a flood of one delays no other.

A forged advertisement may cost a receiver a new session, far more than it costs to send. In order of arrival, the
advertisement that a newcomer waits for would stand behind all of those that arrived before it.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from umstack.resolution.datagrams import Address

SENDER_BYTES_MAX = 2 << 20
SENDER_DATAGRAMS_MAX = 4096
"""Beyond these, the oldest datagrams of a sender are dropped: what they say is repeated."""
SENDERS_MAX = 1024
"""With this many senders, the datagrams of any other are dropped."""


class FairIntake:
    """Queues by the sender's IP address. One thread at a time."""

    __slots__ = ("_waiting", "dropped")

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, _Queue] = OrderedDict()
        """By sender; the first one is next."""
        self.dropped = 0
        """The number of datagrams that were dropped."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, data: bytes, source: Address) -> None:
        """Add a datagram."""
        queue = self._waiting.get(source[0])
        if queue is None:
            if len(self._waiting) == SENDERS_MAX:
                self.dropped += 1
                return
            queue = self._waiting[source[0]] = _Queue()
        queue.datagrams.append((data, source))
        queue.waiting_bytes += len(data)
        while queue.waiting_bytes > SENDER_BYTES_MAX or len(queue.datagrams) > SENDER_DATAGRAMS_MAX:
            queue.take()
            self.dropped += 1

    def take(self) -> tuple[bytes, Address]:
        """Remove and return the oldest datagram of the sender whose turn it is. There must be one."""
        sender, queue = next(iter(self._waiting.items()))
        found = queue.take()
        if queue.datagrams:
            self._waiting.move_to_end(sender)
        else:
            del self._waiting[sender]
        return found


class _Queue:
    """The datagrams of one sender."""

    __slots__ = ("datagrams", "waiting_bytes")

    def __init__(self) -> None:
        self.datagrams: deque[tuple[bytes, Address]] = deque()
        self.waiting_bytes = 0

    def take(self) -> tuple[bytes, Address]:
        found = self.datagrams.popleft()
        self.waiting_bytes -= len(found[0])
        return found
