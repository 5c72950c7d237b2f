"""AF_XDP rings of bonds: rings are opened on every member, and sending follows the active member through
failover.

The kernel may have no bonds; then the tests are skipped. `scripts/under-kernel` runs them on a kernel that
has them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

import umstack_xdp as xdp
from tests.netns.contexts import UNLIMITED, Member, exchange, numbered, ring_facts
from tests.waiting import collect, wait_for
from umstack import Context
from umstack.lab import Host, Lab, namespaces
from umstack.lab.cables import port_name
from umstack.lab.links import index_of, netlink, set_feature
from umstack.lab.switch import BRIDGE
from umstack_xdp.xsk import unavailable

ROOT = Path(__file__).resolve().parents[2]
ACTIVE_BACKUP, BALANCE_XOR = 1, 2
VLAN = 100
MII_MS = 10
QUICK_NAKS = {"transport_lbtrm_nak_initial_backoff_interval": 2, "transport_lbtrm_nak_backoff_interval": 20}
MESSAGES = 3000

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


class BondMember(Member):
    """A context on the bond of a host, or on a VLAN of it."""

    def __init__(self, host: Host, link: str, interface: str = "bond0") -> None:
        """Open the context."""
        options: dict[str, Any] = UNLIMITED
        self.host = host
        self.context = host.call(lambda: Context(interface, link=link, **options))


@contextmanager
def on_bonds(
    hosts: Sequence[Host], link: str, interface: str = "bond0"
) -> Iterator[tuple[BondMember, BondMember]]:
    """Open a context on each of two hosts."""
    with ExitStack() as stack:
        made = []
        for host in hosts[:2]:
            made.append(BondMember(host, link, interface))
            stack.callback(made[-1].context.close)
        yield made[0], made[1]


def second_port(host: Host) -> str:
    """Return the switch's end of the second cable."""
    return f"second{host.number}"


def lay_second_cable(lab: Lab, host: Host) -> None:
    """Connect the switch to eth1 of the host."""

    def lay() -> None:
        with netlink("laying a second cable") as route:
            peer = {"ifname": "eth1", "net_ns_fd": host.namespace}
            route.link("add", ifname=second_port(host), kind="veth", peer=peer)
            index = index_of(route, second_port(host))
            route.link("set", index=index, master=index_of(route, BRIDGE), state="up")

    namespaces.call(lab.switch_namespace, lay)


def make_bond(mode: int, address: str) -> None:
    """Create a bond of eth0 and eth1 of this namespace, with a VLAN device on it."""
    with IPRoute() as route:
        options = {"bond_mode": mode, "bond_miimon": MII_MS}
        route.link("add", ifname="bond0", kind="bond", **options)
        bond = route.link_lookup(ifname="bond0")[0]
        for name in ("eth0", "eth1"):
            index = route.link_lookup(ifname=name)[0]
            route.flush_addr(index=index)
            route.link("set", index=index, state="down")
            route.link("set", index=index, master=bond)
        route.addr("add", index=bond, address=address, prefixlen=24)
        route.link("set", index=bond, state="up")
        route.link("add", ifname="vlan0", kind="vlan", link=bond, vlan_id=VLAN)
        vlan = route.link_lookup(ifname="vlan0")[0]
        route.addr("add", index=vlan, address=address.replace("10.77.0", "10.78.0"), prefixlen=24)
        route.link("set", index=vlan, state="up")


def leave_tags_in_frames(name: str) -> None:
    """Leave VLAN tags in frames, like NICs that neither insert nor remove them."""
    for feature in ("rx-vlan-hw-parse", "tx-vlan-hw-insert"):
        set_feature(name, feature, False)


