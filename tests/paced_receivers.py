"""Receivers with pacing in the simulation of Stores: they lose datagrams, request them, acknowledge, and end."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from umstack._engine.endpoint import Endpoint
from umstack.persistence.messages import sqn_of
from umstack.persistence.pacing import Pacing
from umstack.persistence.receiver_side import ReceiverSide
from umstack.store.protocol import StoreSide
from umstack.store.wire import RECOVERED, RetainedRange, decode, message_bytes

_WINDOW = 50
"""Messages requested at a time."""


def split(data: bytes) -> list[bytes]:
    """The messages of a stream."""
    found = []
    while data:
        length = message_bytes(data)
        found.append(data[:length])
        data = data[length:]
    return found


@dataclass
class Link:
    """A client's connection to a Store, with the bytes on their way."""

    number: int
    store: int
    to_store: deque[bytes] = field(default_factory=deque)
    to_client: deque[bytes] = field(default_factory=deque)


@dataclass
class PacedReceiver:
    """One receiver, over its restarts."""

    session_id: int
    pacing: Pacing
    random: random.Random
    true: Callable[[int], int]
    """Returns the number since the first message of the run of which these are the lower 32 bits."""
    side: ReceiverSide | None = None
    links: dict[int, Link] = field(default_factory=dict)
    registered: set[int] = field(default_factory=set)
    """Stores that could serve requests when this step began."""
    received: dict[int, bytes] = field(default_factory=dict)
    next_sqn: int | None = None
    """The first message that is not delivered in this life."""
    reached: int | None = None
    """The first message that was never delivered; None: it never began."""
    ended_ns: int = 0
    lost_count: int = 0
    delivered_count: int = 0

    def start(self, topic: str, transport: str, topic_index: int, stores: tuple[Endpoint, ...]) -> None:
        """Begin a life, or follow the source to its next transport session."""
        self.side = ReceiverSide(topic, self.session_id, transport, topic_index, stores, pacing=self.pacing)
        self.received, self.next_sqn = {}, None

    def disconnect(self, sides: list[StoreSide | None], store: int) -> None:
        """The connection to a Store ended."""
        link = self.links.pop(store, None)
        side = sides[store]
        if link is not None and side is not None:
            side.disconnected(link.number)
        if link is not None and self.side is not None:
            self.side.disconnected(store)

    def end(self, sides: list[StoreSide | None], now_ns: int) -> None:
        """End the process."""
        for store in list(self.links):
            self.disconnect(sides, store)
        self.side, self.ended_ns = None, now_ns

    def hear(self, sqn: int, message: bytes) -> None:
        """A datagram of the source arrived."""
        if self.next_sqn is not None and sqn >= self.next_sqn:
            self.received[sqn] = message

    def run(
        self, sides: list[StoreSide | None], now_ns: int, *, is_slow: bool
    ) -> list[tuple[int, bytes | int]]:
        """Exchange messages with the Stores. Returns messages in order, and the end of those that are lost."""
        side, delivered = self.side, list[tuple[int, bytes | int]]()
        if side is None:
            return []
        self._exchange(side, sides, now_ns)
        if self.next_sqn is None and side.start_sqn is not None:
            self.next_sqn = self.true(side.start_sqn)
        if self.next_sqn is None:
            return []
        for answer in split(side.take_answers()):
            if answer[0] == RECOVERED:
                self.received[self.true(sqn_of(answer))] = answer
                continue
            lost = decode(answer)
            assert isinstance(lost, RetainedRange)
            end = self.true(lost.low_sqn)
            if end > self.next_sqn and self.next_sqn not in self.received:
                delivered.append((self.next_sqn, end))
                self.lost_count += 1
                self.next_sqn = end
        while not is_slow and self.next_sqn in self.received:
            delivered.append((self.next_sqn, self.received.pop(self.next_sqn)))
            self.delivered_count += 1
            self.next_sqn += 1
        self.reached = max(self.next_sqn, self.reached or 0)
        if delivered and self.random.random() < 0.7:
            side.acknowledge((self.next_sqn - 1) % (1 << 32))
        newest = max([self.true(side.high_sqn), *self.received]) if side.high_sqn + 1 < 1 << 32 else -1
        missing = [
            at
            for at in range(self.next_sqn, min(newest, self.next_sqn + _WINDOW) + 1)
            if at not in self.received
        ]
        side.request([at % (1 << 32) for at in missing], 0, now_ns)
        return delivered

    def _exchange(self, side: ReceiverSide, sides: list[StoreSide | None], now_ns: int) -> None:
        """Carry a part of the bytes that are on their way."""
        self.registered = {store for store in self.links if side.is_registered(store)}
        for store in side.tick(now_ns):
            self.disconnect(sides, store)
        for store, link in self.links.items():
            link.to_store.extend(split(side.take_output(store)))
            at = sides[store]
            assert at is not None
            for _ in range(min(self.random.randrange(30), len(link.to_store))):
                at.received(link.number, link.to_store.popleft())
            for _ in range(min(self.random.randrange(60), len(link.to_client))):
                side.received(store, link.to_client.popleft(), now_ns)


__all__ = ["Link", "PacedReceiver", "split"]
