"""The resolver cache: advertised sources, of topics with and without a receiver here (UX-16)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from umstack._engine.transport_address import TransportAddress


class KnownSource(NamedTuple):
    """One source: its topic, the index its messages carry, and its session."""

    topic: str
    topic_index: int
    address: TransportAddress


class ResolverCache:
    """Sources by topic, bounded; the source advertised longest ago makes room for a new one."""

    __slots__ = ("_by_topic", "_maximum_entries", "_order", "eviction_count")

    def __init__(self, maximum_entries: int) -> None:
        self._maximum_entries = maximum_entries
        self._order: OrderedDict[KnownSource, None] = OrderedDict()
        self._by_topic: dict[str, dict[KnownSource, None]] = {}
        self.eviction_count = 0

    def __len__(self) -> int:
        return len(self._order)

    def add(self, source: KnownSource) -> bool:
        """Remember a source, or that it was advertised again. False when another made room for it."""
        if source in self._order:
            self._order.move_to_end(source)
            return True
        has_room = len(self._order) < self._maximum_entries
        if not has_room:
            oldest, _ = self._order.popitem(last=False)
            self._forget_by_topic(oldest)
            self.eviction_count += 1
        self._order[source] = None
        self._by_topic.setdefault(source.topic, {})[source] = None
        return has_room

    def discard(self, source: KnownSource) -> None:
        """Forget a source."""
        if source in self._order:
            del self._order[source]
            self._forget_by_topic(source)

    def discard_sessions(self, addresses: Collection[TransportAddress]) -> None:
        """Forget every source of these sessions, in one pass."""
        for source in [known for known in self._order if known.address in addresses]:
            self.discard(source)

    def sources_of(self, topic: str) -> list[KnownSource]:
        """The sources of a topic, in the order of their first advertisements."""
        return list(self._by_topic.get(topic, ()))

    def topics(self) -> list[str]:
        """The topics with a known source. Any thread."""
        return list(self._by_topic)

    def _forget_by_topic(self, source: KnownSource) -> None:
        sources = self._by_topic[source.topic]
        del sources[source]
        if not sources:
            del self._by_topic[source.topic]
