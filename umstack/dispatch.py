"""The thread that runs on_message callbacks of a context in embedded mode."""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

from umstack.errors import Closed

if TYPE_CHECKING:
    from umstack.reader import Reader


class DispatchThread:
    """Waits on the readers it was given and hands their rows to their callbacks, one after another.

    A callback that raises is logged; the next message goes to it all the same. Callbacks run without a lock held, so
    they may make and close readers, this one included.
    """

    def __init__(self) -> None:
        self._readers: dict[int, Reader] = {}
        self._serving: Reader | None = None
        self._changed = threading.Condition()
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="umstack-dispatch", daemon=True)
        self._thread.start()

    def add(self, reader: Reader) -> None:
        """Serve one more reader."""
        with self._changed:
            if self._stopping:
                raise Closed("the context is closed")
            self._readers[reader.fileno()] = reader
            self._epoll.register(reader.fileno(), select.EPOLLIN)
            os.eventfd_write(self._wake_fd, 1)

    def remove(self, reader: Reader) -> None:
        """Stop serving a reader; waits for its callback to return, unless it is the callback that asks."""
        with self._changed:
            if self._readers.pop(reader.fileno(), None) is not None and not self._epoll.closed:
                self._epoll.unregister(reader.fileno())
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._serving is not reader)

    def close(self) -> None:
        """End the thread after the callback it is in. A callback may ask for it."""
        with self._changed:
            if not self._stopping:
                self._stopping = True
                os.eventfd_write(self._wake_fd, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            with self._changed:
                readers = list(self._readers.values())
            waiting = sum(self._serve(reader) for reader in readers)
            if waiting or self._stopping:
                continue
            for fd, _ in self._epoll.poll():
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
        with self._changed:
            self._epoll.close()
            os.close(self._wake_fd)

    def _serve(self, reader: Reader) -> bool:
        """Run the callbacks of what waits; true when more came meanwhile."""
        with self._changed:
            if self._stopping or reader.fileno() not in self._readers:
                return False
            self._serving = reader
        try:
            reader.dispatch()
            return reader.arm()
        finally:
            with self._changed:
                self._serving = None
                self._changed.notify_all()
