"""InterfaceFollower: calls its owner when the MTU of an interface changes, its link comes back (W4), or it is another
one (made again, renamed, another address), and when the kernel announces a change of any other interface, such as a
member of its bond."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

import umstack_xdp as xdp

_WAIT_MS = 500


class InterfaceFollower:
    """Watches netlink, on a thread after start() or in the owner's loop through poll()."""

    def __init__(
        self,
        interface: xdp.Interface,
        on_mtu: Callable[[int], None],
        on_moved: Callable[[xdp.Interface | None], None],
        on_news: Callable[[], None],
        on_link_up: Callable[[], None],
        on_interval: Callable[[], None],
    ) -> None:
        """Create it. The callbacks run on the follower's thread or inside poll().

        `on_moved` gets the interface when its index, name, first IPv4 or preferred IPv6 address differs, or None when
        it is gone.
        `on_news` runs after the kernel announced a change of any interface, such as a bond's fail-over.
        `on_interval` runs every half second on the follower's thread; poll() does not call it.
        """
        self._watch = xdp.InterfaceWatch(interface)
        self._mtu_bytes = interface.mtu_bytes
        self._place: tuple[int, str, str | None, str | None] | None = _place(interface)
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
            self._was_up, self._place = False, None
            self._on_moved(None)
            return
        interface = interface.preferring(self._ipv6_address)
        if _place(interface) != self._place and interface.is_up:
            self._place = _place(interface)
            if interface.address is not None:
                self._on_moved(interface)
        if interface.mtu_bytes != self._mtu_bytes:
            self._mtu_bytes = interface.mtu_bytes
            self._on_mtu(interface.mtu_bytes)
        if interface.is_usable and not self._was_up:
            self._on_link_up()
        self._was_up = interface.is_usable


def _place(interface: xdp.Interface) -> tuple[int, str, str | None, str | None]:
    return interface.index, interface.name, interface.address, interface.ipv6_address
