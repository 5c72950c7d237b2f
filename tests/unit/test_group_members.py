"""The members of multicast groups, as the kernel lists them."""

from __future__ import annotations

import socket
import struct

from umstack._engine.group_members import ipv4_members, ipv6_members, members_of_groups

IGMP = """Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter
1\tlo        :     1      V3
\t\t\t\t010000E0     1 0:00000000\t\t0
4\teth1      :     2      V3
\t\t\t\t0A0A0AE0     2 0:00000000\t\t0
\t\t\t\t010000E0     1 0:00000000\t\t0
5\teth10     :     1      V3
\t\t\t\t0A0A0AE0     7 0:00000000\t\t0
"""
IGMP6 = """1    lo              ff020000000000000000000000000001     1 0000000C 0
4    eth1            ff150000000000000000000000000009     3 00000004 0
5    eth10           ff150000000000000000000000000009     1 00000004 0
"""


def test_the_lists_are_read_by_interface() -> None:
    """An interface whose name begins alike is another one; a list that has changed its form has no members."""
    assert ipv4_members(IGMP, "eth1") == {"224.10.10.10": 2, "224.0.0.1": 1}
    assert ipv6_members(IGMP6, "eth1") == {"ff15::9": 3}
    assert not ipv4_members(IGMP, "eth2")
    assert not ipv6_members("", "eth1")


def test_each_socket_of_this_host_counts() -> None:
    """Two sockets that join a group are two members, and none once they have left it."""
    group = "239.255.77.1"
    join = struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton("127.0.0.1"))
    before = members_of_groups("lo")[group]
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as other:
        for member in (one, other):
            member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
        assert members_of_groups("lo")[group] == before + 2
    assert members_of_groups("lo")[group] == before
