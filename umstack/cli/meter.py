"""Meter: a progress line on stderr, for commands that take longer than a second."""

from __future__ import annotations

import time

from rich.console import Console
from rich.status import Status

from umstack_xdp.closing import Closing

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
        self._traffic = (self._started, 0, 0)

    def show(self, text: str, *, is_news: bool = False) -> None:
        """Show the progress if the interval has passed. A new step is shown immediately."""
        self._show_if_due(text, is_news)

    def _show_if_due(self, text: str, is_news: bool) -> bool:
        """Return true if the text is shown."""
        now = time.monotonic()
        if not self._enabled or text == self._shown or (now < self._next and not is_news):
            return False
        self._shown = text
        if not self._console.is_terminal:
            self._next = now + _LOG_INTERVAL_SECONDS
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)
            return True
        self._next = now + _TERMINAL_INTERVAL_SECONDS
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        self._status.update(text)
        return True

    def show_traffic(self, did: str, messages: int, byte_count: int) -> None:
        """Show the totals, and the rates since they were last shown, if the interval has passed."""
        now = time.monotonic()
        if not self._enabled or now < self._next:
            return
        since, messages_before, bytes_before = self._traffic
        elapsed = now - since
        is_shown = self._show_if_due(
            f"{did} {messages:,} messages, {amount(byte_count)}; now {(messages - messages_before) / elapsed:,.0f} "
            f"messages/s, {amount((byte_count - bytes_before) / elapsed)}/s",
            is_news=False,
        )
        if is_shown:
            self._traffic = (now, messages, byte_count)

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
