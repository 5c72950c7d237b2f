"""Inbox: one open request and its unread responses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from umstack.errors import ResponsesDropped, UmError
from umstack.requests.response import Response


class Inbox:
    """Filled by the receiving thread, read by any thread."""

    __slots__ = ("arrived", "deadline_ns", "error", "index", "owner", "topic", "wakers")

    def __init__(self, owner: object, topic: str, index: int, deadline_ns: int) -> None:
        """`owner`: the source that sent the request; `index`: the request's number."""
        self.owner = owner
        self.topic = topic
        self.index = index
        self.deadline_ns = deadline_ns
        self.arrived: deque[Response | ResponsesDropped] = deque()
        self.error: UmError | None = None
        """Why the request is over; raised to readers after the responses that have arrived."""
        self.wakers: list[Callable[[], object]] = []
        """Called by the receiving thread when there is something to read."""

    @property
    def is_ready(self) -> bool:
        """True if a read does not block."""
        return bool(self.arrived) or self.error is not None

    def is_over(self, now_ns: int) -> bool:
        """Return true if responses are no longer accepted."""
        return self.error is not None or now_ns >= self.deadline_ns

    def take(self, response: Response) -> None:
        """Add a response."""
        self.arrived.append(response)
        self._wake()

    def note_dropped(self) -> None:
        """Record that a response was dropped; a reader gets ResponsesDropped in its place."""
        last = self.arrived[-1] if self.arrived else None
        if isinstance(last, ResponsesDropped):
            last.count += 1
        else:
            self.arrived.append(ResponsesDropped(f"request {self.index:#x} on {self.topic!r}"))
            self._wake()

    def end(self, error: UmError) -> None:
        """Accept no more responses; the first reason is kept."""
        self.error = self.error or error
        self._wake()

    def _wake(self) -> None:
        for waker in list(self.wakers):
            waker()


__all__ = ["Inbox"]
