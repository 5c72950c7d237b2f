"""Late join over loopback: retained messages first, then live ones (UM-135..UM-141)."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.loopback import PORTS, SHARED, open_context, recovery_server
from tests.unit.ways import EVERY_WAY
from tests.waiting import SECONDS, collect, wait_for
from umstack import BurstLoss, Context, Message, Receiver, Source, UnrecoverableLoss
from umstack._core import ffi
from umstack._engine.endpoint import Endpoint
from umstack.recovery.codec import RangeRequest, encode_range_request
from umstack.recovery.fetch import Fetch
from umstack.streams import request_port
from umstack.streams.counters import StreamCounters

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = ("alone",)
"""Most of these tests have peers of their own, and take long."""

RETRANSMITTED = 8
RETAINED = {"late_join": 1, "retransmit_retention_size_limit": 2**26}


@pytest.fixture
def publisher() -> Iterator[Context]:
    with open_context(**PORTS) as context:
        yield context


@pytest.fixture
def subscriber() -> Iterator[Context]:
    with open_context(**PORTS) as context:
        yield context


def _send(source: Source, first: int, count: int, size: int = 16) -> None:
    source.send_many([b"%0*d" % (size, n) for n in range(first, first + count)], flush=True)


def _numbers(receiver: Receiver, count: int, flags: set[int] | None = None) -> tuple[list[int], list[Any]]:
    """Return the numbers of `count` messages and the loss events received with them, and add the flags to a set."""
    numbers: list[int] = []
    others: list[Any] = []

    def enough() -> bool:
        for event in receiver.poll(100_000, timeout=0.05).events():
            if isinstance(event, Message):
                numbers.append(int(event.data))
                if flags is not None:
                    flags.add(event.flags)
            elif isinstance(event, BurstLoss | UnrecoverableLoss):
                others.append(event)
        return len(numbers) >= count

    wait_for(
        enough,
        f"{count} messages",
    )
    return numbers, others


@EVERY_WAY
def test_the_retained_past_and_then_the_present(way: str, publisher: Context, subscriber: Context) -> None:
    """UM-136, UM-139, UM-140: no gap, no duplicate, the past marked; the present is not."""
    source = publisher.source("past", **RETAINED)
    _send(source, 0, 20_000)
    assert source.wait_drained(timeout=SECONDS)
    receiver = subscriber.receiver("past", use_late_join=True)
    past: set[int] = set()
    present: set[int] = set()
    numbers, others = _numbers(receiver, 20_000, past)
    wait_for(lambda: subscriber.stats()["receiver_transports"], "the session")
    _send(source, 20_000, 100)
    more, _ = _numbers(receiver, 100, present)
    assert numbers + more == list(range(20_100))
    assert not others
    assert (past, present) == ({RETRANSMITTED}, {0})
    stats = receiver.stats()
    assert stats["late_join_messages"] >= 20_000
    assert stats["unrecoverable_loss_events"] == 0
    if way != "from a driver":  # then the driver's source sends them
        assert source.stats()["recovery_messages_sent"] >= 20_000


def test_flags_distinguish_past_and_live_messages(publisher: Context, subscriber: Context) -> None:
    """UM-140: what is recovered carries the retransmit flag."""
    source = publisher.source("flags", **RETAINED)
    _send(source, 0, 5)
    receiver = subscriber.receiver("flags")
    seen: list[tuple[int, int]] = []

    def take(count: int) -> bool:
        seen.extend(
            (int(m.data), m.flags)
            for m in receiver.poll(100, timeout=0.05).events()
            if isinstance(m, Message)
        )
        return len(seen) >= count

    wait_for(lambda: take(5), "the past")
    _send(source, 5, 1)
    wait_for(lambda: take(6), "the present")
    assert seen == [(n, RETRANSMITTED) for n in range(5)] + [(5, 0)]


def test_a_receiver_that_starts_in_the_middle(publisher: Context, subscriber: Context) -> None:
    """UM-136: the stream goes on meanwhile; live messages too far ahead are fetched, too."""
    source = publisher.source("middle", flow_control="none", **RETAINED)
    stop, sent = threading.Event(), [0]

    def publish() -> None:
        while not stop.wait(0.002) and sent[0] < 200_000:
            _send(source, sent[0], 200)
            sent[0] += 200

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        wait_for(lambda: sent[0] > 10_000, "a past")
        receiver = subscriber.receiver("middle", retransmit_message_caching_proximity=500)
        numbers, others = _numbers(receiver, 40_000)
    finally:
        stop.set()
        thread.join()
    more, _ = _numbers(receiver, sent[0] - len(numbers)) if sent[0] > len(numbers) else ([], [])
    assert numbers + more == list(range(sent[0]))
    assert not others


@EVERY_WAY
def test_fragments_come_whole(publisher: Context, subscriber: Context) -> None:
    """UM-140: requests are by fragment, delivery by message."""
    source = publisher.source("long", **RETAINED)
    messages = [bytes([n]) * (n * 1000 + 1) for n in range(20)]
    source.send_many(messages, flush=True)
    receiver = subscriber.receiver("long")
    got: list[bytes] = []

    def enough() -> bool:
        got.extend(m.data for m in receiver.poll(100, timeout=0.05).events() if isinstance(m, Message))
        return len(got) >= len(messages)

    wait_for(enough, "all messages")
    assert got == messages


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"retransmit_request_maximum": 30}, 970),
        ({"retransmit_request_low_sequence_number": 400}, 400),
        ({"retransmit_request_bytes_maximum": 28 * 50}, 950),
    ],
)
def test_how_far_back(publisher: Context, subscriber: Context, options: dict[str, int], first: int) -> None:
    """UM-140, UM-141: by count, sequence number and bytes."""
    source = publisher.source("back", **RETAINED)
    _send(source, 0, 1000)
    receiver = subscriber.receiver("back", **options)
    numbers, _ = _numbers(receiver, 1000 - first)
    assert numbers == list(range(first, 1000))


def test_by_age(publisher: Context, subscriber: Context) -> None:
    """UM-140: by age."""
    source = publisher.source("age", **RETAINED)
    _send(source, 0, 100)
    threading.Event().wait(1.2)
    _send(source, 100, 50)
    receiver = subscriber.receiver("age", retransmit_request_age_maximum=1)
    numbers, _ = _numbers(receiver, 50)
    assert numbers == list(range(100, 150))


def test_one_message_is_retained_with_um_thresholds(publisher: Context, subscriber: Context) -> None:
    """UM-141: thresholds of 0 keep one message."""
    source = publisher.source("one", late_join=1, retransmit_retention_size_threshold=0)
    _send(source, 0, 100)
    assert source.stats()["retained_messages"] == 1
    receiver = subscriber.receiver("one")
    assert _numbers(receiver, 1)[0] == [99]


def test_the_store_is_bounded_and_serves_what_the_log_has_cleaned(
    publisher: Context, subscriber: Context
) -> None:
    """UM-139, UM-141: what the log has cleaned comes from the store; beyond the limit it is dropped."""
    limit = 2**20
    source = publisher.source(
        "bounded", late_join=1, transport_lbtrm_transmission_window_size=65536,
        retransmit_retention_size_threshold=limit, retransmit_retention_size_limit=limit, **SHARED,
    )  # fmt: skip
    other = publisher.source("other", **SHARED)
    for part in range(100):
        _send(source, part * 1000, 1000, size=64)
        _send(other, 0, 100)
    stats = source.stats()
    assert stats["retained_bytes"] <= limit
    assert stats["retained_messages"] == limit // 76
    assert stats["term_rotations"] > 10
    receiver = subscriber.receiver("bounded")
    first = 100_000 - limit // 76
    numbers, others = _numbers(receiver, limit // 76)
    assert numbers == list(range(first, 100_000))
    assert not others


@EVERY_WAY
def test_two_receivers_of_one_topic_join_late_in_one_process(publisher: Context, subscriber: Context) -> None:
    """UM-136: each has all of the past, by its own connection, because answers name the topic only."""
    source = publisher.source("both", **RETAINED)
    _send(source, 0, 5000)
    receivers = [subscriber.receiver("both") for _ in range(2)]
    for receiver in receivers:
        assert _numbers(receiver, 5000)[0] == list(range(5000))
    assert subscriber.stats()["context"]["late_joins"] == 2


def test_sequential_mode(publisher: Context) -> None:
    """UM-14, UM-136: the donated thread runs the late join."""
    source = publisher.source("donated", **RETAINED)
    _send(source, 0, 3000)
    with open_context("sequential", **PORTS) as context:
        receiver = context.receiver("donated")
        numbers: list[int] = []

        def enough() -> bool:
            context.process_events(0.01)
            numbers.extend(
                int(m.data) for m in receiver.poll(10_000, timeout=0).events() if isinstance(m, Message)
            )
            return len(numbers) >= 3000

        wait_for(enough, "the past")
        assert numbers == list(range(3000))


def test_a_slow_reader_holds_the_past_back(publisher: Context, subscriber: Context) -> None:
    """UM-140: a full queue stops the requests; nothing is lost or given up."""
    source = publisher.source("slow", **RETAINED)
    _send(source, 0, 50_000, size=100)
    receiver = subscriber.receiver(
        "slow", receiver_queue_block_length=65536, receiver_queue_block_count=4,
        receiver_maximum_message_length=1000, retransmit_request_message_timeout=300,
    )  # fmt: skip
    wait_for(lambda: receiver.stats()["queue_full_pauses"], "a full queue")
    threading.Event().wait(0.5)
    numbers, others = _numbers(receiver, 50_000)
    assert numbers == list(range(50_000))
    assert not others


def test_no_late_join_is_as_before(publisher: Context, subscriber: Context) -> None:
    """UM-139: neither where the source does not offer it nor where the receiver does not want it."""
    source = publisher.source("off", flow_control="min", **RETAINED)
    receiver = subscriber.receiver("off", use_late_join=0)
    source.wait_connected(timeout=SECONDS)
    _send(source, 0, 3)
    assert _numbers(receiver, 3)[0] == [0, 1, 2]
    plain = publisher.source("plain", flow_control="none")
    _send(plain, 0, 3)
    late = subscriber.receiver("plain")
    wait_for(lambda: late.stats()["delivery_controllers"], "the source")
    plain.wait_drained(timeout=SECONDS)
    _send(plain, 3, 2)
    assert _numbers(late, 2)[0] == [3, 4]
    assert subscriber.stats()["context"]["late_joins"] == 0


# Many topics on one connection


def test_many_topics_join_late_over_one_connection(publisher: Context, subscriber: Context) -> None:
    """Item 14 of issue 41: idle topics beyond the limit of connections join at once, and none is refused."""
    topics = [f"many/{n}" for n in range(300)]
    sources = [
        publisher.source(topic, transport_lbtrm_transmission_window_size=65536, **RETAINED)
        for topic in topics
    ]
    for n, source in enumerate(sources):
        _send(source, n, 3)
    receivers = [subscriber.receiver(topic) for topic in topics]
    for n, receiver in enumerate(receivers):
        assert _numbers(receiver, 3)[0] == [n, n + 1, n + 2]
    stats = publisher.stats()["context"]
    assert (stats["recovery_connections"], stats["recovery_connections_refused"]) == (1, 0)
    assert subscriber.stats()["context"]["late_joins"] == len(topics)


def test_a_slow_reader_does_not_hold_other_topics_back(publisher: Context, subscriber: Context) -> None:
    """Answers that wait for space in a queue do not delay those of other topics on the same connection."""
    slow, fast = (publisher.source(topic, **RETAINED) for topic in ("slow/one", "fast/one"))
    _send(slow, 0, 30_000, size=100)
    _send(fast, 0, 30_000, size=100)
    slow_receiver = subscriber.receiver(
        "slow/one", receiver_queue_block_length=65536, receiver_queue_block_count=4,
        receiver_maximum_message_length=1000, retransmit_request_message_timeout=300,
        retransmit_request_outstanding_maximum=1000,
    )  # fmt: skip
    wait_for(lambda: slow_receiver.stats()["queue_full_pauses"], "a full queue")
    assert _numbers(subscriber.receiver("fast/one"), 30_000)[0] == list(range(30_000))
    assert publisher.stats()["context"]["recovery_connections"] == 1
    assert slow_receiver.stats()["late_join_messages"] < 30_000
    numbers, others = _numbers(slow_receiver, 30_000)
    assert numbers == list(range(30_000))
    assert not others


def test_a_shared_connection_that_breaks_is_replaced_once(publisher: Context, subscriber: Context) -> None:
    """The fetches of all topics continue where they were, over one new connection."""
    sources = [publisher.source(f"broken/{n}", **RETAINED) for n in range(5)]
    for source in sources:
        _send(source, 0, 20_000, size=100)
    queues = {
        "receiver_queue_block_length": 65536, "receiver_queue_block_count": 4,
        "receiver_maximum_message_length": 1000, "late_join_info_request_interval": 50,
        "retransmit_request_interval": 200,
    }  # fmt: skip
    receivers = [subscriber.receiver(f"broken/{n}", **queues) for n in range(5)]
    for receiver in receivers:
        wait_for(lambda one=receiver: one.stats()["queue_full_pauses"], "the middle of the past")
    server = recovery_server(publisher)
    [broken] = server._connections.values()
    publisher._streams.loop.submit(partial(server._drop, broken))
    wait_for(lambda: broken.socket.fileno() < 0, "the disconnection")
    for receiver in receivers:
        numbers, others = _numbers(receiver, 20_000)
        assert numbers == list(range(20_000))
        assert not others
    assert publisher.stats()["context"]["recovery_connections"] == 1


def test_requests_for_a_closed_source_do_not_end_the_connection(publisher: Context) -> None:
    """They get no answer and are counted; requests for other topics on the connection are answered."""
    gone, source = publisher.source("gone", **RETAINED), publisher.source("stays", **RETAINED)
    _send(source, 0, 3)
    requests = [RangeRequest(one.topic_index, index << 1) for index, one in ((8, gone), (9, source))]
    gone.close()
    with socket.create_connection(("127.0.0.1", recovery_server(publisher).endpoint.port)) as peer:
        peer.settimeout(SECONDS)
        peer.sendall(b"".join(encode_range_request(request) for request in requests) * 2)
        answered = b""
        while len(answered) < 40:
            answered += peer.recv(100)
    assert answered == struct.pack("!BBHBBHIII", 8, 30, 20, 255, 16, 0, 0, 2, 9 << 1) * 2
    assert publisher.stats()["context"]["recovery_requests_unknown"] == 2
    assert publisher.stats()["context"]["recovery_malformed"] == 0


# Peers that misbehave


class Peer:
    """A request port that answers as configured."""

    def __init__(self, context: Context, answer: Any) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(SECONDS)
        self.answer = answer
        self.accepted = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.done.is_set():
                connection, _ = self.listener.accept()
                self.accepted += 1
                with connection:
                    connection.settimeout(SECONDS)
                    self.answer(connection, self)
        except OSError:
            return

    def close(self) -> None:
        self.done.set()
        self.listener.close()


def _range(low: int, high: int) -> bytes:
    return struct.pack("!BBHBBHIII", 8, 30, 20, 255, 16, 0, low, high, 0)


def _message(topic: int, sqn: int, data: bytes) -> bytes:
    return struct.pack("!BBHII", 10, 0, 12 + len(data), topic, sqn) + data


@pytest.fixture
def lying(publisher: Context, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a source whose advertisement leads to a peer."""
    import umstack.context
    from umstack._engine.endpoint import Endpoint
    from umstack.recovery.codec import endpoint_option

    peers: list[Peer] = []

    def make(topic: str, answer: Any) -> tuple[Source, Peer]:
        peer = Peer(publisher, answer)
        peers.append(peer)
        at = Endpoint("127.0.0.1", peer.listener.getsockname()[1])
        monkeypatch.setattr(umstack.context, "endpoint_option", lambda _real: endpoint_option(at))
        return publisher.source(topic, flow_control="none", **RETAINED), peer

    yield make
    for peer in peers:
        peer.close()


