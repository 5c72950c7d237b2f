"""LBT-RM over IPv6 groups: data, NAKs and status messages by IPv6, topic resolution by IPv4."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.netns.captures import ended, listening, sniffing, start_capture
from tests.netns.contexts import UNLIMITED, members, numbered
from tests.netns.test_keyed_session import keys_in
from tests.netns.test_path_mtu import ETHERNET, JUMBO, path_bytes
from tests.waiting import collect, wait_for
from umstack import Context, InterfaceError, OptionError, Source
from umstack.cli import command as umstack
from umstack.facts.facts import facts_of
from umstack.lab import Host, Lab
from umstack.lab.links import index_of, netlink, set_sysctl
from umstack_xdp.xsk import unavailable

MakeLab = Callable[..., Lab]

GROUP = "ff15::7"
ON_GROUP = {"transport_lbtrm_multicast_address": GROUP}
IPV6_HEADERS = 48
UDP, ICMPV6, HOP_BY_HOP = 17, 58, 0
MLD2_REPORT, ALLOW_NEW_SOURCES, CHANGE_TO_INCLUDE = 143, 5, 3
_NO_DAD = 0x02


def address_of(host: Host) -> str:
    """Return the IPv6 address that `with_ipv6` gives to a host."""
    return f"fd00::{host.number + 1}"


def with_ipv6(lab: Lab, hosts: Sequence[Host] = (), *, is_global: bool = True) -> Lab:
    """Give hosts of a lab (default: all) IPv6: a link-local address, and with `is_global` one of fd00::/64."""

    def configure(host: Host) -> None:
        set_sysctl("ipv6/conf/eth0/accept_dad", 0)
        for scope in ("all", "default", "eth0"):
            set_sysctl(f"ipv6/conf/{scope}/disable_ipv6", 0)
        if is_global:
            with netlink(f"IPv6 on {host.namespace}") as route:
                index = index_of(route, host.interface)
                route.addr("add", index=index, address=address_of(host), prefixlen=64, flags=_NO_DAD)

    for host in hosts or lab.hosts:
        host.call(lambda host=host: configure(host))
        wait_for(lambda host=host: host.facts().ipv6_address, "a usable IPv6 address")
    return lab


@pytest.fixture(scope="module")
def lab(shared_lab: Lab) -> Lab:
    """Return the lab of this file, with IPv6."""
    return with_ipv6(shared_lab)


def frames(sniffer: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Yield protocol and IPv6 packet of the frames received so far; a hop-by-hop header is read over."""
    sniffer.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            frame = sniffer.recv(65536)
            if frame[12:14] != b"\x86\xdd":
                continue
            packet = frame[14:]
            protocol = packet[6]
            if protocol == HOP_BY_HOP:
                protocol, length = packet[40], (packet[41] + 1) * 8
                packet = packet[:40] + packet[40 + length :]
            yield protocol, packet


def is_from(packet: bytes, host: Host) -> bool:
    """Return true if the packet was sent by a host from its address of fd00::/64."""
    return packet[8:24] == ipaddress.IPv6Address(address_of(host)).packed


def destination(packet: bytes) -> ipaddress.IPv6Address:
    """Return the destination of a packet."""
    return ipaddress.IPv6Address(packet[24:40])


