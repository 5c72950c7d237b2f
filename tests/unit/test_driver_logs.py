"""Who may attach to the logs of a driver and of its applications, and what a log waits for."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.unit.driver_ends import RunningDriver, attached, driver, raw_application
from tests.unit.lbtipc_ends import REFUSED, WELCOME, RawReceiver
from tests.unit.loopback import OWN_ADDRESSES, open_context
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context, EndOfSession, Event, Message, Source, UnrecoverableLoss
from umstack import attached as attached_sources
from umstack._engine import subscription
from umstack._engine.host_identity import host_id
from umstack._engine.subscription import Mapped
from umstack._engine.transport_address import LbtipcAddress
from umstack.driver import SharedLog
from umstack.driver.protocol import (
    MESSAGE_MAX_BYTES,
    VERSION_HIGH,
    VERSION_LOW,
    check_announcement,
    log_of,
)
from umstack.driving import topics
from umstack.driving.topics import DriverContext, PublishedTopic, ReceivedTopic, SharedSource
from umstack.errors import DriverError, UmError

_WRONG_KEYS: dict[str, Callable[[int], int]] = {
    "none": lambda _key: 0,
    "the first bit": lambda key: key ^ 1,
    "the last bit": lambda key: key ^ 1 << 63,
}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningDriver]:
    """A driver for the tests that leave it unharmed."""
    with driver() as one:
        yield one


@pytest.fixture
def remote() -> Iterator[Context]:
    """A context without driver, as on another host."""
    with open_context() as context:
        yield context


class _Application:
    """An application made of a plain socket, admitted by the driver."""

    def __init__(self, path: Path) -> None:
        self.peer = raw_application(path)
        self.ask({"do": "attach", "low": VERSION_LOW, "high": VERSION_HIGH, "host": host_id()})

    def ask(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the next message of the driver."""
        self.peer.send(json.dumps(fields).encode())
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Return the next message of the driver."""
        message: dict[str, Any] = json.loads(self.peer.recv(MESSAGE_MAX_BYTES))
        return message

    def receive(self, topic: str) -> dict[str, Any]:
        """Receive a topic: the first announcement, or the reply."""
        return self.ask({"do": "receive", "request": 1, "id": 1, "topic": topic, "options": {}})


@contextmanager
def _application(path: Path) -> Iterator[_Application]:
    one = _Application(path)
    try:
        yield one
    finally:
        one.peer.close()


def _ask_to_attach(log: SharedLog, key: int, version: int = 3) -> int:
    """Return the kind of the answer to a process that knows the name of the log and has a key."""
    with RawReceiver(f"LBTIPC:{log.session_id:x}:{log.transport_id}") as raw:
        return raw.ask(key, version).kind


def _log_of(source: Source) -> SharedLog:
    session = source._publication.session
    assert isinstance(session.address, LbtipcAddress)
    address = session.address
    index = source._publication.topic_index
    return SharedLog(address.session_id, address.transport_id, index, session.log_key)


def test_the_log_of_an_application_admits_only_its_key(running: RunningDriver) -> None:
    """A process that knows the name of the socket is refused and counted; the readers stay."""
    with (
        attached(running.path) as context,
        context.receiver("own") as receiver,
        context.source("own") as source,
    ):
        log = _log_of(source)
        assert log.key
        for wrong in _WRONG_KEYS.values():
            assert _ask_to_attach(log, wrong(log.key)) == REFUSED
        assert _ask_to_attach(log, log.key, version=2) == REFUSED, "version 2 has no keys"
        wait_for(lambda: source.stats()["connections_refused"] == 4, "each is counted")
        source.send(b"still", flush=True)
        assert collect(receiver, 1)[0].data == b"still"
        assert _ask_to_attach(log, log.key) == WELCOME


@pytest.mark.parametrize("wrong", _WRONG_KEYS.values(), ids=_WRONG_KEYS)
def test_the_log_of_the_driver_admits_only_its_key(
    running: RunningDriver, remote: Context, wrong: Callable[[int], int]
) -> None:
    """The announcement to an admitted application carries the key, which differs from log to log."""
    with _application(running.path) as admitted:
        admitted.receive("far")
        keys = []
        for _ in range(2):
            with remote.source("far", flow_control="min") as source:
                source.wait_connected(timeout=SECONDS)
                source.send(b"first", flush=True)
                log = log_of(admitted.hear())
                assert _ask_to_attach(log, wrong(log.key)) == REFUSED
                assert _ask_to_attach(log, log.key) == WELCOME
                keys.append(log.key)
        assert len(set(keys)) == 2
        assert str(keys[0]) not in repr(
            log_of({"key": keys[0], "session_id": 1, "transport_id": 0, "topic_index": 1})
        )


def test_a_receiver_with_a_wrong_key_ends(running: RunningDriver, remote: Context) -> None:
    """It does not ask again: no key of it will ever fit."""
    with attached(running.path) as context, context.source("ended") as source:
        log = _log_of(source)
        address = LbtipcAddress(host_id(), log.session_id, log.transport_id)
        with remote.receiver("elsewhere") as receiver:
            remote._engine.map_shared_log(
                [receiver._subscription], address, log.topic_index, log.key ^ 2, "stolen"
            )
            deadline = time.monotonic() + SECONDS
            events: list[object] = []
            while not any(isinstance(one, EndOfSession) for one in events):
                assert time.monotonic() < deadline
                events += receiver.poll(timeout=0.1).events()
            assert source.stats()["connections_refused"] == 1


def test_a_source_in_a_second_log_continues_where_the_first_ended(remote: Context) -> None:
    """Its session with the driver had ended: what the driver missed meanwhile is reported, not skipped."""
    events: list[Event] = []

    def has(kind: type, count: int) -> bool:
        events.extend(receiver.poll(timeout=0.05).events())
        return sum(isinstance(event, kind) for event in events) >= count

    with remote.receiver("elsewhere") as receiver:
        for log_number, missed in enumerate((0, 8)):
            with remote.source(f"log{log_number}", transport="lbtipc") as source:
                source.send_many([b"missed"] * missed, flush=True)
                log = _log_of(source)
                address = LbtipcAddress(host_id(), log.session_id, log.transport_id)
                arguments = [receiver._subscription], address, log.topic_index, log.key, "far"
                wait_for(lambda: receiver._subscription.log_of("far") is None, "the end of the former log")
                remote._engine.map_shared_log(*arguments)
                assert receiver._subscription.log_of("far") == address
                source.wait_connected(timeout=SECONDS)
                source.send_many([b"taken"] * 5, flush=True)
                wait_for(lambda n=log_number: has(Message, 5 * (n + 1)), "the messages")
            wait_for(lambda n=log_number: has(EndOfSession, n + 1), "the end of the log")
    numbers = [event.sequence_number for event in events if isinstance(event, Message)]
    lost = [event.sequence_number for event in events if isinstance(event, UnrecoverableLoss)]
    assert numbers == [*range(5), *range(8, 13)]
    assert lost == [5, 6, 7]


def test_the_positions_of_ended_logs_are_bounded(monkeypatch: pytest.MonkeyPatch, remote: Context) -> None:
    """The oldest position gives way."""
    monkeypatch.setattr(subscription, "POSITIONS_MAX", 2)
    with remote.receiver("elsewhere") as receiver:
        for name in ("a", "b", "c"):
            with remote.source(name, transport="lbtipc") as source:
                log = _log_of(source)
                address = LbtipcAddress(host_id(), log.session_id, log.transport_id)
                remote._engine.map_shared_log(
                    [receiver._subscription], address, log.topic_index, log.key, name
                )
                source.wait_connected(timeout=SECONDS)
                source.send(b"x", flush=True)
            wait_for(lambda name=name: receiver._subscription.log_of(name) is None, "the end of the log")
        assert list(receiver._subscription._positions) == ["b", "c"]


def test_a_wrong_key_does_not_take_the_place_of_the_right_one(
    running: RunningDriver, remote: Context
) -> None:
    """In one process, a receiver with the key of a log receives it while another asks with a wrong key."""
    with attached(running.path) as context, context.source("raced") as source:
        log = _log_of(source)
        address = LbtipcAddress(host_id(), log.session_id, log.transport_id)
        with remote.receiver("wrong") as wrong, remote.receiver("right") as right:
            for receiver, key in ((wrong, log.key ^ 2), (right, log.key)):
                remote._engine.map_shared_log(
                    [receiver._subscription], address, log.topic_index, key, "raced"
                )
            right.wait_connected(timeout=SECONDS)
            source.send(b"for the right one", flush=True)
            assert collect(right, 1)[0].data == b"for the right one"
            assert not wrong.poll().messages()


def test_the_driver_reads_no_log_for_an_application_without_its_key(running: RunningDriver) -> None:
    """An admitted application cannot have the log of another one published as its own source: what it names is a source
    without messages, which ends."""
    with attached(running.path) as context, context.source("secret") as source:
        log = _log_of(source)
        with _application(running.path) as thief, context.receiver("stolen") as receiver:
            order = {"do": "publish", "request": 1, "id": 2, "topic": "stolen", "options": {}}
            place = {"session_id": log.session_id, "transport_id": log.transport_id, "topic_index": 1}
            thief.ask({**order, **place, "key": log.key ^ 1})
            wait_for(
                lambda: source.stats()["connections_refused"] >= 2, "the driver and the receiver are refused"
            )
            source.send(b"secret", flush=True)
            assert source.wait_drained(timeout=SECONDS)
            assert not receiver.poll().messages()


def test_a_source_whose_log_finds_no_space_leaves_no_thread(
    remote: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that cannot be mapped uses up nothing in the driver."""

    def relays() -> int:
        return sum(one.name == "umstack relay" for one in threading.enumerate())

    with remote.source("log", transport="lbtipc") as source, DriverContext("lo", **OWN_ADDRESSES) as context:
        log = _log_of(source)
        reader = PublishedTopic(context, "reader", {}, log)
        before = relays()
        monkeypatch.setattr(topics, "map_sources", lambda requests: [Mapped(requests[0], -errno.ENOSPC)])
        with pytest.raises(UmError):
            PublishedTopic(context, "full", {}, log)
        assert relays() == before
        reader.close()