FAST = {
    "late_join_info_request_interval": 50, "late_join_info_request_maximum": 3,
    "retransmit_request_message_timeout": 300, "retransmit_request_interval": 50,
}  # fmt: skip


def _stall(connection: socket.socket, peer: Peer) -> None:
    peer.done.wait(SECONDS)


def test_a_peer_that_stalls_delays_the_present_for_a_bounded_time(lying: Any, subscriber: Context) -> None:
    """UM-140: no range after so many attempts: the present begins where it was first seen."""
    source, _ = lying("stall", lambda connection, peer: connection.recv(100))
    receiver = subscriber.receiver("stall", **FAST)
    wait_for(lambda: receiver.stats()["delivery_controllers"], "the source")
    _send(source, 0, 10)
    numbers, others = _numbers(receiver, 10)
    assert numbers == list(range(10))
    assert not others
    assert subscriber.stats()["context"]["late_joins_given_up"] == 1


def test_a_range_that_is_a_lie_costs_nothing(lying: Any, subscriber: Context) -> None:
    """UM-140: what only a peer promised is not passed over: the present goes on where it is, without a loss event."""

    def lie(connection: socket.socket, peer: Peer) -> None:
        connection.sendall(_range(0, 5_000_000))
        peer.done.wait(SECONDS)

    source, _ = lying("lie", lie)
    receiver = subscriber.receiver("lie", **FAST)
    wait_for(lambda: subscriber.stats()["context"]["late_joins_given_up"], "the end of the fetch")
    _send(source, 0, 10)
    assert _numbers(receiver, 10) == (list(range(10)), [])


