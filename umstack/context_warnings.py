"""Warnings of a context about its interface and link."""

from __future__ import annotations

import logging
import warnings

import umstack_xdp as xdp
from umstack._engine.link import DataLink, why_others_take_groups
from umstack.config import ContextOptions, lint_datagram_size
from umstack.foreign_text import displayed


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


def _warn(text: str, interface: xdp.Interface, category: type[UserWarning]) -> None:
    logging.getLogger("umstack.link").warning(
        "%s", displayed(text), extra={"umstack_interface": interface.name}
    )
    warnings.warn(displayed(text), category, stacklevel=4)


__all__ = [
    "FragmentationWarning",
    "GenericModeWarning",
    "OccupiedInterfaceWarning",
    "ReceiveBufferWarning",
    "warn_fragmented",
    "warn_generic",
    "warn_occupied",
    "warn_small_buffer",
]
