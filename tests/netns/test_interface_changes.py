"""Interfaces that get another address, are renamed, made again or taken away under a running context."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyroute2 import IPRoute

from tests.netns.contexts import Member, members, numbered
from tests.waiting import collect, wait_for
from umstack import Context, InterfaceChanged, Receiver, Source
from umstack.lab import Host, Lab
from umstack.lab.links import index_of
from umstack.reader import Reader
from umstack_xdp import find_interface

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


def add_address(route: IPRoute, name: str, address: str) -> None:
    """Give an interface an address of the lab's network."""
    route.addr("add", index=index_of(route, name), address=address, prefixlen=24)


def readdress(route: IPRoute, former: str, address: str) -> None:
    """Replace the address of the host's interface."""
    route.addr("del", index=index_of(route, "eth0"), address=former, prefixlen=24)
    add_address(route, "eth0", address)


def make_stacked(route: IPRoute, address: str) -> None:
    """Make an interface above the host's, with an address."""
    route.link("add", ifname=STACKED, kind="macvlan", link=index_of(route, "eth0"), macvlan_mode="bridge")
    route.link("set", index=index_of(route, STACKED), state="up")
    add_address(route, STACKED, address)


def remove(route: IPRoute, name: str) -> None:
    """Remove an interface."""
    route.link("del", index=index_of(route, name))


class Stream:
    """A source and a receiver of two contexts."""

    def __init__(self, source: Source, receiver: Receiver, subscriber: Member) -> None:
        self.source, self.receiver, self.subscriber = source, receiver, subscriber

    def passes(self) -> None:
        """Send messages and check that all arrive in order."""
        messages = numbered(COUNT, 1000)
        self.source.send_many(messages, flush=True)
        assert [message.data for message in collect(self.receiver, COUNT, 15)] == messages

    def is_received_from(self, address: str) -> bool:
        """Return true once the receiver gets session messages from this address."""
        transports = self.subscriber.context.stats()["receiver_transports"]
        return any(
            f":{address}:" in one["transport"] and one["session_messages_rcved"] > 0 for one in transports
        )


@contextmanager
def stream(lab: Lab, moving: Member, *, publishes: bool = False, topic: str = "moving") -> Iterator[Stream]:
    """Open a stream between a context and one on the first host."""
    with members(lab.hosts[0]) as (still,):
        publisher, subscriber = (moving, still) if publishes else (still, moving)
        with (
            publisher.source(topic, **PATIENT) as source,
            subscriber.receiver(topic) as receiver,
        ):
            source.wait_connected(timeout=10)
            receiver.wait_connected(timeout=10)
            yield Stream(source, receiver, subscriber)


def followed(member: Member, **facts: Any) -> None:
    """Wait until the context has followed the interface to these facts."""
    wait_for(
        lambda: all(getattr(member.context.interface, name) == value for name, value in facts.items()),
        "the context to follow its interface",
        30,
    )


class StackedMember(Member):
    """A context on an interface that can be removed without taking the lab's cable with it."""

    def __init__(self, host: Host, address: str) -> None:
        """Make the interface and open the context."""
        changed(host, lambda route: make_stacked(route, address))
        self.host = host
        self.context = host.call(lambda: Context(STACKED))


@pytest.mark.parametrize("publishes", [False, True])
def test_a_context_follows_another_address(make_lab: MakeLab, publishes: bool) -> None:
    """Groups are joined again and NAKs leave from the new address; a source is advertised there as a new session."""
    lab = make_lab(hosts=2)
    host = lab.hosts[1]

    with members(host) as (moving,), stream(lab, moving, publishes=publishes) as moved:
        moved.passes()
        changed(host, lambda route: readdress(route, host.address, OTHER_ADDRESS))
        followed(moving, address=OTHER_ADDRESS)
        if publishes:
            wait_for(lambda: moved.is_received_from(OTHER_ADDRESS), "the session at the new address", 10)
        lab.port(0 if publishes else 1).set(loss=0.05)
        moved.passes()


@pytest.mark.parametrize("publishes", [False, True])
def test_a_context_follows_an_interface_that_is_made_again(make_lab: MakeLab, publishes: bool) -> None:
    """An interface that is removed and made again with its address, as by a driver that is loaded again, is used."""
    lab = make_lab(hosts=2)
    moving = StackedMember(lab.hosts[1], OTHER_ADDRESS)
    with moving.context, stream(lab, moving, publishes=publishes) as moved:
        moved.passes()
        before = moving.context.interface.index
        changed(lab.hosts[1], lambda route: remove(route, STACKED))
        changed(lab.hosts[1], lambda route: make_stacked(route, OTHER_ADDRESS))
        wait_for(lambda: moving.context.interface.index != before, "the interface that was made again", 10)
        moved.passes()


