"""Off-transport recovery over loopback: rediscovered sources, peers that do not answer, the request port's limits."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.unit.loopback import PORTS, open_context, recovery_server
from tests.unit.test_late_join import RETAINED, Peer, _message, _numbers, _range, _send
from tests.unit.ways import LONG, alone
from tests.waiting import SECONDS, wait_for
from umstack import (
    BeginningOfSession,
    BurstLoss,
    Context,
    EndOfSession,
    Message,
    Receiver,
    Source,
    UnrecoverableLoss,
)

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = ("alone", "to a driver")
"""The log of a source that has a driver itself does not end while the network is idle."""

SOON_ENDED = {"transport_lbtrm_activity_timeout": 250, "transport_lbtrm_send_naks": 0}
"""Options with which the session ends quickly and the transport does not recover messages missed meanwhile.
"""
IDLE = {"transport_lbtrm_sm_minimum_interval": 2000, "transport_lbtrm_sm_maximum_interval": 2000}
QUICK = {
    "otr_request_minimum_interval": 50,
    "otr_request_maximum_interval": 100,
    "otr_request_message_timeout": 400,
}
PATIENT = {"otr_request_message_timeout": 2000}
"""The time limit for a peer that answers, even on a busy machine."""
FLAG_OTR = 0x20


@pytest.fixture
def publisher(way: str) -> Iterator[Context]:
    with open_context(**PORTS) as context:
        yield context


@pytest.fixture
def subscriber(way: str) -> Iterator[Context]:
    with open_context(**PORTS) as context:
        yield context


class Account:
    """Rows that a receiver has delivered."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.numbers: list[int] = []
        self.flags: list[int] = []
        self.lost: list[int] = []
        self.sessions: list[str] = []

    def take(self) -> None:
        for event in self.receiver.poll(100_000, timeout=0.02).events():
            if isinstance(event, Message):
                self.numbers.append(int(event.data))
                self.flags.append(event.flags)
            elif isinstance(event, UnrecoverableLoss):
                self.lost.append(event.sequence_number)
            elif isinstance(event, BurstLoss):
                self.lost += range(event.first_sequence_number, event.sequence_number + 1)
            elif isinstance(event, BeginningOfSession | EndOfSession):
                self.sessions.append(type(event).__name__)

    def until_mapped(self) -> None:
        wait_for(lambda: self.receiver.stats()["delivery_controllers"], "the source")

    def take_for(self, count: int, seconds: float) -> None:
        """Take rows until there are `count` of them or the time limit has passed."""
        deadline = time.monotonic() + seconds
        while len(self.numbers) + len(self.lost) < count and time.monotonic() < deadline:
            self.take()

    def until(self, count: int) -> None:
        def has_enough() -> bool:
            self.take()
            return len(self.numbers) + len(self.lost) >= count

        wait_for(has_enough, f"{count} messages; {len(self.numbers)} received, {len(self.lost)} lost")

    def until_ended(self, count: int = 1) -> None:
        def has_ended() -> bool:
            self.take()
            return self.sessions.count("EndOfSession") >= count

        wait_for(has_ended, "the end of the session")


def _rediscovered(subscriber: Context, account: Account, count: int = 1) -> None:
    def is_found() -> bool:
        account.take()
        return bool(subscriber.stats()["context"]["sources_resumed"] >= count)

    wait_for(is_found, "the rediscovered source")


@pytest.mark.parametrize(
    "options", [{}, {"use_late_join": 0}, {"use_otr": 0}], ids=["both", "otr", "late join"]
)
def test_a_rediscovered_source_delivers_nothing_twice(
    publisher: Context, subscriber: Context, options: dict[str, int]
) -> None:
    """UM-106, UM-142: after EndOfSession the receiver continues at its position, and missed messages are
    fetched.
    """
    source = publisher.source("again", flow_control="none", **RETAINED, **IDLE)
    account = Account(subscriber.receiver("again", **SOON_ENDED, **options))
    account.until_mapped()
    _send(source, 0, 100)
    account.until(100)
    account.until_ended()
    _send(source, 100, 500)  # the group has no receiver
    _rediscovered(subscriber, account)
    account.until(600)
    _send(source, 600, 10)
    account.until(610)
    assert account.numbers == list(range(610))
    assert account.lost == []
    assert account.flags[100:600] == [FLAG_OTR] * 500
    assert account.receiver.stats()["otr_messages"] == 500


