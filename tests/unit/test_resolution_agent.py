"""Topic resolution on real sockets, over loopback: inline, on its thread, and between processes."""

from __future__ import annotations

import errno
import logging
import os
import random
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.held import held, wait_until_released
from tests.waiting import wait_for
from umstack.config import Config, ContextOptions
from umstack.errors import Closed, InterfaceError, LinkError, ResolutionError, TopicNameError
from umstack.resolution import (
    LbtrmAddress,
    ResolutionAgent,
    ResolutionInterface,
    ResolverThread,
    resolver_datagram_size,
)
from umstack.resolution import thread as thread_module
from umstack.resolution.codec import ResolutionDatagram, encode
from umstack.resolution.thread import _Gathering

REPOSITORY = Path(__file__).parents[2]
LOOPBACK = ResolutionInterface("lo", socket.if_nametoindex("lo"), "127.0.0.1", 65536)
ADDRESS = LbtrmAddress("127.0.0.1", "224.10.10.10", 0x5EED0001, 14400, 14390)
SOURCE = Config().source_options()
RECEIVER = Config().receiver_options()
PATIENCE_S = 20.0

Found = list[tuple[str, int, LbtrmAddress]]


@pytest.fixture
def options() -> ContextOptions:
    """Return options with a group and port of this test, so that parallel tests do not meet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = f"239.255.{random.randrange(256)}.{random.randrange(1, 255)}"
    return Config().context_options(resolver_multicast_address=group, resolver_multicast_port=port)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


def agent_for(stack: ExitStack, options: ContextOptions, found: Found) -> ResolutionAgent:
    agent = ResolutionAgent(
        options,
        LOOPBACK,
        time.monotonic_ns(),
        lambda topic, index, address, _advertiser: found.append((topic, index, address)),
    )
    return stack.enter_context(agent)


def turn_until(agents: list[ResolutionAgent], done: Callable[[], bool]) -> None:
    """Run agents inline, as a context in sequential mode does, until `done`."""
    give_up = time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as selector:
        for agent in agents:
            selector.register(agent.fileno(), selectors.EVENT_READ)
        while not done():
            assert time.monotonic() < give_up, "the condition did not come true in time"
            selector.select(0.005)
            for agent in agents:
                agent.process(time.monotonic_ns())


def test_every_agent_of_a_host_receives_from_every_other(stack: ExitStack, options: ContextOptions) -> None:
    """UM-6: one publisher, three subscribers and the publisher's own receiver, all on one host and one port."""
    found: list[Found] = [[] for _ in range(4)]
    agents = [agent_for(stack, options, each) for each in found]
    for agent in agents:
        agent.query("orders", RECEIVER, time.monotonic_ns())
    agents[0].advertise("orders", 3, ADDRESS, SOURCE, time.monotonic_ns())
    turn_until(agents, lambda: all(found))
    assert found == [[("orders", 3, ADDRESS)]] * 4
    stats = agents[0].stats()
    assert stats["tr_dgrams_sent"] > 0
    assert stats["tr_bytes_sent"] > 0
    assert stats["tr_queries_rcved"] > 0


def test_advertisements_have_the_interface_address(stack: ExitStack, options: ContextOptions) -> None:
    """Receivers and tshark bind a topic to the datagram's source address."""
    listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(options.resolver_incoming)
    membership = socket.inet_aton(options.resolver_multicast_address) + socket.inet_aton("127.0.0.1")
    listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    listener.settimeout(PATIENCE_S)
    agent = agent_for(stack, options, [])
    agent.advertise("orders", 3, ADDRESS, SOURCE, time.monotonic_ns())
    _, sender = listener.recvfrom(2000)
    assert sender[0] == "127.0.0.1"


def test_a_late_receiver_finds_a_quiescent_source(stack: ExitStack, options: ContextOptions) -> None:
    """UX-14: a source in the quiescent phase answers the query of a later receiver."""
    quiet = Config().source_options(
        resolver_send_initial_advertisement=0,
        resolver_advertisement_minimum_initial_interval=0,
        resolver_advertisement_sustain_interval=0,
    )
    found: Found = []
    publisher = agent_for(stack, options, [])
    publisher.advertise("orders", 3, ADDRESS, quiet, time.monotonic_ns())
    assert publisher.next_deadline_ns() is None
    subscriber = agent_for(stack, options, found)
    subscriber.query("orders", RECEIVER, time.monotonic_ns())
    turn_until([publisher, subscriber], lambda: bool(found))
    assert found == [("orders", 3, ADDRESS)]


