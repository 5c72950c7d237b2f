"""Changes of a context's interface: made again, renamed, another address or MTU."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

import umstack_xdp as xdp
from umstack._engine.engine import Engine
from umstack.errors import error_from_result
from umstack.resolution import ResolutionInterface, Resolver
from umstack.streams import Streams

_log = logging.getLogger("umstack.link")


class InterfaceMoves:
    """Lets the parts of a context follow its interface, and reports what cannot follow.

    Args:
        engine: The engine of the context.
        resolver: Its topic resolution.
        streams: Its TCP connections.
        unless_closing: Holds the context's lifecycle lock and yields true; false once the context is closed.
    """

    __slots__ = ("_engine", "_resolver", "_streams", "_unless_closing")

    def __init__(
        self,
        engine: Engine,
        resolver: Resolver,
        streams: Streams,
        unless_closing: Callable[[], AbstractContextManager[bool]],
    ) -> None:
        self._engine = engine
        self._resolver = resolver
        self._streams = streams
        self._unless_closing = unless_closing

    def on_mtu(self, mtu_bytes: int) -> None:
        """Follow a changed MTU."""
        self._engine.core.set_mtu(mtu_bytes)
        self._resolver.set_mtu(mtu_bytes)

    def on_moved(self, change: str, interface: xdp.Interface | None) -> None:
        """Follow an interface that changed as `change` names it; None: it is gone."""
        core = self._engine.core
        former = core.interface
        if interface is None:
            _log.error(
                "%s is gone: nothing is sent or received until an interface of that name is back", former.name
            )
            self._engine.report_interface(former.name, change, False)
            return
        if change == "address_removed":
            _log.warning("%s had the address %s and now has none", interface.name, former.address)
            self._engine.report_interface(interface.name, change, False)
            return
        if self._engine.link.kind == "xdp" and change in ("made_again", "returned"):
            _log.error("%s was gone, and its rings ended with it: open the context again", interface.name)
            self._engine.report_interface(interface.name, change, False)
            return
        with self._unless_closing() as is_open:
            if not is_open:
                return
            result = core.follow_interface(interface, has_returned=change == "returned")
            moved = self._engine.sessions.follow_interface()
        if change == "address_changed" and interface.address == former.address:
            self._resolver.move_sources(moved)
            self._on_ipv6_changed(former, interface, result)
            return
        if not self._streams.follow_address(interface.address or "") and result == 0:
            result = -errno.EADDRNOTAVAIL
        self._resolver.follow_interface(
            ResolutionInterface(interface.name, interface.index, interface.address or "", interface.mtu_bytes)
        )
        self._resolver.move_sources(moved)
        _log_move(former, interface, result)
        self._engine.report_interface(interface.name, change, result == 0)
        self._resolver.request_resolution()

    def _on_ipv6_changed(self, former: xdp.Interface, interface: xdp.Interface, result: int) -> None:
        """Report that only the IPv6 address has changed; without a session that uses it, that is no news."""
        if former.ipv6_address is None:  # sources of IPv6 groups could not be joined
            self._resolver.forget_sessions(None)
            self._resolver.request_resolution()
        change = f"{interface.name} had the IPv6 address {former.ipv6_address} and now has {interface.ipv6_address}"
        if result == 0:
            _log.info("%s: followed", change)
        else:
            _log.error(
                "%s: sessions of IPv6 groups stay at the former address; open the context again", change
            )
            self._engine.report_interface(interface.name, "address_changed", False)


def _log_move(former: xdp.Interface, interface: xdp.Interface, result: int) -> None:
    """Log how an interface changed, and if its context follows it: 0, or a negative errno."""
    if result == 0:
        _log.warning("%s is now %s: followed", former, interface)
    elif result == -errno.EADDRNOTAVAIL:
        _log.error(
            "%s had the address %s and now has %s: late join and requests, LBT-RU, TCP, and sources over rings "
            "stay at the former address; open the context again",
            interface.name,
            former.address,
            interface.address,
        )
    else:
        _log.error("%s cannot be followed: %s", interface, error_from_result(result, interface.name))


__all__ = ["InterfaceMoves"]
