"""What tests of every tier wait for."""

from __future__ import annotations

import time
from collections.abc import Callable

from umstack import Message
from umstack.reader import Reader

SECONDS = 10.0
"""How long a test waits for what must happen. What takes so long does not happen."""

_PAUSE_SECONDS = 0.002


def wait_for(
    condition: Callable[[], object], what: str = "the condition", seconds: float = 2 * SECONDS
) -> None:
    """Ask again and again until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(_PAUSE_SECONDS)


def collect(receiver: Reader, count: int, seconds: float = SECONDS) -> list[Message]:
    """The next messages, this many of them; fails when they do not come. Events are passed over."""
    messages: list[Message] = []
    deadline = time.monotonic() + seconds
    while len(messages) < count:
        messages += receiver.poll(min(count - len(messages), 4096), 0.1).messages()
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came in {seconds} s"
    return messages
