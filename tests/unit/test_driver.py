"""The driver over loopback: applications that share one receiver and publish through one process."""

# ruff: noqa: SIM117, the parties of a test come and go at different times

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.driver_ends import (
    NOBODY,
    ROOT,
    UNPRIVILEGED,
    RunningDriver,
    applications,
    attached,
    driver,
    driver_command,
    exchange_several,
    raw_application,
)
from tests.unit.lbtipc_ends import CAPACITY, RawSource, payload
from tests.unit.loopback import OWN_ADDRESSES, open_context, serving
from tests.waiting import SECONDS, collect, wait_for
from umstack import (
    Context,
    DriverError,
    DriverLost,
    EndOfSession,
    Message,
    NotConnected,
    OptionError,
    ReceiverEvent,
    Request,
    Source,
    UnrecoverableLoss,
)
from umstack._core import lib
from umstack._engine.host_identity import host_id
from umstack.driver.protocol import (
    MESSAGE_MAX_BYTES,
    VERSION_HIGH,
    VERSION_LOW,
    common_version,
    default_path,
    encode,
    events_of,
)
from umstack.driving import Driver, DriverLimits
from umstack.driving import driver as driving
from umstack.driving.relay import Relay
from umstack.driving.threads import DedicatedThreads
from umstack.driving.topics import DriverContext
from umstack.errors import ResourceLimit
from umstack.events import Event
from umstack.reader import Reader
from umstack_xdp.broker_policy import Policy
from umstack_xdp.listening import listen_at

ALLOWED = ("--allow-user", str(NOBODY))
QUICK_END: dict[str, Any] = {"transport_lbtrm_activity_timeout": 1000}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningDriver]:
    """A driver for the tests that leave it unharmed."""
    with driver(*ALLOWED) as one:
        yield one


@pytest.fixture
def remote() -> Iterator[Context]:
    """A context without driver, as on another host."""
    with open_context() as context:
        yield context