def test_garbage_from_the_network_is_counted(stack: ExitStack, options: ContextOptions) -> None:
    """The socket path drops and counts malformed datagrams, and continues."""
    found: Found = []
    agent = agent_for(stack, options, found)
    noisy = agent_for(stack, options, [])
    for data in (b"", b"\xff" * 2000, b"\0\0\0\x05", b"\x0f\0\0\0"):
        noisy._sender.sendto(data, options.resolver_outgoing)
    turn_until([agent], lambda: agent.stats()["tr_dgrams_rcved"] >= 4)
    assert agent.stats()["tr_dgrams_dropped_malformed"] == 2
    assert agent.stats()["tr_dgrams_dropped_ver"] == 1
    agent.query("orders", RECEIVER, time.monotonic_ns())
    noisy.advertise("orders", 3, ADDRESS, SOURCE, time.monotonic_ns())
    turn_until([agent, noisy], lambda: bool(found))


def test_a_turn_is_bounded_and_reports_remaining_work(stack: ExitStack, options: ContextOptions) -> None:
    """A flood on one socket cannot block the loop."""
    agent = agent_for(stack, options, [])
    noisy = agent_for(stack, options, [])
    for _ in range(200):
        noisy._sender.sendto(b"\0\0\0\0", options.resolver_outgoing)
    turns = 1
    while agent.process(time.monotonic_ns()):
        turns += 1
    assert turns >= 3
    assert agent.stats()["tr_dgrams_rcved"] == 200


def test_a_callback_that_raises_does_not_lose_the_other_events(
    stack: ExitStack, options: ContextOptions
) -> None:
    seen: list[str] = []

    def refuse(topic: str, _index: int, _address: LbtrmAddress, _advertiser: str) -> None:
        seen.append(topic)
        raise LinkError("no space")

    agent = stack.enter_context(ResolutionAgent(options, LOOPBACK, time.monotonic_ns(), refuse))
    publisher = agent_for(stack, options, [])
    for topic in ("a", "b"):
        agent.query(topic, RECEIVER, time.monotonic_ns())
        publisher.machine.advertise(topic, 1, ADDRESS, SOURCE, time.monotonic_ns())
    publisher.process(time.monotonic_ns() + 20_000_000)
    with pytest.raises(LinkError, match="no space"):
        turn_until([agent], lambda: False)
    assert seen == ["a", "b"]


def test_a_datagram_that_cannot_be_sent_is_counted(stack: ExitStack, options: ContextOptions) -> None:
    """The failed send is counted in tr_dgrams_send_failed; resolution repeats the datagram later."""
    agent = agent_for(stack, options, [])
    agent._destinations = [("127.0.0.1", 0)]
    agent.advertise("orders", 3, ADDRESS, SOURCE, time.monotonic_ns())
    assert agent.stats()["tr_dgrams_send_failed"] == 1
    assert isinstance(agent.last_error, OSError)
    assert agent.next_deadline_ns() is not None


def test_datagram_sizes_are_computed_from_the_mtu() -> None:
    """W4: 0 means the MTU's size; IP fragments datagrams of a larger configured size."""
    assert resolver_datagram_size(Config().context_options(), 1500) == 1472
    assert resolver_datagram_size(Config().context_options(), 65536) == 65507
    assert resolver_datagram_size(Config().context_options(resolver_datagram_max_size=1000), 1500) == 1000
    assert resolver_datagram_size(Config().context_options(resolver_datagram_max_size=8192), 1500) == 8192


def test_a_changed_mtu_is_followed(stack: ExitStack, options: ContextOptions) -> None:
    """W4: a change of the MTU at run time is followed."""
    agent = agent_for(stack, options, [])
    assert agent.machine.datagram_maximum_bytes == 65507
    agent.set_mtu(1280)
    assert agent.machine.datagram_maximum_bytes == 1252
    agent.set_mtu(9000)
    assert agent.machine.datagram_maximum_bytes == 8972


