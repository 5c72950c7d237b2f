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
    """A part that a process which does not own it can leave alone."""

    def disown(self) -> None:
        """Leave it alone."""


class Registry:
    """Entries in the order in which they were added. Any thread may call any method.

    `listing` is held while an entry is removed or an object is marked closed. The statistics hold it while they read
    the parts, so that no part disappears meanwhile.
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
        """Add an object with its part.

        `owner` is the event queue that a receiver delivers into. parts_of_topic() finds the part by `topic`.
        """
        with self.listing:
            self._entries[opened] = (part, owner)
            if topic is not None:
                self._topics[opened] = topic
                self._by_topic.setdefault(topic, {})[opened] = part

    def name_queue(self) -> str:
        """Return the name of a new event queue, such as "event queue 1"."""
        with self.listing:
            self._queue_count += 1
            return f"event queue {self._queue_count}"

    def begin_closing(self, opened: OpenObject) -> bool:
        """Mark an object closed. Returns false if it was marked before."""
        with self.listing:
            was_closed, opened.closed = opened.closed, True
        return not was_closed

    def remove(self, opened: OpenObject) -> None:
        """Remove an object. Does nothing for an unknown object, whose creation failed half way."""
        with self.listing:
            self._entries.pop(opened, None)
            topic = self._topics.pop(opened, None)
            if topic is not None:
                del self._by_topic[topic][opened]
                if not self._by_topic[topic]:
                    del self._by_topic[topic]

    def part(self, opened: OpenObject, kind: type[Part]) -> Part | None:
        """Return the part of an object, or None if it is not an open object of this context."""
        part, _ = self._entries.get(opened, (None, None))
        return part if isinstance(part, kind) else None

    def disown(self) -> None:
        """In a forked child: mark every object closed and disown its part."""
        self.listing = threading.RLock()
        for opened, (part, _) in self._entries.items():
            opened.closed = True
            if isinstance(part, Disowned):
                part.disown()

    def has(self, opened: OpenObject) -> bool:
        """Return true for an open object of this context."""
        return opened in self._entries

    def owned_by(self, owner: OpenObject) -> list[OpenObject]:
        """Return the receivers that deliver into an event queue."""
        return [opened for opened, (_, owned_by) in self._snapshot() if owned_by is owner]

    def of(self, kind: type[Opened]) -> list[Opened]:
        """Return the objects of this class."""
        return [opened for opened, _ in self._snapshot() if isinstance(opened, kind)]

    def parts(self, kind: type[Part]) -> list[Part]:
        """Return the parts of this class."""
        return [part for _, (part, _) in self._snapshot() if isinstance(part, kind)]

    def parts_of_topic(self, kind: type[Part], topic: str) -> list[Part]:
        """Return the parts of this class with this topic, without a walk over all parts."""
        with self.listing:
            return [part for part in self._by_topic.get(topic, {}).values() if isinstance(part, kind)]

    def _snapshot(self) -> list[tuple[OpenObject, tuple[object, OpenObject | None]]]:
        """Return a copy that can be walked while other threads add and remove entries."""
        with self.listing:
            return list(self._entries.items())
