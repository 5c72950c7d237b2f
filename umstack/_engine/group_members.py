"""The multicast groups that sockets of this host have joined, as the kernel lists them by network namespace."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections import Counter
from pathlib import Path

_IPV4 = Path("/proc/thread-self/net/igmp")
_IPV6 = Path("/proc/thread-self/net/igmp6")


def members_of_groups(interface: str) -> Counter[str]:
    """Return how many sockets have joined each group on an interface, in the network namespace of this thread."""
    members: Counter[str] = Counter()
    with contextlib.suppress(FileNotFoundError):  # a kernel without IGMP, or without IPv6
        members |= ipv4_members(_IPV4.read_text(), interface)
    with contextlib.suppress(FileNotFoundError):
        members |= ipv6_members(_IPV6.read_text(), interface)
    return members


def ipv4_members(text: str, interface: str) -> Counter[str]:
    """Return the members by group from /proc/net/igmp: a line for each interface, then one for each of its groups."""
    members: Counter[str] = Counter()
    is_wanted = False
    for line in text.splitlines()[1:]:
        fields = line.split()
        if not line.startswith("\t"):
            is_wanted = len(fields) > 1 and fields[1].rstrip(":") == interface
        elif is_wanted and len(fields) > 1:
            # The kernel prints the four bytes as one number in the host's byte order.
            members[socket.inet_ntoa(int(fields[0], 16).to_bytes(4, sys.byteorder))] = int(fields[1])
    return members


def ipv6_members(text: str, interface: str) -> Counter[str]:
    """Return the members by group from /proc/net/igmp6: a line for each group."""
    found = [line.split() for line in text.splitlines()]
    return Counter(
        {
            socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[2])): int(fields[3])
            for fields in found
            if len(fields) > 3 and fields[1] == interface
        }
    )
