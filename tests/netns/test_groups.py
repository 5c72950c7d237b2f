"""Group memberships held on kernel sockets: the switch forwards their groups, and errors name a remedy."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.waiting import wait_for
from umstack.lab import Host, Lab, namespaces
from umstack_xdp import GroupError, GroupMemberships

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("239.77.5.1", "239.77.5.2", "239.77.5.3")
GROUP6 = "ff15::77:5"


@pytest.fixture
def host(shared_lab: Lab) -> Host:
    """Return a host of the lab."""
    return shared_lab.hosts[1]


def is_member(host: Host, group: str) -> bool:
    """Return true if the host's kernel lists the group."""
    wanted = f"{int.from_bytes(socket.inet_aton(group), sys.byteorder):08X}"
    return wanted in host.call(lambda: Path("/proc/thread-self/net/igmp").read_text())


def test_the_switch_forwards_what_is_joined(shared_lab: Lab, host: Host) -> None:
    """W5: the kernel does IGMP while a membership is held; several groups can be left separately."""
    with host.call(lambda: GroupMemberships("eth0")) as memberships:
        for group in GROUPS:
            memberships.join(group)
            shared_lab.await_join(group, 1)
        memberships.join(GROUPS[0])
        assert [str(group) for group in memberships.groups] == list(GROUPS)
        memberships.leave(GROUPS[0])
        assert is_member(host, GROUPS[0]), "joined twice, left once"
        memberships.leave(GROUPS[0])
        assert not is_member(host, GROUPS[0])
        assert is_member(host, GROUPS[1])
    assert not any(is_member(host, group) for group in GROUPS)


CHILD = """
import sys
from umstack_xdp import GroupMemberships
memberships = GroupMemberships("eth0")
memberships.join(sys.argv[1])
print("joined", flush=True)
sys.stdin.read()
"""


def test_a_crash_leaves_the_group(shared_lab: Lab, host: Host) -> None:
    """A kill -9 of the process ends the membership."""
    command = [sys.executable, "-c", CHILD, GROUPS[0]]
    child = host.run(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    assert child.stdout.readline() == "joined\n"
    shared_lab.await_join(GROUPS[0], 1)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=10)
    wait_for(lambda: not is_member(host, GROUPS[0]), "the group is left")


def test_the_limit_on_memberships_is_named(host: Host) -> None:
    """The error names the sysctl that allows more groups; existing memberships are kept."""
    limit = Path("/proc/sys/net/ipv4/igmp_max_memberships")
    host.call(lambda: limit.write_text("2"))
    try:
        with host.call(lambda: GroupMemberships("eth0")) as memberships:
            memberships.join(GROUPS[0])
            memberships.join(GROUPS[1])
            with pytest.raises(
                GroupError, match=r"cannot join 239\.77\.5\.3 on eth0.*net\.ipv4\.igmp_max_memberships"
            ):
                memberships.join(GROUPS[2])
            assert [str(group) for group in memberships.groups] == list(GROUPS[:2])
            memberships.leave(GROUPS[0])
            memberships.join(GROUPS[2])
    finally:
        host.call(lambda: limit.write_text("20"))


def test_what_cannot_be_joined_is_refused(host: Host) -> None:
    """An address that is no group, a group that was not joined, and IPv6 where it is disabled are refused."""
    with host.call(lambda: GroupMemberships("eth0")) as memberships:
        for group, message in (
            ("nonsense", "nonsense is not an IP address"),
            ("10.1.2.3", "10.1.2.3 is not a multicast group"),
            ("fe80::1", "fe80::1 is not a multicast group"),
            (GROUP6, "cannot join ff15::77:5 on eth0.*disable_ipv6=0"),
        ):
            with pytest.raises(GroupError, match=message):
                memberships.join(group)
        with pytest.raises(GroupError, match=r"239\.77\.5\.1 was not joined on eth0; leave one of: none"):
            memberships.leave(GROUPS[0])
        assert memberships.groups == ()


@pytest.fixture
def namespace() -> Iterator[str]:
    """Return a namespace with a veth that has IPv6."""
    name = f"umgroups-{os.getpid()}"
    namespaces.create(name)

    def make() -> None:
        with IPRoute() as route:
            route.link("add", ifname="veth0", kind="veth", peer="veth1")
            for end in ("veth0", "veth1"):
                route.link("set", index=route.link_lookup(ifname=end)[0], state="up")

    namespaces.call(name, make)
    yield name
    namespaces.remove(name)


def test_ipv6_groups_are_joined_by_mld(namespace: str) -> None:
    """An IPv6 group is in the interface's list while it is held, together with an IPv4 group."""

    def members() -> str:
        return Path("/proc/thread-self/net/igmp6").read_text()

    wanted = socket.inet_pton(socket.AF_INET6, GROUP6).hex()
    with namespaces.call(namespace, lambda: GroupMemberships("veth0")) as memberships:
        for group in (GROUP6, GROUPS[0], f"{GROUP6}%veth0"):
            memberships.join(group)
        assert wanted in namespaces.call(namespace, members)
        memberships.leave(GROUP6)
        memberships.leave(GROUP6)
        assert wanted not in namespaces.call(namespace, members)
        assert [str(group) for group in memberships.groups] == [GROUPS[0]]


def test_a_membership_does_not_outlive_its_interface(namespace: str) -> None:
    """After the interface is removed, leaving and closing still work."""
    with namespaces.call(namespace, lambda: GroupMemberships("veth0")) as memberships:
        for group in (GROUPS[0], GROUP6):
            memberships.join(group)

        def remove() -> None:
            with IPRoute() as route:
                route.link("del", index=route.link_lookup(ifname="veth0")[0])

        namespaces.call(namespace, remove)
        memberships.leave(GROUPS[0])
        memberships.leave(GROUP6)
        with pytest.raises(GroupError, match="the interface is gone"):
            memberships.join(GROUPS[1])
