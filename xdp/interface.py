"""Network interfaces: their facts, selection by name, address or network, and the multicast route.

Works on the network namespace of the calling thread. Reads the facts by the ioctls of netdevice(7): opening a context
needs no more, and importing a netlink library takes longer than the rest of its start.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import socket
import struct
import sys
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from umstack_xdp.errors import NoMulticastRouteError, NoSuchInterfaceError

_ALL_MULTICAST = "224.0.0.0/4"
_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
_IFF_RUNNING = 0x40
_IFF_MULTICAST = 0x1000
_SIOCGIFCONF, _SIOCGIFFLAGS, _SIOCGIFNETMASK, _SIOCGIFMTU, _SIOCGIFHWADDR = (
    0x8912,
    0x8913,
    0x891B,
    0x8921,
    0x8927,
)
_ARPHRD_NONE = 0xFFFE
_IFREQ_BYTES = 40  # a name, and a union whose first 16 bytes hold an address
_UNUSABLE = 0x40 | 0x08 | 0x20  # IFA_F_TENTATIVE, _DADFAILED, _DEPRECATED
_GONE = (errno.ENODEV, errno.ENXIO)
_READINGS = 10  # an interface may be renamed during each

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Interface:
    """The facts about one interface that the stack needs, at the time of the call.

    Example:
        ```python
        interface = xdp.find_interface("eth0")
        print(interface.mtu_bytes, interface.address, interface.is_usable)
        ```
    """

    index: int
    name: str
    mtu_bytes: int
    mac: str
    addresses: tuple[ipaddress.IPv4Interface, ...]
    is_up: bool
    has_carrier: bool
    is_multicast: bool
    is_loopback: bool
    ipv6_addresses: tuple[ipaddress.IPv6Interface, ...] = ()
    """Usable ones, link-local ones last, otherwise in the kernel's order."""

    @property
    def ipv6_address(self) -> str | None:
        """The first IPv6 address, from which datagrams to IPv6 groups are sent."""
        return str(self.ipv6_addresses[0].ip) if self.ipv6_addresses else None

    def preferring(self, ipv6_address: str | None) -> Interface:
        """Return these facts with this IPv6 address, if the interface still has it, before the others.

        Args:
            ipv6_address: The address, None for no preference.

        Returns:
            The facts.

        Example:
            ```python
            eth0 = xdp.find_interface("eth0").preferring("fd00:1::2")
            ```
        """
        ordered = sorted(self.ipv6_addresses, key=lambda one: str(one.ip) != ipv6_address)
        return replace(self, ipv6_addresses=tuple(ordered))

    @property
    def address(self) -> str | None:
        """The first IPv4 address, from which datagrams are sent."""
        return str(self.addresses[0].ip) if self.addresses else None

    @property
    def is_usable(self) -> bool:
        """True if it can send a datagram now."""
        return self.is_up and self.has_carrier and bool(self.addresses)

    def __str__(self) -> str:
        """Return the description used in messages."""
        state = "up" if self.is_up and self.has_carrier else "no carrier" if self.is_up else "down"
        addresses = " ".join(map(str, self.addresses)) or "no IPv4 address"
        return f"{self.name} ({state}, {addresses}, MTU {self.mtu_bytes})"