def test_a_context_follows_an_interface_that_is_renamed(make_lab: MakeLab) -> None:
    """The renamed interface is used, also for groups that are joined later."""
    lab = make_lab(hosts=2)

    def rename(route: IPRoute) -> None:
        index = index_of(route, "eth0")
        route.link("set", index=index, state="down")
        route.link("set", index=index, ifname="eth7")
        route.link("set", index=index, state="up")

    with members(lab.hosts[1]) as (subscriber,), stream(lab, subscriber) as moved:
        moved.passes()
        changed(lab.hosts[1], rename)
        followed(subscriber, name="eth7")
        moved.passes()
        with stream(lab, subscriber, topic="later") as joined_later:
            joined_later.passes()


def test_an_address_that_returns_is_no_error(make_lab: MakeLab, caplog: pytest.LogCaptureFixture) -> None:
    """Sockets that stay at the former address are error records without a traceback, and none once it is back."""
    lab = make_lab(hosts=2)
    host = lab.hosts[1]

    def errors() -> list[logging.LogRecord]:
        return [one for one in caplog.records if one.levelno == logging.ERROR]

    with (
        members(host, resolver_unicast_daemon=f"{lab.hosts[0].address}:15380") as (moving,),
        moving.source("moving", late_join=1),
    ):
        changed(host, lambda route: readdress(route, host.address, OTHER_ADDRESS))
        wait_for(lambda: len(errors()) == 2, "the records of the request port and of topic resolution", 10)
        assert all("stay" in one.message and one.exc_info is None for one in errors())
        changed(host, lambda route: readdress(route, OTHER_ADDRESS, host.address))
        wait_for(lambda: host.address in caplog.records[-1].message, "the record of the return", 10)
        followed(moving, address=host.address)
    assert len(errors()) == 2


def test_a_source_found_while_the_address_is_gone_is_received_later(
    make_lab: MakeLab, caplog: pytest.LogCaptureFixture
) -> None:
    """A socket of LBT-RU needs the address. The failure is a record without a traceback."""
    lab = make_lab(hosts=2)
    host = lab.hosts[1]
    with members(*lab.hosts) as (publisher, moving), moving.receiver("late") as receiver:
        changed(host, lambda route: route.flush_addr(index=index_of(route, "eth0")))
        with publisher.source("late", transport="lbtru") as source:
            wait_for(lambda: "it is tried again" in caplog.text, "the record", 10)
            changed(host, lambda route: add_address(route, "eth0", host.address))
            host.link_up()  # its route for multicast went with the address
            source.wait_connected(timeout=20)
            source.send(b"late", flush=True)
            assert collect(receiver, 1)[0].data == b"late"
    assert "Traceback" not in caplog.text


def test_an_interface_that_is_gone_is_named(make_lab: MakeLab, caplog: pytest.LogCaptureFixture) -> None:
    """An interface that is removed, or moved to another namespace, causes an error record with its name."""
    lab = make_lab(hosts=2)
    moving = StackedMember(lab.hosts[1], OTHER_ADDRESS)
    with moving.context:
        changed(lab.hosts[1], lambda route: remove(route, STACKED))
        wait_for(lambda: f"{STACKED} is gone" in caplog.text, "the record", 10)
    assert [one.levelno for one in caplog.records if "is gone" in one.message] == [logging.ERROR]


def rename_stacked(route: IPRoute, name: str) -> None:
    """Give the stacked interface another name."""
    index = index_of(route, STACKED)
    route.link("set", index=index, state="down")
    route.link("set", index=index, ifname=name)
    route.link("set", index=index, state="up")


def move(former: Host, host: Host, address: str) -> None:
    """Move the stacked interface to another host, where it gets an address."""

    def arrive(route: IPRoute) -> None:
        route.link("set", index=index_of(route, STACKED), state="up")
        add_address(route, STACKED, address)

    changed(
        former,
        lambda route: route.link("set", index=index_of(route, STACKED), net_ns_fd=host.namespace),
    )
    changed(host, arrive)


class Events:
    """The events about an interface that a receiver, or a source, has got so far."""

    def __init__(self, read: Callable[[], list[tuple[str, str, bool]]]) -> None:
        self._read = read
        self.seen: list[tuple[str, str, bool]] = []

    @classmethod
    def of_reader(cls, reader: Reader, topic: str) -> Events:
        """Read a reader, whose events have this topic."""

        def read() -> list[tuple[str, str, bool]]:
            found = [one for one in reader.poll().events() if isinstance(one, InterfaceChanged)]
            assert all((one.topic, one.source) == (topic, "") for one in found)
            return [(one.interface, one.change, one.is_followed) for one in found]

        return cls(read)

    @classmethod
    def of_source(cls, source: Source) -> Events:
        """Read the events of a source."""

        def read() -> list[tuple[str, str, bool]]:
            found = [one for one in source.receiver_events() if one.kind.startswith("interface_")]
            return [(one.receiver, one.kind.removeprefix("interface_"), bool(one.amount)) for one in found]

        return cls(read)

    def read(self) -> list[tuple[str, str, bool]]:
        """Return the events since the last await_last()."""
        self.seen += self._read()
        return self.seen

    def await_last(self, *expected: tuple[str, str, bool]) -> None:
        """Wait until these are all the events since the last call."""
        wait_for(lambda: self.read() == [*expected], f"{expected}", 10)
        self.seen.clear()


