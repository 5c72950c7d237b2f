"""Network interfaces: their facts, which one is meant by a name, an address or a network, and where multicast goes.

Works on the network namespace of the calling thread.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from xdp.errors import NoMulticastRouteError, NoSuchInterfaceError

_ALL_MULTICAST = "224.0.0.0/4"
_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
_IFF_MULTICAST = 0x1000
_IFF_LOWER_UP = 0x10000

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Interface:
    """What the stack needs to know of one interface, as it was when asked."""

    index: int
    name: str
    mtu_bytes: int
    mac: str
    addresses: tuple[ipaddress.IPv4Interface, ...]
    is_up: bool
    has_carrier: bool
    is_multicast: bool
    is_loopback: bool
    has_xdp_program: bool = field(default=False, compare=False)
    """Whether an XDP program, ours or another's, was on it."""

    @property
    def address(self) -> str | None:
        """The first IPv4 address, the one datagrams are sent from."""
        return str(self.addresses[0].ip) if self.addresses else None

    @property
    def is_usable(self) -> bool:
        """Whether a datagram could leave through it now."""
        return self.is_up and self.has_carrier and bool(self.addresses)

    def __str__(self) -> str:
        """Show it the way it is written in messages to people."""
        state = "up" if self.is_up and self.has_carrier else "no carrier" if self.is_up else "down"
        addresses = " ".join(map(str, self.addresses)) or "no IPv4 address"
        return f"{self.name} ({state}, {addresses}, MTU {self.mtu_bytes})"


def off_the_event_loop(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run netlink calls of pyroute2 on a thread of their own where an event loop runs: it starts one itself."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return function(*args, **kwargs)
        with ThreadPoolExecutor(max_workers=1) as executor:
            return executor.submit(function, *args, **kwargs).result()

    return call


@off_the_event_loop
def interfaces() -> list[Interface]:
    """Return every interface, in the order of their indexes."""
    with IPRoute() as route:
        addresses: dict[int, list[ipaddress.IPv4Interface]] = {}
        for entry in route.get_addr(family=socket.AF_INET):
            text = entry.get_attr("IFA_LOCAL") or entry.get_attr("IFA_ADDRESS")
            address = ipaddress.IPv4Interface(f"{text}/{entry['prefixlen']}")
            addresses.setdefault(entry["index"], []).append(address)
        found = [_facts(link, tuple(addresses.get(link["index"], ()))) for link in route.get_links()]
    return sorted(found, key=lambda interface: interface.index)


def find_interface(wanted: str | None = None) -> Interface:
    """Find the interface meant by a name, an IPv4 address, a network (`10.1.0.0/16`) or, by None, the default.

    The default is the first one that is up, has an IPv4 address and does multicast, the loopback excepted.
    """
    candidates = interfaces()
    if wanted is None:
        return _default(candidates)
    for interface in candidates:
        if interface.name == wanted:
            return interface
    network = _as_network(wanted)
    for interface in candidates:
        if network is not None and any(address.ip in network for address in interface.addresses):
            return interface
    raise NoSuchInterfaceError(
        f"no interface is named or has the address {wanted}", hint=f"use one of {_list(candidates)}"
    )


@off_the_event_loop
def multicast_route(group: str = "224.0.0.0") -> str | None:
    """Return the name of the interface the routing table sends that group through, None if there is no route."""
    with IPRoute() as route:
        try:
            answers = route.route("get", dst=group)
        except NetlinkError as error:
            if error.code in (errno.ENETUNREACH, errno.EHOSTUNREACH):
                return None
            raise
        index = next((answer.get_attr("RTA_OIF") for answer in answers), None)
    return None if index is None else socket.if_indextoname(index)


def require_multicast_route(interface: Interface, group: str = "224.0.0.0") -> None:
    """Raise with the command that mends it if the group would not leave through that interface."""
    through = multicast_route(group)
    if through == interface.name:
        return
    if through is None:
        problem, remedy = "there is no route for multicast", _ALL_MULTICAST
    else:
        problem = f"the route for {group} leads through {through}"
        remedy = _ALL_MULTICAST if group == _ALL_MULTICAST.partition("/")[0] else f"{group}/32"
    raise NoMulticastRouteError(
        f"{problem}, so {group} would not leave through {interface.name}",
        hint=f"ip route add {remedy} dev {interface.name}",
    )


def _facts(link: Any, addresses: tuple[ipaddress.IPv4Interface, ...]) -> Interface:
    flags = link["flags"]
    xdp = link.get_attr("IFLA_XDP")
    return Interface(
        index=link["index"],
        name=link.get_attr("IFLA_IFNAME"),
        mtu_bytes=link.get_attr("IFLA_MTU"),
        mac=link.get_attr("IFLA_ADDRESS") or "",
        addresses=addresses,
        is_up=bool(flags & _IFF_UP),
        has_carrier=bool(flags & _IFF_LOWER_UP),
        is_multicast=bool(flags & _IFF_MULTICAST),
        is_loopback=bool(flags & _IFF_LOOPBACK),
        has_xdp_program=bool(xdp and xdp.get_attr("IFLA_XDP_ATTACHED")),
    )


def _default(candidates: list[Interface]) -> Interface:
    for interface in candidates:
        if interface.is_usable and interface.is_multicast and not interface.is_loopback:
            return interface
    raise NoSuchInterfaceError(
        "no interface is up, has an IPv4 address and does multicast",
        hint=f"bring one up, or name one of {_list(candidates)} (lo works within this host)",
    )


def _as_network(wanted: str) -> ipaddress.IPv4Network | None:
    """Read an address (a network of one) or a network; anything else was meant as a name."""
    try:
        return ipaddress.IPv4Network(wanted, strict=False)
    except ValueError:
        return None


def _list(candidates: list[Interface]) -> str:
    return ", ".join(map(str, candidates)) or "none"
