"""Rings of VLAN devices are opened on the NIC below, for the datagrams of that VLAN; sent datagrams have the
tag.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether

import umstack_xdp as xdp
from tests.netns.contexts import UNLIMITED, Member, exchange, ring_facts
from tests.waiting import wait_for
from umstack import Context, Source
from umstack._engine import ring_link
from umstack.errors import Unsupported
from umstack.lab import Host, Lab, namespaces
from umstack.lab.cables import port_name
from umstack.lab.links import set_feature
from umstack_xdp.ladder import Mode, chosen, decide
from umstack_xdp.probe import probe
from umstack_xdp.xsk import unavailable

ROOT = Path(__file__).resolve().parents[2]
VLAN, OTHER_VLAN, PRIORITY = 100, 101, 5
GROUP, PORT = "239.255.29.1", 14400
FIXED = {"transport_lbtrm_multicast_address": GROUP, "transport_lbtrm_destination_port": PORT}
STRIPS, INSERTS = "rx-vlan-hw-parse", "tx-vlan-hw-insert"
ETH_P_ALL, SOL_PACKET, PACKET_AUXDATA, TP_STATUS_VLAN_VALID, SO_RCVBUFFORCE = 3, 263, 8, 1 << 4, 33
AUXDATA = struct.Struct("=IIIHHHH")
"""struct tpacket_auxdata."""

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def open_context(interface: str, link: str, **options: Any) -> Context:
    """Open a context without a rate limit."""
    return Context(interface, link=link, **{**UNLIMITED, **options})


class VlanMember(Member):
    """A context on the VLAN device of a host, whose sources send to one group."""

    def __init__(self, host: Host, link: str, interface: str = "vlan0", **options: Any) -> None:
        """Open the context."""
        self.host = host
        self.context = host.call(lambda: open_context(interface, link, **options))

    def source(self, topic: str, **options: Any) -> Source:
        """Create a source on the host."""
        return super().source(topic, **{**FIXED, **options})


@contextmanager
def on_vlan(*hosts: Host, links: tuple[str, str]) -> Iterator[tuple[VlanMember, VlanMember]]:
    """Open a context on the VLAN device of each of two hosts."""
    first = VlanMember(hosts[0], links[0])
    try:
        second = VlanMember(hosts[1], links[1])
        try:
            yield first, second
        finally:
            second.context.close()
    finally:
        first.context.close()


def add_vlan(name: str, number: int, address: str) -> None:
    """Create a VLAN device on eth0 of this namespace; skip if the kernel has none."""
    with IPRoute() as route:
        below = route.link_lookup(ifname="eth0")[0]
        mapping = {"attrs": [["IFLA_VLAN_QOS_MAPPING", {"from": 0, "to": PRIORITY}]]}
        try:
            route.link("add", ifname=name, kind="vlan", link=below, vlan_id=number, vlan_egress_qos=mapping)
        except NetlinkError as error:
            pytest.skip(f"this kernel has no VLAN devices: {error}")
        index = route.link_lookup(ifname=name)[0]
        route.addr("add", index=index, address=address, prefixlen=24)
        route.link("set", index=index, state="up")


def remove_vlans() -> None:
    """Remove the devices."""
    with IPRoute() as route:
        for name in ("vlan0", "vlan1"):
            for index in route.link_lookup(ifname=name):
                route.link("del", index=index)


def leave_tags_in_frames(lab: Lab, *, is_left: bool) -> None:
    """Leave VLAN tags in frames, as some NICs do; a veth and the switch's veth by default store them
    separately from the frame.
    """

    def change(name: str) -> None:
        for feature in (STRIPS, INSERTS):
            set_feature(name, feature, not is_left)

    for host in lab.hosts[:2]:
        host.call(partial(change, "eth0"))
        namespaces.call(lab.switch_namespace, partial(change, port_name(host.number)))


@pytest.fixture(scope="module")
def tags_in_frames(shared_lab: Lab) -> Iterator[Lab]:
    """Return two hosts whose NICs leave tags in frames."""
    leave_tags_in_frames(shared_lab, is_left=True)
    yield shared_lab
    leave_tags_in_frames(shared_lab, is_left=False)


@pytest.fixture(scope="module")
def vlan_lab(tags_in_frames: Lab) -> Iterator[Lab]:
    """Return such hosts with VLAN devices."""
    hosts = tags_in_frames.hosts[:2]
    try:
        for host in hosts:
            number = host.number + 1
            for name, vlan in (("vlan0", VLAN), ("vlan1", OTHER_VLAN)):
                host.call(partial(add_vlan, name, vlan, f"10.78.{vlan}.{number}"))
        yield tags_in_frames
    finally:
        for host in hosts:
            host.call(remove_vlans)


class Wire:
    """The frames of a host as its switch port receives them, with their tags."""

    def __init__(self, lab: Lab, host: Host) -> None:
        """Start to collect frames."""
        port = port_name(host.number)
        self.socket = namespaces.call(lab.switch_namespace, lambda: self._open(port))

    @staticmethod
    def _open(port: str) -> socket.socket:
        looking = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        looking.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
        looking.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        looking.bind((port, ETH_P_ALL))
        looking.setblocking(False)
        return looking

    def sent_to(self, group: str) -> list[Ether]:
        """Return the frames to a group since the last call."""
        found = []
        while (frame := self._next()) is not None:
            read = Ether(frame)
            if IP in read and read[IP].dst == group:
                found.append(read)
        return found

    def _next(self) -> bytes | None:
        """Return a frame with the tag, which the kernel has moved beside the frame, in its place."""
        try:
            frame, auxiliary, _, (_, _, kind, *_) = self.socket.recvmsg(65536, 256)
        except BlockingIOError:
            return None
        if kind == socket.PACKET_OUTGOING:
            return self._next()
        for _, _, data in auxiliary:
            status, _, _, _, _, control, protocol = AUXDATA.unpack(data)
            if status & TP_STATUS_VLAN_VALID:
                return frame[:12] + struct.pack("!HH", protocol, control) + frame[12:]
        return frame

    def close(self) -> None:
        """Stop collecting."""
        self.socket.close()


# ---- the tag, on any kernel ----


def test_sent_datagrams_carry_the_tag_and_received_ones_match_it(
    tags_in_frames: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W4, W6: with rings of a VLAN every datagram is tagged and received by a rule for that VLAN. The largest
    datagrams fill the MTU to the byte, without the tag.
    """

    def tagged(interface: xdp.Interface, stack: object) -> tuple[xdp.RingPlace, ...]:
        return (xdp.RingPlace(interface, interface, VLAN, PRIORITY),)

    first, second = tags_in_frames.hosts[:2]
    monkeypatch.setattr(ring_link, "ring_places", tagged)
    wire = Wire(tags_in_frames, first)
    publisher = VlanMember(first, "xdp", "eth0")
    subscriber = VlanMember(second, "xdp", "eth0", link_xdp_checksum=1)
    try:
        exchange(publisher, subscriber, 2000, 1400)
        facts = ring_facts(subscriber)
        assert (facts["devices"], facts["sends_by"], facts["vlan"]) == (["eth0"], "eth0", VLAN)
        assert sum(facts["received_by_queue"]) >= 2000
        assert subscriber.link("ring_kernel_path") == 0
        assert subscriber.link("ring_checksum_errors") == subscriber.link("ring_frames_refused") == 0
        assert publisher.link("ring_sent_in_place") > 0
        frames = wire.sent_to(GROUP)
        assert len(frames) >= 2000
        mac = first.facts().mac
        assert {(one.src, one[Dot1Q].vlan, one[Dot1Q].prio, one[Dot1Q].type) for one in frames} == {
            (mac, VLAN, PRIORITY, 0x0800)
        }
        assert all(len(one) == 14 + 4 + 20 + one[UDP].len for one in frames)
        exchange(publisher, subscriber, 200, 5000)
        largest = max(len(one) for one in wire.sent_to(GROUP))
        assert largest == 14 + 4 + 1500
    finally:
        wire.close()
        for member in (publisher, subscriber):
            member.context.close()