def test_a_missing_interface_is_a_clear_error(options: ContextOptions) -> None:
    """The error names the interface; no socket stays open."""
    before = held()
    with pytest.raises(InterfaceError, match="interface gone0"):
        ResolutionAgent(options, ResolutionInterface("gone0", 99999, "127.0.0.1", 1500), 0, lambda *_: None)
    with pytest.raises(InterfaceError, match="no interface of this host has the address"):
        ResolutionAgent(
            options, ResolutionInterface("lo", LOOPBACK.index, "192.0.2.1", 1500), 0, lambda *_: None
        )
    wait_until_released(before)


def test_a_port_in_use_is_a_clear_error(stack: ExitStack, options: ContextOptions) -> None:
    squatter = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    squatter.bind(("0.0.0.0", options.resolver_multicast_port))
    with pytest.raises(LinkError, match="listening for topic resolution") as caught:
        ResolutionAgent(options, LOOPBACK, 0, lambda *_: None)
    assert caught.value.errno == errno.EADDRINUSE


def test_threads_find_each_other(stack: ExitStack, options: ContextOptions) -> None:
    """Embedded mode uses no thread of the application."""
    found: Found = []
    gone = threading.Event()
    subscriber_agent = ResolutionAgent(
        options,
        LOOPBACK,
        time.monotonic_ns(),
        lambda *source: found.append(source[:3]),
        lambda *_: gone.set(),
    )
    subscriber = stack.enter_context(ResolverThread(subscriber_agent))
    publisher = stack.enter_context(ResolverThread(agent_for(ExitStack(), options, [])))
    subscriber.query("orders", RECEIVER)
    polite = Config().source_options(resolver_send_final_advertisements=1)
    publisher.advertise("orders", 3, ADDRESS, polite)
    wait_for(lambda: bool(found))
    assert found == [("orders", 3, ADDRESS)]
    subscriber.forget_sessions({ADDRESS})
    publisher.request_resolution()
    publisher.set_mtu(1500)
    wait_for(lambda: len(found) == 2)
    publisher.withdraw("orders", 3, ADDRESS)
    publisher.close()
    assert gone.wait(PATIENCE_S), "commands posted before close must be executed"
    subscriber.stop_query("orders")
    wait_for(lambda: subscriber.stats()["tr_rcv_topics"] == 0)


def test_a_closed_thread_refuses_and_leaves_nothing_open(options: ContextOptions) -> None:
    before = held()
    resolver = ResolverThread(ResolutionAgent(options, LOOPBACK, time.monotonic_ns(), lambda *_: None))
    with pytest.raises(TopicNameError):
        resolver.query("", RECEIVER)
    with pytest.raises(TopicNameError):
        resolver.advertise("a\0b", 1, ADDRESS, SOURCE)
    resolver.close()
    resolver.close()
    with pytest.raises(Closed):
        resolver.query("orders", RECEIVER)
    wait_until_released(before)
    assert not resolver._thread.is_alive()


