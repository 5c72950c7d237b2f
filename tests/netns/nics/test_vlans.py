"""Rings of a VLAN device on a real driver, whose frames contain their tags as on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from tests.kernels import needs_virtio_zero_copy
from tests.netns.contexts import UNLIMITED, Member, exchange, ring_facts
from umstack import Context
from umstack.lab import Host

VLAN = 100
Hosts = Sequence[Host]


class VlanMember(Member):
    """A context on the VLAN device of a host."""

    def __init__(self, host: Host, link: str) -> None:
        """Open the context."""
        options: dict[str, Any] = UNLIMITED
        self.host = host
        self.context = host.call(lambda: Context("vlan0", link=link, **options))


def add_vlan(address: str) -> None:
    """Create the device on eth0 of this namespace; skip if the kernel has none."""
    with IPRoute() as route:
        below = route.link_lookup(ifname="eth0")[0]
        try:
            route.link("add", ifname="vlan0", kind="vlan", link=below, vlan_id=VLAN)
        except NetlinkError as error:
            pytest.skip(f"this kernel has no VLAN devices: {error}")
        index = route.link_lookup(ifname="vlan0")[0]
        route.addr("add", index=index, address=address, prefixlen=24)
        route.link("set", index=index, state="up")


def remove_vlan() -> None:
    """Remove the device."""
    with IPRoute() as route:
        for index in route.link_lookup(ifname="vlan0"):
            route.link("del", index=index)


@pytest.fixture
def vlan_hosts(nic_hosts: Hosts) -> Iterator[Hosts]:
    """Return two hosts with VLAN devices."""
    try:
        for host in nic_hosts:
            host.call(partial(add_vlan, f"10.79.100.{host.number + 1}"))
        yield nic_hosts
    finally:
        for host in nic_hosts:
            host.call(remove_vlan)


@pytest.mark.parametrize(
    "mode", [pytest.param("zero-copy", marks=needs_virtio_zero_copy), "native", "generic"]
)
def test_a_vlan_device_has_rings_on_its_nic(vlan_hosts: Hosts, mode: str) -> None:
    """W5: both ways, over rings and to and from kernel sockets, which insert and remove tags themselves."""
    first, second = vlan_hosts
    subscriber = VlanMember(second, mode)
    try:
        for link in (mode, "socket"):
            publisher = VlanMember(first, link)
            try:
                exchange(publisher, subscriber, 1000, 1400)
                exchange(subscriber, publisher, 1000, 64)
            finally:
                publisher.context.close()
        facts = ring_facts(subscriber)
        assert (facts["devices"], facts["vlan"]) == (["eth0"], VLAN)
        assert sum(facts["received_by_queue"]) >= 2000
        assert subscriber.link("ring_kernel_path") == subscriber.link("ring_frames_refused") == 0
    finally:
        subscriber.context.close()