# ---- on VLAN devices ----


@pytest.mark.parametrize(
    "links", [("native", "native"), ("generic", "generic"), ("socket", "native"), ("native", "socket")]
)
def test_a_context_on_a_vlan_device_has_rings(vlan_lab: Lab, links: tuple[str, str]) -> None:
    """A context joins on the VLAN device, receives and sends over rings on its NIC, and works with kernel
    sockets.
    """
    with on_vlan(*vlan_lab.hosts[:2], links=links) as (publisher, subscriber):
        assert (publisher.context.link_mode, subscriber.context.link_mode) == links
        exchange(publisher, subscriber, 2000, 1400)
        exchange(subscriber, publisher, 500, 64)
        assert publisher.context.datagram_bytes == 1472
        if links[1] != "socket":
            facts = ring_facts(subscriber)
            assert (facts["devices"], facts["sends_by"], facts["vlan"]) == (["eth0"], "eth0", VLAN)
            assert sum(facts["received_by_queue"]) >= 2000
            assert subscriber.link("ring_kernel_path") == 0
            (occupant,) = vlan_lab.hosts[1].call(lambda: xdp.occupants("eth0"))
            assert occupant.mode == links[1]
            assert vlan_lab.hosts[1].call(lambda: xdp.occupants("vlan0")) == ()


