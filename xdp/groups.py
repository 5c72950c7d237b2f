"""Multicast group memberships: joins held on kernel sockets, so that switch and NIC let the groups through.

The bypass receives from rings, but the kernel handles IGMP and MLD: while a socket is a member, it answers the
switch's queries and programs the NIC's address filter. These sockets are not bound to a port, so they receive nothing.
The end of the process leaves the groups. Memberships belong to the network namespace of the thread that created the
object.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
from collections import Counter
from pathlib import Path

from umstack_xdp.closing import Closing
from umstack_xdp.errors import GroupError
from umstack_xdp.interface import Interface, find_interface

Group = ipaddress.IPv4Address | ipaddress.IPv6Address

_MEMBERSHIP_OPTIONS = {
    4: (socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.IP_DROP_MEMBERSHIP),
    6: (socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.IPV6_LEAVE_GROUP),
}
_HINTS = {
    (4, errno.ENOBUFS): "a socket may join only so many: raise sysctl net.ipv4.igmp_max_memberships",
    (4, errno.ENOMEM): "raise sysctl net.core.optmem_max",
    (6, errno.ENOBUFS): "raise sysctl net.core.optmem_max",
    (6, errno.ENOMEM): "raise sysctl net.core.optmem_max",
    (4, errno.ENODEV): "the interface is gone, or has no IPv4: name another, or give it an address",
    (
        6,
        errno.ENODEV,
    ): "the interface is gone, or has IPv6 disabled: sysctl net.ipv6.conf.IFACE.disable_ipv6=0",
    (6, errno.EAFNOSUPPORT): "use an IPv4 group, or turn IPv6 on and begin again: "
    "sysctl net.ipv6.conf.IFACE.disable_ipv6=0",
}


class GroupMemberships(Closing):
    """The groups that this process has joined on one interface.

    Context manager. Closing it leaves all groups. A group joined twice must be left twice. One thread at a
    time.

    Example:
        ```python
        with xdp.GroupMemberships("eth0") as memberships:
            memberships.join("239.1.2.3")
        ```
    """

    __slots__ = ("_joins", "_sockets", "interface")

    def __init__(self, interface: Interface | str) -> None:
        """Start without groups.

        Args:
            interface: The interface, or its name, address or network.
        """
        self.interface = interface if isinstance(interface, Interface) else find_interface(interface)
        self._joins: Counter[Group] = Counter()
        # Opened here, because a socket belongs to the namespace in which it was created, wherever groups are joined.
        self._sockets = {4: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)}
        # Missing IPv6 is an error only when it is used. If it is disabled, a join succeeds but no switch learns of it.
        with contextlib.suppress(OSError):
            if Path(f"/proc/sys/net/ipv6/conf/{self.interface.name}/disable_ipv6").read_text().strip() == "0":
                self._sockets[6] = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The joined groups, in join order."""
        return tuple(self._joins)

    def join(self, group: Group | str) -> None:
        """Join the group, or count another join.

        Args:
            group: Group, IPv4 or IPv6.

        Raises:
            GroupError: The address is not a group, or the kernel refuses to join it.

        Example:
            ```python
            with xdp.GroupMemberships("eth0") as memberships:
                memberships.join("239.1.2.3")
                assert len(memberships.groups) == 1
            ```
        """
        address = _parsed(group)
        if not self._joins[address]:
            try:
                self._set_membership(address, is_member=True)
            except OSError as error:
                del self._joins[address]
                raise self._refusal(
                    f"cannot join {address} on {self.interface.name}", address, error
                ) from error
        self._joins[address] += 1

    def leave(self, group: Group | str) -> None:
        """Undo one `join`.

        Args:
            group: A joined group.

        Raises:
            GroupError: The group was not joined, or the kernel refuses to leave it.

        Example:
            ```python
            with xdp.GroupMemberships("eth0") as memberships:
                memberships.join("239.1.2.3")
                memberships.leave("239.1.2.3")
            ```
        """
        address = _parsed(group)
        if address not in self._joins:
            held = ", ".join(map(str, self._joins)) or "none"
            raise GroupError(
                f"{address} was not joined on {self.interface.name}", hint=f"leave one of: {held}"
            )
        self._joins[address] -= 1
        if self._joins[address]:
            return
        del self._joins[address]
        try:
            self._set_membership(address, is_member=False)
        except OSError as error:
            # The interface is gone, and its memberships with it.
            if error.errno not in (errno.ENODEV, errno.EADDRNOTAVAIL):
                raise self._refusal(
                    f"cannot leave {address} on {self.interface.name}", address, error
                ) from error

    def close(self) -> None:
        """Leave every group; a second call does nothing.

        Example:
            ```python
            xdp.GroupMemberships("eth0").close()
            ```
        """
        self._joins.clear()
        while self._sockets:
            self._sockets.popitem()[1].close()

    def _set_membership(self, group: Group, *, is_member: bool) -> None:
        if group.version not in self._sockets:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        level, join, leave = _MEMBERSHIP_OPTIONS[group.version]
        # struct ip_mreqn (group, local address, index) and struct ipv6_mreq (group, index)
        local = bytes(4) if group.version == 4 else b""
        request = group.packed + local + struct.pack("=i", self.interface.index)
        self._sockets[group.version].setsockopt(level, join if is_member else leave, request)

    def _refusal(self, what: str, group: Group, error: OSError) -> GroupError:
        number = error.errno or 0
        hint = _HINTS.get((group.version, number), "bring the interface up and check that it does multicast")
        return GroupError(f"{what}: {os.strerror(number)}", hint=hint.replace("IFACE", self.interface.name))


def _parsed(group: Group | str) -> Group:
    try:
        address = ipaddress.ip_address(group) if isinstance(group, str) else group
    except ValueError as error:
        raise GroupError(
            f"{group} is not an IP address", hint="use a group like 239.1.2.3 or ff15::1234"
        ) from error
    if not address.is_multicast:
        raise GroupError(f"{address} is not a multicast group", hint="use one of 224.0.0.0/4 or ff00::/8")
    return ipaddress.IPv6Address(address.packed) if isinstance(address, ipaddress.IPv6Address) else address