def test_a_callback_that_raises_does_not_stop_the_thread(
    stack: ExitStack, options: ContextOptions, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def refuse(topic: str, _index: int, _address: LbtrmAddress, _advertiser: str) -> None:
        seen.append(topic)
        raise LinkError("no space")

    resolver = stack.enter_context(ResolverThread(ResolutionAgent(options, LOOPBACK, 0, refuse)))
    with caplog.at_level(logging.ERROR, logger="umstack.resolution"):
        for topic in ("a", "b"):
            resolver.query(topic, RECEIVER)
            resolver.advertise(topic, 1, ADDRESS, SOURCE)
            wait_for(lambda topic=topic: topic in seen)  # type: ignore[misc]
    assert "a topic resolution callback failed" in caplog.text


def test_a_finished_thread_is_not_woken_through_a_closed_descriptor(
    options: ContextOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may process the request to end before the wake-up for it is written."""
    resolver = ResolverThread(ResolutionAgent(options, LOOPBACK, time.monotonic_ns(), lambda *_: None))
    write = os.eventfd_write

    def write_late(descriptor: int, number: int) -> None:
        write(descriptor, number)
        resolver._thread.join(0.3)
        write(descriptor, number)

    monkeypatch.setattr(os, "eventfd_write", write_late)
    resolver.close()
    assert not resolver._thread.is_alive()


def test_closing_reports_a_callback_that_does_not_return(
    options: ContextOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_module, "_JOIN_TIMEOUT_S", 0.05)
    entered, leave = threading.Event(), threading.Event()

    def stay(*_source: object) -> None:
        entered.set()
        leave.wait(PATIENCE_S)

    resolver = ResolverThread(ResolutionAgent(options, LOOPBACK, 0, stay))
    resolver.query("orders", RECEIVER)
    resolver.advertise("orders", 1, ADDRESS, SOURCE)
    assert entered.wait(PATIENCE_S)
    with pytest.raises(ResolutionError, match="callback"):
        resolver.close()
    leave.set()
    resolver._thread.join(PATIENCE_S)
    assert not resolver._thread.is_alive()


OTHER_PROCESS = """
import socket, sys, time
from umstack.config import Config
from umstack.resolution import LbtrmAddress, ResolutionAgent, ResolutionInterface, ResolverThread

options = Config().context_options(resolver_multicast_address=sys.argv[1], resolver_multicast_port=int(sys.argv[2]))
interface = ResolutionInterface("lo", socket.if_nametoindex("lo"), "127.0.0.1", 65536)
address = LbtrmAddress("127.0.0.1", "224.10.10.10", 77, 14400, 14391)
with ResolverThread(ResolutionAgent(options, interface, time.monotonic_ns(), lambda *_: None)) as resolver:
    resolver.advertise("orders", 7, address, Config().source_options())
    sys.stdin.read()
    """


def test_processes_of_one_host_find_each_other(stack: ExitStack, options: ContextOptions) -> None:
    """UM-1, UM-6: without a daemon, two processes share group and port, and both receive."""
    found: Found = []
    agents = [agent_for(stack, options, found), agent_for(stack, options, found)]
    for agent in agents:
        agent.query("orders", RECEIVER, time.monotonic_ns())
    group, port = options.resolver_incoming
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", OTHER_PROCESS, group, str(port)], stdin=subprocess.PIPE, cwd=REPOSITORY
        )
    )
    turn_until(agents, lambda: len(found) == 2)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0
    assert {address.session_id for _, _, address in found} == {77}


def test_wake_ups_are_coalesced_under_load(
    stack: ExitStack, options: ContextOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first datagrams wake the thread immediately; after that the wake-ups per second are bounded.
    Commands are not delayed.
    """
    agent = ResolutionAgent(options, LOOPBACK, time.monotonic_ns(), lambda *_: None)
    passes: list[float] = []
    process = agent.process

    def noted(now_ns: int) -> bool:
        passes.append(time.monotonic())
        return process(now_ns)

    monkeypatch.setattr(agent, "process", noted)
    resolver = stack.enter_context(ResolverThread(agent))
    query = encode(ResolutionDatagram(queries=("strange",)))
    to = (options.resolver_multicast_address, options.resolver_multicast_port)
    sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    begun = time.monotonic()
    for number in range(1, 301):
        sender.sendto(query, to)
        wait_for(lambda sent=number: resolver.stats()["tr_dgrams_rcved"] > sent - 16)  # type: ignore[misc]
    wait_for(lambda: resolver.stats()["tr_dgrams_rcved"] == 300)
    assert len(passes) <= 8 + (time.monotonic() - begun) / 0.02 + 2
    before = time.monotonic()
    resolver.stop_query("strange")
    wait_for(lambda: passes[-1] >= before)


def test_wake_ups_have_a_small_burst() -> None:
    """Eight wake-ups happen immediately, then one per 20 ms; after a pause of 160 ms, eight again.

    Attack: however often commands and the batches of a flood wake the thread, datagrams wait for 20 ms at most.
    """
    gathering = _Gathering()
    ms = 1_000_000
    now = 10_000 * ms
    for _ in range(8):
        assert gathering.left_ns(now) == 0
        gathering.woken(now)
    assert gathering.left_ns(now) == 0
    gathering.woken(now)
    assert gathering.left_ns(now) == 20 * ms
    gathering.woken(now + 20 * ms)
    assert gathering.left_ns(now + 20 * ms) == 20 * ms
    now += 20 * ms + 9 * 20 * ms
    for _ in range(8):
        assert gathering.left_ns(now) == 0
        gathering.woken(now)
    for _ in range(100):
        gathering.woken(now)
    assert gathering.left_ns(now) == 20 * ms