def test_what_a_peer_does_not_send_ends_in_one_loss_event(lying: Any, subscriber: Context) -> None:
    """UM-140, UX-7: what was promised and sent, and does not come, is declared lost when the transport shows it."""

    def keep_silent(connection: socket.socket, peer: Peer) -> None:
        connection.sendall(_range(0, 4999))
        peer.done.wait(SECONDS)

    source, _ = lying("silent", keep_silent)
    _send(source, 0, 5000)
    receiver = subscriber.receiver("silent", **FAST)
    wait_for(lambda: subscriber.stats()["context"]["late_joins_given_up"], "the end of the fetch")
    _send(source, 5000, 10)
    numbers, losses = _numbers(receiver, 10)
    assert numbers == list(range(5000, 5010))
    assert [(loss.first_sequence_number, loss.sequence_number) for loss in losses] == [(0, 4999)]


def test_what_was_not_requested_or_comes_twice_is_dropped(lying: Any, subscriber: Context) -> None:
    """UM-140: other topics, sequence numbers out of the range and duplicates are counted and dropped."""
    topic = [0]

    def answer(connection: socket.socket, peer: Peer) -> None:
        connection.recv(100)
        connection.sendall(_range(0, 3))
        connection.recv(4096)
        wrong = [_message(topic[0] + 1, 0, b"7"), _message(topic[0], 77, b"7"), _message(topic[0], 0, b"0")]
        connection.sendall(
            b"".join(
                [*wrong, _message(topic[0], 0, b"0"), *(_message(topic[0], n, b"%d" % n) for n in (2, 1, 3))]
            )
        )
        peer.done.wait(SECONDS)

    source, _ = lying("wrong", answer)
    topic[0] = source.topic_index
    receiver = subscriber.receiver("wrong", **FAST)
    assert _numbers(receiver, 4)[0] == [0, 1, 2, 3]
    assert receiver.stats()["late_join_refused"] == 3