def await_event(receiver: Reader, kind: type) -> Any:
    """Return the next event of a kind; messages before it are skipped."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for event in receiver.poll(timeout=0.1).events():
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__} within {SECONDS} s")


def ask_raw(peer: socket.socket, **fields: Any) -> dict[str, Any]:
    """Send a request of the protocol and return the answer."""
    peer.send(json.dumps(fields).encode())
    answer: dict[str, Any] = json.loads(peer.recv(MESSAGE_MAX_BYTES))
    return answer


def attach_raw(peer: socket.socket) -> None:
    """Attach a connection of raw_application()."""
    answer = ask_raw(peer, do="attach", low=VERSION_LOW, high=VERSION_HIGH, host=host_id())
    assert answer["version"] == VERSION_HIGH


def rows(messages: list[Message]) -> list[tuple[Any, ...]]:
    """Return what two receivers of a message must agree on."""
    return [(m.data, m.source, m.sequence_number, m.first_sequence_number, m.sent_ns) for m in messages]


def send_until_received(source: Source, receiver: Reader) -> None:
    """Send messages until one is received."""

    def is_received() -> bool:
        source.send(b"x", flush=True)
        return bool(receiver.poll(timeout=0.05))

    wait_for(is_received, "a message")


def test_two_publishers_and_two_subscribers_need_no_privilege(
    running: RunningDriver, remote: Context
) -> None:
    """Every subscriber, attached or remote, gets every message of every publisher, once and in order."""
    with applications(running.path) as begin, remote.receiver("several") as far:
        publishers, report = exchange_several(begin, far)
        names = {one.ask("0")["transport"] for one in publishers}
        assert {source.rpartition("[")[0] for source in report["counts"]} == names


def test_a_remote_source_is_received_as_without_driver(running: RunningDriver, remote: Context) -> None:
    """Payloads of every length, with their numbers and send times: the same as an in-process receiver gets."""
    lengths = [0, 1, 100, 1400, 1500, 3000, 60_000, 65_000, 300_000]
    sent = [bytes([i]) * length for i, length in enumerate(lengths)]
    for stamps in (0, 1):
        topic = f"lengths/{stamps}"
        with (
            attached(running.path) as one,
            attached(running.path) as other,
            one.receiver(topic) as first,
            other.receiver(topic) as second,
            remote.receiver(topic) as plain,
            remote.source(topic, flow_control="min", send_timestamps=stamps) as source,
        ):
            source.wait_connected(2, SECONDS)
            for receiver in (first, second):
                receiver.wait_connected(timeout=SECONDS)
            for data in sent:
                source.send(data, flush=True)
            source.send_many([b"%d" % i for i in range(20_000)], flush=True)
            expected = rows(collect(plain, len(sent) + 20_000))
            assert [row[0] for row in expected[: len(sent)]] == sent
            assert rows(collect(first, len(expected))) == expected
            assert rows(collect(second, len(expected))) == expected
            assert first.sources == [expected[0][1]]


def test_longer_messages_pass_if_both_ends_set_their_options(running: RunningDriver, remote: Context) -> None:
    """In both directions: 2 MiB, the longest of a source without a driver."""
    data = random.Random(7).randbytes(2**21)
    window: dict[str, Any] = {"transport_lbtrm_transmission_window_size": 2**25}
    with attached(running.path) as context:
        for sending, receiving in ((remote, context), (context, remote), (context, context)):
            with (
                receiving.receiver("longer", receiver_maximum_message_length=2**21) as receiver,
                sending.source("longer", **window) as source,
            ):
                assert source.message_maximum_bytes == len(data)
                receiver.wait_connected(timeout=SECONDS)
                source.send(data, flush=True)
                assert collect(receiver, 1)[0].data == data


@pytest.mark.parametrize(
    ("transport", "limit"),
    [("tcp", {"receiver_maximum_message_length": 65536}), ("lbtrm", {})],
    ids=["for the receiver", "for the log"],
)
def test_a_last_message_that_is_too_long_is_reported_lost(
    running: RunningDriver, remote: Context, transport: str, limit: dict[str, Any]
) -> None:
    """No later message shows the gap: the driver announces it, before the session ends."""
    lost: list[int] = []
    with (
        attached(running.path) as context,
        context.receiver("too long", **limit) as receiver,
        remote.source("too long", transport=transport) as source,
    ):
        receiver.wait_connected(timeout=SECONDS)
        short = source.send(b"short", flush=True)
        last = source.send(bytes(2**20 if transport == "lbtrm" else 2**19), flush=True)
        assert collect(receiver, 1)[0].sequence_number == short
        numbers = [*range(short + 1, last + 1)]
        if transport == "tcp":
            source.close()  # ends the session at once
            del numbers[1:]  # a receiver reports a message beyond its limit once
        while len(lost) < len(numbers):
            events = receiver.poll(timeout=SECONDS).events()
            lost += [event.sequence_number for event in events if isinstance(event, UnrecoverableLoss)]
            assert lost or not any(isinstance(event, EndOfSession) for event in events)
            assert events, "nothing is reported"
    assert lost == numbers


def test_properties_and_requests_pass(running: RunningDriver, remote: Context) -> None:
    """In both directions; a response goes directly to the requester."""
    with attached(running.path) as context:
        for sending, receiving in ((remote, context), (context, remote), (context, context)):
            with receiving.receiver("parts") as receiver, sending.source("parts") as source:
                receiver.wait_connected(timeout=SECONDS)
                source.send(b"with", flush=True, properties={"a": 1, "b": "text"})
                (message,) = collect(receiver, 1)
                assert message.data == b"with"
                assert dict(message.properties) == {"a": 1, "b": "text"}
                with source.request(b"question", timeout=SECONDS) as request:
                    asked = await_event(receiver, Request)
                    asked.respond(b"answer")
                    assert next(iter(request)).data == b"answer"


def test_a_source_reaches_receivers_of_its_host_once(running: RunningDriver) -> None:
    """They read its log; the driver does not also receive what it sends itself."""
    with attached(running.path) as one, attached(running.path) as other:
        with other.receiver("local") as receiver, other.receiver("local", ordered_delivery=0) as unordered:
            with one.source("local") as source:
                assert source.is_connected
                numbers = [source.send(payload(i), flush=True) for i in range(1000)]
                drained = source.wait_drained(timeout=SECONDS)
                assert drained
                for reader in (receiver, unordered):
                    messages = collect(reader, 1000)
                    assert [m.sequence_number for m in messages] == numbers
                    assert {m.source for m in messages} == {f"{source.transport}[{source.topic_index}]"}
            await_event(receiver, EndOfSession)
            assert not [e for e in receiver.poll(timeout=0.2).events() if isinstance(e, Message)]


def test_the_receivers_of_the_network_connect_a_source(running: RunningDriver, remote: Context) -> None:
    """With flow control a send waits for one of them; is_connected and wait_connected() ask the driver."""
    with attached(running.path) as context, context.source("flow", flow_control="min") as source:
        assert not source.is_connected
        with pytest.raises(NotConnected):
            source.wait_connected(timeout=0.05)
        with remote.receiver("flow") as receiver:
            source.wait_connected(timeout=SECONDS)
            wait_for(lambda: source.is_connected, "flow control")
            assert source.known_receivers == 1
            source.send(b"flow", flush=True)
            assert collect(receiver, 1)[0].data == b"flow"
            assert source.wait_drained(timeout=SECONDS)


@pytest.mark.parametrize("policy", ["min", "max"])
def test_receivers_of_the_host_count_for_flow_control(policy: str) -> None:
    """Without a receiver of the network everything arrives and is drained; without any receiver the source waits."""
    with driver(*ALLOWED) as one, applications(one.path) as begin:
        subscriber = begin("subscribe", "host")
        publisher = begin("publish", "host", flow_control=policy)
        assert publisher.ask("50000")["sent"] == 50000
        report = subscriber.ask("50000")
        assert list(report["counts"].values()) == [50000], report
        assert report["in_order"]
        assert not report["lost"]
        with attached(one.path) as context, context.source("late", flow_control=policy) as source:
            assert not source.is_connected
            assert source.known_receivers == 0
            with context.receiver("late") as receiver:
                source.wait_connected(timeout=SECONDS)
                receiver.wait_connected(timeout=SECONDS)
                source.send_many([payload(i) for i in range(1000)], flush=True)
                assert source.wait_drained(timeout=SECONDS), "the driver waits for a receiver of the network"
                assert len(collect(receiver, 1000)) == 1000
                assert source.known_receivers == 1, "the driver receives its own source"
            wait_for(lambda: not source.is_connected, "the end of the last receiver")


def test_a_receiver_that_comes_later_begins_with_the_next_message(
    running: RunningDriver, remote: Context
) -> None:
    """Its log begins where it attached, without a loss event for what came before."""
    with attached(running.path) as one, remote.source("later", flow_control="min") as source:
        with one.receiver("later") as early:
            source.wait_connected(timeout=SECONDS)
            early.wait_connected(timeout=SECONDS)
            source.send(b"first", flush=True)
            assert collect(early, 1)[0].data == b"first"
            with attached(running.path) as other, other.receiver("later") as late:
                late.wait_connected(timeout=SECONDS)
                wait_for(lambda: late.stats()["delivery_controllers"], "the log")
                deadline, found = time.monotonic() + SECONDS, list[Event]()
                while not found:  # attaching takes a moment that nobody reports to the source
                    source.send(b"again", flush=True)
                    found = list(late.poll(timeout=0.05).events())
                    assert time.monotonic() < deadline
                assert {type(event).__name__ for event in found} <= {"BeginningOfSession", "Message"}


def test_a_stopped_subscriber_loses_exactly_what_it_missed(remote: Context) -> None:
    """It holds the others back for the hold interval at most; then it is cut loose, and they lose nothing."""
    count = 180_000  # more bytes than a log holds
    options = {"receiver_full_queue_hold_interval": 1500}
    with driver(*ALLOWED) as one, applications(one.path) as begin:
        quick, slow = (begin("subscribe", "stopped", **options) for _ in range(2))
        with remote.source("stopped", flow_control="min") as source:
            source.wait_connected(timeout=SECONDS)
            quick.connect()
            slow.connect()
            source.send_many([payload(i) for i in range(100)], flush=True)
            assert sum(slow.ask("100")["counts"].values()) == 100
            slow.process.send_signal(signal.SIGSTOP)
            quick.order(str(count))
            for first in range(100, count, 4000):
                source.send_many([payload(i) for i in range(first, min(first + 4000, count))], flush=True)
            report = json.loads(quick.hear())
            assert list(report["counts"].values()) == [count], report
            assert report["in_order"]
            slow.process.send_signal(signal.SIGCONT)
            deadline = time.monotonic() + 3 * SECONDS
            late = slow.ask(str(count + 1))
            while not late["lost"]:  # the gap shows with the next message after it has attached again
                source.send_many([payload(count)], flush=True)
                count += 1
                late = slow.ask(str(count + 1))
                assert time.monotonic() < deadline
            assert late["in_order"]
            assert sum(late["counts"].values()) + sum(late["lost"].values()) == count


def test_the_death_of_a_subscriber_concerns_no_other(running: RunningDriver, remote: Context) -> None:
    """kill -9 of one of two: the other gets everything."""
    with applications(running.path) as begin:
        dying, living = (begin("subscribe", "widow") for _ in range(2))
        source = remote.source("widow", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        dying.connect()
        living.connect()
        source.send_many([payload(i) for i in range(1000)], flush=True)
        assert sum(dying.ask("1000")["counts"].values()) == 1000
        dying.kill()
        source.send_many([payload(i) for i in range(1000, 30_000)], flush=True)
        report = living.ask("30000")
        assert list(report["counts"].values()) == [30_000]
        assert report["in_order"]


def test_the_death_of_a_publisher_ends_its_source(running: RunningDriver, remote: Context) -> None:
    """kill -9: whatever it had sent arrives, then its session ends, here and on the network."""
    with (
        applications(running.path) as begin,
        attached(running.path) as context,
        context.receiver("orphan") as receiver,
        remote.receiver("orphan", **QUICK_END) as far,
    ):
        publisher = begin("publish", "orphan")
        for reader in (receiver, far):
            reader.wait_connected(timeout=SECONDS)
        assert publisher.ask("2000")["sent"] == 2000
        publisher.kill()
        for reader in (receiver, far):
            assert [m.data for m in collect(reader, 2000)] == [payload(i) for i in range(2000)]
            await_event(reader, EndOfSession)


def test_the_network_gets_all_messages_of_a_killed_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's source serves NAKs until no more come: here of a receiver that loses most datagrams at first."""
    path, count = tmp_path / "driver.sock", 1000
    with (
        serving(path) as one,
        attached(path) as publisher,
        open_context(mode="sequential", transport_lbtrm_receiver_socket_buffer=16384) as remote,
        remote.receiver("inherited") as far,
    ):
        monkeypatch.setattr(driving, "_DRAIN_SECONDS", 60.0)
        source = publisher.source("inherited")
        far.wait_connected(timeout=SECONDS)
        source.send_many([payload(i) for i in range(count)], flush=True)
        assert publisher._driver is not None
        publisher._driver.close()  # without the requests that end its source
        wait_for(lambda: one._ending, "the driver to notice")
        (ending,) = one._ending
        source.close()
        wait_for(ending.source.ended.is_set, "the end of the log")
        for _ in range(2):  # requests, after each of which the driver looks for sources to close
            attached(path).close()
        assert [m.data for m in collect(far, count)] == [payload(i) for i in range(count)]
        assert ending.source.naks
        wait_for(lambda: not one._ending, "the end of the source")


