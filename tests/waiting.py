"""Waiting for conditions, in tests of every tier."""

from __future__ import annotations

import time
from collections.abc import Callable

from umstack import Message
from umstack.reader import Reader

SECONDS = 10.0
"""Time limit in seconds for an expected event."""

_PAUSE_SECONDS = 0.002


def wait_for(
    condition: Callable[[], object], what: str = "the condition", seconds: float = 2 * SECONDS
) -> None:
    """Poll until the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(_PAUSE_SECONDS)


def collect(receiver: Reader, count: int, seconds: float = SECONDS) -> list[Message]:
    """Return the next `count` messages; fail if they do not arrive. Events are skipped."""
    messages: list[Message] = []
    deadline = time.monotonic() + seconds
    while len(messages) < count:
        messages += receiver.poll(min(count - len(messages), 4096), 0.1).messages()
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages arrived in {seconds} s"
    return messages