def test_a_peer_that_disconnects_half_way_is_asked_again(lying: Any, subscriber: Context) -> None:
    """UM-140: what came is kept, the rest requested on another connection."""
    topic = [0]

    def answer(connection: socket.socket, peer: Peer) -> None:
        connection.recv(100)
        connection.sendall(_range(0, 9))
        connection.recv(4096)
        first = 5 * (peer.accepted - 1)
        connection.sendall(b"".join(_message(topic[0], n, b"%d" % n) for n in range(first, first + 5)))

    source, peer = lying("half", answer)
    topic[0] = source.topic_index
    receiver = subscriber.receiver("half", **FAST)
    assert _numbers(receiver, 10)[0] == list(range(10))
    assert peer.accepted >= 2


def test_garbage_ends_the_late_join(lying: Any, subscriber: Context) -> None:
    """UM-140: bytes that are not LBMC: the present goes on without the past."""
    source, _ = lying("noise", lambda connection, peer: connection.sendall(b"\x55\x55\x00\x10" * 25))
    receiver = subscriber.receiver("noise", **FAST)
    wait_for(lambda: subscriber.stats()["context"]["recovery_malformed"], "the refusal")
    _send(source, 0, 10)
    assert _numbers(receiver, 10)[0] == list(range(10))


def test_a_source_that_dies_during_a_late_join(publisher: Context, subscriber: Context) -> None:
    """UM-89, UM-140: what it retained is lost with one event when NAKs would not recover it either."""
    source = publisher.source("dies", **RETAINED)
    _send(source, 0, 50_000, size=100)
    receiver = subscriber.receiver(
        "dies", receiver_queue_block_length=65536, receiver_queue_block_count=4,
        receiver_maximum_message_length=1000, transport_lbtrm_nak_generation_interval=1000, **FAST,
    )  # fmt: skip
    wait_for(lambda: receiver.stats()["queue_full_pauses"], "the middle")
    source.close()
    got: list[int] = []
    lost: list[int] = []

    def over() -> bool:
        for event in receiver.poll(100_000, timeout=0.05).events():
            if isinstance(event, Message):
                got.append(int(event.data))
            elif isinstance(event, BurstLoss):
                lost.extend(range(event.first_sequence_number, event.sequence_number + 1))
            elif isinstance(event, UnrecoverableLoss):
                lost.append(event.sequence_number)
        return len(got) + len(lost) >= 50_000

    wait_for(over, "the end")
    assert got + lost == list(range(50_000))
    assert lost