def test_the_death_of_the_driver_is_reported_within_a_second() -> None:
    """Receivers get DriverLost, sends raise DriverError, and nothing hangs; a new context finds a new driver."""
    with driver() as one, attached(one.path, driver_search_timeout=0) as context:
        receiver, source = context.receiver("lost"), context.source("lost")
        source.send(b"before", flush=True)
        assert collect(receiver, 1)[0].data == b"before"
        one.kill()
        died = time.monotonic()
        await_event(receiver, DriverLost)
        assert time.monotonic() - died < 1
        with pytest.raises(DriverError, match="has ended"):
            source.send(b"after")
        with pytest.raises(DriverError, match="has ended"):
            source.wait_drained(timeout=SECONDS)
        with pytest.raises(DriverError, match="has ended"):
            context.receiver("more")
        receiver.close()
        source.close()


def test_a_closed_receiver_of_the_driver_ends_with_its_last_application(remote: Context) -> None:
    """The driver leaves the session when no application receives the topic any more."""
    with (
        driver() as one,
        remote.source("left", flow_control="min", flow_control_receiver_timeout=1000) as source,
    ):
        with attached(one.path) as context:
            with context.receiver("left"):
                source.wait_connected(timeout=SECONDS)
            wait_for(lambda: not source.is_connected, "the driver to leave")


