"""Watches one interface: changes of its MTU, its link state and its addresses.

The kernel's notifications only wake the watch, which then reads the state itself. A burst of notifications, or one
lost to a full buffer, therefore results in one correct change.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from dataclasses import dataclass

from umstack_xdp.closing import Closing
from umstack_xdp.interface import Interface, find_interface, interfaces

_RTMGRP_LINK = 0x1
_RTMGRP_IPV4_IFADDR = 0x10
_RTMGRP_IPV6_IFADDR = 0x100
_NETLINK_ROUTE = 0
_ANNOUNCEMENT_BYTES = 65536


@dataclass(frozen=True, slots=True)
class InterfaceChange:
    """The interface before and after; `after` is None while it is gone.

    A removed interface that is made again under its name is followed, as is one that is renamed.

    Example:
        ```python
        with xdp.InterfaceWatch("eth0") as watch:
            change: xdp.InterfaceChange | None = watch.poll()
            assert change is None
        ```
    """

    before: Interface
    """As last seen; for one that has returned, before it was gone."""
    after: Interface | None


class InterfaceWatch(Closing):
    """Watches an interface from creation to `close()`.

    Context manager. One thread at a time.

    Example:
        ```python
        with xdp.InterfaceWatch("eth0") as watch:
            change = watch.wait(timeout_seconds=0.01)
            print(change.after if change else "no change")
        ```
    """

    __slots__ = ("_is_present", "_known", "_socket", "announcements")

    def __init__(self, interface: str | Interface) -> None:
        """Start watching.

        Args:
            interface: The interface, or its name, address or network.

        Raises:
            NoSuchInterfaceError: There is no such interface.
        """
        self._is_present = True
        self.announcements = 0
        """Number of polls that found notifications, of any interface."""
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _NETLINK_ROUTE
        )
        try:
            self._socket.bind((0, _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))
            name = interface if isinstance(interface, str) else interface.name
            self._known = find_interface(name)
        except BaseException:
            self._socket.close()
            raise

    @property
    def interface(self) -> Interface | None:
        """The interface as last seen, None while it is gone."""
        return self._known if self._is_present else None

    def fileno(self) -> int:
        """Return a descriptor that is readable when there may be a change.

        Returns:
            The descriptor, for `select` or an event loop.

        Example:
            ```python
            with xdp.InterfaceWatch("eth0") as watch:
                select.select([watch], [], [], 0)
            ```
        """
        return self._socket.fileno()

    def poll(self) -> InterfaceChange | None:
        """Return the change since the last call. Never blocks.

        Returns:
            The change, or None.

        Example:
            ```python
            with xdp.InterfaceWatch("eth0") as watch:
                print(watch.poll())
            ```
        """
        if not self._drain():
            return None
        self.announcements += 1
        before, was_present = self._known, self._is_present
        there = interfaces()
        after = next((now for now in there if was_present and now.index == before.index), None)
        after = after or next((now for now in there if now.name == before.name), None)
        self._is_present = after is not None
        self._known = after or before
        return None if after == (before if was_present else None) else InterfaceChange(before, after)

    def wait(self, timeout_seconds: float) -> InterfaceChange | None:
        """Wait for a change.

        Args:
            timeout_seconds: How long to wait, in seconds.

        Returns:
            The change, or None if there is none within the timeout.

        Example:
            ```python
            with xdp.InterfaceWatch("eth0") as watch:
                print(watch.wait(0.01))
            ```
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0 or not select.select([self], [], [], left_seconds)[0]:
                return None
            if change := self.poll():
                return change

    def close(self) -> None:
        """Stop watching.

        Example:
            ```python
            xdp.InterfaceWatch("eth0").close()
            ```
        """
        self._socket.close()

    def _drain(self) -> bool:
        """Read all pending notifications; return true if there were any or one was lost."""
        announced = False
        while True:
            try:
                self._socket.recv(_ANNOUNCEMENT_BYTES)
            except BlockingIOError:
                return announced
            except OSError as error:
                if error.errno == errno.EBADF:  # another thread has closed the watch
                    return False
                if error.errno != errno.ENOBUFS:
                    raise
            announced = True