def test_data_control_and_statistics(lab: Lab) -> None:
    """Everything of the session is sent by IPv6, with the DSCP and hop limit of the options; names are in brackets."""
    first, second, _ = lab.hosts
    with (
        sniffing(lab, first) as sent,
        sniffing(lab, second) as answered,
        members(first, second, ip_dscp=46, resolver_multicast_ttl=9) as (publisher, subscriber),
        publisher.source("ipv6", **ON_GROUP) as source,
        subscriber.receiver("ipv6") as receiver,
    ):
        source.wait_connected(timeout=10)
        messages = numbered(2000, 100)
        source.send_many(messages, flush=True)
        assert [one.data for one in collect(receiver, 2000)] == messages
        (session,) = publisher.context.stats()["source_transports"]
        assert session["transport"].startswith(f"LBTRM:[{address_of(first)}]:14390:")
        assert session["transport"].endswith(f":[{GROUP}]:14400")
        assert session["path_datagram_bytes"] == ETHERNET - IPV6_HEADERS
        (joined,) = subscriber.context.stats()["receiver_transports"]
        assert joined["transport"] == session["transport"]
        (known,) = [one for one in source.receiver_events() if one.kind == "receiver_known"]
        assert known.receiver.startswith(f"[{address_of(second)}]:")
        data = [packet for protocol, packet in frames(sent) if protocol == UDP and is_from(packet, first)]
        assert {destination(one) for one in data} == {ipaddress.IPv6Address(GROUP)}
        assert {int.from_bytes(one[:2], "big") >> 4 & 0xFF for one in data} == {46 << 2}
        assert {one[7] for one in data} == {9}
        control = [
            packet for protocol, packet in frames(answered) if protocol == UDP and is_from(packet, second)
        ]
        assert {destination(one) for one in control} == {ipaddress.IPv6Address(address_of(first))}


def test_lost_datagrams_are_recovered(make_lab: MakeLab) -> None:
    """NAKs reach the source, and its retransmissions the group: nothing is lost at 2 % loss."""
    lossy = with_ipv6(make_lab(hosts=2, loss=0.02, segmentation="real"))
    with (
        members(*lossy.hosts) as (publisher, subscriber),
        publisher.source("lossy", **ON_GROUP) as source,
        subscriber.receiver("lossy") as receiver,
    ):
        source.wait_connected(timeout=10)
        messages = numbered(5000, 500)
        source.send_many(messages, flush=True)
        assert [one.data for one in collect(receiver, 5000, 30)] == messages
        (session,) = publisher.context.stats()["source_transports"]
        assert min(session["naks_rcved"], session["rx_bytes_sent"]) > 0


def test_link_local_addresses_and_several_groups(make_lab: MakeLab) -> None:
    """Hosts with only link-local addresses use them with the interface as scope, also for a group of the link."""
    linked = with_ipv6(make_lab(hosts=2, segmentation="real"), is_global=False)
    pool = {
        "transport_lbtrm_multicast_address_low": "ff12::a",
        "transport_lbtrm_multicast_address_high": "ff12::b",
    }
    with (
        members(*linked.hosts, **pool) as (publisher, subscriber),
        publisher.source("one") as one,
        publisher.source("two") as two,
    ):
        for topic, source in (("one", one), ("two", two)):
            receiver = subscriber.receiver(topic)
            source.wait_connected(timeout=10)
            source.send(topic.encode(), flush=True)
            assert collect(receiver, 1)[0].data == topic.encode()
        names = {session["transport"] for session in publisher.context.stats()["source_transports"]}
        assert {name.partition(":[ff12::")[2] for name in names} == {"a]:14400", "b]:14400"}
        assert all(name.startswith("LBTRM:[fe80::") for name in names)


def allowed_sources(sniffer: socket.socket) -> set[tuple[str, str]]:
    """Return the groups and sources that the MLDv2 reports received so far ask for."""
    found = set()
    for protocol, packet in frames(sniffer):
        report = packet[40:]
        if protocol != ICMPV6 or report[0] != MLD2_REPORT:
            continue
        at = 8
        for _ in range(int.from_bytes(report[6:8], "big")):
            kind, count = report[at], int.from_bytes(report[at + 2 : at + 4], "big")
            group, *hosts = (
                str(ipaddress.IPv6Address(report[start : start + 16]))
                for start in range(at + 4, at + 20 + 16 * count, 16)
            )
            at += 20 + 16 * count
            if kind in (CHANGE_TO_INCLUDE, ALLOW_NEW_SOURCES):
                found |= {(group, host) for host in hosts}
    return found


