"""StreamLoop: runs a context's TCP sockets, submitted commands and timed work on one thread."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from umstack.errors import Closed
from umstack_xdp.closing import Closing

_NS_PER_S = 1_000_000_000
_JOIN_TIMEOUT_S = 5.0
_NICE = 5
"""Nice value of the thread: recovery and unattended responses yield to live data."""

Result = TypeVar("Result")
Ready = Callable[[int, int], None]
"""Handler of a registered socket: called with the ready events and the monotonic time in nanoseconds."""

_logger = logging.getLogger("umstack.streams")


class StreamLoop(Closing):
    """The event loop of the TCP streams. In embedded mode it has its own thread, started on first use; otherwise the
    donated thread runs it.

    An exception in one step is logged; the other steps continue.
    """

    def __init__(self, *, is_threaded: bool) -> None:
        self._is_threaded = is_threaded
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._work: list[Callable[[int], int | None]] = []
        self._lock = threading.Lock()
        self._selector: selectors.DefaultSelector | None = None
        self._thread: threading.Thread | None = None
        self._wake_fd = -1
        self._is_closed = False
        self._due_ns: int | None = None

    # Any thread

    def open(self) -> selectors.BaseSelector:
        """Start the loop on the first call; return its selector, used by the loop's thread only. Raises Closed."""
        with self._lock:
            if self._is_closed:
                raise Closed("the context is closed")
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
                self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._selector.register(self._wake_fd, selectors.EVENT_READ, self._on_wake)
                if self._is_threaded:
                    self._thread = threading.Thread(target=self._run, name="umstack-streams", daemon=True)
                    self._thread.start()
            return self._selector

    def fileno(self) -> int | None:
        """Return a descriptor that is readable while the loop has something to do; None: it is not open."""
        selector = self._selector
        return None if selector is None else selector.fileno()

    @property
    def due_ns(self) -> int | None:
        """When the timed work is due next; None: never."""
        return self._due_ns

    def submit(self, command: Callable[[], None]) -> None:
        """Run the command on the loop's thread soon; a closed loop ignores it."""
        self._commands.put(command)
        self._wake()

    def add_work(self, work: Callable[[int], int | None]) -> None:
        """Call `work` on the loop's thread with the time in nanoseconds. `work` returns when to call it again."""
        self.submit(partial(self._work.append, work))

    def process(self, now_ns: int) -> None:
        """Run the loop once on the caller's thread; does nothing if the loop has its own thread."""
        if not self._is_threaded and self._selector is not None:
            self._select(0)
            self._run_due(now_ns)

    def end_thread(self) -> None:
        """Stop the loop; after this the caller may close registered sockets."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
            self._wake()
        if thread is not None:
            thread.join(_JOIN_TIMEOUT_S)

    def close(self) -> None:
        """Stop, and close the selector. A second call does nothing."""
        self.end_thread()
        with self._lock:
            selector, self._selector = self._selector, None
            if selector is not None:
                selector.close()
                os.close(self._wake_fd)
                self._wake_fd = -1

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake_fd, 1)

    # The loop's thread

    def _on_wake(self, _mask: int, _now_ns: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._is_closed:
            now_ns = time.monotonic_ns()
            due_ns = self._due_ns
            self._select(None if due_ns is None else max(0, due_ns - now_ns) / _NS_PER_S)
            self._run_due(time.monotonic_ns())

    def _select(self, timeout_s: float | None) -> None:
        selector = self._selector
        assert selector is not None
        for key, mask in selector.select(timeout_s):
            self.guard(partial(key.data, mask, time.monotonic_ns()))

    def _run_due(self, now_ns: int) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                break
            self.guard(command)
        times = [self.guard(partial(work, now_ns)) for work in self._work]
        self._due_ns = min((due_ns for due_ns in times if due_ns is not None), default=None)

    def guard(self, step: Callable[[], Result]) -> Result | None:
        """Run a step; log an exception and return None."""
        try:
            return step()
        except Exception:
            _logger.exception("a step of the TCP streams failed")
            return None


__all__ = ["Ready", "StreamLoop"]
