"""WildcardTable: the wildcard receivers of a context, the topics that their patterns match, and when these leave.

A topic joins a wildcard receiver when an advertisement of it is received, and leaves once it has had no source for
resolver_no_source_linger_timeout. Patterns of this process only are evaluated, in bounded time; tables are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from umstack.config import WildcardReceiverOptions
from umstack.resolution.counters import ResolutionCounters
from umstack.resolution.pattern import TopicPattern

_PATTERN_PAUSE_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class TopicMatched:
    """A topic was advertised that the pattern of wildcard receiver `key` matches."""

    key: int
    topic: str


@dataclass(frozen=True, slots=True)
class TopicLeft:
    """A topic that was reported as matched has had no source for the timeout."""

    key: int
    topic: str


class _Wildcard:
    """One wildcard receiver: its pattern, and the topics that were reported to it.

    `decided` remembers what the pattern said of the topics that were advertised, the newest of them, because each is
    advertised every second. After a match that was given up the pattern is not evaluated for ten times as long, so
    that it takes a tenth of the thread's time at most, whatever names come.
    """

    __slots__ = ("decided", "options", "pattern", "paused_until_ns", "topics")

    def __init__(self, pattern: TopicPattern, options: WildcardReceiverOptions) -> None:
        self.pattern = pattern
        self.options = options
        self.topics: set[str] = set()
        self.decided: dict[str, bool] = {}
        self.paused_until_ns = 0


class WildcardTable:
    """Not thread-safe; `now_ns` must never go back."""

    __slots__ = ("_counters", "_decided_maximum", "_open_count", "_sourceless", "_wildcards")

    def __init__(self, counters: ResolutionCounters, decided_maximum: int) -> None:
        """`decided_maximum` is of how many topics a wildcard receiver remembers what its pattern said."""
        self._counters = counters
        self._decided_maximum = decided_maximum
        self._wildcards: dict[int, _Wildcard] = {}
        self._sourceless: dict[str, int | None] = {}
        self._open_count = 0
        """How often a wildcard receiver has left a topic to be decided later."""

    def add(
        self,
        key: int,
        pattern: TopicPattern,
        options: WildcardReceiverOptions,
        known: Iterable[str],
        now_ns: int,
    ) -> list[TopicMatched]:
        """Add a wildcard receiver; the `known` topics that it takes are in the result."""
        wildcard = self._wildcards[key] = _Wildcard(pattern, options)
        return [TopicMatched(key, topic) for topic in known if self._joins(wildcard, topic, now_ns)]

    def remove(self, key: int) -> None:
        """Remove a wildcard receiver; one that is not there is not an error."""
        wildcard = self._wildcards.pop(key, None)
        if wildcard is not None:
            self._counters.tr_wildcard_topics -= len(wildcard.topics)

    def no_source_thresholds(self, key: int) -> set[int]:
        """After how many queries a wildcard receiver without a topic is to know; empty when it has topics."""
        wildcard = self._wildcards.get(key)
        if wildcard is None or wildcard.topics:
            return set()
        return {wildcard.options.resolution_no_source_notification_threshold}

    def advertised(self, topic: str, now_ns: int) -> tuple[list[TopicMatched], bool]:
        """A topic was advertised: the wildcard receivers that it joins, and whether every one has decided on it.

        One that has not, because it is full or does not evaluate its pattern for a while, decides when the topic is
        advertised again.
        """
        if not self._wildcards:
            return [], True
        open_before = self._open_count
        joined = [
            TopicMatched(key, topic)
            for key, wildcard in self._wildcards.items()
            if self._joins(wildcard, topic, now_ns)
        ]
        return joined, self._open_count == open_before

    def _joins(self, wildcard: _Wildcard, topic: str, now_ns: int) -> bool:
        if topic in wildcard.topics or not self._matches(wildcard, topic, now_ns):
            return False
        if len(wildcard.topics) >= wildcard.options.wildcard_maximum_topics:
            self._counters.tr_wildcard_topics_refused += 1
            self._open_count += 1
            return False
        wildcard.topics.add(topic)
        self._counters.tr_wildcard_topics += 1
        return True

    def _matches(self, wildcard: _Wildcard, topic: str, now_ns: int) -> bool:
        decided = wildcard.decided.get(topic)
        if decided is not None:
            return decided
        if now_ns < wildcard.paused_until_ns:
            self._open_count += 1
            return False
        matches = wildcard.pattern.matches(topic)
        if matches is None:
            self._counters.tr_patterns_given_up += 1
            wildcard.paused_until_ns = now_ns + _PATTERN_PAUSE_NS
        if len(wildcard.decided) >= self._decided_maximum:
            del wildcard.decided[next(iter(wildcard.decided))]
        wildcard.decided[topic] = bool(matches)
        return bool(matches)

    def patterns(self) -> list[str]:
        """Return the patterns of the wildcard receivers as their queries carry them. Any thread."""
        return [wildcard.pattern.text for wildcard in list(self._wildcards.values())]

    def has_source(self, topic: str) -> None:
        """A source of the topic was found."""
        self._sourceless.pop(topic, None)

    def lost_last_source(self, topic: str) -> None:
        """The topic has no source any more; its timeout begins with the next left()."""
        if any(topic in wildcard.topics for wildcard in self._wildcards.values()):
            self._sourceless[topic] = None

    def left(self, now_ns: int) -> list[TopicLeft]:
        """The topics that have been without a source for the timeout by now."""
        events: list[TopicLeft] = []
        for topic, since in list(self._sourceless.items()):
            since_ns = self._sourceless[topic] = now_ns if since is None else since
            stays = False
            for key, wildcard in self._wildcards.items():
                if topic not in wildcard.topics:
                    continue
                if now_ns - since_ns < wildcard.options.resolver_no_source_linger_timeout_ns:
                    stays = True
                    continue
                wildcard.topics.remove(topic)
                self._counters.tr_wildcard_topics -= 1
                events.append(TopicLeft(key, topic))
            if not stays:
                del self._sourceless[topic]
        return events

    def deadlines(self) -> list[int]:
        """When left() is to be called for each topic without a source; 0 for now."""
        found = []
        for topic, since_ns in self._sourceless.items():
            timeouts = [
                one.options.resolver_no_source_linger_timeout_ns
                for one in self._wildcards.values()
                if topic in one.topics
            ]
            found.append(0 if since_ns is None or not timeouts else since_ns + min(timeouts))
        return found