def test_a_receiver_of_the_host_counts_once_its_process_reads_the_log(running: RunningDriver) -> None:
    """Otherwise wait_connected() would return before the receiver gets messages."""
    with (
        attached(running.path) as context,
        context.source("counted", flow_control="min") as source,
        _application(running.path) as reader,
    ):
        reader.receive("counted")
        wait_for(lambda: source._state().local == 1, "the driver counts the receiver")
        assert source.known_receivers == 0
        with context.receiver("counted"):
            wait_for(lambda: source._state().local == 2, "the driver counts the second receiver")
            assert source.known_receivers == 0, "one of two processes reads the log"


def test_a_closed_source_takes_its_receivers_of_the_host_with_it(remote: Context) -> None:
    """Otherwise a source of the same session would publish without any receiver."""
    with remote.source("log", transport="lbtipc") as source, DriverContext("lo", **OWN_ADDRESSES) as context:
        log = _log_of(source)
        options = {"flow_control": "min", "transport_lbtrm_multicast_address": "239.181.41.10"}
        first, second = (PublishedTopic(context, topic, options, log) for topic in ("a", "b"))
        assert first.transport == second.transport
        first.set_local_receivers(2, 1)
        assert second.state()["connected"], "they share the session's flow control"
        first.close()
        assert not second.state()["connected"]
        second.close()


