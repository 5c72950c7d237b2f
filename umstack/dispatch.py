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

    A callback that raises is logged; the next message goes to it all the same. Callbacks run without a lock held, so
    they may make and close receivers, this one included.
    """

    def __init__(self) -> None:
        self._receivers: dict[int, Receiver] = {}
        self._serving: Receiver | None = None
        self._changed = threading.Condition()
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="umstack-dispatch", daemon=True)
        self._thread.start()

    def add(self, receiver: Receiver) -> None:
        """Serve one more receiver."""
        with self._changed:
            if self._stopping:
                raise Closed("the context is closed")
            self._receivers[receiver.fileno()] = receiver
            self._epoll.register(receiver.fileno(), select.EPOLLIN)
            os.eventfd_write(self._wake_fd, 1)

    def remove(self, receiver: Receiver) -> None:
        """Stop serving a receiver; waits for its callback to return, unless it is the callback that asks."""
        with self._changed:
            if self._receivers.pop(receiver.fileno(), None) is not None and not self._epoll.closed:
                self._epoll.unregister(receiver.fileno())
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._serving is not receiver)

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
                receivers = list(self._receivers.values())
            waiting = sum(self._serve(receiver) for receiver in receivers)
            if waiting or self._stopping:
                continue
            for fd, _ in self._epoll.poll():
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
        with self._changed:
            self._epoll.close()
            os.close(self._wake_fd)

    def _serve(self, receiver: Receiver) -> bool:
        """Run the callbacks of what waits; true when more came meanwhile."""
        with self._changed:
            if self._stopping or receiver.fileno() not in self._receivers:
                return False
            self._serving = receiver
        try:
            receiver.dispatch()
            return receiver.arm()
        finally:
            with self._changed:
                self._serving = None
                self._changed.notify_all()