@pytest.fixture(scope="module", params=[ACTIVE_BACKUP, BALANCE_XOR], ids=["active-backup", "balance-xor"])
def bond_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Return two hosts, each with a bond of two cables to the switch."""
    with IPRoute() as route:
        try:
            route.link("add", ifname="umprobe0", kind="bond")
            route.link("del", index=route.link_lookup(ifname="umprobe0")[0])
        except NetlinkError as error:
            pytest.skip(f"this kernel has no bonds: {error}")
    with Lab(hosts=2, segmentation="real") as lab:
        for host in lab.hosts:
            lay_second_cable(lab, host)
            for name in ("eth0", "eth1"):
                host.call(partial(leave_tags_in_frames, name))
            for name in (port_name(host.number), second_port(host)):
                namespaces.call(lab.switch_namespace, partial(leave_tags_in_frames, name))
            host.call(partial(make_bond, request.param, host.address))
        for host in lab.hosts:
            host.call(lambda: wait_for(lambda: xdp.find_interface("vlan0").is_usable, "the bond"))
        yield lab


def set_port(lab: Lab, host: Host, nic: str, state: str) -> None:
    """Disconnect the cable of a NIC at the switch, or connect it again."""
    name = port_name(host.number) if nic == "eth0" else second_port(host)

    def change() -> None:
        with netlink(f"changing {name}") as route:
            route.link("set", index=index_of(route, name), state=state)

    namespaces.call(lab.switch_namespace, change)


@contextmanager
def unplugged(lab: Lab, host: Host, nic: str, member: Member) -> Iterator[None]:
    """Disconnect the cable of the NIC; the bond sends on the other one."""
    other = "eth1" if nic == "eth0" else "eth0"
    set_port(lab, host, nic, "down")
    try:
        wait_for(lambda: ring_facts(member)["sends_by"] == other, f"{member.host} to send by {other}")
        yield
    finally:
        set_port(lab, host, nic, "up")


@pytest.mark.parametrize("interface", ["bond0", "vlan0"])
@pytest.mark.parametrize("link", ["native", "generic"])
def test_data_travels_over_rings_of_the_members(bond_lab: Lab, link: str, interface: str) -> None:
    """The program and the rings are on every member; datagrams sent on the bond's VLAN carry the tag."""
    with on_bonds(bond_lab.hosts, link, interface) as (publisher, subscriber):
        assert (publisher.context.link_mode, subscriber.context.link_mode) == (link, link)
        exchange(publisher, subscriber, 1000, 1400)
        exchange(subscriber, publisher, 300, 64)
        facts = ring_facts(subscriber)
        assert (facts["devices"], facts["vlan"]) == (["eth0", "eth1"], VLAN if interface == "vlan0" else 0)
        assert facts["sends_by"] in facts["devices"]
        assert sum(facts["received_by_queue"]) >= 1000
        assert publisher.link("xdp_tx_invalid_descs") == publisher.link("send_errors") == 0
        for nic in facts["devices"]:
            (occupant,) = bond_lab.hosts[1].call(partial(xdp.occupants, nic))
            assert occupant.mode == link
    for nic in ("eth0", "eth1"):
        assert bond_lab.hosts[1].call(partial(xdp.occupants, nic)) == ()


