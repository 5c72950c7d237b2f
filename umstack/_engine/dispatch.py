"""Dispatch: runs the on_message callbacks of a context, on threads of its own or on the application's."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from umstack.errors import Closed
from umstack_xdp.closing import Closing


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
    """Runs the callbacks of each queue one after another. No lock is held, so they may create and close readers."""

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


class DispatchThreads(Dispatch):
    """Embedded mode: each queue with a callback has a thread, so a slow callback delays no other.

    remove() and close() wait until running callbacks return. Called from a callback they do not: two callbacks that
    close each other's queues would wait forever.
    """

    def __init__(self, wait: Callable[[int], object]) -> None:
        """Create it. `wait` blocks until a descriptor is readable."""
        self._wait = wait
        self._changed = threading.Condition()
        self._threads: dict[Callback, threading.Thread] = {}
        self._waiting: set[Callback] = set()
        self._here = threading.local()
        self._is_closed = False

    def add(self, callback: Callback) -> None:
        """Serve one more queue."""
        with self._changed:
            if self._is_closed:
                raise Closed("the context is closed")
            thread = threading.Thread(
                target=self._run, args=(callback,), name="umstack-dispatch", daemon=True
            )
            thread.start()
            self._threads[callback] = thread

    def remove(self, callback: Callback) -> None:
        """Stop serving a queue. Waits until its callback returns, unless a callback called this."""
        with self._changed:
            thread = self._threads.pop(callback, None)
            if thread is None:
                return
            os.eventfd_write(callback.fd, 1)
            if getattr(self._here, "is_callback", False):
                self._changed.wait_for(lambda: callback not in self._waiting)
                return
        thread.join()

    def run(self) -> None:
        """Do nothing: the threads run the callbacks."""

    def close(self) -> None:
        """Stop serving all queues, as remove() does. A second call does nothing."""
        with self._changed:
            self._is_closed = True
            callbacks = list(self._threads)
        for callback in callbacks:
            self.remove(callback)

    def _run(self, callback: Callback) -> None:
        self._here.is_callback = True
        while self._is_served(callback):
            callback.run()
            if self._is_served(callback) and not callback.arm():
                self._wait_for(callback)

    def _is_served(self, callback: Callback) -> bool:
        with self._changed:
            return callback in self._threads

    def _wait_for(self, callback: Callback) -> None:
        """Wait for rows, or for a removal: while a thread waits here, the context is not closed."""
        with self._changed:
            if callback not in self._threads:
                return
            self._waiting.add(callback)
        try:
            self._wait(callback.fd)
        finally:
            with self._changed:
                self._waiting.discard(callback)
                self._changed.notify_all()
