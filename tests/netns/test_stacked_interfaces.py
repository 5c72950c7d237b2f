"""Contexts on stacked interfaces: VLAN devices, bonds, macvlans."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from tests.netns.contexts import UNLIMITED, numbered
from tests.waiting import collect, wait_for
from umstack import Context, Event, InterfaceChanged
from umstack.errors import UmError
from umstack.lab import Host, Lab
from umstack_xdp import find_interface
from umstack_xdp.ladder import Mode, chosen, decide
from umstack_xdp.probe import probe_interface

ROOT = Path(__file__).resolve().parents[2]
KINDS: dict[str, dict[str, Any]] = {
    "vlan": {"vlan_id": 100},
    "bond": {"bond_mode": 1},
    "macvlan": {"macvlan_mode": "bridge"},
}

EXPECTED = {
    "vlan": (Mode.SOCKET, "takes VLAN tags off"),
    "bond": (Mode.NATIVE, ""),
    "macvlan": (Mode.SOCKET, "come by the queues of eth0"),
}
"""Return the mode of link=auto, and the reason why no better mode is used."""


def add_device(kind: str, address: str) -> None:
    """Create a device on eth0 of this namespace, with an address; skip if the kernel has no such device."""
    with IPRoute() as route:
        below = route.link_lookup(ifname="eth0")[0]
        link = {} if kind == "bond" else {"link": below}
        try:
            route.link("add", ifname="upper0", kind=kind, **link, **KINDS[kind])
        except NetlinkError as error:
            pytest.skip(f"this kernel has no devices of kind {kind}: {error}")
        index = route.link_lookup(ifname="upper0")[0]
        if kind == "bond":
            route.flush_addr(index=below)  # a member has no address: its routes would bypass the bond
            route.link("set", index=below, state="down")
            route.link("set", index=below, master=index)
        route.addr("add", index=index, address=address, prefixlen=24)
        for one in (below, index):
            route.link("set", index=one, state="up")


@pytest.fixture(params=KINDS)
def host(request: pytest.FixtureRequest, shared_lab: Lab) -> Iterator[Host]:
    """Return a host with such a device, which is removed afterwards."""
    host = shared_lab.hosts[1]
    try:
        host.call(lambda: add_device(request.param, "10.77.0.99"))
        if request.param == "vlan":
            shared_lab.hosts[0].call(lambda: add_device("vlan", "10.77.0.98"))
        yield host
    finally:
        for one in shared_lab.hosts[:2]:
            one.call(partial(remove_device, one.address))
        host.link_up()


def remove_device(address: str) -> None:
    with IPRoute() as route:
        for index in route.link_lookup(ifname="upper0"):
            route.link("del", index=index)
        below = route.link_lookup(ifname="eth0")[0]
        if not route.get_addr(index=below, family=socket.AF_INET):
            route.addr("add", index=below, address=address, prefixlen=24)


def test_a_context_on_it_works_and_the_doctor_reports_how(host: Host, shared_lab: Lab) -> None:
    """link=auto joins and receives, over rings on the one member of a bond; where rings are not possible they are
    refused with the reason. (On a veth the tag of a VLAN is not in the frame.)"""
    sender = shared_lab.hosts[0]
    facts = host.call(lambda: probe_interface(find_interface("upper0")))
    assert facts.stack[0].lower == ("eth0",)
    mode, refusal = EXPECTED[facts.stack[0].kind]
    assert chosen(decide(facts)) is mode
    own = "upper0" if facts.stack[0].kind == "vlan" else "eth0"
    messages, options = numbered(500, 200), dict[str, Any](UNLIMITED)
    with (
        host.call(lambda: Context("upper0", link="auto", **options)) as subscribing,
        sender.call(lambda: Context(own, **options)) as publishing,
    ):
        assert subscribing.link_mode == mode
        receiver = host.call(lambda: subscribing.receiver("stacked"))
        source = sender.call(lambda: publishing.source("stacked", flow_control="min"))
        source.wait_connected(timeout=10)
        source.send_many(messages, flush=True)
        assert [message.data for message in collect(receiver, 500, 10)] == messages
    if refusal:
        with pytest.raises(UmError, match=refusal):
            host.call(lambda: Context("upper0", link="xdp"))
    inside = ["ip", "netns", "exec", host.namespace, sys.executable, "-m", "umstack", "doctor", "upper0"]
    printed = subprocess.run(inside, cwd=ROOT, capture_output=True, text=True, timeout=300).stdout
    assert "lies on" in printed
    assert f"{facts.stack[0]}" in " ".join(printed.split())
    as_json = subprocess.run(
        [*inside, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=300
    ).stdout
    (report,) = json.loads(as_json)["interfaces"]
    assert report["facts"]["stack"][0]["lower"] == ["eth0"]
    assert report["mode"] == mode


def test_a_context_follows_one_that_is_made_again(host: Host, shared_lab: Lab) -> None:
    """Over sockets, the stream goes on over the device that replaces the first one, and an event names it."""
    sender = shared_lab.hosts[0]
    kind = host.call(lambda: probe_interface(find_interface("upper0"))).stack[0].kind
    own = "upper0" if kind == "vlan" else "eth0"
    messages = numbered(200, 1000)
    with (
        host.call(lambda: Context("upper0", link="socket")) as subscribing,
        sender.call(lambda: Context(own, **UNLIMITED)) as publishing,
    ):
        receiver = host.call(lambda: subscribing.receiver("again"))
        source = sender.call(
            lambda: publishing.source("again", flow_control="min", flow_control_receiver_timeout=20_000)
        )
        source.wait_connected(timeout=10)
        source.send_many(messages, flush=True)
        assert [message.data for message in collect(receiver, len(messages), 10)] == messages
        host.call(partial(remove_device, host.address))
        host.call(lambda: add_device(kind, "10.77.0.99"))
        rows: list[Event] = []
        wait_for(
            lambda: (
                rows.extend(receiver.poll(timeout=0.1).events())
                or InterfaceChanged("again", "", "upper0", "made_again", True) in rows
            ),
            "the event",
        )
        source.send_many(messages, flush=True)
        assert [message.data for message in collect(receiver, len(messages), 10)] == messages