def test_a_source_is_rediscovered_three_times(publisher: Context, subscriber: Context) -> None:
    """UM-106: no message is delivered twice, whether it was missed or not."""
    source = publisher.source("thrice", flow_control="none", **RETAINED, **IDLE)
    account = Account(subscriber.receiver("thrice", **SOON_ENDED))
    account.until_mapped()
    _send(source, 0, 50)
    account.until(50)
    for turn in range(1, 4):
        account.until_ended(turn)
        _send(source, 50 * turn, 50)
        _rediscovered(subscriber, account, turn)
        account.until(50 * (turn + 1))
    assert account.numbers == list(range(200))
    assert account.lost == []


def test_another_source_of_the_topic_is_joined_from_its_start(
    publisher: Context, subscriber: Context
) -> None:
    """UM-105, UM-106: a restarted publisher is another source, and its past is fetched."""
    first = publisher.source("restarted", flow_control="none", **RETAINED, **IDLE)
    account = Account(subscriber.receiver("restarted", **SOON_ENDED))
    account.until_mapped()
    _send(first, 0, 10)
    account.until(10)
    first.close()
    account.until_ended()
    second = publisher.source("restarted", flow_control="none", **RETAINED, **IDLE)
    _send(second, 10, 10)
    account.until(20)
    assert account.numbers == list(range(20))
    assert account.lost == []


