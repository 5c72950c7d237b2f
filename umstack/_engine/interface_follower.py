"""InterfaceFollower: calls its owner when the MTU of an interface changes, its link comes back (W4), or it is another
one (made again, renamed, another address), and when the kernel announces a change of any other interface, such as a
member of its bond."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import NamedTuple

import umstack_xdp as xdp

_WAIT_MS = 500


class InterfaceFollower:
    """Watches netlink, on a thread after start() or in the owner's loop through poll()."""

    def __init__(
        self,
        interface: xdp.Interface,
        on_mtu: Callable[[int], None],
        on_moved: Callable[[str, xdp.Interface | None], None],
        on_news: Callable[[], None],
        on_link_up: Callable[[], None],
        on_interval: Callable[[], None],
    ) -> None:
        """Create it. The callbacks run on the follower's thread or inside poll().

        `on_moved` gets the kind of the change (InterfaceChanged.change) and the interface when its index, name, first
        IPv4 or preferred IPv6 address differs, or None when it is gone.
        `on_news` runs after the kernel announced a change of any interface, such as a bond's fail-over.
        `on_interval` runs every half second on the follower's thread; poll() does not call it.
        """
        self._watch = xdp.InterfaceWatch(interface)
        self._mtu_bytes = interface.mtu_bytes
        self._place = _place(interface)
        self._is_present = True
        self._ipv6_address = interface.ipv6_address
        self._was_up = interface.is_usable
        self._on_mtu, self._on_moved, self._on_news = on_mtu, on_moved, on_news
        self._on_link_up = on_link_up
        self._on_interval = on_interval
        self._stopping = threading.Event()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Follow the interface on a new thread."""
        self._thread = threading.Thread(target=self._run, name="umstack-interface", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        """Apply the changes that have arrived, without waiting."""
        before = self._watch.announcements
        while (change := self._watch.poll()) is not None:
            self._apply(change)
        if self._watch.announcements != before:
            self._on_news()

    def close(self) -> None:
        """Stop following."""
        self._stopping.set()
        os.eventfd_write(self._wake_fd, 1)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._watch.close()
        os.close(self._wake_fd)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._watch, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        while True:
            poll.poll(_WAIT_MS)
            if self._stopping.is_set():
                return
            self.poll()
            self._on_interval()

    def _apply(self, change: xdp.InterfaceChange) -> None:
        interface = change.after
        if interface is None:
            self._was_up = self._is_present = False
            self._on_moved("gone", None)
            return
        interface = interface.preferring(self._ipv6_address)
        place = _place(interface)
        if (place != self._place or not self._is_present) and interface.is_up:
            self._move(place, interface)
        if interface.mtu_bytes != self._mtu_bytes:
            self._mtu_bytes = interface.mtu_bytes
            self._on_mtu(interface.mtu_bytes)
        if interface.is_usable and not self._was_up:
            self._on_link_up()
        self._was_up = interface.is_usable

    def _move(self, place: _Place, interface: xdp.Interface) -> None:
        """Report the change to this place."""
        former, was_present = self._place, self._is_present
        if interface.address is None:
            if was_present and former.address is not None:
                self._place = former._replace(address=None)
                self._on_moved("address_removed", interface)
            return
        self._place, self._is_present = place, True
        if place.number != former.number:
            self._on_moved("made_again", interface)
        elif not was_present:
            self._on_moved("returned", interface)
        elif place.name != former.name:
            self._on_moved("renamed", interface)
        else:
            self._on_moved("address_changed", interface)


class _Place(NamedTuple):
    """The facts of an interface that sockets depend on."""

    number: int
    name: str
    address: str | None
    ipv6_address: str | None


def _place(interface: xdp.Interface) -> _Place:
    return _Place(interface.index, interface.name, interface.address, interface.ipv6_address)
