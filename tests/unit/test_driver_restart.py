"""The end of a driver as applications see it: they attach to the next one, or continue without, and lose nothing
unreported."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.driver_ends import NOBODY, attached, driver
from tests.unit.lbtipc_ends import number_of, payload
from tests.unit.loopback import OWN_ADDRESSES, open_context
from tests.waiting import SECONDS, collect, wait_for
from umstack import (
    BurstLoss,
    Context,
    DriverError,
    DriverLost,
    EndOfSession,
    Message,
    NotConnected,
    Source,
    UnrecoverableLoss,
)
from umstack.attached import AttachedReceiver
from umstack.driver import SharedLog, client
from umstack.driver.client import listening_path
from umstack.driver.protocol import MESSAGE_MAX_BYTES, VERSION_HIGH, VERSION_LOW, decode, encode
from umstack.events import Event
from umstack.reader import Reader

ROUNDS = 300


@pytest.fixture
def remote() -> Iterator[Context]:
    """A context without driver, as on another host."""
    with open_context() as context:
        yield context


def numbers_and_losses(events: list[Event]) -> tuple[list[int], set[int]]:
    """Return the numbers of the messages, and the topic sequence numbers reported lost."""
    received = [number_of(event.data) for event in events if isinstance(event, Message)]
    lost = {event.sequence_number for event in events if isinstance(event, UnrecoverableLoss)}
    for event in events:
        if isinstance(event, BurstLoss):
            lost |= set(range(event.first_sequence_number, event.sequence_number + 1))
    return received, lost


def take_until(reader: Reader, last: int) -> list[Event]:
    """Return the events up to the message of this number."""
    events: list[Event] = []
    deadline = time.monotonic() + SECONDS
    while not any(isinstance(event, Message) and number_of(event.data) == last for event in events):
        events += reader.poll(timeout=0.1).events()
        assert time.monotonic() < deadline, events[-3:]
    return events


def send_until_refused(source: Source) -> None:
    """Send, until a send raises."""
    while True:
        source.send(b"again")


@pytest.mark.parametrize("retained", [{}, {"late_join": 1}], ids=["lost", "retained"])
def test_receivers_attach_to_the_next_driver_and_report_what_they_missed(
    remote: Context, retained: dict[str, Any]
) -> None:
    """Every number of the remote source is delivered once or reported lost, in two receivers, over two restarts. None
    is lost that the source retains."""
    with driver() as one, attached(one.path) as context, attached(one.path) as other:
        readers = [context.receiver("restart"), other.receiver("restart")]
        with remote.source("restart", **retained) as source:
            readers[0].wait_connected(timeout=SECONDS)
            readers[1].wait_connected(timeout=SECONDS)
            sent = 0
            events: list[list[Event]] = [[], []]
            for _ in range(2):
                for _ in range(ROUNDS):
                    source.send(payload(sent), flush=True)
                    sent += 1
                for taken, reader in zip(events, readers, strict=True):
                    taken += take_until(reader, sent - ROUNDS // 2)
                one.kill()
                source.send(payload(sent), flush=True)  # nobody on this host receives it
                sent += 1
                one.restart()
                for reader in readers:
                    wait_for(lambda reader=reader: reader._known_sources() == 1, "the source")
            source.send(payload(sent), flush=True)
            for taken, reader in zip(events, readers, strict=True):
                taken += take_until(reader, sent)
                received, lost = numbers_and_losses(taken)
                assert received == sorted(set(range(sent + 1)) - lost)
                assert not lost if retained else {ROUNDS, 2 * ROUNDS + 1} <= lost
                kinds = [type(event).__name__ for event in taken]
                assert (kinds.count("DriverLost"), kinds.count("EndOfSession")) == (2, 2)
                assert kinds.count("BeginningOfSession") == 3


def test_a_source_waits_for_the_next_driver(remote: Context) -> None:
    """Its log stays: receivers of the host get every message, those of the network a new session."""
    with driver() as one, attached(one.path) as context, attached(one.path) as other:
        near = other.receiver("waits")
        with remote.receiver("waits", transport_lbtrm_activity_timeout=1000) as far:
            source = context.source("waits")
            far.wait_connected(timeout=SECONDS)
            for number in range(10):
                source.send(payload(number), flush=True)
            assert len(collect(far, 10)) == 10
            before = source.transport
            one.kill()
            wait_for(lambda: not source.is_connected, "the loss to be noticed")
            with pytest.raises(NotConnected, match="has ended"):
                source.send(payload(99), timeout=0.05)
            with pytest.raises(NotConnected):
                source.send_many([payload(99)], timeout=0)
            sender = threading.Thread(
                target=lambda: [source.send(payload(number), flush=True) for number in range(10, 20)]
            )
            sender.start()
            one.restart()
            sender.join(SECONDS)
            assert not sender.is_alive()
            assert source.transport != before
            assert [number_of(one.data) for one in collect(near, 20)] == list(range(20))
            far.wait_connected(timeout=SECONDS)
            wait_for(lambda: source.known_receivers >= 1, "the driver's count of receivers")
            source.send(payload(20), flush=True)
            take_until(far, 20)
            assert source.wait_drained(timeout=SECONDS)
            source.close()
            wait_for(lambda: any(isinstance(e, EndOfSession) for e in near.poll().events()), "the end")


def test_objects_are_opened_and_closed_while_the_driver_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources wait for it, receivers report its loss; one that is closed while it is opened again is ended."""
    asked: list[str] = []
    real = client.DriverClient._ask_here

    def ask(self: client.DriverClient, do: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        answer = real(self, do, fields)
        if fields.get("topic") == "closed":
            closed.close()
        asked.append(f"{do} {fields['id'] == number}")
        return answer

    with driver() as one, attached(one.path) as context:
        closed = cast("AttachedReceiver", context.receiver("closed"))
        number = closed._number
        monkeypatch.setattr(client.DriverClient, "_ask_here", ask)
        kept = context.receiver("kept")
        one.kill()
        wait_for(lambda: any(isinstance(e, DriverLost) for e in kept.poll(timeout=0.1).events()), "the loss")
        new = context.receiver("kept")
        assert isinstance(new.poll(timeout=SECONDS).events()[0], DriverLost)
        opened: list[Any] = []
        thread = threading.Thread(target=lambda: opened.append(context.source("kept")))
        thread.start()
        one.restart()
        thread.join(SECONDS)
        (source,) = opened
        source.send(b"after", flush=True)
        for receiver in (kept, new):
            assert collect(receiver, 1)[0].data == b"after"
        assert asked == ["receive True", "receive False", "receive False", "end True"]


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
def test_auto_continues_without_a_driver(monkeypatch: pytest.MonkeyPatch, remote: Context, mode: str) -> None:
    """After the search its sources and receivers are on the network; what was missed meanwhile is reported."""
    with driver() as one:
        monkeypatch.setattr(client, "default_path", lambda _interface: str(one.path))
        with Context("lo", mode=mode, driver="auto", driver_search_timeout=300, **OWN_ADDRESSES) as context:
            receiver = context.receiver("alone", transport_lbtrm_nak_generation_interval=500)
            own = context.source("own")
            with remote.source("alone") as source, remote.receiver("own") as far:
                receiver.wait_connected(timeout=SECONDS)
                wait_for(lambda: context.idle(0.01) or far.sources, "the session of the driver")
                for number in range(10):
                    source.send(payload(number), flush=True)
                own.send_many([payload(i) for i in range(10)], flush=True)
                take_until(far, 9)
                events = take_until(receiver, 9)
                one.kill()
                source.send(payload(10), flush=True)
                wait_for(lambda: context.idle(0.01) or context._driver is None, "the end of the search")
                receiver.wait_connected(timeout=SECONDS)
                source.send(payload(11), flush=True)
                events += take_until(receiver, 11)
                received, lost = numbers_and_losses(events)
                assert (received, lost) == ([*range(10), 11], {10})
                own.send(payload(10), flush=True)  # waits until it is on the network
                wait_for(lambda: context.idle(0.01) or len(far.sources) == 2, "the new session")
                own.send(payload(11), flush=True)
                take_until(far, 11)
                assert own.wait_drained(timeout=SECONDS)
                with context.wildcard_receiver(prefix="x"):
                    pass


def test_a_sequential_context_attaches_to_the_next_driver() -> None:
    """The thread that runs its protocol attaches its sources and receivers, also while it waits in source()."""
    with driver() as one, attached(one.path, operational_mode="sequential") as context:
        receiver, source = context.receiver("turns"), context.source("turns")
        source.send(payload(0), flush=True)
        take_until(receiver, 0)
        one.kill()
        wait_for(lambda: context._driver is not None and context._driver.is_searching, "the loss")
        threading.Timer(0, one.restart).start()
        with context.source("more") as more:
            wait_for(lambda: context.idle(0.01) or more.is_connected, "flow control")
        receiver.wait_connected(timeout=SECONDS)
        source.send(payload(1), flush=True)
        take_until(receiver, 1)
        assert source.wait_drained(timeout=SECONDS)


def test_sources_of_a_former_driver_are_not_counted(remote: Context) -> None:
    """A receiver that has not noticed yet that the log has ended is not connected: it would miss the next messages. In
    sequential mode it notices when the protocol runs."""
    with (
        driver() as one,
        attached(one.path, operational_mode="sequential") as context,
        context.receiver("former") as receiver,
        remote.source("former") as source,
    ):
        receiver.wait_connected(timeout=SECONDS)
        client_of = context._driver
        assert client_of is not None
        connection = client_of._connection
        one.restart()
        wait_for(
            lambda: client_of._connection is not connection and not client_of.is_searching, "the next driver"
        )
        assert receiver._known_sources() == 0
        receiver.wait_connected(timeout=SECONDS)
        source.send(payload(0), flush=True)
        take_until(receiver, 0)


def test_a_path_is_an_error_after_the_search() -> None:
    """Sends that wait raise DriverError; nothing hangs, and the context can be closed while it searches."""
    with driver() as one, attached(one.path, driver_search_timeout=300) as context:
        source = context.source("gone")
        with attached(one.path) as searching:
            searching.receiver("gone")
            one.kill()
            with pytest.raises(DriverError, match="no other"):
                send_until_refused(source)
            with pytest.raises(DriverError, match="no other"):
                source.wait_drained(timeout=SECONDS)
            with pytest.raises(DriverError, match="no other"):
                context.receiver("more")
            closing = time.monotonic()
        assert time.monotonic() - closing < SECONDS / 2


def test_a_driver_of_another_version_is_not_used(tmp_path: Path) -> None:
    """The error of the context names the versions of both; so does the refusal of a driver."""
    path = tmp_path / "driver.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(MESSAGE_MAX_BYTES)
                connection.send(encode({"version": VERSION_HIGH + 1, "interface": "lo", "link": "socket"}))

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(
            DriverError, match=f"version {VERSION_HIGH + 1} .* {VERSION_LOW} to {VERSION_HIGH}"
        ):
            attached(path)
        thread.join(SECONDS)


def test_the_end_of_a_driver_is_noticed_after_a_repeated_answer(tmp_path: Path) -> None:
    """An answer that its request has not taken yet, or that comes twice, does not end the thread of the client."""
    path = tmp_path / "driver.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(MESSAGE_MAX_BYTES)
                connection.send(encode({"version": VERSION_HIGH, "interface": "lo", "link": "socket"}))
                request = decode(connection.recv(MESSAGE_MAX_BYTES))
                for _ in range(2):
                    connection.send(encode({"reply": request["request"]}))

        thread = threading.Thread(target=serve)
        thread.start()
        with attached(path) as context:
            receiver = context.receiver("twice")
            wait_for(lambda: any(isinstance(e, DriverLost) for e in receiver.poll().events()), "the end")
        thread.join(SECONDS)


def test_announcements_that_wait_are_one_per_source() -> None:
    """A receiver that reads slowly gets the newest log of a source that ended and returned meanwhile."""
    one = client.DriverClient.__new__(client.DriverClient)
    one._pending, one._changed = {}, threading.Condition()
    for log in range(3):
        for name in ("a", "b"):
            announced = asdict(SharedLog(log, 0, 1, 1))
            one._on_message({"do": "source", "ids": [1], "name": name, **announced})
    assert [fields["session_id"] for fields in one._pending.values()] == [2, 2]


def test_a_driver_that_does_not_attach_again_ends_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends raise instead of waiting without a timeout, and other objects continue."""
    monkeypatch.setattr(client, "_ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(client.DriverClient, "_has_attached", lambda *_: False)
    with driver() as one, attached(one.path) as context:
        source, other = context.source("alone"), context.receiver("alone")
        one.restart()
        with pytest.raises(DriverError, match="did not attach"):
            send_until_refused(source)
        other.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_driver_that_may_not_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With auto, a context runs without it, and a warning has the reason."""
    path = tmp_path / "driver.sock"
    monkeypatch.setattr(client, "default_path", lambda _interface: str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        assert listening_path("auto", "lo") == path
        os.seteuid(NOBODY)
        try:
            assert listening_path("auto", "lo") is None
        finally:
            os.seteuid(0)
    assert "is not used: Permission denied" in caplog.text