@pytest.mark.parametrize("who", ["publisher", "subscriber"])
def test_a_stream_survives_the_fail_over(bond_lab: Lab, who: str) -> None:
    """Datagrams lost during the failover are NAKed and retransmitted; every message arrives in order,
    and the rings carry the stream on the other member, and later on the first member again.
    """
    with (
        on_bonds(bond_lab.hosts, "native") as (publisher, subscriber),
        subscriber.receiver("failing over", **QUICK_NAKS) as receiver,
        publisher.source("failing over") as source,
    ):
        source.wait_connected(timeout=20)
        member = publisher if who == "publisher" else subscriber
        messages, may_send = numbered(MESSAGES, 1000), threading.Semaphore(0)
        received: list[bytes] = []

        def send() -> None:
            for at in range(0, MESSAGES, 50):
                may_send.acquire()
                source.send_many(messages[at : at + 50], flush=True)

        def pass_on(count: int) -> None:
            """Allow `count` more messages, and receive them."""
            may_send.release(count // 50)
            received.extend(message.data for message in collect(receiver, count, 30))

        sender = threading.Thread(target=send)
        sender.start()
        try:
            pass_on(500)
            first = ring_facts(member)["sends_by"]
            may_send.release(500 // 50)  # these are in flight while the cable is disconnected
            with unplugged(bond_lab, member.host, first, member):
                received.extend(message.data for message in collect(receiver, 500, 30))
                before = ring_facts(subscriber)["received_by_queue"]
                pass_on(1000)
                after = ring_facts(subscriber)["received_by_queue"]
                assert sum(after) - sum(before) > 500
                if who == "subscriber":
                    assert after[facts_index(first)] == before[facts_index(first)]
            pass_on(1000)
        finally:
            may_send.release(MESSAGES)
            sender.join()
        assert received == messages
        assert subscriber.context.stats()["context"]["fragments_unrecoverably_lost"] == 0


def facts_index(nic: str) -> int:
    """Return the index of a NIC among those with one queue each."""
    return ["eth0", "eth1"].index(nic)


def test_a_member_that_left_the_bond_is_not_received_from(bond_lab: Lab) -> None:
    """A member's steering rules are removed and return with it. Datagrams for a member without rings are sent
    over sockets.
    """
    host = bond_lab.hosts[1]

    def set_master(nic: str, bond: str | None) -> None:
        with IPRoute() as route:
            index = route.link_lookup(ifname=nic)[0]
            if bond is not None:
                route.link("set", index=index, state="down")
            route.link("set", index=index, master=route.link_lookup(ifname=bond)[0] if bond else 0)
            route.link("set", index=index, state="up")

    with (
        on_bonds(bond_lab.hosts, "native") as (publisher, subscriber),
        subscriber.receiver("left"),
        publisher.source("left") as source,
    ):
        source.wait_connected(timeout=20)
        away = ring_facts(subscriber)["sends_by"]
        other = "eth1" if away == "eth0" else "eth0"
        opened = subscriber.context._engine.link._opened
        steerings = {one.ring_set.place.device.name: one.steering for one in opened}

        def rules_on(nic: str) -> int:
            steering = steerings[nic]
            assert isinstance(steering, xdp.Steering)
            return len(steering.counters().rules)

        assert rules_on(away) == rules_on(other) == 1
        host.call(lambda: set_master(away, None))
        try:
            wait_for(lambda: ring_facts(subscriber)["sends_by"] == other, "the other member")
            wait_for(lambda: rules_on(away) == 0, "no rule")
            assert rules_on(other) == 1
        finally:
            host.call(lambda: set_master(away, "bond0"))
        wait_for(lambda: rules_on(away) == 1, "the rule again")
        exchange(publisher, subscriber, 200, 200, **QUICK_NAKS)


def test_the_doctor_reports_where_the_rings_would_be(bond_lab: Lab) -> None:
    """The doctor lists the members, the member that sends, and the mode that will be used."""
    host = bond_lab.hosts[1]
    inside = [
        "ip",
        "netns",
        "exec",
        host.namespace,
        sys.executable,
        "-m",
        "umstack",
        "doctor",
        "bond0",
        "--json",
    ]
    printed = subprocess.run(inside, cwd=ROOT, capture_output=True, text=True, timeout=300).stdout
    (report,) = json.loads(printed)["interfaces"]
    assert report["mode"] == "native"
    assert [nic["interface"] for nic in report["facts"]["nics"]] == ["eth0", "eth1"]
    printed = subprocess.run(inside[:-1], cwd=ROOT, capture_output=True, text=True, timeout=300).stdout
    words = " ".join(printed.split())
    assert "bond0: native will be used" in words
    assert "would be on eth0, eth1, and send by eth" in words