def test_the_first_message_from_the_network_waits_for_the_invited_readers(
    remote: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application that attaches late reads a log from its first message on."""
    monkeypatch.setattr(topics, "_ATTACHED_SECONDS", SECONDS)
    announced: list[SharedSource] = []

    def announce(_topic: ReceivedTopic, source: SharedSource) -> int:
        announced.append(source)
        return 1

    with DriverContext("lo", **OWN_ADDRESSES) as context:
        topic = ReceivedTopic(context, "invited", {}, announce, lambda *_: None)
        topic.start()
        try:
            with remote.source("invited", flow_control="min") as source:
                source.wait_connected(timeout=SECONDS)
                source.send(b"first", flush=True)
                wait_for(lambda: announced, "the announcement")
                log = announced[0].log
                time.sleep(0.2)  # a message that does not wait is relayed by now
                with RawReceiver(f"LBTIPC:{log.session_id:x}:{log.transport_id}") as late:
                    assert late.attach(log.key).position == 0
                    wait_for(lambda: topic._relay.counters().messages == 1, "the message")
        finally:
            topic.close()


def test_a_source_waits_for_the_receivers_of_its_host(
    running: RunningDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there once they have attached, so that they read it from its first message on."""
    monkeypatch.setattr(attached_sources, "_ATTACHED_SECONDS", SECONDS)
    with attached(running.path) as context, _application(running.path) as receiving:
        assert "error" not in receiving.receive("near")
        made: list[Source] = []

        def make() -> None:
            with context.source("near") as source:
                source.send(b"first", flush=True)
                made.append(source)

        maker = threading.Thread(target=make)
        maker.start()
        log = log_of(receiving.hear())
        time.sleep(0.2)  # a source that does not wait is there by now
        assert not made
        with RawReceiver(f"LBTIPC:{log.session_id:x}:{log.transport_id}") as late:
            assert late.attach(log.key).position == 0
            maker.join(SECONDS)
            assert made


def test_a_receiver_slower_than_the_network_loses_nothing(running: RunningDriver, remote: Context) -> None:
    """The log of a remote source holds the driver, and with it the source, instead of overwriting messages."""
    count = 700  # more bytes than the log and the queues hold
    with (
        attached(running.path) as context,
        context.receiver("paced") as receiver,
        remote.source("paced", flow_control="min") as source,
    ):
        source.wait_connected(timeout=SECONDS)
        receiver.wait_connected(timeout=SECONDS)
        sender = threading.Thread(target=lambda: [source.send(bytes(64_000)) for _ in range(count)])
        sender.start()
        before = -1
        while sender.is_alive() and before != (before := int(source.stats()["msgs_sent"] or 0)):
            sender.join(0.2)
        assert len(collect(receiver, count)) == count
        sender.join()


def test_a_source_with_a_first_number_is_drained(running: RunningDriver, remote: Context) -> None:
    """UM-83: the driver has reached the number after the last message, which is not the count of messages."""
    with (
        attached(running.path) as publishing,
        remote.receiver("numbered") as receiver,
        publishing.source("numbered", initial_sequence_number=7) as source,
    ):
        receiver.wait_connected(timeout=SECONDS)
        source.send_many([b"first", b"second"], flush=True)
        assert source.wait_drained(SECONDS).is_complete


def test_messages_that_end_at_number_zero_are_not_drained_before_they_are_sent(
    running: RunningDriver, remote: Context
) -> None:
    """UM-83: the next number is 0, and the driver, which waits for a receiver, has published nothing."""
    first = 2**32 - 10
    with attached(running.path) as publishing:
        source = publishing.source("wrapped", initial_sequence_number=first, flow_control="min")
        for _ in range(10):
            source.send(b"x", flush=True)
        assert not source.wait_drained(0.3).is_complete
        with remote.receiver("wrapped") as receiver:
            assert len(collect(receiver, 10)) == 10
            assert source.wait_drained(SECONDS).is_complete
        source.close()


@pytest.mark.parametrize(
    "name",
    ["", "orders", "TCP:10.0.0.1:5[]", "TCP:10.0.0.1:5[-1]", "TCP:10.0.0.1:5[4294967296]", "TCP:10.0.0.1:5[1",
     "\ud800[1]", "x[1]", "LBTIPC:" + "1" * 130 + "[1]"],
)  # fmt: skip
def test_an_announcement_whose_source_cannot_be_registered_is_malformed(name: str) -> None:
    """Else the thread that reads announcements, or the one that registers at the Stores, would fail."""
    fields = {**asdict(SharedLog(1, 2, 3, 4)), "stores": [["10.0.0.2", 14567]], "name": name}
    with pytest.raises(DriverError, match="malformed"):
        check_announcement(fields)
    check_announcement({**fields, "stores": []})
    for session in ("TCP:10.0.0.1:5", "LBTRM:10.0.0.1:5:a:239.1.1.1:6", "LBTIPC:9d098301:20001"):
        check_announcement({**fields, "name": f"{session}[4294967295]"})
