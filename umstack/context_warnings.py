"""Warnings of a context about its interface and link."""

from __future__ import annotations

import errno
import logging
import warnings

import umstack_xdp as xdp
from umstack._engine.engine import Engine
from umstack._engine.link import DataLink, why_others_take_groups
from umstack.config import ContextOptions, lint_datagram_size
from umstack.errors import error_from_result
from umstack.foreign_text import displayed
from umstack.resolution import Resolver

_log = logging.getLogger("umstack.link")


class ReceiveBufferWarning(UserWarning):
    """The kernel granted a smaller receive buffer than transport_lbtrm_receiver_socket_buffer."""


class OccupiedInterfaceWarning(UserWarning):
    """Another process receives over rings on the interface, while this context uses sockets."""


class GenericModeWarning(UserWarning):
    """Rings are in generic mode because the driver does not run the XDP program."""


class FragmentationWarning(UserWarning):
    """IP fragments datagrams because the configured datagram size exceeds the interface's MTU."""


def warn_occupied(link: DataLink, interface: xdp.Interface) -> None:
    """Warn of a socket link on an interface whose groups another process receives over rings."""
    why = why_others_take_groups(interface) if link.kind == "socket" else None
    if why is not None:
        _warn(why, interface, OccupiedInterfaceWarning)


def warn_generic(link: DataLink, interface: xdp.Interface) -> None:
    """Warn of generic mode: it is slower, and drops joined datagrams, which a fault of the network seems to explain."""
    reasons = link.step_down()
    if reasons is None:
        return
    text = (
        f"{interface.name} uses generic mode, which is slower, and where datagrams joined by UDP GSO or GRO arrive "
        f"through the kernel; {reasons}. Also possible: link=socket, or link=native, which refuses generic mode"
    )
    _warn(text, interface, GenericModeWarning)


def warn_fragmented(options: ContextOptions, interface: xdp.Interface) -> None:
    """Warn of datagrams longer than the interface's MTU."""
    fragmented = lint_datagram_size(options, interface.name, interface.mtu_bytes)
    if fragmented is not None:
        _warn(str(fragmented), interface, FragmentationWarning)


def warn_small_buffer(options: ContextOptions, granted: int) -> bool:
    """Warn if the kernel granted less than the configured receive buffer; return true if it did. 0: not known yet."""
    asked = options.transport_lbtrm_receiver_socket_buffer_bytes
    if not 0 < granted < asked:
        return False
    warnings.warn(
        f"the kernel granted a receive buffer of {granted} bytes where {asked} were asked for: "
        f"bursts may be lost; run `sysctl -w net.core.rmem_max={asked}` or give the process CAP_NET_ADMIN",
        ReceiveBufferWarning,
        stacklevel=3,
    )
    return True


def report_ipv6_change(
    engine: Engine, resolver: Resolver, former: xdp.Interface, interface: xdp.Interface, result: int
) -> None:
    """Report that only the IPv6 address has changed; without a session that uses it, that is no news."""
    log = logging.getLogger("umstack.link")
    if former.ipv6_address is None:  # sources of IPv6 groups could not be joined
        resolver.forget_sessions(None)
        resolver.request_resolution()
    change = (
        f"{interface.name} had the IPv6 address {former.ipv6_address} and now has {interface.ipv6_address}"
    )
    if result == 0:
        log.info("%s: followed", change)
    else:
        log.error("%s: sessions of IPv6 groups stay at the former address; open the context again", change)
        engine.report_interface(interface.name, "address_changed", False)


def _warn(text: str, interface: xdp.Interface, category: type[UserWarning]) -> None:
    logging.getLogger("umstack.link").warning(
        "%s", displayed(text), extra={"umstack_interface": interface.name}
    )
    warnings.warn(displayed(text), category, stacklevel=4)


def log_move(former: xdp.Interface, interface: xdp.Interface, result: int) -> None:
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


__all__ = [
    "FragmentationWarning",
    "GenericModeWarning",
    "OccupiedInterfaceWarning",
    "ReceiveBufferWarning",
    "log_move",
    "report_ipv6_change",
    "warn_fragmented",
    "warn_generic",
    "warn_occupied",
    "warn_small_buffer",
]