def test_an_event_names_the_interface_that_changed(make_lab: MakeLab) -> None:
    """Every reader gets one event per change, also one of many topics, and every source does."""
    lab = make_lab(hosts=2)
    host = lab.hosts[1]
    moving = StackedMember(host, OTHER_ADDRESS)
    with moving.context as context:
        queue, wildcard, failover, source = host.call(
            lambda: (
                context.event_queue(),
                context.wildcard_receiver(prefix="many"),
                context.hot_failover_receiver("failover"),
                context.source("moving"),
            )
        )
        for topic in ("one", "two"):
            host.call(lambda topic=topic: context.receiver(topic, queue=queue))  # type: ignore[misc]
        receiver = moving.receiver("moving")
        every = [
            Events.of_reader(receiver, "moving"),
            *(Events.of_reader(one, "") for one in (queue, wildcard, failover)),
            Events.of_source(source),
        ]

        def expect(*changes: tuple[str, str, bool]) -> None:
            for events in every:
                events.await_last(*changes)

        changed(host, lambda route: remove(route, STACKED))
        expect((STACKED, "gone", False))
        changed(host, lambda route: make_stacked(route, OTHER_ADDRESS))
        expect((STACKED, "made_again", True))
        changed(host, lambda route: route.flush_addr(index=index_of(route, STACKED)))
        expect((STACKED, "address_removed", False))
        changed(host, lambda route: add_address(route, STACKED, "10.77.0.98"))
        expect((STACKED, "address_changed", True))
        move(host, lab.hosts[0], "10.77.0.98")
        expect((STACKED, "gone", False))
        move(lab.hosts[0], host, "10.77.0.98")
        expect((STACKED, "returned", True))
        changed(host, lambda route: rename_stacked(route, "mv7"))
        for events in every:
            wait_for(lambda events=events: ("mv7", "renamed", True) in events.read(), "the new name", 10)  # type: ignore[misc]


def test_rings_that_ended_with_their_interface_are_reported(
    make_lab: MakeLab, caplog: pytest.LogCaptureFixture
) -> None:
    """Rings do not return with an interface that returns from another namespace."""
    lab = make_lab(hosts=2)
    home, other = lab.hosts[1], lab.hosts[0]

    def leave(route: IPRoute) -> None:
        route.link("set", index=index_of(route, "eth0"), net_ns_fd=other.namespace, ifname="away")

    def send_back(route: IPRoute) -> None:
        route.link("set", index=index_of(route, "away"), net_ns_fd=home.namespace, ifname="eth0")

    def arrive(route: IPRoute) -> None:
        route.link("set", index=index_of(route, "eth0"), state="up")
        add_address(route, "eth0", home.address)

    with members(home, link="xdp") as (moving,), moving.receiver("moving") as receiver:
        events = Events.of_reader(receiver, "moving")
        changed(home, leave)
        events.await_last(("eth0", "gone", False))
        changed(other, send_back)
        changed(home, arrive)
        events.await_last(("eth0", "made_again", False))  # its former index is taken there
    assert "its rings ended with it" in caplog.text


@pytest.mark.parametrize("publishes", [False, True])
def test_a_context_follows_an_interface_that_returns_from_another_namespace(
    make_lab: MakeLab, publishes: bool
) -> None:
    """It has its former index and address, but the kernel has left its groups: also that of topic resolution."""
    lab = make_lab(hosts=2)
    home, other = lab.hosts[1], lab.hosts[0]
    moving = StackedMember(home, OTHER_ADDRESS)
    with moving.context, stream(lab, moving, publishes=publishes) as moved:
        moved.passes()
        index = moving.context.interface.index
        move(home, other, OTHER_ADDRESS)
        move(other, home, OTHER_ADDRESS)
        wait_for(lambda: home.call(lambda: find_interface(STACKED)).address == OTHER_ADDRESS, "the return")
        assert home.call(lambda: find_interface(STACKED)).index == index
        moved.passes()
        with stream(lab, moving, publishes=publishes, topic="later") as joined_later:
            joined_later.passes()


def test_the_command_reports_the_interface(make_lab: MakeLab) -> None:
    """`umstack recv` names the interface on stderr, and receives on once it is back."""
    lab = make_lab(hosts=2)
    host = lab.hosts[1]
    changed(host, lambda route: make_stacked(route, OTHER_ADDRESS))
    command = ["umstack", "recv", "moving", "-i", STACKED, "--count", "2", "--output", os.devnull]
    running = host.run(
        [sys.executable, "-m", *command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert running.stderr is not None
    with members(lab.hosts[0]) as (publisher,), publisher.source("moving") as source:
        source.wait_connected(timeout=20)
        source.send(b"before", flush=True)
        source.wait_drained(timeout=10)
        changed(host, lambda route: remove(route, STACKED))
        lines = iter(running.stderr.readline, "")
        assert f"umstack: interface {STACKED}: gone, not followed\n" in lines
        changed(host, lambda route: make_stacked(route, OTHER_ADDRESS))
        assert f"umstack: interface {STACKED}: made again, followed\n" in lines
        source.send(b"after", flush=True)
        assert running.wait(20) == 0
