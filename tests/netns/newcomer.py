"""Newcomers to a topic, one after the other, in a process of their own as a user has it.

`python -m tests.netns.newcomer INTERFACE TOPIC OPTIONS`; OPTIONS are those of the context in JSON. For each order
`{"join": true}` the process answers with the seconds until the first message of each kind; `{"join": false}` ends it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from umstack import Context, Event, Message
from umstack.bench.children import receive_order, say

WAIT_SECONDS = 20.0
"""Maximum time that a newcomer waits for its first messages."""
_FROM_BEFORE = 8
"""The flag of a message from before the receiver joined."""


def join(interface: str, topic: str, options: dict[str, Any]) -> dict[str, float]:
    """Open a context with a receiver; return the seconds until its first late and its first live message."""
    begin, first_s = time.monotonic(), dict[str, float]()
    has_live = threading.Event()

    def note(event: Event) -> None:
        if not isinstance(event, Message):
            return
        kind = "late" if event.flags & _FROM_BEFORE else "live"
        first_s.setdefault(kind, time.monotonic() - begin)
        if kind == "live":
            has_live.set()

    with Context(interface, **options) as context:
        context.receiver(topic, on_message=note)
        has_live.wait(WAIT_SECONDS)
    return first_s


def main(interface: str, topic: str, options: str) -> None:
    """Join as often as the parent orders it."""
    while receive_order()["join"]:
        say(**join(interface, topic, json.loads(options)))


if __name__ == "__main__":
    main(*sys.argv[1:])