# The request port


def test_a_port_beyond_a_range_that_is_taken_serves_late_join(caplog: pytest.LogCaptureFixture) -> None:
    """When every request port is taken, the system chooses one, a warning names it, and receivers connect there."""
    with socket.create_server(("127.0.0.1", 0)) as taken, open_context() as receiving:
        port = taken.getsockname()[1]
        ports = {"request_tcp_port_low": port, "request_tcp_port_high": port, "request_tcp_reuseaddr": 0}
        with open_context(**ports) as sending, sending.source("taken", late_join=1) as source:
            source.send(b"before", flush=True)
            with receiving.receiver("taken") as receiver:
                assert [message.data for message in collect(receiver, 1)] == [b"before"]
        assert f"request_tcp_port_high ({port}-{port}) is taken" in caplog.text


def test_connections_are_capped_and_idle_ones_end(subscriber: Context) -> None:
    """UM-138: many connections to the request port: a cap, an idle timeout, and the next receiver is served."""
    with open_context(recovery_connections_maximum=8, recovery_idle_timeout=200, **PORTS) as context:
        source = context.source("cap", **RETAINED)
        _send(source, 0, 10)
        port = recovery_server(context).endpoint.port
        peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        wait_for(lambda: context.stats()["context"]["recovery_connections_refused"] >= 42, "the cap")
        assert context.stats()["context"]["recovery_connections"] <= 8
        receiver = subscriber.receiver("cap", late_join_info_request_interval=50)
        assert _numbers(receiver, 10)[0] == list(range(10))
        assert context.stats()["context"]["recovery_connections_idle"] >= 8
        for peer in peers:
            peer.close()


