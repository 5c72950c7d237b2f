"""How a process of the demo tells its parent how far it is: JSON objects, a line each, on standard output.

Its standard input is a pipe of which the parent holds the other end. When it closes, the parent is gone and so is the
reason to go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

_INTERVAL_SECONDS = 0.2
_ORPHANED_STATUS = 3
_GRACE_SECONDS = 2.0


class Reporter:
    """The reporting end, in the child."""

    def __init__(self) -> None:
        """Begin to watch the parent."""
        self._next = 0.0
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()

    def say(self, event: str, **facts: Any) -> None:
        """Report an event."""
        print(json.dumps({"event": event, **facts}), flush=True)

    def progress(self, **facts: Any) -> None:
        """Report progress, if the last time is long enough ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _INTERVAL_SECONDS
            self.say("progress", **facts)


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(_ORPHANED_STATUS)
