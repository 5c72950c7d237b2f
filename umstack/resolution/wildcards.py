"""WildcardTable: the wildcard receivers of a context, the topics that match their patterns, and when topics leave.

A topic joins a wildcard receiver when an advertisement of it is received, and leaves once it has had no source for
resolver_no_source_linger_timeout. Only patterns of this process are evaluated, in bounded time; tables are bounded.
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
    """An advertised topic matches the pattern of wildcard receiver `key`."""

    key: int
    topic: str


@dataclass(frozen=True, slots=True)
class TopicLeft:
    """A topic that was reported as matched has had no source for the timeout."""

    key: int
    topic: str


class _Wildcard:
    """One wildcard receiver: its pattern, and the topics reported to it.

    `decided` caches the pattern's results for the newest advertised topics, because each is advertised every second.
    After an aborted match, the pattern is not evaluated for ten times the match's duration, so that it uses at most a
    tenth of the thread's time regardless of the advertised names.
    """

    __slots__ = ("decided", "options", "pattern", "paused_until_ns", "topics")

    def __init__(self, pattern: TopicPattern, options: WildcardReceiverOptions) -> None:
        self.pattern = pattern
        self.options = options
        self.topics: set[str] = set()
        self.decided: dict[str, bool] = {}
        self.paused_until_ns = 0


class WildcardTable:
    """Not thread-safe; `now_ns` must not decrease."""

    __slots__ = ("_counters", "_decided_maximum", "_open_count", "_sourceless", "_wildcards")

    def __init__(self, counters: ResolutionCounters, decided_maximum: int) -> None:
        """`decided_maximum` is the number of topics whose match results each wildcard receiver caches."""
        self._counters = counters
        self._decided_maximum = decided_maximum
        self._wildcards: dict[int, _Wildcard] = {}
        self._sourceless: dict[str, int | None] = {}
        self._open_count = 0
        """Number of times that a wildcard receiver has postponed the decision on a topic."""

    def add(
        self,
        key: int,
        pattern: TopicPattern,
        options: WildcardReceiverOptions,
        known: Iterable[str],
        now_ns: int,
    ) -> list[TopicMatched]:
        """Add a wildcard receiver; return the `known` topics that match it."""
        wildcard = self._wildcards[key] = _Wildcard(pattern, options)
        return [TopicMatched(key, topic) for topic in known if self._joins(wildcard, topic, now_ns)]

    def remove(self, key: int) -> None:
        """Remove a wildcard receiver; an unknown key is not an error."""
        wildcard = self._wildcards.pop(key, None)
        if wildcard is not None:
            self._counters.tr_wildcard_topics -= len(wildcard.topics)

    def no_source_thresholds(self, key: int) -> set[int]:
        """Return the numbers of queries at which a receiver without a topic is notified; empty if it has topics."""
        wildcard = self._wildcards.get(key)
        if wildcard is None or wildcard.topics:
            return set()
        return {wildcard.options.resolution_no_source_notification_threshold}

    def advertised(self, topic: str, now_ns: int) -> tuple[list[TopicMatched], bool]:
        """Return the wildcard receivers that an advertised topic joins, and true if all have decided on it.

        A receiver that is full or pauses the evaluation of its pattern decides when the topic is advertised again.
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
        """Return the patterns of the wildcard receivers as their queries encode them. Any thread."""
        return [wildcard.pattern.text for wildcard in list(self._wildcards.values())]

    def has_source(self, topic: str) -> None:
        """Note that a source of the topic was found."""
        self._sourceless.pop(topic, None)

    def lost_last_source(self, topic: str) -> None:
        """Note that the topic no longer has a source; its timeout starts with the next left()."""
        if any(topic in wildcard.topics for wildcard in self._wildcards.values()):
            self._sourceless[topic] = None

    def is_sourceless(self, topic: str) -> bool:
        """Return true if a wildcard receiver waits for a source of the topic, and else leaves it."""
        return topic in self._sourceless

    def left(self, now_ns: int) -> list[TopicLeft]:
        """Return the topics that have had no source for the timeout."""
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
        """Return when left() must be called for each topic without a source; 0 for now."""
        found = []
        for topic, since_ns in self._sourceless.items():
            timeouts = [
                one.options.resolver_no_source_linger_timeout_ns
                for one in self._wildcards.values()
                if topic in one.topics
            ]
            found.append(0 if since_ns is None or not timeouts else since_ns + min(timeouts))
        return found
