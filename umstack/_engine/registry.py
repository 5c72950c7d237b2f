"""Registry: the open sources, receivers and event queues of a context.

An entry has two parts: the public object, which is closed with the context, and the engine's part of it
(a Publication, a Subscription, a QueueMemory), which topic resolution and the statistics work with.
"""

from __future__ import annotations

import threading
from typing import Protocol, TypeVar, runtime_checkable

Part = TypeVar("Part")
Opened = TypeVar("Opened", bound="OpenObject")


class OpenObject(Protocol):
    """The operations of a public object that the registry uses."""

    closed: bool

    def close(self) -> None:
        """End it."""


@runtime_checkable
class Disowned(Protocol):
    """A part that can be left alone, by a process that does not own it."""

    def disown(self) -> None:
        """Leave it alone."""


class Registry:
    """Entries in the order in which they were added. Any thread may call any method.

    `listing` is held while an entry is removed or an object marked closed, and by the statistics while they read the
    parts: a part that they read is not taken away meanwhile.
    """

    __slots__ = ("_by_topic", "_entries", "_queue_count", "_topics", "listing")

    def __init__(self) -> None:
        self.listing = threading.RLock()
        self._entries: dict[OpenObject, tuple[object, OpenObject | None]] = {}
        self._queue_count = 0
        self._topics: dict[OpenObject, str] = {}
        self._by_topic: dict[str, dict[OpenObject, object]] = {}

    def add(
        self, opened: OpenObject, part: object, owner: OpenObject | None = None, topic: str | None = None
    ) -> None:
        """Add an object with its part. `owner` is the event queue that a receiver delivers into; by its `topic`
        parts_of_topic() finds it."""
        with self.listing:
            self._entries[opened] = (part, owner)
            if topic is not None:
                self._topics[opened] = topic
                self._by_topic.setdefault(topic, {})[opened] = part

    def name_queue(self) -> str:
        """A name for one more event queue: "event queue 1"."""
        with self.listing:
            self._queue_count += 1
            return f"event queue {self._queue_count}"

    def begin_closing(self, opened: OpenObject) -> bool:
        """Mark an object closed; False when another thread marked it before."""
        with self.listing:
            was_closed, opened.closed = opened.closed, True
        return not was_closed

    def remove(self, opened: OpenObject) -> None:
        """Remove an object; one that is not there is not an error: its creation failed half way."""
        with self.listing:
            self._entries.pop(opened, None)
            topic = self._topics.pop(opened, None)
            if topic is not None:
                del self._by_topic[topic][opened]
                if not self._by_topic[topic]:
                    del self._by_topic[topic]

    def part(self, opened: OpenObject, kind: type[Part]) -> Part | None:
        """The part of an object; None when it is not open, or not of this context."""
        part, _ = self._entries.get(opened, (None, None))
        return part if isinstance(part, kind) else None

    def disown(self) -> None:
        """In the child of a fork: every object is closed, and its part left alone."""
        self.listing = threading.RLock()
        for opened, (part, _) in self._entries.items():
            opened.closed = True
            if isinstance(part, Disowned):
                part.disown()

    def has(self, opened: OpenObject) -> bool:
        """True if the object is open and of this context."""
        return opened in self._entries

    def owned_by(self, owner: OpenObject) -> list[OpenObject]:
        """The receivers that deliver into an event queue."""
        return [opened for opened, (_, owned_by) in self._snapshot() if owned_by is owner]

    def of(self, kind: type[Opened]) -> list[Opened]:
        """The objects of this class."""
        return [opened for opened, _ in self._snapshot() if isinstance(opened, kind)]

    def parts(self, kind: type[Part]) -> list[Part]:
        """The parts of this class."""
        return [part for _, (part, _) in self._snapshot() if isinstance(part, kind)]

    def parts_of_topic(self, kind: type[Part], topic: str) -> list[Part]:
        """The parts of this class that were added with the topic: a few, of ten thousand."""
        with self.listing:
            return [part for part in self._by_topic.get(topic, {}).values() if isinstance(part, kind)]

    def _snapshot(self) -> list[tuple[OpenObject, tuple[object, OpenObject | None]]]:
        """A copy to walk while other threads add and remove."""
        with self.listing:
            return list(self._entries.items())
