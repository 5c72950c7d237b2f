"""Hosts with jumbo frames and a smaller link between them: path MTU discovery over sockets and rings, and unicast."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.kernels import needs_frames_in_chains
from tests.netns.contexts import Member, members
from tests.netns.test_routed_lab import resolver_on
from tests.waiting import collect, wait_for
from umstack.lab import Lab

MakeLab = Callable[..., Lab]

JUMBO, ETHERNET = 9000, 1500
LINKS = [
    pytest.param({"link": "socket"}, id="sockets"),
    pytest.param({"link": "xdp"}, id="rings", marks=needs_frames_in_chains),
]


def path_bytes(member: Member) -> int:
    """Return the datagram size that the member's only source session uses."""
    (session,) = member.context.stats()["source_transports"]
    return int(session["path_datagram_bytes"])


def _is_of_smaller_link(member: Member) -> bool:
    return ETHERNET - 48 <= path_bytes(member) <= ETHERNET - 24


@pytest.mark.parametrize("link", LINKS)
def test_a_smaller_link_between_jumbo_hosts_is_found(make_lab: MakeLab, link: dict[str, Any]) -> None:
    """UM-50: every message arrives within a second, and the publisher learns which receiver has the smaller path."""
    lab = make_lab(hosts=3, mtu=JUMBO, segmentation="real")
    lab.hosts[2].set_path_mtu(ETHERNET)
    with members(*lab.hosts, **link) as (publisher, near, far):
        receivers = near.receiver("large"), far.receiver("large")
        source = publisher.source("large", flow_control_group_minimum_size=2)
        source.wait_connected(timeout=10)
        began = time.monotonic()
        for _ in range(20):
            source.send(bytes(8000), flush=True)
        for receiver in receivers:
            assert [len(one.data) for one in collect(receiver, 20)] == [8000] * 20
        assert time.monotonic() - began < 1
        wait_for(lambda: _is_of_smaller_link(publisher), "the size of the smaller link")
        changed = [one for one in source.receiver_events() if one.kind == "path_mtu_changed"]
        assert changed[-1].receiver.startswith(f"{lab.hosts[2].address}:")
        assert changed[-1].amount == path_bytes(publisher)


@pytest.mark.parametrize("link", LINKS)
def test_a_link_that_shrinks_and_grows_is_followed(make_lab: MakeLab, link: dict[str, Any]) -> None:
    """UM-50: messages in datagrams that no longer pass arrive in pieces within a second; later the size grows again."""
    lab = make_lab(hosts=2, mtu=JUMBO, segmentation="real")
    with members(*lab.hosts, **link) as (publisher, subscriber):
        receiver, source = subscriber.receiver("large"), publisher.source("large")
        source.wait_connected(timeout=10)
        source.send(bytes(8000), flush=True)
        collect(receiver, 1)
        lab.hosts[1].set_path_mtu(ETHERNET)
        began = time.monotonic()
        for _ in range(20):
            source.send(bytes(8000), flush=True)
        assert [len(one.data) for one in collect(receiver, 20)] == [8000] * 20
        took = time.monotonic() - began
        assert took < 1, took
        assert _is_of_smaller_link(publisher)
        (session,) = publisher.context.stats()["source_transports"]
        assert session["datagrams_sent_in_pieces"] >= 20
        lab.hosts[1].set_path_mtu(JUMBO)
        wait_for(lambda: path_bytes(publisher) == JUMBO - 28, "the size of the interface", 15)


def test_a_smaller_link_behind_a_router_is_found_for_unicast(make_lab: MakeLab) -> None:
    """UM-50: the router's ICMP messages make the source fragment the copies of the receiver behind the smaller link,
    and only those.
    """
    lab = make_lab(hosts=3, mtu=JUMBO, routed=True, segmentation="real")
    lab.hosts[2].set_path_mtu(ETHERNET)
    with resolver_on(lab.hosts[1]) as daemon, members(*lab.hosts, resolver_unicast_daemon=daemon) as joined:
        publisher, near, far = joined
        receivers = near.receiver("large"), far.receiver("large")
        source = publisher.source("large", transport="lbtru", flow_control_group_minimum_size=2)
        source.wait_connected(timeout=20)
        for _ in range(20):
            source.send(bytes(8000), flush=True)
        for receiver in receivers:
            assert [len(one.data) for one in collect(receiver, 20, 20)] == [8000] * 20
        sent = publisher.link("oversize_sends")
        assert 20 <= sent < 40, sent
