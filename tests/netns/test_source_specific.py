"""Source-specific multicast: groups are joined for the sources of sessions only (RFC 4607)."""

from __future__ import annotations

import logging
import socket
import struct
from contextlib import suppress

import pytest

from tests.netns.captures import sniffing
from tests.netns.contexts import Member, members
from tests.waiting import collect, wait_for
from umstack.lab import Lab
from umstack_xdp.xsk import unavailable

GROUP = "232.77.1.1"
ON_GROUP = {"transport_lbtrm_multicast_address": GROUP}
NOISE = {**ON_GROUP, "flow_control": "none"}
"""Options of a source that does not wait for receivers."""
COUNT = 200
CHANGE_TO_INCLUDE, ALLOW_NEW_SOURCES = 3, 5

needs_rings = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def sources(of: str) -> dict[str, str]:
    """Return the context option."""
    return {"transport_lbtrm_multicast_sources": of}


def unknown(member: Member) -> int:
    """Return the number of datagrams of sessions that the context has not joined."""
    return int(member.context.stats()["context"]["lbtrm_unknown_msgs_rcved"])


def allowed_sources(sniffer: socket.socket) -> set[tuple[str, str]]:
    """Return the groups and sources that the IGMPv3 reports received so far ask for."""
    found = set()
    sniffer.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ip = sniffer.recv(65536)[14:]
            report = ip[(ip[0] & 15) * 4 :]
            if ip[9] != socket.IPPROTO_IGMP or report[0] != 0x22:
                continue
            (records,) = struct.unpack("!H", report[6:8])
            at = 8
            for _ in range(records):
                kind, _, count = struct.unpack("!BBH", report[at : at + 4])
                group, *hosts = struct.unpack(f"!4s{'4s' * count}", report[at + 4 : at + 8 + 4 * count])
                at += 8 + 4 * count
                if kind in (CHANGE_TO_INCLUDE, ALLOW_NEW_SOURCES):
                    found |= {(socket.inet_ntoa(group), socket.inet_ntoa(host)) for host in hosts}
    return found


@pytest.mark.parametrize(
    ("of", "link", "group"),
    [
        ("any", "socket", "232.77.2.2"),
        pytest.param("any", "xdp", "232.77.2.3", marks=needs_rings),
        ("discovered", "socket", "232.77.2.4"),
        pytest.param("discovered", "xdp", "232.77.2.5", marks=needs_rings),
    ],
)
def test_only_the_sources_of_joined_sessions_are_received(
    shared_lab: Lab, of: str, link: str, group: str
) -> None:
    """Datagrams of another source to the group do not arrive, and an IGMPv3 report asks for one source.

    Each case has its own group, because the switch forwards all sources for a while after an any-source member left.
    """
    on_group = {"transport_lbtrm_multicast_address": group}
    first, second, third = shared_lab.hosts
    with (
        sniffing(shared_lab, third) as sniffer,
        members(first, second, link="socket") as (wanted, other),
        members(third, link=link, **sources(of)) as (subscriber,),
        other.source("other", **on_group, flow_control="none") as noise,
        wanted.source("wanted", **on_group) as source,
        subscriber.receiver("wanted") as receiver,
    ):
        source.wait_connected(timeout=10)
        noise.send_many([b"other"] * COUNT, flush=True)
        source.send_many([b"wanted"] * COUNT, flush=True)
        assert {message.data for message in collect(receiver, COUNT)} == {b"wanted"}
        if of == "any":
            wait_for(lambda: unknown(subscriber), "datagrams of the other source")
        else:
            assert unknown(subscriber) == 0
            wait_for(lambda: (group, first.address) in allowed_sources(sniffer), "an IGMPv3 report")


def test_the_kernel_drops_another_source_that_a_neighbor_has_joined(shared_lab: Lab) -> None:
    """Over sockets, another context of the host that receives every source does not change what this one receives."""
    first, second, third = shared_lab.hosts
    with (
        members(first, second) as (wanted, other),
        members(third, **sources("discovered")) as (subscriber,),
        members(third) as (neighbor,),
        other.source("other", **ON_GROUP) as noise,
        wanted.source("wanted", **ON_GROUP) as source,
        subscriber.receiver("wanted") as receiver,
        neighbor.receiver("other") as overheard,
    ):
        source.wait_connected(timeout=10)
        noise.wait_connected(timeout=10)
        noise.send_many([b"other"] * COUNT, flush=True)
        collect(overheard, COUNT)
        source.send_many([b"wanted"] * COUNT, flush=True)
        collect(receiver, COUNT)
        assert unknown(subscriber) == 0


def test_a_group_is_left_for_a_source_with_its_last_session(shared_lab: Lab) -> None:
    """Two sources of a group are joined one by one; when the sessions of one end, only the other's data arrives."""
    first, second, third = shared_lab.hosts
    with (
        members(first, second, second) as publishers,
        members(third, **sources("discovered")) as (subscriber,),
        publishers[0].source("stays", **ON_GROUP) as stays,
        publishers[1].source("ends", **ON_GROUP) as ends,
        publishers[2].source("other", **NOISE) as noise,
        subscriber.receiver("stays") as receiver,
    ):
        with subscriber.receiver("ends") as ending:
            for source in (stays, ends):
                source.wait_connected(timeout=10)
                source.send(b"first", flush=True)
            collect(receiver, 1)
            collect(ending, 1)
        before = unknown(subscriber)
        noise.send_many([b"other"] * COUNT, flush=True)
        stays.send_many([b"second"] * COUNT, flush=True)
        collect(receiver, COUNT)
        assert unknown(subscriber) == before


def test_a_list_excludes_other_sources_of_the_topic(shared_lab: Lab) -> None:
    """A source that is not in the list is ignored, though it advertises the topic."""
    first, second, third = shared_lab.hosts
    with (
        members(first, second) as publishers,
        members(third, **sources(f"{first.address}, 10.99.0.1")) as (subscriber,),
        publishers[0].source("topic", **ON_GROUP) as listed,
        publishers[1].source("topic", **NOISE) as unlisted,
        subscriber.receiver("topic") as receiver,
    ):
        wait_for(lambda: len(subscriber.context.sources_of("topic")) == 2, "both advertisements")
        listed.wait_connected(timeout=10)
        unlisted.send_many([b"unlisted"] * COUNT, flush=True)
        listed.send_many([b"listed"] * COUNT, flush=True)
        assert {message.data for message in collect(receiver, COUNT)} == {b"listed"}


def test_an_any_source_join_in_the_range_of_ssm_is_warned_of(
    shared_lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """232.0.0.0/8: routers forward these groups only to source-specific joins, so a warning names the option."""
    first, second, _ = shared_lab.hosts
    with (
        caplog.at_level(logging.WARNING, "umstack.resolution"),
        members(first, second) as (publisher, subscriber),
        publisher.source("warned", transport_lbtrm_multicast_address="232.77.1.2") as source,
        subscriber.receiver("warned"),
    ):
        source.wait_connected(timeout=10)
    assert "transport_lbtrm_multicast_sources" in caplog.text
