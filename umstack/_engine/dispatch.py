"""Dispatch: runs the on_message callbacks of a context, on its own thread or on the application's."""

from __future__ import annotations

import os
import select
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from umstack.errors import Closed
from xdp.closing import Closing


@dataclass(frozen=True, slots=True, eq=False)
class Callback:
    """Passes the rows of one queue to the application's callback."""

    fd: int
    """Becomes readable when rows are waiting, after arm()."""
    arm: Callable[[], bool]
    """Makes `fd` readable at the next row. Returns true if rows are waiting already."""
    run: Callable[[], int]
    """Calls the callback with the waiting rows. Returns their number."""


class Dispatch(Closing):
    """Runs callbacks one after another. No lock is held, so a callback may create and close readers."""

    @abstractmethod
    def add(self, callback: Callback) -> None:
        """Serve one more queue."""

    @abstractmethod
    def remove(self, callback: Callback) -> None:
        """Stop serving a queue. Does nothing for a queue that is not served."""

    @abstractmethod
    def run(self) -> None:
        """Run the waiting callbacks on the calling thread, in sequential mode."""


class DonatedDispatch(Dispatch):
    """Sequential mode: callbacks run inside process_events(), on the thread that called it."""

    def __init__(self) -> None:
        self._callbacks: dict[Callback, None] = {}

    def add(self, callback: Callback) -> None:
        """Serve one more queue."""
        self._callbacks[callback] = None

    def remove(self, callback: Callback) -> None:
        """Stop serving a queue."""
        self._callbacks.pop(callback, None)

    def run(self) -> None:
        """Call the callbacks with the waiting rows."""
        for callback in list(self._callbacks):
            callback.run()

    def close(self) -> None:
        """Stop serving all queues."""
        self._callbacks.clear()


class DispatchThread(Dispatch):
    """Embedded mode: a thread waits on the queues. It starts with the first callback.

    remove() waits until a running callback of that queue returns, unless that callback called it.
    """

    def __init__(self, wait: Callable[[int], object]) -> None:
        """Create it. `wait` blocks until a descriptor is readable."""
        self._wait = wait
        self._callbacks: dict[int, Callback] = {}
        self._running: Callback | None = None
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._epoll: select.epoll
        self._wake_fd: int

    def add(self, callback: Callback) -> None:
        """Serve one more queue."""
        with self._changed:
            if self._stopping:
                raise Closed("the context is closed")
            if self._thread is None:
                self._thread = self._start()
            self._callbacks[callback.fd] = callback
            self._epoll.register(callback.fd, select.EPOLLIN)
            os.eventfd_write(self._wake_fd, 1)

    def _start(self) -> threading.Thread:
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        thread = threading.Thread(target=self._run, name="umstack-dispatch", daemon=True)
        thread.start()
        return thread

    def remove(self, callback: Callback) -> None:
        """Stop serving a queue. Waits until its callback returns, unless that callback called this."""
        with self._changed:
            if self._callbacks.get(callback.fd) is callback:
                del self._callbacks[callback.fd]
                if not self._epoll.closed:
                    self._epoll.unregister(callback.fd)
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._running is not callback)

    def run(self) -> None:
        """Do nothing: the thread runs the callbacks."""

    def close(self) -> None:
        """End the thread after its current callback. A callback may call this. A second call does nothing."""
        with self._changed:
            first, self._stopping = not self._stopping, True
            thread = self._thread
            if first and thread is not None:
                os.eventfd_write(self._wake_fd, 1)
        if thread is not None and threading.current_thread() is not thread:
            thread.join()

    def _run(self) -> None:
        while not self._stopping:
            with self._changed:
                callbacks = list(self._callbacks.values())
            waiting = sum(self._serve(callback) for callback in callbacks)
            if waiting or self._stopping:
                continue
            self._wait(self._epoll.fileno())
            for fd, _ in self._epoll.poll(0):
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
        with self._changed:
            self._epoll.close()
            os.close(self._wake_fd)

    def _serve(self, callback: Callback) -> bool:
        """Run a callback for the waiting rows. Returns true if more rows arrived meanwhile."""
        with self._changed:
            if self._stopping or self._callbacks.get(callback.fd) is not callback:
                return False
            self._running = callback
        try:
            callback.run()
            return callback.arm()
        finally:
            with self._changed:
                self._running = None
                self._changed.notify_all()
