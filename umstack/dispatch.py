"""The thread that runs on_message callbacks of a context in embedded mode."""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

from umstack.errors import Closed

if TYPE_CHECKING:
    from umstack.receiver import Receiver


class DispatchThread:
    """Waits on the receivers it was given and hands their rows to their callbacks, one receiver after another.

    A callback that raises is logged; the next message goes to it all the same.
    """

    def __init__(self) -> None:
        self._receivers: dict[int, Receiver] = {}
        self._lock = threading.RLock()
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="umstack-dispatch", daemon=True)
        self._thread.start()

    def add(self, receiver: Receiver) -> None:
        """Serve one more receiver."""
        with self._lock:
            if self._stopping:
                raise Closed("the context is closed")
            self._receivers[receiver.fileno()] = receiver
            self._epoll.register(receiver.fileno(), select.EPOLLIN)
            os.eventfd_write(self._wake_fd, 1)

    def remove(self, receiver: Receiver) -> None:
        """Stop serving a receiver. Not while its callback runs, unless the callback itself asks for it."""
        with self._lock:
            if self._receivers.pop(receiver.fileno(), None) is not None and not self._ended:
                self._epoll.unregister(receiver.fileno())

    def close(self) -> None:
        """End the thread after the callback it is in. A callback may ask for it."""
        with self._lock:
            if not self._stopping:
                self._stopping = True
                os.eventfd_write(self._wake_fd, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                waiting = [self._serve(receiver) for receiver in list(self._receivers.values())]
            if any(waiting) or self._stopping:
                continue
            for fd, _ in self._epoll.poll():
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
        with self._lock:
            self._ended = True
            self._epoll.close()
            os.close(self._wake_fd)

    def _serve(self, receiver: Receiver) -> bool:
        """Run the callbacks of what waits; true when more came meanwhile."""
        if self._stopping or receiver.closed:
            return False
        receiver.dispatch()
        return receiver.arm()