@pytest.mark.parametrize("of", ["discovered", "address"])
def test_source_specific_joins(lab: Lab, of: str) -> None:
    """Only the sources of joined sessions arrive, and an MLDv2 report asks for them."""
    first, second, third = lab.hosts
    group = {"transport_lbtrm_multicast_address": f"ff35::8000:{1 + (of == 'address')}"}
    allowed = address_of(first) if of == "address" else of
    with (
        sniffing(lab, third) as sniffer,
        members(first, second) as (wanted, other),
        members(third, transport_lbtrm_multicast_sources=allowed) as (subscriber,),
        other.source("other", **group, flow_control="none") as noise,
        wanted.source("wanted", **group) as source,
        subscriber.receiver("wanted") as receiver,
    ):
        source.wait_connected(timeout=10)
        noise.send_many([b"other"] * 200, flush=True)
        source.send_many([b"wanted"] * 200, flush=True)
        assert {message.data for message in collect(receiver, 200)} == {b"wanted"}
        assert subscriber.context.stats()["context"]["lbtrm_unknown_msgs_rcved"] == 0
        asked = (group["transport_lbtrm_multicast_address"], address_of(first))
        wait_for(lambda: asked in allowed_sources(sniffer), "an MLDv2 report")


def test_a_smaller_link_is_found(make_lab: MakeLab) -> None:
    """Jumbo hosts with a smaller link between them: messages arrive, in datagrams that fit with the longer header."""
    path = with_ipv6(make_lab(hosts=2, mtu=JUMBO, segmentation="real"))
    path.hosts[1].set_path_mtu(ETHERNET)
    with (
        members(*path.hosts) as (publisher, subscriber),
        publisher.source("large", **ON_GROUP) as source,
        subscriber.receiver("large") as receiver,
    ):
        source.wait_connected(timeout=10)
        for _ in range(20):
            source.send(bytes(8000), flush=True)
        assert [len(one.data) for one in collect(receiver, 20)] == [8000] * 20
        wait_for(lambda: path_bytes(publisher) == ETHERNET - IPV6_HEADERS, "the size of the smaller link")


def test_the_mtu_of_the_interface_is_followed(make_lab: MakeLab) -> None:
    """The datagram size is the MTU without the headers of IPv6, while that of an IPv4 session has those of IPv4."""
    changing = with_ipv6(make_lab(hosts=2, segmentation="real"))
    with (
        members(changing.hosts[0]) as (publisher,),
        publisher.source("six", **ON_GROUP, flow_control="none"),
        publisher.source("four", flow_control="none"),
    ):

        def sizes() -> list[int]:
            return [one["path_datagram_bytes"] for one in publisher.context.stats()["source_transports"]]

        assert sizes() == [ETHERNET - IPV6_HEADERS, ETHERNET - 28]
        changing.hosts[0].set_mtu(1400)
        wait_for(lambda: sizes() == [1400 - IPV6_HEADERS, 1400 - 28], "the sizes of the new MTU")


def test_a_session_follows_the_address_of_its_interface(make_lab: MakeLab) -> None:
    """If the interface gets another IPv6 address, the session sends from it and is advertised there."""
    moving = with_ipv6(make_lab(hosts=2, segmentation="real"))
    first, _ = moving.hosts
    with (
        members(*moving.hosts) as (publisher, subscriber),
        publisher.source("moving", **ON_GROUP) as source,
        subscriber.receiver("moving") as receiver,
    ):
        source.wait_connected(timeout=10)

        def renumber() -> None:
            with netlink("renumbering") as route:
                index = index_of(route, first.interface)
                route.addr("del", index=index, address=address_of(first), prefixlen=64)
                route.addr("add", index=index, address="fd00::99", prefixlen=64, flags=_NO_DAD)

        first.call(renumber)

        def is_rediscovered() -> bool:
            (session,) = publisher.context.stats()["source_transports"]
            joined = {one["transport"] for one in subscriber.context.stats()["receiver_transports"]}
            return "LBTRM:[fd00::99]:" in session["transport"] and session["transport"] in joined

        wait_for(is_rediscovered, "the session at the new address")
        source.send(b"from the new address", flush=True)
        assert collect(receiver, 1)[0].data == b"from the new address"