def test_applications_that_leave_leave_nothing_behind(remote: Context) -> None:
    """A driver without applications holds the descriptors that it had at first, without a collection of cycles."""
    with driver() as one, remote.source("come") as source, remote.receiver("go") as receiver:
        folder = Path(f"/proc/{one.process.pid}/fd")
        with raw_application(one.path) as peer:
            attach_raw(peer)  # it serves, so it has opened what it needs
            idle = len([*folder.iterdir()]) - 1
        for _ in range(2):
            with attached(one.path) as context, context.receiver("come") as come, context.source("go") as go:
                for sender, reader in ((source, come), (go, receiver)):
                    send_until_received(sender, reader)
        wait_for(lambda: len([*folder.iterdir()]) == idle, "the driver to close its descriptors")


# ---- who may, and how much ----


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_is_not_allowed_is_refused() -> None:
    """By the user that the kernel reports; the refusal names the option."""
    with driver() as one:
        code = f"import umstack; umstack.Context('lo', driver={str(one.path)!r})"
        done = subprocess.run(
            [*UNPRIVILEGED, ".venv/bin/python", "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"user {NOBODY} may not attach" in done.stderr
        assert "--allow-user" in done.stderr


def test_the_limits_are_those_of_the_command() -> None:
    """A refusal names the limit's option, and what is there continues."""
    with driver("--sources-max", "1", "--receivers-max", "1", "--clients-max", "1") as one:
        with attached(one.path) as context:
            receiver, source = context.receiver("limits"), context.source("limits")
            with pytest.raises(DriverError, match="--receivers-max"):
                context.receiver("b")
            with pytest.raises(DriverError, match="--sources-max"):
                context.source("b")
            with pytest.raises(DriverError, match="--clients-max"):
                attached(one.path)
            source.send(b"still", flush=True)
            assert collect(receiver, 1)[0].data == b"still"
            source.close()
            context.source("b").close()


def test_an_error_of_takes_group_ends_no_other_receiver(
    running: RunningDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """Its receiver gets nothing, which is logged; the thread of the driver's messages goes on."""

    def fail(_group: str) -> bool:
        raise ZeroDivisionError

    with attached(running.path) as context, attached(running.path) as publishing:
        with publishing.source("grouped") as first, context.receiver("grouped", takes_group=fail) as failing:
            first.send(b"first", flush=True)
            wait_for(lambda: "takes_group of grouped failed" in caplog.text)
            with context.receiver("grouped") as receiver, publishing.source("grouped") as second:
                receiver.wait_connected(2, timeout=SECONDS)
                second.send(b"second", flush=True)
                assert collect(receiver, 1)[-1].data == b"second"
            assert failing.sources == []


def test_what_a_driver_does_not_do_is_refused_by_name(running: RunningDriver) -> None:
    """Each refusal names the way without a driver."""
    with attached(running.path) as context:
        for refused in (
            lambda: context.source("a", transport_lbtrm_transmission_window_size=65536),
            lambda: context.source("b").nak_cutoff("10.0.0.7:40211"),
        ):
            with pytest.raises(OptionError, match="driver='none'"):
                refused()
    with raw_application(running.path) as peer:
        attach_raw(peer)
        order = {"do": "receive", "request": 1, "id": 2, "topic": "a", "options": {"nonsense": "1"}}
        assert "nonsense" in ask_raw(peer, **order)["error"]["message"]


@pytest.mark.parametrize(
    "events", [None, [1], [["kind", "receiver"]], [["kind", 1, 1]], [["kind", "one", -1]]]
)
def test_events_of_a_driver_are_checked(events: object) -> None:
    """An answer of a process that is no driver is an error."""
    assert events_of({"events": [["connect", "10.0.0.7:1", 2]]}) == [
        ReceiverEvent("connect", "10.0.0.7:1", 2)
    ]
    with pytest.raises(DriverError, match="malformed"):
        events_of({"events": events})


def test_auto_without_a_driver_is_a_context_of_its_own() -> None:
    """`auto` looks at the path of the interface; a path that nobody listens at is an error."""
    assert default_path("eth1") == "/run/umstack/driver-eth1.sock"
    if not Path(default_path("lo")).exists():
        with (
            open_context(driver="auto") as context,
            context.receiver("auto") as receiver,
            context.source("auto") as source,
        ):
            receiver.wait_connected(timeout=SECONDS)
            source.send(b"own", flush=True)
            assert collect(receiver, 1)[0].data == b"own"
    with pytest.raises(DriverError, match="No such file"):
        attached(Path("/nonexistent/driver.sock"))


# ---- applications that break the rules ----


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"garbage",
        b"[" * 20_000,
        b"{}",
        b'{"do":"receive","request":1,"id":1,"topic":"a","options":{}}',
        b'{"do":"attach","low":9,"high":9,"host":1}',
        b'{"do":"attach","low":2,"high":2,"host":0}',
        b'{"do":"attach","low":"1","high":true,"host":null}',
    ],
)
def test_a_peer_that_does_not_speak_the_protocol_is_cut_off(running: RunningDriver, said: bytes) -> None:
    """And the driver continues to serve."""
    with raw_application(running.path) as peer:
        peer.send(said) if said else peer.shutdown(1)
        answer = peer.recv(MESSAGE_MAX_BYTES + 1)
        assert not answer or "error" in json.loads(answer)
        assert peer.recv(1) == b"" if answer else True
    with attached(running.path) as context:
        context.receiver("fine").close()


@pytest.mark.parametrize("name", ["topic", "queue", "on_message", "takes_group", "conflate", "self"])
def test_a_name_that_is_no_option_is_refused(running: RunningDriver, name: str) -> None:
    """Names of other parameters reach no function of the driver, which continues to serve."""
    with raw_application(running.path) as peer:
        peer.send(
            encode(
                {"do": "attach", "low": VERSION_LOW, "high": VERSION_HIGH, "host": host_id(), "request": 1}
            )
        )
        peer.recv(MESSAGE_MAX_BYTES)
        for number, task in enumerate(("receive", "publish"), 2):
            fields = {"id": number, "topic": "a", "options": {name: "1"}}
            peer.send(encode({"do": task, "request": number, **fields}))
            answer = json.loads(peer.recv(MESSAGE_MAX_BYTES))
            assert answer["reply"] == number
            assert f"option {name!r}" in answer["error"]["message"]
    with attached(running.path) as context:
        context.receiver("fine").close()


def test_a_log_that_breaks_the_rules_harms_only_its_source(running: RunningDriver) -> None:
    """Impossible ends, lengths and segments in an application's log: the driver detaches, and serves the others."""
    with (
        attached(running.path) as context,
        context.receiver("good") as receiver,
        context.source("good") as source,
    ):
        for end, record in (
            (8, b"\xff" * 8),
            (CAPACITY * 4, b""),
            (-8, b""),
            (1 << 62, b"\0" * 8),
            (24, b"\x7f" + bytes(23)),
        ):
            session_id = 0x7A000000 | os.getpid() & 0xFFFF
            with (
                RawSource(session_id, is_source_paced=False) as hostile,
                raw_application(running.path) as peer,
            ):
                attach_raw(peer)
                order = {"do": "publish", "request": 1, "id": 1, "topic": "bad", "options": {}}
                log = {"session_id": session_id, "transport_id": 20001, "topic_index": 1, "key": 5}
                peer.send(json.dumps(order | log).encode())
                reader = hostile.accept()
                hostile.write(record, end)
                with contextlib.suppress(BrokenPipeError):  # the driver has looked at the log by itself
                    hostile.wake(reader)
                assert "name" in json.loads(peer.recv(MESSAGE_MAX_BYTES))
                with contextlib.suppress(ConnectionResetError):  # it has not read the wake-up
                    assert reader.recv(64) == b"", "the driver detaches"
            source.send(b"fine", flush=True)
            assert collect(receiver, 1)[0].data == b"fine"


def test_a_source_without_space_for_its_log_leaves_the_others(
    remote: Context, caplog: pytest.LogCaptureFixture
) -> None:
    """Its messages are ignored, which the log reports, and the relay continues."""
    with remote.receiver("space") as receiver, remote.source("space") as source:
        asked: list[str] = []

        def refuse(name: str) -> None:
            asked.append(name)
            raise ResourceLimit("no memory for another log")

        memory = receiver._memory
        relay = Relay(
            memory, DedicatedThreads(), keeps_numbers=True, on_unknown=refuse, on_ended=lambda _name: None
        )
        try:
            receiver.wait_connected(timeout=SECONDS)
            for number in range(3):
                source.send(payload(number), flush=True)
            wait_for(lambda: lib.um_event_queue_taken_rows(memory.handle) >= 4, "the messages to be taken")
            assert asked == [f"{source.transport}[{source.topic_index}]"]
            assert "no memory for another log" in caplog.text
            assert relay.counters().messages == 0
        finally:
            receiver.close()
            relay.stop()
            relay.close()


def test_versions_are_negotiated() -> None:
    """The highest in common, or none."""
    assert common_version(VERSION_LOW, VERSION_LOW) == VERSION_LOW
    assert common_version(1, VERSION_HIGH + 5) == VERSION_HIGH
    assert common_version(1, VERSION_LOW - 1) is None
    assert common_version(VERSION_HIGH + 1, VERSION_HIGH + 5) is None
    assert common_version(0, 0) is None


def test_a_refusal_names_the_versions_of_both(running: RunningDriver) -> None:
    """So that an operator knows which of the two to upgrade."""
    with raw_application(running.path) as peer:
        refusal = ask_raw(peer, do="attach", low=7, high=9, host=host_id())["error"]["message"]
    assert f"{VERSION_LOW} to {VERSION_HIGH}" in refusal
    assert "7 to 9" in refusal


def test_a_connection_that_never_attaches_is_closed(tmp_path: Path) -> None:
    """After the idle timeout; an attached one may be silent for longer."""
    path = tmp_path / "driver.sock"
    policy = Policy(idle_timeout_s=0.3)
    with DriverContext("lo", **OWN_ADDRESSES) as context, listen_at(path) as listener:
        one = Driver(context, listener, policy, DriverLimits(), lambda _event: None)
        thread = threading.Thread(target=one.serve)
        thread.start()
        try:
            with raw_application(path) as attached_peer, raw_application(path) as silent:
                attach_raw(attached_peer)
                assert silent.recv(1) == b""
                order = {"do": "receive", "request": 1, "id": 1, "topic": "idle", "options": {}}
                assert ask_raw(attached_peer, **order) == {"reply": 1, "keyed": False}
        finally:
            one.stop()
            thread.join(SECONDS)
            one.close()


def test_a_user_has_a_limited_number_of_ended_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources that an application ends faster than their logs are published do not add up without a limit."""
    path = tmp_path / "driver.sock"
    monkeypatch.setattr(Driver, "_finish_ending", lambda _driver: None)
    policy, limits = Policy(user_connections_max=2), DriverLimits(sources_max=1)
    with DriverContext("lo", **OWN_ADDRESSES) as context, listen_at(path) as listener:
        one = Driver(context, listener, policy, limits, lambda _event: None)
        thread = threading.Thread(target=one.serve)
        thread.start()
        try:
            with attached(path) as application:
                for number in range(2):
                    application.source(f"ended/{number}").close()
                with pytest.raises(DriverError, match="2 sources whose last messages are still published"):
                    application.source("refused")
        finally:
            one.stop()
            thread.join(SECONDS)
            one.close()


def test_a_source_whose_log_never_answers_ends_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its application has ended it; the driver, which waits for the log, does not wait for the rest of it."""
    path = tmp_path / "driver.sock"
    monkeypatch.setattr(driving, "_UNANSWERED_SECONDS", 0.2)
    with (
        DriverContext("lo", **OWN_ADDRESSES) as context,
        listen_at(path) as listener,
        RawSource(91) as silent,
    ):
        one = Driver(context, listener, Policy(), DriverLimits(), lambda _event: None)
        thread = threading.Thread(target=one.serve)
        thread.start()
        try:
            with raw_application(path) as peer:
                attach_raw(peer)
                log = {"session_id": silent.session_id, "transport_id": 20001, "topic_index": 1, "key": 1}
                ask_raw(peer, do="publish", request=1, id=1, topic="silent", options={}, **log)
                ask_raw(peer, do="end", request=2, id=1)
                assert one._ending
                wait_for(lambda: not one._ending, "the end of the source")
        finally:
            one.stop()
            thread.join(SECONDS)
            one.close()


def test_the_command_reports_what_it_did(tmp_path: Path) -> None:
    """--json: one object on stdout, with the counts; SIGTERM ends it with status 0."""
    command = driver_command(tmp_path / "driver.sock", "lo", "--json")
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()
    attached(tmp_path / "driver.sock").close()
    process.send_signal(signal.SIGTERM)
    said, complained = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, complained
    report = json.loads(said)
    assert report["interfaces"] == {"lo": {"path": str(tmp_path / "driver.sock"), "link": "socket"}}
    assert report["attached"] == 1
    assert lib.UM_RELAY_SOURCES_MAX == 4096
