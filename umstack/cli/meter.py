"""Meter: a progress line on stderr, for commands that take longer than a second."""

from __future__ import annotations

import time

from rich.console import Console
from rich.status import Status

from xdp.closing import Closing

_TERMINAL_INTERVAL_SECONDS = 0.25
_LOG_INTERVAL_SECONDS = 5.0
_QUIET_SECONDS = 1.0


class Meter(Closing):
    """A line that is updated on a terminal; elsewhere a new line every few seconds."""

    def __init__(self, *, enabled: bool = True) -> None:
        """Show nothing in the first second, or if not enabled."""
        self._console = Console(stderr=True)
        self._enabled = enabled
        self._status: Status | None = None
        self._shown = ""
        self._started = time.monotonic()
        self._next = self._started + _QUIET_SECONDS

    def show(self, text: str, *, is_news: bool = False) -> None:
        """Show the progress if the interval has passed. A new step is shown immediately."""
        now = time.monotonic()
        if not self._enabled or text == self._shown or (now < self._next and not is_news):
            return
        self._shown = text
        if not self._console.is_terminal:
            self._next = now + _LOG_INTERVAL_SECONDS
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)
            return
        self._next = now + _TERMINAL_INTERVAL_SECONDS
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        self._status.update(text)

    @property
    def seconds(self) -> float:
        """Seconds since creation."""
        return time.monotonic() - self._started

    def close(self) -> None:
        """Remove the line."""
        if self._status is not None:
            self._status.stop()
            self._status = None


def amount(byte_count: float) -> str:
    """Format a number of bytes."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if byte_count < 1000 or unit == "GB":
            return f"{byte_count:.0f} {unit}" if unit == "bytes" else f"{byte_count:.1f} {unit}"
        byte_count /= 1000
    raise AssertionError