def test_the_kernel_and_the_rings_tag_alike(vlan_lab: Lab) -> None:
    """VLAN, priority and Ethernet address are the same from the kernel's VLAN device and from our rings."""
    first, second = vlan_lab.hosts[:2]
    seen: dict[str, set[tuple[Any, ...]]] = {}
    for link in ("socket", "native"):
        wire = Wire(vlan_lab, first)
        with on_vlan(first, second, links=(link, "native")) as (publisher, subscriber):
            exchange(publisher, subscriber, 200, 1400)
        frames = wire.sent_to(GROUP)
        wire.close()
        seen[link] = {(one.src, one.dst, one[Dot1Q].vlan, one[Dot1Q].prio) for one in frames}
    assert seen["socket"] == seen["native"]
    assert len(seen["native"]) == 1


def test_only_datagrams_of_the_vlan_are_received(vlan_lab: Lab) -> None:
    """Datagrams to the same group and port without a tag, or of another VLAN, stay with the kernel and its sockets."""
    first, second = vlan_lab.hosts[:2]

    def listen(interface: str) -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        listener.bind((GROUP, PORT))
        address = xdp.find_interface(interface).address or ""
        listener.setsockopt(
            socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + socket.inet_aton(address)
        )
        listener.settimeout(5)
        return listener

    def send(interface: str, count: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            for _ in range(count):
                sender.sendto(b"not of this VLAN", (GROUP, PORT))

    with (
        on_vlan(first, second, links=("socket", "native")) as (publisher, subscriber),
        second.call(lambda: listen("eth0")) as untagged,
        second.call(lambda: listen("vlan1")) as other,
        subscriber.receiver("taken"),
        publisher.source("taken") as source,
    ):
        source.wait_connected(timeout=10)
        before = sum(ring_facts(subscriber)["received_by_queue"])
        first.call(lambda: send("eth0", 10))
        first.call(lambda: send("vlan1", 10))
        for listener in (untagged, other):
            assert [listener.recv(100) for _ in range(10)] == [b"not of this VLAN"] * 10
        assert sum(ring_facts(subscriber)["received_by_queue"]) == before
        first.call(lambda: send("vlan0", 10))
        wait_for(lambda: sum(ring_facts(subscriber)["received_by_queue"]) == before + 10, "those of the VLAN")


def test_the_mtu_of_the_vlan_device_is_followed(vlan_lab: Lab) -> None:
    """W4: datagrams are sized by the VLAN device's MTU instead of its NIC's."""
    first, second = vlan_lab.hosts[:2]

    def set_mtu(mtu_bytes: int) -> None:
        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname="vlan0")[0], mtu=mtu_bytes)

    def has_size(publisher: Member, size: int) -> bool:
        return publisher.context.datagram_bytes == size

    with on_vlan(first, second, links=("native", "native")) as (publisher, subscriber):
        for mtu_bytes in (1200, 1500):
            first.call(partial(set_mtu, mtu_bytes))
            wait_for(partial(has_size, publisher, mtu_bytes - 28), "the new size")
            wire = Wire(vlan_lab, first)
            exchange(publisher, subscriber, 200, 4000)
            assert max(len(one) for one in wire.sent_to(GROUP)) == 14 + 4 + mtu_bytes
            wire.close()


