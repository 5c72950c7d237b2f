"""DutyCycle: the periodic control work of sequential mode, run on the application's thread."""

from __future__ import annotations

import time
from collections.abc import Callable

_INTERVAL_NS = 1_000_000
_POLLS_PER_CLOCK_READ = 64
"""Reading the clock costs about as much as a poll that finds nothing."""


class DutyCycle:
    """Runs its work at most once per millisecond. Only one thread at a time may call it."""

    __slots__ = ("_due_ns", "_polls", "_work")

    def __init__(self, work: Callable[[int], None]) -> None:
        """Create it. `work` takes the time of the monotonic clock in nanoseconds."""
        self._work = work
        self._due_ns = 0
        self._polls = 0

    def run(self) -> None:
        """Do the work if it is due."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _INTERVAL_NS
            self._work(now_ns)

    def count_poll(self) -> None:
        """Count a poll of a receiver; every 64th runs the work if it is due."""
        self._polls += 1
        if self._polls % _POLLS_PER_CLOCK_READ == 0:
            self.run()
