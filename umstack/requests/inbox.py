"""Inbox: one request that is open, and the responses to it that have not been read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from umstack.errors import ResponsesDropped, UmError
from umstack.requests.response import Response


class Inbox:
    """Filled by the thread that receives, read by any."""

    __slots__ = ("arrived", "deadline_ns", "error", "index", "owner", "topic", "wakers")

    def __init__(self, owner: object, topic: str, index: int, deadline_ns: int) -> None:
        """`owner` is the source that sent the request, on a topic, by a number."""
        self.owner = owner
        self.topic = topic
        self.index = index
        self.deadline_ns = deadline_ns
        self.arrived: deque[Response | ResponsesDropped] = deque()
        self.error: UmError | None = None
        """Why no more come; a reader gets it behind what has come."""
        self.wakers: list[Callable[[], object]] = []
        """Called when there is something to read, by the thread that receives."""

    @property
    def is_ready(self) -> bool:
        """True if a reader needs not wait."""
        return bool(self.arrived) or self.error is not None

    def is_over(self, now_ns: int) -> bool:
        """True if no more responses are taken."""
        return self.error is not None or now_ns >= self.deadline_ns

    def take(self, response: Response) -> None:
        """A response has come."""
        self.arrived.append(response)
        self._wake()

    def note_dropped(self) -> None:
        """A response had to be dropped: the reader learns it in its place."""
        last = self.arrived[-1] if self.arrived else None
        if isinstance(last, ResponsesDropped):
            last.count += 1
        else:
            self.arrived.append(ResponsesDropped(f"request {self.index:#x} on {self.topic!r}"))
            self._wake()

    def end(self, error: UmError) -> None:
        """No more responses are taken; the first reason stays."""
        self.error = self.error or error
        self._wake()

    def _wake(self) -> None:
        for waker in list(self.wakers):
            waker()


__all__ = ["Inbox"]