@pytest.mark.parametrize("chosen", ["fe80", "fd00"])
def test_the_interface_is_chosen_by_an_ipv6_address(lab: Lab, chosen: str) -> None:
    """An IPv6 address or network identifies the interface, and is the one that the session sends from."""
    host = lab.hosts[0]
    link_local = next(str(one.ip) for one in host.facts().ipv6_addresses if one.is_link_local)
    wanted, address = {
        "fe80": (f"{link_local}%{host.interface}", link_local),
        "fd00": ("fd00::/64", address_of(host)),
    }[chosen]
    context = host.call(lambda: Context(wanted, **UNLIMITED))
    with context:
        source: Source = host.call(lambda: context.source("chosen", **ON_GROUP))
        with source:
            (session,) = context.stats()["source_transports"]
            assert f"[{address}]" in session["transport"]


def test_captures_show_the_session(lab: Lab, tmp_path: Path) -> None:
    """A capture of the interface and a tap have the session's datagrams; `decode` and `report` name its addresses."""
    first, second, _ = lab.hosts
    taken, tapped = tmp_path / "taken", tmp_path / "tap.pcapng"
    taken.mkdir()
    capture = start_capture(first, "--group", GROUP, "--out", str(taken))
    listening(capture, taken)
    with (
        members(first, second) as (publisher, subscriber),
        publisher.context.tap(tapped),
        publisher.source("seen", **ON_GROUP) as source,
        subscriber.receiver("seen") as receiver,
    ):
        source.wait_connected(timeout=10)
        source.send_many(numbered(100, 500), flush=True)
        collect(receiver, 100)
    ended(capture)
    (file,) = taken.glob("*.pcapng")
    for path in (file, tapped):
        counts = facts_of([str(path)]).counts.drop_nulls("group")
        assert counts["group"].unique().to_list() == [f"[{GROUP}]:14400"]
        assert counts["publisher"].unique().to_list() == [address_of(first)]
        assert counts.filter(kind="DATA")["messages"].sum() == 100
    runner = CliRunner()
    shown = runner.invoke(umstack, ["decode", str(tapped)]).stdout
    assert f" > [{GROUP}]:14400 " in shown
    assert f"[{address_of(second)}]:" in shown


def test_authenticated_sessions(lab: Lab, tmp_path: Path) -> None:
    """Tags cover IPv6 addresses: datagrams and control messages with keys are accepted."""
    with (
        members(*lab.hosts[:2], **keys_in(tmp_path)) as (publisher, subscriber),
        publisher.source("keyed", **ON_GROUP) as source,
        subscriber.receiver("keyed") as receiver,
    ):
        source.wait_connected(timeout=10)
        source.send(b"tagged", flush=True)
        assert collect(receiver, 1)[0].data == b"tagged"


def test_a_receiver_without_ipv6_joins_once_it_has_an_address(
    make_lab: MakeLab, caplog: pytest.LogCaptureFixture
) -> None:
    """A discovered IPv6 session is reported and not joined while the interface has no IPv6 address."""
    late = make_lab(hosts=2, segmentation="real")
    with_ipv6(late, late.hosts[:1])
    with (
        members(*late.hosts) as (publisher, subscriber),
        publisher.source("late", **ON_GROUP) as source,
        subscriber.receiver("late") as receiver,
    ):
        wait_for(lambda: "has no IPv6 address, which the group ff15::7 needs" in caplog.text, "a warning")
        assert subscriber.context.stats()["receiver_transports"] == []
        with_ipv6(late, late.hosts[1:])
        source.wait_connected(timeout=10)
        source.send(b"joined", flush=True)
        assert collect(receiver, 1)[0].data == b"joined"


def test_refusals_name_what_is_missing(lab: Lab, make_lab: MakeLab) -> None:
    """Without an IPv6 address, and over rings, a source of an IPv6 group is refused with what to do."""
    without = make_lab(hosts=2).hosts[0]
    with (
        members(without) as (member,),
        pytest.raises(
            InterfaceError, match=r"eth0 has no IPv6 address, which the group ff15::7 needs.*address add"
        ),
    ):
        member.source("refused", **ON_GROUP)
    if unavailable() is None:
        with (
            members(lab.hosts[0], link="xdp") as (member,),
            pytest.raises(
                OptionError, match=r"ff15::7 is of IPv6, which AF_XDP rings do not carry.*link=socket"
            ),
        ):
            member.source("refused", **ON_GROUP)