def test_a_new_ethernet_address_is_followed(vlan_lab: Lab) -> None:
    """Frames sent on rings have the current address of the VLAN device."""
    first, second = vlan_lab.hosts[:2]
    old = first.call(lambda: xdp.find_interface("vlan0").mac)

    def set_mac(address: str) -> None:
        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname="vlan0")[0], address=address)

    def comes_from(address: str, source: Source, wire: Wire) -> bool:
        source.send(b"from the address there is now", flush=True)
        return address in {one.src for one in wire.sent_to(GROUP)}

    with on_vlan(first, second, links=("native", "native")) as (publisher, subscriber):
        exchange(publisher, subscriber, 100, 200)
        wire = Wire(vlan_lab, first)
        try:
            first.call(lambda: set_mac("02:00:00:00:29:29"))
            with publisher.source("followed", flow_control="none") as source:
                wait_for(lambda: comes_from("02:00:00:00:29:29", source, wire), "the new address")
        finally:
            wire.close()
            first.call(lambda: set_mac(old))


def test_a_nic_that_strips_tags_is_refused_with_the_command(vlan_lab: Lab) -> None:
    """No program sees a tag that the NIC has stripped; the doctor and the error give the command to keep it."""
    host = vlan_lab.hosts[1]
    command = f"ethtool -K eth0 {STRIPS} off"
    host.call(lambda: set_feature("eth0", STRIPS, True))
    try:
        assert chosen(host.call(lambda: decide(probe("vlan0")))) is Mode.SOCKET
        with pytest.raises(Unsupported, match=command):
            host.call(lambda: Context("vlan0", link="xdp"))
        inside = ["ip", "netns", "exec", host.namespace, sys.executable, "-m", "umstack", "doctor", "vlan0"]
        printed = subprocess.run(inside, cwd=ROOT, capture_output=True, text=True, timeout=300).stdout
        assert "takes VLAN tags off" in " ".join(printed.split())
    finally:
        host.call(lambda: set_feature("eth0", STRIPS, False))


def test_the_doctor_reports_where_the_rings_would_be(vlan_lab: Lab) -> None:
    """The doctor shows the lower device, the VLAN and the mode that will be used."""
    host = vlan_lab.hosts[1]
    inside = ["ip", "netns", "exec", host.namespace, sys.executable, "-m", "umstack", "doctor", "vlan0"]
    printed = subprocess.run(inside, cwd=ROOT, capture_output=True, text=True, timeout=300).stdout
    words = " ".join(printed.split())
    assert words.count("vlan0: native will be used") == 1
    assert f"vlan0 is VLAN {VLAN} (802.1Q) of eth0" in words
    assert f"would be on eth0, for datagrams tagged with VLAN {VLAN}" in words
    as_json = subprocess.run(
        [*inside, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=300
    ).stdout
    (report,) = json.loads(as_json)["interfaces"]
    assert report["mode"] == "native"
    assert [nic["interface"] for nic in report["facts"]["nics"]] == ["eth0"]


def test_a_context_on_sockets_is_warned_of_rings_on_the_nic(vlan_lab: Lab) -> None:
    """The program is on the NIC, and the datagrams it redirects do not reach sockets on the VLAN device either."""
    host = vlan_lab.hosts[1]
    with (
        host.call(lambda: open_context("vlan0", "native")),
        pytest.warns(UserWarning, match="vlan0 is used by rings of another context"),
    ):
        host.call(lambda: Context("vlan0", link="socket")).close()
