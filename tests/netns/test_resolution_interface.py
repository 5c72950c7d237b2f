"""Topic resolution on its interface needs no route and survives an interface that goes down."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from pyroute2 import NetNS

from umstack.config import Config
from umstack.lab import namespaces
from umstack.resolution import LbtrmAddress, ResolutionAgent, ResolutionInterface

FIRST_ADDRESS = "10.77.0.1"
HOST = "10.77.0.2"
ADDRESS = LbtrmAddress(HOST, "224.10.10.10", 0x5EED0001, 14400, 14390)
OPTIONS = Config().context_options()
SOURCE = Config().source_options()
RECEIVER = Config().receiver_options()
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Network:
    """A namespace, its netlink socket, and the interface in it."""

    namespace: str
    links: NetNS
    interface: ResolutionInterface


@pytest.fixture
def network() -> Iterator[Network]:
    """Return a namespace with one interface that is up, has two addresses and no multicast or default route."""
    name = f"um-tr-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
    namespaces.create(name)
    try:
        with NetNS(name) as links:
            links.link("add", ifname="tr0", kind="veth", peer="tr1")
            links.link("set", index=links.link_lookup(ifname="tr1")[0], state="up")
            index = links.link_lookup(ifname="tr0")[0]
            for address in (FIRST_ADDRESS, HOST):
                links.addr("add", index=index, address=address, prefixlen=24)
            links.link("set", index=index, state="up")
            yield Network(name, links, ResolutionInterface("tr0", index, HOST, 1500))
    finally:
        namespaces.remove(name)


def open_agent(network: Network, found: list[str]) -> ResolutionAgent:
    return namespaces.call(
        network.namespace,
        lambda: ResolutionAgent(
            OPTIONS,
            network.interface,
            time.monotonic_ns(),
            lambda topic, _index, _address, _advertiser: found.append(topic),
        ),
    )


def turn_until(agents: list[ResolutionAgent], done: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as selector:
        for agent in agents:
            selector.register(agent.fileno(), selectors.EVENT_READ)
        while not done():
            assert time.monotonic() < give_up, "waited in vain"
            selector.select(0.005)
            for agent in agents:
                agent.process(time.monotonic_ns())


def test_resolution_survives_an_interface_that_goes_down(network: Network) -> None:
    """While the interface is down, datagrams that cannot be sent are counted; when it is up again, sources
    are discovered.
    """
    links, index = network.links, network.interface.index
    first: list[str] = []
    second: list[str] = []
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(open_agent(network, first))
        subscriber = stack.enter_context(open_agent(network, second))
        both = [publisher, subscriber]
        subscriber.query("orders", RECEIVER, time.monotonic_ns())
        publisher.advertise("orders", 1, ADDRESS, SOURCE, time.monotonic_ns())
        turn_until(both, lambda: second == ["orders"])

        links.link("set", index=index, state="down")
        subscriber.query("trades", RECEIVER, time.monotonic_ns())
        publisher.advertise("trades", 2, ADDRESS, SOURCE, time.monotonic_ns())
        turn_until(both, lambda: publisher.stats()["tr_dgrams_send_failed"] > 0)
        assert publisher.last_error is not None
        assert second == ["orders"]

        links.link("set", index=index, state="up")
        subscriber.request_resolution(time.monotonic_ns())
        turn_until(both, lambda: second == ["orders", "trades"])
    assert first == []


def test_advertisements_come_from_the_chosen_address(network: Network) -> None:
    """Receivers and tshark bind a topic to the datagram's source address (docs/wire.md)."""
    group, port = OPTIONS.resolver_incoming

    def listen() -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((group, port))
        membership = socket.inet_aton(group) + socket.inet_aton(HOST)
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        listener.settimeout(PATIENCE_S)
        return listener

    with namespaces.call(network.namespace, listen) as listener, open_agent(network, []) as publisher:
        publisher.advertise("orders", 1, ADDRESS, SOURCE, time.monotonic_ns())
        _, sender = listener.recvfrom(2000)
    assert sender[0] == HOST


def test_only_the_chosen_interface_is_heard(network: Network) -> None:
    """A group with the same address on another network is another group."""
    loopback = ResolutionInterface("lo", network.links.link_lookup(ifname="lo")[0], "127.0.0.1", 65536)
    network.links.link("set", index=loopback.index, state="up")
    elsewhere = replace(network, interface=loopback)
    here: list[str] = []
    there: list[str] = []
    with open_agent(network, here) as agent, open_agent(elsewhere, there) as other:
        agent.query("orders", RECEIVER, time.monotonic_ns())
        other.query("orders", RECEIVER, time.monotonic_ns())
        other.advertise("orders", 1, ADDRESS, SOURCE, time.monotonic_ns())
        turn_until([agent, other], lambda: there == ["orders"])
        agent.advertise("trades", 1, ADDRESS, SOURCE, time.monotonic_ns())
        agent.query("trades", RECEIVER, time.monotonic_ns())
        turn_until([agent, other], lambda: bool(here))
    assert here == ["trades"]
