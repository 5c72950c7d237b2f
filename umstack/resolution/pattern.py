"""TopicPattern: the topics that a wildcard receiver matches, and the text of its wildcard queries.

A pattern is a prefix, or a regular expression searched for in the topic name as PCRE does (`^` and `$` anchor it).
Expressions use the package `regex`, a superset of Python's `re`, because it can abort a match after a time: names come
from the network, and an expression may take exponential time for a malicious name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from umstack.errors import OptionError
from umstack.resolution.topic_name import encode_topic_name

_MATCH_SECONDS_MAX = 0.005


class TopicPattern:
    """A compiled pattern. `text` is the PCRE that wildcard queries carry."""

    __slots__ = ("_matches", "text")

    def __init__(self, text: str, matches: Callable[[str], bool | None]) -> None:
        self.text = text
        self._matches = matches

    def matches(self, topic: str) -> bool | None:
        """Return true if the topic matches; None if matching takes longer than 5 ms."""
        return self._matches(topic)

    @classmethod
    def of_prefix(cls, prefix: str) -> TopicPattern:
        """Match names that start with `prefix`; raises TopicNameError if no name can."""
        encode_topic_name(prefix)
        return cls("^" + re.escape(prefix), lambda topic: topic.startswith(prefix))

    @classmethod
    def of_expression(cls, expression: str) -> TopicPattern:
        """Match names that contain `expression`; raises OptionError if it is invalid or `regex` is not installed."""
        encode_topic_name(expression)
        compiled = _compiled(expression)

        def matches(topic: str) -> bool | None:
            try:
                return compiled.search(topic, timeout=_MATCH_SECONDS_MAX) is not None
            except TimeoutError:
                return None

        return cls(expression, matches)


def _compiled(expression: str) -> Any:
    try:
        import regex
    except ImportError:
        raise OptionError(
            "patterns need the package regex", hint="pip install 'umstack[wildcard]', or use prefix="
        ) from None
    try:
        return regex.compile(expression)
    except regex.error as error:
        raise OptionError(
            f"the pattern {expression!r} is no regular expression: {error}",
            hint=r"write it as Python's re takes it, for example r'^orders\.(eu|us)\.'",
        ) from None


__all__ = ["TopicPattern"]