@pytest.fixture
def misled(publisher: Context, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a source whose advertisement points to a peer."""
    import umstack.context
    from umstack._engine.endpoint import Endpoint
    from umstack.recovery.codec import endpoint_option

    with ExitStack() as stack:

        def make(topic: str, answer: Any) -> tuple[Source, Peer]:
            peer = Peer(publisher, answer)
            stack.callback(peer.close)
            at = Endpoint("127.0.0.1", peer.listener.getsockname()[1])
            monkeypatch.setattr(umstack.context, "endpoint_option", lambda _real: endpoint_option(at))
            return publisher.source(topic, flow_control="none", **RETAINED, **IDLE), peer

        yield make


def _missing_100(source: Source, subscriber: Context, topic: str, **options: int) -> Account:
    """Return a receiver of a misled source that has 0..9, misses 10..109, and then receives 110."""
    account = Account(subscriber.receiver(topic, use_late_join=0, **SOON_ENDED, **{**QUICK, **options}))
    account.until_mapped()
    _send(source, 0, 10)
    account.until(10)
    account.until_ended()
    _send(source, 10, 100)
    _rediscovered(subscriber, account)
    _send(source, 110, 1)
    return account


def test_a_peer_that_never_answers_is_given_up_in_time(misled: Any, subscriber: Context) -> None:
    """UM-142: the receiver reconnects at doubling intervals and gives up after the message timeout; exactly
    the remaining messages are lost.
    """
    source, peer = misled("mute", lambda _connection, peer: peer.done.wait(0.15))
    account = _missing_100(source, subscriber, "mute")
    account.until(111)
    assert account.numbers == [*range(10), 110]
    assert account.lost == list(range(10, 110))
    wait_for(lambda: subscriber.stats()["context"]["otr_given_up"] == 1, "the count")
    assert 2 <= peer.accepted <= 10


def test_a_port_that_refuses_is_given_up_in_time(misled: Any, subscriber: Context) -> None:
    """UM-142: no listener exists at the advertised port."""
    source, peer = misled("nobody", lambda _connection, _peer: None)
    peer.close()
    account = _missing_100(source, subscriber, "nobody")
    account.until(111)
    assert account.lost == list(range(10, 110))


def test_gaps_in_a_peers_answer_are_the_only_losses(misled: Any, subscriber: Context) -> None:
    """UM-142: only the missing sequence number is lost; unrequested and repeated messages are dropped."""
    topic = [0]

    def answer(connection: socket.socket, peer: Peer) -> None:
        connection.recv(100)
        connection.sendall(_range(0, 110))
        connection.recv(4096)
        sent = [n for n in range(10, 110) if n not in (20, 21, 50)]
        connection.sendall(b"".join(_message(topic[0], n, b"%d" % n) for n in [*sent, *sent[:5], 7]))
        peer.done.wait(SECONDS)

    source, _ = misled("holes", answer)
    topic[0] = source.topic_index
    account = _missing_100(source, subscriber, "holes", **PATIENT)
    account.until(111)
    assert account.lost == [20, 21, 50]
    assert account.numbers == [n for n in range(111) if n not in (20, 21, 50)]
    assert account.receiver.stats()["late_join_refused"] == 6


def test_the_rest_is_requested_from_a_peer_that_disconnects_half_way(
    misled: Any, subscriber: Context
) -> None:
    """UM-142: the messages already received are kept."""
    topic = [0]

    def answer(connection: socket.socket, peer: Peer) -> None:
        connection.recv(100)
        connection.sendall(_range(0, 110))
        connection.recv(4096)
        first = 10 + 40 * (peer.accepted - 1)
        connection.sendall(b"".join(_message(topic[0], n, b"%d" % n) for n in range(first, first + 40)))

    source, peer = misled("broken", answer)
    topic[0] = source.topic_index
    account = _missing_100(source, subscriber, "broken", **PATIENT)
    account.until(111)
    assert account.numbers == list(range(111))
    assert peer.accepted >= 3


def test_a_full_store_loses_exactly_the_dropped_messages(publisher: Context, subscriber: Context) -> None:
    """UM-101, UM-141, UM-142: messages that the source drops during the fetch are lost; the others are delivered in
    order."""
    limits = {
        "late_join": 1,
        "retransmit_retention_size_limit": 2**18,
        "retransmit_retention_size_threshold": 2**18,
    }
    source = publisher.source("limit", flow_control="none", **limits, **IDLE)
    account = Account(subscriber.receiver("limit", **SOON_ENDED))
    account.until_mapped()
    _send(source, 0, 10)
    account.until(10)
    account.until_ended()
    _send(source, 10, 20_000, size=100)
    _rediscovered(subscriber, account)
    account.until(20_010)
    _send(source, 20_010, 5)
    account.until(20_015)
    kept = 2**18 // 112
    assert account.numbers == [*range(10), *range(20_010 - kept, 20_015)]
    assert account.lost == list(range(10, 20_010 - kept))
    assert account.receiver.stats()["otr_lost"] == 20_000 - kept


def test_two_receivers_of_a_topic_recover_in_one_process(publisher: Context, subscriber: Context) -> None:
    """UM-142: each receiver continues at its own position."""
    source = publisher.source("both", flow_control="none", **RETAINED, **IDLE)
    accounts = [Account(subscriber.receiver("both", **SOON_ENDED)) for _ in range(2)]
    for account in accounts:
        account.until_mapped()
    _send(source, 0, 100)
    for account in accounts:
        account.until(100)
    for account in accounts:
        account.until_ended()
    _send(source, 100, 300)
    for account in accounts:
        account.until(400)
        assert account.numbers == list(range(400))
        assert account.lost == []
    assert subscriber.stats()["context"]["sources_resumed"] == 2


@alone(LONG)
def test_ten_thousand_connections_to_the_request_port(subscriber: Context) -> None:
    """UM-138: connections beyond the limit are refused; idle ones are closed for a receiver that sends a
    request.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with open_context(**PORTS) as context:
            source = context.source("many", **RETAINED)
            _send(source, 0, 10)
            port = recovery_server(context).endpoint.port
            peers: list[socket.socket] = []
            for _ in range(10_000):
                peer = socket.socket()
                peer.setblocking(False)
                peer.connect_ex(("127.0.0.1", port))
                peers.append(peer)
                if len(peers) > 1000:
                    peers.pop(0).close()

            def was_refused() -> bool:
                stats = context.stats()["context"]
                assert stats["recovery_connections"] <= 64
                return bool(stats["recovery_connections_refused"] + stats["recovery_connections_idle"] > 100)

            wait_for(was_refused, "refused connections")
            receiver = subscriber.receiver("many", late_join_info_request_interval=100)
            assert _numbers(receiver, 10)[0] == list(range(10))
            for peer in peers:
                peer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
