"""Topic follower: opens receivers for topics given by name or by pattern, as the topics become known."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from umstack.errors import OptionError
from umstack.recorder.groups import GroupSet

if TYPE_CHECKING:
    from umstack.context import Context
    from umstack.receiver import Receiver

_REFRESH_SECONDS = 0.2
_DISCOVERY_SECONDS = 30.0
TOPICS_MAXIMUM = 1000


class TopicFollower:
    """Works like UM's wildcard receiver: one receiver for each matching topic. One thread at a time.

    A pattern matches a whole topic name. Topics become known by advertisements; all sources are queried for them at the
    start and, because datagrams may be lost, every half minute.
    """

    def __init__(
        self,
        context: Context,
        topics: Sequence[str],
        *,
        regex: bool = False,
        groups: Sequence[str] = (),
        topics_maximum: int = TOPICS_MAXIMUM,
    ) -> None:
        """Open receivers for the names at once. OptionError for an invalid pattern or group.

        With `groups`, in the notation of GroupSet, they use only sources on those multicast groups.
        """
        self._context = context
        self._takes_group = GroupSet.of(groups).__contains__ if groups else None
        self._patterns: list[re.Pattern[str]] = []
        self._maximum = topics_maximum
        self.receivers: dict[str, Receiver] = {}
        self.ignored_count = 0
        """Matching topics beyond the maximum."""
        self._refreshed_at = self._discovered_at = -1e9
        if not regex:
            for topic in dict.fromkeys(topics):
                self._open(topic)
            return
        for pattern in topics:
            try:
                self._patterns.append(re.compile(pattern))
            except re.error as error:
                raise OptionError(
                    f"{pattern!r} is not a regular expression: {error}",
                    hint="see Python's re; .* matches every topic",
                ) from error

    def refresh(self) -> list[Receiver]:
        """Open receivers for newly known topics; returns all receivers."""
        now = time.monotonic()
        if self._patterns and now - self._refreshed_at >= _REFRESH_SECONDS:
            self._refreshed_at = now
            if now - self._discovered_at >= _DISCOVERY_SECONDS:
                self._discovered_at = now
                self._context.discover_topics()
            self._open_new()
        return list(self.receivers.values())

    def _open(self, topic: str) -> None:
        self.receivers[topic] = self._context.receiver(topic, takes_group=self._takes_group)

    def _open_new(self) -> None:
        wanted = [
            topic
            for topic in self._context.topics()
            if topic not in self.receivers and any(p.fullmatch(topic) for p in self._patterns)
        ]
        space = self._maximum - len(self.receivers)
        for topic in wanted[:space]:
            self._open(topic)
        self.ignored_count = max(0, len(wanted) - space)
