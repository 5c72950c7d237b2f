"""Interfaces that get another address, are renamed, made again or taken away under a running context."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyroute2 import IPRoute

from tests.netns.contexts import Member, members
from tests.waiting import collect, wait_for
from umstack import Context, Receiver, Source
from umstack.lab import Host, Lab

MakeLab = Callable[..., Lab]
COUNT = 500
PATIENT = {"flow_control_receiver_timeout": 20_000}
STACKED = "mv0"
OTHER_ADDRESS = "10.77.0.99"


def changed(host: Host, change: Callable[[IPRoute], None]) -> None:
    """Change the interfaces of a host."""

    def run() -> None:
        with IPRoute() as route:
            change(route)

    host.call(run)


def index_of(route: IPRoute, name: str) -> int:
    """Return the index of an interface."""
    return int(route.link_lookup(ifname=name)[0])


def add_address(route: IPRoute, name: str, address: str) -> None:
    """Give an interface an address of the lab's network."""
    route.addr("add", index=index_of(route, name), address=address, prefixlen=24)


def make_stacked(route: IPRoute, address: str) -> None:
    """Make an interface above the host's, with an address."""
    route.link("add", ifname=STACKED, kind="macvlan", link=index_of(route, "eth0"), macvlan_mode="bridge")
    route.link("set", index=index_of(route, STACKED), state="up")
    add_address(route, STACKED, address)


def remove(route: IPRoute, name: str) -> None:
    """Remove an interface."""
    route.link("del", index=index_of(route, name))


@contextmanager
def stream(lab: Lab, moving: Member, *, publishes: bool = False) -> Iterator[Callable[[], None]]:
    """Yield a function that sends messages between a context and one on the first host, and checks that all arrive."""
    with (
        members(lab.hosts[0]) as (still,),
        (moving if publishes else still).source("moving", **PATIENT) as source,
        (still if publishes else moving).receiver("moving") as receiver,
    ):
        source.wait_connected(timeout=10)
        yield lambda: passes(source, receiver)


def passes(source: Source, receiver: Receiver) -> None:
    """Send messages and check that all arrive in order."""
    messages = [b"%d" % number for number in range(COUNT)]
    source.send_many(messages, flush=True)
    assert [message.data for message in collect(receiver, COUNT, 15)] == messages


def followed(member: Member, **facts: Any) -> None:
    """Wait until the context has followed the interface to these facts."""
    wait_for(
        lambda: all(getattr(member.context.interface, name) == value for name, value in facts.items()),
        "the context to follow its interface",
        10,
    )


class StackedMember(Member):
    """A context on an interface that can be removed without taking the lab's cable with it."""

    def __init__(self, host: Host, address: str) -> None:
        """Make the interface and open the context."""
        changed(host, lambda route: make_stacked(route, address))
        self.host = host
        self.context = host.call(lambda: Context(STACKED))


def test_a_receiver_follows_another_address(make_lab: MakeLab) -> None:
    """The groups are joined again and NAKs leave from the new address: nothing is lost, even with loss."""
    lab = make_lab(hosts=2)
    host = lab.hosts[1]

    def readdress(route: IPRoute) -> None:
        index = index_of(route, "eth0")
        route.addr("del", index=index, address=host.address, prefixlen=host.prefix_length)
        add_address(route, "eth0", OTHER_ADDRESS)

    with members(host) as (subscriber,), stream(lab, subscriber) as passes_all:
        passes_all()
        changed(host, readdress)
        followed(subscriber, address=OTHER_ADDRESS)
        lab.port(1).set(loss=0.05)
        passes_all()


@pytest.mark.parametrize("publishes", [False, True])
def test_a_context_follows_an_interface_that_is_made_again(make_lab: MakeLab, publishes: bool) -> None:
    """An interface that is removed and made again with its address, as by a driver that is loaded again, is used."""
    lab = make_lab(hosts=2)
    moving = StackedMember(lab.hosts[1], OTHER_ADDRESS)
    with moving.context, stream(lab, moving, publishes=publishes) as passes_all:
        passes_all()
        before = moving.context.interface.index
        changed(lab.hosts[1], lambda route: remove(route, STACKED))
        changed(lab.hosts[1], lambda route: make_stacked(route, OTHER_ADDRESS))
        wait_for(lambda: moving.context.interface.index != before, "the interface that was made again", 10)
        passes_all()


def test_a_context_follows_an_interface_that_is_renamed(make_lab: MakeLab) -> None:
    """The renamed interface is used, also for groups that are joined later."""
    lab = make_lab(hosts=2)

    def rename(route: IPRoute) -> None:
        index = index_of(route, "eth0")
        route.link("set", index=index, state="down")
        route.link("set", index=index, ifname="eth7")
        route.link("set", index=index, state="up")

    with members(lab.hosts[1]) as (subscriber,), stream(lab, subscriber) as passes_all:
        passes_all()
        changed(lab.hosts[1], rename)
        followed(subscriber, name="eth7")
        passes_all()
        with stream(lab, subscriber) as passes_again:
            passes_again()


def test_an_interface_that_is_gone_is_named(make_lab: MakeLab, caplog: pytest.LogCaptureFixture) -> None:
    """An interface that is removed, or moved to another namespace, causes an error record with its name."""
    lab = make_lab(hosts=2)
    moving = StackedMember(lab.hosts[1], OTHER_ADDRESS)
    with moving.context:
        changed(lab.hosts[1], lambda route: remove(route, STACKED))
        wait_for(lambda: f"{STACKED} is gone" in caplog.text, "the record", 10)
    assert [one.levelno for one in caplog.records if "is gone" in one.message] == [logging.ERROR]