def off_the_event_loop(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run pyroute2's netlink calls on a separate thread if an event loop is running: pyroute2 starts one itself."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if "asyncio" not in sys.modules:  # not imported, so no event loop is running
            return function(*args, **kwargs)
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return function(*args, **kwargs)
        with ThreadPoolExecutor(max_workers=1) as executor:
            return executor.submit(function, *args, **kwargs).result()

    return call


def interfaces() -> list[Interface]:
    """Return all interfaces in index order.

    Returns:
        The interfaces of the network namespace of the calling thread.

    Example:
        ```python
        print(*xdp.interfaces())
        ```
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        names = sorted(socket.if_nameindex())
        for _ in range(_READINGS):
            found = _named(asking, names)
            former, names = names, sorted(socket.if_nameindex())
            if names == former:
                break
    return found


def _named(asking: socket.socket, names: list[tuple[int, str]]) -> list[Interface]:
    """Return the interfaces with these indices and names.

    The kernel is asked by name: an interface that is renamed or removed meanwhile is missing, or without addresses.
    """
    addresses, ipv6_addresses = _addresses(asking), _ipv6_addresses()
    found = []
    for index, name in names:
        with suppress(_GoneError):
            facts = _facts(asking, index, name, tuple(addresses.get(name, ())))
            found.append(replace(facts, ipv6_addresses=tuple(ipv6_addresses.get(name, ()))))
    return found


def find_interface(wanted: str | None = None) -> Interface:
    """Find an interface by name, address or network, or the default.

    The default is the first one other than loopback that is up, has an IPv4 address and supports multicast.

    Args:
        wanted: Name (`eth1`), address (`10.1.2.3`, `fe80::1%eth1`) or network (`10.1.0.0/16`, `fd00:1::/64`); None:
            the default. An IPv6 one is also the `ipv6_address` of the result.

    Returns:
        The interface.

    Raises:
        NoSuchInterfaceError: No interface fits; the hint lists the interfaces.

    Example:
        ```python
        print(xdp.find_interface("10.0.0.0/8"))
        ```
    """
    candidates = interfaces()
    if wanted is None:
        return _default(candidates)
    for interface in candidates:
        if interface.name == wanted:
            return interface
    address, _, zone = wanted.partition("%")
    network = _as_network(address)
    for interface in candidates:
        if network is None or zone not in ("", interface.name):
            continue
        if any(one.ip in network for one in interface.addresses):
            return interface
        chosen = next((one for one in interface.ipv6_addresses if one.ip in network), None)
        if chosen is not None:
            return interface.preferring(str(chosen.ip))
    raise NoSuchInterfaceError(
        f"no interface is named or has the address {wanted}", hint=f"use one of {_list(candidates)}"
    )


@off_the_event_loop
def multicast_route(group: str = "224.0.0.0") -> str | None:
    """Return the name of the interface to which the group is routed.

    Args:
        group: A multicast group.

    Returns:
        The name, or None if there is no route.

    Example:
        ```python
        print(xdp.multicast_route("239.1.2.3"))
        ```
    """
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    with IPRoute() as route:
        try:
            answers = route.route("get", dst=group)
        except NetlinkError as error:
            if error.code in (errno.ENETUNREACH, errno.EHOSTUNREACH):
                return None
            raise
        index = next((answer.get_attr("RTA_OIF") for answer in answers), None)
    return None if index is None else socket.if_indextoname(index)


def lies_on_others(name: str) -> bool:
    """Return true for a VLAN device or a bond, by the kernel's files; takes microseconds."""
    shown = Path("/proc/thread-self/net")
    return (shown / "vlan" / name).exists() or (shown / "bonding" / name).exists()


def require_multicast_route(interface: Interface, group: str = "224.0.0.0") -> None:
    """Check that a group is routed through an interface.

    Args:
        interface: The interface.
        group: A multicast group.

    Raises:
        NoMulticastRouteError: The group is routed elsewhere or nowhere; the hint is the command that fixes
            it.

    Example:
        ```python
        try:
            xdp.require_multicast_route(xdp.find_interface("eth0"))
        except xdp.NoMulticastRouteError as error:
            print(error.hint)
        ```
    """
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


class _GoneError(Exception):
    """The interface was removed between two requests."""


def _facts(
    asking: socket.socket, index: int, name: str, addresses: tuple[ipaddress.IPv4Interface, ...]
) -> Interface:
    (flags,) = struct.unpack_from("=H", _ask(asking, _SIOCGIFFLAGS, name))
    (mtu_bytes,) = struct.unpack_from("=i", _ask(asking, _SIOCGIFMTU, name))
    kind, mac = struct.unpack_from("=H6s", _ask(asking, _SIOCGIFHWADDR, name))
    return Interface(
        index=index,
        name=name,
        mtu_bytes=mtu_bytes,
        mac="" if kind == _ARPHRD_NONE else mac.hex(":"),
        addresses=addresses,
        is_up=bool(flags & _IFF_UP),
        has_carrier=bool(flags & _IFF_RUNNING),
        is_multicast=bool(flags & _IFF_MULTICAST),
        is_loopback=bool(flags & _IFF_LOOPBACK),
    )


def _ask(asking: socket.socket, request: int, name: str, address: bytes = b"") -> bytes:
    """Run an ioctl and return the union of its ifreq. `address` (a sockaddr_in) selects one of several addresses."""
    question = struct.pack("=16s24s", name.encode(), address)
    try:
        return fcntl.ioctl(asking, request, question)[16:]
    except OSError as error:
        if error.errno in _GONE:
            raise _GoneError from error
        raise


def _addresses(asking: socket.socket) -> dict[str, list[ipaddress.IPv4Interface]]:
    """Return the IPv4 addresses by interface name; a label (`eth0:1`) is not an interface name."""
    found: dict[str, list[ipaddress.IPv4Interface]] = {}
    for label, address in _labelled_addresses(asking):
        with suppress(_GoneError, OSError):  # the address was just removed
            mask = _ask(asking, _SIOCGIFNETMASK, label, struct.pack("=HH4s", socket.AF_INET, 0, address))[4:8]
            one = ipaddress.IPv4Interface((address, str(ipaddress.IPv4Address(mask))))
            found.setdefault(label.partition(":")[0], []).append(one)
    return found


def _ipv6_addresses() -> dict[str, list[ipaddress.IPv6Interface]]:
    """Return the usable IPv6 addresses by interface name; none if the kernel has no IPv6."""
    found: dict[str, list[ipaddress.IPv6Interface]] = {}
    try:
        text = Path("/proc/thread-self/net/if_inet6").read_text()
    except FileNotFoundError:
        return found
    for address, _, prefix, _, flags, name in map(str.split, text.splitlines()):
        if int(flags, 16) & _UNUSABLE == 0:
            one = ipaddress.IPv6Interface((bytes.fromhex(address), int(prefix, 16)))
            found.setdefault(name, []).append(one)
    for addresses in found.values():
        addresses.sort(key=lambda one: one.is_link_local)
    return found


def _labelled_addresses(asking: socket.socket) -> list[tuple[str, bytes]]:
    """Repeat with a larger buffer until some of it stays free: the kernel does not report truncation."""
    space = 64 * _IFREQ_BYTES
    while True:
        answers = array("B", bytes(space))
        at, _ = answers.buffer_info()
        filled, _ = struct.unpack("iP", fcntl.ioctl(asking, _SIOCGIFCONF, struct.pack("iP", space, at)))
        if filled <= space - _IFREQ_BYTES:
            break
        space *= 2
    entries = struct.iter_unpack("=16s4x4s16x", answers.tobytes()[:filled])
    return [(name.rstrip(b"\0").decode(), address) for name, address in entries]


def _default(candidates: list[Interface]) -> Interface:
    for interface in candidates:
        if interface.is_usable and interface.is_multicast and not interface.is_loopback:
            return interface
    raise NoSuchInterfaceError(
        "no interface is up, has an IPv4 address and does multicast",
        hint=f"bring one up, or name one of {_list(candidates)} (lo works within this host)",
    )


def _as_network(wanted: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Parse an address (as a network of one) or a network; return None for a name."""
    try:
        return ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        return None


def _list(candidates: list[Interface]) -> str:
    return ", ".join(map(str, candidates)) or "none"