def test_a_host_that_takes_every_connection_gives_way_to_another(subscriber: Context) -> None:
    """Connections with a valid request that are idle since: one of the address that has the most makes space."""
    with open_context(recovery_connections_maximum=8, **PORTS) as context, ExitStack() as crowd:
        source = context.source("crowded", **RETAINED)
        _send(source, 0, 10)
        port = recovery_server(context).endpoint.port
        for _ in range(8):
            peer = crowd.enter_context(
                socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
            )
            peer.sendall(encode_range_request(RangeRequest(source.topic_index)))
            assert peer.recv(100)
        receiver = subscriber.receiver("crowded", late_join_info_request_interval=50)
        assert _numbers(receiver, 10)[0] == list(range(10))
        assert context.stats()["context"]["recovery_connections_displaced"] >= 1


def test_a_host_that_connects_all_the_time_displaces_its_own(
    subscriber: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that have sent nothing yet fill the port: one of another address replaces one of them at once."""
    monkeypatch.setattr(request_port, "IDLE_PEER_NS", 10**15)
    with open_context(recovery_connections_maximum=8, **PORTS) as context, ExitStack() as crowd:
        source = context.source("connecting", **RETAINED)
        _send(source, 0, 10)
        port = recovery_server(context).endpoint.port
        for _ in range(9):
            crowd.enter_context(
                socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
            )
        wait_for(lambda: context.stats()["context"]["recovery_connections_refused"] == 1, "the one too many")
        receiver = subscriber.receiver("connecting", late_join_info_request_interval=50)
        assert _numbers(receiver, 10)[0] == list(range(10))
        assert context.stats()["context"]["recovery_connections_idle"] >= 1


def test_requests_that_are_not_well_formed_end_the_connection(publisher: Context) -> None:
    """UM-138: counted, closed; the port goes on."""
    source = publisher.source("port", **RETAINED)
    _send(source, 0, 10)
    port = recovery_server(publisher).endpoint.port
    good = encode_range_request(RangeRequest(source.topic_index))
    bad = [
        b"\x55" * 40,
        b"\x08\x15\x00\x03",
        good[:1] + b"\x15" + good[2:],
    ]
    for data in [*bad, good + b"\x08\x15\x00\x08\xff\x1c\x00\x00"]:
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.settimeout(SECONDS)
            peer.sendall(data)
            while peer.recv(1000):
                pass
    assert publisher.stats()["context"]["recovery_malformed"] == 4


def test_greetings_of_other_kinds_of_connections_are_refused(
    publisher: Context, caplog: pytest.LogCaptureFixture
) -> None:
    """Of every kind and of one that does not exist: the connection ends, and no step of the port's thread fails."""
    publisher.source("port", **RETAINED)
    port = recovery_server(publisher).endpoint.port
    for kind in range(5):
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.settimeout(SECONDS)
            peer.sendall(bytes.fromhex("0862001cff1880") + bytes([kind]) + bytes(20))
            with contextlib.suppress(ConnectionResetError):
                while peer.recv(1000):
                    pass
    assert "failed" not in caplog.text


def test_a_fetch_that_ends_while_it_takes_held_answers_ends_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core ends a fetch, for a malformed answer or a closed receiver, while it reads the answers held for it."""
    results = [0, -errno.EBADMSG]
    core = SimpleNamespace(um_fetch_begin=lambda *_: None, um_subscription_fetch=lambda *_: results.pop(0))
    monkeypatch.setattr("umstack.recovery.fetch.lib", core)
    counters = StreamCounters()
    subscription: Any = SimpleNamespace(handle=ffi.NULL)
    identity = ffi.new("um_session_id *")[0]
    fetch = Fetch(
        subscription, identity, 1, 1, ffi.new("um_fetch_plan *"), Endpoint("127.0.0.1", 1), counters
    )
    answer = ffi.new("char[]", b"an answer that finds no space")
    fetch.take(answer, len(answer))
    assert fetch.held_bytes == len(answer)
    fetch.work()
    assert fetch.is_over
    assert fetch.held_bytes == 0
    assert counters.recovery_malformed == 1
